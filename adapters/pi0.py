"""pi0: PaliGemma prefix, Gemma action expert; the state is one expert token, flow time is mixed into action tokens.

    token = W_out silu(W_in [action_in(x) ; features(t)] + b)

The state token sees the prefix and itself only, so its keys and values are computed once per observation. The time
half of W_in is a STATIC table of N + 1 rows.
Source: Physical-Intelligence/openpi models_pytorch, huggingface/lerobot policies/pi0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu

from phyai_adapters._flow_time import model_times, time_features
from phyai_adapters._paligemma import PiNetwork, PiSizes
from phyai_adapters._pi import PiAdapter
from phyai_adapters._pi_packed import make_ends
from phyai_adapters._processing import clean_prompt, pad_last
from phyai_core.layers.gemma import KeysValues
from phyai_core.types import Observation
from phyai_kernels.expert_loop import LoopInputs
from phyai_kernels.expert_weights import ExpertEnds, Mixing


class Pi0Network(PiNetwork):
    """The shared network, the state projection and the mixing of actions and time, these in float32."""

    adaptive, kind = False, "pi0"

    def __init__(self, sizes: PiSizes, dtype: torch.dtype, vision_dtype: torch.dtype):
        super().__init__(sizes, dtype, vision_dtype)
        width = sizes.expert.width
        self.state_in = nn.Linear(sizes.latent_dim, width, dtype=torch.float32)
        self.mix_in = nn.Linear(2 * width, width, dtype=torch.float32)
        self.mix_out = nn.Linear(width, width, dtype=torch.float32)

    def targets(self) -> dict[str, Tensor]:
        """{canonical key: tensor or view to fill}."""
        names = {"state_proj": self.state_in, "action_time_mlp_in": self.mix_in, "action_time_mlp_out": self.mix_out}
        found = {f"{name}.{part}": value for name, module in names.items() for part, value in module.named_parameters()}
        return {**super().targets(), **found}


class Pi0(PiAdapter):
    """The adapter of pi0."""

    network_class = Pi0Network
    lead_rows = 1  # the state token

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """As in the base, and the normalised state with padding, `state` [1, A']."""
        inputs = super().preprocess(obs)
        inputs["state"] = pad_last(self.deployment.state.forward(obs.state), self.spec.latent_dim)
        return inputs

    def prompt_ids(self, obs: Observation) -> list[int]:
        """Begin mark, task, newline. openpi cleans the task and encodes the newline apart, lerobot does neither."""
        if self.deployment.layout == "openpi":
            return [self._tokenizer.bos_id, *self.encode_text(clean_prompt(obs.prompt)), *self.encode_text("\n")]
        text = obs.prompt if obs.prompt.endswith("\n") else obs.prompt + "\n"
        return [self._tokenizer.bos_id, *self.encode_text(text)]

    @torch.no_grad()
    def compute_time_tables(self) -> Tensor:
        """[N + 1, D] float32: the time half of the mixing matrix on the time features, bias included."""
        times = model_times(self.spec.num_denoise_steps, accumulate=self.deployment.layout == "openpi")
        width = self.network.sizes.expert.width
        features = time_features(times, width, self.deployment.periods).float().to(self.device)
        return linear(features, self.network.mix_in.weight[:, width:], self.network.mix_in.bias)

    def add_state(self, keys_values, mask: Tensor, inputs: Mapping[str, Tensor]):
        """The state token through the expert, behind the prefix; each layer's keys and values join that layer's."""
        x = self.network.state_in(inputs["state"]).unsqueeze(1).to(self.network.expert.dtype)  # [B, 1, D]
        rotary = self.rotary(mask.sum(1, keepdim=True))
        mask = torch.cat((mask, mask.new_ones(mask.shape[0], 1)), dim=1)
        joined = []
        for layer, past in zip(self.network.expert.layers, keys_values, strict=True):
            x, own = layer(x, rotary, mask, past)
            joined.append(KeysValues(torch.cat((past.k, own.k), dim=1), torch.cat((past.v, own.v), dim=1)))
        return tuple(joined), mask

    def embed_actions(self, latents: Tensor, rows: Tensor) -> Tensor:
        """latents [B, H, A'] and the time of each row -> action tokens [B, H, D]."""
        network = self.network
        tokens = network.expert.action_in(latents)
        mixed = linear(tokens, network.mix_in.weight[:, : tokens.shape[-1]]) + self.time_tables[rows]
        return network.mix_out(silu(mixed))

    # Fused, the state token is a row before the chunk in every step, with a flow time of its own: row N + 1 of tables.

    def expert_ends(self) -> ExpertEnds:
        """Both projections before silu as one, and time as the bias of it; mixing is the projection behind silu."""
        network, width = self.network, self.network.sizes.expert.width
        left, action_in = network.mix_in.weight[:, :width], network.expert.action_in
        bias = pad(self.time_tables + left @ action_in.bias, (0, 0, 0, 1))
        gate = torch.ones_like(bias)
        gate[-1] = 0.0
        mixing = Mixing(network.mix_out.weight.to(network.expert.dtype), gate)
        return make_ends(self, left @ action_in.weight, bias, mixing)

    def modulation_table(self) -> Tensor:
        """Plain norms: a scale, no shift, a gate of one, at any time."""
        expert = self.network.expert
        norms = [norm.weight for layer in expert.layers for norm in (layer.attention_norm, layer.mlp_norm)]
        scale = torch.stack([*norms, expert.norm.weight])
        rows = torch.cat((scale, torch.zeros_like(scale), torch.ones_like(scale)), dim=1)
        return rows.expand(self.spec.num_denoise_steps + 2, -1, -1)

    def begin_loop(self, inputs: LoopInputs) -> None:
        """Chunk rows start with the bias of the mixing, the state token has its own time and keeps its state."""
        inputs.start.copy_(self.network.mix_out.bias)
        robots = len(inputs.prefix_length)
        inputs.times.unflatten(1, (robots, -1))[:, :, 0] = self.spec.num_denoise_steps + 1
        inputs.abc.unflatten(1, (robots, -1))[:, :, 0] = inputs.abc.new_tensor([1.0, 0.0, 0.0])

    def lead_tokens(self, inputs: Mapping[str, Tensor], robots: slice, out: Tensor) -> None:
        """The state token."""
        out.copy_(self.network.state_in(inputs["state"][robots])[:, None])
