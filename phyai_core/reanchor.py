"""Carries a leftover over to the newest observation, for actions that are relative to the state they were planned from.

The old chunk's model values mean `actions - q_old`; the new chunk will mean `actions - q_new`. Used as they are, they
would shift the seam by q_new - q_old. So the rows are taken in robot units, as they are executed, and encoded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from phyai_core.rtc import RtcTables
from phyai_core.types import FloatArray, Observation


def reanchor(tables: RtcTables, encode: Callable[[FloatArray, Observation], FloatArray], obs: Observation) -> RtcTables:
    """Tables whose prefix is seen from `obs`; unchanged where they hold no rows. `encode`: Adapter.encode_actions.

    Raises ValueError when it returns another shape than the prefix has.
    """
    if not len(tables.rows):
        return tables
    prefix = np.asarray(encode(tables.rows, obs), np.float32)
    if prefix.shape != tables.prefix.shape:
        raise ValueError(f"encode_actions returned shape {prefix.shape}; allowed is {tables.prefix.shape}.")
    return replace(tables, prefix=prefix * tables.columns)
