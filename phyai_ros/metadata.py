"""Which policy runs under which settings, as one latched message: ~/metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rclpy.qos import DurabilityPolicy, QoSProfile

from phyai_core.types import PolicySpec
from phyai_ros.endpoints import create_publisher
from phyai_ros.fingerprints import describe_settings, hash_checkpoint, hash_settings
from phyai_ros.messages import to_time
from phyai_ros.msg import PolicyMetadata
from phyai_ros.outputs import load_output
from phyai_ros.robot_checks import named_outputs
from phyai_ros.settings import Output, Settings

if TYPE_CHECKING:
    from rclpy.node import Node
    from rclpy.publisher import Publisher

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def publish_metadata(node: Node, settings: Settings, spec: PolicySpec, joint_names: Sequence[str]) -> Publisher:
    """Send it once, for everyone who ever listens; returns the publisher that keeps it."""
    publisher = create_publisher(node, PolicyMetadata, "~/metadata", LATCHED)
    message = make_metadata(settings, spec, joint_names, node.resolve_topic_name)
    message.header.stamp = to_time(node.get_clock().now().nanoseconds)
    publisher.publish(message)
    return publisher


def make_metadata(
    settings: Settings, spec: PolicySpec, joint_names: Sequence[str], resolve: Callable[[str], str]
) -> PolicyMetadata:
    """`settings` have been filled in from `spec`; `joint_names` are the robot's in action order.

    `resolve` turns a topic of the settings into its full name, remappings included.
    """
    inference, outputs = settings.inference, list(named_outputs(settings).values())
    cameras = [settings.cameras.by_key[camera.key] for camera in spec.cameras]
    return PolicyMetadata(
        policy=spec.name,
        adapter=inference.adapter,
        checkpoint=inference.checkpoint,
        checkpoint_hash=hash_checkpoint(inference.checkpoint),
        config_hash=hash_settings(settings),
        parameters=describe_settings(settings),
        device=inference.device,
        placement=inference.placement,
        rtc_mode=settings.rtc.mode,
        dt=spec.dt_s,
        action_horizon=spec.action_horizon,
        execution_horizon=settings.rtc.execution_horizon,
        num_denoise_steps=spec.num_denoise_steps,
        joint_names=list(joint_names),
        action_names=[feature.name for feature in spec.action],
        action_units=[feature.unit for feature in spec.action],
        action_modes=[feature.mode for feature in spec.action],
        state_names=[feature.name for feature in spec.state],
        state_kinds=[feature.kind for feature in spec.state],
        state_units=[feature.unit for feature in spec.state],
        camera_keys=[camera.key for camera in spec.cameras],
        camera_topics=[resolve(camera.topic) for camera in cameras],
        camera_transports=[camera.transport for camera in cameras],
        camera_heights=[camera.height for camera in spec.cameras],
        camera_widths=[camera.width for camera in spec.cameras],
        joint_states_topic=resolve(settings.inputs.joint_states_topic),
        output_types=[output.type for output in outputs],
        output_topics=[resolve(output_topic(output)) for output in outputs],
    )


def output_topic(output: Output) -> str:
    """Where an output sends: as set, or the usual topic (or action) of its type."""
    return output.topic or load_output(output.type).default_topic
