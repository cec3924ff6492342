"""Recorded inferences on a CUDA device, where the engine runs one captured graph. Guards against: kernels, precisions
and library choices there that make another policy of the same weights (TF32 in convolutions did)."""

from __future__ import annotations

import shutil

import pytest
import torch
from pi_goldens import MODELS, edit_json

from phyai_ros.cli.verify import run_checks

FOLDERS = {"groot": "groot_n1_7", "minicpm": "minicpm_v46_backbone"}
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("kind", ["act", "diffusion", "groot", "minicpm", "smolvla"])
def test_float32_is_the_recorded_inference(tmp_path, kind):
    source = MODELS / FOLDERS.get(kind, kind)
    folder = shutil.copytree(source, tmp_path / kind)
    if kind not in ("act", "diffusion"):  # these are always float32
        edit_json(folder / "phyai.json", dtype="float32")
    checks, allowed = run_checks(folder, source, "", "cuda", None)
    assert [check for check in checks if not check.ok] == [], allowed
    assert len(checks) > 5


@pytest.mark.parametrize("kind", ["groot", "minicpm", "smolvla"])
def test_bfloat16_stays_near_it(kind):
    """The recorded networks are tiny, so that rounding weighs more than at full size."""
    source = MODELS / FOLDERS.get(kind, kind)
    checks, allowed = run_checks(source, source, "", "cuda", None)
    assert allowed.startswith("relative")
    assert max(check.relative for check in checks) < 0.1, checks
