"""The pi0.5 prefix (three cameras, 200 prompt tokens: 968 rows) and its vision tower: products, passes, candidates."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_bench.timing import replay_times
from phyai_kernels.dense import CUBLAS, DENSE, Scales
from phyai_kernels.dense_hopper import dense_hopper
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.prefix_pass import PrefixPass, pack_layer
from phyai_kernels.quantize_rows import FP8, quantize_rows_reference, quantize_weight
from phyai_kernels.vision_pass import Affine, VisionBlock, VisionPass

TOKENS, WIDTH, MLP_WIDTH, HEADS, HEAD_DIM, DEPTH = 968, 2048, 16384, 8, 256, 18
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
    for block, lag in ((128, 0), (128, 3), (256, 0), (256, 2), (256, 3)):
        if block == 128 or arguments[0][3]:
            ways[f"hopper {block} lag {lag}"] = lambda *a, block=block, lag=lag: dense_hopper(
                *a, block_n=block, lag=lag
            )
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


def measure_pass() -> dict[str, object]:
    """The whole prefix pass: error of the last layer's keys and values, time, by candidates and in FP8."""
    angle = torch.randn(TOKENS, HEAD_DIM // 2, device=CUDA)
    rotary, start = torch.stack([angle.cos(), angle.sin()]), normal(TOKENS, WIDTH)
    cache = torch.zeros(2, DEPTH, 1, TOKENS + 56, HEAD_DIM, dtype=torch.bfloat16, device=CUDA)
    length = torch.tensor([TOKENS], dtype=torch.int32, device=CUDA)

    def run(fp8, dispatcher):
        prefix = PrefixPass(_layers(fp8), *cache, length, rotary, TOKENS, dispatcher)
        prefix.x.copy_(start)
        prefix.run()
        return prefix, cache[:, -1, 0, :TOKENS].clone()

    expected = run(False, Reference())[1]
    report = {}
    for name, fp8, dispatcher in (
        ("default", False, Dispatcher(CUDA)),
        ("cublas", False, Preferring(dense_geglu="cublas")),
        ("triton attention", False, Preferring(prefix_attention="triton")),
        ("fp8", True, Dispatcher(CUDA)),
        ("fp8 hopper", True, Preferring(dense="hopper")),
    ):
        prefix, result = run(fp8, dispatcher)
        report[name] = {"error": relative_error(result, expected), **replay_times(prefix.run, runs=30)}
        if name in ("default", "fp8"):
            report[f"{name} without"] = time_without(prefix)
        del prefix
    return report


def time_without(work) -> dict[str, float]:
    """Milliseconds of a pass that its launches of one kind cost: those of a pass without them are missing."""
    whole, launches = replay_times(work.run, runs=30)["p50"], work._launches
    costs = {}
    for kind in sorted({launch[0].__name__ for launch in launches}):
        work._launches = [launch for launch in launches if launch[0].__name__ != kind]
        costs[kind] = round((whole - replay_times(work.run, runs=30)["p50"]) / 1e3, 3)
    work._launches = launches
    return costs


def measure_vision() -> dict[str, object]:
    """SigLIP So400m, three images: error of the tokens and time."""
    width, mlp_width, depth, images, tokens = 1152, 4304, 27, 3, 256

    def affine(rows, columns=0):
        weight = normal(rows, columns, scale=columns**-0.5) if columns else 1 + normal(rows, scale=0.1)
        return Affine(weight, normal(rows, scale=0.1))

    blocks = [
        VisionBlock(
            affine(width),
            affine(3 * width, width),
            affine(width, width),
            affine(width),
            affine(mlp_width, width),
            affine(width, mlp_width),
        )
        for _ in range(depth)
    ]
    norm, project, start = affine(width), affine(WIDTH, width), normal(images * tokens, width)
    report, expected = {}, None
    for name, dispatcher in (
        ("reference", Reference()),
        ("default", Dispatcher(CUDA)),
        ("sdpa", Preferring(image_attention="sdpa")),
    ):
        out = torch.empty(images * tokens, WIDTH, dtype=torch.bfloat16, device=CUDA)
        vision = VisionPass(blocks, norm, project, images, 16, start.clone(), out, dispatcher)
        vision.run()
        expected = out.clone() if expected is None else expected
        report[name] = {"error": relative_error(out, expected), **replay_times(vision.run, runs=30)}
        if name == "default":
            report["without"] = time_without(vision)
    return report
