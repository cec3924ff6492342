"""Guards against weights that load although they do not fit: a key left unset, a key ignored, a transposed matrix, a
part of a fused matrix in the wrong rows, a damaged or half-copied file."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from phyai_core.weights import Checkpoint, load_weights


def tensor(*shape: int, start: float = 0.0) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + start


@pytest.fixture
def file(tmp_path):
    weights = {"model.q": tensor(2, 3), "model.k": tensor(1, 3, start=10), "head": tensor(4), "old.buffer": tensor(1)}
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def strip(key: str) -> str:
    return key.removeprefix("model.")


def test_parts_of_a_fused_matrix_land_in_their_rows(file):
    fused, head = torch.full((3, 3), torch.nan), torch.full((4,), torch.nan)
    targets = {"q": fused[:2], "k": fused[2:], "head": head}
    report = load_weights(Checkpoint(file), targets, canonical=strip, unused=["old.*"])
    assert torch.equal(fused, torch.cat((tensor(2, 3), tensor(1, 3, start=10)))) and torch.equal(head, tensor(4))
    assert report.loaded == ("q", "k", "head") and report.unused == ("old.buffer",)
    assert report.problems() == [] and report.bytes == 4 * (6 + 3 + 4)


def test_all_problems_are_told_by_name_and_nothing_is_copied(file):
    q, bias = torch.full((3, 2), torch.nan), torch.zeros(1)
    with pytest.raises(ValueError, match="does not fit the model") as error:
        load_weights(Checkpoint(file), {"q": q, "bias": bias}, canonical=strip, unused=["old.*"])
    text = str(error.value)
    assert str(file) in text
    assert "1 missing: bias." in text and "2 unexpected: head, k." in text.replace("k, head", "head, k")
    assert "1 of another shape: q is [2, 3], wanted [3, 2]." in text
    assert torch.isnan(q).all()


def test_long_lists_are_cut(file):
    targets = {f"layer{index}": torch.zeros(1) for index in range(9)}
    with pytest.raises(ValueError, match=r"9 missing: layer0, .*layer5, and 3 more"):
        load_weights(Checkpoint(file), targets, unused=["*"])


def test_a_tied_key_is_filled_from_the_other_only_where_it_is_missing(file):
    embedding = torch.zeros(4)
    report = load_weights(Checkpoint(file), {"embedding": embedding}, tied={"embedding": "head"}, unused=["*"])
    assert torch.equal(embedding, tensor(4)) and report.tied == (("embedding", "head"),)
    head = torch.zeros(4)
    report = load_weights(Checkpoint(file), {"head": head}, tied={"head": "old.buffer"}, unused=["*"])
    assert torch.equal(head, tensor(4)) and report.tied == ()


def test_values_are_converted_to_the_type_of_the_target_and_progress_ends_at_the_total(file):
    targets, seen = {"model.q": torch.zeros(2, 3, dtype=torch.bfloat16), "head": torch.zeros(4)}, []
    load_weights(Checkpoint(file), targets, unused=["*"], progress=lambda done, total: seen.append((done, total)))
    assert torch.equal(targets["model.q"], tensor(2, 3).bfloat16())
    assert [total for _, total in seen] == [40, 40] and seen[-1][0] == 40 and seen[0][0] < 40


def test_two_keys_for_one_name_are_refused(tmp_path):
    save_file({"model.q": tensor(2), "q": tensor(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds q twice, as "):
        load_weights(Checkpoint(tmp_path), {"q": torch.zeros(2)}, canonical=strip)


def test_shards_are_read_by_their_index(tmp_path):
    save_file({"a": tensor(2)}, tmp_path / "one.safetensors")
    save_file({"b": tensor(3)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    targets = {"a": torch.zeros(2), "b": torch.zeros(3)}
    load_weights(Checkpoint(tmp_path), targets)
    assert torch.equal(targets["b"], tensor(3))
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ValueError, match=r"two.safetensors is named by the index but does not exist"):
        Checkpoint(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path, file):
    with pytest.raises(ValueError, match=r"has neither model.safetensors nor"):
        Checkpoint(tmp_path.parent)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read .*damaged or still being copied"):
        Checkpoint(file)
