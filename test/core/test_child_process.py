"""Guards against: a child that hangs, stops or dies unnoticed, that is given up though it only takes its time, that is
heard after it was given up, and that outlives its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from phyai_core.child_process import ChildLost, ChildProcess

LONG_S = 30.0


@contextmanager
def echo_child(first="beat", beat_within_s=LONG_S):
    child = ChildProcess("core.echo_child", (), beat_within_s)
    try:
        child.send(first)
        assert child.receive(LONG_S, watch_heartbeat=False) == "ready"
        yield child
    finally:
        child.close()


def wait_until(condition, within_s=LONG_S):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def expect_loss(child, text, **receive):
    """The child is lost, killed, and stays lost."""
    started = time.monotonic()
    with pytest.raises(ChildLost, match=text):
        child.receive(**receive)
    assert not child.alive and gone(child.pid)
    for call in (child.check, lambda: child.send(("echo", 1)), lambda: child.receive(LONG_S, True)):
        with pytest.raises(ChildLost, match=text):
            call()
    return time.monotonic() - started


def test_messages_come_back_and_closing_ends_the_child():
    with echo_child() as child:
        for value in (1, "text", {"stage": 0.5}):
            child.send(("echo", value))
            assert child.receive(LONG_S, True) == value
        child.check()
        assert child.alive
    assert gone(child.pid)


@pytest.mark.parametrize("expected_s", [0.0, 0.04, LONG_S])
def test_a_stopped_child_is_noticed_by_its_heartbeat_and_killed(expected_s):
    with echo_child(beat_within_s=0.5) as child:
        child.send(("sleep", LONG_S))
        assert child.receive(LONG_S, True) == "asleep"
        os.kill(child.pid, signal.SIGSTOP)
        wanted = {"within_s": LONG_S, "watch_heartbeat": True, "expected_s": expected_s}
        took_s = expect_loss(child, "no sign of life for 0.[5-9] s", **wanted)
        assert took_s < 10.0


def test_a_child_that_beats_but_does_not_answer_is_lost_at_the_deadline():
    with echo_child() as child:
        child.send(("sleep", LONG_S))
        assert child.receive(LONG_S, True) == "asleep"
        expect_loss(child, "not answered within 0.3 s", within_s=0.3, watch_heartbeat=True)


def test_a_child_that_takes_its_time_is_not_given_up():
    with echo_child(beat_within_s=5.0) as child:
        child.send(("sleep", 0.3))
        assert child.receive(LONG_S, True) == "asleep"
        assert child.receive(LONG_S, True) == 0.3


def test_a_killed_child_is_noticed_at_once():
    with echo_child() as child:
        child.send(("sleep", LONG_S))
        assert child.receive(LONG_S, True) == "asleep"
        os.kill(child.pid, signal.SIGKILL)
        assert expect_loss(child, "was ended by SIGKILL", within_s=LONG_S, watch_heartbeat=True) < 10.0


def test_a_death_between_messages_is_noticed_by_check_or_send():
    for notice in ("check", "send"):
        with echo_child() as child:
            child.send(("exit", 3))
            wait_until(lambda child=child: not child.alive)
            with pytest.raises(ChildLost, match="ended with exit code 3"):
                child.check() if notice == "check" else child.send(("echo", 1))


def test_a_child_that_does_not_listen_is_killed_on_close():
    with echo_child("still") as child:
        os.kill(child.pid, signal.SIGSTOP)
    assert gone(child.pid)


ORPHAN = """
import os, sys
from phyai_core.child_process import ChildProcess
child = ChildProcess("core.echo_child", (), 30.0)
child.send("beat")
child.receive(30.0, False)
child.send(("sleep", 3600))
child.receive(30.0, False)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_ends_with_its_parent_even_in_the_middle_of_its_work():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], env=environment, text=True, **pipes)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_until(lambda: gone(pid))
    parent.stdin.close(), parent.stdout.close()
