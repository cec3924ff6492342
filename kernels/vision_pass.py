"""One pass of a SigLIP tower over static buffers, its tokens projected straight into a prefix buffer.

    x <- x + out(attend(qkv(norm1(x))));    x <- x + fc2(gelu_tanh(fc1(norm2(x))));    tokens = project(norm(x))

Biases of out and fc2 are added together with the residual, by the pass that norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels.add_layer_norm import ADD_LAYER_NORM
from phyai_kernels.bias_gelu import BIAS_GELU
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.image_attention import IMAGE_ATTENTION


class Affine(NamedTuple):
    """Weight and bias of a linear layer ([N, K], [N]) or of a norm ([D], [D])."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class VisionBlock:
    """One pre-norm block; q, k and v are one matrix."""

    norm1: Affine
    qkv: Affine
    out: Affine
    norm2: Affine
    fc1: Affine
    fc2: Affine


class VisionPass:
    """Buffers and launches for B images of T tokens. `x` [B T, D] is filled by the caller (patches plus positions)."""

    def __init__(
        self,
        blocks: list[VisionBlock],
        norm: Affine,
        project: Affine,
        images: int,
        heads: int,
        x: Tensor,
        tokens_out: Tensor,
        dispatcher: Dispatcher,
    ) -> None:
        """tokens_out [B T, D'] is where the tokens go, usually the first rows of a prefix pass's x."""
        self.blocks, self.x, self._dispatcher = blocks, x, dispatcher
        self._norm, self._project, self._tokens_out = norm, project, tokens_out
        self._heads, self._images = heads, images
        self._normed, self._branch = torch.empty_like(x), torch.empty_like(x)
        self._qkv = x.new_empty(len(x), 3 * x.shape[1])
        self._attended = torch.empty_like(x)
        self._hidden = x.new_empty(len(x), blocks[0].fc1.weight.shape[0])
        self._launches = self._plan()

    def run(self) -> None:
        """Launches the pass on the current stream."""
        for launch, arguments in self._launches:
            launch(*arguments)

    def _plan(self) -> list:
        launches: list = []
        self._add(launches, ADD_LAYER_NORM, self.x, None, None, *self.blocks[0].norm1, self._normed)
        for index, block in enumerate(self.blocks):
            following = self._norm if index == len(self.blocks) - 1 else self.blocks[index + 1].norm1
            launches.append((_project, (self._normed, *block.qkv, self._qkv)))
            self._add(launches, IMAGE_ATTENTION, self._qkv, self._images, self._heads, self._attended)
            launches.append((_multiply, (self._attended, block.out.weight, self._branch)))
            self._add(launches, ADD_LAYER_NORM, self.x, self._branch, block.out.bias, *block.norm2, self._normed)
            self._add(launches, BIAS_GELU, self._normed, *block.fc1, self._hidden)
            launches.append((_multiply, (self._hidden, block.fc2.weight, self._branch)))
            self._add(launches, ADD_LAYER_NORM, self.x, self._branch, block.fc2.bias, *following, self._normed)
        launches.append((_project, (self._normed, *self._project, self._tokens_out)))
        return launches

    def _add(self, launches: list, op, *arguments) -> None:
        launches.append((self._dispatcher.pick(op, *arguments), arguments))


def _project(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    torch.addmm(bias, x, weight.T, out=out)


def _multiply(x: Tensor, weight: Tensor, out: Tensor) -> None:
    torch.mm(x, weight.T, out=out)
