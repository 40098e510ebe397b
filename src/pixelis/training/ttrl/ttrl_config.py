"""What phase 3 can be told (subsec:ttrl, supp:ttrl_loss_clean)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pixelis.core.config import Config
from pixelis.rollout.episode import Limits
from pixelis.training.grpo.rft_config import KlSettings, RewardSettings
from pixelis.training.sft.sft_config import LoraSettings
from pixelis.voting.vote import VoteSettings

CalibratorKind = Literal["temperature", "platt", "vector", "matrix", "isotonic"]


class CanarySettings(Config):
    """Questions with known answers that are asked now and then: a policy that falls on them is taken back."""

    items: int = Field(default=0, ge=0)
    """Of each family; 0 asks none."""
    every: int = Field(default=100, ge=1)
    """Queries between two times."""
    level: float = Field(default=0.05, gt=0.0, lt=1.0)
    """p-value of the paired permutation test under which a fall is significant."""


class CalibrationSettings(Config):
    """What is fitted on dev-cal, once, before the first query (sec:supp:voting-calib)."""

    items: int = Field(default=0, ge=0)
    """dev-cal questions of each family; 0 fits nothing: T = 1 and no conformal set."""
    kind: CalibratorKind = "temperature"
    """Which calibrator gives Cal_j; all of them are fitted and compared."""
    level: float = Field(default=0.1, gt=0.0, lt=1.0)
    """α of the conformal set."""
    coverage: float | None = Field(default=None, gt=0.0, le=1.0)
    """Share of dev-cal queries that the margin shall let through; δ is then fitted. Not given, δ is the vote's."""


class StressSettings(Config):
    """What is done to a run to see it bear it (supp:failures_risk_coverage). Nothing, unless it is asked for."""

    flips: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of rollouts whose vote is turned into another answer of the group."""
    mismatched: bool = False
    """Of the neighbours only those whose answer is another one than the query's majority."""
    retrieval_shift: bool = False
    """The search key is made of media after JPEG 20 and a resize by 2 %."""


class TtrlConfig(Config):
    """Phase 3. Defaults are the paper's where it has a value."""

    policy: str = "nano-rft"
    """Where adaptation starts: a checkpoint with its heads and statistics."""
    name: str = "ttrl"
    samples: int = Field(default=8, ge=1)
    """N"""
    vote: VoteSettings = VoteSettings()
    learn: bool = True
    """Off: answers are voted on and the weights stay; accepted exemplars still enter the memory."""
    greedy: bool = False
    """Ask every query once more at temperature 0, for the record."""
    tools: bool = True
    """Off: every tool refuses, as in adaptation without tools."""
    objective: Literal["reinforce", "entropy"] = "reinforce"
    """`entropy`: no vote is asked; the entropy of the sampled tokens is made smaller (as TENT and StatA do)."""
    over_tokens: Literal["sum", "mean"] = "sum"
    """log π(τ): the sum over a rollout's tokens, as the paper writes it, or their mean, as phase 2 has it. With the sum
    a rollout that went astray for twelve calls is pushed away harder than a short one is drawn near, and β, which
    weighs nats per token, has little to say."""
    kappa: float = Field(default=1.0, ge=0.0)
    """κ: weight of the exemplar's behaviour in a return. Ours."""
    lambda_pen: float = Field(default=1.0, ge=0.0)
    """λ_pen. Ours."""
    baseline: Literal["return", "literal", "own"] = "return"
    """What is taken off a return: the smoothed mean of queries before, the supplement's smoothed v̄, or the mean of the
    query's own rollouts, so that the better of them are always told from the worse."""
    one_lesson_each: bool = False
    """Near-duplicate rollouts, which are one vote, teach as one too: the means over rollouts are then over groups. The
    paper rejects them in a note on its loss and does not say whether from the vote or from the step. Where
    `vote.behaviour` is off there are none."""
    rho: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Of π_EMA."""
    rho_baseline: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Of the baseline, which starts at the first query's own mean return. Ours: with the 0.99 of π_EMA it would stay
    where the first queries put it."""
    least_spread: float = Field(default=0.1, gt=0.0)
    """Returns less the baseline are divided by their root mean square in the batch, or by this where it is larger."""
    anchored: bool = True
    """Off: KL is taken to the policy at the start instead of to π_EMA."""
    value_weighting: bool = True
    """Off: v̄ = 0.5 for every query, the middle of its range."""
    kl: KlSettings = KlSettings()
    kl_samples: int | None = Field(default=None, ge=1)
    """So many rollouts of a query that teaches nothing are read for KL and drift, the first of them; all where none is
    given. Two thirds of the queries of a hard stream teach nothing, and reading is half of what a query costs."""
    guard: float | None = Field(default=0.2, gt=0.0)
    """Most KL to the policy at the start; an update beyond it is refused (supp:et_dynamics). None: no guard."""
    reward: RewardSettings = RewardSettings()
    """What curiosity, coherence and Pen are made of."""
    neighbours: int = Field(default=8, ge=0)
    """k; 0 asks no memory."""
    neighbour_votes: bool = False
    """The answers of neighbours vote too, each with its similarity over their number, together as one rollout that is
    sure (as retrieval-augmented adaptation does)."""
    memory: Path | None = None
    """A memory of `pixelis index`, copied into the run; an empty one where it is not given."""
    remember: bool = True
    """Off: the memory stays as it is given, and no accepted exemplar enters."""
    batch: int = Field(default=4, ge=1)
    """Queries of one update; advantages are normalised within it."""
    lr: float = Field(default=1e-6, gt=0.0)
    """Ours; the paper gives none."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0.0)
    """Of AdamW. Larger, a weight whose gradient is nothing but rounding stays where it is."""
    grad_norm: float = Field(default=1.0, gt=0.0)
    ledger_tolerance: float = Field(default=1e-3, gt=0.0)
    """How far sampled and recomputed log-probabilities may lie apart. Rounding came to 4e-5 in 24 queries of nano;
    a policy other than the one that sampled lies whole nats away."""
    lora: LoraSettings | None = None
    limits: Limits = Limits()
    canary: CanarySettings = CanarySettings()
    calibration: CalibrationSettings = CalibrationSettings()
    stress: StressSettings = StressSettings()

    snapshot_every: int = Field(default=50, ge=1)
    """Updates between two whole states on disk; those between are taken again from their records."""
    keep_bytes: int = Field(default=2 * 2**30, ge=2**20)
    """What a run may come to, rows and memory with it: the oldest states and updates are dropped, and cannot be
    reverted to any more. Rows and memory stay."""
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the arithmetic, and of the exported policy; what is trained is held in float32."""
    threads: int = Field(default=1, ge=1)
    """One thread takes the same steps again bit for bit, which `adapt revert` needs."""
    workers: int = Field(default=2, ge=1)
    cache_path: Path | None = None
    batch_tokens: int = Field(default=16384, ge=1)
