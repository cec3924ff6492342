"""Guards against: a report that names the wrong regime or stage, advice that contradicts the roofline, unknown terms
drawn as zero, a run off its curve that passes, and files that are no runs met with a traceback."""

from __future__ import annotations

import json
import math

import cv2
import numpy as np
import pytest

from phyai_core.timing import ChunkTiming, Roofline, measured
from phyai_ros.cli.main import run as run_cli
from phyai_ros.control_time_words import describe_dominant, describe_factors, describe_regime, describe_robots
from phyai_ros.msg import ControlTiming, PolicyStatus
from phyai_ros.replay.bag_writer import BagWriter
from phyai_ros.report.control_time import describe_run
from phyai_ros.report.runs import read_run
from phyai_ros.run_record import save_record
from ros.fake_runs import make_record

DT_S = 0.04


def write_timings(path, l_inference=0.1, l_control=0.32, l_env=0.32, chunks=60, **terms):
    """A timings.jsonl of equal chunks; `terms` are more latencies in seconds."""
    terms |= {"inference": l_inference, "control": l_control}
    values = {f"l_{name}": measured(seconds) for name, seconds in terms.items()}
    with path.open("w") as file:
        for seq in range(chunks):
            timing = ChunkTiming(epoch=0, seq=seq, l_env=l_env, **values)
            flat = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in timing.flatten().items()}
            file.write(json.dumps({"time_s": seq * l_control, **flat}) + "\n")
    return path


def test_the_words_of_an_environment_bound_robot():
    point = Roofline(0.32, 0.08, 0.32)
    assert "Environment-bound" in describe_regime(point) and "margin (now 240 ms)" in describe_regime(point)
    assert "2 times faster or 4 times faster would not change it" in describe_factors(point, overlap=True)
    assert describe_robots(0.32, 0.1) == (
        "At the 99th percentile this device serves 3 such robots one after the other, without batching."
    )
    assert describe_robots(0.32, 0.2) == "At the 99th percentile this device serves one such robot."
    assert "Not even one" in describe_robots(0.32, 0.4) and describe_robots(0.32, math.nan) == ""


def test_the_words_of_an_inference_bound_robot():
    point = Roofline(0.08, 0.24, 0.24)
    assert "Inference-bound" in describe_regime(point)
    text = describe_factors(point, overlap=True)
    assert "With a model 4 times slower it is 960 ms, 2 times slower 480 ms" in text
    assert "2 times faster 120 ms" in text and "4 times faster 80.0 ms" in text
    assert "2 times faster 200 ms" in describe_factors(point, overlap=False)


def test_nothing_is_said_of_what_is_not_known():
    unknown = Roofline(0.32, math.nan)
    assert "Not enough chunks" in describe_regime(unknown)
    assert describe_factors(unknown, overlap=True) == describe_dominant({"queue": math.nan}) == ""


def test_the_dominant_stage_is_named_with_its_share():
    text = describe_dominant({"queue": 0.010, "denoise": 0.060, "effect": 0.030, "vision": math.nan})
    assert text == "Of 100 ms from exposure to effect, denoise takes 60.0 ms (60 %)."
    text = describe_dominant({"queue": 0.010, "denoise": 0.060, "effect": math.nan})
    assert text.startswith("Of 70.0 ms from exposure to command (the robot's own lag is not known), denoise takes")


def test_a_report_of_timings_says_shows_and_stores(tmp_path, capsys):
    source = write_timings(tmp_path / "timings.jsonl", queue=0.01, denoise=0.07, adopt=0.02)
    assert run_cli(["report", str(source), "--out", str(tmp_path / "out"), "--json", str(tmp_path / "f.json")]) == 0
    assert "Environment-bound" in capsys.readouterr().out.replace("\n", " ")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "denoise takes 70.0 ms" in page and page.count("data:image/png;base64,") == 4 and "http" not in page
    for name in ("roofline", "waterfall", "histograms", "timeline"):
        picture = cv2.imread(str(tmp_path / "out" / f"{name}.png"))
        assert picture.std() > 10, f"{name} shows something"
    figures = json.loads((tmp_path / "f.json").read_text())["runs"][0]
    assert (figures["x_p50"], figures["y_p50"], figures["robots"]) == (3.2, 1.0, 3)
    assert figures["l_vision_p50"] is None and figures["l_queue_p50"] == 0.01


def test_several_runs_are_compared_against_their_curves(tmp_path):
    folders = [tmp_path / name for name in ("on", "off")]
    for folder, control in zip(folders, (0.32, 0.64), strict=True):
        folder.mkdir()
        write_timings(folder / "timings.jsonl", l_control=control)
    command = ["report", *map(str, folders), "--out", str(tmp_path / "out")]
    assert run_cli(command) == 0
    assert run_cli([*command, "--require-on-curve"]) == 1
    figures = json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
    assert [(run["run"], run["on_curve"]) for run in figures] == [("on", True), ("off", False)]


def test_a_demo_record_knows_its_mode(tmp_path):
    save_record(make_record("sync"), tmp_path / "run_sync.npz")
    run = read_run(tmp_path)
    assert not run.overlap and run.dt_s == DT_S
    assert describe_run(run)["y_expected"] == pytest.approx(run.point().x / (1 + run.point().x), abs=1e-6)


def test_a_bag_tells_what_the_robot_did_and_why(tmp_path):
    path, start_ns = tmp_path / "run.mcap", 1_700_000_000_000_000_000
    with BagWriter(path) as bag:
        for k in range(10):
            state, reason = ("running", "ok") if k < 6 else ("holding", "starved")
            now_ns = start_ns + k * 100_000_000
            status = PolicyStatus(state=state, reason=reason, rtc_mode="sync")
            bag.write("/policy/status", "phyai_ros/msg/PolicyStatus", now_ns, status)
            timing = ControlTiming(l_inference=0.24, l_env=0.32, l_control=0.56, l_vision=math.nan)
            bag.write("/policy/timing", "phyai_ros/msg/ControlTiming", now_ns, timing)
    run = read_run(path)
    assert [(span.state, span.reason) for span in run.spans] == [("running", "ok"), ("holding", "starved")]
    assert run.spans[1].start_s == pytest.approx(0.6)
    assert (run.label, run.overlap, describe_run(run)["on_curve"]) == ("run", False, True)
    assert math.isnan(run.quantile("l_vision", 50.0))


def test_the_tail_on_the_other_side_of_the_ridge_is_said(tmp_path):
    run = read_run(write_timings(tmp_path / "timings.jsonl"))
    run.columns["l_inference"][:3] = 0.5
    assert "the tail is the limit" in describe_run(run)["words"][-1]
    assert np.isfinite(run.quantile("l_inference", 99.0))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("timings.jsonl", "not json\n", "line 1 is not a JSON object"),
        ("timings.jsonl", '{"seq": 1}\n', "holds no control time"),
        ("run_rtc.npz", "x", "is not a run recorded by phyai-ros demo"),
        ("notes.txt", "x", "is not a bag"),
    ],
)
def test_what_is_no_run_is_refused_in_a_sentence(tmp_path, name, content, said, capsys):
    (tmp_path / name).write_text(content)
    assert run_cli(["report", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err
