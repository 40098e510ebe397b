"""Configuration of phase 2 (subsec:ccrft)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from pixelis.equations.grpo import AdvantageStd
from pixelis.rewards.settings import RewardSettings
from pixelis.training.common.run_config import CorpusRunConfig, LoraSettings, RolloutRunConfig


class RftConfig(CorpusRunConfig, RolloutRunConfig):
    """Phase 2. Defaults are the paper's where it has a value (subsec:ccrft, supp:et_dynamics), but for `kl.gains`."""

    old_names: ClassVar = RolloutRunConfig.old_names | {
        "updates": "steps", "queries": "prompts_per_step", "group": "keep_best", "spread": "advantage_std",
        "per": "loss_average", "least_calls": "min_tool_calls", "least_entropy": "min_entropy_ratio",
    }  # fmt: skip

    name: str = "rft"
    temperature: float = Field(default=1.0, gt=0.0)
    """Logits of π_SFT are divided by it before the first update and stay so; KL is measured to the divided policy."""
    reward: RewardSettings = RewardSettings()
    steps: int = Field(default=150, ge=1)
    prompts_per_step: int = Field(default=8, ge=1)
    """Questions of one update, over all processes."""
    keep_best: int = Field(default=8, ge=1)
    """K: the rollouts of a group that are trained on, those with the highest rewards."""
    families: tuple[str, ...] = ()
    """Task families of the questions; all if left out."""

    lr_floor: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of `lr` at the last update; below 1, the rate falls linearly, which averages out the noise of early
    updates."""
    weight_decay: float = 0.0
    clip: float = Field(default=0.2, gt=0.0)
    """ε of GRPO."""
    loss_average: Literal["sequence", "token"] = "sequence"
    """What the loss is a mean over: rollouts, each the mean of its tokens, or all tokens."""
    advantage_std: AdvantageStd = "group"
    """The standard deviation that advantages are divided by: that of the group or of the whole batch."""
    lr_dynamics: float = Field(default=5e-5, gt=0.0)
    """Of h_ψ (supp:et_dynamics)."""
    dynamics_batch: int = Field(default=128, ge=1)

    min_tool_calls: float = Field(default=0.3, ge=0.0)
    """The run stops if the smoothed number of calls per rollout falls below this."""
    min_entropy_ratio: float = Field(default=0.05, ge=0.0)
    """The run stops if the smoothed entropy of sampled tokens falls below this share of π_SFT's."""

    @field_validator("lora")
    @classmethod
    def _reject_dropout(cls, lora: LoraSettings | None) -> LoraSettings | None:
        if lora is not None and lora.dropout:
            raise ValueError(f"dropout {lora.dropout:g}: the update would not read what the rollout read; want 0")
        return lora

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the update after `step` updates."""
        return self.lr * (1.0 - (1.0 - self.lr_floor) * step / max(self.steps - 1, 1))
