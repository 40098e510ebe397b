"""Where a run of phase 2 stands: weights, optimizers, controller, what is left of the corpus. Written whole or not."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from pixelis.equations.pid import Pid
from pixelis.policy.model import Policy
from pixelis.train.crew import Crew
from pixelis.train.state import Sources, lay_tensors, reading, tensors_of, write_folder
from pixelis.train.worth import Known


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


def due(saved: float, minutes: float, us: Crew) -> bool:
    """Whether it is time to save; the first process decides for all."""
    late = time.monotonic() - saved >= 60 * minutes
    return bool(us.add(torch.tensor(float(late and us.first))) > 0)


def save_rft(
    out: Path,
    state: RftState,
    sources: Sources,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    known: Known,
    dynamics: torch.optim.Optimizer,
    us: Crew,
) -> None:
    """A new folder of state in place of the older ones."""
    own, heads = tensors_of(policy, optimizer, us, "policy."), tensors_of(known.heads.h_psi, dynamics, us, "h_psi.")
    write_folder(out, state.step, {**own, **heads}, asdict(state), sources, us)


def load_rft(
    out: Path,
    sources: Sources,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    known: Known,
    dynamics: torch.optim.Optimizer,
    us: Crew,
) -> RftState | None:
    """The newest state of a run, everything laid into place; None where there is none."""
    with reading(out, sources) as found:
        if found is None:
            return None
        tensors, facts = found
        lay_tensors(tensors, policy, optimizer, us, "policy.")
        lay_tensors(tensors, known.heads.h_psi, dynamics, us, "h_psi.")
        return RftState(**{**facts, "pid": Pid(**facts["pid"])})
