"""Guards against: another result in a child process than in a thread, requests or results mixed up on the way, a chunk
of a child that is gone, a robot that moves on without its policy, and errors that lose their words.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from core.gated_policy import die_while_loading, load_gated
from core.test_child_process import wait_until
from phyai_core.child_process import ChildLost
from phyai_core.engine import blank_observation
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference, seeded_noise
from phyai_core.recipe import EngineRecipe
from phyai_core.remote import RemoteEngine
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Action, Leftover, Reason
from phyai_ros.inference_process import InferenceProcess

RECIPE = EngineRecipe(load_gated, "flow_tiny")
BEAT_S, TICK_NS = 2.0, 40_000_000


@pytest.fixture(scope="module")
def engine():
    engine = RemoteEngine(RECIPE, hang_after_s=60.0, beat_within_s=BEAT_S)
    engine.warm_up(1)
    yield engine
    engine.close()


def observe(spec, seed=0, prompt="", size=(64, 64)):
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (*size, 3), np.uint8)
    state = generator.normal(0, 0.3, spec.state_dim).astype(np.float32)
    return replace(blank_observation(spec), stamp_ns=seed, images={"front": image}, state=state, prompt=prompt)


def requests(spec):
    """Plain and tied to a leftover, with images of several sizes: the shared memory has to grow."""
    rows = np.linspace(-1, 1, 20 * 4, dtype=np.float32).reshape(20, 4)
    leftover = Leftover(rows, rows, delay=3, execution_horizon=12)
    for seed, size in enumerate([(64, 64), (64, 64), (480, 640), (64, 64)]):
        tied = leftover if seed % 2 else None
        noise = seeded_noise(1, seed, spec.action_horizon, spec.latent_dim)
        yield observe(spec, seed, size=size), tables_for(RtcConfig("identity"), spec, tied), noise


def test_a_child_gives_what_a_thread_gives_bit_by_bit(engine):
    local = RECIPE.build()
    assert engine.spec == local.spec
    for request in requests(engine.spec):
        theirs, ours = engine.infer(*request), local.infer(*request)
        np.testing.assert_array_equal(theirs.latent, ours.latent)
        np.testing.assert_array_equal(theirs.actions, ours.actions)
        assert list(theirs.stages_s) == list(ours.stages_s)


def test_results_are_copies_that_later_inferences_leave_alone(engine):
    results = [engine.infer(*request) for request in requests(engine.spec)]
    kept = [result.latent.copy() for result in results]
    for request in requests(engine.spec):
        engine.infer(*request)
    for result, latent in zip(results, kept, strict=True):
        np.testing.assert_array_equal(result.latent, latent)


def test_a_wrong_observation_is_refused_in_the_policys_words_and_the_child_goes_on(engine):
    obs, tables, noise = next(requests(engine.spec))
    with pytest.raises(ValueError, match=r"flow_tiny needs \['front'\]"):
        engine.infer(replace(obs, images={}), tables, noise)
    assert engine.alive
    engine.infer(obs, tables, noise)


def test_errors_while_loading_reach_the_user(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        RemoteEngine(replace(RECIPE, checkpoint=tmp_path))
    with pytest.raises(RuntimeError, match="MemoryError: no room for the weights"):
        RemoteEngine(replace(RECIPE, load=die_while_loading))


class Robot:
    """An executor whose policy lives in a child, ticked by hand; `prompt` decides whether the next inference ends."""

    def __init__(self, engine):
        self.engine, self.k, self.prompt, self.log = engine, -1, "", []
        self.infer = PolicyInference(engine, RtcConfig("none"), decode=lambda prompt: observe(engine.spec, 0, prompt))
        config = ExecutorConfig(mode="none", execution_horizon=4, hold_limit_s=0.08)
        self.executor = RtcExecutor(engine.spec, config, self.infer)
        self.placement = InferenceProcess(self.executor, engine, self.log.append)

    def tick(self):
        self.k += 1
        return self.executor.tick(self.k, self.k * TICK_NS, self.prompt)

    def tick_until(self, condition):
        wait_until(lambda: condition(self.tick()))


@pytest.mark.parametrize(("number", "words"), [(signal.SIGSTOP, "no sign of life"), (signal.SIGKILL, "SIGKILL")])
def test_a_child_lost_in_the_middle_of_an_inference(engine, tmp_path, number, words):
    robot = Robot(engine)
    robot.placement.start()
    robot.tick_until(lambda command: command.action is Action.RUN)
    in_the_middle = tmp_path / "in_the_middle"
    robot.prompt = str(in_the_middle)
    robot.tick_until(lambda command: in_the_middle.exists())
    epoch, chunks, pid = robot.executor.epoch, robot.executor.counters.chunks, engine.pid

    os.kill(pid, number)
    wait_until(lambda: not robot.placement.alive)
    wait_until(lambda: robot.executor.epoch > epoch)
    robot.prompt = ""
    assert {robot.tick().action for _ in range(5)} == {Action.STOP}
    robot.tick_until(lambda command: command.reason is Reason.POLICY_ERROR and words in command.text)
    assert robot.executor.counters.chunks == chunks
    with pytest.raises(ChildLost, match=words):
        engine.infer(*next(requests(engine.spec)))
    assert len(robot.log) == 1 and words in robot.log[0]

    robot.placement.restart()
    wait_until(lambda: robot.placement.alive and "the policy process was restarted" in robot.log)
    assert engine.pid != pid
    robot.tick_until(lambda command: command.action is Action.RUN)
    assert robot.executor.counters.chunks == chunks + 1
    assert robot.placement.stop()


def test_a_death_between_inferences_stops_the_robot_too(engine):
    robot = Robot(engine)
    robot.placement.start()
    robot.tick_until(lambda command: command.action is Action.RUN)
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: bool(robot.log))
    assert robot.tick().action is Action.STOP
    assert robot.placement.stop()
    engine.restart(1)


def test_interrupting_the_group_does_not_end_the_child(engine):
    os.kill(engine.pid, signal.SIGINT)
    engine.infer(*next(requests(engine.spec)))
    assert engine.alive
