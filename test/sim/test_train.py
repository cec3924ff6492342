"""Guards against: a training run that cannot be repeated, a loss that does not learn, a checkpoint that is not what was
tested, a clean prefix that is noised, dated or learnt from, and settings that fail late.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from core.golden import GOLDEN
from phyai_adapters.flow_tiny import FlowTiny, FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import SPEC_FILE, WEIGHTS_FILE, FlowTinyConfig
from phyai_ros.sim import task
from phyai_ros.sim.dataset import Samples
from phyai_ros.sim.flow_matching import Batch, Normalised, Schedule, fit, flow_loss, mix
from phyai_ros.sim.train import QUICK, TrainConfig, train


def random_samples(count: int = 40) -> Samples:
    rng = np.random.default_rng(0)
    return Samples(
        images=rng.integers(0, 256, (count, 64, 64, 3), np.uint8),
        states=rng.normal(1, 2, (count, 12)).astype(np.float32),
        actions=rng.normal(-1, 3, (count, 32, 4)).astype(np.float32),
    )


def make_network() -> FlowTinyNetwork:
    torch.manual_seed(0)
    zeros, ones = (0.0,) * 12, (1.0,) * 12
    return FlowTinyNetwork(FlowTinyConfig(task.STATE, task.ACTION, zeros, ones, zeros[:4], ones[:4]))


def test_data_are_normalised_per_column():
    data = Normalised(random_samples(400))
    for values in (data.states, data.actions.reshape(-1, 4)):
        torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), atol=1e-3, rtol=0)
        torch.testing.assert_close(values.std(0), torch.ones(values.shape[1]), atol=1e-2, rtol=0)


def test_a_batch_moves_images_little_and_actions_not_at_all():
    data, schedule = Normalised(random_samples(1)), Schedule(batch=8)
    batch = data.draw(schedule, torch.Generator().manual_seed(0))
    assert torch.equal(batch.actions, data.actions.expand(8, -1, -1))
    original = data.images[0].float().mean()
    assert (batch.images.mean(dim=(1, 2, 3)) / original - 1).abs().max() <= 0.1001
    assert 0 < (batch.states - data.states).abs().max() < 0.2


def test_loss_is_the_squared_distance_to_the_straight_velocity():
    """A network that answers 0 has the loss E |a - e|^2 = 1 + 1 for unit actions and noise."""
    network = make_network()
    for parameter in network.write_velocity.parameters():
        torch.nn.init.zeros_(parameter)
    batch = Batch(torch.zeros(64, 64, 64, 3), torch.zeros(64, 12), torch.ones(64, 32, 4))
    for rows in (0, 31):  # the mean is over free rows, so a prefix does not make it smaller
        schedule = Schedule(noise_draws=4, max_prefix_rows=rows)
        loss = flow_loss(network, batch, schedule, torch.Generator().manual_seed(0))
        assert loss.item() == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("case", GOLDEN["training_time_rtc"])
def test_clean_rows_are_given_as_they_are_at_flow_time_one(case):
    golden = case["train"]
    actions, noise = (torch.tensor(golden[name], dtype=torch.float64)[None] for name in ("actions", "noise"))
    clean = torch.tensor([golden["loss_mask"].count(0)])
    latents, flow_times, free = mix(actions, noise, torch.tensor([golden["tau"]], dtype=torch.float64), clean)
    np.testing.assert_allclose(latents[0], golden["x_tau"], atol=1e-11)
    np.testing.assert_allclose(flow_times[0], golden["tau_tokens"], atol=1e-11)
    assert free[0].int().tolist() == golden["loss_mask"]


class WrongOnCleanRows(torch.nn.Module):
    """Answers 0, and nonsense for every row that is clean."""

    def encode(self, images, states):
        return states

    def velocity(self, condition, latents, flow_times):
        return torch.where(flow_times == 1.0, 1e6, 0.0)[..., None].expand_as(latents)


def test_no_loss_comes_from_clean_rows():
    batch = Batch(torch.zeros(64, 64, 64, 3), torch.zeros(64, 12), torch.ones(64, 32, 4))
    schedule = Schedule(noise_draws=4, max_prefix_rows=12)
    loss = flow_loss(WrongOnCleanRows(), batch, schedule, torch.Generator().manual_seed(0))
    assert loss.item() == pytest.approx(2.0, abs=0.05)


def test_fit_learns_and_the_average_follows():
    schedule = Schedule(steps=40, batch=8, warm_up_steps=5)
    network, averaged = make_network(), make_network()
    losses = list(fit(network, averaged, Normalised(random_samples(2)), schedule, seed=0))
    assert np.mean(losses[-10:]) < 0.75 * np.mean(losses[:10])
    start, weights, mean = (net.read_chunk.weight for net in (make_network(), network, averaged))
    assert 0 < (mean - weights).norm() < (start - weights).norm()


def test_fit_repeats_itself_under_one_seed():
    schedule = Schedule(steps=3, batch=8)
    data = Normalised(random_samples())
    runs = [list(fit(make_network(), make_network(), data, schedule, seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_a_quick_run_makes_a_checkpoint_that_says_how_it_was_made(tmp_path):
    result = train(tmp_path, replace(QUICK, episodes=2, steps=3), show_progress=False)
    assert result.checkpoint == tmp_path and result.samples > 50 and result.parameters > 2e6
    assert result.evaluation.episodes == 2 and np.isfinite(result.loss)
    plain = json.loads((tmp_path / SPEC_FILE).read_text())
    assert plain["training"]["steps"] == 3 and plain["training"]["seed"] == 0
    assert plain["measured"]["successes"] == result.evaluation.successes
    assert (tmp_path / WEIGHTS_FILE).stat().st_size < 6e6
    policy = FlowTiny.load(tmp_path, torch.device("cpu"))
    assert policy.spec.action_horizon == 32 and policy.spec.dt_s == 0.04


def test_a_fine_tuned_checkpoint_knows_the_delay_it_was_taught(tmp_path):
    base = replace(QUICK, episodes=2, steps=3)
    train(tmp_path / "base", base, show_progress=False)
    taught = replace(base, rtc_max_delay=4, start=tmp_path / "base")
    train(tmp_path / "taught", taught, show_progress=False)
    policy = FlowTiny.load(tmp_path / "taught", torch.device("cpu"))
    assert policy.spec.rtc_max_delay == 4 and "trained" in policy.spec.rtc_modes
    plain = json.loads((tmp_path / "taught" / SPEC_FILE).read_text())
    assert plain["training"]["start"] == "base" and "mode trained" in plain["measured"]["what"]
    with pytest.raises(ValueError, match=r"start: .*base has another state_mean than these demonstrations"):
        train(tmp_path / "other", replace(taught, seed=1), show_progress=False)


def test_no_policy_is_taught_a_delay_beyond_half_its_chunk():
    with pytest.raises(ValueError, match=r"rtc_max_delay: 17 is too large; give at most 16 ticks"):
        TrainConfig(rtc_max_delay=17)


@pytest.mark.parametrize("setting", ["episodes", "steps", "evaluation_episodes", "batch"])
def test_a_run_of_nothing_is_refused_by_name(setting):
    with pytest.raises(ValueError, match=f"{setting}: 0"):
        TrainConfig(**{setting: 0})
