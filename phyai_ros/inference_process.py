"""Placement `process`: inference runs in a child process; a thread of the node waits for it.

When the child dies or hangs, the epoch ends at once: the robot brakes and stays at rest, and nothing that the child
computed is used. `restart` brings a fresh child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from phyai_core.child_process import ChildLost
from phyai_core.executor import RtcExecutor
from phyai_core.remote import RemoteEngine
from phyai_core.types import Reason
from phyai_ros.inference_thread import POLL_S, InferenceThread

WARM_UP_RUNS = 3


class InferenceProcess(InferenceThread):
    """Serves the requests of one executor, whose `infer` runs on `engine`, until stopped; the child lives on."""

    def __init__(self, executor: RtcExecutor, engine: RemoteEngine, log: Callable[[str], None]) -> None:
        """`log` hears of losses and restarts, in a sentence each."""
        super().__init__(executor)
        self._engine, self._log = engine, log
        self._restarting = threading.Event()
        self._reported = ""  # the loss that has ended an epoch already

    @property
    def alive(self) -> bool:
        """False once the child is lost, until it has been restarted."""
        return super().alive and self._engine.alive

    def restart(self) -> None:
        """Ask for a fresh child in place of a lost one; returns at once. Does nothing while the child is well."""
        if not self._engine.alive:
            self._restarting.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._restarting.is_set():
                self._restart()
            if self._executor.wait_for_request(POLL_S):
                self._executor.step_inference()
            self._watch()

    def _watch(self) -> None:
        """A loss ends the epoch once, whether it was met in an inference or between two."""
        try:
            self._engine.check()
        except ChildLost as loss:
            if self._reported != str(loss):
                self._reported = str(loss)
                self._executor.reset(Reason.POLICY_ERROR, str(loss))
                self._log(f"{loss}; call ~/reset to start it again")

    def _restart(self) -> None:
        try:
            self._engine.restart(WARM_UP_RUNS)
        except (ValueError, RuntimeError) as error:
            self._log(f"the policy process could not be started: {error}")
            return
        finally:
            self._restarting.clear()
        self._reported = ""
        self._executor.reset(Reason.RESET, "the policy process was restarted")
        self._log("the policy process was restarted")
