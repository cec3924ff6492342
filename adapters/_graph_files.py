"""Exported networks: ONNX by onnxruntime, TorchScript by torch. Both run on the CPU, on one thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from phyai_adapters._contract import Contract


def describe_network(file: Path) -> str:
    """Kind, inputs and outputs or methods of a file, in words. Raises ValueError where it cannot be opened."""
    if file.suffix == ".onnx":
        session = _open_onnx(str(file))
        sides = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
        return _list("ONNX", {name: [f"{entry.name} {entry.shape}" for entry in side] for name, side in sides.items()})
    module = _open_torchscript(str(file))
    parts = {
        "inputs": [argument.name for argument in module.forward.schema.arguments[1:]],
        "methods": [name for name in module._c._method_names() if not name.startswith("__") and name != "forward"],
        "buffers": [f"{name} {list(buffer.shape)}" for name, buffer in module.named_buffers()],
    }
    return _list("TorchScript", parts)


def _list(kind: str, parts: Mapping[str, list[str]]) -> str:
    return "; ".join([kind, *(f"{name} {', '.join(found)}" for name, found in parts.items() if found)])


def _open_onnx(file: str):
    """A session on the CPU and one thread. Raises ValueError where the package is missing or the file damaged."""
    try:
        import onnxruntime
    except ImportError:
        raise ValueError(f"checkpoint: {file} needs the package onnxruntime; pip install it") from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but this
        raise ValueError(f"checkpoint: {file} cannot be run by onnxruntime ({error})") from None


def _open_torchscript(file: str) -> torch.jit.ScriptModule:
    try:
        return torch.jit.load(file, map_location="cpu").eval()
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"checkpoint: {file} is no TorchScript module ({first})") from None


class Graph(Protocol):
    """A network that may remember."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """{input name: float32 with B = 1}, the vector under "" -> the actions, float32."""

    def reset(self) -> None:
        """Forget all calls before."""


class OnnxGraph:
    """A network whose memory, if it has one, goes in and out as tensors."""

    def __init__(self, contract: Contract):
        self._session = _open_onnx(contract.file)
        self._memory = contract.recurrent
        self._state: dict[str, np.ndarray] = {}
        self._check(contract)
        self.reset()

    def _check(self, contract: Contract) -> None:
        inputs = {entry.name for entry in self._session.get_inputs()}
        outputs = [entry.name for entry in self._session.get_outputs()]
        named = {memory.input for memory in self._memory} | {image.input for image in contract.images}
        rest = inputs - named
        self._input = contract.input or next(iter(rest), "")
        self._output = contract.output or outputs[0]
        missing = [*(named - inputs), *({memory.output for memory in self._memory} - set(outputs))]
        if rest != {self._input} or missing or self._output not in outputs:
            raise ValueError(
                f"checkpoint: {contract.file} has inputs {sorted(inputs)} and outputs {outputs}; the contract names "
                f"{sorted({self._input, *named})} and {sorted({self._output, *(m.output for m in self._memory)})}"
            )

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        feeds = {name or self._input: value for name, value in inputs.items()}
        names = [self._output, *(memory.output for memory in self._memory)]
        actions, *states = self._session.run(names, {**feeds, **self._state})
        self._state = {memory.input: state for memory, state in zip(self._memory, states, strict=True)}
        return actions

    def reset(self) -> None:
        self._state = {memory.input: np.zeros(memory.shape, np.float32) for memory in self._memory}


class TorchScriptGraph:
    """A scripted module; its memory, if it has one, lies in its buffers. It takes the vector, then the images."""

    def __init__(self, contract: Contract):
        self._module = _open_torchscript(contract.file)
        if contract.recurrent:
            raise ValueError(f"checkpoint: {contract.file} is TorchScript; name its method under reset, not recurrent")
        if contract.reset and not hasattr(self._module, contract.reset):
            raise ValueError(f"checkpoint: {contract.file} has no method {contract.reset}, which reset names")
        if not contract.reset and list(self._module.buffers()):
            names = ", ".join(name for name, _ in self._module.named_buffers())
            raise ValueError(
                f"checkpoint: {contract.file} has buffers ({names}), which may be a memory; name the method that "
                "clears it under reset"
            )
        self._reset = contract.reset
        self._images = [image.input for image in contract.images]
        self.reset()

    @torch.no_grad()
    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        ordered = (torch.from_numpy(inputs[name]) for name in ("", *self._images))
        return self._module(*ordered).numpy()

    def reset(self) -> None:
        if self._reset:
            getattr(self._module, self._reset)()


GRAPHS = {".onnx": OnnxGraph, ".pt": TorchScriptGraph, ".pth": TorchScriptGraph, ".jit": TorchScriptGraph}


def open_graph(contract: Contract) -> Graph:
    """The network of a contract. Raises ValueError for a file that cannot be run, or contradicts the contract."""
    suffix = Path(contract.file).suffix
    if suffix not in GRAPHS:
        raise ValueError(f"checkpoint: {contract.file} is of no known kind; allowed are {', '.join(GRAPHS)}")
    return GRAPHS[suffix](contract)
