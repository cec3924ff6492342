"""The pi0.5 prefix (three cameras, 200 prompt tokens: 968 rows) and its vision tower: products, passes, candidates."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_bench.timing import kernel_times, replay_times
from phyai_kernels.dense import CUBLAS, DENSE, Scales
from phyai_kernels.dense_hopper import dense_hopper
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.prefix_pass import PrefixPass, pack_layer
from phyai_kernels.quantize_rows import FP8, quantize_rows_reference, quantize_weight
from phyai_kernels.vision_pass import Affine, VisionBlock, VisionPass

TOKENS, WIDTH, MLP_WIDTH, HEADS, HEAD_DIM, DEPTH = 968, 2048, 16384, 8, 256, 18
IMAGES, IMAGE_ROWS = 3, 768
PRODUCTS = {  # N, K, GeGLU
    "qkv": (2560, 2048, False),
    "out": (2048, 2048, False),
    "gate_up": (32768, 2048, True),
    "down": (2048, 16384, False),
}
CUDA = torch.device("cuda")


class Reference:
    """Stands in for a dispatcher and takes the plain references."""

    def pick(self, op, *_, **__):
        return op.reference


class Preferring(Dispatcher):
    """A dispatcher that takes named candidates where they can run."""

    def __init__(self, **names: str) -> None:
        super().__init__(CUDA)
        self._names = names

    def pick(self, op, *arguments, **options):
        for candidate in op.candidates:
            if candidate.name == self._names.get(op.name) and not candidate.refuse(CUDA, *arguments, **options):
                return candidate.run
        return super().pick(op, *arguments, **options)


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """L2 norm of the difference over that of `expected`."""
    return float(f"{float((result.double() - expected.double()).norm() / expected.double().norm()):.2e}")


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Bfloat16 normal numbers on the GPU."""
    return (torch.randn(*shape, device=CUDA) * scale).bfloat16()


