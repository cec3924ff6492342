"""An action expert with random weights, its plain formula, and the packed form the kernels take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from comparison import draw

from phyai_kernels.expert_loop import make_cache, make_inputs
from phyai_kernels.expert_weights import ExpertEnds, ExpertLayer, pack_expert


@dataclass(frozen=True)
class Sizes:
    width: int = 128
    depth: int = 2
    heads: int = 3
    head_dim: int = 64
    mlp_width: int = 192
    actions: int = 7
    steps: int = 3


FULL = Sizes(width=1024, depth=18, heads=8, head_dim=256, mlp_width=4096, actions=32, steps=10)


class RandomExpert:
    """Weights in `dtype`, values of the formula in float32."""

    def __init__(self, sizes, dtype, device, seed=0):
        self.sizes, self.dtype, self.device = sizes, dtype, device
        self.generator = torch.Generator(device).manual_seed(seed)
        width, query = sizes.width, sizes.heads * sizes.head_dim
        self.layers = [
            ExpertLayer(
                self._weight(query + 2 * sizes.head_dim, width),
                self._weight(width, query),
                self._weight(sizes.mlp_width, width),
                self._weight(sizes.mlp_width, width),
                self._weight(width, sizes.mlp_width),
            )
            for _ in range(sizes.depth)
        ]
        entry, head = self._normal(width, sizes.actions, scale=0.3), self._normal(sizes.actions, width, scale=0.03)
        self.ends = ExpertEnds(entry, self._normal(width, scale=0.1), head, self._normal(sizes.actions, scale=0.1))
        self.modulation = self._normal(sizes.steps + 1, 2 * sizes.depth + 1, 3 * width, scale=0.2)
        frequency = 1e4 ** (-torch.arange(sizes.head_dim // 2) / (sizes.head_dim // 2))
        angle = torch.arange(2000)[:, None] * frequency
        self.rotary = torch.stack([angle.cos(), angle.sin()]).to(device)

    def packed(self):
        return pack_expert(self.layers, self.ends, self.modulation, self.sizes.head_dim)

    def inputs(self, weights, prefix_lengths, chunk, capacity):
        """Random prefix, noise, update tables and row times (the first row keeps the time of finished actions)."""
        lengths = torch.tensor(prefix_lengths, dtype=torch.int32, device=self.device)
        cache = make_cache(weights, len(lengths), capacity)
        columns = torch.ones(len(lengths), self.sizes.actions, dtype=torch.bool, device=self.device)
        inputs = make_inputs(weights, cache, lengths, columns, chunk, self.sizes.steps, self.rotary)
        inputs.states[0] = self._normal(*inputs.states[0].shape)
        inputs.states[1:] = float("nan")
        inputs.prefix.copy_(self._normal(*inputs.prefix.shape))
        inputs.abc.add_(self._normal(*inputs.abc.shape, scale=0.05))
        inputs.columns[0, ::3] = False
        inputs.times[:, 0] = self.sizes.steps
        inputs.keys.copy_(self._normal(*inputs.keys.shape))
        inputs.values.copy_(self._normal(*inputs.values.shape))
        return inputs

    def formula(self, inputs):
        """states[N], computed without folding, packing or tiles."""
        robots, rows = len(inputs.prefix_length), inputs.states.shape[1]
        state = inputs.states[0]
        for step, times in enumerate(inputs.times.long()):
            x = state @ self.ends.entry.T + self.ends.entry_bias
            for index, layer in enumerate(self.layers):
                x = self._layer(x, layer, index, times, inputs, robots, rows // robots)
            velocity = self._norm(x, 2 * self.sizes.depth, times)[0] @ self.ends.head.T + self.ends.head_bias
            a, b, c = inputs.abc[step][..., None].unbind(1)
            columns = inputs.columns.repeat_interleave(rows // robots, 0)
            euler = state + velocity / self.sizes.steps
            state = torch.where(columns, a * state + b * velocity + c * inputs.prefix, euler)
        return state

    def _layer(self, x, layer, index, times, inputs, robots, chunk):
        heads, dim = self.sizes.heads, self.sizes.head_dim
        qkv, out, gate, up, down = (weight.float() for weight in layer)
        n, attention_gate = self._norm(x, 2 * index, times)
        y = (n @ qkv.T).view(robots, chunk, heads + 2, dim)
        attended = []
        for robot, length in enumerate(inputs.prefix_length.tolist()):
            place = torch.arange(length, length + chunk, device=x.device)
            q, k = self._rotate(y[robot, :, :heads], place), self._rotate(y[robot, :, heads : heads + 1], place)
            k = torch.cat([inputs.keys[index, robot, :length].float(), k[:, 0]])
            v = torch.cat([inputs.values[index, robot, :length].float(), y[robot, :, heads + 1]])
            weights = (torch.einsum("hnd,cd->hnc", q, k) * dim**-0.5).softmax(-1)
            attended.append(torch.einsum("hnc,cd->hnd", weights, v).flatten(1))
        x = x + attention_gate * (torch.cat(attended) @ out.T)
        n, mlp_gate = self._norm(x, 2 * index + 1, times)
        hidden = torch.nn.functional.gelu(n @ gate.T, approximate="tanh") * (n @ up.T)
        return x + mlp_gate * (hidden @ down.T)

    def _norm(self, x, index, times):
        scale, shift, gate = self.modulation[times, index].chunk(3, dim=-1)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + scale) + shift, gate

    def _rotate(self, x, place):
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.rotary[:, place].unsqueeze(2)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _normal(self, *shape, scale=1.0):
        return draw(self.generator, *shape, device=self.device, scale=scale)

    def _weight(self, rows, columns):
        return draw(self.generator, rows, columns, dtype=self.dtype, device=self.device, scale=columns**-0.5)
