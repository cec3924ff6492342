"""The ROS graph that a command has for itself: a free domain of this machine, or the one that the user chose."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phyai_ros.cli.processes import share_folder

if TYPE_CHECKING:
    from rclpy.node import Node

DOMAINS = range(1, 101)  # above 101 the ports of DDS reach into those the system hands out
DISCOVERY_S, LOOK_AGAIN_S = 5.0, 0.1  # DDS repeats every 3 s what the first message of a participant misses
UNNAMED = "a node whose name is not known"  # its topics may be known before its name
DEMO_NODES = ("/policy", "/sim_robot")
DEMO_INPUTS = ("/joint_states", "/camera/front/image_raw")


def enter_own_graph(logs: Path) -> str:
    """Put this process and its children in a ROS graph of their own, unless the user chose one; returns its domain.

    Raises ValueError where the chosen one holds nodes that the demo would talk to.
    """
    was_chosen = "ROS_DOMAIN_ID" in os.environ
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(private_graph(logs.resolve(), share_folder() / "config" / "fastdds_shm.xml", os.environ))
    domain = os.environ["ROS_DOMAIN_ID"]
    if was_chosen:
        _refuse_company(domain)
    return domain


def private_graph(log_folder: Path, profile: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of processes that talk to each other and to nobody else; what the user set is kept."""
    env = dict(base)
    env.setdefault("ROS_DOMAIN_ID", str(free_domain()))
    env.setdefault("ROS_LOG_DIR", str(log_folder))
    env.setdefault("PYTHONUNBUFFERED", "1")
    if env.get("ROS_DISTRO") == "humble":
        env.setdefault("ROS_LOCALHOST_ONLY", "1")
        env.setdefault("FASTRTPS_DEFAULT_PROFILES_FILE", str(profile))
    else:
        env.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        env.setdefault("FASTDDS_DEFAULT_PROFILES_FILE", str(profile))
    return env


def free_domain() -> int:
    """A ROS domain that no process of this machine uses, as far as its first ports show."""
    for domain in random.sample(DOMAINS, len(DOMAINS)):
        if all(_port_is_free(7400 + 250 * domain + offset) for offset in (10, 11, 12, 13)):
            return domain
    raise ValueError("every ROS domain from 1 to 100 is in use on this machine; set ROS_DOMAIN_ID yourself.")


def find_company(node: Node) -> list[str]:
    """Who, besides the demo, would drive its robot, or feed its policy."""
    names = {_full_name(name, namespace) for name, namespace in node.get_node_names_and_namespaces()}
    found = [name for name in DEMO_NODES if name in names]
    for topic in DEMO_INPUTS:
        senders = {_full_name(e.node_name, e.node_namespace) for e in node.get_publishers_info_by_topic(topic)}
        found += [f"{sender} (publishes {topic})" for sender in sorted(senders.difference(found))]
    return found


def _refuse_company(domain: str) -> None:
    """Listen as long as discovery takes."""
    from phyai_ros.cli.graph_client import GraphClient

    deadline_s, found = time.monotonic() + DISCOVERY_S, []
    with GraphClient("phyai_demo", watch=lambda: None) as client:
        while time.monotonic() < deadline_s and (not found or UNNAMED in found[-1]):
            time.sleep(LOOK_AGAIN_S)
            found = find_company(client.node)
    if found:
        raise ValueError(
            f"ROS_DOMAIN_ID={domain} holds {', '.join(found)} already, which the demo would mix with its own; "
            "unset ROS_DOMAIN_ID (the demo then takes a free domain), or end those nodes."
        )


def _full_name(name: str, namespace: str) -> str:
    return UNNAMED if name == "_NODE_NAME_UNKNOWN_" else f"{namespace.rstrip('/')}/{name}"


def _port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
