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

from pixelis.config import Config
from pixelis.errors import ConfigError
from pixelis.rundir import make_folder, replacing, write_whole
from pixelis.train.crew import Crew
from pixelis.train.events import Events
from pixelis.train.state import State

METRICS, RESOLVED, LOCK = "metrics.jsonl", "config.yaml", ".lock"
GIVEN = ("made_of.json", "calibration.json")
"""What may lie in a run's folder before it begins: whose part of a comparison it is, and thresholds that it shares."""
MAY_CHANGE = ("threads", "workers", "examples", "log_every", "save_minutes", "device_facts", "architecture",
              "checkpoint_activations")  # fmt: skip
"""Keys that a run may be resumed with other values of: they do not change what is learnt."""


class Now(NamedTuple):
    """What the progress bar shows."""

    what: str
    share: float
    loss: float = math.nan
    tokens_per_s: float = 0.0
    seconds_left: float | None = None


Show = Callable[[Now], None]


@contextmanager
def run_folder(config: Config, out: Path, us: Crew) -> Iterator[None]:
    """The run's folder, made or found to be this run's own; one run at a time works in it."""
    lock = FileLock(out / LOCK, timeout=0)
    if us.first:
        try:
            make_folder(out)
            lock.acquire()
        except Timeout as error:
            raise ConfigError(f"{out}: another run is at work in it") from error
        except OSError as error:
            raise ConfigError(f"{out} cannot be written ({error.strerror})") from error
    try:
        if us.first:
            write_config(config, out / RESOLVED)
        us.wait()
        yield
    finally:
        lock.release()


def write_config(config: Config, path: Path) -> None:
    """Every key with its value; ConfigError where the folder holds a run that learns something else.

    A run that failed before its first row has left nothing but its values: another takes its place. A key that the run
    was begun without has its default.
    """
    own, folder = config.model_dump(mode="json"), path.parent
    # the lock, and what a process that was killed had begun to write, have names with a dot before them
    found = {each.name for each in folder.iterdir() if not each.name.startswith(".")} - {*GIVEN}
    other = read_values(path)
    if (found and RESOLVED not in found) or (RESOLVED in found and not set(other) & set(own)):
        raise ConfigError(f"{folder} is not empty and holds no run of this kind: give another folder")
    if found - {RESOLVED}:
        usual = type(config).model_construct().model_dump(mode="json")
        changed = [
            name
            for key in own
            if key not in MAY_CHANGE
            for name in differing(key, own[key], other.get(key, usual.get(key)), usual.get(key))
        ]
        if changed:
            listed = ", ".join(sorted(changed))
            raise ConfigError(f"{folder} holds a run with another {listed}: give its values, or another folder")
    with replacing(path) as file:
        file.write(yaml.safe_dump(own, sort_keys=False, allow_unicode=True).encode())


def read_values(path: Path) -> dict[str, Any]:
    """Of a resolved configuration; none where there is no file, or one of somebody else's."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def differing(name: str, own: Any, other: Any, usual: Any) -> list[str]:
    """The keys below `name` whose values differ, by their dotted names; what `other` lacks has its usual value."""
    if not isinstance(own, dict) or not isinstance(other, dict):
        return [name] if own != other else []
    usual = usual if isinstance(usual, dict) else {}
    below = ((key, other.get(key, usual.get(key)), usual.get(key)) for key in own)
    return [each for key, value, default in below for each in differing(f"{name}.{key}", own[key], value, default)]


def drop_rows_after(path: Path, step: int) -> None:
    """Take away the rows of steps that a killed run took after its last state: they are taken again."""
    if not path.exists():
        return
    kept = [row for row in path.read_text().splitlines() if row.endswith("}") and json.loads(row)["step"] <= step]
    write_whole(path, "".join(f"{row}\n" for row in kept).encode())


class Log:
    """metrics.jsonl and TensorBoard: a row for each step that is reported."""

    def __init__(self, out: Path, step: int, us: Crew) -> None:
        self._path = out / METRICS if us.first else None
        if self._path is None:
            return
        drop_rows_after(self._path, step)
        self._file = self._path.open("a")
        self._events = Events(out, first_step=step)

    def write(self, step: int, **values: float) -> None:
        if self._path is None:
            return
        known = {key: value if math.isfinite(value) else None for key, value in values.items()}
        self._file.write(json.dumps({"step": step, **known}) + "\n")
        self._file.flush()
        self._events.write(step, {key: value for key, value in values.items() if math.isfinite(value)})

    def close(self) -> None:
        if self._path is not None:
            self._file.close()
            self._events.close()


class Watch:
    """The clock of a run, which goes on over interruptions."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._before = state.seconds
        self._began = self._saved = self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    @property
    def tokens_per_s(self) -> float:
        return self._state.tokens / self._state.teaching_s if self._state.teaching_s else 0.0

    def tick(self, tokens: int) -> None:
        """A step was taken."""
        now = time.monotonic()
        self._state.teaching_s += now - self._last
        self._last = now  # a second step may follow before `again`
        self._state.tokens += tokens

    def again(self) -> None:
        """The next step begins: what lay between (evaluation, saving) is not counted as teaching."""
        self._last = time.monotonic()

    def save_due(self, minutes: float, every: int, us: Crew) -> bool:
        """Whether it is time to save; processes agree on it at the steps that are reported."""
        if us.world > 1 and self._state.step % every:
            return False
        due = time.monotonic() - self._saved >= 60 * minutes
        if us.world > 1:
            due = bool(us.add(torch.tensor(float(due and us.first))) > 0)
        if due:
            self._saved = time.monotonic()
        return due

    def stamp(self) -> State:
        self._state.seconds = self.seconds
        return self._state

    def now(self, loss: float, pool: int, what: str = "training") -> Now:
        wanted = self._state.epochs * pool
        visited = self._state.visited
        pace_s = (self.seconds - self._state.drilled_s) / visited if visited else None  # of one example
        left = None if pace_s is None else pace_s * (wanted - visited)
        return Now(what, self._state.visited / wanted, loss, self.tokens_per_s, left)
