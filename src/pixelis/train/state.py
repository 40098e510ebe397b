"""Where a run stands: weights, optimizer, random generator, plan of the epoch. Written whole or not at all.

A folder `state-00001200` appears by one rename, then older ones are removed: a run that was killed at any moment goes
on from the newest one and takes the very steps that it would have taken.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pixelis.errors import ConfigError
from pixelis.train.crew import Crew, lay, trained, whole

TENSORS, FACTS = "training.safetensors", "state.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class State:
    """Everything that the next step depends on, besides weights and optimizer."""

    rng: np.random.Generator
    """Draws the order of examples and the dropouts."""
    errors: NDArray[np.float64]
    """(pool,) predicted error of each example at its last visit; NaN before the first."""
    drilled: int = 0
    """Drills so far; they come before the first step."""
    drilled_s: float = 0.0
    """Seconds until the last of them."""
    step: int = 0
    epoch: int = 0
    """Epochs that have begun."""
    epochs: float = 0.0
    """How many there will be."""
    batches: list[list[int]] = field(default_factory=list)
    """What is left of this epoch."""
    visited: int = 0
    """Examples so far: the learning rate goes by them."""
    trend: float = float("nan")
    """Smoothed nats per token of training batches."""
    stage: int = 0
    """Of the curriculum: 0 is the warm-up epoch."""
    bins: list[int] = field(default_factory=list)
    dev_losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    teaching_s: float = 0.0
    """Seconds of the steps alone, without evaluation and saving."""


def save_state(out: Path, state: State, student: nn.Module, optimizer: torch.optim.Optimizer, crew: Crew) -> None:
    """A new folder of state in place of the older ones."""
    tensors = {**tensors_of(student, optimizer), "errors": torch.from_numpy(state.errors)}
    facts = {key: value for key, value in vars(state).items() if key not in ("rng", "errors")}
    write_folder(out, state.step, tensors, {**facts, "rng": state.rng.bit_generator.state}, crew)


def tensors_of(module: nn.Module, optimizer: torch.optim.Optimizer, prefix: str = "") -> dict[str, Tensor]:
    """Trained weights and their moments, in one piece each. All processes must ask."""
    tensors = {f"weight.{prefix}{name}": whole(value.detach()) for name, value in trained(module).items()}
    for name, value in trained(module).items():
        for key, kept in optimizer.state[value].items():
            tensors[f"{key}.{prefix}{name}"] = whole(kept)
    return tensors


def lay_tensors(
    tensors: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, prefix: str = ""
) -> None:
    """The opposite of `tensors_of`."""
    with torch.no_grad():
        for name, value in trained(module).items():
            lay(tensors[f"weight.{prefix}{name}"], value)
            kept = [key for key in MOMENTS if f"{key}.{prefix}{name}" in tensors]
            if kept:
                optimizer.state[value] = {key: _moment(tensors[f"{key}.{prefix}{name}"], value, key) for key in kept}


def write_folder(out: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], crew: Crew) -> None:
    """A new folder of state in place of the older ones, by one rename."""
    from safetensors.torch import save_file

    if not crew.first:
        return
    for left in out.glob(".state.*"):  # by a run that was killed while it saved
        shutil.rmtree(left, ignore_errors=True)
    fresh = out / f".state.{os.getpid()}"
    fresh.mkdir(parents=True)
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, fresh / TENSORS)
    (fresh / FACTS).write_text(json.dumps({**facts, "world": crew.world}))
    for file in fresh.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    target = out / f"state-{step:08d}"
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    for old in states(out)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def states(out: Path) -> list[Path]:
    return sorted(out.glob("state-" + "[0-9]" * 8))


def load_state(out: Path, student: nn.Module, optimizer: torch.optim.Optimizer) -> State | None:
    """The newest state of a run, its weights and moments laid into place; None where there is none."""
    with reading(out) as found:
        if found is None:
            return None
        tensors, facts = found
        rng = np.random.default_rng()
        rng.bit_generator.state = facts.pop("rng")
        lay_tensors(tensors, student, optimizer)
        return State(rng=rng, errors=tensors["errors"].numpy().copy(), **facts)


@contextmanager
def reading(out: Path) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]] | None]:
    """Tensors and facts of the newest state, None where there is none; whatever does not fit is a ConfigError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found = states(out)
    try:
        if not found:
            yield None
            return
        facts: dict[str, Any] = json.loads((found[-1] / FACTS).read_bytes())
        facts.pop("world")
        yield load_file(found[-1] / TENSORS), facts
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{found[-1]}: not the state of this run ({reason}); delete it to begin anew") from error


def _moment(value: Tensor, like: Tensor, key: str) -> Tensor:
    if key == "step":
        return value
    out = torch.zeros_like(like)
    lay(value, out)
    return out
