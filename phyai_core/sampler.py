"""From noise to latents: N denoise steps, each the affine update that phyai_core.rtc describes.

Real-time chunking on or off runs the same code. x, Y and the tables stay float32.
Letters in shapes: B batch, N denoise steps, H action horizon, A' model action dims.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.rtc import RtcTables
from phyai_core.types import FloatArray
from phyai_kernels.affine_update import AFFINE_UPDATE


class Sampler:
    """Euler integration of one adapter's velocity field, one request at a time."""

    def __init__(self, adapter: Adapter, device: torch.device) -> None:
        self._adapter, self._spec, self._device = adapter, adapter.spec, device
        self._update = AFFINE_UPDATE.pick(device)
        steps = self._spec.num_denoise_steps
        flow_times = torch.arange(steps, dtype=torch.float32, device=device) / steps
        self._flow_times = (
            flow_times[:, None, None].expand(steps, 1, self._spec.action_horizon).contiguous()
        )  # [N, 1, H]

    def __call__(self, prefix: Any, tables: RtcTables, noise: FloatArray | Tensor) -> Tensor:
        """Noise [H, A'] -> latents at flow time 1, [H, A'] float32 on the device."""
        spec = self._spec
        assert tables.abc.shape == (spec.num_denoise_steps, spec.action_horizon, 3), tables.abc.shape
        abc = torch.from_numpy(tables.abc).to(self._device)[:, None]  # [N, 1, H, 3]
        leftover = torch.from_numpy(tables.prefix).to(self._device)[None]  # [1, H, A']
        start = torch.as_tensor(noise, dtype=torch.float32, device=self._device)[None]
        x = self._adapter.init_latents(start).clone()  # the adapter may hand back the caller's own noise
        assert x.shape == leftover.shape and x.dtype == torch.float32, (x.shape, x.dtype)
        x[:, : tables.start_rows] = leftover[:, : tables.start_rows]
        for step, flow_time in enumerate(self._flow_times):
            velocity = self._adapter.denoise_step(prefix, x, flow_time)
            x = self._update(x, velocity, leftover, abc[step])
        return x[0]
