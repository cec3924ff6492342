"""One pass of a Gemma prefix (images and prompt) over static buffers: it leaves keys and values of every layer.

    x <- x + o(attend(qkv(norm(x))));    x <- x + down(gelu_tanh(gate(norm(x))) * up(norm(x)))

The last layer makes keys and values only: nothing reads its output. With FP8 weights, QKV, gate/up and down products
run on FP8 operands (one scale per weight row, one per token); the rest stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels.add_rms_norm import ADD_RMS_NORM
from phyai_kernels.dense import DENSE, DENSE_GEGLU, Scales
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.gated_mlp import interleave_rows
from phyai_kernels.prefix_attention import PREFIX_ATTENTION
from phyai_kernels.prefix_qkv import PREFIX_QKV, qkv_order
from phyai_kernels.quantize_rows import FP8, QUANTIZE_ROWS, quantize_weight
from phyai_kernels.rotate_and_store import ROTATE_AND_STORE


class Weight(NamedTuple):
    """A weight [N, K] in the model's type, or FP8 with one scale per row."""

    values: Tensor
    scales: Tensor | None = None


@dataclass(frozen=True)
class PrefixLayer:
    """One layer, N query heads and one key/value head. The last layer has only its norm and qkv (k and v rows)."""

    attention_norm: Tensor  # [D] float32
    qkv: Weight  # [(N + 2) K, D], or [2 K, D]
    out: Weight | None = None  # [D, N K]
    mlp_norm: Tensor | None = None
    gate_up: Weight | None = None  # [2 F, D], rows in turns
    down: Weight | None = None  # [D, F]


def pack_layer(
    attention_norm: Tensor,
    qkv: Tensor,
    out: Tensor | None = None,
    mlp_norm: Tensor | None = None,
    gate: Tensor | None = None,
    up: Tensor | None = None,
    down: Tensor | None = None,
    fp8: bool = False,
) -> PrefixLayer:
    """A layer from weights as checkpoints have them; without `out` it is a last layer."""
    make = (lambda weight: Weight(*quantize_weight(weight))) if fp8 else Weight
    if out is None:
        return PrefixLayer(attention_norm.float(), make(qkv))
    gate_up = make(interleave_rows(gate, up))
    return PrefixLayer(attention_norm.float(), make(qkv), Weight(out), mlp_norm.float(), gate_up, make(down))


class PrefixPass:
    """Buffers and launches of one shape: B robots, T tokens. `x` [B T, D] is filled by the caller and used up."""

    def __init__(
        self,
        layers: list[PrefixLayer],
        keys: Tensor,
        values: Tensor,
        prefix_length: Tensor,
        rotary: Tensor,
        tokens: int,
        dispatcher: Dispatcher,
    ) -> None:
        """keys, values [L, B, C, K] get rows 0 .. T - 1; prefix_length [B] int32; rotary [2, positions, K / 2]."""
        self.layers, self.keys, self.values = layers, keys, values
        self._length, self._rotary, self._dispatcher = prefix_length, rotary, dispatcher
        first, (_, self._batch, _, self._head_dim) = layers[0], keys.shape
        rows, width = self._batch * tokens, first.out.values.shape[0]
        kind = {"dtype": keys.dtype, "device": keys.device}
        self.x = torch.zeros(rows, width, **kind)
        self._branch = torch.empty_like(self.x)
        self._qkv = torch.empty(rows, first.qkv.values.shape[0], **kind)
        self._queries = torch.empty(self._batch, tokens, first.out.values.shape[1], **kind)
        self._last_qkv = torch.empty(rows, 2 * self._head_dim, **kind)
        self._attended = torch.empty(rows, first.out.values.shape[1], **kind)
        self._hidden = torch.empty(rows, first.down.values.shape[1], **kind)
        self._normed, self._hidden_operand = self._operand(self.x, first.qkv), self._operand(self._hidden, first.down)
        self._launches = self._plan()

    def run(self) -> None:
        """Launches the pass on the current stream."""
        for launch, arguments, options in self._launches:
            launch(*arguments, **options)

    @staticmethod
    def _operand(like: Tensor, weight: Weight) -> Weight:
        """A buffer for the operand of `weight`, with scales where that is FP8."""
        if weight.scales is None:
            return Weight(torch.empty_like(like))
        return Weight(torch.empty_like(like, dtype=FP8), torch.empty(len(like), device=like.device))

    def _plan(self) -> list:
        """Every launch in order, its candidate chosen once."""
        launches: list = []
        self._add(launches, ADD_RMS_NORM, self.x, None, self.layers[0].attention_norm, *self._normed)
        for index, layer in enumerate(self.layers):
            self._plan_qkv(launches, index, layer)
            if layer.out is None:
                break
            self._plan_attention(launches, index, layer)
            self._plan_mlp(launches, layer)
            following = self.layers[index + 1].attention_norm
            self._add(launches, ADD_RMS_NORM, self.x, self._branch, following, *self._normed)
        return launches

    def _plan_qkv(self, launches: list, index: int, layer: PrefixLayer) -> None:
        """Product, rotation and store in one launch where a kernel does that, otherwise in two."""
        last = layer.out is None
        qkv, queries = (self._last_qkv, self._queries[..., :0]) if last else (self._qkv, self._queries)
        (x, x_scales), (weight, scales) = self._normed, layer.qkv
        stored = (self._rotary, queries, self.keys[index], self.values[index])
        given = None if scales is None else Scales(x_scales, scales)
        together = None if last else self._dispatcher.pick(PREFIX_QKV, x, weight, given, *stored)
        if together in (None, PREFIX_QKV.reference):
            self._add_product(launches, self._normed, layer.qkv, qkv)
            self._add(launches, ROTATE_AND_STORE, qkv.unflatten(0, (self._batch, -1)), *stored)
            return
        order = qkv_order(queries.shape[-1] // self._head_dim, self._head_dim, weight.device)
        blocked = None if scales is None else Scales(x_scales, scales[order])
        launches.append((together, (x, weight[order], blocked, *stored), {}))

    def _plan_attention(self, launches: list, index: int, layer: PrefixLayer) -> None:
        attended = self._attended.view_as(self._queries)
        arguments = (self._queries, self.keys[index], self.values[index], self._length, attended)
        self._add(launches, PREFIX_ATTENTION, *arguments)
        self._add_product(launches, Weight(self._attended), layer.out, self._branch)
        self._add(launches, ADD_RMS_NORM, self.x, self._branch, layer.mlp_norm, *self._normed)

    def _plan_mlp(self, launches: list, layer: PrefixLayer) -> None:
        hidden = self._hidden_operand
        target = self._hidden if hidden.scales is not None else hidden.values
        self._add_product(launches, self._normed, layer.gate_up, target, geglu=True)
        if hidden.scales is not None:
            self._add(launches, QUANTIZE_ROWS, target, *hidden)
        self._add_product(launches, hidden, layer.down, self._branch)

    def _add_product(self, launches: list, operand: Weight, weight: Weight, out: Tensor, **options) -> None:
        if weight.scales is not None:
            options["scales"] = Scales(operand.scales, weight.scales)
        op = DENSE_GEGLU if options.get("geglu") else DENSE
        self._add(launches, op, operand.values, weight.values, out, **options)

    def _add(self, launches: list, op, *arguments, **options) -> None:
        launches.append((self._dispatcher.pick(op, *arguments, **options), arguments, options))
