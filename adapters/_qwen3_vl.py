"""The Qwen3-VL backbone as policies use it: images into the token sequence, the first text layers, no final norm.

Outputs of some vision blocks, merged apart, are added at the image tokens behind the first text layers. Source: arXiv
2511.21631, huggingface/transformers models/qwen3_vl.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phyai_adapters._qwen3_text import Sight, TextLayer, TextSizes, interleaved_rotary
from phyai_adapters._qwen3_vision import VisionSizes, VisionTower


class Qwen3Vl(nn.Module):
    """Tokens and patches -> features of the last kept text layer."""

    def __init__(self, vision: VisionSizes, text: TextSizes):
        super().__init__()
        self.text = text
        self.visual = VisionTower(vision)
        layers = nn.ModuleList(TextLayer(text) for _ in range(text.depth))
        self.language_model = nn.ModuleDict({"embed_tokens": nn.Embedding(text.vocab, text.width), "layers": layers})

    def forward(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, is_image: Tensor, patches: Tensor, grid: tuple[int, int]
    ) -> Tensor:
        """tokens, mask, is_image [B, T], positions [B, 3, T], patches [B, C, P, W] -> [B, T, D] before the final norm.

        The images fill the image tokens in their order; there are as many as tokens wait for them.
        """
        batch = len(patches)
        images, taps = self.visual(patches.flatten(0, 1), grid)
        own, *taps = (part.reshape(batch, -1, part.shape[-1]) for part in (images, *taps))
        slot = (is_image.cumsum(1) - 1).clamp(min=0)[..., None]  # which image token each position takes, if it is one
        x = self.language_model["embed_tokens"](tokens)
        x = torch.where(is_image[..., None], own.gather(1, slot.expand(-1, -1, own.shape[-1])), x)
        sight = Sight.causal(mask)
        rotary = interleaved_rotary(positions, self.text.head_dim, self.text.theta, self.text.sections)
        for index, layer in enumerate(self.language_model["layers"]):
            if 0 < index <= len(taps):
                added = taps[index - 1].gather(1, slot.expand(-1, -1, x.shape[-1]))
                x = torch.where(is_image[..., None], x + added, x)
            x = layer(x, rotary, sight)
        return x


def count_positions(tokens: Tensor, mask: Tensor, image_token: int, grid: tuple[int, int]) -> Tensor:
    """[B, T] -> int64 [B, 3, T]: text counts on; an image spans the rows and columns of its `grid` of tokens.

    Padding has position 1, as upstream; nothing reads it.
    """
    positions = torch.ones(len(tokens), 3, tokens.shape[1], dtype=torch.int64)
    cell = torch.arange(grid[0] * grid[1])
    image = torch.stack((torch.zeros_like(cell), cell // grid[1], cell % grid[1]))
    for row, (ids, real) in enumerate(zip(tokens.tolist(), mask.tolist(), strict=True)):
        start, at = 0, 0
        while at < len(ids):
            if not real[at]:
                at += 1
            elif ids[at] != image_token:
                positions[row, :, at] = start
                start, at = start + 1, at + 1
            else:
                positions[row, :, at : at + len(cell)] = start + image
                start, at = start + max(grid), at + len(cell)
    return positions
