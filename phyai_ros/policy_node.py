"""The policy node: a ROS 2 lifecycle node around one `Session`.

configure: parameters, policy, warm-up, subscriptions. activate: control and inference threads; from here on it
publishes. deactivate: braking stop, then silence. cleanup: everything freed. A failed transition says why, leaves
nothing behind and can be tried again.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

import rclpy
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from phyai_ros.doctor.machine import check_machine
from phyai_ros.parameter_server import ParameterServer
from phyai_ros.session import Session
from phyai_ros.spinning import make_executor, spin_until, stop_on_signals

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class PolicyNode(LifecycleNode):
    """Runs one policy on one robot."""

    def __init__(self, **kwargs) -> None:
        super().__init__("policy", **kwargs)
        self._parameter_server = ParameterServer(self)
        self._session: Session | None = None

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("configure", self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        super().on_activate(state)
        return self._attempt("activate", self._session.activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        super().on_deactivate(state)
        return self._attempt("deactivate", self._session.deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("clean up", self._drop_session)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("shut down", self._drop_session)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("recover", self._drop_session)

    def start(self) -> bool:
        """Configure and activate; False when one of them failed (which is logged)."""
        return self.trigger_configure() == SUCCESS and self.trigger_activate() == SUCCESS

    def stop(self) -> None:
        """Brake and free everything, whatever the state; for the end of the process."""
        self._attempt("stop", self._drop_session)

    def _configure(self) -> None:
        settings = self._parameter_server.read()
        self._session = Session(self, settings)
        for check in check_machine(settings):
            if check.fix:
                self.get_logger().warning(f"{check.name}: {check.text}; {check.fix}")

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _attempt(self, name: str, step: Callable[[], None]) -> TransitionCallbackReturn:
        """A user's mistake is told in its own words; anything else is a defect and shows its traceback."""
        try:
            step()
        except ValueError as error:
            for line in str(error).splitlines():
                self.get_logger().error(f"cannot {name}: {line}")
            return FAILURE
        except Exception as error:
            self.get_logger().error(f"cannot {name}: {type(error).__name__}: {error}\n{traceback.format_exc()}")
            return FAILURE
        return SUCCESS


def main(args: list[str] | None = None, autostart: bool = False) -> int:
    """Run the node until SIGINT or SIGTERM; the stop goes out while the ROS context is still valid.

    `autostart` configures and activates it first. Returns 0, or 1 when the autostart failed.
    """
    stopping = threading.Event()
    stop_on_signals(stopping)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    node = PolicyNode()
    executor = make_executor()
    executor.add_node(node)
    try:
        if autostart and not node.start():
            return 1
        spin_until(executor, stopping)
    finally:
        node.stop()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
