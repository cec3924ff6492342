"""Guards against pictures that do not explain themselves, or that show something else than the figures say."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from phyai_ros.cli.demo import draw_plots
from phyai_ros.cli.summary import summarise, write_json
from phyai_ros.plots import MODE_COLOURS, Run, pick_episode, plot_chunks, plot_command, save
from phyai_ros.roofline_plot import plot_roofline, x_at_p99
from phyai_ros.run_record import save_record
from ros.fake_runs import DT_S, HORIZON, empty_record, make_record

MADE = "test machine, 2 cores, 2026-01-01"


def make_run(mode: str, **changes) -> Run:
    record = make_record(mode, **changes)
    return Run(record, summarise(record) | {"inject_delay_s": 0.24}, MADE)


def texts(figure) -> str:
    own = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    return "\n".join(own)


def test_commands_have_a_panel_per_mode_in_the_order_of_the_story():
    figure = plot_command([make_run("rtc"), make_run("none", jump_rad=0.06), make_run("sync")])
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert [title.split(":")[0] for title in titles] == ["sync", "none", "rtc"]
    assert "mean seam 60 mrad" in titles[1]
    shown = texts(figure)
    for explained in ("'yaw'", "(rad)", "(s)", "a new chunk takes over", MADE, "slowed by 0.24 s", "1 of 2 episodes"):
        assert explained in shown, explained


def test_the_line_is_the_command_of_the_first_episode_and_breaks_where_nothing_was_commanded():
    run = make_run("sync")
    panel = plot_command([run]).axes[0]
    solid = [line for line in panel.lines if line.get_linestyle() == "-"]
    inside = run.record.rows_within(run.record.episodes[0])
    drawn = np.concatenate([line.get_ydata() for line in solid])
    np.testing.assert_allclose(drawn, run.record.command_rows[inside, 0])
    assert len(solid) == 6
    waits = [line for line in panel.lines if line.get_linestyle() == ":"]
    assert len(waits) == 5 and all(line.get_drawstyle() == "steps-post" for line in waits)


def test_with_a_swapping_run_the_roughest_episode_is_shown_and_named():
    rough = make_run("none", jump_rad=0.06)
    second = rough.record.rows_within(rough.record.episodes[1])
    rough.record.command_rows[second[len(second) // 2] :, 0] += 0.5
    runs = [make_run("rtc"), rough]
    assert pick_episode(runs, joint=0) == (1, "episode 2, where swapping chunks jerked most")
    assert "episode 2, where swapping chunks jerked most" in texts(plot_command(runs))
    assert pick_episode(runs[:1], joint=0) == (0, "the first episode")


def test_chunks_show_what_was_planned_beyond_what_was_executed():
    run = make_run("none", jump_rad=0.06)
    panel = plot_chunks([run]).axes[0]
    plans = [line for line in panel.lines if line.get_linewidth() < 1]
    assert len(plans) == 10
    np.testing.assert_allclose(np.diff(plans[0].get_xdata()), DT_S)
    assert len(plans[0].get_xdata()) == HORIZON


def test_the_roofline_shows_each_run_where_its_figures_are():
    run = make_run("rtc", inference_s=0.4)
    figure = plot_roofline([run])
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(run.summary["x"], run.summary["y"])]
    assert points[0].get_color() == MODE_COLOURS["rtc"]
    shown = texts(figure)
    for explained in ("min(1, X)", "X / (1 + X)", "inference-bound", "environment-bound", "X 0.80, Y 0.80", MADE):
        assert explained in shown, explained
    assert figure.axes[0].get_xscale() == "log"


def test_the_roofline_has_room_for_very_fast_and_very_slow_policies():
    fast, slow = make_run("rtc", inference_s=0.001), make_run("none", inference_s=20.0)
    left, right = plot_roofline([fast, slow]).axes[0].get_xlim()
    assert left < slow.summary["x"] < fast.summary["x"] < right
    assert x_at_p99(slow.summary) == pytest.approx(0.016)


def test_a_run_without_chunks_draws_no_commands_and_an_empty_roofline(tmp_path):
    run = Run(empty_record(), summarise(empty_record()), MADE)
    assert plot_command([run]) is None and plot_chunks([run]) is None
    save(plot_roofline([run]), tmp_path / "new" / "roofline.png")
    assert imread(tmp_path / "new" / "roofline.png").ndim == 3


def test_only_runs_under_the_same_conditions_share_a_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("phyai_ros.plots.plot_command", lambda runs: drawn.extend(run.mode for run in runs))
    for mode, delay_s in (("rtc", 0.24), ("none", 0.24), ("sync", 0.0)):
        record = make_record(mode)
        save_record(record, tmp_path / f"run_{mode}.npz")
        write_json(tmp_path / f"run_{mode}.json", summarise(record) | {"seed": 0, "inject_delay_s": delay_s})
    pictures = draw_plots(tmp_path, {"seed": 0, "inject_delay_s": 0.24})
    assert sorted(drawn) == ["none", "rtc"]
    assert [path.name for path in pictures] == ["chunks.png", "roofline.png"]
