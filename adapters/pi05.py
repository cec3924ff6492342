"""pi0.5: PaliGemma prefix, Gemma action expert whose adaptive norms follow flow time; the state is in the prompt.

    cond = silu(W2 silu(W1 features(t) + b1) + b2);    scale, shift, gate = dense_l(cond) for each of 2 L + 1 norms

Time takes N + 1 values, so scale, shift and gate are one STATIC table, and the weights behind it are released.
Source: Physical-Intelligence/openpi models_pytorch, huggingface/lerobot policies/pi05.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from phyai_adapters._flow_time import model_times, time_features
from phyai_adapters._paligemma import EXPERT, PiNetwork, PiSizes
from phyai_adapters._pi import PiAdapter
from phyai_adapters._pi_packed import make_ends
from phyai_adapters._processing import clean_prompt, state_prompt
from phyai_core.types import Observation
from phyai_kernels.expert_weights import ExpertEnds

NORMS = ("input_layernorm", "post_attention_layernorm")


class TimeConditioning(nn.Module):
    """Flow time -> modulation of every adaptive norm, float32."""

    def __init__(self, sizes: PiSizes):
        super().__init__()
        width, norms = sizes.expert.width, 2 * sizes.expert.depth + 1
        self.mlp_in = nn.Linear(width, width, dtype=torch.float32)
        self.mlp_out = nn.Linear(width, width, dtype=torch.float32)
        self.dense = nn.ModuleList(nn.Linear(width, 3 * width, dtype=torch.float32) for _ in range(norms))

    def condition(self, features: Tensor) -> Tensor:
        """Time features [n, D] -> conditioning vector [n, D]."""
        return silu(self.mlp_out(silu(self.mlp_in(features))))

    def forward(self, features: Tensor) -> Tensor:
        """Time features [n, D] -> modulations [2 L + 1, n, 3 D], in the order the norms are met."""
        condition = self.condition(features)
        return torch.stack([dense(condition) for dense in self.dense])


class Pi05Network(PiNetwork):
    """The shared network and the time conditioning; `conditioning` is dropped once the table is computed."""

    adaptive, kind = True, "pi05"

    def __init__(self, sizes: PiSizes, dtype: torch.dtype, vision_dtype: torch.dtype):
        super().__init__(sizes, dtype, vision_dtype)
        self.conditioning: TimeConditioning | None = TimeConditioning(sizes)

    def targets(self) -> dict[str, Tensor]:
        """{canonical key: tensor or view to fill}."""
        names = {"time_mlp_in": self.conditioning.mlp_in, "time_mlp_out": self.conditioning.mlp_out}
        norms = [f"layers.{index // 2}.{NORMS[index % 2]}" for index in range(2 * self.sizes.expert.depth)]
        for norm, dense in zip([*norms, "norm"], self.conditioning.dense, strict=True):
            names[f"{EXPERT}{norm}.dense"] = dense
        found = {f"{name}.{part}": value for name, module in names.items() for part, value in module.named_parameters()}
        return {**super().targets(), **found}

    def unused(self) -> list[str]:
        """Glob patterns of weights that are not needed; some files still hold pi0's state projection."""
        return [*super().unused(), "state_proj.*"]


class Pi05(PiAdapter):
    """The adapter of pi0.5."""

    network_class = Pi05Network

    def prompt_ids(self, obs: Observation) -> list[int]:
        """Begin mark and one text of task and state bins."""
        if not self.options.state_in_prompt:
            return [self._tokenizer.bos_id, *self.encode_text(clean_prompt(obs.prompt)), *self.encode_text("\n")]
        text = state_prompt(obs.prompt, self.deployment.state.forward(obs.state))
        return [self._tokenizer.bos_id, *self.encode_text(text)]

    @torch.no_grad()
    def compute_time_tables(self) -> Tensor:
        """[2 L + 1, N + 1, 3 D] float32: the modulations. Row N belongs to clean actions."""
        times = model_times(self.spec.num_denoise_steps, accumulate=self.deployment.layout == "openpi")
        features = time_features(times, self.network.sizes.expert.width, self.deployment.periods)
        tables = self.network.conditioning(features.float().to(self.device))
        self.network.conditioning = None
        return tables

    def expert_ends(self) -> ExpertEnds:
        """The action projections alone."""
        return make_ends(self, self.network.expert.action_in.weight, self.network.expert.action_in.bias)

    def modulation_table(self) -> Tensor:
        """The time tables, by flow time first."""
        return self.time_tables.transpose(0, 1)

    def embed_actions(self, latents: Tensor, rows: Tensor) -> Tensor:
        """latents [B, H, A'] -> action tokens [B, H, D]; time enters through the norms only."""
        return self.network.expert.action_in(latents)

    def modulations(self, rows: Tensor) -> Sequence[Tensor]:
        """rows [B, H] -> 2 L + 1 modulations [B, H, 3 D]."""
        return self.time_tables[:, rows].unbind(0)
