"""Whether a replay runs with the parameters and weights of the live node, as that told them on ~/metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phyai_ros.fingerprints import describe_settings, hash_checkpoint, hash_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.findings import Finding
from phyai_ros.replay.topics import NodeName
from phyai_ros.settings import Settings

METADATA = "~/metadata"
MOST_NAMED = 6


def compare_settings(bag: Bag, node: NodeName, settings: Settings) -> list[Finding]:
    """A warning with what differs from the run in the bag; none where nothing does, or nothing is known.

    `settings` have been filled in from the spec of the policy, as the node's were.
    """
    topic = node.resolve(METADATA)
    told = list(bag.messages([topic])) if bag.holds(topic) else []
    differences = _find_differences(told[-1].msg, settings) if told else []  # it may have been configured anew
    if not differences:
        return []
    named = "; ".join(differences[:MOST_NAMED])
    more = f"; and {len(differences) - MOST_NAMED} more" if len(differences) > MOST_NAMED else ""
    text = f"the recorded run had other settings: {named}{more}"
    return [Finding(bag.since_start_s(told[-1].log_ns), "warning", topic, "settings", text)]


def _find_differences(metadata: Any, settings: Settings) -> list[str]:
    weights = hash_checkpoint(settings.inference.checkpoint)
    found = ["other contents of the checkpoint"] if metadata.checkpoint_hash != weights else []
    if metadata.config_hash == hash_settings(settings):
        return found
    parameters = getattr(metadata, "parameters", "")
    if not parameters:  # recorded before the message had them
        return [*found, "the hash of its parameters is another"]
    before, now, usual = (
        _flatten(json.loads(text)) for text in (parameters, describe_settings(settings), describe_settings(Settings()))
    )
    before = {name: value for name, value in usual.items() if name not in before} | before  # parameters of today
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return found + [f"{name} was {_show(before.get(name))} and is {_show(now.get(name))}" for name in names]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{name as in a parameter file: value}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = prefix if name == "by_key" else f"{prefix}.{name}".lstrip(".")
        flat |= _flatten(value, path) if isinstance(value, dict) else {path: value}
    return flat


def _show(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)
