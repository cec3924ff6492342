"""Guards, for FlashInfer's kernels, against: use where they cannot run, without a word why; arguments that mean
something else to them; a length that is read on the host; another result than the reference. The GPU is not needed:
a stand-in computes what FlashInfer's documentation says of these arguments.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from comparison import assert_agrees, draw, poisoned

from phyai_kernels import flashinfer_attention
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.expert_attention import EXPERT_ATTENTION
from phyai_kernels.flashinfer_attention import attend_flashinfer, refuse_flashinfer
from phyai_kernels.prefix_attention import PREFIX_ATTENTION

CPU, CUDA = torch.device("cpu"), SimpleNamespace(type="cuda")
LENGTHS = torch.tensor([40, 3], dtype=torch.int32)


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No module is remembered from one test to the next."""
    clear = [flashinfer_attention._import, flashinfer_attention._compile]
    monkeypatch.setattr(flashinfer_attention, "TEMPORARY_BYTES", 64)
    for function in clear:
        function.cache_clear()
    yield
    for function in clear:
        function.cache_clear()


def on_a_gpu(monkeypatch, capability=(9, 0), compiler=True):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(flashinfer_attention, "_has_compiler", lambda: compiler)


def install(monkeypatch, **members):
    """A stand-in for the installed package, its module of generators with these members."""
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.attention"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    vars(module).update(members)


def kernels(backend):
    """What is loaded after compilation. FA2 would leave most tiles unmasked without being told of a mask (2)."""

    def attend(q, k, v, temporary, out, lse, mask, layout, window, length, more, scale):
        """q, out [T, N, K]; k, v [S, 1, K]; the length is a tensor of one, as a pointer to it is."""
        assert (lse, mask, layout, window) == (None, 2 if backend == "fa2" else 0, 0, -1)
        assert length.shape == (1,) and length.dtype == torch.int32 and temporary.dtype == torch.uint8
        scores = torch.einsum("tnk,sk->tns", q.float(), k[:, 0].float()) * scale
        hidden = torch.arange(len(k)) >= length + more
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out.copy_(torch.einsum("tns,sk->tnk", weights, v[:, 0].float()))
        seen.append(len(k))

    seen = []
    return SimpleNamespace(build_and_load=lambda: SimpleNamespace(run=attend), seen=seen)


def arguments(dtype=torch.bfloat16, dim=64):
    generator = torch.Generator().manual_seed(2)
    queries = draw(generator, 2, 45, 3 * dim, dtype=dtype)
    keys, values = draw(generator, 2, 2, 90, dim, dtype=dtype)
    keys[:, 45:], values[:, 45:] = 50.0, 1e4
    return queries, keys, values


def test_why_it_cannot_run_is_said_before_anything_is_imported(monkeypatch):
    queries, keys, _ = arguments()
    monkeypatch.setattr(flashinfer_attention, "_import", lambda: pytest.fail("imported"))
    assert refuse_flashinfer("fa2", CPU, queries, keys) == "needs a CUDA device, not cpu"
    on_a_gpu(monkeypatch, (12, 0))
    assert "takes float16 or bfloat16 heads of 64, 128, 256" in refuse_flashinfer("fa2", CUDA, queries.float(), keys)
    assert "not torch.bfloat16 heads of 72" in refuse_flashinfer("fa2", CUDA, queries, keys.new_empty(2, 90, 72))
    reason = "needs compute capability 9.0 (Hopper), this is 12.0"
    assert refuse_flashinfer("fa3", CUDA, queries, keys) == reason
    on_a_gpu(monkeypatch, (7, 5))
    assert refuse_flashinfer("fa2", CUDA, queries, keys) == "needs compute capability 8.0 or more, this is 7.5"


