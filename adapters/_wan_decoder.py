"""The decoder of the Wan 2.2 video autoencoder: latents of a video -> its frames. To see what a policy expects.

Causal in time: a frame depends on the latents up to its own. The first latent is one frame, every other one is four,
because the doublings of time leave the first frame alone and start from nothing behind it. Names of members are those
of the files. B batch, C channels, F frames.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.functional import conv3d, interpolate, pad, silu

from phyai_adapters._wan_vae import HALVINGS, PIXELS, Norm, PixelAttention, ResidualBlock, VaeSizes


class VideoConv(nn.Module):
    """A convolution over height, width and the frames up to the present one."""

    def __init__(self, inputs: int, outputs: int, kernel: int, space: int | None = None):
        super().__init__()
        space = kernel if space is None else space
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, space, space))
        self.bias = nn.Parameter(torch.empty(outputs))
        self._margins = (space // 2,) * 4 + (kernel - 1, 0)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, F, h, w] -> [B, C', F, h, w]."""
        return conv3d(pad(x, self._margins), self.weight, self.bias)


class Doubling(nn.Module):
    """Twice the height and width, and twice the frames but the first where `doubles_time`."""

    def __init__(self, channels: int, doubles_time: bool):
        super().__init__()
        self.resample = nn.ModuleList([nn.Identity(), nn.Conv2d(channels, channels, 3, padding=1)])
        self.time_conv = VideoConv(channels, 2 * channels, 3, space=1) if doubles_time else None

    def forward(self, x: Tensor) -> Tensor:
        if self.time_conv is not None:
            pairs = self.time_conv(x[:, :, 1:]).unflatten(1, (2, -1)) if x.shape[2] > 1 else None
            later = [] if pairs is None else [pairs.permute(0, 2, 3, 1, 4, 5).flatten(2, 3)]
            x = torch.cat((x[:, :, :1], *later), dim=2)
        frames = x.transpose(1, 2).flatten(0, 1)
        frames = self.resample[1](interpolate(frames, scale_factor=2.0, mode="nearest-exact"))
        return frames.unflatten(0, (len(x), -1)).transpose(1, 2)


class UpBlock(nn.Module):
    """Residual blocks, a doubling, and beside them a shortcut of copies."""

    def __init__(self, inputs: int, outputs: int, count: int, doubles: bool, doubles_time: bool):
        super().__init__()
        self.resnets = nn.ModuleList(
            ResidualBlock(outputs if index else inputs, outputs, VideoConv) for index in range(count)
        )
        self.upsampler = Doubling(outputs, doubles_time) if doubles else None
        self.outputs, self.time = outputs, 2 if doubles_time else 1

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for block in self.resnets:
            out = block(out)
        return out if self.upsampler is None else self.upsampler(out) + self._copy(x)

    def _copy(self, x: Tensor) -> Tensor:
        """Channels become pixels (and frames, of which the first come before the video and are dropped)."""
        s, t = HALVINGS, self.time
        x = x.repeat_interleave(self.outputs * t * s * s // x.shape[1], dim=1)
        x = x.unflatten(1, (self.outputs, t, s, s)).permute(0, 1, 5, 2, 6, 3, 7, 4)  # B, C, F, t, h, s, w, s
        return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)[:, :, t - 1 :]


class VideoDecoder(nn.Module):
    """Latents as the encoder gives them, not normalised -> frames in [-1, 1]."""

    def __init__(self, sizes: VaeSizes):
        super().__init__()
        self.sizes = sizes
        factors = (sizes.factors[-1], *reversed(sizes.factors))
        widths, last = [sizes.decoder_base * factor for factor in factors], len(sizes.factors) - 1
        times = (*reversed(sizes.halves_time), False)
        blocks = [UpBlock(*widths[i : i + 2], sizes.blocks + 1, i != last, times[i]) for i in range(last + 1)]
        middle = {
            "resnets": nn.ModuleList(ResidualBlock(widths[0], widths[0], VideoConv) for _ in range(2)),
            "attentions": nn.ModuleList([PixelAttention(widths[0])]),
        }
        self.decoder = nn.ModuleDict(
            {
                "conv_in": VideoConv(sizes.latent, widths[0], 3),
                "mid_block": nn.ModuleDict(middle),
                "up_blocks": nn.ModuleList(blocks),
                "norm_out": Norm(widths[-1]),
                "conv_out": VideoConv(widths[-1], 3 * sizes.patch**2, 3),
            }
        )
        self.post_quant_conv = VideoConv(sizes.latent, sizes.latent, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """[B, C, F', h, w] -> frames [B, 3, 4 F' - 3, 16 h, 16 w] in [-1, 1]."""
        part, p = self.decoder, self.sizes.patch
        x = part["conv_in"](self.post_quant_conv(latents))
        first, second = part["mid_block"]["resnets"]
        x = first(x)
        frames = part["mid_block"]["attentions"][0](x.transpose(1, 2).flatten(0, 1))
        x = second(frames.unflatten(0, (len(x), -1)).transpose(1, 2))
        for block in part["up_blocks"]:
            x = block(x)
        x = part["conv_out"](silu(part["norm_out"](x))).unflatten(1, (3, p, p))  # B, 3, q, p, F, h, w
        return x.permute(0, 1, 4, 5, 3, 6, 2).flatten(5).flatten(3, 4).clamp(-1.0, 1.0)

    def decode_tiled(self, latents: Tensor, tile: int, overlap: int) -> Tensor:
        """As forward, in square tiles of so many latents, which fade into each other over `overlap` of them.

        Takes the memory of one tile. Each tile looks at itself alone, so that the result is a little different. Raises
        ValueError for tiles that would not get on.
        """
        if not 0 <= overlap < tile:
            raise ValueError(f"overlap: {overlap} latents given; allowed are 0 to {tile - 1} with tiles of {tile}")
        height, width = latents.shape[-2:]
        total, weights = latents.new_zeros(()), latents.new_zeros(PIXELS * height, PIXELS * width)
        for top, left in product(_starts(height, tile, overlap), _starts(width, tile, overlap)):
            part = self(latents[..., top : top + tile, left : left + tile])
            down, across = (_fade(size, overlap * PIXELS, part) for size in part.shape[-2:])
            weight, place = down[:, None] * across, (..., *_pixels(top, down), *_pixels(left, across))
            if not total.dim():
                total = part.new_zeros(*part.shape[:-2], *weights.shape)
            total[place] += part * weight
            weights[place] += weight
        return total / weights


def _starts(length: int, tile: int, overlap: int) -> list[int]:
    """Where tiles begin, so that the last one ends with the picture."""
    last = max(length - tile, 0)
    return [*range(0, last, tile - overlap), last]


def _pixels(start: int, along: Tensor) -> tuple[slice]:
    """Where the pixels of a tile lie."""
    return (slice(start * PIXELS, start * PIXELS + len(along)),)


def _fade(size: int, overlap: int, like: Tensor) -> Tensor:
    """[size] rising at one end and falling at the other."""
    ramp = (torch.arange(size, device=like.device, dtype=like.dtype) + 1) / (overlap + 1)
    return torch.minimum(ramp, ramp.flip(0)).clamp(max=1.0)
