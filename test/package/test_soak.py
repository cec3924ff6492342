"""Guards against: a soak run that calls growth flat, what comes and goes growth, or lost deadlines kept ones."""

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
        values |= {"ticks": 125 * i, "tick_error_p99_s": 0.004}
        values |= {name: values[name] + round(rate * i) for name, rate in growth.items()}
        samples.append(soak.Sample(**values))
    return samples


def test_a_flat_run_passes_and_growth_is_named(soak):
    assert soak.judge(make_run(soak)) == []
    assert soak.judge(make_run(soak, memory_bytes=20_000)) == []  # less than caches take
    for name, rate in {"memory_bytes": 2 << 20, "threads": 0.2, "files": 0.5, "shm_files": 0.2}.items():
        (problem,) = soak.judge(make_run(soak, **{name: rate}))
        assert problem.startswith(f"{name} grew from")


def test_deadlines_count_where_more_than_a_few_are_lost(soak):
    assert soak.judge(make_run(soak, missed_ticks=1.0, starved_ticks=1.0)) == []
    for name in ("missed_ticks", "starved_ticks"):
        (problem,) = soak.judge(make_run(soak, **{name: 2.0}))
        assert problem == f"{name}: 58 of 3625, allowed 1%"


def test_a_loop_that_gets_less_punctual_is_named(soak):
    samples = make_run(soak)
    late = [dataclasses.replace(s, tick_error_p99_s=0.03 if s.time_s > 150 else 0.004) for s in samples]
    assert soak.judge(late) == ["tick_error_p99 grew from 4.0 to 30.0 ms"]


def test_a_run_that_stood_still_or_was_short_is_no_proof(soak):
    still = [dataclasses.replace(sample, chunks=3) for sample in make_run(soak)]
    assert soak.judge(still) == ["no chunks were executed"]
    assert "too short" in soak.judge(make_run(soak)[:5])[0]


def test_the_page_shows_the_beginning_the_middle_and_the_end(soak):
    page = soak.describe(make_run(soak), [])
    assert page.count("\n| ") == 4 and "stayed flat" in page