def test_a_package_that_is_missing_or_broken_is_told_apart(monkeypatch):
    on_a_gpu(monkeypatch)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    queries, keys, _ = arguments()
    assert refuse_flashinfer("fa3", CUDA, queries, keys) == "FlashInfer is not installed"
    flashinfer_attention._import.cache_clear()
    install(monkeypatch)

    def fail(name):
        raise ModuleNotFoundError("No module named 'tvm_ffi'", name="tvm_ffi")

    monkeypatch.setattr(flashinfer_attention, "import_module", fail)
    assert "cannot be imported (No module named 'tvm_ffi')" in refuse_flashinfer("fa3", CUDA, queries, keys)


def test_without_a_compiler_it_is_refused_and_with_one_taken(monkeypatch):
    install(monkeypatch)
    queries, keys, _ = arguments()
    on_a_gpu(monkeypatch, compiler=False)
    assert "finds no nvcc" in refuse_flashinfer("fa2", CUDA, queries, keys)
    on_a_gpu(monkeypatch, (8, 6))
    assert refuse_flashinfer("fa2", CUDA, queries, keys) is None


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
def test_the_prefix_is_what_the_reference_gives_and_compiled_once(monkeypatch, backend):
    made = []

    def generate(*given):
        made.append(given)
        return compiled

    compiled = kernels(backend)
    install(monkeypatch, gen_customize_single_prefill_module=generate)
    queries, keys, values = arguments()
    expected, out = (poisoned(*queries.shape, dtype=queries.dtype) for _ in range(2))
    PREFIX_ATTENTION.reference(queries, keys, values, LENGTHS, expected)
    for _ in range(2):
        next(c for c in PREFIX_ATTENTION.candidates if c.name == f"flashinfer {backend}").run(
            queries, keys, values, LENGTHS, out
        )
    assert_agrees(out, expected)
    assert set(compiled.seen) == {queries.shape[1]}  # not the whole buffer of keys
    (given,) = made
    assert given[0] == backend and given[2:7] == (torch.bfloat16,) * 3 + (64, 64)
    assert given[7:11] == (["length"], ["int32_t"], ["more", "sm_scale"], ["int64_t", "double"])
    name, declaration = given[11:]
    assert f"struct {name}" in declaration and ("LOGITS_MASK" in declaration) == (backend == "fa2")


def test_the_rows_of_a_chunk_see_the_prefix_and_each_other(monkeypatch):
    install(monkeypatch, gen_customize_single_prefill_module=lambda *_: kernels("fa3"))
    queries, keys, values = arguments()
    queries = queries[:, :5].flatten(0, 1)
    expected, out = (poisoned(*queries.shape, dtype=queries.dtype) for _ in range(2))
    EXPERT_ATTENTION.reference(queries, keys, values, LENGTHS, expected)
    *_, candidate, _ = EXPERT_ATTENTION.candidates
    assert candidate.name == "flashinfer fa3"
    candidate.run(queries, keys, values, LENGTHS, out)
    assert_agrees(out, expected)
    assert candidate.refuse(CUDA, queries, keys, values, LENGTHS, out, lead=1) == "takes no leading rows"


def test_the_dispatcher_says_why_it_left_flashinfer_out():
    queries, keys, values = arguments()
    dispatcher = Dispatcher(CPU)
    dispatcher.pick(PREFIX_ATTENTION, queries, keys, values, LENGTHS, torch.empty_like(queries))
    for backend in ("fa2", "fa3"):
        assert f"flashinfer {backend}: refused: needs a CUDA device, not cpu" in dispatcher.explain()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["fa2", "fa3"])
def test_flashinfer_itself_gives_what_the_reference_gives(backend):
    device = torch.device("cuda")
    queries, keys, values = (tensor.to(device) for tensor in arguments(dim=256))
    if (reason := refuse_flashinfer(backend, device, queries, keys)) is not None:
        pytest.skip(reason)
    expected, out = (poisoned(*queries.shape, dtype=queries.dtype, device=device) for _ in range(2))
    PREFIX_ATTENTION.reference(queries, keys, values, LENGTHS.to(device), expected)
    attend_flashinfer(backend, queries, keys, values, LENGTHS.to(device), out)
    for robot, end in enumerate(LENGTHS.tolist()):
        assert_agrees(out[robot, :end], expected[robot, :end])
