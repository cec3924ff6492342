"""Attention of a chunk's rows over a contiguous KV buffer, the keys split over thread blocks:

    out[b, i, n] = softmax(q[b, i, n] k^T / sqrt(K)) v    over keys 0 .. P_b + H - 1 of robot b

All query heads share one key/value head; every row sees all keys, but the first `lead` rows of a robot the prefix and
each other only. Each split keeps its maximum m (base 2), its sum l and its unnormalised output; a second launch merges
them. Keys behind the last one are masked but must be finite.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phyai_kernels.flashinfer_attention import attend_flashinfer, refuse_flashinfer
from phyai_kernels.op import Candidate, Op, chained, gdc_launch_dependents, gdc_wait, jit, tl, triton
from phyai_kernels.skinny import ROW_TILE

KEY_TILE = 64  # keys of a split
MERGE_ROWS = 2
LOG2_E = math.log2(math.e)


def expert_attention_reference(
    queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor, lead: int = 0
) -> None:
    """Fills out [B H, N K]. queries [B H, N K], keys and values [B, C, K], prefix_length [B] int32."""
    robots, capacity, head_dim = keys.shape
    q = queries.float().view(robots, -1, queries.shape[1] // head_dim, head_dim)  # [B, H, N, K]
    seen = torch.where(torch.arange(q.shape[1], device=keys.device) < lead, lead, q.shape[1])  # [H], of the chunk
    end = prefix_length[:, None] + seen
    visible = torch.arange(capacity, device=keys.device) < end[..., None]  # [B, H, C]
    scores = torch.einsum("bhnk,bck->bhnc", q, keys.float()) / math.sqrt(head_dim)
    weights = scores.masked_fill(~visible[:, :, None], -math.inf).softmax(-1)
    out.copy_(torch.einsum("bhnc,bck->bhnk", weights, values.float()).reshape(out.shape))


@jit
def _split_kernel(
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    length_ptr,
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    rows,
    capacity,
    scale,
    LEAD: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    head = tl.program_id(0) % HEADS
    row = tl.program_id(0) // HEADS * ROWS + tl.arange(0, ROWS)  # of this robot's chunk
    split = tl.program_id(1)
    robot = tl.program_id(2)
    inside = row < rows
    key = split * KEYS + tl.arange(0, KEYS)
    dim = tl.arange(0, HEAD_DIM)
    end = tl.load(length_ptr + robot) + tl.where(row < LEAD, LEAD, rows)
    if PDL:
        gdc_wait()
    query = queries_ptr + (robot * rows + row)[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + dim[None, :]
    q = tl.load(query, mask=inside[:, None], other=0.0)
    held = key < capacity
    base = robot * robot_stride
    k = tl.load(keys_ptr + base + key[None, :] * HEAD_DIM + dim[:, None], mask=held[None, :], other=0.0)
    v = tl.load(values_ptr + base + key[:, None] * HEAD_DIM + dim[None, :], mask=held[:, None], other=0.0)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    scores = tl.where(key[None, :] < end[:, None], scores, -1e30)
    maximum = tl.max(scores, 1)
    weight = tl.exp2(scores - maximum[:, None])
    part = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    place = ((robot * tl.num_programs(1) + split) * HEADS + head) * rows + row
    tl.store(maxima_ptr + place, maximum, mask=inside)
    tl.store(sums_ptr + place, tl.sum(weight, 1), mask=inside)
    tl.store(parts_ptr + place[:, None] * HEAD_DIM + dim[None, :], part, mask=inside[:, None])


@jit
def _merge_kernel(
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    rows,
    SPLITS: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    robot = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    dim = tl.arange(0, HEAD_DIM)
    split = tl.arange(0, PADDED)
    place = ((robot * SPLITS + split)[:, None] * HEADS + head) * rows + row[None, :]
    held = (split < SPLITS)[:, None] & inside[None, :]
    maxima = tl.load(maxima_ptr + place, mask=held, other=-1e30)
    sums = tl.load(sums_ptr + place, mask=held, other=0.0)
    parts_place = parts_ptr + place[:, :, None] * HEAD_DIM + dim[None, None, :]
    parts = tl.load(parts_place, mask=held[:, :, None], other=0.0)  # all loads go out together
    weights = tl.exp2(maxima - tl.max(maxima, 0)[None, :])
    total = tl.sum(parts * weights[:, :, None], 0)
    denominator = tl.where(inside, tl.sum(sums * weights, 0), 1.0)
    merged = (total / denominator[:, None]).to(out_ptr.dtype.element_ty)
    out = out_ptr + (robot * rows + row)[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + dim[None, :]
    tl.store(out, merged, mask=inside[:, None])


def attention_workspace(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 parts [B, S, N, H, K], maxima and sums [B, S, N, H] for `expert_attention_triton`; S splits."""
    robots, capacity, head_dim = keys.shape
    shape = (robots, -(-capacity // KEY_TILE), queries.shape[1] // head_dim, queries.shape[0] // robots)
    kind = {"dtype": torch.float32, "device": keys.device}
    return torch.empty(*shape, head_dim, **kind), torch.empty(shape, **kind), torch.empty(shape, **kind)


def expert_attention_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prefix_length: Tensor,
    out: Tensor,
    lead: int = 0,
    workspace: tuple[Tensor, Tensor, Tensor] | None = None,
    pdl: bool = False,
) -> None:
    """Same contract as the reference, in two launches. `workspace` comes from `attention_workspace`."""
    workspace = workspace or attention_workspace(queries, keys)
    robots, splits, heads, rows, head_dim = workspace[0].shape
    _split_kernel[(heads * triton.cdiv(rows, ROW_TILE), splits, robots)](
        queries,
        keys,
        values,
        keys.stride(0),
        prefix_length,
        *workspace,
        rows,
        keys.shape[1],
        LOG2_E / math.sqrt(head_dim),
        LEAD=lead,
        HEADS=heads,
        HEAD_DIM=head_dim,
        ROWS=ROW_TILE,
        KEYS=KEY_TILE,
        num_stages=1,
        **chained(pdl),
    )
    _merge_kernel[(heads, triton.cdiv(rows, MERGE_ROWS), robots)](
        *workspace,
        out,
        rows,
        SPLITS=splits,
        PADDED=triton.next_power_of_2(splits),
        HEADS=heads,
        HEAD_DIM=head_dim,
        ROWS=MERGE_ROWS,
        **chained(pdl),
    )


def _flashinfer(backend: str) -> Candidate:
    def run(queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor) -> None:
        robots = (len(prefix_length), -1)
        rows = queries.unflatten(0, robots)
        attend_flashinfer(backend, rows, keys, values, prefix_length, out.unflatten(0, robots), more=rows.shape[1])

    def refuse(
        device: torch.device, queries: Tensor, keys: Tensor, *_: Tensor, lead: int = 0, **__: object
    ) -> str | None:
        return "takes no leading rows" if lead else refuse_flashinfer(backend, device, queries, keys)

    return Candidate(f"flashinfer {backend}", run, refuse)


EXPERT_ATTENTION = Op(
    "expert_attention",
    expert_attention_reference,
    expert_attention_triton,
    others=(_flashinfer("fa2"), _flashinfer("fa3")),  # measured, but no launch of the expert loop: see docs/kernels.md
)
