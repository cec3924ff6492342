"""Tokens of images and prompt into one prefix without holes: what is masked goes behind what is not.

    x[b, place(t)] = token t;   length[b] = number of tokens that count

Both groups keep their order. So a token's row is its position, and whoever reads the prefix needs its length only.
Letters: B robots, C images a robot, I tokens an image, T prompt tokens, P = C I + T.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton


def pack_prefix_reference(
    images: Tensor, image_mask: Tensor, prompt: Tensor, token_mask: Tensor, x: Tensor, length: Tensor
) -> None:
    """Fills x [B, P, D] and length [B] int32 from images [B C I, D], prompt [B, T, D] of any float types.

    image_mask bool [B, C], token_mask bool [B, T].
    """
    robots, cameras = image_mask.shape
    tokens = torch.cat((images.view(robots, -1, images.shape[1]).to(x.dtype), prompt.to(x.dtype)), dim=1)
    per_image = images.shape[0] // (robots * cameras)
    mask = torch.cat((image_mask.repeat_interleave(per_image, 1), token_mask), dim=1)
    order = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    x.copy_(tokens.gather(1, order[..., None].expand_as(tokens)))
    length.copy_(mask.sum(1))


@jit
def _pack_prefix_kernel(
    images_ptr,
    image_mask_ptr,
    prompt_ptr,
    token_mask_ptr,
    x_ptr,
    length_ptr,
    per_image,
    cameras,
    prompt_tokens,
    CAMERAS: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0)
    robot = tl.program_id(1)
    image_tokens = cameras * per_image
    camera = tl.arange(0, CAMERAS)
    word = tl.arange(0, TOKENS)
    shown = tl.load(image_mask_ptr + robot * cameras + camera, mask=camera < cameras, other=0).to(tl.int32)
    said = tl.load(token_mask_ptr + robot * prompt_tokens + word, mask=word < prompt_tokens, other=0).to(tl.int32)
    total = tl.sum(shown) * per_image + tl.sum(said)
    # How many of the tokens before this one count.
    begun = tl.minimum(tl.maximum(token - camera * per_image, 0), per_image)
    before = tl.sum(shown * begun) + tl.sum(tl.where(word < token - image_tokens, said, 0))
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if token < image_tokens:
        counts = tl.load(image_mask_ptr + robot * cameras + token // per_image)
        values = tl.load(images_ptr + (robot * image_tokens + token) * WIDTH + column, mask=inside)
        row = tl.where(counts != 0, before, total + token - before)
        tl.store(x_ptr + (robot * tl.num_programs(0) + row) * WIDTH + column, values, mask=inside)
    else:
        place = robot * prompt_tokens + token - image_tokens
        counts = tl.load(token_mask_ptr + place)
        values = tl.load(prompt_ptr + place * WIDTH + column, mask=inside)
        row = tl.where(counts != 0, before, total + token - before)
        tl.store(x_ptr + (robot * tl.num_programs(0) + row) * WIDTH + column, values, mask=inside)
    if token == 0:
        tl.store(length_ptr + robot, total)


def pack_prefix_triton(
    images: Tensor, image_mask: Tensor, prompt: Tensor, token_mask: Tensor, x: Tensor, length: Tensor
) -> None:
    """Same contract as the reference, in one launch."""
    (robots, tokens, width), cameras, words = x.shape, image_mask.shape[1], token_mask.shape[1]
    _pack_prefix_kernel[(tokens, robots)](
        images,
        image_mask,
        prompt,
        token_mask,
        x,
        length,
        (tokens - words) // cameras,
        cameras,
        words,
        CAMERAS=triton.next_power_of_2(cameras),
        TOKENS=triton.next_power_of_2(words),
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )


PACK_PREFIX = Op("pack_prefix", pack_prefix_reference, pack_prefix_triton)
