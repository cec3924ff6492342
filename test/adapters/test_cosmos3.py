"""Guards against: a world-action model whose numbers are not upstream's; given frames and rows that move; positions or
time steps that are off by a bit; guidance the wrong way round."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from pi_goldens import MODELS, edit_json, tensors

from phyai_adapters._cosmos3 import Scene
from phyai_adapters._unipc import UniPc, discrete_times, flow_sigmas, karras_sigmas
from phyai_adapters.cosmos3 import CosmosSampler, load_frame_encoder, load_transformer
from phyai_adapters.detection import detect_adapter

CPU = torch.device("cpu")
POLICY = Scene(grid=(3, 3, 3), rows=8, domain=8, fps=15.0, first_row=1, clean_frames=1, clean_rows=0)
DROID = {
    "droid_state": Scene((3, 3, 3), rows=9, domain=8, fps=15.0, first_row=0, clean_frames=1, clean_rows=1),
    "droid_hist3_state": Scene((3, 3, 3), rows=12, domain=8, fps=15.0, first_row=-3, clean_frames=1, clean_rows=4),
}
CASES = {
    "karras4_cfg3": (karras_sigmas(4), 2),
    "karras4_nocfg": (karras_sigmas(4), 1),
    "karras10_nocfg": (karras_sigmas(10), 1),
    "nativeflow_shift5_4": (flow_sigmas(4, 5.0), 1),
}


@cache
def transformer():
    return load_transformer(MODELS / "cosmos3" / "transformer", CPU)


def recorded(name: str, key: str) -> torch.Tensor:
    return tensors("cosmos3", name)[key]


def start():
    """Noise, with the first frame given."""
    video = recorded("inputs", "video_init").clone()
    video[:, :, 0] = recorded("inputs", "cond_video_latents")[:, :, 0]
    return video


def branches(sampler, count: int):
    return [sampler.branch(recorded("inputs", key)[None]) for key in ("cond_ids", "neg_ids")[:count]]


def near(value, expected, atol: float = 1e-4) -> None:
    torch.testing.assert_close(value, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_samples_are_upstreams_with_every_schedule(name):
    sigmas, count = CASES[name]
    assert discrete_times(sigmas) == recorded("intermediates", f"{name}.timesteps").tolist()
    near(sigmas, recorded("intermediates", f"{name}.sigmas"), 1e-7)
    sampler, seen = CosmosSampler(transformer(), POLICY, 10, sigmas), []
    video, actions = sampler.sample(
        branches(sampler, count), start(), recorded("inputs", "action_init"), lambda *step: seen.append(step)
    )
    for index in range(2):
        near(seen[index][1], recorded("intermediates", f"{name}.after_step{index}.video"), 1e-5)
        near(seen[index][2], recorded("intermediates", f"{name}.after_step{index}.action"), 1e-5)
    near(actions, recorded("outputs", f"{name}.action"))
    near(video, recorded("outputs", f"{name}.video_latents"))
    assert torch.equal(video[:, :, 0], start()[:, :, 0])


@pytest.mark.parametrize("name", DROID)
def test_what_the_released_policy_does_with_state_and_history(name):
    scene = DROID[name]
    sampler, seen = CosmosSampler(transformer(), scene, 8, flow_sigmas(4, 5.0)), []
    noise = recorded("droid_inputs", f"{name}.action_init")
    both = branches(sampler, 2)
    for branch, which in zip(both, ("cond", "uncond"), strict=True):
        _, velocity = sampler.velocity(branch, start(), noise, 999)
        near(velocity, recorded("droid_intermediates", f"{name}.step0.{which}_velocity.action"), 1e-5)
    video, actions = sampler.sample(both, start(), noise, lambda *step: seen.append(step[2]))
    near(seen[1], recorded("droid_intermediates", f"{name}.after_step1.action"), 1e-5)
    near(actions, recorded("droid_outputs", f"{name}.action"))
    near(video, recorded("droid_outputs", f"{name}.video_latents"))
    given = recorded("droid_inputs", f"{name}.clean_rows")
    assert torch.equal(seen[-1][:, : scene.clean_rows, :8], given) and not seen[-1][..., 8:].any()


@pytest.mark.parametrize(
    ("scene", "file", "key", "text"),
    [
        (POLICY, "intermediates", "cond.position_ids", 13),
        (POLICY, "intermediates", "uncond.position_ids", 5),
        *((scene, "droid_intermediates", f"{name}.cond.position_ids", 13) for name, scene in DROID.items()),
    ],
)
def test_positions_are_the_same_bit_by_bit(scene, file, key, text):
    assert torch.equal(transformer().positions(scene, text, CPU), recorded(file, key)[:, text:])


def test_one_call_of_the_network():
    network = transformer()
    sampler = CosmosSampler(network, POLICY, 10, flow_sigmas(4, 5.0))
    (branch,) = branches(sampler, 1)
    flow, rows = sampler.velocity(branch, start(), recorded("inputs", "action_init"), 700)
    near(flow, recorded("intermediates", "fwd(t=700).video_velocity"), 1e-5)
    near(rows, recorded("intermediates", "fwd(t=700).action_velocity"), 1e-5)
    near(network.embed_time(700, CPU)[None], recorded("intermediates", "time_embed(t=700)"), 1e-5)


def test_patches_are_put_together_as_they_were_cut():
    video = torch.randn(2, 4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    patches = transformer().cut(video)
    assert patches.shape == (2, 27, 16)
    assert torch.equal(transformer().join(patches, (3, 3, 3), (5, 6)), video)


def test_the_sampler_lands_on_a_straight_flow_exactly():
    noise, clean = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    solver, x = UniPc(flow_sigmas(6, 3.0)), noise
    for index in range(6):
        (x,) = solver.step(index, (x,), (noise - clean,))
    torch.testing.assert_close(x, clean, atol=1e-3, rtol=0)  # sigma starts a little below 1


def test_one_frame_is_encoded_as_the_first_of_a_video():
    encoder, video = load_frame_encoder(MODELS / "wan22_vae", CPU), tensors("wan22_vae", "inputs")["video"]
    with torch.no_grad():
        latent = encoder(video[:, :, 0])
    near(latent, tensors("wan22_vae", "outputs")["encode1.mode"][:, :, 0], 1e-5)
    near(encoder.normalise(latent), tensors("wan22_vae", "outputs")["encode9.normalized"][:, :, 0], 1e-5)


def test_a_whole_checkpoint_is_recognised_and_refused_with_the_reason(tmp_path):
    for name in ("transformer", "vae"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="looks like Cosmos3"):
        detect_adapter(tmp_path)


def test_folders_of_something_else_are_refused(tmp_path):
    edit_json(tmp_path / "config.json", _class_name="WanTransformer3DModel")
    with pytest.raises(ValueError, match="_class_name is 'WanTransformer3DModel'; supported: 'Cosmos3Omni"):
        load_transformer(tmp_path, CPU)
    edit_json(tmp_path / "config.json", _class_name="Cosmos3OmniTransformer", action_gen=False)
    with pytest.raises(ValueError, match="action_gen has to be true"):
        load_transformer(tmp_path, CPU)
    edit_json(tmp_path / "config.json", is_residual=False)
    with pytest.raises(ValueError, match=r"supported: Wan 2\.2"):
        load_frame_encoder(tmp_path, CPU)
