"""What every adapter has to keep, whoever wrote it. Inherit AdapterContract and give `adapter` and `make_observation`.

Guards against: a chunk of the wrong shape or type, non-finite numbers, results that change from run to run, state kept
between requests, robots in a batch that influence each other, and wrong inputs taken silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.engine import Engine
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Leftover, Observation


def sample(adapter: Adapter, prefix, noise: Tensor) -> Tensor:
    """Plain Euler over all denoise steps, or the prediction: noise [B, H, A'] -> latents at flow time 1."""
    x, steps = adapter.init_latents(noise).clone(), adapter.spec.num_denoise_steps
    if not steps:
        return adapter.predict(prefix, noise)
    for step in range(steps):
        flow_time = torch.full(x.shape[:2], step / steps)
        x = x + adapter.denoise_step(prefix, x, flow_time) / steps
    return x


class AdapterContract(ABC):
    """Tests of one adapter on the CPU."""

    batch_tolerance = 1e-4  # rounding of a batched matrix product against single ones
    draws_samples = True  # False: the same chunk whatever the noise

    @pytest.fixture
    @abstractmethod
    def adapter(self) -> Adapter:
        """The adapter under test, with weights of any quality."""

    @abstractmethod
    def make_observation(self, seed: int) -> Observation:
        """A valid observation; different for different seeds."""

    def noise(self, adapter: Adapter, batch: int = 1, seed: int = 0) -> Tensor:
        return torch.randn((batch, *adapter.spec.noise_shape), generator=torch.Generator().manual_seed(seed))

    def run(self, adapter: Adapter, seed: int, noise: Tensor) -> Tensor:
        with torch.inference_mode():
            return sample(adapter, adapter.encode_prefix(adapter.preprocess(self.make_observation(seed))), noise)

    def test_spec_is_complete(self, adapter: Adapter) -> None:
        spec = adapter.spec
        assert spec.action_horizon > 0 and spec.dt_s > 0 and spec.latent_dim >= spec.action_dim > 0
        assert spec.cameras or spec.state
        assert "none" in spec.rtc_modes
        assert len({feature.name for feature in spec.action}) == spec.action_dim
        assert all(feature.unit for feature in (*spec.state, *spec.action))

    def test_chunk_has_the_declared_shape_and_is_finite(self, adapter: Adapter) -> None:
        latents = self.run(adapter, 0, self.noise(adapter))
        actions = adapter.postprocess(latents[0].numpy(), self.make_observation(0))
        assert latents.shape == (1, adapter.spec.action_horizon, adapter.spec.latent_dim)
        assert latents.dtype == torch.float32
        assert actions.shape == (adapter.spec.action_horizon, adapter.spec.action_dim)
        assert actions.dtype == np.float32
        assert torch.isfinite(latents).all() and np.isfinite(actions).all()

    def test_preprocess_gives_cpu_tensors_with_a_batch_of_one(self, adapter: Adapter) -> None:
        for name, tensor in adapter.preprocess(self.make_observation(0)).items():
            assert tensor.device.type == "cpu" and tensor.shape[0] == 1, name

    def test_same_noise_gives_the_same_chunk_and_other_noise_another(self, adapter: Adapter) -> None:
        first = self.run(adapter, 0, self.noise(adapter, seed=1))
        assert torch.equal(first, self.run(adapter, 0, self.noise(adapter, seed=1)))
        assert torch.equal(first, self.run(adapter, 0, self.noise(adapter, seed=2))) != self.draws_samples

    def test_the_observation_matters_and_leaves_nothing_behind(self, adapter: Adapter) -> None:
        noise = self.noise(adapter)
        first, other, again = (self.run(adapter, seed, noise) for seed in (0, 1, 0))
        assert not torch.equal(first, other)
        assert torch.equal(first, again)

    def test_one_prefix_serves_every_denoise_step_and_several_chunks(self, adapter: Adapter) -> None:
        inputs = adapter.preprocess(self.make_observation(0))
        with torch.inference_mode():
            kept = adapter.encode_prefix(inputs)
            for seed in (0, 1):
                noise = self.noise(adapter, seed=seed)
                assert torch.equal(sample(adapter, kept, noise), sample(adapter, adapter.encode_prefix(inputs), noise))

    def test_denoise_step_leaves_its_arguments_alone(self, adapter: Adapter) -> None:
        if not adapter.spec.num_denoise_steps:
            pytest.skip("this policy has no denoise steps")
        latents = self.noise(adapter)
        flow_time = torch.zeros(latents.shape[:2])
        with torch.inference_mode():
            adapter.denoise_step(
                adapter.encode_prefix(adapter.preprocess(self.make_observation(0))), latents, flow_time
            )
        assert torch.equal(latents, self.noise(adapter)) and not flow_time.any()

    def test_robots_in_one_batch_get_what_each_gets_alone(self, adapter: Adapter) -> None:
        noise = self.noise(adapter, batch=3)
        each = [adapter.preprocess(self.make_observation(seed)) for seed in range(3)]
        together = {name: torch.cat([inputs[name] for inputs in each]) for name in each[0]}
        with torch.inference_mode():
            batched = sample(adapter, adapter.encode_prefix(together), noise)
        alone = torch.cat([self.run(adapter, seed, noise[seed : seed + 1]) for seed in range(3)])
        torch.testing.assert_close(batched, alone, atol=self.batch_tolerance, rtol=self.batch_tolerance)

    def test_the_engine_gives_each_robot_its_own_chunk(self, adapter: Adapter) -> None:
        """Different observations, one robot just reset and two tied to what they execute, alone and in one batch."""
        spec, engine = adapter.spec, Engine(adapter, torch.device("cpu"), batch_sizes=(1, 4))
        modes = ("none", *(mode for mode in ("identity", "ramp") if mode in spec.rtc_modes))
        noise = self.noise(adapter, batch=len(modes)).numpy()
        rows = np.ones((spec.action_horizon // 2, spec.latent_dim), np.float32)
        leftover = Leftover(rows, rows[:, : spec.action_dim], delay=2, execution_horizon=spec.action_horizon // 2)
        requests = [
            (self.make_observation(seed), tables_for(RtcConfig(mode), spec, leftover if seed else None), noise[seed])
            for seed, mode in enumerate(modes)
        ]
        together = engine.run([engine.preprocess(*request) for request in requests])
        for request, result in zip(requests, together, strict=True):
            alone = engine.infer(*request)
            np.testing.assert_allclose(result.latent, alone.latent, atol=self.batch_tolerance)
            assert result.actions.shape == (spec.action_horizon, spec.action_dim)

    def test_a_missing_or_unknown_camera_is_named(self, adapter: Adapter) -> None:
        if not adapter.spec.cameras:
            pytest.skip("this policy sees nothing")
        observation, key = self.make_observation(0), adapter.spec.cameras[0].key
        with pytest.raises(ValueError, match=key):
            adapter.preprocess(replace(observation, images={}))
        renamed = {"nonsense" if name == key else name: image for name, image in observation.images.items()}
        with pytest.raises(ValueError, match="nonsense"):
            adapter.preprocess(replace(observation, images=renamed))

    def test_an_image_of_the_wrong_type_is_refused(self, adapter: Adapter) -> None:
        observation = self.make_observation(0)
        for key, image in observation.images.items():
            for wrong in (image.astype(np.float32) / 255, image[..., 0], image[..., :2]):
                with pytest.raises(ValueError, match=key):
                    adapter.preprocess(replace(observation, images={**observation.images, key: wrong}))

    def test_a_state_of_the_wrong_length_is_refused_with_both_lengths(self, adapter: Adapter) -> None:
        observation = self.make_observation(0)
        for wrong in (observation.state[:-1], np.append(observation.state, np.float32(0)), observation.state[None]):
            with pytest.raises(ValueError, match=str(adapter.spec.state_dim)):
                adapter.preprocess(replace(observation, state=wrong))
