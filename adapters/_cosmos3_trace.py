"""Named values of samples of Cosmos3, under the names of the parity fixtures.

A recording holds samples of two kinds: as diffusers runs a policy, without a row for the state and ten actions wide,
with several schedules; and as NVIDIA's server runs the one for DROID, with the state and states before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from phyai_adapters._cosmos3 import Context
from phyai_adapters._cosmos3_scene import Scene, place_tokens
from phyai_adapters._processing import pad_tokens
from phyai_adapters._stage import Stage
from phyai_adapters._unipc import discrete_times, exported_sigmas, flow_sigmas, karras_sigmas

if TYPE_CHECKING:
    from phyai_adapters.cosmos3 import Cosmos3

GENERIC_WIDTH, GUIDANCE, TIME = 10, 3.0, 700
GENERIC = {  # noise levels and whether it is guided
    "karras4_cfg3": (karras_sigmas(4), True),
    "karras4_nocfg": (karras_sigmas(4), False),
    "karras10_nocfg": (karras_sigmas(10), False),
    "flowshift10_4_cfg3": (exported_sigmas({"use_flow_sigmas": True, "flow_shift": 10.0}, 4), True),
    "nativeflow_shift5_4": (flow_sigmas(4, 5.0), False),
}
HISTORIES = {"droid_hist3_state": 3, "droid_state": 0}  # states before the present one
ADAPTED = "droid_state"  # the sample that the adapter makes with the server's settings


def recorded_inputs(adapter: Cosmos3, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs and noise of the sample ADAPTED, and all that was recorded, each with B = 1."""
    width, known = adapter.spec.latent_dim, adapter.sampler.scene.clean_rows
    rows = recorded[f"{ADAPTED}.action_init"]
    pixels = recorded["video_init"][:, :, 1:].flatten(1)
    missing = (adapter.spec.noise_shape[0] - adapter.spec.action_horizon) * width - pixels.shape[1]
    if rows.shape[1] != known + adapter.spec.action_horizon or not 0 <= missing < width:
        raise ValueError(
            f"--io: {rows.shape[1]} rows and a video of {list(recorded['video_init'].shape[2:])} latents recorded; "
            "set action_horizon and video_size in phyai.json to these"
        )
    tokens, mask = pad_tokens(recorded["cond_ids"].tolist(), adapter.prompt_buckets, adapter.text.pad_id)
    return {
        **{f"recorded.{name}": tensor for name, tensor in recorded.items() if name.endswith("_init")},
        "recorded.cond_ids": recorded["cond_ids"][None],
        "tokens": tokens,
        "token_mask": mask,
        "empty_tokens": recorded["neg_ids"][None],
        "empty_mask": torch.ones(1, len(recorded["neg_ids"]), dtype=torch.bool),
        "frame": recorded["cond_video_latents"][:, :, 0],
        "state": rows[:, :known, :width],
        "noise": torch.cat((rows[:, known:, :width], pad(pixels, (0, missing)).unflatten(1, (-1, width))), dim=1),
    }


@torch.no_grad()
def trace(adapter: Cosmos3, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
    """Run every recorded sample, yielding its named values."""
    samples = _Samples(adapter, inputs)
    generic = replace(
        adapter.sampler.scene, rows=adapter.spec.action_horizon, first_row=1, clean_rows=0, fps=samples.fps
    )
    yield from samples.follow_call(generic)
    for name, (sigmas, guided) in GENERIC.items():
        yield from samples.follow(name, generic, GENERIC_WIDTH, sigmas, guided, inputs["recorded.action_init"])
    for name, history in HISTORIES.items():
        rows = history + 1 + adapter.spec.action_horizon
        scene = replace(generic, rows=rows, first_row=-history, clean_rows=history + 1)
        start = inputs[f"recorded.{name}.action_init"]
        yield from samples.follow(name, scene, adapter.spec.latent_dim, flow_sigmas(4, 5.0), True, start)
    yield Stage(f"{ADAPTED}.action", adapter.predict(adapter.encode_prefix(inputs), noise))


class _Samples:
    """The texts and the video of all samples of a recording."""

    fps = 15.0

    def __init__(self, adapter: Cosmos3, inputs: Mapping[str, Tensor]):
        self.adapter, self.network = adapter, adapter.network.transformer
        self.texts = {"cond": inputs["recorded.cond_ids"], "uncond": inputs["empty_tokens"]}
        self.video = torch.cat((inputs["frame"][:, :, None], inputs["recorded.video_init"][:, :, 1:]), dim=2)
        self.actions = inputs["recorded.action_init"]

    def context(self, scene: Scene, guided: bool) -> Context:
        """Behind the text, and with guidance also behind none."""
        given, empty = self.texts["cond"], self.texts["uncond"]
        mask, none = (torch.ones_like(text, dtype=torch.bool) for text in (given, empty))
        if guided:
            more = (0, given.shape[1] - empty.shape[1])
            given, mask = torch.cat((given, pad(empty, more))), torch.cat((mask, pad(none, more)))
        return self.network.place(self.network.read(given), mask, scene)

    def follow_call(self, scene: Scene) -> Iterator[Stage]:
        """One call of the network, and where tokens stand."""
        for name, text in self.texts.items():
            yield Stage(f"{name}.position_ids", self._positions(scene, text))
        yield Stage(f"time_embed(t={TIME})", self.network.embed_time(TIME, self.video.device)[None])
        sampler = replace(self.adapter.sampler, scene=scene, width=GENERIC_WIDTH)
        flow, rows = sampler.velocity(self.context(scene, guided=False), self.video, self.actions, TIME)
        yield Stage(f"fwd(t={TIME}).video_velocity", flow)
        yield Stage(f"fwd(t={TIME}).action_velocity", rows)

    def follow(
        self, name: str, scene: Scene, width: int, sigmas: Tensor, guided: bool, actions: Tensor
    ) -> Iterator[Stage]:
        """One sample, step by step."""
        sampler = replace(self.adapter.sampler, scene=scene, width=width, sigmas=sigmas, scale=GUIDANCE)
        context, seen = self.context(scene, guided), []
        yield Stage(f"{name}.sigmas", sigmas)
        times = discrete_times(sigmas)
        yield Stage(f"{name}.timesteps", torch.tensor(times))
        if scene.clean_rows:
            yield Stage(f"{name}.cond.position_ids", self._positions(scene, self.texts["cond"]))
            halves = sampler.velocity(context, self.video, actions, times[0])[1].chunk(2)
            for text, rows in zip(self.texts, halves, strict=True):
                yield Stage(f"{name}.step0.{text}_velocity.action", rows)
        video, chunk = sampler.sample(context, self.video, actions, watch=lambda *step: seen.append(step))
        for step, frames, rows in seen:
            yield Stage(f"{name}.after_step{step}.video", frames)
            yield Stage(f"{name}.after_step{step}.action", rows)
        yield Stage(f"{name}.video_latents", video)
        yield Stage(f"{name}.action", chunk)

    def _positions(self, scene: Scene, text: Tensor) -> Tensor:
        """[3, L + T] of the text and what stands behind it."""
        length = torch.tensor([text.shape[1]], device=text.device)
        behind = place_tokens(self.network.sizes, scene, length)[0]
        return torch.cat((torch.arange(text.shape[1], device=text.device).expand(3, -1).float(), behind), dim=1)
