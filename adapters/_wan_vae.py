"""The encoder of the Wan 2.2 video autoencoder, for one frame: what conditions a policy is the present picture.

The encoder is causal, so the latent of a first frame depends on that frame alone: convolutions over time see zeros
before it, which leaves the last slice of their kernels, and halving of time passes it on. Names of members are those of
the files. B batch, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, normalize, pad, scaled_dot_product_attention, silu

HALVINGS = 2  # of height and width by one block
PIXELS, FRAMES = 16, 4  # of one latent: down and across, and in time behind the first


@dataclass(frozen=True)
class VaeSizes:
    """Sizes of encoder and decoder. `halves_time`: per block but the last."""

    base: int
    decoder_base: int
    factors: tuple[int, ...]
    blocks: int  # residual blocks per level
    latent: int
    patch: int
    halves_time: tuple[bool, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_sizes(config: Mapping[str, Any]) -> VaeSizes:
    """Of a config.json. Raises ValueError for autoencoders of another kind."""
    if not config.get("is_residual") or config.get("attn_scales"):
        raise ValueError("is_residual is false or attn_scales is set; supported: Wan 2.2")
    return VaeSizes(
        base=config["base_dim"],
        decoder_base=config.get("decoder_base_dim") or config["base_dim"],
        factors=tuple(config["dim_mult"]),
        blocks=config["num_res_blocks"],
        latent=config["z_dim"],
        patch=config["patch_size"],
        halves_time=tuple(config["temperal_downsample"]),
        mean=tuple(config["latents_mean"]),
        std=tuple(config["latents_std"]),
    )


class Norm(nn.Module):
    """Each pixel's channels to length sqrt(C), times gamma."""

    def __init__(self, channels: int, axes: int = 3):
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(channels, *[1] * axes))

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=1) * x.shape[1] ** 0.5 * self.gamma.reshape(-1, *[1] * (x.dim() - 2))


class FrameConv(nn.Module):
    """A causal convolution over time, height and width, on one frame with nothing before it."""

    def __init__(self, inputs: int, outputs: int, kernel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C', h, w]."""
        return conv2d(x, self.weight[:, :, -1], self.bias, padding=self.weight.shape[-1] // 2)


class ResidualBlock(nn.Module):
    """Two convolutions behind their norms."""

    def __init__(self, inputs: int, outputs: int, conv: Callable[[int, int, int], nn.Module] = FrameConv):
        super().__init__()
        self.norm1, self.conv1 = Norm(inputs), conv(inputs, outputs, 3)
        self.norm2, self.conv2 = Norm(outputs), conv(outputs, outputs, 3)
        self.conv_shortcut = conv(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(silu(self.norm1(x)))
        return self.conv2(silu(self.norm2(inner))) + self.conv_shortcut(x)


class Halving(nn.Module):
    """Half the height and width; what halves time does not touch a first frame."""

    def __init__(self, channels: int):
        super().__init__()
        self.resample = nn.ModuleList([nn.Identity(), nn.Conv2d(channels, channels, 3, stride=2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.resample[1](pad(x, (0, 1, 0, 1)))


class DownBlock(nn.Module):
    """Residual blocks, a halving, and beside them a shortcut of means."""

    def __init__(self, inputs: int, outputs: int, count: int, halves: bool, halves_time: bool):
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(outputs if index else inputs, outputs) for index in range(count))
        self.downsampler = Halving(outputs) if halves else nn.Identity()
        self.outputs, self.space, self.time = outputs, HALVINGS if halves else 1, 2 if halves_time else 1

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self._average(x)
        for block in self.resnets:
            x = block(x)
        return self.downsampler(x) + shortcut

    def _average(self, x: Tensor) -> Tensor:
        """Pixels (and frames, of which the one before is zero) become channels, of which groups are averaged."""
        s = self.space
        x = x.unflatten(3, (-1, s)).unflatten(2, (-1, s)).permute(0, 1, 3, 5, 2, 4)  # B, C, s, s, h, w
        x = x.flatten(2, 3)[:, :, None]
        if self.time == 2:
            x = torch.cat((torch.zeros_like(x), x), dim=2)
        x = x.flatten(1, 3)
        return x.unflatten(1, (self.outputs, -1)).mean(2)


class PixelAttention(nn.Module):
    """One head over all pixels of a frame."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm, self.to_qkv = Norm(channels, axes=2), nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(self.norm(x)).flatten(2).mT[:, None].chunk(3, dim=-1)
        return x + self.proj(scaled_dot_product_attention(q, k, v)[:, 0].mT.unflatten(2, x.shape[2:]))


class FrameEncoder(nn.Module):
    """Frames -> the latents of videos that begin with them."""

    def __init__(self, sizes: VaeSizes):
        super().__init__()
        self.sizes = sizes
        widths = [sizes.base * factor for factor in (1, *sizes.factors)]
        last = len(sizes.factors) - 1
        halves_time = (*sizes.halves_time, False)
        blocks = [
            DownBlock(*widths[i : i + 2], sizes.blocks, i != last, halves_time[i]) for i in range(len(sizes.factors))
        ]
        middle = {
            "resnets": nn.ModuleList(ResidualBlock(widths[-1], widths[-1]) for _ in range(2)),
            "attentions": nn.ModuleList([PixelAttention(widths[-1])]),
        }
        self.encoder = nn.ModuleDict(
            {
                "conv_in": FrameConv(3 * sizes.patch**2, widths[0], 3),
                "down_blocks": nn.ModuleList(blocks),
                "mid_block": nn.ModuleDict(middle),
                "norm_out": Norm(widths[-1]),
                "conv_out": FrameConv(widths[-1], 2 * sizes.latent, 3),
            }
        )
        self.quant_conv = FrameConv(2 * sizes.latent, 2 * sizes.latent, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """frames [B, 3, h, w] in [-1, 1] -> the most likely latent [B, C, h / 16, w / 16], not yet normalised."""
        part, p = self.encoder, self.sizes.patch
        x = frames.unflatten(3, (-1, p)).unflatten(2, (-1, p)).permute(0, 1, 5, 3, 2, 4).flatten(1, 3)
        x = part["conv_in"](x)
        for block in part["down_blocks"]:
            x = block(x)
        first, second = part["mid_block"]["resnets"]
        x = second(part["mid_block"]["attentions"][0](first(x)))
        return self.quant_conv(part["conv_out"](silu(part["norm_out"](x)))).chunk(2, dim=1)[0]


class LatentUnits(NamedTuple):
    """Latents as the autoencoder gives them <-> as the transformer takes them. Both [C, 1, 1]."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, sizes: VaeSizes, device: torch.device) -> LatentUnits:
        """Made once: what a graph captures must not come from the host."""
        return cls(*(torch.tensor(values, device=device)[:, None, None] for values in (sizes.mean, sizes.std)))

    def normalise(self, latent: Tensor) -> Tensor:
        """[B, C, h, w] -> what the transformer takes."""
        return (latent - self.mean) / self.std

    def restore(self, video: Tensor) -> Tensor:
        """[B, C, F, h, w] of the transformer -> what the decoder takes."""
        return video * self.std[:, None] + self.mean[:, None]


NEVER_USED = ("encoder.down_blocks.*.downsampler.time_conv.*",)
UNUSED = ("decoder.*", "post_quant_conv.*", *NEVER_USED)
