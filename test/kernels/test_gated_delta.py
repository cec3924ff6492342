"""Guards against: chunks that do not add up to the rule token by token, at lengths that no chunk divides; keys that
repeat, as those of a plain wall do; decays and rates at their ends; a state that is not carried on; heads that the
kernels cannot take.
"""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned, relative_error

from phyai_kernels.gated_delta import GATED_DELTA
from phyai_kernels.gated_delta_chunks import CHUNK, gated_delta_triton

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [  # B, T, M, N, K, V
    (1, 1, 1, 1, 16, 16),
    (2, CHUNK + 1, 2, 4, 16, 32),
    (1, 2 * CHUNK, 1, 3, 64, 16),
    (1, CHUNK + 7, 1, 1, 128, 128),
]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


def make_inputs(generator, where, shape, dtype=torch.float32):
    """Arguments of the operation before `state` and `out`."""
    batch, tokens, shared, heads, key, value = shape
    given = draw(generator, batch, tokens, shared, key, dtype=dtype, device=where)
    k = draw(generator, batch, tokens, shared, key, dtype=dtype, device=where)
    v = draw(generator, batch, tokens, heads, value, dtype=dtype, device=where)
    rates = (draw(generator, batch, tokens, heads, dtype=dtype, device=where) for _ in range(2))
    constants = (draw(generator, heads, device=where) for _ in range(2))
    return [given, k, v, *rates, *constants]


def run(function, inputs, state):
    """(out, state) as the function leaves them."""
    v, state = inputs[2], state.clone()
    out = poisoned(*v.shape, device=v.device).to(v.dtype)
    function(*inputs, state, out)
    return out, state


def compare(inputs, state, tolerance=None):
    """The kernels, and the same in float32 token by token."""
    wide = [x.float() for x in inputs]
    (out, left), (expected, expected_left) = (
        run(gated_delta_triton, inputs, state),
        run(GATED_DELTA.reference, wide, state),
    )
    assert_agrees(out, expected.to(out.dtype))
    assert_agrees(left, expected_left)
    if tolerance is not None:
        assert max(relative_error(out, expected), relative_error(left, expected_left)) < tolerance


def start(generator, where, shape):
    batch, _, _, heads, key, value = shape
    return draw(generator, batch, heads, key, value, device=where)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_are_the_rule_token_by_token(generator, where, shape, dtype):
    if where.type == "cpu" and dtype == torch.bfloat16:
        dtype = torch.float16  # the interpreter multiplies bfloat16 wrongly
    compare(make_inputs(generator, where, shape, dtype), start(generator, where, shape))


def test_float32_is_not_rounded_on_the_way(generator, where):
    shape = SHAPES[1]
    compare(make_inputs(generator, where, shape), start(generator, where, shape), tolerance=1e-5)


def test_keys_that_repeat_and_do_not_decay(generator, where):
    """Each token wholly replaces what the one before wrote; sums of powers would lose all digits here."""
    shape = (1, 2 * CHUNK + 5, 1, 1, 32, 16)
    q, k, v, a, b, a_log, dt_bias = make_inputs(generator, where, shape)
    k, a, b = k[:, :1].expand_as(k).contiguous(), torch.full_like(a, -30.0), torch.full_like(b, 20.0)
    compare([q, k, v, a, b, a_log, dt_bias], start(generator, where, shape), tolerance=1e-4)


@pytest.mark.parametrize("rate", [-60.0, 60.0])
def test_decays_at_both_ends_stay_finite(generator, where, rate):
    shape = (1, CHUNK + 3, 1, 2, 16, 16)
    q, k, v, a, *rest = make_inputs(generator, where, shape)
    compare([q, k, v, torch.full_like(a, rate), *rest], start(generator, where, shape))


def test_two_calls_go_on_where_one_would(generator, where):
    shape = (1, 45, 2, 2, 16, 16)
    inputs, state = make_inputs(generator, where, shape), start(generator, where, shape)
    whole, _ = run(gated_delta_triton, inputs, state)
    parts = [
        [x[:, window].contiguous() if x.ndim > 1 else x for x in inputs] for window in (slice(40), slice(40, None))
    ]
    first, state = run(gated_delta_triton, parts[0], state)
    second, _ = run(gated_delta_triton, parts[1], state)
    assert relative_error(torch.cat((first, second), dim=1), whole) < 1e-5


def test_heads_that_do_not_fit_are_refused_with_what_fits():
    cuda = torch.device("cuda")
    x, odd = torch.empty(1, 4, 2, 64), torch.empty(1, 4, 2, 48)
    assert GATED_DELTA.refuse(cuda, x, x, x) is None
    assert GATED_DELTA.refuse(cuda, odd, odd, x) == "heads of 48; it takes 16, 32, 64, 128, 256"
    assert GATED_DELTA.refuse(cuda, x, x, odd).startswith("heads of 48")
    assert GATED_DELTA.refuse(torch.device("cpu"), x, x, x) == "needs a CUDA device, not cpu"
    assert GATED_DELTA.choose(cuda, x, x, x) is gated_delta_triton
    assert GATED_DELTA.choose(cuda, odd, odd, x) is GATED_DELTA.reference
