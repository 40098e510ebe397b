"""Where a run of phase 2 stands: weights, optimizers, controller, what is left of the corpus. Written whole or not."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from pixelis.equations.pid import Pid
from pixelis.policy.model import Policy
from pixelis.rewards.compute import Rewarder
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_state import (
    Sources,
    gather_full_tensors,
    open_latest_state,
    restore_tensors,
    write_state_folder,
)


@dataclass
class RftState:
    """Everything that the next update depends on, besides weights and optimizers."""

    step: int = 0
    left: list[int] = field(default_factory=list)
    """Questions of this pass over the corpus that are still to come."""
    passes: int = 0
    pid: Pid = field(default_factory=Pid)
    calls: float | None = None
    """Smoothed calls of a chain."""
    entropy: float | None = None
    """Smoothed nats of a sampled token."""
    shares: dict[str, float] = field(default_factory=dict)
    """Smoothed shares of the terms in the reward's variance."""
    skipped: int = 0
    far: bool = False
    """The last batch lay beyond the KL that is borne: the next one only leads back."""
    stopped: str = ""
    """Why the run stopped before its end."""
    seconds: float = 0.0


def is_save_due(last_save: float, minutes: float, dist: DistributedContext) -> bool:
    """Whether it is time to save; the first process decides for all."""
    is_late = time.monotonic() - last_save >= 60 * minutes
    return bool(dist.all_reduce_sum(torch.tensor(float(is_late and dist.is_main))) > 0)


def save_rft(
    out: Path,
    state: RftState,
    sources: Sources,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rewarder: Rewarder,
    dynamics_optimizer: torch.optim.Optimizer,
    dist: DistributedContext,
) -> None:
    """A new folder of state in place of the older ones."""
    policy_tensors, head_tensors = (
        gather_full_tensors(policy, optimizer, dist, "policy."),
        gather_full_tensors(rewarder.heads.h_psi, dynamics_optimizer, dist, "h_psi."),
    )
    write_state_folder(out, state.step, {**policy_tensors, **head_tensors}, asdict(state), sources, dist)


def load_rft(
    out: Path,
    sources: Sources,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rewarder: Rewarder,
    dynamics_optimizer: torch.optim.Optimizer,
    dist: DistributedContext,
) -> RftState | None:
    """The newest state of a run, everything laid into place; None where there is none."""
    with open_latest_state(out, sources) as saved:
        if saved is None:
            return None
        tensors, facts = saved
        restore_tensors(tensors, policy, optimizer, dist, "policy.")
        restore_tensors(tensors, rewarder.heads.h_psi, dynamics_optimizer, dist, "h_psi.")
        return RftState(**{**facts, "pid": Pid(**facts["pid"])})
