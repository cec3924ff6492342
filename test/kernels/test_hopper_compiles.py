"""Guards against: kernels for Hopper, and those of the delta rule, that no longer compile with the installed Triton, or
need more shared memory than a thread block may have. Without a GPU: a driver reports an H200 and launches nothing.

As a program it compiles each at the sizes of pi0.5 or MiniCPM and prints how many there were.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MAX_SHARED_BYTES = 232448


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests run these kernels")
def test_every_hopper_kernel_compiles():
    pytest.importorskip("triton.experimental.gluon")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) >= 20


class NullDriver:
    """What Triton asks of a driver; loading and launching do nothing."""

    class utils:
        """Device properties and binaries."""

        @staticmethod
        def get_device_properties(device):
            return {"max_shared_mem": MAX_SHARED_BYTES, "multiprocessor_count": 132, "warpSize": 32}

        @staticmethod
        def load_binary(*_):
            compiled.append(True)
            return None, 1, 0, 0, 1024

    def __init__(self, target):
        self._target = target

    def launcher_cls(self, *_):
        return lambda *_args, **_options: None

    def get_current_target(self):
        return self._target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


compiled: list[bool] = []


def compile_all():
    """Calls everything once; the arguments are of the right types and sizes, their values do not matter."""
    from expert_model import FULL, RandomExpert
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from phyai_kernels.dense import Scales
    from phyai_kernels.dense_hopper import FP8, dense_hopper
    from phyai_kernels.expert_loop_hopper import HopperExpertLoop
    from phyai_kernels.expert_weights import Mixing
    from phyai_kernels.gated_delta_chunks import gated_delta_triton
    from phyai_kernels.image_attention_hopper import image_attention_hopper
    from phyai_kernels.prefix_attention_hopper import prefix_attention_hopper
    from phyai_kernels.prefix_qkv_hopper import prefix_qkv_hopper

    driver.set_active(NullDriver(GPUTarget("cuda", 90, 32)))
    sizes = dataclasses.replace(FULL, depth=1, steps=1)
    expert = RandomExpert(sizes, torch.bfloat16, "cpu")
    weights = expert.packed()
    HopperExpertLoop(weights, expert.inputs(weights, [968], chunk=50, capacity=1018)).run()
    mixing = Mixing(torch.zeros(FULL.width, FULL.width, dtype=torch.bfloat16), torch.ones(2, FULL.width))
    weights = dataclasses.replace(weights, mixing=mixing)  # pi0: a state token before the chunk
    inputs = dataclasses.replace(expert.inputs(weights, [968], chunk=51, capacity=1019), lead=1)
    HopperExpertLoop(weights, inputs).run()

    def make(*shape, dtype=torch.bfloat16):
        return torch.zeros(*shape, dtype=torch.float32).to(dtype)

    queries, keys = make(1, 968, 2048), make(1, 1024, 256)
    prefix_attention_hopper(queries, keys, keys, torch.zeros(1, dtype=torch.int32), queries)
    dense_hopper(make(968, 128), make(33024, 128), make(968, 16512), geglu=True)
    dense_hopper(make(968, 128), make(256, 128), make(968, 256))
    scales = Scales(make(968, dtype=torch.float32), make(33024, dtype=torch.float32))
    dense_hopper(make(968, 128, dtype=FP8), make(33024, 128, dtype=FP8), make(968, 16512), geglu=True, scales=scales)
    rotary, scales = make(2, 968, 128, dtype=torch.float32), Scales(scales.x, scales.weight[:2560])
    prefix_qkv_hopper(make(968, 128), make(2560, 128), None, rotary, queries, keys, keys)
    operands = make(968, 128, dtype=FP8), make(2560, 128, dtype=FP8)
    prefix_qkv_hopper(*operands, scales, rotary, queries, keys, keys)
    image_attention_hopper(make(768, 3456), 3, 16, make(768, 1152))
    for dtype in (torch.bfloat16, torch.float32):
        heads, rates = make(1, 250, 16, 128, dtype=dtype), make(1, 250, 16, dtype=dtype)
        constants, state = (make(16, dtype=torch.float32),) * 2, make(1, 16, 128, 128, dtype=torch.float32)
        gated_delta_triton(heads, heads, heads, rates, rates, *constants, state, heads)


if __name__ == "__main__":
    compile_all()
    print(len(compiled))
