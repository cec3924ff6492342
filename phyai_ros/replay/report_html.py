"""The report as one HTML file that needs nothing else: verdict first, then figures, findings, pictures, data."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from phyai_ros.replay.findings import Finding
from phyai_ros.replay.quality import QualityReport
from phyai_ros.replay.verdict import Verdict

DPI = 110
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; margin: 0; } h2 { font-size: 1.15em; margin: 2em 0 .4em; }
.verdict { border-left: 8px solid; padding: .8em 1.2em; background: #f7f7f7; }
.pass { border-color: #009E73; } .look { border-color: #E69F00; } .fail { border-color: #D55E00; }
table { border-collapse: collapse; font-size: .88em; } th, td { padding: .25em .8em .25em 0; text-align: left; }
th { border-bottom: 1px solid #999; font-weight: 600; } td { border-bottom: 1px solid #eee; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
.error { color: #B03A00; font-weight: 600; } .warning { color: #8A5A00; } .note { color: #555; }
.small { color: #666; font-size: .85em; }
"""


def render_page(title: str, verdict: Verdict, sections: Iterable[tuple[str, str]], about: Sequence[str]) -> str:
    """`sections` are (heading, HTML); `about` are lines of small print."""
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in verdict.sentences)
    body = "".join(f"<h2>{html.escape(heading)}</h2>{content}" for heading, content in sections if content)
    small = "".join(f"<div>{html.escape(line)}</div>" for line in about)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>"
        f'<div class="verdict {verdict.grade}"><h1>{html.escape(verdict.headline)}</h1>{sentences}</div>'
        f'{body}<h2>About this report</h2><div class="small">{small}</div></body></html>\n'
    )


def render_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Numbers are set to the right; what is not known is an empty cell."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>" if lines else ""


def render_findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>None.</p>"
    rows = "".join(
        f'<tr><td class="number">{finding.time_s:.3f}</td><td class="{finding.level}">{finding.level}</td>'
        f"<td>{html.escape(finding.topic)}</td><td>{html.escape(finding.text)}</td></tr>"
        for finding in findings
    )
    return f"<table><tr><th>bag time (s)</th><th></th><th>where</th><th>what</th></tr>{rows}</table>"


def render_figure(figure: Figure | None, text: str) -> str:
    """The figure inside the page, always the same bytes for the same content."""
    if figure is None:
        return ""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(text)}" src="data:image/png;base64,{data}"><p class="small">{html.escape(text)}</p>'


def render_quality(report: QualityReport) -> str:
    head = ("topic", "type", "messages", "rate (Hz)", "period p50 / p99 / max (ms)", "delay p50 / p99 (ms)", "pictures")
    rows = []
    for topic in report.topics:
        times = topic.times
        periods = join_ms(times.period_p50_s, times.period_p99_s, times.period_max_s)
        delays = join_ms(times.delay_p50_s, times.delay_p99_s)
        pictures = ", ".join(topic.formats)
        rows.append((topic.topic.name, topic.topic.type, topic.topic.count, times.rate_hz, periods, delays, pictures))
    return render_table(head, rows)


def join_ms(*seconds: float) -> str:
    """Milliseconds with slashes in between; empty where they are not known."""
    return "" if math.isnan(seconds[0]) else " / ".join(f"{1e3 * value:.1f}" for value in seconds)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "<td></td>"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{html.escape(str(value))}</td>"
    return f'<td class="number">{value if isinstance(value, int) else format(value, ".4g")}</td>'
