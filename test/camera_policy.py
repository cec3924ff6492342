"""What every camera policy in lerobot's layout has to keep beside the adapter contract; inherit CameraPolicyTests.

Guards against: another scale, order or sign than upstream's; statistics left out on one side; frames resized unseen;
a checkpoint of another kind, another age or another variant taken for one that runs; options that do nothing.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from adapter_contract import AdapterContract
from pi_goldens import MODELS, copy_checkpoint, edit_json, edit_tensors, tensors

from phyai_adapters import load_adapter
from phyai_adapters.detection import detect_adapter
from phyai_adapters.fixtures import trace_recording
from phyai_core.types import Observation
from phyai_core.verification import Tolerance, check_stages, read_recording

CPU = torch.device("cpu")


@cache
def loaded(kind: str):
    """The fixture's own checkpoint as the package loads it."""
    return load_adapter(kind, MODELS / kind, CPU)


class CameraPolicyTests(AdapterContract):
    """Tests of one kind."""

    kind: str
    stages: int  # values compared, the engine's result included
    absolute = 1e-5

    @pytest.fixture(autouse=True)
    def one_thread(self):
        """Networks this small lose time to a second thread, most of all on a machine that is busy."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    @pytest.fixture
    def adapter(self):
        return loaded(self.kind)

    @pytest.fixture
    def folder(self, tmp_path):
        """The fixture's checkpoint, to be changed."""
        return copy_checkpoint(self.kind, tmp_path)

    def refused(self, folder, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            load_adapter(self.kind, folder, CPU)

    def make_observation(self, seed: int) -> Observation:
        rng, spec = np.random.default_rng(seed), loaded(self.kind).spec
        frames = {
            camera.key: rng.integers(0, 256, (camera.height, camera.width, 3), np.uint8) for camera in spec.cameras
        }
        state = rng.normal(0, 1, spec.state_dim).astype(np.float32)
        return Observation(0, frames, state, np.zeros(spec.action_dim, np.float32), prompt=f"task {seed}")

    def test_every_recorded_stage_is_reproduced(self, adapter):
        recording = read_recording(MODELS / self.kind)
        stages = trace_recording(adapter, recording.inputs, CPU)
        checks = check_stages(stages, recording.stages, Tolerance(absolute=self.absolute))
        assert [check for check in checks if not check.ok] == []
        assert len(checks) == self.stages and checks[-1].name.endswith("(engine)")

    def test_units_on_both_sides_are_upstreams(self, adapter):
        recorded = tensors(self.kind, "processor_io")
        state = adapter.deployment.state.forward(recorded["raw.observation.state"].numpy())
        np.testing.assert_allclose(state, recorded["pre.observation.state"][0], atol=1e-6)
        actions, expected = recorded["post.in.action"][0].numpy(), recorded["post.out.action"][0].numpy()
        obs = self.make_observation(0)
        np.testing.assert_allclose(adapter.postprocess(actions, obs), expected, atol=1e-5)
        back = adapter.encode_actions(expected, obs)[:, : adapter.spec.action_dim]
        moved = np.ptp(expected, axis=0) > 1e-3  # a range recorded as zero cannot be undone
        np.testing.assert_allclose(back[:, moved], actions[:, moved], atol=1e-4)

    def test_the_kind_is_told_from_the_files(self, folder):
        assert detect_adapter(folder) == self.kind
        edit_json(folder / "config.json", type="pi0")
        self.refused(folder, rf"is a pi0 checkpoint; use that adapter, not {self.kind}")
        (folder / "config.json").unlink()
        self.refused(folder, "has no config.json with a type")
        self.refused(None, rf"no weights are shipped; {self.kind} needs the folder")

    def test_a_checkpoint_from_before_processors_says_how_to_convert_it(self, folder):
        for file in folder.glob("policy_*"):
            file.unlink()
        self.refused(folder, r"saved by lerobot before 0\.4.*migrate_policy_normalization")

    def test_every_key_is_accounted_for(self, folder):
        edit_tensors(folder / "model.safetensors", lambda weights: {**weights, "model.lora_A": torch.zeros(2)})
        self.refused(folder, r"1 unexpected: .*lora_A")

    def test_options_are_checked(self, folder):
        edit_json(folder / "phyai.json", asset_id="arm")
        self.refused(folder, rf"phyai.json: asset_id has no meaning for {self.kind}; allowed: rate_hz")
        edit_json(folder / "phyai.json", asset_id=None, rate_hz=None)
        self.refused(folder, "rate_hz: .* does not say at which rate")
