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

from pixelis.core.errors import ConfigError
from pixelis.core.provenance import fsync_path
from pixelis.training.common.distributed import DistributedContext, copy_into_shard, full_tensor, trainable_parameters

TENSORS, FACTS = "training.safetensors", "state.json"
OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class SftState:
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


def save_sft_state(
    out: Path,
    state: SftState,
    sources: Sources,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dist: DistributedContext,
) -> None:
    """A new folder of state in place of the older ones."""
    tensors = {**gather_full_tensors(model, optimizer, dist), "errors": torch.from_numpy(state.errors)}
    facts = {key: value for key, value in vars(state).items() if key not in ("rng", "errors")}
    facts["rng"] = state.rng.bit_generator.state
    write_state_folder(out, state.drilled + state.step, tensors, facts, sources, dist)


def gather_full_tensors(
    module: nn.Module, optimizer: torch.optim.Optimizer, dist: DistributedContext, prefix: str = ""
) -> dict[str, Tensor]:
    """Trained weights and their moments, in one piece each, on the CPU of the first process. All processes must ask.

    They are put together one by one: no device ever holds more than one of them whole.
    """
    tensors = dict[str, Tensor]()
    for name, value in trainable_parameters(module).items():
        for key, tensor in {"weight": value.detach(), **optimizer.state[value]}.items():
            whole_tensor = full_tensor(tensor)
            if dist.is_main:
                tensors[f"{key}.{prefix}{name}"] = whole_tensor.cpu()
    return tensors


def restore_tensors(
    tensors: TensorFile, module: nn.Module, optimizer: torch.optim.Optimizer, dist: DistributedContext, prefix: str = ""
) -> None:
    """The opposite of `tensors_of`."""

    def restore_one(key: str, name: str, target: Tensor) -> Tensor:
        copy_into_shard(lambda: tensors[f"{key}.{prefix}{name}"], target, dist)
        return target

    with torch.no_grad():
        for name, value in trainable_parameters(module).items():
            restore_one("weight", name, value)
            saved_keys = [key for key in OPTIMIZER_KEYS if f"{key}.{prefix}{name}" in tensors]
            if saved_keys:
                optimizer.state[value] = {key: restore_one(key, name, _empty_moment(value, key)) for key in saved_keys}


def write_state_folder(
    out: Path,
    number: int,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    sources: Sources,
    dist: DistributedContext,
) -> None:
    """A new folder of state in place of the older ones, by one rename."""
    from safetensors.torch import save_file

    if not dist.is_main:
        return
    for stale in out.glob(".state.*"):  # by a run that was killed while it saved
        shutil.rmtree(stale, ignore_errors=True)
    temporary = out / f".state.{os.getpid()}"
    temporary.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, temporary / TENSORS)
    (temporary / FACTS).write_text(json.dumps({**facts, "world": dist.world_size, "sources": sources._asdict()}))
    for file in temporary.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    temporary.rename(out / f"state-{number:08d}")
    fsync_path(out)
    for old in list_state_folders(out)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def list_state_folders(out: Path) -> list[Path]:
    return sorted(out.glob("state-" + "[0-9]" * 8))


def load_sft_state(
    out: Path, sources: Sources, model: nn.Module, optimizer: torch.optim.Optimizer, dist: DistributedContext
) -> SftState | None:
    """The newest state of a run, its weights and moments laid into place; None where there is none."""
    with open_latest_state(out, sources) as saved:
        if saved is None:
            return None
        tensors, facts = saved
        rng = np.random.default_rng()
        rng.bit_generator.state = facts.pop("rng")
        restore_tensors(tensors, model, optimizer, dist)
        return SftState(rng=rng, errors=tensors["errors"].numpy().copy(), **facts)


class TensorFile:
    """A file of tensors that is read one by one, as they are asked for."""

    def __init__(self, file: Any) -> None:
        self._file, self._names = file, frozenset(file.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        return self._file.get_tensor(name)


@contextmanager
def open_latest_state(out: Path, sources: Sources) -> Iterator[tuple[TensorFile, dict[str, Any]] | None]:
    """Tensors and facts of the newest state, None where there is none; whatever does not fit is a ConfigError."""
    from safetensors import SafetensorError, safe_open

    folders = list_state_folders(out)
    try:
        if not folders:
            yield None
            return
        facts: dict[str, Any] = json.loads((folders[-1] / FACTS).read_bytes())
        facts.pop("world")
        require_sources(out, facts.pop("sources", None), sources)
        with safe_open(folders[-1] / TENSORS, framework="pt") as file:
            yield TensorFile(file), facts
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{folders[-1]}: not the state of this run ({reason}); delete it to begin anew") from error


def require_sources(out: Path, saved: dict[str, str] | None, current: Sources) -> None:
    """ConfigError where a run would go on with another corpus, tokenizer or π_SFT. Older states do not say."""
    changed = [name for name, value in current._asdict().items() if saved is not None and saved.get(name, "") != value]
    if changed:
        listed = " and another ".join(changed)
        raise ConfigError(f"{out} holds a run with another {listed}: put it back, or give another folder")


def _empty_moment(like: Tensor, key: str) -> Tensor:
    """Room for a moment. The count of steps is one number, beside the weight since AdamW is fused."""
    return torch.zeros((), device=like.device) if key == "step" else torch.zeros_like(like)
