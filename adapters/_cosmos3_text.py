"""What Cosmos3's DROID policy is told: the task inside a caption, in Qwen3's template.

The caption carries the views, the duration, the rate and the size of the video, so it is the same for a task all the
time. The server writes it as text unless the training configuration or an option says JSON. Source: NVIDIA
cosmos-framework, scripts/action_policy_server_robolab.py and data/generator/action/utils/transforms.py.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import lru_cache
from math import gcd

from phyai_adapters._tokenizers import Tokenizer, find_tokens

ASPECTS = {(544, 736): "4,3", (736, 544): "3,4", (480, 832): "16,9", (832, 480): "9,16"}
HEAD, TAIL = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
MARKS = ("<|im_end|>", "<|vision_start|>")  # end of the text, before the video
# Words that the policy was trained with.
VIEWS = (
    "This video contains concatenated views from multiple camera perspectives.",
    "The top row is from the wrist-mounted camera.",
    "The bottom row contains two horizontally concatenated third-person perspective views of the scene from opposite "
    "sides, with the robot visible.",
)


class TextEncoder:
    """Texts -> token ids, the last ones kept. `marks`: ids for MARKS where the tokenizer does not know them."""

    def __init__(self, tokenizer: Tokenizer, marks: Sequence[int] | None, longest: int):
        """Raises ValueError where the ids of the marks are not known."""
        self.pad_id, self._tokenizer, self._longest = tokenizer.pad_id, tokenizer, longest
        self._marks = find_tokens(tokenizer, MARKS, marks)
        self.encode = lru_cache(64)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        """What a user says and the marks before a video; the end of a long text is cut off, and told."""
        head, ids, tail = (self._tokenizer.encode(part) for part in (HEAD, text, TAIL))
        room = self._longest - len(head) - len(tail) - len(self._marks)
        if len(ids) > room:  # the text says no length: a repeated warning is shown once
            warnings.warn(f"prompt: cut to {room} tokens with its caption, the end is lost; shorten it", stacklevel=3)
        return (*head, *ids[:room], *tail, *self._marks)


def caption(task: str, horizon: int, rate_hz: float, video_size: tuple[int, int], as_json: bool) -> str:
    """The text around a task; `horizon` actions, between each two a frame."""
    seconds, (height, width) = (horizon + 1) / rate_hz, video_size
    if as_json:
        return _json_caption(task.strip(), seconds, rate_hz, video_size)
    sentences = [
        *VIEWS,
        f"The video is {int(seconds):.1f} seconds long and is of {rate_hz:.0f} FPS.",
        f"This video is of {height}x{width} resolution.",
    ]
    task = task.rstrip()
    return " ".join([task if task.endswith(".") or not task else f"{task}.", *sentences]).lstrip()


def _json_caption(task: str, seconds: float, rate_hz: float, video_size: tuple[int, int]) -> str:
    height, width = video_size
    minutes, rest = divmod(round(seconds), 60)
    shared = gcd(width, height)
    values = {
        "cinematography": {"framing": " ".join(VIEWS)},
        "actions": [
            {
                "time": f"0:00-{minutes}:{rest:02d}",
                "description": task if task.endswith((".", "!", "?")) else f"{task}.",
            }
        ],
        "duration": f"{int(seconds)}s",
        "fps": float(rate_hz),
        "resolution": {"H": height, "W": width},
        "aspect_ratio": ASPECTS.get(video_size, f"{width // shared},{height // shared}"),
    }
    return json.dumps(values)
