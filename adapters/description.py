"""What a checkpoint wants and gives, told without reading its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path

import torch

from phyai_adapters import ADAPTERS, load_adapter
from phyai_adapters._deployment import read_options
from phyai_adapters._processing import MeanStd, Normaliser, Range
from phyai_adapters._tokenizers import ByteTokenizer
from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig
from phyai_adapters.quantization import describe_quantization
from phyai_core.adapter import Adapter
from phyai_core.types import PolicySpec

META = torch.device("meta")


class AnyTokenizer(ByteTokenizer):
    """Stands in for a tokenizer that is yet to come: it knows every special token."""

    def find(self, token: str) -> int:
        """Id of a special token."""
        return 0


STAND_INS = {"rate_hz": 1.0, "tokenizer": AnyTokenizer()}  # for what the user has yet to say


@dataclass(frozen=True)
class Description:
    """One checkpoint. Ranges are (name of the method, one text per value), empty where nothing is normalised."""

    adapter: str
    layout: str
    spec: PolicySpec
    prompt_tokens: int  # longest prompt; 0: no prompt
    parameters: int  # 0: not told, as of exported networks
    quantization: str  # of the weights in the file; empty: as trained
    file_bytes: int
    state_range: tuple[str, ...]
    action_range: tuple[str, ...]
    unused: tuple[str, ...]  # tensors of the file that are not needed
    to_do: tuple[str, ...]  # what the user has to say before the policy can run, in sentences


def describe_checkpoint(folder: Path, name: str) -> Description:
    """Read all but the weights. Raises ValueError naming the file or entry that is wrong."""
    adapter, to_do = _load_without_weights(folder, name)
    network, contract = getattr(adapter, "network", None), getattr(adapter, "contract", None)
    parameters = sum(parameter.numel() for parameter in network.parameters()) if network else 0
    files = [contract.file] if contract else [*folder.rglob("*.safetensors")]
    deployment = getattr(adapter, "deployment", None)
    report = getattr(adapter, "report", None)
    return Description(
        adapter=name,
        layout=deployment.layout if deployment else "exported" if contract else "phyai_ros",
        spec=adapter.spec,
        prompt_tokens=adapter.prompt_buckets[-1] if adapter.prompt_buckets else getattr(adapter, "prompt_tokens", 0),
        parameters=parameters,
        quantization=describe_quantization(folder, {p.dtype for p in network.parameters()} if network else ()),
        file_bytes=sum(file.stat().st_size for file in files),
        state_range=_range_of(adapter, "state"),
        action_range=_range_of(adapter, "action"),
        unused=report.unused if report else (),
        to_do=tuple(to_do),
    )


def _load_without_weights(folder: Path, name: str):
    """The adapter on the meta device, with stand-ins for options that are still missing, and what these are."""
    module, _, attribute = ADAPTERS[name].partition(":")
    adapter_class = getattr(import_module(module), attribute)
    if "options" not in signature(adapter_class.load).parameters:
        return load_adapter(name, folder, META), []
    options, to_do = read_options(folder), []
    while True:
        try:
            return adapter_class.load(folder, META, options), to_do
        except ValueError as error:
            option = str(error).partition(":")[0]
            if option not in STAND_INS or getattr(options, option) is not None:
                raise
            options = replace(options, **{option: STAND_INS[option]})
            to_do.append(str(error))


def _range_of(adapter: Adapter, name: str) -> tuple[str, ...]:
    """What model units mean in the state or the action, where the adapter keeps statistics."""
    if hasattr(adapter, "deployment"):
        return _ranges(getattr(adapter.deployment, name))
    return _moments(adapter.config, name) if hasattr(adapter, "config") else ()


def _ranges(normaliser: Normaliser) -> tuple[str, ...]:
    """What model units mean, value by value."""
    if isinstance(normaliser, MeanStd):
        return _mean_std(normaliser.mean, normaliser.std)
    if isinstance(normaliser, Range):
        pairs = zip(normaliser.low, normaliser.span, strict=True)
        return tuple(f"{low:.4g} to {low + span:.4g}" for low, span in pairs)
    return ()


def _moments(config: FlowTinyConfig, name: str) -> tuple[str, ...]:
    return _mean_std(getattr(config, f"{name}_mean"), getattr(config, f"{name}_std"))


def _mean_std(means: Iterable[float], stds: Iterable[float]) -> tuple[str, ...]:
    return tuple(f"mean {mean:.4g}, std {std:.4g}" for mean, std in zip(means, stds, strict=True))
