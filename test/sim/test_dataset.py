"""Guards against: data that depend on the number of processes, a cache used for another recipe, labels that do not
follow from their observation, and demonstrations that teach hitting the post.
"""

from __future__ import annotations

import numpy as np
import pytest

from phyai_ros.sim.dataset import Recipe, Samples, generate, load_or_generate, record_shard
from phyai_ros.sim.evaluate import passing_side
from phyai_ros.sim.expert import point_for

SMALL = Recipe(episodes=12, seed=3)


@pytest.fixture(scope="module")
def samples() -> Samples:
    return generate(SMALL, workers=1)


def assert_equal(one: Samples, other: Samples) -> None:
    for name in ("images", "states", "actions"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_samples_have_shapes_and_types(samples):
    count = len(samples)
    assert samples.images.shape == (count, 64, 64, 3) and samples.images.dtype == np.uint8
    assert samples.states.shape == (count, 12) and samples.states.dtype == np.float32
    assert samples.actions.shape == (count, 32, 4) and samples.actions.dtype == np.float32
    assert np.isfinite(samples.states).all() and np.isfinite(samples.actions).all()


def test_two_processes_record_what_one_does(samples):
    finished = []
    assert_equal(generate(SMALL, workers=2, on_progress=finished.append), samples)
    assert finished == [10, 2]


def test_another_seed_gives_other_data(samples):
    other = record_shard(range(1), seed=4)
    assert not np.array_equal(other.states[0], samples.states[0])


def test_a_label_begins_at_the_command_of_its_observation(samples):
    first_step = np.abs(point_for(samples.actions[:, 0]) - point_for(samples.states[:, 8:]))
    assert first_step.max() < 0.32 * 0.04 + 0.08 * 0.04  # top speed, and what one tick of acceleration may add
    along = np.abs(np.diff(point_for(samples.actions), axis=1))
    assert along.max() < 0.02


def test_labels_keep_clear_of_the_post_and_use_both_sides(samples):
    assert np.abs(point_for(samples.actions) - 0.33).min() > 0.036
    assert {passing_side(actions) for actions in samples.actions} == {-1, 0, 1}


def test_data_are_kept_and_used_again(tmp_path, samples):
    recipe = Recipe(episodes=2, seed=3)
    first = load_or_generate(tmp_path, recipe, workers=1)
    written_ns = (tmp_path / "samples.npz").stat().st_mtime_ns
    finished = []
    assert_equal(load_or_generate(tmp_path, recipe, workers=1, on_progress=finished.append), first)
    assert (tmp_path / "samples.npz").stat().st_mtime_ns == written_ns and finished == [2]
    assert len(load_or_generate(tmp_path, Recipe(episodes=1, seed=3), workers=1)) < len(first)


def test_a_recording_that_was_cut_off_is_not_used(tmp_path):
    recipe = Recipe(episodes=1, seed=3)
    (tmp_path / "samples.npz").write_bytes(b"half a file")
    assert len(load_or_generate(tmp_path, recipe, workers=1)) > 0


def test_no_episodes_is_refused():
    with pytest.raises(ValueError, match="episodes: 0"):
        generate(Recipe(episodes=0), workers=1)
