"""One walk of the robot dog: ten seconds through the real policy node and its topics, at 0.8 m/s as it is told.

Simulated time: the robot makes the clock and waits for the command of each control period, so that a slow machine makes
the walk take longer and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from ros.go2_robot import Go2Robot
from ros.policy_rig import PolicyRig

CONFIG = Path(__file__).parents[2] / "config"
START_S, WALK_S = 1.5, 10.0


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


def walk(delay_s: float = 0.0) -> float:
    """Mean speed over ten seconds, m/s; 0 when it fell. `delay_s`: from the command to the motors."""
    changes = {"use_sim_time": True, "cameras.keys": None, "cameras.front.topic": None, "output.profile": None}
    changes["inference.warmup_runs"] = 0  # on a busy machine no latency is short enough
    with PolicyRig(**changes, **read_parameters()) as rig:
        rig.robot.joints_on = rig.robot.camera_on = False
        dog = Go2Robot(rig.context, delay_s=delay_s)
        rig.serve(dog)
        rig.start()
        rig.wait(lambda: dog.commands > 5, "first commands")
        begin_s = dog.data.time + START_S
        rig.wait(lambda: dog.data.time > begin_s or not dog.upright, "start of the walk", 30.0)
        start_m, start_s = dog.data.qpos[0], dog.data.time
        rig.wait(lambda: dog.data.time > start_s + WALK_S or not dog.upright, "end of the walk", 90.0)
        return (dog.data.qpos[0] - start_m) / (dog.data.time - start_s) if dog.upright else 0.0
