"""What phase 2 can be told (subsec:ccrft)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from pixelis.core.config import Config
from pixelis.equations.grpo import AdvantageStd
from pixelis.rollout.episode import Limits
from pixelis.training.sft.sft_config import DeviceSettings, LoraSettings

CoherenceKind = Literal["adjacency", "l2", "tv", "cpc"]


class RewardSettings(Config):
    """R(τ) = w₁·R_final + w₂·R_cur + w₃·R_coh − w₄·R_pen (eq:ccrft_reward). The paper prints no w_i: these are ours."""

    final: float = 1.0
    """w₁"""
    curiosity: float = 0.2
    """w₂"""
    coherence: float = 0.2
    """w₃"""
    penalty: float = 1.0
    """w₄"""
    tool_use: float = 0.0
    """Weight of Pixel-Reasoner's terms: a bonus where tools are rarely used, a price for every call."""
    prior: CoherenceKind = "adjacency"
    """What R_coh is: adjacent cosines of E_t, or a rival of supp:structure_priors."""
    sums: bool = False
    """Curiosity and adjacent cosines as sums over a chain instead of means; the rivals are means always."""
    mc_samples: int = Field(default=4, ge=1)
    """Dropout passes S of the gate; 1 turns it off."""
    gate: float = Field(default=5.0, ge=0.0)
    """β of the gate."""
    alpha_inv: float = 0.30
    """What an invalid or repeated call costs (tab:hp-rcpr)."""
    alpha_len: float = 0.02
    """What each call beyond `l_0` costs (tab:hp-rcpr)."""
    l_0: int = 6
    """L₀: calls that cost nothing (tab:hp-rcpr)."""
    tool_scalers: bool = True
    """Whether the per-tool scalers of phase 1 weigh curiosity and penalty."""


class KlSettings(Config):
    """The corridor around π_SFT (supp:pid_kl)."""

    target: float = Field(default=0.15, gt=0.0)
    """Centre of the corridor, nats a token (supp:pid_kl)."""
    beta: float = Field(default=0.2, gt=0.0)
    """Where β begins."""
    control: bool = True
    """Off, β stays where it begins."""
    gains: Literal["default", "paper"] = "default"
    """Of the controller. The paper's cycle (docs/kl_corridor.md), hence ours."""
    one_sided: bool = False
    """β never falls under where it began: drift is held back, and never asked for."""
    most: float = Field(default=2.0, gt=0.0)
    """A batch whose KL is over this, or not a number, is not learnt from. In phase 2 the one after it only leads back,
    in phase 3 any that teaches nothing does."""


class RftConfig(Config):
    """Phase 2. Defaults are the paper's where it has a value (subsec:ccrft, supp:et_dynamics), but for `kl.gains`."""

    policy: str
    """π_SFT: a checkpoint of phase 1 with its heads and statistics."""
    corpus: Path
    """Its training split gives the questions."""
    name: str = "rft"
    """What the exported policy is called."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Logits of π_SFT are divided by it before the first update, and stay so; KL is taken to the divided policy."""
    reward: RewardSettings = RewardSettings()
    kl: KlSettings = KlSettings()
    updates: int = Field(default=150, ge=1)
    queries: int = Field(default=8, ge=1)
    """Questions of one update, over all processes."""
    samples: int = Field(default=8, ge=1)
    """Rollouts of a question."""
    group: int = Field(default=8, ge=1)
    """K: so many of them are kept, the best ones."""
    limits: Limits = Limits()
    families: tuple[str, ...] = ()
    """Only questions of these; of all where none is named."""

    lr: float = Field(default=1e-6, gt=0.0)
    """Ours; the paper gives none."""
    lr_floor: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of `lr` that the last update has. Less than 1, the rate falls in a line: what noise the first updates
    brought into the weights, the last ones average out."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0.0)
    """Of AdamW. Larger, a weight whose gradient is nothing but rounding stays where it is."""
    weight_decay: float = 0.0
    clip: float = Field(default=0.2, gt=0.0)
    """ε of GRPO."""
    per: Literal["sequence", "token"] = "sequence"
    """What the loss is a mean over: rollouts, each the mean of its tokens, or all tokens."""
    spread: AdvantageStd = "group"
    """Whose standard deviation advantages are divided by: the group's, or that of the whole batch."""
    grad_norm: float = Field(default=1.0, gt=0.0)
    lr_dynamics: float = Field(default=5e-5, gt=0.0)
    """Of h_ψ (supp:et_dynamics)."""
    dynamics_batch: int = Field(default=128, ge=1)
    lora: LoraSettings | None = None
    """Without dropout: what is learnt from is what was sampled."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Tokens that are read at once."""
    ledger_tolerance: float = Field(default=1e-3, gt=0.0)
    """How far sampled and recomputed log-probabilities may lie apart. Rounding came to 2.0e-4 in 10,000 rollouts of
    nano; a policy other than the one that sampled lies whole nats away."""

    least_calls: float = Field(default=0.3, ge=0.0)
    """The run stops where the smoothed number of calls in a chain falls under this."""
    least_entropy: float = Field(default=0.05, ge=0.0)
    """The same of the entropy of sampled tokens, as a share of what phase 1 measured of π_SFT's."""

    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the arithmetic, and of the exported policy; what is trained is held in float32."""
    checkpoint_activations: bool = False
    """Keep only what enters each layer and run it again in the backward pass: slower, far less memory."""
    threads: int | None = None
    workers: int = Field(default=2, ge=1)
    """Tools that run at once."""
    cache_path: Path | None = None
    """The cache of tool results; the machine's own where it is not given."""
    log_every: int = Field(default=1, ge=1)
    save_minutes: float = 2.0
    device_facts: DeviceSettings = DeviceSettings()
    architecture: dict[str, Any] | None = None
    """Text and vision configuration for `--dry-run`, where the model itself cannot be reached."""

    @field_validator("lora")
    @classmethod
    def _reject_dropout(cls, lora: LoraSettings | None) -> LoraSettings | None:
        if lora is not None and lora.dropout:
            raise ValueError(f"dropout {lora.dropout:g}: the update would not read what the rollout read; want 0")
        return lora

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the update after so many."""
        return self.lr * (1.0 - (1.0 - self.lr_floor) * step / max(self.updates - 1, 1))
