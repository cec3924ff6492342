"""Whether the robot may move: e-stop, deactivation, ownership, latched faults, pause and enable, in that order.

Each is a standing fault: the executor brakes, drops its epoch and needs fresh inputs afterwards. No ROS in here; times
are nanoseconds of the clock given with each call.
"""

from __future__ import annotations

from dataclasses import dataclass

from phyai_core.clock import NS_PER_S
from phyai_core.types import Fault, Reason

DISABLED = Fault(Reason.DISABLED, "waiting for ~/enable to be true")
CLOSING = Fault(Reason.INACTIVE, "the node is being deactivated")
PAUSED = Fault(Reason.PAUSED, "paused: call ~/pause with false, or send a goal to ~/run_policy")
ESTOP = Fault(Reason.ESTOP, "emergency stop: call ~/clear_estop once it is released")


@dataclass(frozen=True)
class Rules:
    """`enable_timeout_s` 0: ~/enable is heard once. `silent_estop`: fall silent at once instead of braking."""

    require_enable: bool = False
    enable_timeout_s: float = 0.0
    silent_estop: bool = False
    start_paused: bool = False  # as where goals of an action decide when to move


class Supervision:
    """Setters come from any thread, each a single assignment; the control thread asks with `fault`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._estop_pressed = self._estop_latched = False
        self._ownership: Fault | None = None
        self.begin()

    def begin(self) -> None:
        """For a new activation. An e-stop outlives it, as does what is known of the controllers."""
        self._closing, self._paused = False, self.rules.start_paused
        self._latched: Fault | None = None
        self._enabled = not self.rules.require_enable
        self._enabled_until_ns = 0

    def fault(self, now_ns: int) -> Fault | None:
        """Why the robot must not move now."""
        if self._estop_latched:
            return ESTOP
        if self._closing:
            return CLOSING
        standing = self._ownership or self._latched or (PAUSED if self._paused else None)
        return standing or self._enable_fault(now_ns)

    def is_silent(self, fault: Fault | None) -> bool:
        """Whether not even a braking command may be sent: another may own the robot now."""
        if fault is None:
            return False
        return fault.reason is Reason.NOT_OWNER or (fault.reason is Reason.ESTOP and self.rules.silent_estop)

    def _enable_fault(self, now_ns: int) -> Fault | None:
        if not self.rules.require_enable:
            return None
        timeout_s = self.rules.enable_timeout_s
        if self._enabled and timeout_s and now_ns > self._enabled_until_ns:
            self._enabled = False  # only a new true counts
            return Fault(Reason.DISABLED, f"~/enable was not repeated within {timeout_s:g} s (stop.enable_timeout_s)")
        return None if self._enabled else DISABLED

    # --- each returns whether this begins a new epoch -----------------------------------------------------------------

    def enable(self, enabled: bool, now_ns: int) -> bool:
        """A message on ~/enable. True also releases latched faults: someone looks at the robot."""
        if not self.rules.require_enable:
            return False
        self._enabled_until_ns = now_ns + round(self.rules.enable_timeout_s * NS_PER_S)
        changed, self._enabled = enabled != self._enabled, enabled
        if changed and enabled:
            self._latched = None
        return changed

    def pause(self, paused: bool) -> bool:
        changed, self._paused = paused != self._paused, paused
        return changed

    def press_estop(self, pressed: bool) -> bool:
        """A message of the e-stop. Pressing latches; releasing alone changes nothing."""
        self._estop_pressed = pressed
        changed = pressed and not self._estop_latched
        self._estop_latched = self._estop_latched or pressed
        return changed

    def clear_estop(self) -> str:
        """Release the latch. Returns why not, or an empty text."""
        if self._estop_pressed:
            return "the e-stop is still pressed"
        self._estop_latched = False
        return ""

    def latch(self, fault: Fault) -> bool:
        """A fault that stays until ~/reset, a new ~/enable or a new activation."""
        changed, self._latched = self._latched is None, self._latched or fault
        return changed

    def release(self) -> None:
        """~/reset: forget a latched fault."""
        self._latched = None

    def own(self, fault: Fault | None) -> bool:
        """What the controller manager says: None while all our controllers are active."""
        changed, self._ownership = (fault is None) != (self._ownership is None), fault
        return changed

    def close(self) -> None:
        self._closing = True
