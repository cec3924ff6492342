"""Where kernels run under test: `where` is "cuda" on a GPU, "cpu" in Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is defined, so the interpreter needs a process of its own:
test_interpreter.py starts one, in which these same tests run; elsewhere their "interpreter" variants are left out.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request):
    """The device a kernel and its reference are compared on."""
    if request.param == "interpreter":
        return torch.device("cpu")
    if INTERPRETED or not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


def pytest_collection_modifyitems(config, items):
    """Keeps the interpreter variants for the interpreter's process, and only them there."""
    kept, dropped = [], []
    for item in items:
        variant = getattr(item, "callspec", None) and item.callspec.params.get("where")
        (kept if (variant == "interpreter") == INTERPRETED else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)
