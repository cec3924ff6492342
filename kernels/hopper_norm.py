"""The consumer's half of a folded norm (skinny.py) for the Hopper kernels."""

from __future__ import annotations

from phyai_kernels.hopper import gl, gluon_jit


@gluon_jit
def load_row_sums(row_sums_ptr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Sums of squares [WIDTH / 64, 64] of one row tile, one column per thread; to be read after the wait."""
    TILES: gl.constexpr = WIDTH // 64
    LAYOUT: gl.constexpr = gl.BlockedLayout([TILES, 1], [1, 32], [1, 4], [1, 0])
    tile = gl.arange(0, TILES, gl.SliceLayout(1, LAYOUT))
    row = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    return gl.load(row_sums_ptr + tile[:, None] * ROWS + row[None, :], mask=(row < ROWS)[None, :], other=0.0)


@gluon_jit
def norm_factor(row_sums, WIDTH: gl.constexpr, EPS: gl.constexpr, LAYOUT: gl.constexpr):
    """1 / rms per row, laid out along the rows of an accumulator of layout LAYOUT."""
    factor = gl.rsqrt(gl.sum(row_sums, 0) / WIDTH + EPS)
    return gl.convert_layout(factor, gl.SliceLayout(1, LAYOUT))
