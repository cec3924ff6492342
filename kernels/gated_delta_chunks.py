"""The gated delta rule by chunks of tokens, in two launches.

What the C tokens of a chunk correct in each other is one triangular system, so with G the sum of g since the chunk
began, rows i and columns j of the chunk, and S the matrix when it begins:

    A_ij = beta_i exp(G_i - G_j) k_i k_j  for j < i        inverse = (1 + A)^-1 beta
    P_ij = exp(G_i - G_j) q_i k_j         for j <= i
    new = inverse (v - exp(G) k S);    o = exp(G) q S + P new;    S <- exp(G_C) S + (exp(G_C - G) k)^T new

The first launch makes `inverse`, P and the scales of all chunks at once; the second one carries S through them, a few
columns of V per program. The system is solved row by row: products of powers of A would cancel where keys repeat, as
those of a plain wall do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import jit, tl, triton

EPS = 1e-6
CHUNK = 32
COLUMNS = 16  # of V per program
SCALES = 4  # of queries, of keys as they read S, of keys as they write it, of S


@jit
def _solve_kernel(
    q_ptr,
    k_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    inverse_ptr,
    inner_ptr,
    scales_ptr,
    tokens,
    heads,
    groups,
    KEY: tl.constexpr,
    CHUNK: tl.constexpr,
    SCALES: tl.constexpr,
    EPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1)
    robot = tl.program_id(2)
    at = tl.arange(0, CHUNK)
    token = tl.program_id(0) * CHUNK + at
    held = token < tokens
    feature = tl.arange(0, KEY)
    row = robot * tokens + token
    place = (row * (heads // groups) + head // groups)[:, None] * KEY + feature[None, :]
    q = tl.load(q_ptr + place, mask=held[:, None], other=0.0).to(tl.float32)
    k = tl.load(k_ptr + place, mask=held[:, None], other=0.0).to(tl.float32)
    length_q = tl.rsqrt(tl.sum(q * q, 1) + EPS) * (1.0 / KEY) ** 0.5
    length_k = tl.rsqrt(tl.sum(k * k, 1) + EPS)

    rate = tl.load(a_ptr + row * heads + head, mask=held, other=0.0).to(tl.float32)
    rate += tl.load(dt_bias_ptr + head).to(tl.float32)
    rate = tl.where(rate > 20.0, rate, tl.log(1.0 + tl.exp(tl.minimum(rate, 20.0))))
    g = tl.where(held, -tl.exp(tl.load(a_log_ptr + head).to(tl.float32)) * rate, 0.0)
    beta = tl.where(held, tl.sigmoid(tl.load(b_ptr + row * heads + head, mask=held, other=0.0).to(tl.float32)), 0.0)
    total = tl.cumsum(g, 0)
    last = tl.sum(g, 0)

    k = k * length_k[:, None]
    products = tl.dot(k, tl.trans(k), input_precision=PRECISION)
    # Transposed, so that the coefficients of one row come out as a column: [j, i] for j < i.
    ahead = at[:, None] < at[None, :]
    decay = tl.exp(tl.where(ahead, total[None, :] - total[:, None], 0.0))
    system = tl.where(ahead, products * decay * beta[None, :], 0.0)
    inverse = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    for step in range(1, CHUNK):
        coefficients = tl.sum(tl.where(at[None, :] == step, system, 0.0), 1)
        known = tl.sum(coefficients[:, None] * inverse, 0)
        inverse = tl.where(at[:, None] == step, inverse - known[None, :], inverse)

    behind = at[:, None] >= at[None, :]
    inner = tl.dot(q * length_q[:, None], tl.trans(k), input_precision=PRECISION)
    inner = tl.where(behind, inner * tl.exp(tl.where(behind, total[:, None] - total[None, :], 0.0)), 0.0)
    chunk = (robot * heads + head) * tl.num_programs(0) + tl.program_id(0)
    square = chunk * CHUNK * CHUNK + at[:, None] * CHUNK + at[None, :]
    tl.store(inverse_ptr + square, inverse * beta[None, :])
    tl.store(inner_ptr + square, inner)
    scales = scales_ptr + chunk * SCALES * CHUNK + at
    tl.store(scales, length_q * tl.exp(total))
    tl.store(scales + CHUNK, length_k * tl.exp(total))
    tl.store(scales + 2 * CHUNK, length_k * tl.exp(last - total))
    tl.store(scales + 3 * CHUNK, tl.exp(last + tl.zeros((CHUNK,), tl.float32)))


@jit
def _carry_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    inverse_ptr,
    inner_ptr,
    scales_ptr,
    state_ptr,
    out_ptr,
    tokens,
    heads,
    groups,
    chunks,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    SCALES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1)
    robot = tl.program_id(2)
    at = tl.arange(0, CHUNK)
    feature = tl.arange(0, KEY)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    kept = state_ptr + ((robot * heads + head) * KEY + feature)[:, None] * VALUE + column[None, :]
    state = tl.load(kept)
    for index in range(chunks):
        token = index * CHUNK + at
        held = (token < tokens)[:, None]
        row = robot * tokens + token
        place = (row * (heads // groups) + head // groups)[:, None] * KEY + feature[None, :]
        q = tl.load(q_ptr + place, mask=held, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + place, mask=held, other=0.0).to(tl.float32)
        value = (row * heads + head)[:, None] * VALUE + column[None, :]
        v = tl.load(v_ptr + value, mask=held, other=0.0).to(tl.float32)
        chunk = (robot * heads + head) * chunks + index
        square = chunk * CHUNK * CHUNK + at[:, None] * CHUNK + at[None, :]
        scales = scales_ptr + chunk * SCALES * CHUNK
        reads_q, reads_k = tl.load(scales + at), tl.load(scales + CHUNK + at)
        writes, remains = tl.load(scales + 2 * CHUNK + at), tl.load(scales + 3 * CHUNK)

        seen = tl.dot(k * reads_k[:, None], state, input_precision=PRECISION)
        new = tl.dot(tl.load(inverse_ptr + square), v - seen, input_precision=PRECISION)
        out = tl.dot(q * reads_q[:, None], state, input_precision=PRECISION)
        out += tl.dot(tl.load(inner_ptr + square), new, input_precision=PRECISION)
        tl.store(out_ptr + value, out.to(out_ptr.dtype.element_ty), mask=held)
        state = remains * state + tl.dot(tl.trans(k * writes[:, None]), new, input_precision=PRECISION)
    tl.store(kept, state)


def gated_delta_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    out: Tensor,
) -> None:
    """Same contract as gated_delta_reference; K and V powers of two from 16."""
    batch, tokens, heads, width = v.shape
    chunks, groups, key_dim = triton.cdiv(tokens, CHUNK), heads // k.shape[2], k.shape[-1]
    inverse, inner = torch.empty(2, batch, heads, chunks, CHUNK, CHUNK, device=v.device)
    scales = torch.empty(batch, heads, chunks, SCALES, CHUNK, device=v.device)
    made, counts = (inverse, inner, scales), (tokens, heads, groups)
    # The products of float32 networks are not rounded; 16-bit ones carry less than tf32 keeps.
    sizes = {"KEY": key_dim, "CHUNK": CHUNK, "SCALES": SCALES}
    sizes["PRECISION"] = "ieee" if v.dtype == torch.float32 else "tf32"
    _solve_kernel[(chunks, heads, batch)](q, k, a, b, a_log, dt_bias, *made, *counts, EPS=EPS, **sizes)
    _carry_kernel[(width // COLUMNS, heads, batch)](
        q, k, v, *made, state, out, *counts, chunks, VALUE=width, COLUMNS=COLUMNS, **sizes
    )
