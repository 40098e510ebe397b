"""Where a run stands: weights, optimizer, random generator, plan of the epoch. Written whole or not at all.

A folder `state-00001200` appears by one rename, then older ones are removed: a run that was killed at any moment goes
on from the newest one and takes the very steps that it would have taken. Its number counts every step, drills included,
so that no folder ever takes the place of another. It names the corpus and the tokenizer that the run began with.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pixelis.errors import ConfigError
from pixelis.rundir import sync
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


class Sources(NamedTuple):
    """What a run learns from, by content: another corpus may have come to lie where it was."""

    corpus: str
    tokenizer: str
    policy: str = ""
    """The weights that it is held against all the time, where there are such: π_SFT."""


def save_state(
    out: Path, state: State, sources: Sources, student: nn.Module, optimizer: torch.optim.Optimizer, crew: Crew
) -> None:
    """A new folder of state in place of the older ones."""
    tensors = {**tensors_of(student, optimizer, crew), "errors": torch.from_numpy(state.errors)}
    facts = {key: value for key, value in vars(state).items() if key not in ("rng", "errors")}
    facts["rng"] = state.rng.bit_generator.state
    write_folder(out, state.drilled + state.step, tensors, facts, sources, crew)


def tensors_of(module: nn.Module, optimizer: torch.optim.Optimizer, crew: Crew, prefix: str = "") -> dict[str, Tensor]:
    """Trained weights and their moments, in one piece each, on the CPU of the first process. All processes must ask.

    They are put together one by one: no device ever holds more than one of them whole.
    """
    tensors = dict[str, Tensor]()
    for name, value in trained(module).items():
        for key, kept in {"weight": value.detach(), **optimizer.state[value]}.items():
            full = whole(kept)
            if crew.first:
                tensors[f"{key}.{prefix}{name}"] = full.cpu()
    return tensors


def lay_tensors(
    tensors: Tensors, module: nn.Module, optimizer: torch.optim.Optimizer, crew: Crew, prefix: str = ""
) -> None:
    """The opposite of `tensors_of`."""

    def lay_one(key: str, name: str, into: Tensor) -> Tensor:
        lay(lambda: tensors[f"{key}.{prefix}{name}"], into, crew)
        return into

    with torch.no_grad():
        for name, value in trained(module).items():
            lay_one("weight", name, value)
            kept = [key for key in MOMENTS if f"{key}.{prefix}{name}" in tensors]
            if kept:
                optimizer.state[value] = {key: lay_one(key, name, _moment(value, key)) for key in kept}


def write_folder(
    out: Path, number: int, tensors: dict[str, Tensor], facts: dict[str, Any], sources: Sources, crew: Crew
) -> None:
    """A new folder of state in place of the older ones, by one rename."""
    from safetensors.torch import save_file

    if not crew.first:
        return
    for left in out.glob(".state.*"):  # by a run that was killed while it saved
        shutil.rmtree(left, ignore_errors=True)
    fresh = out / f".state.{os.getpid()}"
    fresh.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, fresh / TENSORS)
    (fresh / FACTS).write_text(json.dumps({**facts, "world": crew.world, "sources": sources._asdict()}))
    for file in fresh.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    fresh.rename(out / f"state-{number:08d}")
    sync(out)
    for old in states(out)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def states(out: Path) -> list[Path]:
    return sorted(out.glob("state-" + "[0-9]" * 8))


def load_state(
    out: Path, sources: Sources, student: nn.Module, optimizer: torch.optim.Optimizer, crew: Crew
) -> State | None:
    """The newest state of a run, its weights and moments laid into place; None where there is none."""
    with reading(out, sources) as found:
        if found is None:
            return None
        tensors, facts = found
        rng = np.random.default_rng()
        rng.bit_generator.state = facts.pop("rng")
        lay_tensors(tensors, student, optimizer, crew)
        return State(rng=rng, errors=tensors["errors"].numpy().copy(), **facts)


class Tensors:
    """A file of tensors that is read one by one, as they are asked for."""

    def __init__(self, opened: Any) -> None:
        self._opened, self._names = opened, frozenset(opened.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        return self._opened.get_tensor(name)


@contextmanager
def reading(out: Path, sources: Sources) -> Iterator[tuple[Tensors, dict[str, Any]] | None]:
    """Tensors and facts of the newest state, None where there is none; whatever does not fit is a ConfigError."""
    from safetensors import SafetensorError, safe_open

    found = states(out)
    try:
        if not found:
            yield None
            return
        facts: dict[str, Any] = json.loads((found[-1] / FACTS).read_bytes())
        facts.pop("world")
        require_sources(out, facts.pop("sources", None), sources)
        with safe_open(found[-1] / TENSORS, framework="pt") as opened:
            yield Tensors(opened), facts
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{found[-1]}: not the state of this run ({reason}); delete it to begin anew") from error


def require_sources(out: Path, before: dict[str, str] | None, now: Sources) -> None:
    """ConfigError where a run would go on with another corpus, tokenizer or π_SFT. Older states do not say."""
    other = [name for name, value in now._asdict().items() if before is not None and before.get(name, "") != value]
    if other:
        listed = " and another ".join(other)
        raise ConfigError(f"{out} holds a run with another {listed}: put it back, or give another folder")


def _moment(like: Tensor, key: str) -> Tensor:
    """Room for a moment. The count of steps is one number, beside the weight since AdamW is fused."""
    return torch.zeros((), device=like.device) if key == "step" else torch.zeros_like(like)
