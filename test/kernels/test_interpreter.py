"""Guards against kernels that disagree with their references, on machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


FOLDER = Path(__file__).parent
FILES = sorted(file for file in FOLDER.glob("test_*.py") if file.name != Path(__file__).name)
PARTS = 4  # each in a process of its own, so that each stays well within the time limit of a test


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_agrees_with_its_reference_in_the_interpreter(part):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = [str(file) for file in FILES[part::PARTS]]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
