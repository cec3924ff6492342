"""Guards against: a tick that waits for its reporting, work lost at the end, one error that silences all reports."""

from __future__ import annotations

import threading

from phyai_ros.outbox import DEPTH, Outbox


def test_work_is_done_in_order_and_to_its_end():
    done, errors = [], []
    outbox = Outbox(errors.append)
    for number in range(20):
        outbox.put(lambda number=number: done.append(number))
    outbox.close()
    assert done == list(range(20)) and not errors


def test_an_error_is_told_and_the_next_work_done():
    done, errors = [], []
    outbox = Outbox(errors.append)
    outbox.put(lambda: 1 / 0)
    outbox.put(lambda: done.append(1))
    outbox.close()
    assert done == [1] and isinstance(errors[0], ZeroDivisionError)


def test_a_stuck_reader_costs_old_reports_and_never_the_tick():
    gate, done = threading.Event(), []
    outbox = Outbox(lambda error: None)
    outbox.put(gate.wait)
    for number in range(3 * DEPTH):
        outbox.put(lambda number=number: done.append(number))
    gate.set()
    outbox.close()
    assert done[-1] == 3 * DEPTH - 1 and len(done) <= DEPTH + 1
