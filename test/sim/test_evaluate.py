"""Guards against: a shipped policy that does not do its task, real-time chunking that does not help under delay,
figures that depend on the order of episodes, and swaps or starvation counted wrongly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from phyai_adapters import load_adapter
from phyai_core.engine import Engine
from phyai_core.execution import ExecutorConfig
from phyai_core.metrics import jerk
from phyai_core.rtc import RtcConfig
from phyai_core.types import Observation
from phyai_ros.sim.evaluate import (
    EpisodeResult,
    Evaluation,
    Setting,
    evaluate,
    make_executor,
    passing_side,
    run_episode,
    run_receding_episode,
)
from phyai_ros.sim.expert import joints_for, plan, point_for
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.task import REAL_TIME_AGE, Outcome, StepSim

DELAY_TICKS = 7


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    return Engine(load_adapter("flow_tiny", None, cpu), cpu)


@pytest.fixture(scope="module")
def sim():
    with Scene() as scene:
        yield StepSim(scene)


def under_delay(mode: str) -> Setting:
    executor = ExecutorConfig(mode=mode, execution_horizon=8, delay_initial=DELAY_TICKS)
    return Setting(DELAY_TICKS, executor, RtcConfig("none" if mode == "sync" else mode))


def test_the_shipped_policy_does_its_task(engine):
    assert evaluate(engine, Setting(), episodes=100).successes >= 97


def test_sensors_as_old_as_in_real_time_do_not_hurt(engine):
    assert evaluate(engine, Setting(sensor_age=REAL_TIME_AGE), episodes=30).successes >= 28


def test_under_delay_real_time_chunking_succeeds_and_is_smoother_than_naive_swaps(engine):
    guided, naive = (evaluate(engine, under_delay(mode), episodes=30) for mode in ("identity", "none"))
    assert guided.successes >= 28
    assert guided.starved_ticks == naive.starved_ticks == 0
    assert naive.seam_mrad > 2 * guided.seam_mrad
    assert naive.jerk_rad_s3 > 2 * guided.jerk_rad_s3
    assert naive.flips_per_episode > guided.flips_per_episode


def test_waiting_for_inference_loses_the_puck(engine):
    assert evaluate(engine, under_delay("sync"), episodes=10).successes < 5


class PaintedPuck(StepSim):
    """Shows the puck 8 cm from where it is."""

    def observe(self) -> Observation:
        truth = self.scene.snapshot()
        wrong = replace(truth, puck_xy=truth.puck_xy + np.array([0.0, 0.08]))
        return replace(super().observe(), images={"front": self.scene.picture(wrong, 64, 64)})


def test_the_policy_follows_the_puck_that_it_sees(engine):
    with Scene() as scene:
        lured = PaintedPuck(scene)
        outcomes = [run_receding_episode(lured, engine, 8, seed).outcome for seed in range(5)]
        missed_m = lured.scene.snapshot().tool_xy - lured.scene.snapshot().puck_xy
    assert Outcome.SUCCESS not in outcomes
    assert missed_m[1] == pytest.approx(0.08, abs=0.03)


def episode(engine: Engine, sim: StepSim, seed: int, setting: Setting, delay_ticks=DELAY_TICKS) -> EpisodeResult:
    return run_episode(sim, make_executor(engine, setting.executor, setting.rtc, seed), delay_ticks, seed)


def test_an_episode_depends_on_its_seed_alone(engine, sim):
    setting = under_delay("identity")
    first, other, again = (episode(engine, sim, seed, setting) for seed in (1, 2, 1))
    np.testing.assert_array_equal(first.rows, again.rows)
    assert first.rows.shape != other.rows.shape or (first.rows != other.rows).any()


def test_chunks_take_over_when_their_delay_has_passed(engine, sim):
    result = episode(engine, sim, 0, under_delay("identity"))
    assert (result.rows[:DELAY_TICKS] == result.rows[0]).all()  # nothing to execute before the first chunk
    # The first chunk enters at its row 0; the next launches follow 8 rows later, then every 8 ticks.
    first = DELAY_TICKS + 8 + DELAY_TICKS
    assert result.swaps[:3] == (first, first + 8, first + 16)


def test_the_delay_may_change_from_chunk_to_chunk(engine, sim):
    delays = iter([3, 9, 2, 6, 4, 8, 1, 5] * 10)
    result = episode(engine, sim, 0, under_delay("identity"), lambda request: next(delays))
    assert len(set(np.diff(result.swaps))) > 1


def test_a_delay_beyond_the_chunk_is_counted_as_starvation(engine, sim):
    assert episode(engine, sim, 0, under_delay("none"), delay_ticks=30).starved_ticks > 0


def test_figures_are_those_of_the_rows():
    rows = np.zeros((8, 4), np.float32)
    rows[4:, 1] = 0.002
    result = EpisodeResult(Outcome.SUCCESS, rows, swaps=(4,), flips=1, starved_ticks=2)
    failed = replace(result, outcome=Outcome.CONTACT, swaps=(), flips=0)
    total = Evaluation.of([result, failed])
    assert total.success_rate == 0.5 and total.contacts == 1 and total.timeouts == 0
    assert total.seam_mrad == pytest.approx(2.0, rel=1e-4)
    assert total.jerk_rad_s3 == pytest.approx(jerk(rows, 0.04))
    assert total.success_time_s == pytest.approx(0.32)
    assert total.flips_per_episode == 0.5 and total.starved_ticks == 4


@pytest.mark.parametrize("side", [1, -1])
def test_passing_side_is_where_the_path_crosses_beside_the_post(side):
    rows = joints_for(plan(0.2 + 0j, 0.2 + 0j, 0.1, side, horizon=32))
    assert passing_side(rows) == side
    assert passing_side(rows[:3]) == 0
    assert abs(point_for(rows[-1]).imag) < 0.1
