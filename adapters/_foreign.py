"""Checkpoints that are recognised and cannot be run as they are: what they are, what they lack, how to convert them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from phyai_adapters._contract import FILE as CONTRACT
from phyai_adapters._graph_files import describe_network
from phyai_core.weights import Checkpoint

NETWORKS = (".onnx", ".pt", ".pth", ".jit")
LEROBOT = "config.json, policy_preprocessor.json and policy_postprocessor.json with their state files"
GROOT = "config.json, processor_config.json, statistics.json and embodiment_id.json"


class Kind(NamedTuple):
    """A policy told from the keys of its weights alone, and the files that say the rest of it."""

    key: str  # part of one of the keys
    name: str
    files: str


KINDS = (
    Kind("action_head.model.transformer_blocks.", "GR00T N1.7", GROOT),
    Kind("linear_attn.in_proj_qkv", "MiniCPM-V 4.6", "config.json"),
    Kind("vlm_with_expert.", "SmolVLA", LEROBOT),
    Kind("encoder_img_feat_input_proj.", "ACT", LEROBOT),
    Kind("diffusion.unet.", "Diffusion Policy", LEROBOT),
    Kind("add_q_proj.", "Cosmos3's transformer", "config.json"),
)
# By the entry `type` or `model_type` of config.json.
OLDER = {
    "gr00t_n1": "GR00T N1; supported is N1.7: fine-tune that with Isaac-GR00T",
    "gr00t_n1_5": "GR00T N1.5; supported is N1.7: fine-tune that with Isaac-GR00T",
    "gr00t_n1_6": "GR00T N1.6; supported is N1.7: fine-tune that with Isaac-GR00T",
    "pi0fast": "pi0-FAST of lerobot; its tokens of actions are not supported, fine-tune pi0 or pi0.5",
    "pi0_fast": "pi0-FAST of lerobot; its tokens of actions are not supported, fine-tune pi0 or pi0.5",
}
# By the entry `_class_name` of a config.json of diffusers.
PARTS = {
    "Cosmos3OmniTransformer": "the transformer of Cosmos3; give the folder that holds it as transformer/ beside vae/",
    "AutoencoderKLWan": "the video autoencoder of Cosmos3; give the folder that holds it as vae/ beside transformer/",
}


def explain_file(file: Path) -> str | None:
    """What a file is that is no folder of a checkpoint; None where that is not known."""
    if file.suffix not in NETWORKS:
        return None
    return (
        f"an exported network ({describe_network(file)}), which does not say what its numbers mean. Write {CONTRACT} "
        f'beside it, beginning with "file: {file.name}", and give that; docs/models.md lists its entries'
    )


def explain_folder(folder: Path, named: str | None) -> str | None:
    """What a folder is, `named` so by its config.json; None where that is not known."""
    return OLDER.get(named or "") or PARTS.get(named or "") or next(_by_files(folder), None)


def _by_files(folder: Path) -> Iterator[str]:
    if (folder / "params" / "_METADATA").is_file() or (folder / "_METADATA").is_file():
        yield "a JAX checkpoint of openpi; convert it with openpi's examples/convert_jax_model_to_pytorch.py"
    if (folder / "adapter_config.json").is_file():
        yield "a LoRA adapter; merge it into its base model (merge_and_unload of peft) and save that"
    if (folder / "pretrained_model").is_dir():
        yield f"a training folder of lerobot; give {folder / 'pretrained_model'}"
    if list(folder.glob("model.safetensors*")):
        keys = Checkpoint(folder).shapes
        for kind in KINDS:
            if any(kind.key in key for key in keys):
                yield f"{kind.name}, by its weights, but lacks {kind.files}: copy that from where the weights come from"
    for file in sorted(folder.iterdir()):
        if text := explain_file(file):
            yield f"a folder with {file.name}, {text}"
    if list(folder.glob("*.bin")) or list(folder.glob("*.ckpt")):
        yield "a folder of pickled weights, which are not opened; save them as model.safetensors"
