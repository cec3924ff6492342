"""Guards against: a comparison of unequal episodes, figures that depend on the number of processes or change between
runs, intervals and remarks that are wrong, a mode that runs another one's settings, and pictures that are not drawn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from phyai_ros.cli.main import run
from phyai_ros.rtc_bench import MODES, BenchEpisode, Cell, CellPlan, judge, sweep_plans, wilson_interval
from phyai_ros.rtc_bench_pool import Job, load_engine, run_bench_episode, run_job
from phyai_ros.rtc_plots import draw_all
from phyai_ros.sim.evaluate import EpisodeResult
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.task import Outcome, StepSim

TIMES = ("chunk_ms", "wall_s", "date")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def sim():
    with Scene() as scene:
        yield StepSim(scene)


def episode_of(sim: StepSim, plan: CellPlan, seed: int = 100_000) -> BenchEpisode:
    return run_bench_episode(sim, load_engine(plan.adapter, plan.denoise_steps, plan.guidance), plan, seed)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_runs_an_episode(sim, mode):
    episode = episode_of(sim, CellPlan(mode, 3, denoise_steps=5))
    assert episode.result.ticks > 20 and np.isfinite(episode.result.rows).all()
    assert episode.result.starved_ticks == 0 and (episode.infer_s > 0).all()
    launches = episode.result.ticks / {"ensemble": 3, "sync": 11}.get(mode, 8)
    assert len(episode.infer_s) == pytest.approx(launches, abs=2)


def test_without_delay_a_chunk_takes_over_in_the_tick_of_its_observation(sim):
    episode = episode_of(sim, CellPlan("none", 0))
    assert episode.result.swaps[:3] == (8, 16, 24)


def test_under_delay_guidance_is_smoother_on_the_same_episode(sim):
    naive, guided = (episode_of(sim, CellPlan(mode, 8)).result for mode in ("none", "identity"))
    np.testing.assert_array_equal(naive.rows[:9], guided.rows[:9])  # the first chunk continues nothing
    assert guided.success and guided.seams_mrad.mean() < naive.seams_mrad.mean()


def test_random_delays_belong_to_the_episode():
    plan = CellPlan("none", (1, 9))
    delays = [plan.delay_of(7, seq) for seq in range(200)]
    assert set(delays) == set(range(1, 10))
    assert delays == [CellPlan("vjp", (1, 9)).delay_of(7, seq) for seq in range(200)]
    assert delays != [plan.delay_of(8, seq) for seq in range(200)]


def test_a_job_can_be_repeated_in_any_company():
    plan = CellPlan("identity", 6, denoise_steps=5)
    together, alone = run_job(Job(0, plan, range(50, 53))), run_job(Job(0, plan, range(52, 53)))
    np.testing.assert_array_equal(together[2].result.rows, alone[0].result.rows)


@pytest.mark.parametrize(
    ("plan", "words"),
    [({"mode": "magic", "delay": 1}, "modes: 'magic' is unknown"), ({"mode": "none", "delay": 40}, "delays: 40")],
)
def test_a_cell_that_cannot_be_is_refused(plan, words):
    with pytest.raises(ValueError, match=words):
        CellPlan(**plan)


def test_the_sweep_changes_one_setting_at_a_time():
    plans = sweep_plans()
    assert len(set(plans)) == len(plans)
    assert CellPlan("identity", 8, denoise_steps=10) in plans and CellPlan("none", 8, denoise_steps=5) in plans


@pytest.mark.parametrize(
    ("successes", "trials", "interval"), [(8, 10, (0.490, 0.943)), (0, 20, (0.0, 0.161)), (100, 100, (0.963, 1.0))]
)
def test_interval_of_a_success_rate(successes, trials, interval):
    assert wilson_interval(successes, trials) == pytest.approx(interval, abs=1e-3)


def fake_cell(mode, delay=8, successes=50, size=0.01) -> Cell:
    """100 episodes whose rows jump by `size` at tick 5."""
    rows = np.zeros((10, 4), np.float32)
    rows[5:, 0] = size
    outcomes = [Outcome.SUCCESS] * successes + [Outcome.TIMEOUT] * (100 - successes)
    results = [EpisodeResult(outcome, rows, swaps=(5,), flips=0, starved_ticks=0) for outcome in outcomes]
    return Cell(CellPlan(mode, delay), [BenchEpisode(result, np.array([0.01]), 0, 5) for result in results])


@pytest.mark.parametrize(
    ("cell", "remark"),
    [
        (fake_cell("none"), ""),
        (fake_cell("identity", successes=80), "succeeds more"),
        (fake_cell("sync", successes=20), "succeeds less"),
        (fake_cell("identity", size=0.008), "smoother"),
        (fake_cell("hard", size=0.0095), "no help"),
        (fake_cell("ramp", size=0.02), "rougher"),
        (fake_cell("identity", delay=4, successes=100), ""),
    ],
)
def test_where_a_mode_does_not_help_the_table_says_so(cell, remark):
    assert judge([fake_cell("none").figures(), cell.figures()])[1] == remark


def test_figures_of_a_cell_have_the_names_of_the_json_file():
    figures = fake_cell("identity", delay=10).figures()
    assert figures["s"] == 10 and figures["denoise_steps"] == 5 and figures["success"] == 0.5
    assert figures["seam_mrad_mean"] == figures["seam_mrad_p99"] == pytest.approx(10.0, rel=1e-3)
    names = (
        "mode delay s episodes success success_ci seam_mrad_mean seam_mrad_p99 jerk mode_flips starved_ticks chunk_ms"
    )
    assert set(names.split()) <= set(figures)


def test_pictures_are_drawn_of_whatever_was_run(tmp_path):
    cells = {"cells": [fake_cell(mode, delay) for mode in MODES for delay in (0, 8)]}
    cells["jitter"] = [fake_cell("none", (1, 9))]
    cells["sweep"] = [fake_cell("none"), fake_cell("identity")]
    report = {name: [cell.figures() for cell in group] for name, group in cells.items()}
    assert len(draw_all(cells, report, "here, today", tmp_path)) == 4
    for path in tmp_path.iterdir():
        assert np.asarray(Image.open(path).convert("L")).std() > 10, path
    assert len(draw_all({"cells": cells["cells"][:1]}, {"cells": report["cells"][:1]}, "", tmp_path / "one")) == 2


def strip_times(report: object) -> object:
    if isinstance(report, dict):
        return {name: strip_times(value) for name, value in report.items() if name not in TIMES}
    return [strip_times(item) for item in report] if isinstance(report, list) else report


def bench(path: Path, workers: int) -> dict:
    command = "rtc-bench --modes none,vjp --delays 3 --jitter --episodes 6 --denoise-steps 5"
    assert run([*command.split(), "--workers", str(workers), "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures_however_many_processes_share_the_work(tmp_path):
    first, again = bench(tmp_path / "one.json", workers=1), bench(tmp_path / "two.json", workers=2)
    assert [cell["mode"] for cell in first["cells"]] == ["none", "vjp"] and len(first["jitter"]) == 2
    assert json.dumps(strip_times(first)) == json.dumps(strip_times(again))


@pytest.mark.parametrize(
    ("arguments", "said"), [("--modes magic", "'magic' is unknown"), ("--delays 1,two", "--delays is '1,two'")]
)
def test_wrong_use_is_told_in_words(arguments, said, capsys):
    assert run(["rtc-bench", *arguments.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_installed_script_may_start_processes(tmp_path):
    """They import the script anew: without a guard each of them would start the command again."""
    script = Path(sys.prefix) / "bin" / "phyai-ros"
    if not script.exists():
        pytest.skip("the command is not installed here")
    options = "rtc-bench --modes none --delays 4 --episodes 6 --workers 2 --denoise-steps 2"
    done = subprocess.run([sys.executable, script, *options.split()], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "6 episodes per cell" in done.stdout, done.stderr
