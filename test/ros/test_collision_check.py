"""Guards against: a collision that is seen and not stopped for, an answer about a plan long dropped, a check that is
silently not made."""

from __future__ import annotations

import pytest

from ros.policy_rig import PolicyRig, is_braking
from ros.standins import provide

PARAMETERS = {"collision.service": "check_state_validity", "collision.group": "arm", "collision.rate_hz": 20.0}


@pytest.fixture(autouse=True, scope="module")
def moveit_msgs():
    provide("moveit_msgs")


class FakeMoveIt:
    def __init__(self, rig: PolicyRig) -> None:
        from moveit_msgs.srv import GetStateValidity

        self.valid, self.requests = True, []
        rig.robot.create_service(GetStateValidity, "check_state_validity", self._answer)

    def _answer(self, request, response):
        from moveit_msgs.msg import ContactInformation

        self.requests.append(request)
        response.valid = self.valid
        if not self.valid:
            response.contacts = [ContactInformation(contact_body_1="table", contact_body_2="hand")]
        return response


def test_states_of_the_chunk_are_asked_about_and_a_bad_one_stops_the_robot():
    with PolicyRig(**PARAMETERS) as rig:
        moveit = FakeMoveIt(rig)
        rig.start()
        rig.wait(lambda: len(moveit.requests) > 5, "questions")
        request = moveit.requests[-1]
        assert request.group_name == "arm" and request.robot_state.is_diff
        assert list(request.robot_state.joint_state.name) == ["shoulder", "elbow"]
        assert len({tuple(r.robot_state.joint_state.position) for r in moveit.requests}) > 3
        assert rig.robot.status.state == "running"
        moveit.valid = False
        status = rig.wait_for_state("stopped", "collision")
        assert "table and hand" in status.text
        assert is_braking(rig.robot.heard["trajectory"][-1])


def test_without_the_service_the_diagnostics_say_that_nothing_is_checked():
    with PolicyRig(**PARAMETERS) as rig:
        rig.start()
        rig.wait_for_state("running")

        def told() -> bool:
            pairs = {p.key: p.value for p in rig.robot.heard["diagnostics"][-1].status[0].values}
            return "no collision check" in pairs.get("collision", "")

        rig.wait(told, "the remark")
