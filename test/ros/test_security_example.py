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
        node, name = rig.node, (rig.node.get_name(), rig.node.get_namespace())

        def ours(list_names) -> set[str]:
            return {topic for topic, _ in list_names(*name)}

        rig.wait(lambda: "/policy/status" in ours(node.get_publisher_names_and_types_by_node), "the graph")
        rig.wait(lambda: "/policy/pause" in ours(node.get_service_names_and_types_by_node), "the graph")
        published = ours(node.get_publisher_names_and_types_by_node)
        subscribed = ours(node.get_subscriber_names_and_types_by_node)
        offered = ours(node.get_service_names_and_types_by_node)

    def in_action(name: str) -> bool:
        return "/_action/" in name

    assert {n for n in published if not in_action(n)} == allowed("topic", publish="ALLOW")
    assert subscribed | {"/clock", "/parameter_events"} == allowed("topic", subscribe="ALLOW")
    missing = {n for n in offered if not in_action(n)} - allowed("service", reply="ALLOW")
    assert missing == set()
