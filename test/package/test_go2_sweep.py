"""Guards against: a table that counts falls as slow walks, or hides them in a mean."""

from __future__ import annotations

import pytest

from package.source_tree import ROOT


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import go2_latency_sweep

    yield go2_latency_sweep


def test_falls_count_as_falls_and_not_in_the_speed(sweep):
    assert sweep.describe(5.0, [0.8, 0.0, 0.6]) == "| 5 ms | 2 of 3 | 0.70 m/s | 0.60 m/s |"
    assert sweep.describe(7.5, [0.0, 0.0]) == "| 7.5 ms | 0 of 2 | - | - |"


def test_the_page_shows_each_delay_of_the_sweep(sweep):
    page = (ROOT / "docs" / "models.md").read_text()
    assert sweep.HEAD in page and "python tools/go2_latency_sweep.py" in page
    assert all(f"| {delay:g} ms | " in page for delay in sweep.DELAYS_MS)
