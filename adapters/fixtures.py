"""Recorded inputs of a policy, as other code bases hand them to their network, run through ours stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from phyai_adapters._pi import PiAdapter
from phyai_adapters._stage import Stage, Traceable
from phyai_adapters._trace import recorded_inputs, trace
from phyai_core.adapter import Adapter
from phyai_core.engine import plain_tables
from phyai_core.runner import Runner
from phyai_core.slot import Job


def trace_recording(adapter: Adapter, recorded: Mapping[str, Tensor], device: torch.device) -> Iterator[Stage]:
    """Every named value of one inference without RTC from `recorded`, its noise [B, H, A'] included.

    Raises ValueError for a policy that names no values, and for inputs of another policy.
    """
    if not isinstance(adapter, (PiAdapter, Traceable)):
        raise ValueError(f"verify: {adapter.spec.name} names no values inside its network, so none can be compared")
    if isinstance(adapter, PiAdapter):
        read, follow = partial(recorded_inputs, adapter), partial(trace, adapter)
    else:
        read, follow = adapter.recorded_inputs, adapter.trace
    if adapter.spec.num_denoise_steps and "noise" not in recorded:
        raise ValueError("--io: inputs.safetensors has no `noise`; without it two runs cannot agree")
    try:
        inputs = read(recorded)
    except KeyError as error:
        raise ValueError(f"--io: inputs.safetensors has no {error}, which {adapter.spec.name} needs") from None
    batch = len(next(iter(inputs.values())))
    noise = inputs.pop("noise", recorded.get("noise", torch.zeros(batch, *adapter.spec.noise_shape)))
    if tuple(noise.shape[1:]) != adapter.spec.noise_shape:
        wanted = ", ".join(map(str, adapter.spec.noise_shape))
        text = f"`noise` is {list(noise.shape)}, {adapter.spec.name} takes [B, {wanted}]"
        raise ValueError(f"--io: {text}; give a recording of this policy")
    on_device = {name: tensor.to(device) for name, tensor in inputs.items()}
    for stage in follow(on_device, noise.to(device)):
        yield stage
    yield Stage(f"{stage.name} (engine)", _run_engine(adapter, inputs, noise, device))


def _run_engine(adapter: Adapter, inputs: Mapping[str, Tensor], noise: Tensor, device: torch.device) -> Tensor:
    """The same inputs the way the engine runs them: static buffers, on a CUDA device one captured graph."""
    rows = [{name: tensor[row : row + 1] for name, tensor in inputs.items()} for row in range(len(noise))]
    jobs = [Job(row, plain_tables(adapter.spec), start) for row, start in zip(rows, noise, strict=True)]
    runner = Runner(adapter, device, rows[0], (len(jobs),))
    latents, _ = runner.run(jobs)
    runner.close()
    return torch.from_numpy(latents)
