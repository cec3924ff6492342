"""Guards against: a terminal view that hides a fault, shows unknown as zero, or hangs on a node that is not there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from phyai_ros.cli.main import run as run_cli
from phyai_ros.cli.top_view import render, roof_line
from phyai_ros.dashboard.feed import Event, Seen
from phyai_ros.dashboard.snapshot import make_snapshot
from phyai_ros.msg import ControlTiming, PolicyStatus
from ros.policy_rig import PolicyRig

WIDTH = 120
NAN = float("nan")


def show(seen: Seen) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(render(make_snapshot(seen, "/policy")))
    return console.file.getvalue()


def seen_after_a_hold() -> Seen:
    status = PolicyStatus(
        state="holding",
        reason="input_stale",
        text="camera/front/image_raw is 0.412 s old",
        bound="inference",
        x_p50=0.5,
        x_p99=0.25,
        y_p50=0.5,
        y_p99=NAN,
        starved_ticks=7,
        feasible=False,
        input_names=["camera/front/image_raw"],
        input_ages=[0.412],
        input_clock_offsets=[NAN],
        input_clock_drifts=[NAN],
        l_env=0.08,
        l_inference_p50=0.16,
        l_inference_p99=0.32,
    )
    seen = Seen(status=status, status_at_s=1e12)
    seen.events.append(Event(1.7e9, "holding", "input_stale", status.text))
    seen.timings.append(
        ControlTiming(l_denoise=0.16, l_denoise_how=2, l_effect=NAN, l_critical=NAN, l_queue=0.01, seam=NAN)
    )
    return seen


def test_a_fault_its_reason_and_the_regime_are_on_the_screen():
    text = show(seen_after_a_hold())
    for said in ("holding", "is 0.412 s old (input_stale)", "Inference-bound", "do not fit", "starved ticks", "412 ms"):
        assert said in text, said
    assert all(len(line) <= WIDTH for line in text.splitlines())


def test_unknown_is_said_and_not_zero():
    text = show(seen_after_a_hold())
    row = next(line for line in text.splitlines() if "robot follows" in line)
    assert "unknown" in row and "0.00 ms" not in row


def test_a_silent_node_is_not_shown_as_running():
    seen = seen_after_a_hold()
    seen.status_at_s = float("-inf")
    assert "the figures below are old" in show(seen)
    assert "waiting for /policy" in show(Seen())


@pytest.mark.parametrize(("x", "place"), [(0.01, 0), (1.0, 24), (100.0, 47), (None, None)])
def test_the_line_marks_where_the_median_stands(x, place):
    line = roof_line(x, None).plain.splitlines()[0]
    assert (line.find("●") if place is None else line.index("●")) == (-1 if place is None else place)


def test_it_attaches_to_a_running_node(ros_environment, capfd, monkeypatch):
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        rig.wait_for_news("timing", 2)
        monkeypatch.setenv("ROS_DOMAIN_ID", str(rig.context.get_domain_id()))
        assert run_cli(["top", "--once"]) == 0
    shown = capfd.readouterr().out
    assert "/policy: fake on cpu, mode identity" in shown and "running" in shown and "denoise" in shown


def test_a_node_that_is_not_there_is_told(ros_environment, capsys):
    assert run_cli(["top", "--seconds", "0.3"]) == 1
    assert "nothing was heard of /policy" in capsys.readouterr().err
