"""Guards against: an e-stop that a restart or a release undoes, a deadman that is never missed, a pause or a fault
that ends by itself, the lesser reason shown, commands sent to a robot that another moves."""

from __future__ import annotations

from phyai_core.types import Fault, Reason
from phyai_ros.supervision import Rules, Supervision

S = 1_000_000_000
STUCK = Fault(Reason.FOLLOWING_ERROR, "elbow is stuck")
FOREIGN = Fault(Reason.NOT_OWNER, "the controller is inactive")


def reason(supervision: Supervision, now_ns: int = 0) -> Reason | None:
    fault = supervision.fault(now_ns)
    return fault.reason if fault else None


def test_without_rules_nothing_stands_in_the_way():
    supervision = Supervision(Rules())
    assert reason(supervision) is None
    assert not supervision.enable(False, 0)
    assert reason(supervision) is None


def test_enable_is_needed_each_time_and_changes_begin_epochs():
    supervision = Supervision(Rules(require_enable=True))
    assert reason(supervision) is Reason.DISABLED
    assert supervision.enable(True, 0) and not supervision.enable(True, 1)
    assert reason(supervision, 10**6 * S) is None  # no time-out: heard once
    supervision.begin()
    assert reason(supervision) is Reason.DISABLED


def test_a_deadman_that_is_not_repeated_stops_until_it_says_true_again():
    supervision = Supervision(Rules(True, enable_timeout_s=0.5))
    supervision.enable(True, 0)
    supervision.enable(True, S // 2)
    assert reason(supervision, S) is None
    assert "not repeated within 0.5 s" in supervision.fault(S + 1).text
    assert reason(supervision, S + 2) is Reason.DISABLED
    assert supervision.enable(True, 2 * S) and reason(supervision, 2 * S) is None


def test_an_estop_latches_and_is_cleared_only_when_released():
    supervision = Supervision(Rules())
    assert supervision.press_estop(True) and not supervision.press_estop(True)
    assert reason(supervision) is Reason.ESTOP
    assert "still pressed" in supervision.clear_estop()
    supervision.press_estop(False)
    supervision.begin()
    assert reason(supervision) is Reason.ESTOP
    assert supervision.clear_estop() == "" and reason(supervision) is None


def test_a_latched_fault_stays_until_someone_acts():
    for release in (lambda s: s.release(), lambda s: s.begin()):
        supervision = Supervision(Rules())
        assert supervision.latch(STUCK) and not supervision.latch(FOREIGN)
        assert supervision.fault(0) == STUCK
        release(supervision)
        assert reason(supervision) is None
    supervision = Supervision(Rules(require_enable=True))
    supervision.enable(True, 0)
    supervision.latch(STUCK)
    supervision.enable(False, 0)
    supervision.enable(True, 0)
    assert reason(supervision) is None


def test_the_weightiest_reason_is_shown():
    supervision = Supervision(Rules(require_enable=True))
    for step, expected in [
        (lambda: supervision.pause(True), Reason.PAUSED),
        (lambda: supervision.latch(STUCK), Reason.FOLLOWING_ERROR),
        (lambda: supervision.own(FOREIGN), Reason.NOT_OWNER),
        (lambda: supervision.close(), Reason.INACTIVE),
        (lambda: supervision.press_estop(True), Reason.ESTOP),
    ]:
        step()
        assert reason(supervision) is expected


def test_silence_is_for_foreign_robots_and_for_hardware_stops():
    estop = Fault(Reason.ESTOP, "")
    assert Supervision(Rules()).is_silent(FOREIGN)
    assert not Supervision(Rules()).is_silent(estop) and not Supervision(Rules()).is_silent(None)
    assert Supervision(Rules(silent_estop=True)).is_silent(estop)
