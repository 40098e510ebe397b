"""A run of phase 1 in progress: its state, its clock, and how it is resumed and saved."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from pixelis.data.corpus.corpus import Corpus
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_folder import MetricsLog, Progress, Show
from pixelis.training.common.run_state import Sources, gather_tensors, open_state, restore_tensors, write_state_folder
from pixelis.training.dataset.prepared_examples import run_sources
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_model import unwrap

OLD_NAMES = {
    "drilled": "warmup_task_steps", "drilled_s": "warmup_task_s", "teaching_s": "training_s", "trend": "smoothed_nats",
}  # fmt: skip
"""Fields by the names that earlier releases saved them under."""


@dataclass
class SftState:
    """What the next step depends on, besides weights and optimizer."""

    rng: np.random.Generator
    """Draws the order of examples, the dropouts and the warm-up tasks."""
    errors: NDArray[np.float64]
    """(pool,) predicted error of each example at its last visit; NaN before the first."""
    warmup_task_steps: int = 0
    """Steps on warm-up tasks before the first epoch."""
    warmup_task_s: float = 0.0
    """Seconds until the last of them."""
    step: int = 0
    epoch: int = 0
    """Epochs begun."""
    epochs: float = 0.0
    """Epochs in total."""
    batches: list[list[int]] = field(default_factory=list)
    """The rest of this epoch."""
    visited: int = 0
    """Examples so far; the learning rate depends on it."""
    smoothed_nats: float = float("nan")
    """Smoothed nats per token of training batches."""
    stage: int = 0
    """Of the curriculum: 0 is the warm-up epoch."""
    bins: list[int] = field(default_factory=list)
    dev_losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    training_s: float = 0.0
    """Seconds of the steps alone, without evaluation and saving."""

    def total_visits(self) -> int:
        return round(self.epochs * len(self.errors))

    def share_done(self) -> float:
        return self.visited / (self.epochs * len(self.errors))


def save_sft_state(
    out: Path, state: SftState, sources: Sources, model: nn.Module, optimizer: Optimizer, dist: DistributedContext
) -> None:
    """Write a new state folder in place of the older ones."""
    tensors = {**gather_tensors(model, optimizer, dist), "errors": torch.from_numpy(state.errors)}
    facts = {key: value for key, value in vars(state).items() if key not in ("rng", "errors")}
    facts["rng"] = state.rng.bit_generator.state
    write_state_folder(out, state.warmup_task_steps + state.step, tensors, facts, sources, dist)


def load_sft_state(
    out: Path, sources: Sources, model: nn.Module, optimizer: Optimizer, dist: DistributedContext
) -> SftState | None:
    """Restore the newest state of a run with its weights and moments; None if there is none."""
    with open_state(out, sources) as saved:
        if saved is None:
            return None
        tensors, facts = saved
        rng = np.random.default_rng()
        rng.bit_generator.state = facts.pop("rng")
        restore_tensors(tensors, model, optimizer, dist)
        fields = {OLD_NAMES.get(key, key): value for key, value in facts.items()}
        return SftState(rng=rng, errors=tensors["errors"].numpy().copy(), **fields)


class RunClock:
    """The clock of a run, which continues over interruptions."""

    def __init__(self, state: SftState) -> None:
        self._state = state
        self._previous_s = state.seconds
        self._started_at = self._saved_at = self._step_started_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._previous_s + time.monotonic() - self._started_at

    @property
    def tokens_per_s(self) -> float:
        return self._state.tokens / self._state.training_s if self._state.training_s else 0.0

    def start_step(self) -> None:
        """Begin a step: the time since the last one (evaluation, saving) does not count as training."""
        self._step_started_at = time.monotonic()

    def end_step(self, tokens: int) -> None:
        now = time.monotonic()
        self._state.training_s += now - self._step_started_at
        self._step_started_at = now  # another step may follow before `start_step`
        self._state.tokens += tokens

    def is_save_due(self, minutes: float, interval_steps: int, dist: DistributedContext) -> bool:
        """Whether it is time to save; several processes decide together, at the steps that are reported."""
        if dist.world_size > 1 and self._state.step % interval_steps:
            return False
        is_due = time.monotonic() - self._saved_at >= 60 * minutes
        if dist.world_size > 1:
            is_due = bool(dist.all_reduce_sum(torch.tensor(float(is_due and dist.is_main))) > 0)
        if is_due:
            self._saved_at = time.monotonic()
        return is_due

    def progress(self, loss: float, what: str = "training") -> Progress:
        state = self._state
        seconds_left = None
        if state.visited:
            pace_s = (self.seconds - state.warmup_task_s) / state.visited  # of one example
            seconds_left = pace_s * (state.epochs * len(state.errors) - state.visited)
        return Progress(what, state.share_done(), loss, self.tokens_per_s, seconds_left)


class SftRun(NamedTuple):
    """What the steps, the log and the checkpoints of a run share."""

    config: SftConfig
    out: Path
    dist: DistributedContext
    model: Any
    """The SftModel, wrapped where there are several processes."""
    optimizer: Optimizer
    sources: Sources
    state: SftState
    clock: RunClock
    log: MetricsLog
    show: Show
    resumed: bool

    def save(self) -> None:
        self.state.seconds = self.clock.seconds
        save_sft_state(self.out, self.state, self.sources, unwrap(self.model), self.optimizer, self.dist)


def open_run(
    config: SftConfig,
    out: Path,
    corpus: Corpus,
    model: Any,
    optimizer: Optimizer,
    examples: int,
    dist: DistributedContext,
    show: Show,
) -> SftRun:
    """Resume the run in a folder, or start one on so many examples."""
    sft_model = unwrap(model)
    sources = run_sources(corpus, sft_model.policy.tokenizer)
    saved = load_sft_state(out, sources, sft_model, optimizer, dist)
    state = saved or SftState(np.random.default_rng(config.seed), np.full(examples, np.nan), epochs=config.epochs)
    first_step = state.step or state.warmup_task_steps - config.warmup_task_steps  # warm-up steps count up to 0
    log = MetricsLog(out, first_step, dist, config)
    return SftRun(config, out, dist, model, optimizer, sources, state, RunClock(state), log, show, saved is not None)
