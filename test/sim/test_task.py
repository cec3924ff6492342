"""Guards against: success counted too early or after a contact, a row reached at the wrong time, sensors that show the
future, and episodes that differ under one seed.
"""

from __future__ import annotations

import numpy as np
import pytest

from phyai_ros.sim.expert import joints_for, plan, point_for
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.task import (
    SUCCESS_TICKS,
    TIME_LIMIT_TICKS,
    EpisodeJudge,
    Outcome,
    SensorAge,
    StepSim,
    draw_start,
    start_at,
)

ON_PUCK = (np.array([0.43, 0.01]), np.array([0.43, 0.0]))
OFF_PUCK = (np.array([0.43, 0.021]), np.array([0.43, 0.0]))


@pytest.fixture(scope="module")
def scene():
    with Scene() as scene:
        yield scene


@pytest.fixture
def sim(scene):
    return StepSim(scene)


def judged(*visits: tuple, contact_at: int = -1) -> EpisodeJudge:
    judge = EpisodeJudge()
    for tick, points in enumerate(visits):
        judge.update(*points, contact=tick == contact_at)
    return judge


def test_success_needs_consecutive_ticks_on_the_puck():
    almost = [ON_PUCK] * (SUCCESS_TICKS - 1)
    assert judged(*almost).outcome is Outcome.RUNNING
    assert judged(*almost, OFF_PUCK, *almost).outcome is Outcome.RUNNING
    assert judged(*almost, ON_PUCK).outcome is Outcome.SUCCESS


def test_contact_decides_even_on_the_puck_and_for_good():
    judge = judged(*[ON_PUCK] * SUCCESS_TICKS, contact_at=SUCCESS_TICKS - 1)
    assert judge.outcome is Outcome.CONTACT
    assert judge.update(*ON_PUCK, contact=False) is Outcome.CONTACT


def test_time_runs_out_and_a_reset_gives_it_back():
    judge = judged(*[OFF_PUCK] * TIME_LIMIT_TICKS)
    assert judge.outcome is Outcome.TIMEOUT
    judge.reset()
    assert judge.update(*ON_PUCK, contact=False) is Outcome.RUNNING
    assert judge.ticks == judge.ticks_on_puck == 1


def run_expert(sim: StepSim, seed: int, side: int) -> Outcome:
    start = draw_start(np.random.default_rng(seed))
    sim.reset(start, seed)
    tool, velocity = complex(point_for(start.joints)), 0j
    while sim.judge.outcome is Outcome.RUNNING:
        (after,) = plan(tool, velocity, sim.puck_y_m, side, horizon=1)
        tool, velocity = complex(after), complex(after - tool) / 0.04
        sim.step(joints_for(tool))
    return sim.judge.outcome


@pytest.mark.parametrize("side", [1, -1])
def test_the_expert_succeeds_on_either_side(sim, side):
    assert {run_expert(sim, seed, side) for seed in range(10)} == {Outcome.SUCCESS}


def test_driving_straight_on_ends_in_contact(sim):
    sim.reset(start_at(0.2 + 0j, 0.1), seed=0)
    for x in np.linspace(0.2, 0.4, 40):
        sim.step(joints_for(complex(x, 0)))
    assert sim.judge.outcome is Outcome.CONTACT


def test_standing_still_times_out(sim):
    sim.reset(start_at(0.14 + 0j, 0.1), seed=0)
    ticks = 0
    while sim.step(sim.last_command) is Outcome.RUNNING:
        ticks += 1
    assert sim.judge.outcome is Outcome.TIMEOUT and ticks == TIME_LIMIT_TICKS - 1


class SpyScene(Scene):
    """Remembers what was commanded."""

    def reset(self, joints, puck_y_m):
        self.commands = []
        super().reset(joints, puck_y_m)

    def set_command(self, joints):
        self.commands.append(joints.copy())
        super().set_command(joints)


def test_a_row_is_approached_linearly_and_reached_at_the_end_of_its_tick():
    sim = StepSim(SpyScene())
    before = sim.last_command.copy()
    row = before + np.float32([0.1, 0.0, -0.05, 0.02])
    sim.step(row)
    shares = np.linspace(0.1, 1.0, 10)
    expected = before + shares[:, None] * (row - before)
    np.testing.assert_allclose(np.array(sim.scene.commands)[:, :4], expected, atol=1e-6)
    assert not np.array(sim.scene.commands)[:, 4].any()
    np.testing.assert_array_equal(sim.observe().state[8:], row)


def drive(sim: StepSim, ticks: int) -> list:
    sim.reset(start_at(0.14 + 0j, 0.15), seed=7)
    seen = []
    for x in np.linspace(0.145, 0.2, ticks):
        sim.step(joints_for(complex(x, 0)))
        seen.append(sim.observe())
    return seen


def test_observation_has_the_declared_parts(sim):
    observation = drive(sim, 3)[-1]
    assert observation.images["front"].shape == (64, 64, 3) and observation.images["front"].dtype == np.uint8
    assert observation.state.shape == (12,) and observation.state.dtype == np.float32
    now = sim.scene.snapshot()
    np.testing.assert_allclose(observation.state[:8], [*now.positions[:4], *now.velocities[:4]], rtol=1e-6)
    assert observation.stamp_ns == pytest.approx(3 * 40e6)


def test_aged_sensors_show_the_past_and_never_the_future(scene):
    aged = drive(StepSim(scene, SensorAge(image_steps=10, joint_steps=2)), 20)
    fresh = drive(StepSim(scene), 20)
    ages_s = np.array([(now.stamp_ns - old.stamp_ns) * 1e-9 for now, old in zip(fresh, aged, strict=True)])
    assert ages_s.min() >= 0 and 0.02 < ages_s.max() <= 0.0401
    lags = np.array([now.state[1] - old.state[1] for now, old in zip(fresh, aged, strict=True)])
    assert (lags != 0).any()
    for now, old in zip(fresh, aged, strict=True):
        np.testing.assert_array_equal(now.state[8:], old.state[8:])  # the command is our own and has no age


def test_one_seed_gives_one_episode(scene):
    age = SensorAge(image_steps=10, joint_steps=2)
    first, second = (drive(StepSim(scene, age), 10) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.images["front"], other.images["front"])
        np.testing.assert_array_equal(one.state, other.state)


def test_starts_stay_within_the_task():
    starts = [draw_start(np.random.default_rng(seed)) for seed in range(50)]
    points = np.array([complex(point_for(start.joints)) for start in starts])
    assert np.abs(points.real - 0.14).max() <= 0.0101 and np.abs(points.imag).max() <= 0.0101
    assert all(0.02 <= start.puck_y_m <= 0.17 for start in starts)
    assert len({start.puck_y_m for start in starts}) == 50
