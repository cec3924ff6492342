"""Guards against: a reference head that computes something else than it says; heads of users that are not found, not
run as they declare, or whose mistakes are told as a stack trace.

The head's weights in the fixture are random ones of ours; upstream recorded the backbone only."""

from __future__ import annotations

import math
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from pi_goldens import MODELS, edit_json, tensors
from torch.nn.functional import gelu, layer_norm, linear, silu

from phyai_adapters import load_adapter
from phyai_adapters._minicpm_head import FULL, ReferenceHead, read_sizes
from phyai_core.engine import Engine
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Leftover, Observation

FOLDER = MODELS / "minicpm_v46_backbone"
CPU = torch.device("cpu")
FLOW_HEAD = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from phyai_adapters.action_heads import ActionHead

@dataclass
class Seen:
    target: torch.Tensor

class Flow(ActionHead):
    action_horizon, latent_dim, state_dim, num_denoise_steps = 8, 3, 5, 4

    @classmethod
    def load(cls, folder, width, device, dtype):
        head = cls()
        head.width = width
        return head

    def prepare(self, features, mask, state, embodiment):
        assert features.shape[-1] == self.width and mask.dtype == torch.bool
        return Seen(state[:, :3])

    def velocity(self, prepared, latents, rows):
        return (prepared.target[:, None] - latents) / (1 - rows / self.num_denoise_steps)[:, None, None]
