"""What the expert loop reads and never writes: packed weights, and tables over the flow times of a checkpoint.

Modulation depends on flow time alone, and flow time takes T values: N denoise steps, and one more where frozen rows
carry the time of finished actions. So scale, gate and the products shift @ W^T are tables, made once per checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels.expert_qkv import pair_rows
from phyai_kernels.gated_mlp import interleave_rows


class ExpertLayer(NamedTuple):
    """Weights of one layer as checkpoints have them: N query heads and one key/value head of K dims, MLP width F."""

    qkv: Tensor  # [(N + 2) K, D]
    out: Tensor  # [D, N K]
    gate: Tensor  # [F, D]
    up: Tensor  # [F, D]
    down: Tensor  # [D, F]


class Mixing(NamedTuple):
    """One more projection onto the expert's input: x = start + gate * (silu(entry) @ weight^T). Start is an input."""

    weight: Tensor  # [D, D], the model's type
    gate: Tensor  # [T, D] float32; 0 at the time of rows that stay what they start as


class ExpertEnds(NamedTuple):
    """Action input projection and action head, any float type. The head yields dx/dt for flow time from 0 to 1."""

    entry: Tensor  # [D, A']
    entry_bias: Tensor  # [D], or [T, D] where it follows flow time
    head: Tensor  # [A', D]
    head_bias: Tensor  # [A']
    mixing: Mixing | None = None


@dataclass(frozen=True)
class ExpertWeights:
    """Packed weights of L layers in the model's type, everything else float32. T flow times."""

    head_dim: int
    qkv: Tensor  # [L, (N + 2) K, D], rows in rotary pairs
    out: Tensor  # [L, D, N K]
    gate_up: Tensor  # [L, 2 F, D], rows in turns
    down: Tensor  # [L, D, F]
    scale: Tensor  # [T, 2 L + 1, D], 1 + scale of every norm in order
    gate: Tensor  # [T, 2 L, D]
    qkv_shift: Tensor  # [T, L, (N + 2) K]
    gate_up_shift: Tensor  # [T, L, 2 F]
    head_shift: Tensor  # [T, A'], head bias included
    head: Tensor  # [A', D]
    entry: Tensor  # [D, A']
    entry_bias: Tensor  # [T, D]
    mixing: Mixing | None


def pack_expert(layers: Sequence[ExpertLayer], ends: ExpertEnds, modulation: Tensor, head_dim: int) -> ExpertWeights:
    """`modulation` [T, 2 L + 1, 3 D]: scale, shift, gate of every norm in order, the final norm last."""
    scale, shift, gate = modulation.float().chunk(3, dim=-1)
    depth = len(layers)
    assert scale.shape[1] == 2 * depth + 1, (scale.shape, depth)
    qkv = torch.stack([pair_rows(layer.qkv, head_dim) for layer in layers])
    gate_up = torch.stack([interleave_rows(layer.gate, layer.up) for layer in layers])
    return ExpertWeights(
        head_dim=head_dim,
        qkv=qkv,
        out=torch.stack([layer.out for layer in layers]),
        gate_up=gate_up,
        down=torch.stack([layer.down for layer in layers]),
        scale=(1.0 + scale).contiguous(),
        gate=gate[:, :-1].contiguous(),
        qkv_shift=_shift_table(shift[:, 0:-1:2], qkv),
        gate_up_shift=_shift_table(shift[:, 1:-1:2], gate_up),
        head_shift=(shift[:, -1] @ ends.head.float().T + ends.head_bias.float()).contiguous(),
        head=ends.head.float().contiguous(),
        entry=ends.entry.float().contiguous(),
        entry_bias=ends.entry_bias.float().expand(len(scale), -1).contiguous(),
        mixing=ends.mixing,
    )


def _shift_table(shift: Tensor, weight: Tensor) -> Tensor:
    """shift [T, L, D], weight [L, N, D] -> shift @ W^T [T, L, N], layer by layer so that memory stays small."""
    rows = [shift[:, index] @ layer.float().T for index, layer in enumerate(weight)]
    return torch.stack(rows, 1).contiguous()
