"""What an update of phase 2 is reported with: rewards and their shares, KL, chains, tools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pixelis.data.corpus.acceptance_checks import VERIFIER_FAILED
from pixelis.equations.embedding import ACTIONS
from pixelis.equations.process import racpr, rapr
from pixelis.equations.reward import variance_shares
from pixelis.rewards.compute import RewardBatch, TrajectoryBatch
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.scored_rollouts import ScoredRollout
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_state import RftState


class UpdateStats(NamedTuple):
    """What a step did."""

    kl: float
    """Nats per token, before the step."""
    entropy: float
    logprob_mismatch: float
    """The largest distance between a sampled and a recomputed log-probability."""
    grad_norm: float
    clip_fraction: float
    skipped: bool


def measure_update(
    config: RftConfig,
    state: RftState,
    trajectories: TrajectoryBatch,
    rewards: RewardBatch,
    advantages: NDArray[np.float64],
    update: UpdateStats,
    rollouts: Sequence[ScoredRollout],
    dist: DistributedContext,
) -> dict[str, float]:
    """What an update is reported with."""
    valid = trajectories.steps.valid.cpu().numpy()
    racpr_result = racpr(
        valid, rewards.cosines, trajectories.lengths, mean=trajectories.cosine_mean, std=trajectories.cosine_std
    )
    terms, shares = rewards.terms, variance_shares(rewards.terms, samples=config.samples)
    tool_counts = Counter(trajectories.steps.tool.tolist())
    answered_count = dist.all_reduce_sum(
        torch.tensor([float(rollout.rollout.end_reason == "answered") for rollout in rollouts]).sum()
    ).item()
    unverified_count = sum(
        check.metric.startswith(VERIFIER_FAILED) for rollout in rollouts for check in rollout.judgement.steps
    )
    values = {
        "reward": float(terms.total.mean()), "accuracy": 100.0 * float(trajectories.scores.mean()),
        "answered": 100.0 * answered_count / max(len(trajectories.scores), 1), "final": float(terms.final.mean()),
        "curiosity_raw": finite_mean(rewards.curiosity), "coherence_raw": finite_mean(rewards.coherence),
        "penalty": float(trajectories.penalties.mean()), "kl": update.kl, "beta": state.pid.beta, "entropy": update.entropy,
        "calls": float(trajectories.lengths.mean()), "decisive": float(trajectories.decisive.mean()),
        "rapr": 100.0 * float(rapr(valid, trajectories.lengths).mean()), "racpr": 100.0 * float(racpr_result.values.mean()),
        "qualified": 100.0 * float(racpr_result.qualified.mean()), "gradient": update.grad_norm, "clipped": update.clip_fraction,
        "gap": update.logprob_mismatch, "skipped": float(update.skipped), "unverified": dist.all_reduce_sum(torch.tensor(float(unverified_count))).item(),
        "flat_groups": float(np.mean(np.nanmax(np.abs(advantages.reshape(-1, config.samples)), axis=1) == 0.0)),
    }  # fmt: skip
    values |= {f"share_{name}": share for name, share in shares.items()}
    return values | {f"mix_{name}": tool_counts[k] / max(len(valid), 1) for k, name in enumerate(ACTIONS)}


def finite_mean(values: NDArray[np.float64]) -> float:
    """Over those that are numbers; NaN where none is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan
