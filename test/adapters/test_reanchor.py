"""Guards against: a leftover of relative actions used in its old frame, statistics of the wrong kind, padding in Y."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.golden import GOLDEN
from phyai_adapters._deployment import Options
from phyai_adapters._loading import random_parts
from phyai_adapters._paligemma import TINY
from phyai_adapters._processing import MeanStd, Normaliser, Range
from phyai_adapters.pi05 import Pi05
from phyai_core.engine import blank_observation
from phyai_core.reanchor import reanchor
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Leftover

CASE = {name: np.array(value) for name, value in GOLDEN["reanchor"].items()}
MEAN_STD = MeanStd(CASE["mean"], CASE["std"], eps=1e-6, inverse_eps=1e-6, dtype=np.float64)
QUANTILES = Range(CASE["q01"], CASE["q99"] - CASE["q01"] + 1e-6, dtype=np.float64)


def make_adapter(action: Normaliser) -> Pi05:
    """A policy of three joints, the first two relative."""
    parts = random_parts(Pi05.network_class, TINY, torch.device("cpu"), Options(rate_hz=50.0, state_in_prompt=False), 0)
    names = ("a", "b", "c")
    facts = replace(
        parts.deployment,
        action=action,
        relative=CASE["relative_mask"].astype(bool),
        state_names=names,
        action_names=names,
    )
    return Pi05(parts._replace(deployment=facts, spec=facts.spec(TINY.latent_dim, 50.0)))


@pytest.mark.parametrize(
    ("action", "golden"), [(MEAN_STD, "model_space_meanstd"), (QUANTILES, "model_space_quantile")], ids=["std", "q"]
)
def test_leftover_is_written_in_the_frame_of_the_newest_observation(action, golden):
    adapter = make_adapter(action)
    obs = replace(blank_observation(adapter.spec), state=CASE["state_new"].astype(np.float32))
    executed = CASE["prev_actions_absolute"].astype(np.float32)
    stale = np.full((3, TINY.latent_dim), 50.0, np.float32)
    tables = tables_for(RtcConfig(), adapter.spec, Leftover(stale, executed, delay=1, execution_horizon=2))
    prefix = reanchor(tables, adapter.encode_actions, obs).prefix
    np.testing.assert_allclose(prefix[:3, :3], CASE[golden], rtol=2e-5, atol=2e-5)
    assert (prefix[:, 3:] == 0).all() and (prefix[3:] == prefix[2]).all()


def test_decoding_it_gives_the_rows_that_are_executed():
    adapter = make_adapter(MEAN_STD)
    obs = replace(blank_observation(adapter.spec), state=CASE["state_new"].astype(np.float32))
    executed = CASE["prev_actions_absolute"].astype(np.float32)
    decoded = adapter.postprocess(adapter.encode_actions(executed, obs), obs)
    np.testing.assert_allclose(decoded, executed, atol=1e-5)
    moved = adapter.postprocess(
        CASE["model_space_meanstd"].astype(np.float32), replace(obs, state=np.float32([0, 0, 0]))
    )
    assert np.abs(moved - executed)[:, :2].min() > 0.1  # what skipping this would do
