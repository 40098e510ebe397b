"""The resumable state of phase 2: weights, optimizers, controller, remaining prompts. Written atomically."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from pixelis.equations.pid import Pid
from pixelis.policy.model import Policy
from pixelis.rewards.compute import Rewarder
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_state import Sources, gather_tensors, open_state, restore_tensors, write_state_folder

OLD_NAMES = {"left": "remaining", "passes": "epochs", "far": "kl_exceeded", "stopped": "stop_reason"}
"""Keys of state.json in runs of earlier releases."""


@dataclass
class RftState:
    """Everything that the next update depends on, besides weights and optimizers."""

    step: int = 0
    remaining: list[int] = field(default_factory=list)
    """Prompts left of this epoch."""
    epochs: int = 0
    pid: Pid = field(default_factory=Pid)
    calls: float | None = None
    """Smoothed number of calls per rollout."""
    entropy: float | None = None
    """Smoothed nats per sampled token."""
    shares: dict[str, float] = field(default_factory=dict)
    """Smoothed shares of the terms in the reward's variance."""
    skipped: int = 0
    kl_exceeded: bool = False
    """The last update's KL exceeded `kl.max`: the next one uses only the KL term."""
    stop_reason: str = ""
    """Why the run stopped early."""
    seconds: float = 0.0


class Trained(NamedTuple):
    """What updates change, with its optimizers."""

    policy: Policy
    optimizer: Optimizer
    dynamics_optimizer: Optimizer
    rewarder: Rewarder


def is_save_due(last_save: float, minutes: float, dist: DistributedContext) -> bool:
    """Whether it is time to save; the first process decides for all."""
    is_late = time.monotonic() - last_save >= 60 * minutes
    return bool(dist.all_reduce_sum(torch.tensor(float(is_late and dist.is_main))) > 0)


def save_rft(out: Path, state: RftState, sources: Sources, trained: Trained, dist: DistributedContext) -> None:
    """Replace the saved state of a run."""
    tensors = gather_tensors(trained.policy, trained.optimizer, dist, "policy.")
    tensors |= gather_tensors(trained.rewarder.heads.h_psi, trained.dynamics_optimizer, dist, "h_psi.")
    write_state_folder(out, state.step, tensors, asdict(state), sources, dist)


def load_rft(out: Path, sources: Sources, trained: Trained, dist: DistributedContext) -> RftState | None:
    """Restore the newest state of a run; None if there is none."""
    with open_state(out, sources) as saved:
        if saved is None:
            return None
        tensors, facts = saved
        restore_tensors(tensors, trained.policy, trained.optimizer, dist, "policy.")
        restore_tensors(tensors, trained.rewarder.heads.h_psi, trained.dynamics_optimizer, dist, "h_psi.")
        current: dict[str, Any] = {OLD_NAMES.get(key, key): value for key, value in facts.items()}
        return RftState(**{**current, "pid": Pid(**current["pid"])})
