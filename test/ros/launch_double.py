"""A test double of launch and launch_ros: stand-ins for the part of their API in the table below.

They start the real nodes with the arguments of launch_ros and drive the real lifecycle services; a name or argument
that is not in the table is an ImportError or TypeError.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import rclpy
import yaml
from ament_index_python.packages import get_package_prefix, get_package_share_directory
from lifecycle_msgs.msg import Transition, TransitionEvent
from lifecycle_msgs.srv import ChangeState

STOP_WAIT_S = 15.0
NODE = (
    "package",
    "executable",
    "name",
    "namespace",
    "parameters",
    "ros_arguments",
    "additional_env",
    "output",
    "on_exit",
)
API = {
    "launch": {"LaunchDescription": ("entities",), "LaunchContext": ()},
    "launch.actions": {
        "DeclareLaunchArgument": ("name", "default_value", "description"),
        "EmitEvent": ("event",),
        "ExecuteProcess": ("cmd", "output", "on_exit"),
        "IncludeLaunchDescription": ("source", "launch_arguments"),
        "OpaqueFunction": ("function",),
        "RegisterEventHandler": ("handler",),
        "Shutdown": ("reason",),
    },
    "launch.events": {"matches_action": ("action",)},
    "launch.launch_description_sources": {"PythonLaunchDescriptionSource": ("path",)},
    "launch.substitutions": {"LaunchConfiguration": ("name",), "PathJoinSubstitution": ("parts",)},
    "launch_ros": {},
    "launch_ros.actions": {"LifecycleNode": NODE, "Node": NODE},
    "launch_ros.event_handlers": {
        "OnStateTransition": ("target_lifecycle_node", "start_state", "goal_state", "entities")
    },
    "launch_ros.events": {},
    "launch_ros.events.lifecycle": {"ChangeState": ("lifecycle_node_matcher", "transition_id")},
    "launch_ros.substitutions": {"FindPackageShare": ("package",)},
}


class StandIn:
    """Keeps its arguments under the names of the table; what they mean is in Launch."""

    def __init__(self, *args, **kwargs) -> None:
        given = dict(zip(self.fields, args, strict=False)) | kwargs
        if len(args) > len(self.fields) or not set(given) <= set(self.fields):
            raise TypeError(f"{type(self).__name__} got {args} {kwargs}; this double knows {self.fields}")
        self.__dict__.update(dict.fromkeys(self.fields) | given)

    def perform(self, launch: Launch) -> str:
        return launch.text(self)


def install_stand_ins() -> None:
    for module_name, classes in API.items():
        module = sys.modules[module_name] = ModuleType(module_name)
        for name, fields in classes.items():
            setattr(module, name, type(name, (StandIn,), {"fields": fields}))


def load_description(path: str) -> StandIn:
    spec = importlib.util.spec_from_file_location(Path(path).stem.replace(".", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description()


class Launch:
    """What LaunchService and LaunchContext are, in one. `run` gives 0 when every process ended with 0."""

    def __init__(self, arguments: dict[str, str]) -> None:
        self.launch_configurations, self.nodes, self.handlers = dict(arguments), [], []
        self.is_shutdown = self.interrupted = False

    def run(self, path: str) -> int:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self.end_by_signal)
        rclpy.init(args=[], signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
        self.ros_node = rclpy.create_node("launch_double")
        try:
            self.visit(load_description(path))
            while not self.is_shutdown and any(node.process.poll() is None for node in self.nodes):
                rclpy.spin_once(self.ros_node, timeout_sec=0.1)
                for node in self.nodes:
                    if node.on_exit is not None and node.process.poll() is not None:
                        self.visit(node.on_exit(SimpleNamespace(returncode=node.process.returncode), self))
        finally:
            codes = [self.stop(node.process) for node in self.nodes]
        return int(any(codes))

    def end_by_signal(self, signum: int, _frame: object) -> None:
        self.interrupted = signum == signal.SIGINT
        self.is_shutdown = True

    def stop(self, process: subprocess.Popen) -> int:
        """Ctrl-C reaches the whole process group, so launch sends SIGINT only where something else ended it."""
        if not self.interrupted:
            process.send_signal(signal.SIGINT)
        try:
            return process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def visit(self, entity: StandIn) -> None:
        getattr(self, f"visit_{type(entity).__name__}")(entity)

    def visit_LaunchDescription(self, description) -> None:
        for entity in description.entities:
            self.visit(entity)

    def visit_DeclareLaunchArgument(self, argument) -> None:
        assert argument.description, f"{argument.name} has no description"
        self.launch_configurations.setdefault(argument.name, self.text(argument.default_value))

    def visit_OpaqueFunction(self, opaque) -> None:
        for entity in opaque.function(self) or []:
            self.visit(entity)

    def visit_IncludeLaunchDescription(self, include) -> None:
        self.launch_configurations.update({name: self.text(value) for name, value in include.launch_arguments})
        self.visit(load_description(self.text(include.source.path)))

    def visit_RegisterEventHandler(self, action) -> None:
        self.handlers.append(action.handler)

    def visit_Shutdown(self, action) -> None:
        self.is_shutdown = True

    def visit_Node(self, node) -> None:
        node.path = "/" + "/".join(part for part in ((node.namespace or "").strip("/"), node.name) if part)
        executable = Path(get_package_prefix(node.package)) / "lib" / node.package / node.executable
        command = [str(executable), *self.ros_arguments(node)]
        node.process = subprocess.Popen(command, env=os.environ | (node.additional_env or {}))
        self.nodes.append(node)

    def visit_ExecuteProcess(self, action) -> None:
        action.process = subprocess.Popen([self.text(part) for part in action.cmd])
        self.nodes.append(action)

    def visit_LifecycleNode(self, node) -> None:
        self.visit_Node(node)
        topic = f"{node.path}/transition_event"
        self.ros_node.create_subscription(TransitionEvent, topic, lambda event: self.fire(node, event), 10)
        node.client = self.ros_node.create_client(ChangeState, f"{node.path}/change_state")

    def fire(self, node, event) -> None:
        for handler in self.handlers:
            wanted = ((handler.start_state, event.start_state.label), (handler.goal_state, event.goal_state.label))
            if handler.target_lifecycle_node in (None, node) and all(want in (None, seen) for want, seen in wanted):
                for entity in handler.entities:
                    self.visit(entity)

    def visit_EmitEvent(self, action) -> None:
        threading.Thread(target=self.change_state, args=(action.event,), daemon=True).start()

    def change_state(self, event) -> None:
        node = event.lifecycle_node_matcher.action
        while not node.client.wait_for_service(timeout_sec=1.0) and not self.is_shutdown:
            pass
        node.client.call_async(ChangeState.Request(transition=Transition(id=event.transition_id)))

    def ros_arguments(self, node) -> list[str]:
        namespace = [] if node.namespace is None else ["-r", f"__ns:={node.path.rpartition('/')[0] or '/'}"]
        files = [arg for entry in node.parameters or [] for arg in ("--params-file", self.params_file(node, entry))]
        own = ["--ros-args", *node.ros_arguments] if node.ros_arguments else []
        return [*own, "--ros-args", "-r", f"__node:={node.name}", *namespace, *files]

    def params_file(self, node, entry) -> str:
        if not isinstance(entry, dict):
            return self.text(entry)
        assert not any(isinstance(value, str) for value in entry.values()), "launch_ros would read it as YAML"
        where = "/**" if node.namespace is None else node.path
        with tempfile.NamedTemporaryFile("w", prefix="launch_params_", delete=False) as file:
            yaml.safe_dump({where: {"ros__parameters": entry}}, file)
        return file.name

    def text(self, value) -> str:
        kind = type(value).__name__
        if kind == "LaunchConfiguration":
            return self.launch_configurations[value.name]
        if kind == "FindPackageShare":
            return get_package_share_directory(value.package)
        return str(Path(*map(self.text, value.parts))) if kind == "PathJoinSubstitution" else str(value)
