"""What makes a chunk unfit to execute, whoever made it."""

from __future__ import annotations

import numpy as np

from phyai_core.types import ActionChunk, Fault, PolicySpec, Reason


def find_chunk_fault(chunk: ActionChunk, spec: PolicySpec) -> Fault | None:
    """A fault when shapes differ from `spec` or any value of either track is non-finite, else None."""
    horizon = spec.action_horizon
    expected = ((horizon, spec.action_dim), (horizon, spec.latent_dim))
    found = (chunk.actions.shape, chunk.latent.shape)
    if found != expected:
        return Fault(Reason.BAD_CHUNK, f"chunk has shapes {found}, the policy declares {expected}")
    bad = np.argwhere(~np.isfinite(chunk.actions))
    if len(bad):
        row, column = bad[0]
        return Fault(Reason.BAD_CHUNK, f"chunk has a non-finite action for {spec.action[column].name} in row {row}")
    if not np.isfinite(chunk.latent).all():
        return Fault(Reason.BAD_CHUNK, "chunk has a non-finite value in model space")
    return None
