"""What phase 3 can be told (subsec:ttrl, supp:ttrl_loss_clean)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pixelis.config import Config
from pixelis.rollout.episode import Limits
from pixelis.scoring.consensus import VoteSettings
from pixelis.train.rft_config import KlSettings, RewardSettings
from pixelis.train.sft_config import LoraSettings


class CanarySettings(Config):
    """Questions with known answers that are asked now and then: a policy that falls on them is taken back."""

    items: int = Field(default=0, ge=0)
    """Of each family; 0 asks none."""
    every: int = Field(default=100, ge=1)
    """Queries between two times."""
    level: float = Field(default=0.05, gt=0.0, lt=1.0)
    """p-value of the paired test under which a fall is significant."""


class TtrlConfig(Config):
    """Phase 3. Defaults are the paper's where it has a value."""

    policy: str
    """Where adaptation starts: a checkpoint with its heads and statistics."""
    name: str = "ttrl"
    samples: int = Field(default=8, ge=1)
    """N"""
    vote: VoteSettings = VoteSettings()
    learn: bool = True
    """Off: answers are voted on and nothing changes."""
    kappa: float = Field(default=1.0, ge=0.0)
    """κ: weight of the exemplar's behaviour in a return. Ours."""
    lambda_pen: float = Field(default=1.0, ge=0.0)
    """λ_pen. Ours."""
    baseline: Literal["return", "literal"] = "return"
    rho: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Of π_EMA and of the baseline."""
    anchored: bool = True
    """Off: KL is taken to the policy at the start instead of to π_EMA."""
    value_weighting: bool = True
    """Off: v̄ = 1."""
    kl: KlSettings = KlSettings()
    guard: float = Field(default=0.2, gt=0.0)
    """Most KL to the policy at the start; an update beyond it is refused (supp:et_dynamics)."""
    reward: RewardSettings = RewardSettings()
    """What curiosity, coherence and Pen are made of."""
    neighbours: int = Field(default=8, ge=0)
    """k; 0 asks no memory."""
    memory: Path | None = None
    """A memory of `pixelis index`, copied into the run; an empty one where it is not given."""
    batch: int = Field(default=1, ge=1)
    """Queries of one update."""
    lr: float = Field(default=1e-6, gt=0.0)
    """Ours; the paper gives none."""
    betas: tuple[float, float] = (0.9, 0.95)
    grad_norm: float = Field(default=1.0, gt=0.0)
    lora: LoraSettings | None = None
    temperature: float = Field(default=1.0, gt=0.0)
    limits: Limits = Limits()
    canary: CanarySettings = CanarySettings()
    calibration: float | None = Field(default=None, gt=0.0)
    """Temperature of the confidences; fitted on dev-cal where `calibration_items` says so, else 1."""
    conformal: float | None = Field(default=None, ge=0.0, le=1.0)
    """Threshold of the conformal set; the same."""
    calibration_items: int = Field(default=0, ge=0)
    """dev-cal questions of each family that temperature and threshold are fitted on before the stream."""
    flips: float = Field(default=0.0, ge=0.0, le=1.0)
    """Stress: share of rollouts whose vote is turned into another answer of the group."""

    snapshot_every: int = Field(default=50, ge=1)
    """Updates between two whole states on disk; those between are taken again from their records."""
    keep_bytes: int = Field(default=2 * 2**30, ge=2**20)
    """What states and records may come to: the oldest are dropped, and cannot be reverted to any more."""
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = Field(default=1, ge=1)
    """One thread takes the same steps again bit for bit, which `adapt revert` needs."""
    workers: int = Field(default=2, ge=1)
    cache_path: Path | None = None
    batch_tokens: int = Field(default=16384, ge=1)