def measure_products() -> dict[str, object]:
    """Every product of a layer, chained over several weights so that they come from memory: error, us, TFLOP/s."""
    report = {}
    for name, (columns, k, geglu) in PRODUCTS.items():
        x, weights = normal(TOKENS, k), [normal(columns, k, scale=k**-0.5) for _ in range(4)]
        out = torch.empty(TOKENS, columns // 2 if geglu else columns, dtype=torch.bfloat16, device=CUDA)
        operands8 = torch.empty_like(x, dtype=FP8), torch.empty(TOKENS, device=CUDA)
        quantize_rows_reference(x, *operands8)
        weights8 = [quantize_weight(weight) for weight in weights]
        calls = {"bf16": [(x, w, out, geglu, None) for w in weights]}
        calls["fp8"] = [(operands8[0], w, out, geglu, Scales(operands8[1], s)) for w, s in weights8]
        for kind, arguments in calls.items():
            report[f"{name} {kind}"] = _compare_products(arguments, 2 * TOKENS * columns * k)
    return report


def _compare_products(arguments: list[tuple], flops: int) -> dict[str, object]:
    expected, out = torch.empty_like(arguments[0][2]), arguments[0][2]
    DENSE.reference(*arguments[0][:2], expected, *arguments[0][3:])
    result = {}
    ways: dict[str, Callable] = {"cublas": CUBLAS.run}
    for block in (128, 256) if arguments[0][3] else (128,):  # at 128 columns warp groups take turns at many tiles
        ways[f"hopper {block}"] = lambda *a, block=block: dense_hopper(*a, block_n=block)
    for name, way in ways.items():
        try:
            out.fill_(float("nan"))
            way(*arguments[0])
            error = relative_error(out, expected)
            us = replay_times(lambda way=way: [way(*a) for a in arguments], runs=15)["p50"] / len(arguments)
            result[name] = {"error": error, "us": round(us, 1), "tflop_s": round(flops / us / 1e6)}
        except RuntimeError as problem:
            result[name] = str(problem)[:200]
    return result


def _layers(fp8: bool) -> list:
    def full():
        return {
            "attention_norm": normal(WIDTH, scale=0.1),
            "qkv": normal((HEADS + 2) * HEAD_DIM, WIDTH, scale=WIDTH**-0.5),
            "out": normal(WIDTH, HEADS * HEAD_DIM, scale=WIDTH**-0.5),
            "mlp_norm": normal(WIDTH, scale=0.1),
            "gate": normal(MLP_WIDTH, WIDTH, scale=WIDTH**-0.5),
            "up": normal(MLP_WIDTH, WIDTH, scale=WIDTH**-0.5),
            "down": normal(WIDTH, MLP_WIDTH, scale=MLP_WIDTH**-0.5),
        }

    torch.manual_seed(0)
    layers = [pack_layer(**full(), fp8=fp8) for _ in range(DEPTH - 1)]
    last = {"attention_norm": normal(WIDTH, scale=0.1), "qkv": normal(2 * HEAD_DIM, WIDTH, scale=WIDTH**-0.5)}
    return [*layers, pack_layer(**last, fp8=fp8)]


def make_pass(fp8: bool, dispatcher: Dispatcher) -> PrefixPass:
    """A pass over random weights, the same ones every time, and a cache poisoned up to its padding."""
    angle = torch.randn(TOKENS, HEAD_DIM // 2, device=CUDA, generator=torch.Generator(CUDA).manual_seed(1))
    rotary, length = torch.stack([angle.cos(), angle.sin()]), torch.tensor([TOKENS], dtype=torch.int32, device=CUDA)
    cache = torch.zeros(2, DEPTH, 1, TOKENS + 56, HEAD_DIM, dtype=torch.bfloat16, device=CUDA)
    cache[:, :, :, :TOKENS] = float("nan")
    return PrefixPass(_layers(fp8), *cache, length, rotary, TOKENS, dispatcher)


def measure_pass() -> dict[str, object]:
    """The whole prefix pass: error of the last layer's keys and values, time, by candidates and in FP8."""
    start = normal(TOKENS, WIDTH)

    def run(fp8, dispatcher):
        prefix = make_pass(fp8, dispatcher)
        prefix.x.copy_(start)
        prefix.run()
        return prefix, torch.stack([prefix.keys[-1], prefix.values[-1]])[:, 0, :TOKENS].clone()

    expected = run(False, Reference())[1]
    report = {}
    for name, fp8, dispatcher in (
        ("default", False, Dispatcher(CUDA)),
        ("qkv in two launches", False, Preferring(prefix_qkv="reference")),
        ("cublas", False, Preferring(dense_geglu="cublas")),
        ("triton attention", False, Preferring(prefix_attention="triton")),
        ("fp8", True, Dispatcher(CUDA)),
    ):
        prefix, result = run(fp8, dispatcher)
        report[name] = {"error": relative_error(result, expected), **replay_times(prefix.run, runs=30)}
        report[name]["after_a_pause_us"] = replay_times(prefix.run, runs=5, pause_s=0.3)["p50"]
        if name in ("default", "fp8"):
            report[f"{name} kernels"] = kernel_times(prefix.run)
        del prefix
    return report


def make_vision(dispatcher: Dispatcher, out: torch.Tensor) -> VisionPass:
    """SigLIP So400m with random weights, the same ones every time; three images."""
    width, mlp_width = 1152, 4304
    torch.manual_seed(0)

    def affine(rows, columns=0):
        weight = normal(rows, columns, scale=columns**-0.5) if columns else 1 + normal(rows, scale=0.1)
        return Affine(weight, normal(rows, scale=0.1))

    sizes = (width,), (3 * width, width), (width, width), (width,), (mlp_width, width), (width, mlp_width)
    blocks = [VisionBlock(*(affine(*size) for size in sizes)) for _ in range(27)]
    return VisionPass(
        blocks, affine(width), affine(WIDTH, width), IMAGES, 16, normal(IMAGE_ROWS, width), out, dispatcher
    )


def measure_vision() -> dict[str, object]:
    """The vision tower: error of the tokens, time, by candidates."""
    report, expected = {}, None
    for name, dispatcher in (
        ("reference", Reference()),
        ("default", Dispatcher(CUDA)),
        ("triton attention", Preferring(image_attention="triton")),
        ("sdpa", Preferring(image_attention="sdpa")),
    ):
        out = torch.full((IMAGE_ROWS, WIDTH), float("nan"), dtype=torch.bfloat16, device=CUDA)
        vision = make_vision(dispatcher, out)
        vision.run()
        expected = out.clone() if expected is None else expected
        report[name] = {"error": relative_error(out, expected), **replay_times(vision.run, runs=30)}
        if name == "default":
            report["kernels"] = kernel_times(vision.run)
    return report
