"""Guards against: a soak run that calls growth flat, or what comes and goes growth."""

from __future__ import annotations

import dataclasses

import pytest

from package.source_tree import ROOT


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import soak

    yield soak


def make_run(soak, **growth: float) -> list:
    start = {"memory_bytes": 400 << 20, "threads": 25, "files": 23, "shm_files": 12}
    names = {field.name for field in dataclasses.fields(soak.Sample)}
    samples = []
    for i in range(40):
        values = dict.fromkeys(names, 0) | start | {"time_s": i * 5.0, "chunks": 10 * i}
        values |= {name: start[name] + round(rate * i) for name, rate in growth.items()}
        samples.append(soak.Sample(**values))
    return samples


def test_a_flat_run_passes_and_growth_is_named(soak):
    assert soak.judge(make_run(soak)) == []
    assert soak.judge(make_run(soak, memory_bytes=20_000)) == []  # less than caches take
    for name, rate in {"memory_bytes": 2 << 20, "threads": 0.2, "files": 0.5, "shm_files": 0.2}.items():
        (problem,) = soak.judge(make_run(soak, **{name: rate}))
        assert problem.startswith(f"{name} grew from")


def test_a_run_that_stood_still_or_was_short_is_no_proof(soak):
    still = [dataclasses.replace(sample, chunks=3) for sample in make_run(soak)]
    assert soak.judge(still) == ["no chunks were executed"]
    assert "too short" in soak.judge(make_run(soak)[:5])[0]


def test_the_page_shows_the_beginning_the_middle_and_the_end(soak):
    page = soak.describe(make_run(soak), [])
    assert page.count("\n| ") == 4 and "stayed flat" in page
