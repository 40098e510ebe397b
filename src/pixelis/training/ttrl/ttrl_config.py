"""Configuration of phase 3 (subsec:ttrl, supp:ttrl_loss_clean)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from pixelis.core.config import Config
from pixelis.rewards.settings import RewardSettings
from pixelis.tools.toolbox import ToolboxConfig, build_tools
from pixelis.training.common.run_config import RolloutRunConfig
from pixelis.voting.fit_calibration import CalibrationSettings
from pixelis.voting.vote import VoteSettings


class CanarySettings(Config):
    """Questions with known answers, asked at intervals: a policy whose score on them falls is reverted."""

    old_names: ClassVar = {"items": "items_per_family", "every": "interval", "level": "p_value"}

    items_per_family: int = Field(default=0, ge=0)
    """Canary questions of each family; 0 asks none."""
    interval: int = Field(default=100, ge=1)
    """Queries between two checks."""
    p_value: float = Field(default=0.05, gt=0.0, lt=1.0)
    """A fall is significant if the paired permutation test gives a smaller p-value."""


class StressSettings(Config):
    """Disturbances of a run, off by default (supp:failures_risk_coverage)."""

    old_names: ClassVar = {"flips": "flip_share", "mismatched": "mismatched_neighbours"}

    flip_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of rollouts whose vote is changed to another answer of the group."""
    mismatched_neighbours: bool = False
    """Keep only neighbours whose answer differs from the query's majority."""
    retrieval_shift: bool = False
    """Make the search key from media after JPEG 20 and a resize by 2 %."""


class TtrlConfig(RolloutRunConfig):
    """Phase 3. Defaults are the paper's where it has a value."""

    old_names: ClassVar = RolloutRunConfig.old_names | {
        "over_tokens": "logprob_reduction", "one_lesson_each": "merge_duplicate_rollouts",
        "least_spread": "min_advantage_scale", "anchored": "kl_to_ema", "kl_samples": "kl_rollouts",
        "guard": "max_drift", "remember": "grow_memory",
    }  # fmt: skip

    policy: str = "nano-rft"
    """The checkpoint that adaptation starts from, with its heads and statistics."""
    name: str = "ttrl"
    vote: VoteSettings = VoteSettings()
    learn: bool = True
    """If off, the weights stay; answers are still voted on, and accepted exemplars still enter the memory."""
    greedy: bool = False
    """Also answer every query at temperature 0, for the record."""
    tools: bool = True
    """If off, every tool refuses, as in adaptation without tools."""
    objective: Literal["reinforce", "entropy"] = "reinforce"
    """`entropy` ignores the vote and minimises the entropy of the sampled tokens (as TENT and StatA do)."""
    logprob_reduction: Literal["sum", "mean"] = "sum"
    """log π(τ): the sum over a rollout's tokens, as the paper writes it, or their mean, as in phase 2. With the sum, a
    failed rollout of twelve calls is pushed away harder than a short one is pulled near, and β, which weighs nats per
    token, has little effect."""
    kappa: float = Field(default=1.0, ge=0.0)
    """κ: weight of the exemplar's behaviour in a return. Ours."""
    lambda_pen: float = Field(default=1.0, ge=0.0)
    """λ_pen. Ours."""
    baseline: Literal["return", "literal", "own"] = "return"
    """Subtracted from a return: the smoothed mean return of earlier queries, the supplement's smoothed v̄ (`literal`),
    or the mean of the query's own group, which always separates better rollouts from worse."""
    merge_duplicate_rollouts: bool = False
    """Near-duplicate rollouts, which are one vote, also count once in the means over rollouts. The paper rejects them
    in a note on its loss and does not say whether from the vote or from the step. Needs `vote.behaviour`."""
    rho: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Of π_EMA."""
    rho_baseline: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Of the baseline, which starts at the first query's mean return. Ours: with the 0.99 of π_EMA it would stay where
    the first queries put it."""
    min_advantage_scale: float = Field(default=0.1, gt=0.0)
    """Returns minus baseline are divided by their root mean square in the batch, or by this if it is larger."""
    kl_to_ema: bool = True
    """If off, KL is measured to the start policy instead of π_EMA."""
    value_weighting: bool = True
    """If off, v̄ = 0.5 for every query, the middle of its range."""
    kl_rollouts: int | None = Field(default=None, ge=1)
    """Rollouts read for KL and drift of a query that is not trained on; all if left out. Two thirds of the queries of a
    hard stream are such, and reading is half of the cost of a query."""
    max_drift: float | None = Field(default=0.2, gt=0.0)
    """Largest KL to the start policy; an update beyond it is refused (supp:et_dynamics). None: no limit."""
    reward: RewardSettings = RewardSettings()
    """How curiosity, coherence and Pen are computed."""
    neighbours: int = Field(default=8, ge=0)
    """k; 0 turns retrieval off."""
    neighbour_votes: bool = False
    """Neighbours' answers vote too, each with its similarity over their number, together as one fully confident
    rollout (as in retrieval-augmented adaptation)."""
    memory: Path | None = None
    """A memory of `pixelis index`, copied into the run; an empty one if left out."""
    grow_memory: bool = True
    """If off, no accepted exemplar enters the memory."""
    batch: int = Field(default=4, ge=1)
    """Queries of one update; advantages are normalised within it."""
    canary: CanarySettings = CanarySettings()
    calibration: CalibrationSettings = CalibrationSettings()
    stress: StressSettings = StressSettings()

    snapshot_every: int = Field(default=50, ge=1)
    """Updates between two full states on disk; updates in between are replayed from their records."""
    keep_bytes: int = Field(default=2 * 2**30, ge=2**20)
    """Size limit of a run, ledger and memory included: the oldest states and updates are dropped, and the run can no
    longer be reverted to them. Ledger and memory stay."""
    threads: int = Field(default=1, ge=1)
    """With one thread, replayed updates are equal bit for bit, which `adapt revert` needs."""

    def toolbox_config(self) -> ToolboxConfig:
        settings = super().toolbox_config()
        return settings if self.tools else settings.model_copy(update={"disabled": tuple(build_tools(settings))})
