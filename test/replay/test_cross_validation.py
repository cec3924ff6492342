"""Guards against: a policy judged by episodes that it was taught with, and trust in predictions that know nothing."""

from __future__ import annotations

import numpy as np
import pytest

from phyai_ros.replay.cross_validation import LEAST_TRUST, cross_validate
from phyai_ros.replay.demonstrations import Episode

FOLDS, HORIZON, STEPS = 4, 3, 10


def episodes(count: int) -> list[Episode]:
    """Each has pictures of its own grey, so that samples tell where they are from."""
    draws = np.random.default_rng(0)
    return [
        Episode(
            np.arange(STEPS, dtype=np.int64),
            np.full((STEPS, 4, 4, 3), number, np.uint8),
            draws.normal(size=(STEPS, 2)).astype(np.float32).cumsum(axis=0),
        )
        for number in range(count)
    ]


def validate(predict):
    return cross_validate(episodes(10), FOLDS, HORIZON, predict)


def test_nobody_is_judged_by_what_it_was_taught_with():
    seen = []

    def predict(taught, judged):
        there, asked = (set(samples.images[:, 0, 0, 0].tolist()) for samples in (taught, judged))
        assert not there & asked and there | asked == set(range(10))
        seen.extend(asked)
        return judged.actions[None]

    validate(predict)
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_predictions_that_are_too_large_are_trusted_by_their_share(factor):
    found = validate(lambda taught, judged: factor * judged.actions[None])
    assert found.trust() == pytest.approx([1.0 / factor] * 2) and found.ratio == pytest.approx(0.0, abs=1e-6)


def test_joints_are_trusted_one_by_one():
    wrong_way = np.array([1.0, -1.0])
    found = validate(lambda taught, judged: wrong_way * judged.actions[None])
    assert found.trust() == pytest.approx([1.0, LEAST_TRUST])


def test_a_guess_is_worth_no_more_than_standing_still():
    draws = np.random.default_rng(1)
    found = validate(lambda taught, judged: draws.normal(size=(8, *judged.actions.shape)))
    assert found.trust().max() < 0.2 and found.ratio == pytest.approx(1.0, abs=0.05)


def test_a_fold_is_not_judged_by_the_trust_that_it_gives_itself():
    """Only the first fold foretells the wrong way: by its own trust it would be near standing still."""
    signs = iter([-1.0, 1.0, 1.0, 1.0])
    found = validate(lambda taught, judged: next(signs) * judged.actions[None])
    assert found.trust(without=0) == pytest.approx([1.0, 1.0]) and found.trust().max() < 1.0
    assert found.ratio > 0.4


def test_one_episode_cannot_be_divided():
    assert cross_validate(episodes(1), FOLDS, HORIZON, lambda taught, judged: judged.actions[None]) is None
