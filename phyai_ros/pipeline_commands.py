"""What other threads may ask of a running pipeline. Each change begins an epoch: brake, then plan from fresh inputs."""

from __future__ import annotations

from collections.abc import Callable

from phyai_core.executor import RtcExecutor
from phyai_core.types import Fault, Reason
from phyai_ros.mailbox import Mailbox
from phyai_ros.supervision import CLOSING, Supervision

HANDING_OVER = Fault(Reason.PAUSED, "going back to shadow mode")


class PipelineCommands:
    """The part of a pipeline that is for ROS callbacks. Everything here returns at once."""

    supervision: Supervision
    _executor: RtcExecutor
    _inputs: Mailbox
    _ros_now_ns: Callable[[], int]
    _wanted_live: bool
    _closing: bool

    def enable(self, enabled: bool) -> None:
        """The deadman: False brakes and drops the epoch, True starts over from observations made after this call."""
        if self.supervision.enable(enabled, self._ros_now_ns()):
            reason = Reason.RESET if enabled else Reason.DISABLED
            self._start_over(reason, "~/enable went " + str(enabled).lower())

    def pause(self, paused: bool) -> None:
        """Brake and wait, or start over from observations made after this call."""
        if self.supervision.pause(paused):
            self._start_over(Reason.PAUSED if paused else Reason.RESET, "paused" if paused else "resumed")

    def press_estop(self, pressed: bool) -> None:
        """A message of the e-stop: pressing latches."""
        if self.supervision.press_estop(pressed):
            self._start_over(Reason.ESTOP, "emergency stop")

    def clear_estop(self) -> str:
        """Release the e-stop. Returns why not, or an empty text."""
        refusal = self.supervision.clear_estop()
        if not refusal:
            self._start_over(Reason.RESET, "the e-stop was cleared")
        return refusal

    def own(self, fault: Fault | None) -> None:
        """Whether all our controllers are active (None) or why not."""
        if self.supervision.own(fault):
            self._start_over(
                Reason.NOT_OWNER if fault else Reason.RESET, fault.text if fault else "the controller is ours"
            )

    def stop_for(self, fault: Fault) -> None:
        """Brake, and stay until someone resets it."""
        if self.supervision.latch(fault):
            self._start_over(fault.reason, fault.text)

    def take_over(self, live: bool) -> None:
        """Out of shadow mode, or back into it."""
        self._wanted_live = live
        self._start_over(Reason.RESET, "taking over" if live else HANDING_OVER.text)

    def reset(self, reason: Reason, text: str) -> None:
        """New epoch: brake, and wait for observations newer than now. Latched faults are forgotten."""
        self.supervision.release()
        self._start_over(reason, text)

    def fail_tick(self, error: Exception) -> None:
        """A tick raised. That is a defect; the next tick brakes."""
        self._executor.reset(Reason.INTERNAL, f"control tick raised {type(error).__name__}: {error}")

    def close(self) -> None:
        """Brake; `rested` is set when the reference has come to rest."""
        self._closing = True
        self.supervision.close()
        self._executor.reset(CLOSING.reason, CLOSING.text)

    def _start_over(self, reason: Reason, text: str) -> None:
        self._inputs.require_newer_than(self._ros_now_ns())
        self._executor.reset(reason, text)
