"""What pi0 and pi0.5 both have to keep beside the adapter contract: upstream's numbers, whatever the layout.

Guards against: another scale, order or sign than upstream's; masked cameras and padding that leak; a wrong time for
rows that are already clean; a runtime shortcut (buckets, prepared images, kept prompt) that changes the result.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from adapter_contract import AdapterContract, sample
from pi_goldens import CAMERAS, MODELS, make_observation, openpi_checkpoint, tensors
from torch._subclasses.fake_tensor import FakeTensorMode

from phyai_adapters import load_adapter
from phyai_adapters._deployment import Options, read_options
from phyai_adapters._paligemma import FULL
from phyai_adapters._trace import recorded_inputs, trace
from phyai_core.engine import Engine, blank_observation
from phyai_core.rtc import RtcConfig, build_tables
from phyai_core.types import Observation

CPU = torch.device("cpu")
TOLERANCES = {"prefix": 1e-5, "preproc": 1e-6, "suffix": 1e-5, "step": 1e-5, "actions_padded": 1e-4}
THIRD = "right_wrist_0_rgb"  # declared by the fixtures' checkpoints, absent from their recordings


def largest_difference(stage, recorded) -> float:
    """Over values that count; infinite where a mask, a position or a time is not exactly the same."""
    if stage.value.dtype in (torch.bool, torch.int64) or stage.name.endswith(".time"):
        same = stage.value == recorded.to(stage.value.dtype)
        return 0.0 if (same if stage.valid is None else same | ~stage.valid).all() else float("inf")
    difference = (stage.value.float() - recorded.float()).abs()
    return (difference if stage.valid is None else difference * stage.valid).max().item()


def relative_error(value, reference) -> float:
    return ((value - reference).norm() / reference.norm()).item()


@cache
def loaded(kind: str):
    """The fixture's own checkpoint as the package loads it."""
    return load_adapter(kind, MODELS / kind, CPU)


