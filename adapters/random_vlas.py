"""Policies beside pi0 and pi0.5 with random weights, of full size or a tiny one: for measuring speed and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from phyai_adapters._camera_policy import Parts, place
from phyai_adapters._deployment import Deployment, Options, choose_dtypes
from phyai_adapters._groot_files import Deployment as GrootDeployment
from phyai_adapters._groot_files import Scale
from phyai_adapters._groot_head import read_head_sizes
from phyai_adapters._groot_network import TEXT, VISION, GrootNetwork
from phyai_adapters._loading import fill_random
from phyai_adapters._minicpm_files import (
    IMAGE_SIZE,
    KINDS,
    TOWER,
    MiniCpmNetwork,
    make_backbone,
    make_deployment,
    make_spec,
)
from phyai_adapters._minicpm_files import TEXT as MINICPM_TEXT
from phyai_adapters._minicpm_head import FULL as MINICPM_HEAD
from phyai_adapters._minicpm_head import ReferenceHead
from phyai_adapters._minicpm_v import TowerSizes
from phyai_adapters._processing import Normaliser
from phyai_adapters._qwen3_5 import HybridSizes
from phyai_adapters._smolvla import FULL as SMOL_FULL
from phyai_adapters._smolvla import SmolNetwork, SmolSizes
from phyai_adapters._tokenizers import ByteTokenizer
from phyai_adapters.groot import Groot, GrootParts
from phyai_adapters.minicpm import MiniCpm
from phyai_adapters.random_cosmos3 import random_cosmos3
from phyai_adapters.smolvla import SmolVla
from phyai_core.adapter import Adapter
from phyai_core.layers.gemma import GemmaSizes
from phyai_core.layers.siglip import SiglipSizes
from phyai_core.weights import LoadReport

NOTHING_LOADED = LoadReport((), (), (), (), (), (), 0, 0.0)
JOINTS = 7
SMOL_TINY = SmolSizes(
    SiglipSizes(32, 2, 64, 2, 64, 16), GemmaSizes(48, 4, 96, 3, 1, 16), GemmaSizes(36, 4, 256, 3, 1, 16), 320, 2
)
GROOT_FULL = {
    "action_horizon": 40,
    "num_inference_timesteps": 4,
    "backbone_embedding_dim": 2048,
    "hidden_size": 1024,
    "max_state_dim": 132,
    "max_action_dim": 132,
    "max_num_embodiments": 32,
    "max_seq_len": 1024,
    "diffusion_model_cfg": {"num_attention_heads": 32, "attention_head_dim": 48, "num_layers": 32, "output_dim": 1024},
    "vl_self_attention_cfg": {"num_attention_heads": 32, "attention_head_dim": 64, "num_layers": 4},
}
GROOT_TINY = {
    **GROOT_FULL,
    "backbone_embedding_dim": 48,
    "hidden_size": 24,
    "max_num_embodiments": 4,
    "diffusion_model_cfg": {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 4, "output_dim": 24},
    "vl_self_attention_cfg": {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 1},
}


def random_smolvla(size: str, device: torch.device, options: Options, prompt_tokens: int, seed: int) -> SmolVla:
    """The cameras are those of `options.frame_sizes`; their frames are resized on the device."""
    sizes = {"full": SMOL_FULL, "tiny": SMOL_TINY}[size]
    network = place(SmolNetwork, device, sizes, choose_dtypes(options, device)[0])
    fill_random(network, seed)
    names = _names()
    deployment = Deployment(
        kind="smolvla",
        layout="random",
        action_horizon=50,
        num_denoise_steps=10,
        prompt_tokens=prompt_tokens,
        image_size=sizes.vision.image_size,
        cameras=dict(options.frame_sizes),
        state=Normaliser(),
        action=Normaliser(),
        state_names=names,
        action_names=names,
        relative=np.zeros(JOINTS, bool),
    ).choose(options)
    spec = deployment.spec(sizes.latent_dim, options.rate_hz)
    parts = Parts(spec, deployment, {"empty_cameras": 0}, network, options, NOTHING_LOADED)
    return SmolVla(parts, ByteTokenizer())


def random_groot(size: str, device: torch.device, options: Options, prompt_tokens: int, seed: int) -> Groot:
    """One embodiment with a chunk as long as the network's."""
    config, vision, text = GROOT_FULL, VISION, TEXT
    if size == "tiny":
        config, width = GROOT_TINY, GROOT_TINY["backbone_embedding_dim"]
        vision = replace(
            VISION, width=32, depth=3, mlp_width=64, num_heads=2, positions=36, out_width=width, taps=(0, 1)
        )
        text = replace(TEXT, width=width, depth=2, mlp_width=96, num_heads=4, num_kv_heads=2, head_dim=16, vocab=400)
        text = replace(text, sections=(4, 2, 2))
    network = place(GrootNetwork, device, vision, text, read_head_sizes(config)).to(choose_dtypes(options, device)[0])
    fill_random(network, seed)
    names, horizon = _names(), config["action_horizon"]
    bounds = np.ones(JOINTS, np.float32), np.ones((horizon, JOINTS), np.float32)
    deployment = GrootDeployment(
        layout="random",
        embodiment="random",
        embodiment_id=0,
        action_horizon=horizon,
        cameras=tuple(options.frame_sizes),
        state_names=names,
        action_names=names,
        state=Scale(-bounds[0], bounds[0]),
        action=Scale(-bounds[1], bounds[1]),
        anchor=np.full(JOINTS, -1),
        shortest_edge=next(iter(options.frame_sizes.values()))[0],
        crop_fraction=1.0,
        letter_box=False,
        clean_text=True,
        frame_sizes=dict(options.frame_sizes),
    )
    options = replace(options, image_tokens=(392, 390, 393))
    adapter = Groot(GrootParts(deployment, config, network, options, NOTHING_LOADED), ByteTokenizer())
    adapter.prompt_tokens = prompt_tokens
    return adapter


