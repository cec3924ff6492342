"""Guards against: two writers, a node that activates beside an inactive controller, controllers left switched, a
command sent after another took the robot, a first command that steps by the following error."""

from __future__ import annotations

import pytest
from lifecycle_msgs.msg import State
from rclpy.qos import DurabilityPolicy, QoSProfile

from ros.policy_rig import PolicyRig
from ros.standins import provide

OURS, THEIRS = "joint_trajectory_controller", "moveit_controller"


@pytest.fixture(autouse=True, scope="module")
def interfaces():
    provide("controller_manager_msgs")
    provide("control_msgs")


class FakeManager:
    """A controller manager with two controllers."""

    def __init__(self, rig: PolicyRig, ours: str, theirs: str = "active", obeys: bool = True) -> None:
        from controller_manager_msgs.msg import ControllerManagerActivity
        from controller_manager_msgs.srv import ListControllers, SwitchController

        self.states, self.obeys = {OURS: ours, THEIRS: theirs}, obeys
        self.requests: list = []
        node = rig.robot
        node.create_service(ListControllers, "controller_manager/list_controllers", self._list)
        node.create_service(SwitchController, "controller_manager/switch_controller", self._switch)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._activity = node.create_publisher(ControllerManagerActivity, "controller_manager/activity", latched)

    def tell(self, **states: str) -> None:
        from controller_manager_msgs.msg import ControllerManagerActivity, NamedLifecycleState

        self.states.update(states)
        entries = [NamedLifecycleState(name=name, state=State(label=label)) for name, label in self.states.items()]
        self._activity.publish(ControllerManagerActivity(controllers=entries))

    def _list(self, request, response):
        from controller_manager_msgs.msg import ControllerState

        response.controller = [ControllerState(name=name, state=state) for name, state in self.states.items()]
        return response

    def _switch(self, request, response):
        self.requests.append(request)
        response.ok = self.obeys
        if self.obeys:
            self.states.update(dict.fromkeys(request.activate_controllers, "active"))
            self.states.update(dict.fromkeys(request.deactivate_controllers, "inactive"))
        return response


def make_rig(ownership: str, **parameters) -> PolicyRig:
    return PolicyRig(**{"controller.ownership": ownership, "controller.replaces": [THEIRS], **parameters})


def test_verify_activates_beside_an_active_controller_and_refuses_otherwise():
    with make_rig("verify") as rig:
        manager = FakeManager(rig, ours="inactive")
        assert rig.node.trigger_configure().name == "SUCCESS"
        assert rig.node.trigger_activate().name == "FAILURE"
        manager.states[OURS] = "active"
        rig.activate()
        rig.wait_for_news("trajectory", 2)
        assert manager.requests == []


def test_switch_takes_in_one_strict_call_and_gives_back():
    with make_rig("switch") as rig:
        manager = FakeManager(rig, ours="inactive")
        rig.start()
        request = manager.requests[0]
        assert (list(request.activate_controllers), list(request.deactivate_controllers)) == ([OURS], [THEIRS])
        assert request.strictness == request.STRICT
        rig.wait_for_news("trajectory")
        assert rig.node.trigger_deactivate().name == "SUCCESS"
        back = manager.requests[1]
        assert (list(back.activate_controllers), list(back.deactivate_controllers)) == ([THEIRS], [OURS])
        assert manager.states == {OURS: "inactive", THEIRS: "active"}


def test_a_switch_that_did_not_happen_is_found_out():
    with make_rig("switch") as rig:
        FakeManager(rig, ours="inactive", obeys=False)
        assert rig.node.trigger_configure().name == "SUCCESS"
        assert rig.node.trigger_activate().name == "FAILURE"


def test_no_manager_no_activation():
    with make_rig("verify", **{"controller.timeout_s": 0.2}) as rig:
        assert rig.node.trigger_configure().name == "SUCCESS"
        assert rig.node.trigger_activate().name == "FAILURE"


def test_when_the_controller_goes_the_node_falls_silent_and_comes_back_with_it():
    with make_rig("verify") as rig:
        manager = FakeManager(rig, ours="active")
        rig.start()
        rig.wait_for_news("trajectory", 2)
        manager.tell(**{OURS: "inactive"})
        status = rig.wait_for_state("stopped", "not_owner")
        assert f"{OURS} is inactive" in status.text
        sent = len(rig.robot.heard["trajectory"])
        rig.wait_for_news("status", 5)
        assert len(rig.robot.heard["trajectory"]) == sent
        manager.tell(**{OURS: "active"})
        rig.wait_for_state("running")


def test_the_first_command_continues_the_reference_of_the_controller():
    from control_msgs.msg import JointTrajectoryControllerState
    from trajectory_msgs.msg import JointTrajectoryPoint

    topic = "joint_trajectory_controller/controller_state"
    with PolicyRig(**{"controller.state_topic": topic}) as rig:
        publisher = rig.robot.create_publisher(JointTrajectoryControllerState, topic, 1)
        point = JointTrajectoryPoint(positions=[-0.17, 0.33])  # it sags by 0.03
        message = JointTrajectoryControllerState(joint_names=["elbow", "shoulder"], reference=point)
        rig.robot.create_timer(0.02, lambda: publisher.publish(message))
        rig.start()
        rig.wait_for_news("command")
        first = dict(zip(rig.robot.heard["command"][0].name, rig.robot.heard["command"][0].position, strict=True))
        assert first["shoulder"] == pytest.approx(0.332, abs=0.002)
        assert first["elbow"] == pytest.approx(-0.168, abs=0.002)
