"""Measures whole policies on one CUDA device: python tools/gpu_bench_policies.py OUT [--only CASE ..]

Needs torch, Triton, safetensors, typer and rich; nothing of this repository installed. Each case is one run of
`phyai-ros bench` in a process of its own, and its figures are written to OUT/<case>.json. A case that fails is
reported, the rest still runs. The table of docs/runtime.md is what this prints last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"phyai_core": "phyai_core", "phyai_ros": "phyai_ros", "adapters": "phyai_adapters", "kernels": "phyai_kernels"}
LIMIT_S = 240
RANDOM = ("--random-weights", "--device", "cuda")
MINICPM = ("--adapter", "minicpm", "--cameras", "2", "--prompt-tokens", "64")
CASES = {
    "pi05_3x200": ("--adapter", "pi05", "--batch", "8", "--process", "--against-float32", *RANDOM),
    "pi05_3x200_fp8": ("--adapter", "pi05", "--batch", "2", "--fp8-prefix", "--against-float32", *RANDOM),
    "pi05_3x200_methods": ("--adapter", "pi05", "--batch", "8", "--no-fused", *RANDOM),
    "pi0_3x200": ("--adapter", "pi0", *RANDOM),
    "pi05_3x200_compiled": ("--adapter", "pi05", "--no-fused", "--compile", *RANDOM),
    "pi05_2x48": ("--adapter", "pi05", "--cameras", "2", "--prompt-tokens", "48", *RANDOM),
    "pi0_3x48": ("--adapter", "pi0", "--prompt-tokens", "48", "--against-float32", *RANDOM),
    "pi0_3x48_methods": ("--adapter", "pi0", "--prompt-tokens", "48", "--no-fused", *RANDOM),
    "smolvla_2x48": ("--adapter", "smolvla", "--cameras", "2", "--prompt-tokens", "48", *RANDOM),
    "groot_2x64": ("--adapter", "groot", "--cameras", "2", "--prompt-tokens", "64", *RANDOM),
    "smolvla_2x48_compiled": ("--adapter", "smolvla", "--cameras", "2", "--prompt-tokens", "48", "--compile", *RANDOM),
    "groot_2x64_compiled": ("--adapter", "groot", "--cameras", "2", "--prompt-tokens", "64", "--compile", *RANDOM),
    "minicpm_2x64": (*MINICPM, "--against-float32", *RANDOM),
    "minicpm_2x64_bf16": (*MINICPM, "--dtype", "bf16", *RANDOM),
    "pi05_checkpoint": ("--adapter", "pi05", "--device", "cuda", "--process"),
}
WRITE = (
    "import sys, torch; from pathlib import Path; from phyai_adapters.random_policies import write_checkpoint; "
    "print(write_checkpoint('pi05', Path(sys.argv[1]), torch.device('cuda')))"
)


def make_environment(folder: Path) -> dict[str, str]:
    """Variables under which the packages of a plain checkout can be imported."""
    for source, name in NAMES.items():
        (folder / name).symlink_to(ROOT / source, target_is_directory=True)
    path = [str(folder), str(ROOT / "test"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part)}


def run(arguments: list[str], environment: dict[str, str]) -> bool:
    """One process; its output goes through. False when it failed or took too long."""
    started = time.perf_counter()
    try:
        code = subprocess.run([sys.executable, *arguments], env=environment, timeout=LIMIT_S, cwd=ROOT).returncode
    except subprocess.TimeoutExpired:
        code = f"none after {LIMIT_S} s"
    print(f"-- {arguments[-1]}: exit code {code}, {time.perf_counter() - started:.0f} s", flush=True)
    return code == 0


def run_case(name: str, out: Path, scratch: Path, environment: dict[str, str]) -> bool:
    arguments = [*CASES[name]]
    if name == "pi05_checkpoint":
        if not run(["-c", WRITE, str(scratch / name)], environment):
            return False
        evict(scratch / name / "model.safetensors")
        arguments += ["--checkpoint", str(scratch / name)]
    return run(["-m", "phyai_ros.cli.main", "bench", *arguments, "--json", str(out / f"{name}.json")], environment)


def evict(file: Path) -> None:
    """Drop a file from the page cache, so that what reads it next reads the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def table(out: Path) -> str:
    """The cases that ran, in milliseconds, as Markdown."""
    lines = ["| case | row | p50 | p99 | max | device p50 | floor |", "|---|---|---|---|---|---|---|"]
    for name in CASES:
        file = out / f"{name}.json"
        report = json.loads(file.read_text()) if file.is_file() else {"rows": {}}
        for row, figures in report["rows"].items():
            wall, floor = figures["wall_ms"], f"{report['floor']['ms']:.2f}" if "batch" not in row else ""
            device = figures["device_ms"]["p50"]
            numbers = " | ".join(f"{value:.2f}" for value in (wall["p50"], wall["p99"], wall["max"], device))
            lines.append(f"| {name} | {row} | {numbers} | {floor} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "packages").mkdir()
        environment = make_environment(scratch / "packages")
        passed = [run_case(name, options.out, scratch, environment) for name in options.only]
    print(table(options.out))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