MINICPM_SIZES = {  # tower, language model, head
    "full": (TOWER, MINICPM_TEXT, MINICPM_HEAD),
    "tiny": (
        TowerSizes(32, 3, 64, 2, 16, 64, 1e-6, 1, 48),
        HybridSizes(48, 96, 400, KINDS, 4, 2, 16, 4, 1e7, (1, 1, 0), 2, 4, 16, 16, 4),
        replace(MINICPM_HEAD, features=48, num_heads=2, head_dim=16, depth=2, output=24, hidden=24, embodiments=2),
    ),
}


def random_minicpm(size: str, device: torch.device, options: Options, prompt_tokens: int, seed: int) -> MiniCpm:
    """With the reference head, in float32 unless the options say otherwise."""
    tower, text, head_sizes = MINICPM_SIZES[size]
    head = place(ReferenceHead, device, head_sizes).to(
        choose_dtypes(replace(options, dtype=options.dtype or "float32"), device)[0]
    )
    network = MiniCpmNetwork(make_backbone(tower, text, device, choose_dtypes(options, device)[0]), head)
    fill_random(network, seed)
    cameras, names = tuple(options.frame_sizes), _names()
    side = options.frame_sizes[cameras[0]][0]
    options = replace(
        options, cameras=cameras, state_names=names, action_names=names, embodiment="0", image_tokens=(392, 393)
    )
    deployment = replace(make_deployment(options, head, side, "random"), prompt_tokens=prompt_tokens)
    spec = make_spec(deployment, head, options.rate_hz)
    return MiniCpm(Parts(spec, deployment, {"image_token_id": 390}, network, options, NOTHING_LOADED), ByteTokenizer())


MAKERS = {"smolvla": random_smolvla, "groot": random_groot, "minicpm": random_minicpm, "cosmos3": random_cosmos3}
SIDES = {  # of the frames, in pixels
    "smolvla": {"full": 512, "tiny": 64},
    "groot": {"full": 256, "tiny": 64},
    "minicpm": {"full": IMAGE_SIZE, "tiny": 64},
    "cosmos3": {"full": 360, "tiny": 360},
}


def random_vla(
    name: str, device: torch.device, size: str, cameras: Sequence[str], prompt_tokens: int, dtype: str | None, seed: int
) -> Adapter:
    """The policy `name` of MAKERS, prompts padded to `prompt_tokens`."""
    side = SIDES[name][size]
    options = Options(rate_hz=50.0, frame_sizes=dict.fromkeys(cameras, (side, side)), dtype=dtype)
    return MAKERS[name](size, device, options, prompt_tokens, seed)


def _names() -> tuple[str, ...]:
    return tuple(f"joint_{index}" for index in range(JOINTS))
