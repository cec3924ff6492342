"""Guards against: a wrong mask or guidance weight, time running backwards, a mode that is not its definition,
guidance on rows that do not exist, a mask that covers padding, tables that change plain sampling, bad settings.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.fakes import make_spec
from core.golden import GOLDEN
from phyai_core.rtc import MODES, RtcConfig, build_tables, tables_for
from phyai_core.rtc_weights import guidance_weights, mask_end, ramp_strength, soft_mask
from phyai_core.types import Feature, Leftover

FULL_MODES = {
    "A_none": RtcConfig(mode="none"),
    "A_identity": RtcConfig(mode="identity"),
    "A_inpaint_hard": RtcConfig(mode="hard"),
    "A_groot_ramp6": RtcConfig(mode="ramp"),
}


def make_leftover(latent, delay, execution_horizon):
    latent = np.asarray(latent, np.float32)
    return Leftover(latent, latent, delay, execution_horizon)


def integrate(case, tables):
    """The affine update from noise, in float64, over the linear field of a golden case."""
    mix, drift, offset = (np.array(case[name]) for name in ("M", "a", "b"))
    x = np.array(case["eps"])
    x[: tables.start_rows] = tables.prefix[: tables.start_rows]
    for flow_time, abc in zip(tables.flow_times.astype(float), tables.abc.astype(float), strict=True):
        velocity = mix @ x + drift * flow_time[:, None] + offset
        x = abc[:, 0:1] * x + abc[:, 1:2] * velocity + abc[:, 2:3] * tables.prefix
    return x


@pytest.mark.parametrize("case", GOLDEN["prefix_weights"], ids=lambda c: f"H{c['H']}s{c['s']}d{c['d']}{c['schedule']}")
def test_soft_mask_is_equation_5(case):
    assert mask_end(case["H"], case["H"], case["s"], case["d"]) == case["end"]
    np.testing.assert_allclose(soft_mask(case["H"], case["d"], case["end"], case["schedule"]), case["W"], atol=1e-11)


@pytest.mark.parametrize("case", GOLDEN["guidance_weight"])
def test_guidance_weight(case):
    np.testing.assert_allclose(guidance_weights(case["n"], case["beta"], case["sigma_d"]), case["w"], atol=1e-11)


@pytest.mark.parametrize("case", GOLDEN["guided_velocity"])
def test_guided_velocity_in_both_sign_conventions(case):
    """One update of mode identity moves x by v'/N; in the convention that runs from 1 to 0 that is -u'/N."""
    steps = 10
    step = round(case["tau"] * steps)
    config = RtcConfig(schedule=case["schedule"], max_guidance_weight=case["beta"])
    valid = case["H"] - case["s"]
    leftover = make_leftover(case["Y"][:valid], case["d"], case["s"])
    a, b, c = build_tables(config, case["H"], steps, case["D"], leftover).abc[step].astype(float).T[..., None]
    x, velocity, prefix = (np.array(case[name]) for name in ("x", "v", "Y"))
    guided = steps * (a * x + b * velocity + c * prefix - x)
    np.testing.assert_allclose(guided, case["guided_v_identity"], atol=2e-5)
    np.testing.assert_allclose(-guided, case["guided_u_openpi_identity"], atol=2e-5)


@pytest.mark.parametrize("case", GOLDEN["full_sampling"], ids=lambda c: f"H{c['H']}d{c['d']}n{c['n']}")
@pytest.mark.parametrize("name", FULL_MODES)
def test_full_sampling(case, name):
    config = RtcConfig(FULL_MODES[name].mode, schedule=case["schedule"], max_guidance_weight=case["beta"])
    leftover = make_leftover(case["Y"][: case["H"] - case["s"]], case["d"], case["s"])
    tables = build_tables(config, case["H"], case["n"], case["D"], leftover)
    np.testing.assert_allclose(integrate(case, tables), case[name], atol=5e-6)


@pytest.mark.parametrize("case", GOLDEN["training_time_rtc"])
def test_sampling_with_a_clean_prefix(case):
    leftover = make_leftover(case["prefix"] + [[9.0] * case["D"]] * 2, delay=case["d"], execution_horizon=2)
    tables = build_tables(RtcConfig("trained"), case["H"], case["n"], case["D"], leftover, trained_delay=4)
    np.testing.assert_allclose(integrate(case, tables), case["A"], atol=5e-6)


def test_trained_rows_end_at_what_was_trained_and_at_what_is_left():
    for delay, trained, valid, clean in [(3, 5, 6, 3), (7, 5, 6, 5), (7, 9, 6, 6), (0, 5, 6, 0)]:
        leftover = make_leftover(np.ones((valid, 2)), delay, execution_horizon=12)
        tables = build_tables(RtcConfig("trained"), 16, 5, 2, leftover, trained_delay=trained)
        assert tables.start_rows == clean
        assert (tables.flow_times[:, :clean] == 1).all() and (tables.flow_times[0, clean:] == 0).all()
        assert (tables.abc[:, clean:] == build_tables(RtcConfig("none"), 16, 5, 2, None).abc[:, clean:]).all()


def test_conditioning_is_for_the_dims_that_the_robot_executes():
    """Padding is not guided; a mode that was trained on whole rows gets them with the zeros of its training."""
    spec = make_spec(latent_dim=4, rtc_modes=tuple(MODES), rtc_max_delay=4)
    leftover = make_leftover(np.full((6, 4), 7.0), 2, 2)
    guided = tables_for(RtcConfig("identity", exclude=("elbow",)), spec, leftover)
    assert guided.columns.tolist() == [True, False, False, False]
    trained = tables_for(RtcConfig("trained"), spec, leftover)
    assert trained.columns.all() and trained.prefix[0].tolist() == [7.0, 7.0, 0.0, 0.0]


def test_rows_of_relative_actions_are_kept_in_robot_units():
    spec = make_spec(action=(Feature("yaw", mode="relative"), Feature("elbow")), latent_dim=2)
    leftover = Leftover(np.zeros((3, 2), np.float32), np.arange(6.0, dtype=np.float32).reshape(3, 2), 1, 2)
    rows = tables_for(RtcConfig(), spec, leftover).rows
    np.testing.assert_array_equal(rows[:4], [[0, 1], [2, 3], [4, 5], [4, 5]])
    assert len(tables_for(RtcConfig("none"), spec, leftover).rows) == 0
    assert len(tables_for(RtcConfig(), make_spec(latent_dim=2), leftover).rows) == 0


@pytest.mark.parametrize("case", GOLDEN["groot_ramp"])
def test_ramp_strength(case):
    strength = ramp_strength(case["overlap"], case["frozen"], case["ramp_rate"])
    np.testing.assert_allclose(strength, case["vel_strength"], atol=1e-11)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "leftover", [None, make_leftover(np.zeros((0, 2)), 3, 4), make_leftover(np.ones((4, 2)), 3, 9)]
)
def test_without_overlap_every_mode_is_plain_euler(mode, leftover):
    """No leftover, an empty one, and s > H: bit for bit x + v / N, for any finite Y."""
    tables = build_tables(RtcConfig(mode), 8, 5, 2, leftover)
    assert (tables.abc == np.array([1.0, np.float32(0.2), 0.0], np.float32)).all()
    assert tables.start_rows == 0 and np.isfinite(tables.prefix).all()


def test_zero_guidance_weight_is_plain_euler():
    leftover = make_leftover(np.ones((4, 2)), 2, 4)
    plain = build_tables(RtcConfig("none"), 8, 5, 2, leftover)
    np.testing.assert_array_equal(build_tables(RtcConfig(max_guidance_weight=0.0), 8, 5, 2, leftover).abc, plain.abc)


def test_rows_past_the_leftover_repeat_its_last_row_and_carry_no_weight():
    """A prefix padded with zeros inside the mask pulls the arm to the mean of the training data."""
    leftover = make_leftover(np.arange(1, 11).reshape(5, 2), delay=2, execution_horizon=2)
    tables = build_tables(RtcConfig(), 8, 5, 2, leftover)
    np.testing.assert_array_equal(tables.prefix[5:], np.tile([9.0, 10.0], (3, 1)))
    assert (tables.abc[:, 5:, 2] == 0).all() and (tables.abc[:, 4, 2] > 0).all()
    assert tables.prefix.dtype == tables.abc.dtype == np.float32


def test_mask_ext_shortens_the_mask():
    assert mask_end(valid=24, horizon=32, execution_horizon=8, delay=6) == 24
    assert mask_end(valid=24, horizon=32, execution_horizon=8, delay=6, mask_ext=2) == 8
    assert mask_end(valid=5, horizon=32, execution_horizon=8, delay=6, mask_ext=2) == 5


@given(
    mode=st.sampled_from(sorted(MODES)),
    schedule=st.sampled_from(["exp", "linear", "ones", "zeros"]),
    horizon=st.integers(1, 12),
    steps=st.integers(1, 10),
    valid=st.integers(0, 16),
    delay=st.integers(-3, 20),
    execution_horizon=st.integers(-3, 20),
    mask_ext=st.none() | st.integers(0, 20),
)
def test_any_delay_and_horizon_give_usable_tables(
    mode, schedule, horizon, steps, valid, delay, execution_horizon, mask_ext
):
    """d > s, s > H, leftovers longer than a chunk: the mask shrinks, inference goes on."""
    leftover = make_leftover(np.ones((valid, 2)), delay, execution_horizon)
    tables = build_tables(RtcConfig(mode, schedule, mask_ext), horizon, steps, 2, leftover)
    assert tables.abc.shape == (steps, horizon, 3) and tables.prefix.shape == (horizon, 2)
    assert np.isfinite(tables.abc).all() and np.isfinite(tables.prefix).all()
    assert 0 <= tables.start_rows <= min(horizon, valid)
    assert (tables.abc[:, valid:] == tables.abc[:1, valid:]).all() and (tables.abc[:, valid:, 2] == 0).all()
    assert (tables.mask[valid:] == 0).all() and tables.gains.shape == (steps,)


def test_frozen_rows_of_identity_land_on_the_leftover_when_the_velocity_is_constant():
    """With the weight clipped at N the first step removes the whole disagreement of a frozen row."""
    case = {"M": np.zeros((8, 8)), "a": [0.0], "b": np.full((8, 1), 0.7), "eps": np.linspace(-1, 1, 8)[:, None]}
    leftover = make_leftover(np.linspace(3, 4, 6)[:, None], delay=3, execution_horizon=2)
    chunk = integrate(case, build_tables(RtcConfig(), 8, 5, 1, leftover))
    np.testing.assert_allclose(chunk[:3], leftover.latent[:3], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "vpj"}, ["rtc.mode", "'vpj'", "none, identity, fd, fd_lagged, vjp, hard, ramp, trained"]),
        ({"schedule": "cosine"}, ["rtc.schedule", "'cosine'", "exp, linear, ones, zeros"]),
        ({"mask_ext": -1}, ["rtc.mask_ext", "-1", ">= 0"]),
        ({"max_guidance_weight": float("nan")}, ["rtc.max_guidance_weight", "nan", ">= 0"]),
        ({"prior_std": 0.0}, ["rtc.prior_std", "0.0", "> 0"]),
    ],
)
def test_wrong_settings_name_themselves(settings, words):
    with pytest.raises(ValueError) as error:
        RtcConfig(**settings)
    assert all(word in str(error.value) for word in words)


def test_a_leftover_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"\(4, 3\).*\[rows, 2\]"):
        build_tables(RtcConfig(), 8, 5, 2, make_leftover(np.ones((4, 3)), 1, 4))
