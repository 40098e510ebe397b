"""What an update of phase 2 is reported with: rewards and their shares, KL, chains, tools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pixelis.data.acceptance import BROKEN
from pixelis.equations.embedding import ACTIONS
from pixelis.equations.process import racpr, rapr
from pixelis.equations.reward import variance_shares
from pixelis.train.crew import Crew
from pixelis.train.experience import Lived
from pixelis.train.rft_config import RftConfig
from pixelis.train.rft_state import RftState
from pixelis.train.worth import Chains, Worth


class Improved(NamedTuple):
    """What a step did."""

    kl: float
    """Nats per token, before the step."""
    entropy: float
    gap: float
    """The largest distance between a sampled and a recomputed log-probability."""
    norm: float
    clipped: float
    skipped: bool


def measured(
    config: RftConfig,
    state: RftState,
    chains: Chains,
    worth: Worth,
    advantages: NDArray[np.float64],
    done: Improved,
    experience: Sequence[Lived],
    us: Crew,
) -> dict[str, float]:
    """What an update is reported with."""
    valid = chains.steps.valid.cpu().numpy()
    composed = racpr(valid, worth.cosines, chains.lengths, mean=chains.mean, std=chains.std)
    rewards, shares = worth.rewards, variance_shares(worth.rewards, samples=config.samples)
    used = Counter(chains.steps.tool.tolist())
    ended = us.add(torch.tensor([float(one.rolled.ended == "answered") for one in experience]).sum()).item()
    unverified = sum(check.metric.startswith(BROKEN) for one in experience for check in one.judged.steps)
    values = {
        "reward": float(rewards.total.mean()), "accuracy": 100.0 * float(chains.scores.mean()),
        "answered": 100.0 * ended / max(len(chains.scores), 1), "final": float(rewards.final.mean()),
        "curiosity_raw": known_mean(worth.curiosity), "coherence_raw": known_mean(worth.coherence),
        "penalty": float(chains.penalties.mean()), "kl": done.kl, "beta": state.pid.beta, "entropy": done.entropy,
        "calls": float(chains.lengths.mean()), "decisive": float(chains.decisive.mean()),
        "rapr": 100.0 * float(rapr(valid, chains.lengths).mean()), "racpr": 100.0 * float(composed.values.mean()),
        "qualified": 100.0 * float(composed.qualified.mean()), "gradient": done.norm, "clipped": done.clipped,
        "gap": done.gap, "skipped": float(done.skipped), "unverified": us.add(torch.tensor(float(unverified))).item(),
        "flat_groups": float(np.mean(np.nanmax(np.abs(advantages.reshape(-1, config.samples)), axis=1) == 0.0)),
    }  # fmt: skip
    values |= {f"share_{name}": share for name, share in shares.items()}
    return values | {f"mix_{name}": used[k] / max(len(valid), 1) for k, name in enumerate(ACTIONS)}


def known_mean(values: NDArray[np.float64]) -> float:
    """Over those that are numbers; NaN where none is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan
