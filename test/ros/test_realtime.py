"""Real-time settings are optional.

Guards against: a node that fails because the user lacks a permission, a refusal that nobody hears of, and a process
left changed after deactivation.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from phyai_ros import realtime
from phyai_ros.realtime import RealtimeScope


def settings(**changes):
    fields = {"priority": 0, "switch_interval_s": 1e-4, "lock_memory": False, "affinity": ()}
    return SimpleNamespace(**{**fields, **changes})


@pytest.fixture
def scope_of():
    scopes = []

    def make(**changes):
        scopes.append(RealtimeScope(settings(**changes)))
        return scopes[-1]

    yield make
    for scope in scopes:
        scope.close()


def refuse(*_):
    raise PermissionError(1, "Operation not permitted")


def test_switch_interval_and_garbage_are_put_back(scope_of):
    before = sys.getswitchinterval()
    scope = scope_of(switch_interval_s=2e-4)
    assert sys.getswitchinterval() == pytest.approx(2e-4)
    assert gc.get_freeze_count() > 0 and gc.isenabled()
    scope.close()
    assert sys.getswitchinterval() == before
    assert gc.get_freeze_count() == 0


def test_defaults_ask_for_nothing_that_needs_permission(scope_of, monkeypatch):
    for name in ("sched_setscheduler", "sched_setaffinity"):
        monkeypatch.setattr(os, name, refuse)
    scope = scope_of()
    scope.enter_control_thread()
    assert scope.warnings == {}


def test_what_is_refused_becomes_a_sentence_with_the_fix(scope_of, monkeypatch):
    for name in ("sched_setscheduler", "sched_setaffinity"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(realtime.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(realtime.resource, "getrlimit", lambda _: (65536, 65536))
    scope = scope_of(priority=80, lock_memory=True, affinity=(1,))
    scope.enter_control_thread()
    assert sorted(scope.warnings) == ["realtime.affinity", "realtime.lock_memory", "realtime.priority"]
    assert "rtprio 80" in scope.warnings["realtime.priority"]
    assert "usable are" in scope.warnings["realtime.affinity"]
    assert "memlock unlimited" in scope.warnings["realtime.lock_memory"]


def test_a_system_without_the_call_is_told_apart(scope_of, monkeypatch):
    monkeypatch.delattr(os, "sched_setscheduler")
    scope = scope_of(priority=1)
    scope.enter_control_thread()
    assert "this system has no sched_setscheduler" in scope.warnings["realtime.priority"]


def test_priority_and_cores_are_those_of_the_control_thread_only(scope_of):
    core = min(os.sched_getaffinity(0))
    before = os.sched_getscheduler(0), os.sched_getaffinity(0)
    scope, seen = scope_of(priority=1, affinity=(core,)), []

    def run():
        scope.enter_control_thread()
        seen.append((os.sched_getscheduler(0), os.sched_getaffinity(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    scheduler, cores = seen[0]
    assert scheduler == os.SCHED_FIFO or "realtime.priority" in scope.warnings
    assert cores == {core}
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before
