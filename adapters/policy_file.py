"""Any exported network (ONNX, TorchScript) with a contract that says what its inputs and outputs mean.

    vector = clip(terms, side by side, of the last n observations);   target = offset + scale * clip(output)

Networks that remember are run once per chunk and in order; what they remember ends with the epoch of the observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from phyai_adapters._camera_policy import check_frame_sizes, check_observation
from phyai_adapters._contract import Contract, ImageTerm, Term, read_contract
from phyai_adapters._graph_files import Graph, open_graph
from phyai_core.adapter import Adapter
from phyai_core.types import CameraSpec, Feature, FloatArray, Observation, PolicySpec

LATCH = "begins"  # input that is True in the first observation of an epoch


class PolicyFile(Adapter):
    """Inputs: `vector` [B, n O], `image.<input>` [B, 3, h, w], `begins` bool [B]. A' is A, in the network's units."""

    def __init__(self, contract: Contract, graph: Graph):
        self.contract, self.graph = contract, graph
        self.spec = make_spec(contract)
        self._joints = len(contract.joints)
        self._epoch: int | None = None
        self._ticks = 0  # observations since the epoch began
        self._check_output()

    @classmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> PolicyFile:
        """Read policy.yaml, or the folder that holds it, and the network it names.

        Raises ValueError naming file, entry and what is allowed.
        """
        if checkpoint is None:
            raise ValueError("checkpoint: no network is shipped; give a folder with policy.yaml and the network")
        if device.type not in ("cpu", "meta"):
            raise ValueError(f"inference.device is {device}; allowed is cpu for exported networks")
        contract = read_contract(Path(checkpoint))
        return cls(contract, open_graph(contract))

    def _check_output(self) -> None:
        """The network has to take the vector and give H x A numbers; better now than on the robot."""
        blank = Observation(
            stamp_ns=0,
            images={c.key: np.zeros((c.height, c.width, 3), np.uint8) for c in self.spec.cameras},
            state=np.zeros(self.spec.state_dim, np.float32),
            last_command=self.contract.offset,
        )
        inputs = self.preprocess(blank)
        try:
            found = self.graph.run(self._feeds(inputs, 0)).size
        except Exception as error:  # whatever the run time of the network raises
            width = inputs["vector"].shape[1]
            raise ValueError(f"{self.contract.file}: refuses the observation of {width} values ({error})") from None
        if found != self.spec.action_horizon * self.spec.action_dim:
            wanted = f"{self.spec.action_horizon} x {self.spec.action_dim}"
            raise ValueError(
                f"{self.contract.file}: gives {found} numbers; the contract says {wanted} (horizon x joints)"
            )
        self.graph.reset()
        self._epoch = None

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation and its history -> CPU tensors, B = 1. Raises ValueError for another state length or frame."""
        begins = obs.epoch != self._epoch
        self._epoch, self._ticks = obs.epoch, 0 if begins else self._ticks + 1
        count = self.contract.history
        seen = [*obs.history, obs][-count:]
        seen = [seen[0]] * (count - len(seen)) + seen
        for one in seen:
            check_observation(self.spec, one)
            check_frame_sizes(self.spec, one)
        ages = range(count - 1, -1, -1)
        parts = [self._vector(one, max(self._ticks - age, 0), begins) for one, age in zip(seen, ages, strict=True)]
        vector = np.concatenate(parts).clip(-self.contract.clip, self.contract.clip)
        images = {f"image.{image.input}": _normalise(obs.images[image.camera], image) for image in self.contract.images}
        return {"vector": torch.from_numpy(vector)[None], **images, LATCH: torch.tensor([begins])}

    def _vector(self, obs: Observation, tick: int, begins: bool) -> FloatArray:
        """One observation [O]."""
        terms = (term.scale * self._term(term, obs, tick, begins) for term in self.contract.terms)
        return np.concatenate([part.astype(np.float32) for part in terms])

    def _term(self, term: Term, obs: Observation, tick: int, begins: bool) -> np.ndarray:
        contract, joints = self.contract, self._joints
        if term.kind == "joint_position":
            return obs.state[:joints] - (contract.default if term.relative else 0.0)
        if term.kind == "joint_velocity":
            return obs.state[joints : 2 * joints]
        if term.kind == "last_action":
            return np.zeros(joints) if begins else (obs.last_command - contract.offset) / contract.scale
        if term.kind == "phase":
            angle = 2 * np.pi * tick * self.spec.dt_s / term.period_s + np.array(term.offsets)
            pair = (np.sin(angle), np.cos(angle))
            return np.concatenate(pair if term.order == "sin_cos" else pair[::-1])
        first = [name for name, _ in contract.names]
        return obs.state[[2 * joints + first.index(name) for name in term.names]]

    # The network.

    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The inputs themselves: an exported network is one piece."""
        return inputs

    def predict(self, prefix: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Actions [B, H, A] in the network's units. Raises ValueError where robots would share one memory."""
        batch = len(prefix["vector"])
        if batch > 1 and self.contract.stateful:
            raise ValueError(f"batch: {batch} robots given; a network that remembers serves one")
        rows = []
        for row in range(batch):
            if bool(prefix[LATCH][row]):
                self.graph.reset()
            rows.append(torch.from_numpy(self.graph.run(self._feeds(prefix, row)).astype(np.float32)))
        return torch.stack(rows).reshape(noise.shape)

    def _feeds(self, inputs: Mapping[str, Tensor], row: int) -> dict[str, np.ndarray]:
        images = {image.input: inputs[f"image.{image.input}"] for image in self.contract.images}
        return {name: tensor[row : row + 1].numpy() for name, tensor in {"": inputs["vector"], **images}.items()}

    # After the network.

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Network units [H, A] -> joint targets [H, A]."""
        clip = self.contract.action_clip
        return (self.contract.offset + self.contract.scale * latents.clip(-clip, clip)).astype(np.float32)

    def encode_actions(self, actions: FloatArray, obs: Observation) -> FloatArray:
        """Joint targets [V, A] -> network units: the inverse of `postprocess` inside its clip."""
        return ((actions - self.contract.offset) / self.contract.scale).astype(np.float32)


def make_spec(contract: Contract) -> PolicySpec:
    """State: positions and velocities of the joints, then the other values by name."""
    position = tuple(Feature(name) for name in contract.joints)
    velocity = tuple(Feature(name, "velocity", "rad/s") for name in contract.joints)
    others = tuple(Feature(name, unit=unit) for name, unit in contract.names)
    return PolicySpec(
        name=contract.file.stem,
        action_horizon=contract.horizon,
        dt_s=1.0 / contract.rate_hz,
        cameras=tuple(CameraSpec(image.camera, image.height, image.width) for image in contract.images),
        state=(*position, *velocity, *others),
        action=position,
        latent_dim=len(contract.joints),
        observation_steps=contract.history,
    )


def _normalise(frame: np.ndarray, image: ImageTerm) -> Tensor:
    """uint8 [h, w, 3] -> float32 [1, 3, h, w]."""
    scaled = (frame.astype(np.float32) / 255 - np.float32(image.mean)) / np.float32(image.std)
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1)))[None]
