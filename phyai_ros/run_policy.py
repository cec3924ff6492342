"""The policy as an action: ~/run_policy with a prompt, a time limit, feedback and cancel.

One goal at a time, and only while the node is active. However a goal ends, the robot is paused: it brakes, falls silent
and begins a new epoch. The next goal, or ~/pause with false, goes on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.task import Future

from phyai_core.types import Reason
from phyai_ros.action import RunPolicy
from phyai_ros.msg import ControlTiming, PolicyStatus
from phyai_ros.pipeline import Pipeline

if TYPE_CHECKING:
    from rclpy.node import Node

ABORTING = frozenset(
    reason.value
    for reason in (
        Reason.ESTOP,
        Reason.NOT_OWNER,
        Reason.CONTROLLER,
        Reason.FOLLOWING_ERROR,
        Reason.STALLED,
        Reason.COLLISION,
        Reason.DISABLED,
        Reason.INTERNAL,
    )
)
STOPPED_LIMIT_S = 2.0  # stopped for so long by what may pass, as an input or the policy: the goal is given up


class PolicyAction:
    """`follow(status, timing)` is called with every status; it sends feedback and ends goals."""

    def __init__(
        self, node: Node, pipeline: Pipeline, set_prompt: Callable[[str], None], is_active: Callable[[], bool]
    ) -> None:
        self._node, self._pipeline, self._set_prompt, self._is_active = node, pipeline, set_prompt, is_active
        self._lock = threading.Lock()
        self._handle: Any = None
        self._done: Future | None = None
        self._began_s = self._stopped_since_s = math.nan
        self._chunks_before = 0
        self._ending: tuple[str, str] | None = None  # outcome and text, once the robot is being stopped
        self._server = ActionServer(
            node,
            RunPolicy,
            "~/run_policy",
            execute_callback=self._execute,
            goal_callback=self._judge_goal,
            cancel_callback=lambda handle: CancelResponse.ACCEPT,
        )

    def close(self) -> None:
        """Abort a running goal and stop serving."""
        self.abandon("the node was cleaned up")
        self._server.destroy()

    def abandon(self, text: str) -> None:
        """The node is being deactivated and has stopped the robot by itself."""
        if self._handle is not None:
            self._finish("aborted", text, 0)

    def follow(self, status: PolicyStatus, timing: ControlTiming | None) -> None:
        """One status of the node: feedback, and the end of a goal that is over, cancelled or cannot go on."""
        if self._handle is None or math.isnan(self._began_s):
            return
        elapsed_s = self._now_s() - self._began_s
        limit_s = self._handle.request.time_limit
        progress = min(1.0, elapsed_s / limit_s) if limit_s > 0 else math.nan
        feedback = RunPolicy.Feedback(elapsed=elapsed_s, progress=progress, status=status)
        feedback.timing = timing or feedback.timing
        self._handle.publish_feedback(feedback)
        if self._ending is None:
            self._ending = self._find_end(status, elapsed_s, limit_s)
            if self._ending is not None:
                self._pipeline.pause(True)
        elif self._pipeline.record is None or self._pipeline.record.resting:
            self._finish(*self._ending, status.chunks - self._chunks_before)

    def _find_end(self, status: PolicyStatus, elapsed_s: float, limit_s: float) -> tuple[str, str] | None:
        if self._handle.is_cancel_requested:
            return "cancelled", "the goal was cancelled"
        if limit_s > 0 and elapsed_s >= limit_s:
            return "finished", f"the time limit of {limit_s:g} s is over"
        if status.reason in ABORTING:
            return "aborted", status.text
        if status.state != "stopped":
            self._stopped_since_s = math.nan
        elif math.isnan(self._stopped_since_s):
            self._stopped_since_s = elapsed_s
        elif elapsed_s - self._stopped_since_s > STOPPED_LIMIT_S:
            return "aborted", f"stopped for {STOPPED_LIMIT_S:g} s: {status.text}"
        return None

    def _judge_goal(self, goal: RunPolicy.Goal) -> GoalResponse:
        with self._lock:
            free = self._is_active() and self._done is None and math.isfinite(goal.time_limit) and goal.time_limit >= 0
            if free:
                self._done = Future()
        return GoalResponse.ACCEPT if free else GoalResponse.REJECT

    async def _execute(self, handle: Any) -> RunPolicy.Result:
        self._handle, self._ending, self._stopped_since_s = handle, None, math.nan
        self._began_s, self._chunks_before = self._now_s(), self._pipeline.chunks
        if handle.request.prompt:
            self._set_prompt(handle.request.prompt)
        self._pipeline.pause(False)
        self._pipeline.reset(Reason.RESET, "a goal was accepted")
        return await self._done

    def _finish(self, outcome: str, text: str, chunks: int) -> None:
        result = RunPolicy.Result(outcome=outcome, text=text, duration=self._now_s() - self._began_s, chunks=chunks)
        handle, self._handle, self._began_s = self._handle, None, math.nan
        end = {"finished": handle.succeed, "cancelled": handle.canceled, "aborted": handle.abort}[outcome]
        end()
        done, self._done = self._done, None
        done.set_result(result)

    def _now_s(self) -> float:
        return self._node.get_clock().now().nanoseconds * 1e-9
