"""All denoise steps of an action expert over static buffers, as a sequence of launches that a CUDA graph can hold.

What changes from chunk to chunk changes the contents of buffers, never what is launched: noise, prefix K/V and its
length, and the update and time tables, which are how every forward-only mode of real-time chunking is expressed.
Letters: B robots, H rows of a chunk (leading ones included), R = B H, N denoise steps, C rows of the KV buffer,
T flow times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels.expert_attention import EXPERT_ATTENTION, attention_workspace
from phyai_kernels.expert_qkv import EXPERT_QKV
from phyai_kernels.expert_weights import ExpertWeights
from phyai_kernels.gated_mlp import GATED_MLP
from phyai_kernels.gated_projection import GATED_PROJECTION, projection_workspace
from phyai_kernels.skinny import SUM_TILE, NormInput, Timed
from phyai_kernels.step_tail import STEP_TAIL, Entry, Head, Update

SPLIT_K = 512  # K elements a thread block of a projection takes


@dataclass(frozen=True)
class LoopInputs:
    """What the caller fills before each run; the tensors stay the same ones. `states[N]` is the result."""

    states: Tensor  # [N + 1, R, A'] float32; states[0] is the start, states[k + 1] what step k made
    prefix: Tensor  # [R, A'] float32, Y of the update; finite
    abc: Tensor  # [N, R, 3] float32 coefficients of the update
    columns: Tensor  # [B, A'] bool, where the coefficients apply; the others take plain Euler steps
    times: Tensor  # [N, R] int32, row of the weights' tables for each step and row
    keys: Tensor  # [L, B, C, K], prefix keys (rotated) in rows 0 .. P_b - 1; finite everywhere
    values: Tensor  # [L, B, C, K]
    prefix_length: Tensor  # [B] int32, P_b <= C - H
    rotary: Tensor  # [2, positions, K / 2] float32, cosines and sines; positions >= C
    lead: int = 0  # first rows of each robot that see only the prefix and each other: pi0's state token
    start: Tensor | None = None  # [R, D] float32, where weights.mixing adds to it


class Cache(NamedTuple):
    """Keys and values of all layers, prefix and chunk, each [L, B, C, K]; C a multiple of 64."""

    keys: Tensor
    values: Tensor


def make_cache(weights: ExpertWeights, robots: int, capacity: int) -> Cache:
    """Zeros; each robot's part in one piece, so that robots can also be run one by one."""
    shape = (robots, len(weights.qkv), -(-capacity // 64) * 64, weights.head_dim)
    kind = {"dtype": weights.qkv.dtype, "device": weights.qkv.device}
    return Cache(*(torch.zeros(shape, **kind).transpose(0, 1) for _ in range(2)))


def make_inputs(
    weights: ExpertWeights,
    cache: Cache,
    prefix_length: Tensor,
    columns: Tensor,
    chunk: int,
    steps: int,
    rotary: Tensor,
    lead: int = 0,
) -> LoopInputs:
    """Zeroed inputs on the weights' device, set for plain Euler, over a cache [L, B, C, K] and what else is given."""
    device, rows = weights.qkv.device, len(prefix_length) * chunk
    pitch = -(-rows // 4) * 4  # every step's rows start at 16 bytes: one compiled kernel serves all steps
    abc = torch.empty(steps, pitch, 3, device=device)[:, :rows]
    abc.copy_(torch.tensor([1.0, 1.0 / steps, 0.0]))
    times = torch.empty(steps, pitch, dtype=torch.int32, device=device)[:, :rows]
    times.copy_(torch.arange(steps)[:, None])
    return LoopInputs(
        states=torch.zeros(steps + 1, rows, weights.entry.shape[1], device=device),
        prefix=torch.zeros(rows, weights.entry.shape[1], device=device),
        abc=abc,
        columns=columns,
        times=times,
        keys=cache.keys,
        values=cache.values,
        prefix_length=prefix_length,
        rotary=rotary,
        lead=lead,
        start=None if weights.mixing is None else torch.zeros(rows, weights.entry.shape[0], device=device),
    )


class ExpertLoop:
    """The loop through the operations of this package: references on any device, or portable Triton kernels."""

    def __init__(self, weights: ExpertWeights, inputs: LoopInputs, kernels: str, pdl: bool = False) -> None:
        """`kernels` is "reference" or "triton"; `pdl` chains launches where the device can (capability 9.0)."""
        self.weights, self.inputs = weights, inputs
        self._kernels, self._pdl = kernels, pdl
        self.steps, self.depth = len(inputs.times), len(weights.qkv)
        rows, width = inputs.states.shape[1], weights.entry.shape[0]
        device, dtype = weights.qkv.device, weights.qkv.dtype
        self.residual = torch.empty(rows, width, device=device)
        self.queries = torch.empty(rows, weights.out.shape[2], dtype=dtype, device=device)
        self.attended = torch.empty_like(self.queries)
        self.hidden = torch.empty(rows, weights.down.shape[2], dtype=dtype, device=device)
        operand = torch.empty(rows, width, dtype=dtype, device=device)
        self.mixed = torch.empty_like(operand)
        sums = torch.empty(3, width // SUM_TILE, rows, device=device)
        self.attention_input = NormInput(operand, sums[0])
        self.mlp_input = NormInput(operand, sums[1])
        self.final_input = NormInput(torch.empty_like(operand), sums[2])
        self._make_workspaces()

    def run(self) -> Tensor:
        """Launches all steps on the current stream; returns states[N] [R, A'], the same tensor every time."""
        self.begin()
        self.tail(-1)
        for step in range(self.steps):
            for layer in range(self.depth):
                self.project_qkv(step, layer)
                self.attend(step, layer)
                self.project_out(step, layer)
                self.expand(step, layer)
                self.project_down(step, layer)
            self.tail(step)
        return self.inputs.states[-1]

    def begin(self) -> None:
        """Readies what a run uses up."""

    def project_qkv(self, step: int, layer: int) -> None:
        """Norm, queries, keys, values, rotation, KV write."""
        arguments = (self.inputs.rotary, self.inputs.prefix_length, self.queries, *self._cache(layer))
        shift = self._timed(self.weights.qkv_shift[:, layer], step)
        self._call(EXPERT_QKV, self.attention_input, self.weights.qkv[layer], shift, *arguments)

    def attend(self, step: int, layer: int) -> None:
        """Attention over prefix and chunk."""
        arguments = (self.queries, *self._cache(layer), self.inputs.prefix_length, self.attended, self.inputs.lead)
        self._call(EXPERT_ATTENTION, *arguments, workspace=self._attention_workspace)

    def project_out(self, step: int, layer: int) -> None:
        """Output projection, gated residual, input of the MLP norm."""
        arguments = (self.attended, self.weights.out[layer], *self._gate_and_scale(step, 2 * layer))
        self._call(GATED_PROJECTION, *arguments, self.residual, self.mlp_input, workspace=self._out_workspace)

    def expand(self, step: int, layer: int) -> None:
        """Norm, gate and up, GeGLU."""
        shift = self._timed(self.weights.gate_up_shift[:, layer], step)
        self._call(GATED_MLP, self.mlp_input, self.weights.gate_up[layer], shift, self.hidden)

    def project_down(self, step: int, layer: int) -> None:
        """Down projection, gated residual, input of the next layer's norm or of the final one."""
        following = self.final_input if layer == self.depth - 1 else self.attention_input
        arguments = (self.hidden, self.weights.down[layer], *self._gate_and_scale(step, 2 * layer + 1))
        self._call(GATED_PROJECTION, *arguments, self.residual, following, workspace=self._down_workspace)

    def tail(self, step: int) -> None:
        """The update of `step` and the expert's input of the next one; step -1 only prepares the first."""
        inputs, weights, first = self.inputs, self.weights, step < 0
        now, following = max(step, 0), min(step + 1, self.steps - 1)
        state, out = (inputs.states[0], self._start) if first else (inputs.states[step], inputs.states[step + 1])
        arguments = (
            self.final_input,
            Head(weights.head, self._timed(weights.head_shift, now)),
            Update(state, inputs.prefix, inputs.abc[now], inputs.columns, out, self.steps),
            self._entry(following),
            self.residual,
            self.attention_input if weights.mixing is None else NormInput(self.mixed, self.attention_input.row_sums),
            first,
        )
        # The first launch waits for everything before it: later ones read the prefix before their own wait.
        self._call(STEP_TAIL, *arguments, pdl=self._pdl and not first)
        if weights.mixing is not None and step < self.steps - 1:
            self.mix(following)

    def mix(self, step: int) -> None:
        """The projection onto the input of `step`, where the weights have one."""
        gate, scale = self._timed(self.weights.mixing.gate, step), self._timed(self.weights.scale[:, 0], step)
        arguments = (self.mixed, self.weights.mixing.weight, gate, scale, self.residual, self.attention_input)
        self._call(GATED_PROJECTION, *arguments, workspace=self._mix_workspace)

    def _entry(self, step: int) -> Entry:
        weights = self.weights
        bias, scale = self._timed(weights.entry_bias, step), self._timed(weights.scale[:, 0], step)
        return Entry(weights.entry, bias, scale, self.inputs.start)

    def _make_workspaces(self) -> None:
        rows, width = self.residual.shape
        device = self.residual.device
        self._start = torch.empty_like(self.inputs.states[0])
        self._attention_workspace = attention_workspace(self.queries, self.inputs.keys[0])
        self._out_workspace = projection_workspace(rows, width, _splits(self.queries), device)
        self._down_workspace = projection_workspace(rows, width, _splits(self.hidden), device)
        self._mix_workspace = projection_workspace(rows, width, _splits(self.mixed), device)

    def _call(self, op, *arguments, pdl: bool | None = None, **options) -> None:
        if self._kernels == "reference":
            op.reference(*arguments)
        else:
            op.triton(*arguments, pdl=self._pdl if pdl is None else pdl, **options)

    def _cache(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.inputs.keys[layer], self.inputs.values[layer]

    def _timed(self, table: Tensor, step: int) -> Timed:
        return Timed(table, self.inputs.times[step])

    def _gate_and_scale(self, step: int, norm: int) -> tuple[Timed, Timed]:
        """Gate of norm `norm`'s branch, and the scale of the norm after it."""
        return self._timed(self.weights.gate[:, norm], step), self._timed(self.weights.scale[:, norm + 1], step)


def _splits(operand: Tensor) -> int:
    return max(1, operand.shape[1] // SPLIT_K)
