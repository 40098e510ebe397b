"""The metrics of an update of phase 2: rewards and their shares, KL, rollouts, tools."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pixelis.data.corpus.acceptance_checks import VERIFIER_FAILED
from pixelis.equations.embedding import ACTIONS
from pixelis.equations.process import racpr, rapr
from pixelis.equations.reward import variance_shares
from pixelis.rewards.compute import RewardBatch, TrajectoryBatch
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.policy_update import UpdateStats
from pixelis.training.dataset.scored_rollouts import ScoredRollout
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_state import RftState

SUMMARIES = "summaries.jsonl"


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
    """The row of an update in metrics.jsonl."""
    valid = trajectories.steps.valid.cpu().numpy()
    mean, std = trajectories.cosine_mean, trajectories.cosine_std
    racpr_result = racpr(valid, rewards.cosines, trajectories.lengths, mean=mean, std=std)
    terms, shares = rewards.terms, variance_shares(rewards.terms, samples=config.group_size)
    tool_counts = Counter(trajectories.steps.tool.tolist())
    ended = [float(scored.rollout.end_reason == "answered") for scored in rollouts]
    checks = [float(c.metric.startswith(VERIFIER_FAILED)) for scored in rollouts for c in scored.judgement.steps]
    answered, unverified = dist.all_reduce_sum(torch.tensor([sum(ended), sum(checks)])).tolist()
    values = {
        "reward": float(terms.total.mean()), "accuracy": 100.0 * float(trajectories.scores.mean()),
        "answered": 100.0 * answered / max(len(trajectories.scores), 1), "final": float(terms.final.mean()),
        "curiosity_raw": finite_mean(rewards.curiosity), "coherence_raw": finite_mean(rewards.coherence),
        "penalty": float(trajectories.penalties.mean()),
        "kl": update.kl, "beta": state.pid.beta, "entropy": update.entropy,
        "calls": float(trajectories.lengths.mean()), "decisive": float(trajectories.decisive.mean()),
        "rapr": 100.0 * float(rapr(valid, trajectories.lengths).mean()),
        "racpr": 100.0 * float(racpr_result.values.mean()), "qualified": 100.0 * float(racpr_result.qualified.mean()),
        "gradient": update.grad_norm, "clipped": update.clip_fraction, "gap": update.logprob_mismatch,
        "skipped": float(bool(update.skip_reason)), "unverified": unverified,
        "flat_groups": float(np.mean(np.nanmax(np.abs(advantages.reshape(-1, config.group_size)), axis=1) == 0.0)),
    }  # fmt: skip
    values |= {f"share_{name}": share for name, share in shares.items()}
    return values | {f"mix_{name}": tool_counts[k] / max(len(valid), 1) for k, name in enumerate(ACTIONS)}


def append_summaries(
    out: Path, step: int, items: Sequence[str], group_size: int, rewards: RewardBatch, trajectories: TrajectoryBatch
) -> None:
    """Append a row for every rollout; the statistics of the last ones go into the checkpoint, for phase 3."""
    with (out / SUMMARIES).open("a") as file:
        for k, item in enumerate(item for item in items for _ in range(group_size)):
            row = {
                "step": step, "item": item, "sample": k % group_size, "curiosity": float(rewards.curiosity[k]),
                "coherence": float(rewards.coherence[k]), "score": float(trajectories.scores[k]),
                "calls": int(trajectories.lengths[k]), "reward": float(rewards.terms.total[k]),
            }  # fmt: skip
            file.write(json.dumps({key: v for key, v in row.items() if v == v}) + "\n")  # noqa: PLR0124 - NaN


def finite_mean(values: NDArray[np.float64]) -> float:
    """The mean of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan
