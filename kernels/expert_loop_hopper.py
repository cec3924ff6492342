"""The expert loop through the Hopper kernels: one robot, at most 64 chunk rows, bfloat16, five launches a layer.

Bitwise repeatable: every sum has a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phyai_kernels.expert_attention_hopper import expert_attention_hopper, split_count
from phyai_kernels.expert_loop import ExpertLoop, LoopInputs
from phyai_kernels.expert_qkv_hopper import expert_qkv_hopper
from phyai_kernels.expert_weights import ExpertWeights
from phyai_kernels.gated_mlp_hopper import gated_mlp_hopper
from phyai_kernels.gated_projection_hopper import gated_projection_hopper
from phyai_kernels.hopper import describe, refuse
from phyai_kernels.skinny import NormInput

KEY_TILE = 64
MAX_SPLITS = 32
PROCESSORS = 128  # thread blocks of a down projection: 16 column tiles, 8 splits


@dataclass(frozen=True)
class Tiles:
    """How one product is cut: output columns and K chunk of a thread block, operand chunks in flight, K splits."""

    columns: int = 64
    chunk: int = 128
    ring: int = 4
    splits: int = 1


@dataclass(frozen=True)
class HopperPlan:
    """The cuts that were fastest for the whole loop at width 1024 on an H200; single kernels rank differently."""

    qkv: Tiles = Tiles(chunk=256, ring=2)
    out: Tiles = Tiles(splits=4)
    gate_up: Tiles = Tiles(ring=6)
    down: Tiles = Tiles(splits=8)
    mix: Tiles = Tiles(splits=4)


def refuse_hopper(weights: ExpertWeights, inputs: LoopInputs) -> str | None:
    """Why `HopperExpertLoop` cannot run these, or None."""
    robots, rows, device = inputs.keys.shape[1], inputs.states.shape[1], weights.qkv.device
    if robots != 1 or rows > KEY_TILE:
        return f"takes one robot and at most {KEY_TILE} chunk rows, not {robots} robots and {rows // robots} rows"
    if weights.qkv.dtype != torch.bfloat16:
        return f"needs bfloat16 weights, not {weights.qkv.dtype}"
    sizes = (weights.entry.shape[0], weights.out.shape[2], weights.down.shape[2], weights.head_dim)
    if sizes[0] not in (512, 1024) or sizes[1] not in (1024, 2048) or sizes[2] not in (2048, 4096) or sizes[3] != 256:
        return f"needs width 512 or 1024, heads of 256 over 1024 or 2048, MLP width 2048 or 4096, not {sizes}"
    if inputs.keys.shape[2] > MAX_SPLITS * KEY_TILE:
        return f"takes at most {MAX_SPLITS * KEY_TILE} keys, not {inputs.keys.shape[2]}"
    return refuse(device) or _refuse_few_processors(device)


def _refuse_few_processors(device: torch.device) -> str | None:
    """Thread blocks that wait for each other must all be resident, one on each multiprocessor."""
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return None if count >= PROCESSORS else f"needs {PROCESSORS} multiprocessors, not {count}"


class HopperExpertLoop(ExpertLoop):
    """Call `refuse_hopper` first. Same buffers, inputs and results as ExpertLoop."""

    def __init__(self, weights: ExpertWeights, inputs: LoopInputs, plan: HopperPlan | None = None) -> None:
        self._plan = plan or HopperPlan()
        super().__init__(weights, inputs, kernels="triton", pdl=True)

    def begin(self) -> None:
        """Zeroes the arrival counters; every launch has its own."""
        self._arrived.zero_()

    def project_qkv(self, step: int, layer: int) -> None:
        tiles, weights = self._plan.qkv, self.weights
        expert_qkv_hopper(
            self._operand_blocks[tiles.chunk],
            self._qkv,
            layer * weights.qkv.shape[1],
            self.attention_input.row_sums,
            self._timed(weights.qkv_shift[:, layer], step),
            self.inputs.rotary,
            self.inputs.prefix_length,
            self.queries,
            self.inputs.keys[layer, 0],
            self.inputs.values[layer, 0],
            tiles.chunk,
            tiles.ring,
        )

    def attend(self, step: int, layer: int) -> None:
        row = layer * self.inputs.keys.shape[2]
        arrived = self._arrived[step, layer, 0]
        arguments = (row, self.inputs.prefix_length, self._parts, self.attended, arrived, self.inputs.lead)
        expert_attention_hopper(*self._attention_blocks, *arguments)

    def project_out(self, step: int, layer: int) -> None:
        timed = self._gate_and_scale(step, 2 * layer)
        row, arrived = layer * self.residual.shape[1], self._arrived[step, layer, 1]
        self._project(self._plan.out, (self._attended, self._out, row), timed, arrived, self.mlp_input)

    def expand(self, step: int, layer: int) -> None:
        tiles, weights = self._plan.gate_up, self.weights
        gated_mlp_hopper(
            self._operand_blocks[tiles.chunk],
            self._gate_up,
            layer * weights.gate_up.shape[1],
            self.mlp_input.row_sums,
            self._timed(weights.gate_up_shift[:, layer], step),
            self.hidden,
            tiles.chunk,
            tiles.ring,
        )

    def project_down(self, step: int, layer: int) -> None:
        following = self.final_input if layer == self.depth - 1 else self.attention_input
        timed = self._gate_and_scale(step, 2 * layer + 1)
        row, arrived = layer * self.residual.shape[1], self._arrived[step, layer, 2]
        self._project(self._plan.down, (self._hidden, self._down, row), timed, arrived, following)

    def mix(self, step: int) -> None:
        timed = self._timed(self.weights.mixing.gate, step), self._timed(self.weights.scale[:, 0], step)
        factors = (self._mixed, self._mix, 0)
        self._project(self._plan.mix, factors, timed, self._arrived[step, self.depth, 0], self.attention_input)

    def _project(self, tiles: Tiles, factors: tuple, timed: tuple, arrived: Tensor, x: NormInput) -> None:
        """`factors`: operand, weights and the first row of the weights; `timed`: gate and scale."""
        gated_projection_hopper(
            *factors,
            *timed,
            self.residual,
            x,
            self._split_parts,
            arrived,
            tiles.splits,
            tiles.chunk,
            tiles.ring,
        )

    def _make_workspaces(self) -> None:
        device, plan, weights = self.residual.device, self._plan, self.weights
        rows, width = self.residual.shape
        heads, head_dim = self.queries.shape[1] // weights.head_dim, weights.head_dim
        splits = split_count(self.inputs.keys.shape[2] - rows, KEY_TILE)
        self._start = torch.empty_like(self.inputs.states[0])
        kind = {"dtype": torch.float32, "device": device}
        stats = torch.empty(2, splits, heads, 64, **kind)
        self._parts = (torch.empty(splits, heads, 64, head_dim, dtype=torch.bfloat16, device=device), *stats)
        self._split_parts = torch.empty(max(plan.out.splits, plan.down.splits, plan.mix.splits), 64, width, **kind)
        slots = max(heads, width // min(plan.out.columns, plan.down.columns))
        self._arrived = torch.zeros(self.steps, self.depth + 1, 3, slots, dtype=torch.int32, device=device)
        self._describe_operands()

    def _describe_operands(self) -> None:
        plan, weights = self._plan, self.weights
        chunks = {plan.qkv.chunk, plan.gate_up.chunk}
        self._operand_blocks = {chunk: describe(self.attention_input.operand, 64, chunk) for chunk in chunks}
        self._attended = describe(self.attended, 64, plan.out.chunk)
        self._hidden = describe(self.hidden, 64, plan.down.chunk)
        self._qkv = _describe_weight(weights.qkv, plan.qkv)
        self._out = _describe_weight(weights.out, plan.out)
        self._gate_up = _describe_weight(weights.gate_up, plan.gate_up)
        self._down = _describe_weight(weights.down, plan.down)
        if weights.mixing is not None:
            self._mixed = describe(self.mixed, 64, plan.mix.chunk)
            self._mix = describe(weights.mixing.weight, plan.mix.columns, plan.mix.chunk)
        keys, values = self.inputs.keys.flatten(0, 2), self.inputs.values.flatten(0, 2)
        blocks = (describe(matrix, KEY_TILE, weights.head_dim) for matrix in (self.queries, keys, values))
        self._attention_blocks = tuple(blocks)


def _describe_weight(weight: Tensor, tiles: Tiles):
    return describe(weight.flatten(0, 1), tiles.columns, tiles.chunk)
