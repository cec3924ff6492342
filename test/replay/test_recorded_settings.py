"""Guards against: a replay with other parameters or weights than the recorded run that does not say so, or says it
where nothing differs."""

from __future__ import annotations

import json

import pytest

from phyai_ros.assembly import load_policy
from phyai_ros.cli.main import run
from phyai_ros.fingerprints import describe_settings, hash_settings
from phyai_ros.msg import PolicyMetadata
from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_writer import BagWriter, type_name
from phyai_ros.replay.recorded_settings import MOST_NAMED, compare_settings
from phyai_ros.replay.topics import NodeName
from replay.made_bags import START_NS, MadeBag
from replay.replay_rig import PARAMETERS, knowing_policy, write_params


def settings_of(**parameters):
    values = {**PARAMETERS, **{name.replace("__", "."): value for name, value in parameters.items()}}
    return load_policy(build_settings(values), log=lambda line: None).settings


def told(settings, **changes) -> PolicyMetadata:
    parameters = describe_settings(settings)
    return PolicyMetadata(**{"config_hash": hash_settings(settings), "parameters": parameters, **changes})


def write(path, *messages):
    """A made bag with metadata at 1 s, 1.1 s ..."""
    with Bag(MadeBag().write(path / "made")) as made, BagWriter(path / "bag.mcap") as writer:
        for message in made.messages():
            writer.write(message.topic, message.type, message.log_ns, message.msg)
        for number, message in enumerate(messages):
            kind, log_ns = type_name(PolicyMetadata), START_NS + 1_000_000_000 + 100_000_000 * number
            writer.write("/policy/metadata", kind, log_ns, message)
    return path / "bag.mcap"


def finding_in(path, settings):
    with Bag(path) as bag:
        return next(iter(compare_settings(bag, NodeName(), settings)), None)


@pytest.fixture(autouse=True)
def adapter():
    with knowing_policy():
        yield


def test_the_same_settings_are_not_worth_a_word(tmp_path):
    assert finding_in(write(tmp_path, told(settings_of())), settings_of()) is None
    assert finding_in(MadeBag().write(tmp_path / "unknown"), settings_of()) is None


def test_what_differs_is_named_with_both_values(tmp_path):
    path = write(tmp_path, told(settings_of(inference__seed=7, cameras__front__transport="compressed")))
    found = finding_in(path, settings_of(rtc__execution_horizon=4))
    assert (found.level, found.topic, found.kind) == ("warning", "/policy/metadata", "settings")
    assert found.time_s == pytest.approx(1.0)
    assert "inference.seed was 7 and is 0" in found.text and "rtc.execution_horizon was 6 and is 4" in found.text
    assert 'cameras.front.transport was "compressed" and is "raw"' in found.text


def test_of_many_differences_a_few_are_named(tmp_path):
    others = {"rtc__execution_horizon": 3, "rtc__delay_window": 3, "inference__seed": 3, "prompt": "go"}
    others |= {"limits__max_velocity": [1.5], "inputs__slop_s": 0.2, "start__max_step_rad": 0.3}
    found = finding_in(write(tmp_path, told(settings_of(**others))), settings_of())
    assert found.text.count(" was ") == MOST_NAMED and found.text.endswith("and 1 more")


def test_a_parameter_that_came_later_is_no_difference_unless_it_is_set(tmp_path):
    parameters = json.loads(describe_settings(settings_of()))
    del parameters["inputs"]["slop_s"]
    path = write(tmp_path, PolicyMetadata(config_hash="of then", parameters=json.dumps(parameters)))
    assert finding_in(path, settings_of()) is None
    assert "inputs.slop_s was 0.1 and is 0.3" in finding_in(path, settings_of(inputs__slop_s=0.3)).text


def test_the_settings_of_the_last_configure_count(tmp_path):
    path = write(tmp_path, told(settings_of(inference__seed=7)), told(settings_of()))
    assert finding_in(path, settings_of()) is None


def test_other_weights_under_the_same_name_are_told(tmp_path):
    found = finding_in(write(tmp_path, told(settings_of(), checkpoint_hash="ab" * 32)), settings_of())
    assert found.text == "the recorded run had other settings: other contents of the checkpoint"


def test_a_recording_with_the_hash_alone_says_that_something_differs(tmp_path):
    found = finding_in(write(tmp_path, told(settings_of(inference__seed=7), parameters="")), settings_of())
    assert found.text == "the recorded run had other settings: the hash of its parameters is another"


def test_the_report_tells_it_and_a_what_if_is_no_difference(tmp_path):
    bag, json_file = str(write(tmp_path, told(settings_of()))), tmp_path / "r.json"
    arguments = ["replay", bag, "--json", str(json_file), "--params"]
    same, other = (str(write_params(tmp_path / f"{n}.yaml", rtc__execution_horizon=n)) for n in (6, 4))
    assert run([*arguments, same, "-p", "rtc.execution_horizon:=4"]) == 0
    assert "had other settings" not in json_file.read_text()
    assert run([*arguments, other, "--require", "findings.warning==0"]) == 1
    report = json.loads(json_file.read_text())
    text = "the recorded run had other settings: rtc.execution_horizon was 6 and is 4"
    assert text in [finding["text"] for finding in report["findings"]] and f"but {text}" in report["about"]
