"""The saved state of a run: weights, optimizer, and what else the next step depends on. Written whole or not at all.

A folder `state-00001200` appears by one rename, then older ones are removed: a run killed at any moment resumes from
the newest one and takes the same steps that it would have taken. The number counts every step, warm-up tasks included,
so that no folder replaces another. The state names the corpus and the tokenizer that the run began with.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pixelis.core.atomic import fsync_path
from pixelis.core.errors import ConfigError
from pixelis.training.common.distributed import DistributedContext, copy_into_shard, full_tensor, trainable_parameters

TENSORS, FACTS = "training.safetensors", "state.json"
OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq")


class Sources(NamedTuple):
    """Hashes of what a run learns from: another corpus may lie at the same path on resume."""

    corpus: str
    tokenizer: str
    policy: str = ""
    """The weights of the reference policy π_SFT, in phase 2."""


def gather_tensors(
    module: nn.Module, optimizer: Optimizer, dist: DistributedContext, prefix: str = ""
) -> dict[str, Tensor]:
    """Trained weights and their moments as full tensors, on the CPU of the main process. All processes must call this.

    They are gathered one at a time: no device holds more than one of them whole.
    """
    tensors = dict[str, Tensor]()
    for name, value in trainable_parameters(module).items():
        for key, tensor in {"weight": value.detach(), **optimizer.state[value]}.items():
            whole_tensor = full_tensor(tensor)
            if dist.is_main:
                tensors[f"{key}.{prefix}{name}"] = whole_tensor.cpu()
    return tensors


def restore_tensors(
    tensors: TensorFile, module: nn.Module, optimizer: Optimizer, dist: DistributedContext, prefix: str = ""
) -> None:
    """The inverse of `gather_tensors`."""

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
    """Write a new state folder in place of the older ones, by one rename."""
    from safetensors.torch import save_file

    if not dist.is_main:
        return
    for stale in out.glob(".state.*"):  # of a run that was killed while saving
        shutil.rmtree(stale, ignore_errors=True)
    temporary = out / f".state.{os.getpid()}"
    temporary.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, temporary / TENSORS)
    (temporary / FACTS).write_text(json.dumps({**facts, "world": dist.world_size, "sources": sources._asdict()}))
    for file in temporary.iterdir():
        fsync_path(file)
    temporary.rename(out / f"state-{number:08d}")
    fsync_path(out)
    for old in list_state_folders(out)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def list_state_folders(out: Path) -> list[Path]:
    return sorted(out.glob("state-" + "[0-9]" * 8))


class TensorFile:
    """A safetensors file, read tensor by tensor."""

    def __init__(self, file: Any) -> None:
        self._file, self._names = file, frozenset(file.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        return self._file.get_tensor(name)


@contextmanager
def open_state(out: Path, sources: Sources) -> Iterator[tuple[TensorFile, dict[str, Any]] | None]:
    """Tensors and facts of the newest state, or None; raise ConfigError if they cannot be read or do not fit."""
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
        raise ConfigError(f"{folders[-1]}: not the state of this run ({reason}); delete it to start again") from error


def require_sources(out: Path, saved: dict[str, str] | None, current: Sources) -> None:
    """Raise ConfigError if a run would resume with another corpus, tokenizer or π_SFT. Older states name none."""
    changed = [name for name, value in current._asdict().items() if saved is not None and saved.get(name, "") != value]
    if changed:
        listed = " and another ".join(changed)
        raise ConfigError(f"{out} holds a run with another {listed}: put it back, or give another folder")


def _empty_moment(like: Tensor, key: str) -> Tensor:
    """An empty moment. The step count is a scalar, on the device of the weight because AdamW is fused."""
    return torch.zeros((), device=like.device) if key == "step" else torch.zeros_like(like)
