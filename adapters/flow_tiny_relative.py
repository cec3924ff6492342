"""`flow_tiny_relative`: the same small network with actions as offsets from the state at the observation.

Few demonstrations teach how the robot moves on from where it is sooner than where in space it goes. The weights that
ship were trained on recordings of a WidowX 250 (BridgeData V2).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from phyai_adapters.flow_tiny import FlowTiny, FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig
from phyai_core.types import FloatArray, Observation


class FlowTinyRelative(FlowTiny):
    """Every action is relative to the position of the same name in the state."""

    shipped = Path(__file__).parent / "weights" / "bridge_widowx"

    def __init__(self, config: FlowTinyConfig, network: FlowTinyNetwork, device: torch.device) -> None:
        """Raises ValueError where an action has no position in the state to be relative to."""
        super().__init__(config, network, device)
        places = {feature.name: place for place, feature in enumerate(config.state) if feature.kind == "position"}
        missing = [feature.name for feature in config.action if feature.name not in places]
        if missing:
            raise ValueError(f"checkpoint: the state has no position of {', '.join(missing)}; train it again.")
        self._from = np.array([places[feature.name] for feature in config.action], np.intp)

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Normalised offsets [H, A] -> targets [H, A] in robot units."""
        return super().postprocess(latents, obs) + np.asarray(obs.state, np.float32)[self._from]

    def encode_actions(self, actions: FloatArray, obs: Observation | None = None) -> FloatArray:
        """Targets [H, A] in robot units -> normalised offsets [H, A] as seen from `obs`."""
        return super().encode_actions(np.asarray(actions, np.float32) - np.asarray(obs.state, np.float32)[self._from])
