"""flow_tiny that stops in the middle of an inference when the prompt names a file: it makes the file, then waits."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from phyai_adapters.flow_tiny import FlowTiny

ENDLESS_S = 3600.0


class GatedFlowTiny(FlowTiny):
    """`prompt` is empty, or the path of the file to make in the last denoise step."""

    gate = ""

    def preprocess(self, obs):
        self.gate = obs.prompt
        return super().preprocess(obs)

    def denoise_step(self, prefix, latents, flow_time):
        if self.gate and flow_time[0, 0] > 0.7:
            Path(self.gate).touch()
            time.sleep(ENDLESS_S)
        return super().denoise_step(prefix, latents, flow_time)


def load_gated(name: str, checkpoint: Path | None, device: torch.device) -> GatedFlowTiny:
    return GatedFlowTiny.load(checkpoint, device)


def die_while_loading(name: str, checkpoint: Path | None, device: torch.device) -> GatedFlowTiny:
    raise MemoryError("no room for the weights")
