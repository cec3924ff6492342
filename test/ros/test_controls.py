"""What people ask of a live node by topics and services.

Guards against: an e-stop or a pause that is not heard, a service that promises what it did not do, shadow commands on
the topic of the robot.
"""

from __future__ import annotations

from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from ros.policy_rig import PolicyRig, is_braking


def call(rig: PolicyRig, kind: type, name: str, **fields):
    client = rig.robot.create_client(kind, f"policy/{name}")
    rig.wait(client.service_is_ready, f"the service {name}")
    future = client.call_async(kind.Request(**fields))
    rig.wait(future.done, f"an answer of {name}")
    return future.result()


def test_an_estop_latches_until_it_is_released_and_cleared():
    with PolicyRig() as rig:
        estop = rig.robot.create_publisher(Bool, "policy/estop", 1)
        rig.start()
        rig.wait_for_state("running")
        rig.wait(lambda: estop.get_subscription_count() > 0, "the node to listen")
        epoch = rig.robot.status.epoch
        estop.publish(Bool(data=True))
        status = rig.wait_for_state("stopped", "estop")
        assert status.epoch > epoch and is_braking(rig.robot.heard["trajectory"][-1])
        answer = call(rig, Trigger, "clear_estop")
        assert not answer.success and "still pressed" in answer.message
        estop.publish(Bool(data=False))
        rig.wait(lambda: call(rig, Trigger, "clear_estop").success, "the release")
        rig.wait_for_state("running")


def test_pause_stops_and_goes_on():
    with PolicyRig() as rig:
        rig.start()
        rig.wait_for_state("running")
        assert call(rig, SetBool, "pause", data=True).success
        rig.wait_for_state("disabled", "paused")
        sent = len(rig.robot.heard["trajectory"])
        rig.wait_for_news("status", 4)
        assert len(rig.robot.heard["trajectory"]) == sent
        assert call(rig, SetBool, "pause", data=False).success
        rig.wait_for_state("running")
        assert rig.node.trigger_deactivate().name == "SUCCESS"
        answer = call(rig, SetBool, "pause", data=False)
        assert not answer.success and "not active" in answer.message


def test_shadow_commands_stay_off_the_robot_until_takeover():
    with PolicyRig(shadow=True) as rig:
        shadowed: list = []
        topic = "policy/shadow/joint_trajectory_controller/joint_trajectory"
        rig.robot.create_subscription(JointTrajectory, topic, shadowed.append, 50)
        rig.start()
        rig.wait(lambda: len(shadowed) > 2, "shadow trajectories")
        rig.wait_for_news("status", 2)
        assert rig.robot.status.shadow and rig.robot.heard["trajectory"] == []
        assert list(rig.robot.status.joint_names) == ["shoulder", "elbow"]
        assert call(rig, SetBool, "takeover", data=True).success
        rig.wait_for_news("trajectory", 2)
        rig.wait_for_news("status", 2)
        assert not rig.robot.status.shadow
        first = rig.robot.heard["trajectory"][0].points[0].positions
        assert abs(first[0] - 0.3) < 0.01 and abs(first[1] + 0.2) < 0.01  # from where the robot stands


def test_what_the_limiter_did_is_in_the_status():
    with PolicyRig(**{"limits.max_velocity": [0.03]}) as rig:  # the policy plans 0.05 rad/s
        rig.start()
        rig.wait(lambda: rig.robot.status.chunks_limited > 1, "limited chunks")
        status = rig.robot.status
        assert status.slowdown > 1.3 and "velocity limit" in status.limited
        assert status.limited_chunks[0] >= 1 and len(status.following_error) == 2
