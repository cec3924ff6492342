"""Samples of video and chunk together, by UniPC with guidance.

What is known stays as it is: the first frame, the rows up to the present state, and rows that are frozen because the
robot will have executed them. Frozen rows follow the straight line from their noise to their values, so that every step
sees them as noisy as the others. Corrections of UniPC mix steps of one element, never two elements: a row that is put
back on its line disturbs no other, whatever the order of the solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from phyai_adapters._cosmos3 import Context, CosmosTransformer
from phyai_adapters._cosmos3_scene import Scene
from phyai_adapters._unipc import UniPc, discrete_times


class Frozen(NamedTuple):
    """Rows of the stream, all [B, R, A]: their values, bool where they are frozen, and their noise."""

    rows: Tensor
    where: Tensor
    noise: Tensor

    def put(self, actions: Tensor, sigma: float) -> Tensor:
        """Actions [B, R, A] with the frozen ones at noise level `sigma`."""
        return torch.where(self.where, (1 - sigma) * self.rows + sigma * self.noise, actions)


@dataclass(frozen=True)
class CosmosSampler:
    """Of one kind of sample. `width`: actions of the robot; the columns behind them stay zero.

    With guidance the network runs with and without the text, v = v_without + scale (v_with - v_without): a context of
    twice the batch, first with the text. These halves are what two devices could share.
    """

    network: CosmosTransformer
    scene: Scene
    width: int
    sigmas: Tensor
    scale: float = 3.0

    def velocity(self, context: Context, video: Tensor, actions: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Of video [B, C, F, h, w] and actions [B, R, A], or of n B in a context of n B texts."""
        count = len(context.text) // len(video)
        flow, rows = self.network(
            video.repeat(count, 1, 1, 1, 1), actions.repeat(count, 1, 1), time, context, self.scene
        )
        return flow, pad(rows[..., : self.width], (0, rows.shape[-1] - self.width))

    def guide(self, context: Context, video: Tensor, actions: Tensor, time: int) -> list[Tensor]:
        """The velocities of video and actions, with guidance where the context holds two texts for each."""
        velocities = self.velocity(context, video, actions, time)
        if len(context.text) == len(video):
            return list(velocities)
        halves = (velocity.chunk(2) for velocity in velocities)
        return [without + self.scale * (given - without) for given, without in halves]

    @torch.no_grad()
    def sample(
        self,
        context: Context,
        video: Tensor,
        actions: Tensor,
        frozen: Frozen | None = None,
        watch: Callable[[int, Tensor, Tensor], None] = lambda *_: None,
    ) -> tuple[Tensor, Tensor]:
        """Noise with the given parts in place -> video latents [B, C, F, h, w] and the rows to come [B, R', width].

        `watch` hears video and actions after each step.
        """
        solver, sigmas = UniPc(self.sigmas), self.sigmas.tolist()
        actions = frozen.put(actions, sigmas[0]) if frozen else actions
        for index, time in enumerate(discrete_times(self.sigmas)):
            velocity = self.guide(context, video, actions, time)
            video, actions = self._keep_given(video, actions, *solver.step(index, (video, actions), velocity))
            actions = frozen.put(actions, sigmas[index + 1]) if frozen else actions
            watch(index, video, actions)
        return video, actions[:, self.scene.clean_rows :, : self.width]

    def _keep_given(self, video: Tensor, actions: Tensor, moved: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What a step gave, but given frames and rows as they were: they have no velocity, yet rounding adds up."""
        frames, known = self.scene.clean_frames, self.scene.clean_rows
        video = torch.cat((video[:, :, :frames], moved[:, :, frames:]), dim=2)
        return video, torch.cat((actions[:, :known], rows[:, known:]), dim=1)
