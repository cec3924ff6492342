"""Guards against: robots that change each other's chunks, an urgent request behind a patient one, one robot's mistake
that costs another its chunk, a group that idles while requests wait, and a robot that waits for ever.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from core.fakes import make_spec
from core.test_runner import REQUESTS, SPEC, PromptedFlow, make_engine, observe
from phyai_core.engine import plain_tables
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference
from phyai_core.rtc import RtcConfig
from phyai_core.scheduler import Scheduler
from phyai_core.types import Action

WAIT_S = 30.0


class Recorder:
    """An engine that notes its batches, can be held up, and can fail."""

    def __init__(self, batch_sizes=(1, 2)):
        self.engine = make_engine(PromptedFlow, batch_sizes)
        self.spec, self.guidance, self.batch_sizes = self.engine.spec, None, batch_sizes
        self.batches, self.entered, self.go_on, self.error = [], threading.Event(), threading.Event(), None
        self.go_on.set()

    def preprocess(self, *request):
        return self.engine.preprocess(*request)

    def run(self, requests):
        self.entered.set()
        assert self.go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.batches.append([request.obs.prompt for request in requests])
        return self.engine.run(requests)


def ask(scheduler, prompt, deadline_s=1.0):
    return scheduler.submit(observe([0.0, 0.0], prompt), plain_tables(SPEC), np.zeros((8, 3), np.float32), deadline_s)


def test_the_most_urgent_run_first_and_never_more_than_were_prepared_for():
    group = Recorder()
    scheduler = Scheduler([group])
    results = [
        ask(scheduler, prompt, due) for prompt, due in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 1.0), ("e", 9.0))
    ]
    assert [scheduler.step(group) for _ in range(4)] == [2, 2, 1, 0]
    assert group.batches == [["b", "d"], ["c", "a"], ["e"]]
    assert all(result.done() for result in results)


def test_robots_in_one_batch_get_what_they_get_alone():
    alone = [make_engine(PromptedFlow).infer(*request).latent for request in REQUESTS]
    group = Recorder((1, 2, 4))
    scheduler = Scheduler([group])
    results = [scheduler.submit(*request) for request in REQUESTS]
    assert scheduler.step(group) == 3
    for result, expected in zip(results, alone, strict=True):
        np.testing.assert_allclose(result.result(0).latent, expected, atol=1e-6)


def test_a_wrong_observation_concerns_nobody_else():
    group = Recorder()
    scheduler = Scheduler([group])
    good = ask(scheduler, "a")
    with pytest.raises(ValueError, match="cameras"):
        scheduler.submit(replace(observe([0.0, 0.0]), images={}), plain_tables(SPEC), np.zeros((8, 3), np.float32))
    scheduler.step(group)
    assert good.result(0).actions.shape == (8, 2)


def test_a_batch_that_fails_tells_its_robots_and_the_next_one_runs():
    group = Recorder()
    scheduler = Scheduler([group])
    group.error = RuntimeError("out of memory")
    lost = [ask(scheduler, "a"), ask(scheduler, "b")]
    assert scheduler.step(group) == 2
    for result in lost:
        with pytest.raises(RuntimeError, match="out of memory"):
            result.result(0)
    group.error = None
    kept = ask(scheduler, "c")
    scheduler.step(group)
    assert kept.result(0).latent.shape == (8, 3)


def test_a_free_group_takes_what_a_busy_one_cannot():
    busy, free = Recorder((1,)), Recorder((1,))
    busy.go_on.clear(), free.go_on.clear()
    scheduler = Scheduler([busy, free])
    scheduler.start()
    results = [ask(scheduler, prompt) for prompt in "ab"]
    assert busy.entered.wait(WAIT_S) and free.entered.wait(WAIT_S)
    free.go_on.set()
    ask(scheduler, "c").result(WAIT_S)
    assert len(free.batches) == 2 and busy.batches == []
    busy.go_on.set()
    assert all(result.result(WAIT_S) for result in results)
    scheduler.stop()


def test_nobody_waits_for_a_scheduler_that_stopped():
    group = Recorder((1,))
    group.go_on.clear()
    scheduler = Scheduler([group])
    scheduler.start()
    running = ask(scheduler, "a")
    assert group.entered.wait(WAIT_S)
    waiting = ask(scheduler, "b")
    stopping = threading.Thread(target=scheduler.stop)
    stopping.start()
    with pytest.raises(RuntimeError, match="stopped before this request ran"):
        waiting.result(WAIT_S)
    group.go_on.set()
    stopping.join(WAIT_S)
    assert running.result(0).latent.shape == (8, 3)
    with pytest.raises(RuntimeError, match="scheduler is stopped"):
        ask(scheduler, "c")


def test_groups_of_different_policies_are_refused():
    other = Recorder()
    other.spec = make_spec(horizon=9)
    with pytest.raises(ValueError, match="2 policies given"):
        Scheduler([Recorder(), other])


def test_the_executors_of_two_robots_share_one_engine():
    group = Recorder()
    scheduler = Scheduler([group])
    scheduler.start()
    robots = []
    for seed, prompt in enumerate(("go", "halt")):
        infer = PolicyInference(scheduler, RtcConfig("identity"), partial(observe, [0.0, 1.0]), seed=seed)
        robots.append((RtcExecutor(SPEC, ExecutorConfig(execution_horizon=3), infer), prompt))
    for k in range(12):
        threads = []
        for robot, prompt in robots:
            robot.tick(k, k, prompt)
            threads.append(threading.Thread(target=robot.step_inference))
            threads[-1].start()
        for thread in threads:
            thread.join(WAIT_S)
    for robot, prompt in robots:
        command = robot.tick(12, 12, prompt)
        assert command.action is Action.RUN and robot.counters.chunks >= 3
    assert {prompt for batch in group.batches for prompt in batch} == {"go", "halt"}
    scheduler.stop()
