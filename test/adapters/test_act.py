"""Guards against: an ACT whose numbers are not lerobot's, one that is guided as if it had denoise steps, an average
over time that weighs chunks the other way round, and variants of the network taken for the one that is built."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from camera_policy import CPU, CameraPolicyTests
from pi_goldens import edit_json, edit_tensors, tensors

from phyai_core.baselines import TemporalEnsemble
from phyai_core.engine import Engine
from phyai_core.inference import check_mode
from phyai_core.rtc import RtcConfig
from phyai_core.types import ActionChunk, InferenceRequest


class TestAct(CameraPolicyTests):
    kind, stages, draws_samples = "act", 6, False

    def test_images_are_normalised_as_upstream_does(self, adapter):
        recorded = tensors("act", "processor_io")
        for key in ("top", "wrist"):
            raw = recorded[f"raw.observation.images.{key}"].permute(1, 2, 0)[None]
            expected = recorded[f"pre.observation.images.{key}"]
            torch.testing.assert_close(adapter.prepare_image({f"image.{key}": raw}, key), expected, atol=1e-5, rtol=0)

    def test_what_it_offers(self, adapter):
        spec = adapter.spec
        assert (spec.action_horizon, spec.dt_s, spec.num_denoise_steps) == (10, 0.02, 0)
        assert [(c.key, c.height, c.width) for c in spec.cameras] == [("top", 96, 128), ("wrist", 96, 128)]
        assert {key.split(".")[0].split("_")[0] for key in adapter.report.unused} == {"vae"}
        with pytest.raises(ValueError, match=r"rtc.mode is 'identity'; allowed for policy 'act' is none"):
            check_mode(RtcConfig("identity"), spec)
        with pytest.raises(ValueError, match="has no denoise steps to guide"):
            Engine(adapter, CPU, guidance="fd")

    def test_frames_of_another_size_are_refused(self, adapter):
        obs = self.make_observation(0)
        obs = replace(obs, images={**obs.images, "wrist": np.zeros((48, 64, 3), np.uint8)})
        with pytest.raises(ValueError, match="camera wrist: 48 x 64 pixels given, the policy was trained on 96 x 128"):
            adapter.preprocess(obs)

    @pytest.mark.parametrize(
        ("entry", "value"),
        [
            ("pre_norm", True),
            ("vision_backbone", "resnet50"),
            ("feedforward_activation", "gelu"),
            ("n_obs_steps", 2),
            ("replace_final_stride_with_dilation", True),
        ],
    )
    def test_variants_that_are_not_built_are_named(self, folder, entry, value):
        edit_json(folder / "config.json", **{entry: value})
        self.refused(folder, rf"config.json: {entry} is {value!r}; supported: ")

    def test_statistics_that_are_missing_or_empty(self, folder):
        file = folder / "policy_preprocessor_step_3_normalizer_processor.safetensors"
        edit_tensors(file, lambda stats: {key: x for key, x in stats.items() if key != "observation.images.top.std"})
        self.refused(folder, r"statistics: observation.images.top.std is missing in .*fine-tuning data set")


def test_averaging_over_time_is_upstreams():
    """A chunk each tick; the row emitted is the first of what the ensemble makes of them."""
    recorded = tensors("act", "outputs")
    for robot in range(2):
        chunks = iter(recorded["temporal_ensemble.in_chunks"][:, robot].numpy())
        ensemble = TemporalEnsemble(
            lambda request, chunks=chunks: ActionChunk(0, request.seq, request.base_tick, 0, next(chunks), None, 1),
            decay=0.01,
        )
        rows = [ensemble(InferenceRequest(0, k, k, 0, None, None, 0)).actions[0] for k in range(12)]
        expected = recorded["temporal_ensemble.out_actions(coeff=0.01)"][:, robot]
        np.testing.assert_allclose(rows, expected, atol=1e-6)
