"""Guards against: cameras or words in another order than Cosmos3 was trained with; weights, options and layouts that do
not fit taken silently."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from pi_goldens import MODELS, edit_json

from phyai_adapters import load_adapter
from phyai_adapters._cosmos3_canvas import compose, fill_video_frame
from phyai_adapters._cosmos3_text import caption
from phyai_adapters.cosmos3 import Cosmos3
from phyai_adapters.description import describe_checkpoint
from phyai_adapters.detection import detect_adapter

CPU = torch.device("cpu")
FOLDER = MODELS / "cosmos3"
# As NVIDIA's server logs it, with the released checkpoint and its defaults.
LOGGED = (
    "Put the cube and the banana in the bowl. This video contains concatenated views from multiple camera "
    "perspectives. The top row is from the wrist-mounted camera. The bottom row contains two horizontally concatenated "
    "third-person perspective views of the scene from opposite sides, with the robot visible. The video is 2.0 seconds "
    "long and is of 15 FPS. This video is of 544x736 resolution."
)


@cache
def loaded() -> Cosmos3:
    return load_adapter("cosmos3", FOLDER, CPU)


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "cosmos3"
    shutil.copytree(FOLDER, target, ignore=shutil.ignore_patterns("*puts.safetensors", "*intermediates*"))
    return target


def test_the_caption_is_what_the_server_logs():
    for task in ("Put the cube and the banana in the bowl", "Put the cube and the banana in the bowl. "):
        assert caption(task, 32, 15.0, (544, 736), as_json=False) == LOGGED
    values = json.loads(caption("lift it", 32, 15.0, (544, 736), as_json=True))
    assert list(values) == ["cinematography", "actions", "duration", "fps", "resolution", "aspect_ratio"]
    assert values["actions"] == [{"time": "0:00-0:02", "description": "lift it."}]
    assert (values["duration"], values["fps"], values["aspect_ratio"]) == ("2s", 15.0, "4,3")
    assert values["resolution"] == {"H": 544, "W": 736} and values["cinematography"]["framing"] in LOGGED


def test_the_text_is_put_into_the_template():
    tokens = loaded().text.encode("go")
    text = "".join(chr(token - 3) if token < 300 else f"<{token}>" for token in tokens)
    assert text == "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n<310><311>"


def test_cameras_have_their_places_on_the_canvas():
    frames = [np.full((360, 640, 3), 10, np.uint8), *(np.full((180, 320, 3), value, np.uint8) for value in (20, 30))]
    canvas = compose(frames, (544, 736))
    assert canvas.shape == (540, 640, 3)
    assert set(canvas[:360].flatten().tolist()) == {10}
    assert set(canvas[360:, :320].flatten().tolist()) == {20} and set(canvas[360:, 320:].flatten().tolist()) == {30}
    larger = [np.repeat(np.repeat(frame, 2, 0), 2, 1) for frame in frames]
    assert torch.equal(compose(larger, (544, 736)), canvas)
    assert compose(frames, (256, 320)).shape == (256, 303, 3)
    with pytest.raises(ValueError, match=r"wrist: \[1, 640\] pixels given; wanted are 2 x 2 or more"):
        compose([frames[0][:1], *frames[1:]], (544, 736))
    picture = fill_video_frame(canvas[None], (544, 736))
    assert picture.shape == (1, 3, 544, 736) and picture.max() == 30 / 127.5 - 1
    assert torch.equal(picture[..., :540, 640:], picture[..., :540, 543:639].flip(-1))


def test_weights_in_shards_are_read(folder):
    from safetensors.torch import load_file, save_file

    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = sorted(load_file(file).items())
    file.unlink()
    halves = [dict(weights[: len(weights) // 2]), dict(weights[len(weights) // 2 :])]
    names = [f"diffusion_pytorch_model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for name, half in zip(names, halves, strict=True):
        save_file(half, file.parent / name)
    where = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    (file.parent / f"{file.name}.index.json").write_text(json.dumps({"weight_map": where}))
    adapter = load_adapter("cosmos3", folder, CPU)
    assert torch.equal(adapter.network.transformer.proj_in.weight, loaded().network.transformer.proj_in.weight)


def test_it_is_recognised_and_described():
    assert detect_adapter(FOLDER) == "cosmos3"
    found = describe_checkpoint(FOLDER, "cosmos3")
    assert found.layout == "diffusers" and found.spec == loaded().spec and found.to_do == ()
    assert found.parameters == sum(parameter.numel() for parameter in loaded().network.parameters())
    assert found.spec.rtc_modes == ("none", "hard") and found.spec.branches == 2


def refused(folder, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_adapter("cosmos3", folder, CPU)


def test_what_is_missing_is_named(folder):
    edit_json(folder / "phyai.json", image_tokens=None)
    refused(folder, r"image_tokens: the tokenizer has no <\|im_end\|>, <\|vision_start\|>")
    edit_json(folder / "phyai.json", tokenizer=None, image_tokens=[310, 311])
    refused(folder, r"tokenizer: .*text_tokenizer has none of")
    edit_json(folder / "phyai.json", tokenizer="bytes")
    shutil.rmtree(folder / "vae")
    refused(folder, "cosmos3 has no vae/; Cosmos3 needs transformer/, vae/")


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("action_horizon", 30, "action_horizon: 30 given; allowed are multiples of 4"),
        ("video_size", [80, 90], r"video_size: \[80, 90\] given; allowed are \[height, width\] in multiples of 16"),
        ("state_names", ["a"], "state_names: 1 names given, wanted are 8"),
        ("guidance", 0, "guidance: 0 is out of range"),
        ("history", -1, "history: -1 is too small"),
        ("schedule", "linear", "schedule: 'linear' is unknown; allowed: server, exported"),
        ("prompt_format", "xml", "prompt_format: 'xml' is unknown; allowed: text, json"),
        ("embodiment", "droid", "embodiment has no meaning for cosmos3"),
    ],
)
def test_options_that_do_not_fit_are_named(folder, option, value, match):
    edit_json(folder / "phyai.json", **{option: value})
    refused(folder, match)


def test_networks_of_another_kind_are_named(folder):
    edit_json(folder / "transformer" / "config.json", num_embodiment_domains=8)
    refused(folder, "8 kinds of robots with 16 values; the robot of DROID is number 8 and has 8")
    edit_json(folder / "transformer" / "config.json", num_embodiment_domains=10, action_gen=False)
    refused(folder, "action_gen has to be true")
    edit_json(folder / "transformer" / "config.json", _class_name="WanTransformer3DModel")
    refused(folder, r"_class_name is 'WanTransformer3DModel' \(diffusers 0.42.1\); supported: 'Cosmos3Omni")
    edit_json(folder / "transformer" / "config.json", _class_name="Cosmos3OmniTransformer", action_gen=True)
    edit_json(folder / "vae" / "config.json", is_residual=False)
    refused(folder, r"vae.config.json: is_residual is false .*supported: Wan 2\.2")
    edit_json(folder / "vae" / "config.json", is_residual=True, z_dim=5)
    refused(folder, "latents of 5 channels, the transformer takes 4")
