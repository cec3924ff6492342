"""Short causal convolution per channel, SiLU, and the split into queries, keys and values (gated delta networks):

    y[b, t, c] = silu(sum_j weight[c, j] x[b, t - W + 1 + j, c]),    x before t = 0 is zero

The parts come out contiguous, ready for the recurrence behind it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from phyai_kernels.op import Op, jit, tl, triton

TOKENS = 16
CHANNELS = 128


def causal_conv_reference(x: Tensor, weight: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> None:
    """x [B, T, C], weight [C, W]; fills queries [B, T, Cq], keys [B, T, Ck], values [B, T, Cv]; Cq + Ck + Cv = C."""
    channels, window = weight.shape
    padded = torch.nn.functional.pad(x.float().transpose(1, 2), (window - 1, 0))
    y = silu(conv1d(padded, weight.float()[:, None], groups=channels)).transpose(1, 2)
    parts = (queries, keys, values)
    for out, part in zip(parts, y.split([out.shape[-1] for out in parts], -1), strict=True):
        out.copy_(part)


@jit
def _causal_conv_kernel(
    x_ptr,
    weight_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    tokens,
    QUERY: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    WINDOW: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    WIDTH: tl.constexpr = QUERY + KEY + VALUE
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    robot = tl.program_id(2)
    y = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for tap in tl.static_range(WINDOW):
        source = token - (WINDOW - 1) + tap
        held = (source >= 0) & (source < tokens)
        weight = tl.load(weight_ptr + channel * WINDOW + tap, mask=channel < WIDTH, other=0.0).to(tl.float32)
        place = (robot * tokens + source)[:, None] * WIDTH + channel[None, :]
        x = tl.load(x_ptr + place, mask=held[:, None] & (channel < WIDTH)[None, :], other=0.0)
        y += weight[None, :] * x.to(tl.float32)
    y = (y * tl.sigmoid(y)).to(queries_ptr.dtype.element_ty)
    row = (robot * tokens + token)[:, None]
    inside = (token < tokens)[:, None]
    query = (channel < QUERY)[None, :]
    key = ((channel >= QUERY) & (channel < QUERY + KEY))[None, :]
    value = ((channel >= QUERY + KEY) & (channel < WIDTH))[None, :]
    tl.store(queries_ptr + row * QUERY + channel[None, :], y, mask=inside & query)
    tl.store(keys_ptr + row * KEY + (channel - QUERY)[None, :], y, mask=inside & key)
    tl.store(values_ptr + row * VALUE + (channel - QUERY - KEY)[None, :], y, mask=inside & value)


def causal_conv_triton(x: Tensor, weight: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> None:
    """Same contract as the reference, in one launch."""
    batch, tokens, width = x.shape
    _causal_conv_kernel[(triton.cdiv(tokens, TOKENS), triton.cdiv(width, CHANNELS), batch)](
        x,
        weight,
        queries,
        keys,
        values,
        tokens,
        QUERY=queries.shape[-1],
        KEY=keys.shape[-1],
        VALUE=values.shape[-1],
        WINDOW=weight.shape[1],
        TOKENS=TOKENS,
        CHANNELS=CHANNELS,
    )


CAUSAL_CONV = Op("causal_conv", causal_conv_reference, causal_conv_triton)
