"""Guards against: an SROS 2 example that lacks a name the node uses, or allows one that it does not."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from ros.policy_rig import PolicyRig

POLICY = Path(__file__).parents[2] / "config" / "sros2_policy.xml"


def allowed(kind: str, **attribute: str) -> set[str]:
    (name, value) = next(iter(attribute.items()))
    groups = [group for group in ElementTree.parse(POLICY).iter(f"{kind}s") if group.get(name) == value]
    texts = [entry.text for group in groups for entry in group]
    return {"/policy/" + text[2:] if text.startswith("~/") else "/" + text for text in texts}


def test_the_example_names_what_the_node_uses():
    with PolicyRig() as rig:
        assert rig.node.trigger_configure().name == "SUCCESS"
        ends = rig.node, (rig.node.get_name(), rig.node.get_namespace())
        published = {name for name, _ in ends[0].get_publisher_names_and_types_by_node(*ends[1])}
        subscribed = {name for name, _ in ends[0].get_subscriber_names_and_types_by_node(*ends[1])}
        offered = {name for name, _ in ends[0].get_service_names_and_types_by_node(*ends[1])}

    def in_action(name: str) -> bool:
        return "/_action/" in name

    assert {n for n in published if not in_action(n)} == allowed("topic", publish="ALLOW")
    assert subscribed | {"/clock", "/parameter_events"} == allowed("topic", subscribe="ALLOW")
    missing = {n for n in offered if not in_action(n)} - allowed("service", reply="ALLOW")
    assert missing == set()
