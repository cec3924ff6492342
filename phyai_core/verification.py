"""Compares what an inference computes on the way with what was recorded elsewhere, in the order it is computed.

The first stage that departs says where to look; the ones after it only carry the error on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from phyai_core.adapter import Adapter

INPUTS, STAGES, OUTPUTS = "inputs.safetensors", "intermediates.safetensors", "outputs.safetensors"


@dataclass(frozen=True)
class Tolerance:
    """What still counts as equal. Integers and masks have to be equal bit by bit in any case.

    `absolute` is of the largest difference, in units of the record's root mean square (RMS) where that is above 1;
    `relative` is of the L2 norm of the difference. One of them is None.
    """

    absolute: float | None = None
    relative: float | None = None

    def __str__(self) -> str:
        if self.relative is not None:
            return f"relative L2 {self.relative:g}"
        return f"max abs {self.absolute:g}, times the RMS of the record where that is above 1"


def default_tolerance(adapter: Adapter, device: torch.device) -> Tolerance:
    """float32 may differ by rounding, on a GPU by more of it; below float32 only the norm says something.

    In FP8 keys and values of deep layers differ much more than actions: phyai-ros quantize judges those.
    """
    modules = [value for value in vars(adapter).values() if isinstance(value, nn.Module)]
    dtypes = {parameter.dtype for module in modules for parameter in module.parameters()}
    if torch.float8_e4m3fn in dtypes:
        return Tolerance(relative=0.2)
    if dtypes - {torch.float32}:
        return Tolerance(relative=3e-2)
    return Tolerance(absolute=adapter.rounding if device.type == "cpu" else max(adapter.rounding, 5e-4))


@dataclass(frozen=True)
class StageCheck:
    """One stage against its record."""

    name: str
    max_abs: float
    relative: float  # L2
    ok: bool
    text: str = ""  # where shapes or exact values differ


@dataclass(frozen=True)
class Recording:
    """What was recorded: `inputs`, the noise among them where the policy starts from noise, and values by stage."""

    inputs: dict[str, Tensor]
    stages: dict[str, Tensor]


def read_recording(folder: Path) -> Recording:
    """Read the three files, and those of further cases, <case>_inputs.safetensors and so on.

    Raises ValueError naming the file that is missing.
    """
    for name in (INPUTS, OUTPUTS):
        if not (folder / name).is_file():
            raise ValueError(f"--io: {folder} has no {name}; record inputs, intermediate values and outputs there")
    inputs, stages = {}, {}
    for name, tensors in ((INPUTS, inputs), (STAGES, stages), (OUTPUTS, stages)):
        for file in [*sorted(folder.glob(f"*_{name}")), folder / name]:
            if file.is_file():
                tensors.update(load_file(file))
    return Recording(inputs, stages)


def check_stages(
    computed: Iterable[tuple[str, Tensor, Tensor | None]], recorded: Mapping[str, Tensor], tolerance: Tolerance
) -> list[StageCheck]:
    """Every computed (name, value, valid) that was recorded; `valid` [bool] marks what counts, None: all of it.

    A name may go on after a blank, where one value is computed in several ways. Raises ValueError when nothing was
    recorded under the names that are computed.
    """
    checks = [
        check_stage(name, value.cpu(), valid, recorded[key], tolerance)
        for name, value, valid in computed
        if (key := name if name in recorded else name.split()[0]) in recorded
    ]
    if not checks:
        raise ValueError(f"--io: none of the recorded values has a known name; recorded are {', '.join(recorded)}")
    return checks


def check_stage(name: str, value: Tensor, valid: Tensor | None, expected: Tensor, tolerance: Tolerance) -> StageCheck:
    """One value against its record."""
    if value.shape != expected.shape:
        text = f"shape {list(value.shape)}, recorded is {list(expected.shape)}"
        return StageCheck(name, float("inf"), float("inf"), False, text)
    counts = torch.ones_like(expected, dtype=torch.bool) if valid is None else valid.cpu().expand(expected.shape)
    value, reference = value[counts], expected[counts]
    if not expected.is_floating_point():
        wrong = int((value != reference).sum())
        return StageCheck(
            name, float(wrong > 0), float(wrong > 0), wrong == 0, f"{wrong} values differ" if wrong else ""
        )
    difference = value.double() - reference.double()
    max_abs = float(difference.abs().max()) if difference.numel() else 0.0
    relative = float(difference.norm() / reference.double().norm().clamp(min=1e-12))
    error, allowed = relative, tolerance.relative
    if allowed is None:
        scale = max(1.0, float(reference.double().square().mean().sqrt())) if reference.numel() else 1.0
        error, allowed = max_abs, tolerance.absolute * scale
    return StageCheck(name, max_abs, relative, error <= allowed)  # a NaN is not <= anything


def first_departure(checks: Iterable[StageCheck]) -> StageCheck | None:
    """The first stage that is not within tolerance."""
    return next((check for check in checks if not check.ok), None)
