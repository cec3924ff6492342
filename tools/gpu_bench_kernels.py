"""Checks and times the kernels on one CUDA device: python tools/gpu_bench_kernels.py [--only SECTION ..] [--json FILE]

Needs torch and Triton, nothing else of this repository installed. Every section checks results against the plain
formula before it times anything; times are medians over replays of a CUDA graph, in microseconds unless named _ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def link_packages() -> None:
    """Makes the kernels and the test models importable from a plain checkout."""
    links = Path(tempfile.mkdtemp())
    (links / "phyai_kernels").symlink_to(ROOT / "kernels", target_is_directory=True)
    sys.path[:0] = [str(links), str(ROOT / "test"), str(ROOT / "tools")]


def main() -> None:
    """Runs the chosen sections and prints one JSON object; a section that fails is reported, the rest still runs."""
    link_packages()
    from gpu_bench import SECTIONS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import triton

    report: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    failed = False
    for name in options.only:
        start = time.perf_counter()
        try:
            report[name] = SECTIONS[name]()
        except (AssertionError, RuntimeError, ValueError, ImportError) as error:
            report[name], failed = {"error": f"{type(error).__name__}: {error}"[:2000]}, True
        print(f"{name}: {json.dumps(report[name])} ({time.perf_counter() - start:.0f} s)", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    main()
