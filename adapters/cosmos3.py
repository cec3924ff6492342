"""Cosmos3-Nano-Policy-DROID as far as it could be verified: transformer, sampler with guidance, encoder of one frame.

A sample denoises the latents of a video and the rows of a chunk together. What is known stays as it is: the first
frame, and the rows up to the present state. Guidance runs the network with and without the text:
v = v_without + scale (v_with - v_without); both branches of one step are independent and may run on two devices.
There is no adapter of the whole policy: its prompt and camera layout could not be compared with a recording.
Source: NVIDIA cosmos-framework, huggingface/diffusers Cosmos3OmniTransformer and AutoencoderKLWan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from phyai_adapters import _wan_vae
from phyai_adapters._camera_policy import place
from phyai_adapters._cosmos3 import CosmosTransformer, Scene, read_sizes
from phyai_adapters._deployment import read_json
from phyai_adapters._unipc import UniPc, discrete_times
from phyai_core.layers.gemma import KeysValues
from phyai_core.layers.rotary import Rotary
from phyai_core.weights import Checkpoint, load_weights

WEIGHTS = "diffusion_pytorch_model.safetensors"
UNUSED = ("lm_head.weight", "norm.weight")  # of text that is generated


class Branch(NamedTuple):
    """One text: what the network reads of it, and where video and actions stand behind it."""

    text: tuple[KeysValues, ...]
    rotary: Rotary


def load_transformer(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> CosmosTransformer:
    """Read `transformer/` of a checkpoint. Raises ValueError naming the file and key at fault."""
    config = read_json(folder / "config.json")
    if (kind := config.get("_class_name")) != "Cosmos3OmniTransformer":
        raise ValueError(f"{folder / 'config.json'}: _class_name is {kind!r}; supported: 'Cosmos3OmniTransformer'")
    if not config.get("action_gen") or config.get("sound_gen"):
        raise ValueError(f"{folder / 'config.json'}: action_gen has to be true and sound_gen false")
    network = place(CosmosTransformer, device, read_sizes(config)).to(dtype)
    load_weights(Checkpoint(_weights(folder)), network.state_dict(), unused=UNUSED)
    return network


def load_frame_encoder(folder: Path, device: torch.device) -> _wan_vae.FrameEncoder:
    """Read the encoder in `vae/` of a checkpoint. Raises ValueError naming the file and key at fault."""
    encoder = place(_wan_vae.FrameEncoder, device, _wan_vae.read_sizes(read_json(folder / "config.json")))
    load_weights(Checkpoint(_weights(folder)), encoder.state_dict(), unused=_wan_vae.UNUSED)
    return encoder


def _weights(folder: Path) -> Path:
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"checkpoint: {folder / WEIGHTS} does not exist; supported: weights in one file")
    return folder / WEIGHTS


class CosmosSampler:
    """Videos and chunks for one text. `width`: actions of the robot; the columns behind them stay zero."""

    def __init__(self, network: CosmosTransformer, scene: Scene, width: int, sigmas: Tensor, scale: float = 3.0):
        self.network, self.scene, self.width, self.sigmas, self.scale = network, scene, width, sigmas, scale

    @torch.no_grad()
    def branch(self, tokens: Tensor) -> Branch:
        """Read a text [B, L]: the prompt, or what stands for none."""
        positions = self.network.positions(self.scene, tokens.shape[1], tokens.device)
        return Branch(self.network.read(tokens), self.network.rotary(positions[None]))

    @torch.no_grad()
    def velocity(self, branch: Branch, video: Tensor, actions: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Of video [B, C, F, h, w] and actions [B, R, A]."""
        flow, rows = self.network(video, actions, time, branch.text, self.scene, branch.rotary)
        return flow, torch.cat((rows[..., : self.width], torch.zeros_like(rows[..., self.width :])), dim=-1)

    def guide(self, branches: Sequence[Branch], video: Tensor, actions: Tensor, time: int) -> list[Tensor]:
        """With guidance where there are two branches, the first with the text."""
        flows = [self.velocity(branch, video, actions, time) for branch in branches]
        if len(flows) == 1:
            return list(flows[0])
        return [without + self.scale * (given - without) for given, without in zip(*flows, strict=True)]

    def sample(
        self,
        branches: Sequence[Branch],
        video: Tensor,
        actions: Tensor,
        watch: Callable[[int, Tensor, Tensor], None] = lambda *_: None,
    ) -> tuple[Tensor, Tensor]:
        """Noise with the given parts in place -> video latents [B, C, F, h, w] and the rows to come [B, R', width].

        `watch` hears video and actions after each step.
        """
        solver = UniPc(self.sigmas)
        for index, time in enumerate(discrete_times(self.sigmas)):
            velocity = self.guide(branches, video, actions, time)
            moved = solver.step(index, (video, actions), velocity)
            video, actions = self._keep_given(video, actions, *moved)
            watch(index, video, actions)
        return video, actions[:, self.scene.clean_rows :, : self.width]

    def _keep_given(self, video: Tensor, actions: Tensor, moved: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What a step gave, but given frames and rows as they were: they have no velocity, yet rounding adds up."""
        frames, known = self.scene.clean_frames, self.scene.clean_rows
        video = torch.cat((video[:, :, :frames], moved[:, :, frames:]), dim=2)
        return video, torch.cat((actions[:, :known], rows[:, known:]), dim=1)
