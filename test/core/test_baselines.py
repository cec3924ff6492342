"""Guards against: an average over the wrong ticks, plans of an older epoch in it, a cross-fade that is longer than it
says, that mixes a gripper, or that reaches past the end of a chunk.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.executor_rig import Rig, make_chunk
from phyai_core.baselines import TemporalEnsemble, cross_fade
from phyai_core.types import InferenceRequest


def request_at(base_tick: int, seq: int, epoch: int = 0) -> InferenceRequest:
    return InferenceRequest(epoch, seq, base_tick, 0, None, None, 1)


def test_each_row_is_the_mean_of_what_was_planned_for_its_tick():
    """Rows of the rig are (seq, tick): averaging over the right ticks leaves the tick as it is."""
    ensemble = TemporalEnsemble(lambda request: make_chunk(request, 8), decay=0.0)
    for seq, base in enumerate([10, 13, 16]):
        chunk = ensemble(request_at(base, seq))
    np.testing.assert_allclose(chunk.actions[:, 1], 16 + np.arange(8))
    np.testing.assert_allclose(chunk.actions[:, 0], [1, 1, 1.5, 1.5, 1.5, 2, 2, 2])


def test_older_chunks_weigh_more():
    ensemble = TemporalEnsemble(lambda request: make_chunk(request, 4), decay=0.5)
    ensemble(request_at(0, 0))
    chunk = ensemble(request_at(1, 1))
    assert chunk.actions[0, 0] == pytest.approx(np.exp(-0.5) / (1 + np.exp(-0.5)))


def test_a_new_epoch_starts_without_memories():
    ensemble = TemporalEnsemble(lambda request: make_chunk(request, 8))
    ensemble(request_at(0, 0))
    assert (ensemble(request_at(2, 1, epoch=1)).actions[:, 0] == 1).all()


def test_a_decay_that_grows_is_refused():
    with pytest.raises(ValueError, match=r"decay is -0\.1; allowed is a finite number >= 0"):
        TemporalEnsemble(lambda request: None, decay=-0.1)


def test_a_cross_fade_is_over_after_its_ticks():
    old, new = np.zeros((5, 2), np.float32), np.full((8, 2), 3.0, np.float32)
    faded = cross_fade(old, new, entry=2, ticks=2, columns=np.array([True, False]))
    np.testing.assert_allclose(faded[:, 0], [3, 3, 1, 2, 3, 3, 3, 3])
    np.testing.assert_array_equal(faded[:, 1], new[:, 1])


@pytest.mark.parametrize(("left", "entry", "mixed"), [(0, 2, 0), (1, 2, 1), (5, 7, 1), (5, 0, 2)])
def test_a_cross_fade_needs_both_chunks(left, entry, mixed):
    faded = cross_fade(np.zeros((left, 1), np.float32), np.ones((8, 1), np.float32), entry, ticks=2)
    assert (faded < 1).sum() == mixed


def test_the_executor_fades_between_chunks_and_only_there():
    rig = Rig(16, [1, 3, 3], execution_horizon=5, blend_ticks=2, blend_exclude=("b",))
    rows = [command.row for command in rig.run(20) if command.row is not None]
    np.testing.assert_allclose([row[0] for row in rows[5:13]], [0, 0, 0, 1 / 3, 2 / 3, 1, 1, 1], atol=1e-6)
