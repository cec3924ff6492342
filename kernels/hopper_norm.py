"""The consumer's half of a folded norm (skinny.py) for the Hopper kernels."""

from __future__ import annotations

from phyai_kernels.hopper import gl, gluon_jit


@gluon_jit
def load_norm_factor(row_sums_ptr, ROWS: gl.constexpr, WIDTH: gl.constexpr, EPS: gl.constexpr, LAYOUT: gl.constexpr):
    """1 / rms of 64 rows along the rows of an accumulator of layout LAYOUT, from sums of squares [WIDTH / 64, ROWS]."""
    TILES: gl.constexpr = WIDTH // 64
    SUMS: gl.constexpr = gl.BlockedLayout([TILES, 1], [1, 32], [1, 4], [1, 0])
    tile = gl.arange(0, TILES, gl.SliceLayout(1, SUMS))
    row = gl.arange(0, 64, gl.SliceLayout(0, SUMS))
    sums = gl.load(row_sums_ptr + tile[:, None] * ROWS + row[None, :], mask=(row < ROWS)[None, :], other=0.0)
    return gl.convert_layout(gl.rsqrt(gl.sum(sums, 0) / WIDTH + EPS), gl.SliceLayout(1, LAYOUT))
