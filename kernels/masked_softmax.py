"""What lies between the two products of an attention with few queries: scale, mask, softmax, rounding.

    out = softmax(scale scores) over the keys that a query may see

A mask of a row per query is shared by the heads that are folded into the query axis: row r of it serves r, r + Q, ...
"""

from __future__ import annotations

from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton


def masked_softmax_reference(scores: Tensor, mask: Tensor, scale: float, out: Tensor) -> None:
    """scores and out [B, M, R, S], mask bool [B, Q, S] with R a multiple of Q; every query sees a key. In float32."""
    seen = mask.repeat(1, scores.shape[2] // mask.shape[1], 1)[:, None]
    out.copy_((scores.float() * scale).masked_fill(~seen, float("-inf")).softmax(-1))


@jit
def _masked_softmax_kernel(scores_ptr, mask_ptr, out_ptr, scale, keys, rows, queries, mask_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    head = tl.program_id(1)
    robot = tl.program_id(2)
    key = tl.arange(0, BLOCK)
    place = ((robot * tl.num_programs(1) + head) * rows + row) * keys + key
    seen = tl.load(mask_ptr + robot * mask_stride + (row % queries) * keys + key, mask=key < keys, other=0) != 0
    scores = tl.load(scores_ptr + place, mask=seen, other=0.0).to(tl.float32) * scale
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    weights = weights / tl.sum(weights, 0)
    tl.store(out_ptr + place, weights.to(out_ptr.dtype.element_ty), mask=key < keys)


def masked_softmax_triton(scores: Tensor, mask: Tensor, scale: float, out: Tensor) -> None:
    """Same contract as the reference, in one launch; all contiguous but for the robots of the mask."""
    batch, heads, rows, keys = scores.shape
    _masked_softmax_kernel[(rows, heads, batch)](
        scores,
        mask,
        out,
        scale,
        keys,
        rows,
        mask.shape[1],
        mask.stride(0),
        BLOCK=triton.next_power_of_2(keys),
        num_warps=4 if keys > 256 else 1,
    )


MASKED_SOFTMAX = Op("masked_softmax", masked_softmax_reference, masked_softmax_triton)
