"""Cosmos3-Nano-Policy-DROID with random weights, of full size or of a tiny one: for measuring speed and memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from phyai_adapters._camera_policy import place
from phyai_adapters._cosmos3_files import CAMERAS, read_deployment
from phyai_adapters._cosmos3_scene import CosmosSizes
from phyai_adapters._cosmos3_weights import CosmosNetwork
from phyai_adapters._deployment import Options, choose_dtypes
from phyai_adapters._loading import fill_random
from phyai_adapters._tokenizers import ByteTokenizer
from phyai_adapters._wan_vae import VaeSizes
from phyai_adapters.cosmos3 import Cosmos3, CosmosParts
from phyai_core.weights import LoadReport

FULL = CosmosSizes(
    width=4096,
    depth=36,
    mlp_width=12288,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab=151936,
    eps=1e-6,
    theta=5e6,
    sections=(24, 20, 20),
    channels=48,
    patch=2,
    action_dim=64,
    domains=32,
    time_scale=0.001,
    base_fps=24,
    margin=15000,
)
TINY = replace(
    FULL,
    width=64,
    depth=3,
    mlp_width=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab=320,
    sections=(4, 2, 2),
    channels=4,
    action_dim=16,
    domains=10,
)
FULL_VAE = VaeSizes(160, 256, (1, 2, 4, 4), 2, 48, 2, (False, True, True), (0.0,) * 48, (1.0,) * 48)
TINY_VAE = replace(FULL_VAE, base=4, decoder_base=4, latent=4, mean=(0.0,) * 4, std=(1.0,) * 4)


class SparseTokenizer(ByteTokenizer):
    """A token for every fifth byte, about as many as a real tokenizer makes of a caption."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return super().encode(text)[::5]


def random_cosmos3(size: str, device: torch.device, options: Options, prompt_tokens: int, seed: int) -> Cosmos3:
    """As the server runs it, the tiny one with a smaller video. Raises ValueError for other than three cameras."""
    if len(options.frame_sizes) != len(CAMERAS):
        raise ValueError(f"cameras: {len(options.frame_sizes)} asked for; cosmos3 has {len(CAMERAS)}")
    sizes, vae = {"full": (FULL, FULL_VAE), "tiny": (TINY, TINY_VAE)}[size]
    options = Options(
        dtype=options.dtype,
        image_tokens=(310, 311),
        prompt_buckets=(prompt_tokens,),
        video_size=(80, 96) if size == "tiny" else None,
    )
    network = place(CosmosNetwork, device, sizes, vae, choose_dtypes(options, device))
    fill_random(network, seed)
    nothing = LoadReport((), (), (), (), (), (), 0, 0.0)
    deployment = replace(read_deployment(None, options), layout="random")
    return Cosmos3(CosmosParts(deployment, network, options, nothing), SparseTokenizer())
