"""Guards against: a policy that is taught from the wrong moments or with test data, and shipped weights that are of no
use on recordings that they were not taught with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from phyai_ros.cli.main import run
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_writer import BagWriter
from phyai_ros.replay.demonstrations import make_samples, read_demonstrations

BAG = Path(__file__).parents[1] / "data" / "bags" / "bridge_widowx.mcap"
PARAMS = str(Path(__file__).parents[2] / "config" / "bridge_widowx.yaml")
EPISODES, STEPS, HELD_OUT = 25, 10, 5


@pytest.fixture
def held_out(tmp_path):
    """The last episodes, which the shipped weights were not taught with."""
    path = tmp_path / "held_out.mcap"
    with Bag(BAG) as bag, BagWriter(path) as writer:
        for message in bag.messages():
            if bag.since_start_s(message.log_ns) > 4.0 * (EPISODES - HELD_OUT) - 1.0:
                writer.write(message.topic, message.type, message.log_ns, message.msg)
    return path


def test_episodes_end_at_gaps_and_labels_stay_inside():
    with Bag(BAG) as bag:
        shown = read_demonstrations(bag, "/camera/image_raw/compressed", "/ee_state")
    assert [len(episode.positions) for episode in shown.episodes] == [STEPS] * EPISODES
    assert shown.dt_s == pytest.approx(0.2) and shown.names[-1] == "gripper"
    first = shown.episodes[0]
    samples = make_samples([first], horizon=4)
    assert len(samples) == STEPS - 1
    np.testing.assert_allclose(samples.actions[2, 1], first.positions[4] - first.positions[2], atol=1e-6)
    np.testing.assert_allclose(samples.actions[-1], np.tile(first.positions[9] - first.positions[8], (4, 1)), atol=1e-6)


def test_the_shipped_weights_foretell_unseen_episodes_better_than_holding_still(held_out, tmp_path):
    json_file = tmp_path / "r.json"
    arguments = ["replay", str(held_out), "--params", PARAMS, "--json", str(json_file)]
    assert run([*arguments, "--require", "open_loop.ratio<1"]) == 0
    report = json.loads(json_file.read_text())
    assert report["replay"]["comparison"]["open_loop"]["chunks"] >= 2 * HELD_OUT
    kinds = {finding["kind"] for finding in report["findings"]}
    assert {"gap", "hold_input_stale", "stop_input_stale"} <= kinds  # between episodes the robot would have stopped
    assert not any(finding["level"] == "error" for finding in report["findings"])


def test_the_real_bag_runs_from_end_to_end_the_same_each_time(tmp_path):
    for name in ("a", "b"):
        assert run(["replay", str(BAG), "--params", PARAMS, "--out", str(tmp_path / name)]) == 0
    for file in ("actions.csv", "report.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["replay"]["chunks"] >= 2 * EPISODES and report["replay"]["policy_errors"] == 0


def test_training_writes_a_checkpoint_that_replays_and_keeps_the_last_episodes_out(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["train", "--bag", str(BAG), "--params", PARAMS, "--out", str(out), "--steps", "2", "--held-out", "3"]
    assert run(arguments) == 0
    said = capsys.readouterr().out
    assert "learned from 22 episodes" in said and "3 kept out" in said
    assert re.search(r"cross-validated error / error of holding still: \d\.\d\d", said)
    with Bag(out / "held_out.mcap") as bag:
        assert bag.topics["/ee_state"].count == 3 * STEPS
    assert run(["replay", str(out / "held_out.mcap"), "--params", PARAMS, "--checkpoint", str(out)]) == 0


def test_mistakes_are_sentences(tmp_path, capsys):
    assert run(["train", "--bag", str(BAG), "--out", str(tmp_path)]) == 2
    assert "--bag needs --params" in capsys.readouterr().err
    assert run(["train", "--bag", str(BAG), "--params", PARAMS, "--held-out", "25", "--out", str(tmp_path)]) == 2
    assert "has 25 episodes, keep fewer out" in capsys.readouterr().err
