"""The run folder: resolved configuration, metrics, TensorBoard events; and the clock of a run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from filelock import FileLock, Timeout

from pixelis.core.config import Config
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import atomic_write, make_directory, write_atomic
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_state import SftState
from pixelis.training.common.tensorboard_events import EventWriter

METRICS, RESOLVED, LOCK = "metrics.jsonl", "config.yaml", ".lock"
PREEXISTING_FILES = ("made_of.json", "calibration.json")
"""What may lie in a run's folder before it begins: whose part of a comparison it is, and thresholds that it shares."""
RESUME_MUTABLE_KEYS = ("threads", "workers", "examples", "log_every", "save_minutes", "device_facts", "architecture",
              "checkpoint_activations")  # fmt: skip
"""Keys that a run may be resumed with other values of: they do not change what is learnt."""


class Progress(NamedTuple):
    """What the progress bar shows."""

    what: str
    share: float
    loss: float = math.nan
    tokens_per_s: float = 0.0
    seconds_left: float | None = None


Show = Callable[[Progress], None]


@contextmanager
def run_folder(config: Config, out: Path, dist: DistributedContext) -> Iterator[None]:
    """The run's folder, made or found to be this run's own; one run at a time works in it."""
    lock = FileLock(out / LOCK, timeout=0)
    if dist.is_main:
        try:
            make_directory(out)
            lock.acquire()
        except Timeout as error:
            raise ConfigError(f"{out}: another run is at work in it") from error
        except OSError as error:
            raise ConfigError(f"{out} cannot be written ({error.strerror})") from error
    try:
        if dist.is_main:
            write_config(config, out / RESOLVED)
        dist.barrier()
        yield
    finally:
        lock.release()


def write_config(config: Config, path: Path) -> None:
    """Every key with its value; ConfigError where the folder holds a run that learns something else.

    A run that failed before its first row has left nothing but its values: another takes its place. A key that the run
    was begun without has its default.
    """
    values, folder = config.model_dump(mode="json"), path.parent
    # the lock, and what a process that was killed had begun to write, have names with a dot before them
    existing = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {*PREEXISTING_FILES}
    saved_values = read_values(path)
    if (existing and RESOLVED not in existing) or (RESOLVED in existing and not set(saved_values) & set(values)):
        raise ConfigError(f"{folder} is not empty and holds no run of this kind: give another folder")
    if existing - {RESOLVED}:
        defaults = type(config).model_construct().model_dump(mode="json")
        changed = [
            name
            for key in values
            if key not in RESUME_MUTABLE_KEYS
            for name in changed_keys(key, values[key], saved_values.get(key, defaults.get(key)), defaults.get(key))
        ]
        if changed:
            listed = ", ".join(sorted(changed))
            raise ConfigError(f"{folder} holds a run with another {listed}: give its values, or another folder")
    with atomic_write(path) as file:
        file.write(yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())


def read_values(path: Path) -> dict[str, Any]:
    """Of a resolved configuration; none where there is no file, or one of somebody else's."""
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def changed_keys(name: str, current: Any, saved: Any, defaults: Any) -> list[str]:
    """The keys below `name` whose values differ, by their dotted names; what `other` lacks has its usual value."""
    if not isinstance(current, dict) or not isinstance(saved, dict):
        return [name] if current != saved else []
    defaults = defaults if isinstance(defaults, dict) else {}
    nested = ((key, saved.get(key, defaults.get(key)), defaults.get(key)) for key in current)
    return [
        dotted_name
        for key, value, default in nested
        for dotted_name in changed_keys(f"{name}.{key}", current[key], value, default)
    ]


def drop_rows_after(path: Path, step: int) -> None:
    """Take away the rows of steps that a killed run took after its last state: they are taken again."""
    if not path.exists():
        return
    remaining = [row for row in path.read_text().splitlines() if row.endswith("}") and json.loads(row)["step"] <= step]
    write_atomic(path, "".join(f"{row}\n" for row in remaining).encode())


class MetricsLog:
    """metrics.jsonl and TensorBoard: a row for each step that is reported."""

    def __init__(self, out: Path, step: int, dist: DistributedContext) -> None:
        self._path = out / METRICS if dist.is_main else None
        if self._path is None:
            return
        drop_rows_after(self._path, step)
        self._file = self._path.open("a")
        self._events = EventWriter(out, first_step=step)

    def write(self, step: int, **values: float) -> None:
        if self._path is None:
            return
        finite_values = {key: value if math.isfinite(value) else None for key, value in values.items()}
        self._file.write(json.dumps({"step": step, **finite_values}) + "\n")
        self._file.flush()
        self._events.write(step, {key: value for key, value in values.items() if math.isfinite(value)})

    def close(self) -> None:
        if self._path is not None:
            self._file.close()
            self._events.close()


class RunClock:
    """The clock of a run, which goes on over interruptions."""

    def __init__(self, state: SftState) -> None:
        self._state = state
        self._previous_s = state.seconds
        self._started_at = self._saved_at = self._step_started_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._previous_s + time.monotonic() - self._started_at

    @property
    def tokens_per_s(self) -> float:
        return self._state.tokens / self._state.teaching_s if self._state.teaching_s else 0.0

    def end_step(self, tokens: int) -> None:
        """A step was taken."""
        now = time.monotonic()
        self._state.teaching_s += now - self._step_started_at
        self._step_started_at = now  # a second step may follow before `again`
        self._state.tokens += tokens

    def start_step(self) -> None:
        """The next step begins: what lay between (evaluation, saving) is not counted as teaching."""
        self._step_started_at = time.monotonic()

    def is_save_due(self, minutes: float, interval_steps: int, dist: DistributedContext) -> bool:
        """Whether it is time to save; processes agree on it at the steps that are reported."""
        if dist.world_size > 1 and self._state.step % interval_steps:
            return False
        is_due = time.monotonic() - self._saved_at >= 60 * minutes
        if dist.world_size > 1:
            is_due = bool(dist.all_reduce_sum(torch.tensor(float(is_due and dist.is_main))) > 0)
        if is_due:
            self._saved_at = time.monotonic()
        return is_due

    def update_state(self) -> SftState:
        self._state.seconds = self.seconds
        return self._state

    def progress(self, loss: float, pool: int, what: str = "training") -> Progress:
        total_visits = self._state.epochs * pool
        visited = self._state.visited
        pace_s = (self.seconds - self._state.drilled_s) / visited if visited else None  # of one example
        seconds_left = None if pace_s is None else pace_s * (total_visits - visited)
        return Progress(what, self._state.visited / total_visits, loss, self.tokens_per_s, seconds_left)
