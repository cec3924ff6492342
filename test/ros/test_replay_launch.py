"""Guards against: a replay launch that plays before the node is active, plays the node's own output back to it, or does
not end with the bag. The player is a stand-in that writes down how it was called."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ros.test_launch import DEMO_CONFIG, ROOT, Launched

PLAYER = """#!{python}
import pathlib, sys
pathlib.Path({said!r}).write_text("\\n".join(sys.argv[1:]))
"""


@pytest.fixture
def launched(graph, tmp_path):
    """Start launch/replay.launch.py with arguments; gives (launch, how the player was called)."""
    said, tool = tmp_path / "said.txt", tmp_path / "bin" / "ros2"
    tool.parent.mkdir()
    tool.write_text(PLAYER.format(python=sys.executable, said=str(said)))
    tool.chmod(0o755)
    (tmp_path / "some.mcap").touch()
    environment = {**graph.environment, "PATH": f"{tool.parent}:{graph.environment['PATH']}"}
    file = str(ROOT / "launch" / "replay.launch.py")
    started: list[Launched] = []

    def start(*arguments: str) -> Launched:
        started.append(Launched(environment, tmp_path / "log.txt", file, *arguments))
        return started[-1]

    def run(*arguments: str) -> tuple[int, str, list[str]]:
        launch = start(*arguments)
        try:
            code = launch.process.wait(40)
        except subprocess.TimeoutExpired:  # the transition event came before the launch had discovered its topic
            launch.interrupt()
            launch = start(*arguments)
            code = launch.process.wait(60)
        return code, launch.output, said.read_text().splitlines() if said.exists() else []

    yield run, str(tmp_path / "some.mcap")
    for launch in started:
        if launch.process.poll() is None:
            launch.interrupt()


def test_the_inputs_are_played_to_the_active_node_and_everything_ends_with_the_bag(launched):
    run, bag = launched
    code, output, said = run(f"bag:={bag}", f"params_file:={DEMO_CONFIG}", "rate:=5", "start_paused:=true")
    assert code == 0, output
    assert said[: said.index("--topics")] == [*("bag", "play", bag, "--clock", "100", "--rate", "5", "--start-paused")]
    played = said[said.index("--topics") + 1 :]
    assert played == ["/joint_states", "/camera/front/image_raw", "/policy/estop", "/policy/enable", "/policy/prompt"]


def test_mistakes_are_sentences(launched):
    run, bag = launched
    code, output, said = run("bag:=/nowhere.mcap")
    assert code != 0 and "bag is '/nowhere.mcap', which does not exist" in output and not said
    code, output, said = run(f"bag:={bag}", f"params_file:={DEMO_CONFIG}", "rate:=0")
    assert code != 0 and "rate is '0'; allowed is a number above 0" in output and not said
