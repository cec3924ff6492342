"""Guards against an image stretched, cut or blurred otherwise than in training, and a tokenizer read wrongly."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from phyai_adapters._processing import Range, pad_tokens, resize_frame_with_pad, resize_with_pad, unit_images
from phyai_adapters._tokenizers import load_tokenizer


def frame(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The four nearest pixels, weighted; sample points between pixel centres, edges repeated."""
    rows = np.clip((np.arange(height) + 0.5) * image.shape[0] / height - 0.5, 0, None)
    columns = np.clip((np.arange(width) + 0.5) * image.shape[1] / width - 0.5, 0, None)
    top, left = rows.astype(int), columns.astype(int)
    below, right = np.minimum(top + 1, image.shape[0] - 1), np.minimum(left + 1, image.shape[1] - 1)
    down, along = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = image[top][:, left] * (1 - along) + image[top][:, right] * along
    lower = image[below][:, left] * (1 - along) + image[below][:, right] * along
    return upper * (1 - down) + lower * down


@pytest.mark.parametrize(("height", "width", "inside"), [(60, 80, (42, 56)), (90, 31, (56, 19)), (10, 14, (40, 56))])
def test_lerobots_resize_takes_the_four_nearest_pixels_and_centres(height, width, inside):
    image = frame(height, width)
    out = resize_with_pad(unit_images(torch.from_numpy(image)[None]), 56)[0].permute(1, 2, 0).numpy()
    top, left = (56 - inside[0]) // 2, (56 - inside[1]) // 2
    expected = np.zeros((56, 56, 3))
    expected[top : top + inside[0], left : left + inside[1]] = bilinear(image / 255, *inside)
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_openpis_resize_averages_over_what_a_pixel_covers():
    fine = np.zeros((112, 112, 3), np.uint8)
    fine[::2] = 255
    assert (np.abs(resize_frame_with_pad(fine, 56)[4:-4].astype(int) - 127.5) < 20).all()
    assert resize_with_pad(unit_images(torch.from_numpy(fine)[None]), 56).std() < 1e-6  # exactly between two rows
    assert resize_frame_with_pad(frame(56, 56), 56).tobytes() == frame(56, 56).tobytes()


@pytest.mark.parametrize(("height", "width"), [(120, 160), (301, 77), (40, 30)])
def test_on_the_device_openpis_resize_is_one_grey_level_off_at_most(height, width):
    image = frame(height, width)
    device = resize_with_pad(unit_images(torch.from_numpy(image)[None]), 56, antialias=True)
    host = unit_images(torch.from_numpy(resize_frame_with_pad(image, 56))[None])
    difference = (device - host).abs() * 255
    assert difference.max() < 1.01 and difference.mean() < 0.05


def test_a_range_of_zero_width_maps_to_its_value():
    normaliser = Range(low=np.float32([1, -3]), span=np.float32([2, 1e-8]))
    np.testing.assert_array_equal(normaliser.forward(np.float32([2, -3])), np.float32([0, -1]))
    np.testing.assert_array_equal(normaliser.inverse(np.float32([[0.5, 0.3]])), np.float32([[2.5, -3]]))


def test_prompts_are_padded_to_the_smallest_bucket_that_holds_them():
    tokens, mask = pad_tokens([2, 7, 9], (3, 8), pad_id=0)
    assert tokens.tolist() == [[2, 7, 9]] and mask.all()
    tokens, mask = pad_tokens([2, 7, 9, 4], (3, 8), pad_id=1)
    assert tokens.tolist() == [[2, 7, 9, 4, 1, 1, 1, 1]] and mask.sum() == 4
    tokens, mask = pad_tokens(range(20), (3, 8), pad_id=0)
    assert tokens.tolist() == [list(range(8))] and mask.all()


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    """A small model with the marks and settings of the real one: no dummy blank, no normalisation, newline a token."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    model = io.BytesIO()
    trainer.train(
        sentence_iterator=iter(["pick up the red block and put it into the box"] * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["\n"],
        minloglevel=2,
    )
    return model.getvalue()


def test_a_sentencepiece_file_beside_the_checkpoint_is_found(tmp_path, sentencepiece_model):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    tokenizer = load_tokenizer(None, tmp_path)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (2, 0)
    text, newline = tokenizer.encode("put  the block_"), tokenizer.encode("\n")
    assert len(newline) == 1 and 2 not in text
    assert tokenizer.encode("put  the block_\n") == text + newline


def test_a_tokenizer_json_is_read_without_marks(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "red": 4, "block": 5}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(None, tmp_path)
    assert tokenizer.encode("red block blue") == [4, 5, 3] and (tokenizer.bos_id, tokenizer.pad_id) == (2, 0)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")).save(str(tmp_path / "bare.json"))
    with pytest.raises(ValueError, match=r"bare.json has no <bos> or no <pad>"):
        load_tokenizer("bare.json", tmp_path)
