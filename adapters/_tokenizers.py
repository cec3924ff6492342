"""Text to token ids. The tokenizer's file never comes with the weights: it lies beside the checkpoint or is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

BEGIN_MARKS = ("<bos>", "<|im_start|>", "<|endoftext|>")
PADS = ("<pad>", "<|im_end|>", "<|endoftext|>")
FILES = ("tokenizer.model", "paligemma_tokenizer.model", "tokenizer.json")


class Tokenizer(Protocol):
    """What an adapter needs of a tokenizer."""

    bos_id: int
    pad_id: int

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without begin or end marks."""

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of `text` with the marks that the tokenizer's own template puts around it."""


class ByteTokenizer:
    """One token per UTF-8 byte, id = byte + 3. For networks trained that way and for parity fixtures."""

    bos_id, pad_id = 2, 0

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return [byte + 3 for byte in text.encode()]

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of `text` behind the begin mark."""
        return [self.bos_id, *self.encode(text)]


class SentencePieceTokenizer:
    """A SentencePiece model file, such as paligemma_tokenizer.model."""

    def __init__(self, file: Path):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise ValueError(f"tokenizer: reading {file} needs the package sentencepiece; pip install it") from None
        try:
            self._model = SentencePieceProcessor(model_proto=file.read_bytes())
        except (RuntimeError, OSError) as error:
            raise ValueError(f"tokenizer: {file} is no SentencePiece model ({error})") from None
        self.bos_id, self.pad_id = self._model.bos_id(), max(self._model.pad_id(), 0)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return self._model.encode(text)

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of `text` behind the begin mark."""
        return [self.bos_id, *self.encode(text)]


class JsonTokenizer:
    """A tokenizer.json of the `tokenizers` package."""

    def __init__(self, file: Path):
        try:
            from tokenizers import Tokenizer as Model
        except ImportError:
            raise ValueError(f"tokenizer: reading {file} needs the package tokenizers; pip install it") from None
        self._model = Model.from_file(str(file))
        bos, pad = (self._first(names) for names in (BEGIN_MARKS, PADS))
        if bos is None or pad is None:
            raise ValueError(f"tokenizer: {file} has no <bos> or no <pad> token; it is not the tokenizer of this model")
        self.bos_id, self.pad_id = bos, pad

    def _first(self, names: tuple[str, ...]) -> int | None:
        ids = (self.find(name) for name in names)
        return next((found for found in ids if found is not None), None)

    def find(self, token: str) -> int | None:
        """Id of a special token by name; None where there is none."""
        return self._model.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return self._model.encode(text, add_special_tokens=False).ids

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of `text` with the marks of the file's template."""
        return self._model.encode(text, add_special_tokens=True).ids


def load_tokenizer(choice: str | None, folder: Path) -> Tokenizer:
    """The tokenizer file `choice` (relative to `folder`, or "bytes"); None: the first of FILES found in `folder`.

    Raises ValueError naming what was looked for and what to do.
    """
    if choice == "bytes":
        return ByteTokenizer()
    if choice is None:
        file = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if file is None:
            raise ValueError(
                f"tokenizer: {folder} has none of {', '.join(FILES)}. Copy the model's tokenizer there (pi0, pi0.5: "
                "tokenizer.model of google/paligemma-3b-pt-224; SmolVLA, GR00T, MiniCPM, Cosmos3: tokenizer.json of "
                'the model itself) or write {"tokenizer": "<file>"} into phyai.json beside the checkpoint'
            )
    else:
        file = folder / choice
        if not file.is_file():
            raise ValueError(f'tokenizer: {file} does not exist; give a file of one of the kinds {FILES}, or "bytes"')
    return JsonTokenizer(file) if file.suffix == ".json" else SentencePieceTokenizer(file)


def open_tokenizer(given: str | Tokenizer | None, folder: Path) -> Tokenizer:
    """The option `tokenizer` -> a tokenizer, itself where it is one already. Raises as load_tokenizer."""
    return load_tokenizer(given, folder) if given is None or isinstance(given, str) else given


def find_tokens(tokenizer: Tokenizer, names: Sequence[str], given: Sequence[int] | None) -> tuple[int, ...]:
    """Ids of the tokens round an image: `given` ones, or those of these names. Raises ValueError with what to do."""
    find = getattr(tokenizer, "find", lambda name: None)
    ids = tuple(given or (find(name) for name in names))
    if None in ids or len(ids) != len(names):
        entry = f'{{"image_tokens": [{", ".join("<id>" for _ in names)}]}}'
        raise ValueError(
            f"image_tokens: the tokenizer has no {', '.join(names)}, which this checkpoint was trained with; write "
            f"their ids in this order as {entry} into phyai.json"
        )
    return ids
