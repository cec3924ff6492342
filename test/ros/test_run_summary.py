"""Guards against figures that say more than was seen: unknown must be null, and gaps must not count as motion."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from phyai_ros.cli.summary import STAGES, jerk_within_episodes, make_table, summarise, write_json
from phyai_ros.run_record import load_record, save_record
from ros.fake_runs import DT_S, empty_record, make_record


def test_every_key_of_the_report_is_there_with_its_unit():
    summary = summarise(make_record("none", jump_rad=0.06, inference_s=0.25))
    assert summary["mode"] == summary["rtc_mode"] == "none"
    assert (summary["episodes"], summary["successes"]) == (2, 1)
    assert (summary["starved_ticks"], summary["missed_ticks"]) == (0, 1)
    assert (summary["chunks"], summary["epochs_discarded"]) == (20, 2)
    assert summary["tick_error_ms"] == {"p50": 0.02, "p99": 0.4, "max": 2.0}
    assert summary["l_inference_ms"] == {"p50": 250.0, "p99": 250.0}
    assert summary["seam_mrad"] == {"mean": 60.0, "p99": 60.0}
    assert (summary["x"], summary["y"], summary["bound"]) == (1.28, 1.0, "environment")
    assert {f"l_{stage}_ms" for stage in STAGES} < set(summary)


def test_a_slow_policy_is_inference_bound():
    summary = summarise(make_record(inference_s=0.4))
    assert summary["bound"] == "inference"
    assert summary["x"] == summary["y"] == pytest.approx(0.8)


def test_the_way_to_the_robot_counts_only_where_its_lag_was_measured():
    record = make_record()
    count = len(record.chunk_times_s)
    lag_s = np.where(np.arange(count) < 5, np.nan, 0.055)  # not known before there was enough motion
    way_s = np.where(np.isnan(lag_s), 0.047, 0.047 + lag_s)
    summary = summarise(replace(record, timing=record.timing | {"l_effect": lag_s, "l_critical": way_s}))
    assert summary["l_critical_ms"] == {"p50": 102.0, "p99": 102.0}
    assert summary["chunks_without_lag"] == 5
    unknown = summarise(replace(record, timing=record.timing | {"l_critical": way_s}))
    assert unknown["l_critical_ms"]["p50"] is None and unknown["chunks_without_lag"] == count
    table = make_table([unknown], "")
    shown = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert shown["camera to robot, p50 / p99"] == "unknown" and shown["  chunks left out, lag not known"] == str(count)


def test_what_was_never_seen_is_null_and_the_file_is_strict_json(tmp_path):
    summary = summarise(empty_record())
    assert summary["l_vision_ms"] == summary["l_inference_ms"] == {"p50": None, "p99": None}
    for name in ("x", "y", "bound", "jerk", "starved_ticks", "missed_ticks", "chunks", "chunks_without_lag"):
        assert summary[name] is None, name
    write_json(tmp_path / "new" / "out.json", summary)
    assert json.loads((tmp_path / "new" / "out.json").read_text()) == summary
    with pytest.raises(ValueError):
        write_json(tmp_path / "out.json", {"jerk": float("nan")})


def test_jerk_is_that_of_the_formula():
    record = make_record("none", episodes=1, jump_rad=0.06)
    rows = record.command_rows
    expected = np.sqrt(np.mean((np.diff(rows, n=3, axis=0) / DT_S**3) ** 2))
    assert jerk_within_episodes(record) == pytest.approx(expected)


@pytest.mark.parametrize("split", ["gap", "epoch"])
def test_jerk_does_not_see_a_jump_between_two_stretches(split):
    """Another start pose behind a pause or after a reset is no motion that the policy commanded."""
    record = make_record("rtc", episodes=1)
    half, times = len(record.command_rows) // 2, record.command_times_s.copy()
    rows = np.zeros_like(record.command_rows)
    rows[half:] = 1.0
    if split == "gap":
        times[half:] += 2 * DT_S
        changed = replace(record, command_rows=rows, command_times_s=times)
    else:
        changed = replace(record, command_rows=rows, chunk_epochs=(record.chunk_times_s >= times[half]).astype(float))
    assert jerk_within_episodes(changed) == 0.0
    assert jerk_within_episodes(replace(record, command_rows=rows)) > 1000


def test_rows_outside_of_episodes_do_not_count():
    record = make_record("none", jump_rad=0.06)
    assert np.isnan(jerk_within_episodes(replace(record, episodes=())))


def test_a_record_survives_the_disk_and_a_foreign_file_is_named(tmp_path):
    record = make_record("sync", inference_s=0.3)
    save_record(record, tmp_path / "run_sync.npz")
    assert summarise(load_record(tmp_path / "run_sync.npz")) == summarise(record)
    np.savez(tmp_path / "other.npz", x=1)
    with pytest.raises(ValueError, match=r"other\.npz"):
        load_record(tmp_path / "other.npz")


def test_the_table_says_unknown_where_the_figure_is_null():
    console = Console(width=100, record=True)
    console.print(make_table([summarise(make_record()), summarise(empty_record("none"))], "Two runs"))
    lines = console.export_text().splitlines()
    row = next(line for line in lines if line.strip().startswith("bound by"))
    assert "environment" in row and "unknown" in row
