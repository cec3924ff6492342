"""Attention by FlashInfer, where it is installed: its FA2 and FA3 kernels, masked by a length read on the device.

    out[t, n] = softmax(q[t, n] k^T / sqrt(K)) v    over keys 0 .. length + more - 1, for one robot

FlashInfer's own interfaces want lengths on the host, which a captured graph cannot follow. So its kernels are compiled
here with a variant of ours, once per type and head size, by nvcc: a minute at the first call, then from its cache.
"""

from __future__ import annotations

import math
import os
import shutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128, 256)
TEMPORARY_BYTES = 32 << 20  # FA2 keeps the parts of split keys there
# FlashInfer's codes. FA2 asks the variant about every tile of keys only where a mask is announced.
MASK_MODES, HEADS_INSIDE = {"fa2": 2, "fa3": 0}, 0  # [tokens, heads, K]

# In both, params holds what `_compile` declares: length (a pointer), more and sm_scale.
MASK_FA2 = """
struct UpToLength : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t window_left, qo_len, kv_len;
  float sm_scale_log2;
  template <typename Params>
  __device__ __host__ UpToLength(const Params& params, uint32_t batch, uint8_t*) {
    qo_len = params.get_qo_len(batch);
    kv_len = params.get_kv_len(batch);
    window_left = kv_len;
    sm_scale_log2 = params.sm_scale * math::log2e;
  }
  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx,
                       { return int64_t(kv_idx) < *params.length + params.more; })
};
"""
MASK_FA3 = """
struct UpToLength {
  float sm_scale_log2;
  int end;
  template <typename MainloopParams, typename BlockCoord>
  __device__ UpToLength(const MainloopParams& params, const BlockCoord&) {
    sm_scale_log2 = params.additional_params.sm_scale * math::log2e;
    end = *params.additional_params.length + int(params.additional_params.more);
  }
  template <int ROWS>
  __device__ auto GetAttentionUpdater() { return OnlineSoftmax<ROWS, true>(sm_scale_log2); }
  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx,
                            { return kv_idx < end ? logits : -math::inf; })
};
"""
VARIANTS = {"fa2": MASK_FA2, "fa3": MASK_FA3}


def refuse_flashinfer(backend: str, device: torch.device, queries: Tensor, keys: Tensor) -> str | None:
    """Why FlashInfer's `backend` (fa2 or fa3) cannot take queries [.., N K] over keys [B, C, K], or None."""
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if queries.dtype not in DTYPES or keys.shape[-1] not in HEAD_DIMS:
        dims = ", ".join(map(str, HEAD_DIMS))
        return f"takes float16 or bfloat16 heads of {dims}, not {queries.dtype} heads of {keys.shape[-1]}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0) or (backend == "fa3" and capability != (9, 0)):
        wanted = "9.0 (Hopper)" if backend == "fa3" else "8.0 or more"
        return f"needs compute capability {wanted}, this is {capability[0]}.{capability[1]}"
    if isinstance(found := _import(), str):
        return found
    return None if _has_compiler() else "it compiles its kernels at first use and finds no nvcc (CUDA toolkit)"


def attend_flashinfer(
    backend: str, queries: Tensor, keys: Tensor, values: Tensor, length: Tensor, out: Tensor, more: int = 0
) -> None:
    """Fills out [B, T, N K] from queries of that shape; keys, values [B, C, K]; length [B] int32 on the device."""
    batch, _, width = queries.shape
    head_dim = keys.shape[-1]
    run = _compile(backend, queries.dtype, head_dim).run
    heads = (width // head_dim, head_dim)
    temporary = torch.empty(TEMPORARY_BYTES, dtype=torch.uint8, device=queries.device)
    for robot in range(batch):
        run(
            queries[robot].unflatten(-1, heads),
            keys[robot].unsqueeze(1),
            values[robot].unsqueeze(1),
            temporary,
            out[robot].unflatten(-1, heads),
            None,
            MASK_MODES[backend],
            HEADS_INSIDE,
            -1,  # no window
            length[robot : robot + 1],
            more,
            1.0 / math.sqrt(head_dim),
        )


@cache
def _import() -> Any:
    """FlashInfer's attention generators, or a sentence saying why not. Importing takes seconds, so it comes late."""
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed"
    try:
        return import_module("flashinfer.jit.attention")
    except ImportError as error:
        return f"FlashInfer cannot be imported ({error})"


def _has_compiler() -> bool:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return any(shutil.which(place) for place in ("nvcc", *(f"{home}/bin/nvcc" for home in homes if home)))


@cache
def _compile(backend: str, dtype: torch.dtype, head_dim: int) -> Any:
    """The loaded kernels; compiled if FlashInfer's cache does not hold them."""
    name = f"phyai_up_to_length_{backend}_{str(dtype).removeprefix('torch.')}_{head_dim}"
    kind = (dtype, dtype, dtype, head_dim, head_dim)
    declared = (["length"], ["int32_t"], ["more", "sm_scale"], ["int64_t", "double"])
    generate = _import().gen_customize_single_prefill_module
    return generate(backend, name, *kind, *declared, "UpToLength", VARIANTS[backend]).build_and_load()
