"""The files of a replay in the folder of --out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phyai_ros.replay.figures import plain
from phyai_ros.replay.replay_run import ReplayResult
from phyai_ros.replay.report import Report
from phyai_ros.replay.report_page import write_page


def write_files(report: Report, folder: Path) -> list[Path]:
    """Everything about a replay into `folder`; returns the paths. timings.jsonl alone holds wall times."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "report.json", folder / "report.html"]
    report.write_json(paths[0])
    write_page(report, paths[1])
    if report.result is not None:
        paths += [folder / "actions.csv", folder / "timings.jsonl"]
        report.result.log.write(paths[2])
        paths[3].write_text("".join(json.dumps(line) + "\n" for line in _timing_lines(report.result)))
    return paths


def _timing_lines(result: ReplayResult) -> Sequence[dict[str, Any]]:
    return [
        plain(
            {
                "seq": inference.request.seq,
                "tick": inference.request.base_tick,
                "l_inference": inference.measured_s,
                "logical": inference.latency_s,
                **{f"l_{name}": seconds for name, seconds in inference.stages_s.items()},
            }
        )
        for inference in result.inferences
    ]