@pytest.mark.filterwarnings("ignore:prompt. cut")  # the fixtures' prompts hold 24 tokens
class PiParity(AdapterContract):
    """Tests of one kind."""

    kind: str

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

    @abstractmethod
    def expected_embedding(self, adapter, latents, row: int):
        """Action tokens [H, D] of `latents` [H, A'] computed from the file's weights at one row of the time tables."""

    def load(self, folder=None, **options):
        """A second adapter with other options."""
        folder = folder or MODELS / self.kind
        return type(loaded(self.kind)).load(folder, CPU, replace(read_options(folder), **options))

    def make_observation(self, seed: int) -> Observation:
        return make_observation(seed, CAMERAS)

    def recorded(self, adapter):
        return recorded_inputs(adapter, tensors(self.kind, "inputs")), tensors(self.kind, "inputs")["noise"]

    def chunk(self, adapter, **more):
        inputs, noise = self.recorded(adapter)
        return sample(adapter, adapter.encode_prefix({**inputs, **more}), noise)

    def test_every_recorded_stage_is_reproduced(self, adapter):
        recorded = {**tensors(self.kind, "intermediates"), **tensors(self.kind, "outputs")}
        errors = {
            stage.name: largest_difference(stage, recorded[stage.name])
            for stage in trace(adapter, *self.recorded(adapter))
        }
        late = {name: error for name, error in errors.items() if error > TOLERANCES[name.split(".")[0]]}
        assert not late and len(errors) == 49, late

    def test_a_wrong_weight_shows_first_where_it_is_used(self):
        recorded = {**tensors(self.kind, "intermediates"), **tensors(self.kind, "outputs")}
        for part, first in (
            ("vlm.layers.1.qkv", "prefix.kv.1.k"),
            ("expert.layers.2.down", "suffix.step0.last_hidden"),
        ):
            adapter = self.load()
            adapter.network.get_submodule(part).weight[-20:] += 0.1
            stages = trace(adapter, *self.recorded(adapter))
            late = [stage.name for stage in stages if largest_difference(stage, recorded[stage.name]) > 1e-4]
            assert late[0] == first

    def test_the_full_size_network_has_the_published_number_of_parameters(self, adapter):
        network = type(adapter).network_class.empty(FULL, torch.device("meta"), torch.bfloat16, torch.bfloat16)
        count = sum(target.numel() for target in network.targets().values())
        assert count == sum(parameter.numel() for parameter in network.parameters())
        width, mlp = FULL.vlm.width, FULL.vlm.mlp_width
        never_read = 2 * width * width + 3 * width * mlp + 2 * width  # behind the keys of the last prefix layer
        assert round((count + never_read) / 1e6, 1) == {"pi0": 3238.0, "pi05": 3353.4}[self.kind]

    def test_velocity_at_recorded_latents_is_within_1e_5(self, adapter):
        inputs, _ = self.recorded(adapter)
        recorded, prefix = tensors(self.kind, "intermediates"), adapter.encode_prefix(inputs)
        for step in range(10):
            velocity = adapter.denoise_step(prefix, recorded[f"step.{step}.x_t"], torch.full((2, 10), step / 10))
            torch.testing.assert_close(-velocity, recorded[f"step.{step}.v_t"], atol=1e-5, rtol=0)

    def test_other_step_counts_follow_upstream(self):
        recorded = tensors(self.kind, "outputs")["actions_padded_3steps"]
        torch.testing.assert_close(self.chunk(self.load(num_denoise_steps=3)), recorded, atol=1e-4, rtol=0)
        adapter = self.load(num_denoise_steps=20)
        inputs, noise = self.recorded(adapter)
        velocity = adapter.denoise_step(adapter.encode_prefix(inputs), noise, torch.full((2, 10), 9 / 20))
        recorded = tensors(self.kind, "intermediates")["v_t_at_0.55_from_noise"]
        torch.testing.assert_close(-velocity, recorded, atol=1e-5, rtol=0)

    def test_openpi_layout_gives_what_openpi_gives(self, tmp_path):
        adapter = self.load(openpi_checkpoint(self.kind, tmp_path))
        images = [tensors(self.kind, "intermediates")[f"preproc.image.{index}"] for index in range(3)]
        recorded = tensors(self.kind, "outputs_openpi")["actions_padded"]
        torch.testing.assert_close(self.chunk(adapter, images=torch.stack(images, 1)), recorded, atol=1e-5, rtol=0)
        assert adapter.report.tied == () and adapter.spec.action_dim == adapter.spec.state_dim == 7

    def test_bfloat16_stays_near_float32(self):
        reduced = self.chunk(self.load(dtype="bfloat16"))
        outputs = tensors(self.kind, "outputs")
        assert reduced.dtype == torch.float32
        error = relative_error(reduced, outputs["actions_padded"])
        assert 1e-5 < error < 3e-2, error
        assert relative_error(self.chunk(self.load(dtype="bfloat16", vision_dtype="float32")), reduced) < 3e-2

    def test_an_absent_camera_left_out_equals_an_absent_camera_masked(self, adapter):
        two = self.load(cameras=["base_0_rgb", "left_wrist_0_rgb"])
        assert [camera.key for camera in two.spec.cameras] == ["base_0_rgb", "left_wrist_0_rgb"]
        torch.testing.assert_close(self.chunk(two), self.chunk(adapter), atol=1e-6, rtol=0)

    def test_what_masks_hide_has_no_effect(self, adapter):
        inputs, _ = self.recorded(adapter)
        noisy = torch.rand(inputs[f"image.{THIRD}"].shape)
        tokens = torch.where(inputs["token_mask"], inputs["tokens"], 5)
        changed = self.chunk(adapter, **{f"image.{THIRD}": noisy, "tokens": tokens})
        torch.testing.assert_close(changed, self.chunk(adapter), atol=1e-6, rtol=0)

    def test_padding_a_prompt_to_a_longer_bucket_changes_nothing(self):
        adapter = self.load(prompt_buckets=(16, 8), state_in_prompt=False)
        inputs = adapter.preprocess(replace(self.make_observation(0), prompt="move"))
        assert inputs["tokens"].shape == (1, 8) and adapter.prompt_buckets == (8, 16, 24)
        noise = self.noise(adapter)
        chunks = [
            sample(adapter, adapter.encode_prefix(each), noise) for each in (inputs, adapter.pad_prompt(inputs, 24))
        ]
        torch.testing.assert_close(*chunks, atol=1e-6, rtol=0)

    def test_images_and_prompt_computed_before_give_the_same_chunk(self, adapter):
        inputs, noise = self.recorded(adapter)
        kept = {"images": adapter.prepare_images(inputs), "prompt_embedding": adapter.embed_prompt(inputs)}
        rest = {name: tensor for name, tensor in inputs.items() if not name.startswith(("image.", "tokens"))}
        assert torch.equal(sample(adapter, adapter.encode_prefix({**rest, **kept}), noise), self.chunk(adapter))

    def test_frames_of_any_size_are_letterboxed_into_one_shape(self, adapter):
        wide = {camera.key: np.full((30, 90, 3), 51, np.uint8) for camera in adapter.spec.cameras}
        tall = {camera.key: np.full((500, 70, 3), 51, np.uint8) for camera in adapter.spec.cameras}
        for images, inside, outside in ((wide, (28, 1), (1, 28)), (tall, (1, 28), (28, 1))):
            inputs = adapter.preprocess(replace(self.make_observation(0), images=images))
            image = adapter.prepare_images(inputs)[0, 0, 0]
            assert inputs["image.base_0_rgb"].shape == (1, 56, 56, 3)
            assert image[inside] == pytest.approx(51 / 255 * 2 - 1) and image[outside] == -1

    def test_frames_of_a_declared_size_are_resized_on_the_device_to_the_same_values(self, adapter):
        declared = self.load(frame_sizes={"base_0_rgb": [60, 80]})
        inputs, observation = declared.preprocess(self.make_observation(0)), self.make_observation(0)
        assert inputs["image.base_0_rgb"].dtype == torch.uint8 and inputs["image.base_0_rgb"].shape == (1, 60, 80, 3)
        assert torch.equal(declared.prepare_images(inputs), adapter.prepare_images(adapter.preprocess(observation)))
        with pytest.raises(ValueError, match=r"camera base_0_rgb: \(30, 40\) given, frame_sizes declares 60 x 80"):
            declared.preprocess(make_observation(0, list(observation.images), size=(30, 40)))

    def test_rows_take_the_time_each_says(self, adapter):
        latents = tensors(self.kind, "inputs")["noise"][:1]
        rows = torch.tensor([[10, 10, 10, 0, 0, 3, 3, 3, 9, 9]])
        tokens = adapter.embed_actions(latents, rows)[0]
        for row in (0, 3, 9, 10):
            expected = self.expected_embedding(adapter, latents[0], row)
            torch.testing.assert_close(tokens[rows[0] == row], expected[rows[0] == row], atol=1e-5, rtol=0)

    def test_clean_rows_differ_from_noisy_ones_and_reach_their_neighbours(self, adapter):
        inputs, noise = self.recorded(adapter)
        prefix, flow_time = adapter.encode_prefix(inputs), torch.full((2, 10), 0.3)
        uniform = adapter.denoise_step(prefix, noise, flow_time)
        flow_time[0, :4] = 1.0
        mixed = adapter.denoise_step(prefix, noise, flow_time)
        assert (mixed[0] - uniform[0]).abs().amin(dim=-1).min() > 0  # attention carries it to every row
        torch.testing.assert_close(mixed[1], uniform[1], atol=1e-6, rtol=0)  # but to no other robot

    def test_nothing_asks_for_a_value_so_a_graph_can_hold_it(self, adapter):
        inputs, noise = self.recorded(adapter)
        with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without values: reading one raises
            inputs = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in inputs.items()}
            velocity = adapter.denoise_step(adapter.encode_prefix(inputs), torch.empty(noise.shape), torch.zeros(2, 10))
        assert velocity.shape == noise.shape

    def test_relative_positions_of_a_bfloat16_reference_can_be_reproduced(self, adapter):
        rounded = self.load(rope_inv_freq="bf16_roundtrip")
        assert rounded.rotary.cos[80, 1] != adapter.rotary.cos[80, 1]
        assert torch.equal(rounded.rotary.cos[:, 0], adapter.rotary.cos[:, 0])  # frequency 1 has no error

    def test_the_engine_runs_it_from_a_blank_observation(self, adapter):
        spec = adapter.spec
        tables = build_tables(RtcConfig(mode="none"), spec.action_horizon, 10, spec.latent_dim, None)
        result = Engine(adapter, CPU).infer(blank_observation(spec), tables, np.zeros((10, 32), np.float32))
        assert result.actions.shape == (10, 7) and np.isfinite(result.actions).all()

    def test_actions_survive_the_way_into_model_space_and_back(self, adapter):
        observation = self.make_observation(0)
        actions = np.random.default_rng(0).normal(0, 1, (5, 7)).astype(np.float32)
        actions[:, 6] = adapter.postprocess(np.zeros((5, 32), np.float32), observation)[:, 6]  # this dim never moved
        latents = adapter.encode_actions(actions, observation)
        assert latents.shape == (5, 32) and not latents[:, 7:].any()
        np.testing.assert_allclose(adapter.postprocess(latents, observation), actions, atol=1e-5)

    def test_random_weights_run_in_the_same_code(self, adapter):
        made = type(adapter).random(adapter.network.sizes, CPU, Options(action_horizon=4, num_denoise_steps=2))
        observation = replace(self.make_observation(0), state=np.zeros(32, np.float32))
        chunk = sample(made, made.encode_prefix(made.preprocess(observation)), torch.zeros(1, 4, 32))
        assert chunk.shape == (1, 4, 32) and torch.isfinite(chunk).all()
