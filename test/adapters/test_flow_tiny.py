"""Guards against: broken shipped weights, a checkpoint that loads although it does not fit, normalisation that cannot
be undone, images of another size taken wrongly, and rows that ignore their own flow time.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from adapter_contract import AdapterContract
from safetensors.torch import load_file, save_file

from phyai_adapters import load_adapter
from phyai_adapters.flow_tiny import SHIPPED_CHECKPOINT, SHIPPED_RTC_CHECKPOINT, FlowTiny, FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import SPEC_FILE, WEIGHTS_FILE, read_config, write_checkpoint
from phyai_core.types import Observation

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shipped() -> FlowTiny:
    return load_adapter("flow_tiny", None, CPU)


def make_observation(seed: int, size: tuple[int, int] = (64, 64)) -> Observation:
    rng = np.random.default_rng(seed)
    state = rng.normal(0, 0.3, 12).astype(np.float32)
    image = rng.integers(0, 256, (*size, 3), np.uint8)
    return Observation(stamp_ns=0, images={"front": image}, state=state, last_command=state[8:])


class TestFlowTinyKeepsTheContract(AdapterContract):
    @pytest.fixture
    def adapter(self, shipped: FlowTiny) -> FlowTiny:
        return shipped

    def make_observation(self, seed: int) -> Observation:
        return make_observation(seed)


def test_shipped_checkpoint_is_small_and_says_how_good_it_is():
    assert sum(path.stat().st_size for path in SHIPPED_CHECKPOINT.iterdir()) <= 6e6
    config = read_config(SHIPPED_CHECKPOINT)
    assert config.measured["episodes"] >= 100
    assert config.measured["successes"] >= 0.97 * config.measured["episodes"]
    assert config.training["seed"] >= 0


def test_the_checkpoint_for_trained_rtc_is_small_and_says_what_it_was_taught():
    assert sum(path.stat().st_size for path in SHIPPED_RTC_CHECKPOINT.iterdir()) <= 6e6
    config = read_config(SHIPPED_RTC_CHECKPOINT)
    assert config.measured["successes"] >= 0.95 * config.measured["episodes"] >= 95
    spec = load_adapter("flow_tiny_rtc", None, CPU).spec
    assert spec.rtc_max_delay == config.training["rtc_max_delay"] == 12 and "trained" in spec.rtc_modes
    assert "trained" not in load_adapter("flow_tiny", None, CPU).spec.rtc_modes


def test_joints_of_state_and_action_are_named_in_order(shipped):
    joints = ["yaw", "shoulder", "elbow", "wrist_pitch"]
    assert [feature.name for feature in shipped.spec.action] == joints
    assert [feature.name for feature in shipped.spec.state] == joints * 3
    assert [feature.kind for feature in shipped.spec.state] == ["position"] * 4 + ["velocity"] * 4 + ["command"] * 4


def test_actions_survive_the_way_into_model_space_and_back(shipped):
    actions = np.random.default_rng(0).normal(0, 1, (32, 4)).astype(np.float32)
    latents = shipped.encode_actions(actions)
    np.testing.assert_allclose(shipped.postprocess(latents, make_observation(0)), actions, atol=1e-6)


def test_a_bigger_image_is_reduced_by_area(shipped):
    small = make_observation(0)
    enlarged = {"front": small.images["front"].repeat(4, axis=0).repeat(4, axis=1)}
    big = Observation(0, enlarged, small.state, small.last_command)
    assert torch.equal(shipped.preprocess(big)["image"], shipped.preprocess(small)["image"])


def test_each_row_feels_its_own_flow_time(shipped):
    prefix = shipped.encode_prefix(shipped.preprocess(make_observation(0)))
    latents, flow_time = torch.zeros(1, 32, 4), torch.zeros(1, 32)
    cleaner = flow_time.clone()
    cleaner[:, :5] = 1.0
    before, after = (shipped.denoise_step(prefix, latents, time) for time in (flow_time, cleaner))
    assert not torch.equal(before, after)


@pytest.fixture
def checkpoint(tmp_path):
    return shutil.copytree(SHIPPED_CHECKPOINT, tmp_path / "checkpoint")


def assert_refused(folder, *words: str) -> None:
    with pytest.raises(ValueError, match="checkpoint") as refusal:
        FlowTiny.load(folder, CPU)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("name", [SPEC_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named(checkpoint, name):
    (checkpoint / name).unlink()
    assert_refused(checkpoint, name, "missing")


def test_a_truncated_weights_file_is_named(checkpoint):
    (checkpoint / WEIGHTS_FILE).write_bytes(b"\x10\0\0\0\0\0\0\0{")
    assert_refused(checkpoint, WEIGHTS_FILE, "cannot be read")


def test_every_weight_that_differs_is_reported_at_once(checkpoint):
    weights = load_file(checkpoint / WEIGHTS_FILE)
    weights["extra.weight"] = torch.zeros(1)
    weights["write_velocity.bias"] = weights["write_velocity.bias"][:-1].clone()
    del weights["read_chunk.weight"]
    save_file(weights, checkpoint / WEIGHTS_FILE)
    assert_refused(checkpoint, "missing read_chunk.weight", "unexpected extra.weight", "reshaped write_velocity.bias")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"format": 99}, "99"),
        ({"colour": "red"}, "colour"),
        ({"state_std": [1.0]}, "state_std"),
        ({"action_std": [0.0] * 4}, "action_std"),
        ({"action": "yaw"}, "does not describe flow_tiny"),
    ],
)
def test_a_specification_that_does_not_fit_is_refused(checkpoint, change, word):
    plain = json.loads((checkpoint / SPEC_FILE).read_text())
    (checkpoint / SPEC_FILE).write_text(json.dumps({**plain, **change}))
    assert_refused(checkpoint, SPEC_FILE, word)


def test_a_checkpoint_comes_back_as_it_was_written(tmp_path):
    config = read_config(SHIPPED_CHECKPOINT)
    network = FlowTinyNetwork(config)
    write_checkpoint(tmp_path, config, network.state_dict())
    loaded = FlowTiny.load(tmp_path, CPU)
    assert loaded.config == config
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], tensor.half().float()), name
