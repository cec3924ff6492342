"""Which topics of a bag the policy node would listen to, under the names that they have in ROS."""

from __future__ import annotations

from dataclasses import dataclass

from phyai_core.types import PolicySpec
from phyai_ros.replay.bag import Bag
from phyai_ros.settings import Settings

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
JOINTS, CLOUD = "sensor_msgs/msg/JointState", "sensor_msgs/msg/PointCloud2"


@dataclass(frozen=True)
class NodeName:
    """Where the node would live."""

    name: str = "policy"
    namespace: str = "/"

    @property
    def full(self) -> str:
        return f"/{self.namespace.strip('/')}/{self.name}".replace("//", "/")

    def resolve(self, topic: str) -> str:
        """The full name of a topic as the node would ask for it."""
        if topic.startswith("/"):
            return topic
        if topic.startswith("~/"):
            return f"{self.full}/{topic[2:]}"
        return f"/{self.namespace.strip('/')}/{topic}".replace("//", "/")


@dataclass(frozen=True)
class InputTopics:
    """Full names of the topics that feed a policy."""

    cameras: dict[str, str]  # {camera key: topic}
    joints: str
    prompt: str
    enable: str
    estop: str  # empty: none
    clouds: dict[str, str]  # {cloud key: topic}

    @property
    def needed(self) -> list[str]:
        return [*self.cameras.values(), *self.clouds.values(), self.joints]


def find_inputs(settings: Settings, spec: PolicySpec, node: NodeName) -> InputTopics:
    """The topics that a node with these settings subscribes to."""
    cameras = {camera.key: node.resolve(settings.cameras.by_key[camera.key].topic) for camera in spec.cameras}
    keys = (cloud.key for cloud in spec.clouds)
    clouds = dict(zip(keys, map(node.resolve, settings.inputs.cloud_topics), strict=True))
    joints = node.resolve(settings.inputs.joint_states_topic)
    estop = node.resolve(settings.stop.estop_topic) if settings.stop.estop_topic else ""
    return InputTopics(cameras, joints, node.resolve("~/prompt"), node.resolve("~/enable"), estop, clouds)


def check_inputs(bag: Bag, inputs: InputTopics, settings: Settings) -> None:
    """Raises ValueError for every needed topic that the bag lacks, cannot give, or has with another type."""
    wanted = {inputs.joints: JOINTS, **dict.fromkeys(inputs.clouds.values(), CLOUD)}
    for key, topic in inputs.cameras.items():
        wanted[topic] = COMPRESSED if settings.cameras.by_key[key].transport == "compressed" else IMAGE
    problems = [_problem(bag, topic, kind) for topic, kind in wanted.items()]
    problems = [problem for problem in problems if problem]
    if problems:
        raise ValueError(f"{bag.path} cannot feed this policy: {'; '.join(problems)}. {_advise(bag)}")


def _problem(bag: Bag, name: str, kind: str) -> str:
    topic = bag.topics.get(name)
    if topic is None:
        return f"it has no topic {name} ({kind})"
    if topic.problem:
        return f"its topic {name} {topic.problem}"
    if topic.type != kind:
        hint = ", see cameras.<key>.transport" if {topic.type, kind} == {IMAGE, COMPRESSED} else ""
        return f"its topic {name} has the type {topic.type} instead of {kind}{hint}"
    return "" if topic.count else f"its topic {name} holds no message"


def _advise(bag: Bag) -> str:
    there = ", ".join(f"{topic.name} ({topic.type})" for topic in bag.topics.values() if topic.count)
    return f"It holds {there}; rename with --remap OLD:=NEW, or correct the topics in the parameter file."
