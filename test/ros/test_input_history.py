"""Guards against: a policy that looks back being given the same moment twice, observations from before a gap or a
reset, or nothing at all without being told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phyai_core.wire import Infer, read_request, request_arrays, request_numbers
from ros.test_inputs import START_NS, Rig, make_spec

TICK_MS = 40.0


@pytest.fixture
def rig(monkeypatch):
    """A policy that looks at three observations."""
    monkeypatch.setattr("ros.test_inputs.make_spec", lambda cameras: replace(make_spec(cameras), observation_steps=3))
    return Rig()


def tick(rig, k: int):
    """The robot publishes, then the policy looks."""
    rig.image(k * TICK_MS)
    rig.joints(k * TICK_MS, positions=[float(k), 0.0, 0.0])
    return rig.sample(k * TICK_MS + 1, k)


def seen(sample) -> list[float]:
    return [past.state[0] for past in sample.obs.history]


def test_the_last_ticks_are_seen_oldest_first_and_decoded_with_the_newest(rig):
    assert [seen(tick(rig, k)) for k in range(5)] == [[], [0.0], [0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    obs = tick(rig, 5).obs.decode()
    assert [past.state[0] for past in obs.history] == [3.0, 4.0]
    assert all(past.images["front"].shape == (2, 2, 3) and past.history == () for past in obs.history)


def test_a_tick_that_looks_twice_does_not_see_itself(rig):
    """As it does at rest, where it seeds the output in between."""
    for k in range(4):
        first = tick(rig, k)
        again = rig.sample(k * TICK_MS + 1, k)
        assert seen(again) == seen(first) == [float(before) for before in range(max(0, k - 2), k)]


def test_nothing_from_before_an_activation_is_seen(rig):
    for k in range(3):
        tick(rig, k)
    rig.image(20 * TICK_MS)
    rig.joints(20 * TICK_MS)
    assert seen(rig.sample(20 * TICK_MS + 1, 0)) == []


def test_nothing_from_before_a_gap_or_a_reset_is_seen(rig):
    for k in range(3):
        tick(rig, k)
    assert rig.sample(10 * TICK_MS, 10).obs is None  # everything is stale
    assert seen(tick(rig, 11)) == []
    tick(rig, 12)
    rig.box.require_newer_than(START_NS + round(12.5 * TICK_MS * 1e6))
    assert seen(tick(rig, 13)) == []


def test_other_policies_get_no_history():
    rig = Rig()
    assert [seen(tick(rig, k)) for k in range(3)] == [[], [], []]


def test_the_history_crosses_to_the_process_of_the_model(rig):
    from phyai_core.engine import blank_request

    for k in range(3):
        obs = tick(rig, k).obs
    _, tables, noise = blank_request(make_spec())
    arrays = request_arrays(obs.decode(), tables, noise)
    there, *_ = read_request(Infer(**_message(tables)), arrays)
    assert [past.state[0] for past in there.history] == [0.0, 1.0] and there.state[0] == 2.0
    np.testing.assert_array_equal(there.history[1].images["front"], obs.decode().history[1].images["front"])


def _message(tables) -> dict:
    wanted = Infer.__dataclass_fields__
    known = {"seq": 0, "capacity": 0, "fields": {}, "stamp_ns": 1, "prompt": "", "numbers": request_numbers(tables)}
    return {name: known.get(name, 0) for name in wanted}
