"""What a policy taught with some episodes of a bag predicts of others: how far it can be trusted, how good it is.

Only episodes that may be learned from take part, so that choosing by these figures leaves the held-out ones unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phyai_ros.replay.demonstrations import Episode, make_samples
from phyai_ros.sim.dataset import Samples

LEAST_TRUST = 0.05  # a joint without any would have no scale

Predict = Callable[[Samples, Samples], NDArray[np.float64]]  # (to learn from, to foretell) -> [noise, N, H, A]


@dataclass(frozen=True)
class CrossValidation:
    """Per fold what was predicted, [noise, N, H, A], and what was true, [N, H, A]: offsets from the moment of each."""

    predicted: tuple[NDArray[np.float64], ...]
    true: tuple[NDArray[np.float64], ...]

    def trust(self, without: int = -1) -> NDArray[np.float64]:
        """The share [A] of its prediction that fits each joint best, by least squares over all folds but `without`.

        1 where the prediction is good as it is, near 0 where it knows nothing and standing still is as good.
        """
        folds = [fold for fold in range(len(self.true)) if fold != without]
        alike = sum((self.predicted[fold] * self.true[fold]).sum((0, 1, 2)) for fold in folds)
        size = sum((self.predicted[fold] ** 2).sum((0, 1, 2)) for fold in folds)
        return np.clip(alike / size, LEAST_TRUST, 1.0)

    @property
    def ratio(self) -> float:
        """Mean error by that of standing still; each fold with the trust that the others give it."""
        errors = [
            np.abs(self.predicted[fold] * self.trust(without=fold) - self.true[fold]).mean()
            for fold in range(len(self.true))
        ]
        return float(np.mean(errors) / np.mean([np.abs(true).mean() for true in self.true]))


def cross_validate(episodes: Sequence[Episode], folds: int, horizon: int, predict: Predict) -> CrossValidation | None:
    """Each fold foretold by what the others teach; None with fewer than two episodes."""
    folds = min(folds, len(episodes))
    if folds < 2:
        return None
    predicted, true = [], []
    for fold in range(folds):
        taught = [episode for index, episode in enumerate(episodes) if index % folds != fold]
        judged = make_samples(episodes[fold::folds], horizon)
        predicted.append(predict(make_samples(taught, horizon), judged))
        true.append(judged.actions)
    return CrossValidation(tuple(predicted), tuple(true))