"""


@pytest.fixture
def folder(tmp_path):
    """A checkpoint that names the head of a file beside it."""
    target = tmp_path / "minicpm"
    target.mkdir()
    for name in ("model.safetensors", "config.json", "phyai.json"):
        shutil.copyfile(FOLDER / name, target / name)
    (target / "my_head.py").write_text(FLOW_HEAD)
    names = ["a", "b", "c"]
    edit_json(
        target / "phyai.json", action_head="my_head.py:Flow", state_names=names, action_names=names, embodiment=None
    )
    return target


def refused(folder, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_adapter("minicpm", folder, CPU)


def observe(state) -> Observation:
    frames = {key: np.zeros((128, 128, 3), np.uint8) for key in ("front", "wrist")}
    return Observation(0, frames, np.float32(state), np.zeros(3, np.float32), prompt="go")


def test_a_head_of_a_file_runs_its_flow_and_allows_real_time_chunking(folder):
    adapter = load_adapter("minicpm", folder, CPU)
    spec = adapter.spec
    assert (spec.action_horizon, spec.latent_dim, spec.num_denoise_steps) == (8, 3, 4)
    assert "ramp" in spec.rtc_modes
    engine = Engine(adapter, CPU)
    noise = np.random.default_rng(0).standard_normal(spec.noise_shape, dtype=np.float32)
    free = engine.infer(observe([1, 2, 3]), tables_for(RtcConfig("none"), spec, None), noise)
    np.testing.assert_allclose(free.actions, [[1, 2, 3]] * 8, atol=1e-5)
    rows = np.full((4, 3), 9.0, np.float32)
    tied = engine.infer(observe([1, 2, 3]), tables_for(RtcConfig("hard"), spec, Leftover(rows, rows, 2, 4)), noise)
    np.testing.assert_allclose(tied.actions[:2], 9.0, atol=1e-5)


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ("Flow", "'Flow' names no class; allowed: \"<file>.py:<class>\""),
        ("other.py:Flow", "other.py does not exist; the file is looked for beside the checkpoint"),
        ("my_head.py:Slow", "my_head.py has no class Slow after phyai_adapters.action_heads.ActionHead"),
        ("my_head.py:torch", "my_head.py has no class torch"),
        ("my_head.py:ActionHead", "ActionHead lacks load, prepare"),
        ("no_such_package.heads:Head", "module no_such_package.heads cannot be imported"),
    ],
)
def test_a_head_that_cannot_be_used_is_refused_with_the_reason(folder, choice, match):
    edit_json(folder / "phyai.json", action_head=choice)
    refused(folder, f"action_head: .*{match}")


def test_a_head_of_an_installed_module_is_found(folder):
    (folder / "my_head.py").unlink()
    shutil.copyfile(FOLDER / "action_head.safetensors", folder / "action_head.safetensors")
    shutil.copyfile(FOLDER / "action_head.json", folder / "action_head.json")
    edit_json(folder / "phyai.json", action_head="phyai_adapters._minicpm_head:ReferenceHead", embodiment="0")
    assert isinstance(load_adapter("minicpm", folder, CPU).head, ReferenceHead)


# The reference head.


@cache
def weights():
    return tensors("minicpm_v46_backbone", "action_head")


@pytest.fixture
def head():
    return ReferenceHead.load(FOLDER, 64, CPU, None)


def layer(name: str, x):
    return linear(x, weights()[f"{name}.weight"], weights()[f"{name}.bias"])


def bank(name: str, x):
    """The layer of the second embodiment."""
    return x @ weights()[f"{name}.W"][1] + weights()[f"{name}.b"][1]


def attend(name: str, x, seen):
    """Two heads of 16, head by head."""
    q, k, v = (layer(f"{name}.to_{part}", given).chunk(2, -1) for part, given in (("q", x), ("k", seen), ("v", seen)))
    parts = [(q[i] @ k[i].T / 4).softmax(-1) @ v[i] for i in range(2)]
    return layer(f"{name}.to_out.0", torch.cat(parts, -1))


def net(features, state, noisy, time: int):
    """One call of the network on one robot, term by term: features [T, 64], state [10], noisy [6, 10]."""
    angle = time * torch.exp(torch.arange(128) * (-math.log(1e4) / 127))
    embedded = layer("model.timestep_encoder.timestep_embedder.linear_1", torch.cat((angle.cos(), angle.sin())))
    embedded = silu(layer("model.timestep_encoder.timestep_embedder.linear_2", silu(embedded)))
    angle = time * torch.exp(torch.arange(16) * (-math.log(1e4) / 16))
    x = bank("action_encoder.W1", torch.cat((state.expand(6, -1), noisy), -1))
    x = torch.cat((x, torch.cat((angle.sin(), angle.cos())).expand(6, -1)), -1)
    x = bank("action_encoder.W3", silu(bank("action_encoder.W2", x))) + weights()["position_embedding.weight"][:6]
    x = torch.cat((weights()["future_tokens.weight"], x))
    for index in range(4):
        block = f"model.transformer_blocks.{index}"
        scale, shift = layer(f"{block}.norm1.linear", embedded).chunk(2)
        normed = layer_norm(x, (32,), eps=1e-5) * (1 + scale) + shift
        x = x + attend(f"{block}.attn1", normed, normed if index % 2 else features)
        inner = gelu(layer(f"{block}.ff.net.0.proj", layer_norm(x, (32,), eps=1e-5)), approximate="tanh")
        x = x + layer(f"{block}.ff.net.2", inner)
    shift, scale = layer("model.proj_out_1", embedded).chunk(2)
    x = layer("model.proj_out_2", layer_norm(x, (32,), eps=1e-6) * (1 + scale) + shift)
    return bank("action_decoder.layer2", bank("action_decoder.layer1", x).relu())[-6:]


@torch.no_grad()
def test_the_reference_head_is_its_description(head):
    generator = torch.Generator().manual_seed(0)
    features, state, noise = (torch.randn(*shape, generator=generator) for shape in ((2, 9, 64), (2, 10), (2, 6, 10)))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    head.tabulate()
    found = head.sample(head.prepare(features, mask, state, torch.tensor([1, 1])), noise)
    for robot, real in enumerate((9, 5)):
        chunk = torch.zeros(6, 10)
        for t, time in ((1.0, 999), (0.75, 750), (0.5, 500), (0.25, 250)):
            chunk = net(features[robot, :real], state[robot], t * noise[robot] + (1 - t) * chunk, time)
        torch.testing.assert_close(found[robot], chunk, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_frozen_rows_come_back_and_lead_the_others(head):
    generator = torch.Generator().manual_seed(1)
    features, state, noise, given = (
        torch.randn(*shape, generator=generator) for shape in ((1, 9, 64), (1, 10), (1, 6, 10), (1, 6, 10))
    )
    head.tabulate()
    prepared = head.prepare(features, torch.ones(1, 9, dtype=torch.bool), state, torch.tensor([0]))
    frozen = torch.zeros(1, 6, 10, dtype=torch.bool)
    torch.testing.assert_close(
        head.sample(prepared, noise, given, frozen), head.sample(prepared, noise), atol=0, rtol=0
    )
    frozen[:, :2] = True
    tied, other = (head.sample(prepared, noise, rows, frozen) for rows in (given, -given))
    assert torch.equal(tied[:, :2], given[:, :2]) and not torch.allclose(tied[:, 2:], other[:, 2:])


def test_at_full_size_it_has_the_published_number_of_parameters():
    with torch.device("meta"):
        head = ReferenceHead(FULL)
    assert sum(x.numel() for x in head.parameters()) / 1e6 == pytest.approx(235.8, abs=0.05)


def test_entries_of_its_file_are_checked(tmp_path):
    edit_json(tmp_path / "action_head.json", depht=4)
    with pytest.raises(ValueError, match="depht unknown; allowed: features, num_heads"):
        read_sizes(tmp_path, 64)
    (tmp_path / "action_head.json").write_text('{"features": 32}')
    with pytest.raises(ValueError, match="features is 32, the backbone gives 64"):
        read_sizes(tmp_path, 64)
