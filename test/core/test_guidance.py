"""Guards against: a gradient that is the error itself (the identity Jacobian under another name), J instead of its
transpose, a wrong sign, derivatives under inference_mode, guidance of padding, and forwards that nobody asked for.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.fakes import LinearFlow, make_spec
from core.golden import GOLDEN
from phyai_core.engine import Engine, blank_observation
from phyai_core.guidance import Point, make_guidance
from phyai_core.rtc import GRADIENT_MODES, RtcConfig, build_tables, tables_for
from phyai_core.types import Leftover

CPU = torch.device("cpu")
STEP = 1e-3


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[None]


def linear_field(case):
    mix, drift, offset = (torch.tensor(case[name], dtype=torch.float64) for name in ("M", "a", "b"))
    return lambda prefix, x, flow_time: mix @ x.double() + drift * flow_time[..., None] + offset


def point_of(case) -> Point:
    return Point(None, tensor(case["x"]), torch.full((1, case["H"]), case["tau"], dtype=torch.float64))


@pytest.mark.parametrize("case", GOLDEN["guided_velocity"], ids=lambda c: f"tau{c['tau']}-{c['schedule']}")
def test_vjp_is_the_golden_one_in_both_sign_conventions(case):
    mask = torch.tensor(case["W"], dtype=torch.float64)[:, None]
    velocity, gradient = make_guidance("vjp", STEP)(
        linear_field(case), point_of(case), lambda clean: mask * (tensor(case["Y"]) - clean)
    )
    np.testing.assert_allclose(gradient[0], case["vjp"], atol=1e-6)
    guided = velocity[0] + case["w"] * gradient[0]
    np.testing.assert_allclose(guided, case["guided_v_vjp"], atol=5e-6)
    np.testing.assert_allclose(-guided, case["guided_u_openpi_vjp"], atol=5e-6)


@pytest.mark.parametrize("case", GOLDEN["guided_velocity"][:4], ids=lambda c: f"tau{c['tau']}")
@pytest.mark.parametrize("mode", ["fd", "fd_lagged"])
def test_a_difference_is_the_derivative_along_the_error(mode, case):
    """J e, not J^T e: they differ for this field, which no exact flow would have."""
    error = tensor(case["err"])
    guide, field, point = make_guidance(mode, STEP), linear_field(case), point_of(case)
    guide(field, point, lambda clean: error)
    gradient = guide(field, point, lambda clean: error)[1]  # the lagged form knows the error from its second call on
    jacobian = np.eye(case["H"]) + (1 - case["tau"]) * np.array(case["M"])
    np.testing.assert_allclose(gradient[0], jacobian @ case["err"], atol=2e-3)


class GaussianMixture:
    """The exact flow of a mixture of Gaussians over rows: clean = E[A | x], a softmax over modes of linear maps."""

    def __init__(self, case):
        self.means, self.cov = torch.tensor(case["mu"]).double()[..., 0], torch.tensor(case["S"]).double()
        self.shares = torch.tensor(case["pi"]).double()

    def __call__(self, prefix, x, flow_time):
        tau = float(flow_time[0, 0])
        noisy = (1 - tau) ** 2 * torch.eye(len(self.cov)).double() + tau**2 * self.cov
        apart = x[..., 0].double()[:, None] - tau * self.means  # [B, modes, H]
        solved = torch.linalg.solve(noisy, apart[..., None])[..., 0]
        share = torch.softmax(self.shares.log() - 0.5 * (apart * solved).sum(-1), dim=-1)
        clean = (share[..., None] * (self.means + tau * solved @ self.cov)).sum(1)
        return (clean[..., None] - x) / (1 - tau)


@pytest.mark.parametrize("case", GOLDEN["gmm"], ids=lambda c: f"tau{c['tau']}")
@pytest.mark.parametrize("mode", GRADIENT_MODES)
def test_every_gradient_mode_finds_the_exact_gradient_of_a_bimodal_flow(mode, case):
    """Its Jacobian is symmetric, and 0 on pure noise: there, guidance with the identity would be all there is."""
    seen = []

    def pull(clean):
        seen.append(clean)
        return tensor(case["cotangent"])

    guide, field = make_guidance(mode, 1e-2), GaussianMixture(case)
    guide(field, point_of(case), pull)
    velocity, gradient = guide(field, point_of(case), pull)
    np.testing.assert_allclose(seen[-1][0], case["x1_hat"], atol=1e-6)
    np.testing.assert_allclose(velocity[0], case["v"], atol=1e-6)
    # float32 as in production, so a difference over 0.01 is good for two or three digits
    np.testing.assert_allclose(gradient[0], case["vjp"], atol=1e-6 if mode == "vjp" else 2e-2)


def make_engine(case, guidance):
    spec = make_spec(case["H"], case["D"], case["n"], state=(), action=make_spec().action[: case["D"]])
    adapter = LinearFlow(spec, case["M"], case["a"])
    adapter.offset = torch.tensor(case["b"])
    return Engine(adapter, CPU, guidance=guidance)


def golden_tables(case, mode):
    config = RtcConfig(mode, schedule=case["schedule"], max_guidance_weight=case["beta"])
    rows = np.array(case["Y"][: case["H"] - case["s"]], np.float32)
    return build_tables(config, case["H"], case["n"], case["D"], Leftover(rows, rows, case["d"], case["s"]))


@pytest.mark.parametrize("case", GOLDEN["full_sampling"], ids=lambda c: f"H{c['H']}d{c['d']}n{c['n']}")
def test_golden_sampling_with_vjp_through_the_engine(case):
    engine = make_engine(case, "vjp")
    noise = np.array(case["eps"], np.float32)
    for _ in range(2):  # a second inference reuses every buffer
        result = engine.infer(blank_observation(engine.spec), golden_tables(case, "vjp"), noise)
    np.testing.assert_allclose(result.latent, case["A_vjp"], atol=2e-5)


@pytest.mark.parametrize(("mode", "calls", "rows"), [("fd", 10, 1), ("fd_lagged", 5, 2), ("vjp", 5, 1)])
def test_what_a_denoise_step_costs(mode, calls, rows):
    engine = make_engine(GOLDEN["full_sampling"][0], mode)
    batches, plain = [], engine.adapter.denoise_step

    def count(prefix, latents, flow_time):
        batches.append(len(latents))
        assert len(prefix) == len(flow_time) == len(latents)
        return plain(prefix, latents, flow_time)

    engine.adapter.denoise_step = count
    case = GOLDEN["full_sampling"][0]
    engine.infer(blank_observation(engine.spec), golden_tables(case, mode), np.array(case["eps"], np.float32))
    assert batches == [rows] * calls


@pytest.mark.parametrize("mode", GRADIENT_MODES)
def test_without_leftover_guidance_changes_nothing(mode):
    case = GOLDEN["full_sampling"][0]
    engine = make_engine(case, mode)
    tables = build_tables(RtcConfig(mode), case["H"], case["n"], case["D"], None)
    result = engine.infer(blank_observation(engine.spec), tables, np.array(case["eps"], np.float32))
    np.testing.assert_allclose(result.latent, case["A_none"], atol=1e-5)


@pytest.mark.parametrize("mode", GRADIENT_MODES)
def test_padding_and_excluded_actions_pull_nothing(mode):
    """With a field that does not mix dims, they come out as without RTC, whatever the leftover says of them."""
    spec = make_spec(rtc_modes=(mode,))
    latent = np.tile(np.array([2.0, -3.0, 5.0], np.float32), (6, 1))
    leftover = Leftover(latent, latent[:, :2], delay=2, execution_horizon=2)
    noise = np.random.default_rng(0).standard_normal((8, 3), dtype=np.float32)
    mix = 0.3 * np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)

    def infer(**config):
        tables = tables_for(RtcConfig(mode, **config), spec, leftover)
        return Engine(LinearFlow(spec, mix), CPU, guidance=mode).infer(blank_observation(spec), tables, noise).latent

    guided, free = infer(exclude=("elbow",)), infer(max_guidance_weight=0.0)
    np.testing.assert_allclose(guided[:, 1:], free[:, 1:], atol=1e-6)
    assert np.abs(guided[:2, 0] - free[:2, 0]).min() > 0.1


def test_a_network_that_cuts_the_gradient_is_refused_instead_of_guided_by_the_identity():
    class Cut(LinearFlow):
        def denoise_step(self, prefix, latents, flow_time):
            return super().denoise_step(prefix, latents, flow_time).detach()

    engine = Engine(Cut(make_spec()), CPU, guidance="vjp")
    with pytest.raises(ValueError, match=r"rtc\.mode is 'vjp'; .* such as fd"):
        engine.warm_up(1)


class SilentFlow(LinearFlow):
    """Keeps no record of flow times, which a graph could not."""

    def denoise_step(self, prefix, latents, flow_time):
        return self.mix @ latents + self.drift * flow_time[..., None] + self.offset + prefix


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", GRADIENT_MODES)
def test_differences_are_captured_and_gradients_run_eagerly_with_the_same_result(mode):
    case, results = GOLDEN["full_sampling"][0], []
    for device in (CPU, torch.device("cuda:0")):
        spec = make_spec(case["H"], case["D"], case["n"], state=(), action=make_spec().action[: case["D"]])
        adapter = SilentFlow(spec, case["M"], case["a"])
        adapter.offset = torch.tensor(case["b"])
        adapter.mix, adapter.drift, adapter.offset = (
            t.to(device) for t in (adapter.mix, adapter.drift, adapter.offset)
        )
        engine = Engine(adapter, device, guidance=mode)
        engine.warm_up(1)
        noise = np.array(case["eps"], np.float32)
        results.append(engine.infer(blank_observation(spec), golden_tables(case, mode), noise).latent)
    np.testing.assert_allclose(*results, atol=2e-4)
    captured = [slot.graph is not None for slot in engine.runner.slots.values()]
    assert captured == [mode != "vjp"]
