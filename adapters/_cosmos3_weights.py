"""Transformer and autoencoder of Cosmos3 from `transformer/` and `vae/` of a checkpoint in the layout of diffusers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from phyai_adapters import _wan_decoder, _wan_vae
from phyai_adapters._camera_policy import place
from phyai_adapters._cosmos3 import CosmosTransformer
from phyai_adapters._cosmos3_files import DOMAIN, WIDTH
from phyai_adapters._cosmos3_scene import CosmosSizes, read_sizes
from phyai_adapters._deployment import read_json
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

TRANSFORMER, VAE = "Cosmos3OmniTransformer", "AutoencoderKLWan"
STEM = "diffusion_pytorch_model"
UNUSED = ("lm_head.weight", "norm.weight")  # of text that is generated
Dtypes = tuple[torch.dtype, torch.dtype]


class CosmosNetwork(nn.Module):
    """Transformer, frame encoder and, where predicted videos are wanted, the decoder. `dtypes`: of it, and of both."""

    def __init__(self, sizes: CosmosSizes, vae: _wan_vae.VaeSizes, dtypes: Dtypes, decodes: bool = False):
        super().__init__()
        self.transformer = CosmosTransformer(sizes).to(dtypes[0])
        self.encoder = _wan_vae.FrameEncoder(vae).to(dtypes[1])
        self.decoder = _wan_decoder.VideoDecoder(vae).to(dtypes[1]) if decodes else None


def load_network(
    folder: Path, device: torch.device, dtypes: Dtypes, decodes: bool, progress: Progress | None = None
) -> tuple[CosmosNetwork, LoadReport]:
    """The network and what became of the transformer's weights. Raises ValueError naming the file and key at fault."""
    for part in ("transformer", "vae"):
        if not (folder / part).is_dir():
            raise ValueError(
                f"checkpoint: {folder} has no {part}/; Cosmos3 needs transformer/, vae/ (Wan 2.2) and text_tokenizer/ "
                "in the layout of diffusers: copy it from where the others come from"
            )
    sizes, vae = read_transformer_sizes(folder / "transformer"), read_vae_sizes(folder / "vae")
    if vae.latent != sizes.channels:
        raise ValueError(f"{folder / 'vae'}: latents of {vae.latent} channels, the transformer takes {sizes.channels}")
    network = place(CosmosNetwork, device, sizes, vae, dtypes, decodes)
    weights = Checkpoint(folder / "transformer", STEM)
    report = load_weights(weights, network.transformer.state_dict(), unused=UNUSED, progress=progress)
    targets, unused = network.encoder.state_dict(), _wan_vae.UNUSED
    if network.decoder is not None:
        targets, unused = {**targets, **network.decoder.state_dict()}, _wan_vae.NEVER_USED
    load_weights(Checkpoint(folder / "vae", STEM), targets, unused=unused)
    return network, report


def read_transformer_sizes(folder: Path) -> CosmosSizes:
    """Of `transformer/`. Raises ValueError for networks of another kind, or without the robot of the policy."""
    file, config = folder / "config.json", read_json(folder / "config.json")
    _check_kind(file, config, TRANSFORMER)
    if not config.get("action_gen") or config.get("sound_gen"):
        raise ValueError(f"{file}: action_gen has to be true and sound_gen false")
    sizes = read_sizes(config)
    if sizes.domains <= DOMAIN or sizes.action_dim < WIDTH:
        raise ValueError(
            f"{file}: {sizes.domains} kinds of robots with {sizes.action_dim} values; the robot of DROID is number "
            f"{DOMAIN} and has {WIDTH}"
        )
    return sizes


def read_vae_sizes(folder: Path) -> _wan_vae.VaeSizes:
    """Of `vae/`. Raises ValueError for autoencoders of another kind."""
    file, config = folder / "config.json", read_json(folder / "config.json")
    _check_kind(file, config, VAE)
    try:
        return _wan_vae.read_sizes(config)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _check_kind(file: Path, config: dict, wanted: str) -> None:
    if (kind := config.get("_class_name")) != wanted:
        version = f" (diffusers {config['_diffusers_version']})" if "_diffusers_version" in config else ""
        raise ValueError(f"{file}: _class_name is {kind!r}{version}; supported: {wanted!r}")
