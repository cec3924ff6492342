"""Times upstream's own code on one CUDA device: python tools/gpu_bench_upstream.py [--only CASE ..] [--json FILE]

Random weights in bfloat16, sizes as `phyai-ros bench --random-weights`; nothing is downloaded. Each case is timed
eagerly and, where it can be captured, as a CUDA graph: milliseconds, the median of RUNS. A case whose code is not
installed is named with what is missing. The heads of these policies, and SmolVLA, are not in transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

RUNS = 40
TINY = "--tiny" in sys.argv  # for a try on a CPU
DEVICE = torch.device("cpu" if TINY else "cuda")
CAMERAS, PROMPT = 2, 64


def scaled(full: int, tiny: int) -> int:
    return tiny if TINY else full


def make_minicpm() -> Callable[[], torch.Tensor]:
    """MiniCPM-V 4.6 as transformers has it: two images of 448 x 448 and 118 tokens of text."""
    from transformers import MiniCPMV4_6Config, MiniCPMV4_6Model

    depth, image_token = scaled(24, 4), 11
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": scaled(248320, 320),
        "hidden_size": scaled(1024, 64),
        "intermediate_size": scaled(3584, 128),
        "num_hidden_layers": depth,
        "num_attention_heads": scaled(8, 4),
        "num_key_value_heads": 2,
        "head_dim": scaled(256, 32),
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (depth // 4),
        "linear_key_head_dim": scaled(128, 16),
        "linear_value_head_dim": scaled(128, 16),
        "linear_num_key_heads": scaled(16, 2),
        "linear_num_value_heads": scaled(16, 4),
        "rope_parameters": {**rope, "mrope_section": [11, 11, 10] if not TINY else [2, 1, 1]},
    }
    vision = {
        "hidden_size": scaled(1152, 32),
        "intermediate_size": scaled(4304, 64),
        "num_hidden_layers": scaled(27, 4),
        "num_attention_heads": scaled(16, 2),
        "image_size": 980,
        "patch_size": 14,
    }
    config = MiniCPMV4_6Config(
        text_config=text, vision_config=vision, insert_layer_id=scaled(6, 1), image_token_id=image_token
    )
    model = _place(MiniCPMV4_6Model, config)
    side = 32
    tokens = torch.randint(20, 300, (1, CAMERAS * 64 + 118), device=DEVICE)
    tokens[:, 8 : 8 + CAMERAS * 64] = image_token
    given = {
        "input_ids": tokens,
        "pixel_values": torch.randn(1, 3, 14, 14 * side * side * CAMERAS, device=DEVICE).to(model.dtype),
        "target_sizes": torch.tensor([[side, side]] * CAMERAS, dtype=torch.int32, device=DEVICE),
    }
    return lambda: model(**given, use_cache=False).last_hidden_state


def make_groot() -> Callable[[], torch.Tensor]:
    """The backbone of GR00T N1.7 alone, Qwen3-VL cut to 16 layers, two images of 256 x 256; its head is in lerobot."""
    from transformers import Qwen3VLConfig, Qwen3VLModel

    text = {
        "vocab_size": scaled(151936, 400),
        "hidden_size": scaled(2048, 64),
        "intermediate_size": scaled(6144, 96),
        "num_hidden_layers": scaled(16, 4),
        "num_attention_heads": scaled(16, 4),
        "num_key_value_heads": scaled(8, 2),
        "head_dim": scaled(128, 16),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [24, 20, 20] if not TINY else [4, 2, 2],
        },
    }
    vision = {
        "hidden_size": scaled(1024, 32),
        "depth": scaled(24, 3),
        "intermediate_size": scaled(4096, 64),
        "num_heads": scaled(16, 2),
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17] if not TINY else [0, 1],
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=11, vision_start_token_id=12)
    model, side = _place(Qwen3VLModel, config), 16
    tokens = torch.randint(20, 300, (1, CAMERAS * 66 + PROMPT + 27), device=DEVICE)
    for camera in range(CAMERAS):
        tokens[:, 20 + 66 * camera] = 12
        tokens[:, 21 + 66 * camera : 85 + 66 * camera] = 11
    given = {
        "input_ids": tokens,
        "pixel_values": torch.randn(CAMERAS * side * side, 3 * 2 * 16 * 16, device=DEVICE).to(model.dtype),
        "image_grid_thw": torch.tensor([[1, side, side]] * CAMERAS, device=DEVICE),
        "mm_token_type_ids": (tokens == 11).int(),
    }
    return lambda: model(**given, use_cache=False).last_hidden_state


CASES = {"minicpm_backbone": make_minicpm, "groot_backbone": make_groot}


def _place(model_class, config):
    torch.manual_seed(0)
    torch.set_default_device(DEVICE)
    torch.set_default_dtype(torch.float32 if TINY else torch.bfloat16)
    model = model_class(config).eval()
    torch.set_default_dtype(torch.float32)
    return model.requires_grad_(False)


def measure(run: Callable[[], torch.Tensor]) -> dict[str, float | str]:
    """Eager and captured, each the median wall time of one call."""
    with torch.inference_mode():
        run()
        result: dict[str, float | str] = {"eager_ms": _median_ms(run)}
        if not TINY:
            try:
                result["graph_ms"] = _median_ms(_capture(run))
            except Exception as error:  # upstream asks the device for values, which a graph cannot hold
                result["graph_ms"] = f"cannot be captured: {str(error).splitlines()[0][:90]}"
                torch.cuda.synchronize()
    return result


def _capture(run: Callable[[], torch.Tensor]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _median_ms(run: Callable[[], object]) -> float:
    times = []
    for _ in range(3 if TINY else RUNS):
        started = time.perf_counter()
        run()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return round(statistics.median(times), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU, to try whether it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, object] = {"torch": torch.__version__}
    for name in options.only:
        try:
            report[name] = measure(CASES[name]())
        except ImportError as error:
            report[name] = f"not measured: {error}"
        print(name, report[name], flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
