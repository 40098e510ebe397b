"""The run folder: its lock, the resolved configuration, and the log of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from filelock import FileLock, Timeout

from pixelis.core.atomic import atomic_write, make_directory
from pixelis.core.config import Config, with_current_names
from pixelis.core.errors import ConfigError
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.loggers import TRACKERS, JsonlLogger, LoggedRun, Logger, require_trackers
from pixelis.training.common.run_config import RunConfig

RESOLVED, LOCK = "config.yaml", ".lock"
PREEXISTING_FILES = ("made_of.json", "calibration.json")
"""Files that may lie in a run folder before the run starts: the fingerprint of a comparison, and shared thresholds."""
RESUME_MUTABLE_KEYS = (
    "threads", "workers", "examples_folder", "log_every", "save_minutes", "device_facts", "architecture",
    "checkpoint_activations", "loggers",
)  # fmt: skip
"""Keys that may change on resume: they do not affect what is learned."""


class Progress(NamedTuple):
    """What the progress bar shows."""

    what: str
    share: float
    loss: float = math.nan
    tokens_per_s: float = 0.0
    seconds_left: float | None = None


Show = Callable[[Progress], None]


@contextmanager
def run_folder(config: RunConfig, out: Path, dist: DistributedContext) -> Iterator[None]:
    """Create the run folder, or open it if it holds this run; only one run at a time works in it."""
    require_trackers(config.loggers)
    lock = FileLock(out / LOCK, timeout=0)
    if dist.is_main:
        try:
            make_directory(out)
            lock.acquire()
        except Timeout as error:
            raise ConfigError(f"{out}: another run is working in this folder") from error
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
    """Write every key with its value; raise ConfigError if the folder holds a run that learns something else.

    A run that failed before its first row has left only its config, which another run may replace. A key that did not
    exist when the run began has its default.
    """
    values, folder = config.model_dump(mode="json"), path.parent
    # the lock, and the unfinished files of a killed process, have names that begin with a dot
    existing = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {*PREEXISTING_FILES}
    saved_values = with_current_names(type(config), read_values(path))
    if (existing and RESOLVED not in existing) or (RESOLVED in existing and not set(saved_values) & set(values)):
        raise ConfigError(f"{folder} is not empty and holds no run of this kind: give another folder")
    if existing - {RESOLVED}:
        defaults = type(config).model_construct().model_dump(mode="json")
        changed = list[str]()
        for key in values.keys() - set(RESUME_MUTABLE_KEYS):
            changed += changed_keys(key, values[key], saved_values.get(key, defaults.get(key)), defaults.get(key))
        if changed:
            listed = ", ".join(sorted(changed))
            raise ConfigError(f"{folder} holds a run with another {listed}: give its values, or another folder")
    with atomic_write(path) as file:
        file.write(yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())


def read_values(path: Path) -> dict[str, Any]:
    """The values of a resolved configuration; none if the file is missing or not a configuration."""
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def changed_keys(name: str, current: Any, saved: Any, defaults: Any) -> list[str]:
    """Dotted names of the keys at or below `name` whose values differ; a key missing from `saved` has its default."""
    if not isinstance(current, dict) or not isinstance(saved, dict):
        return [name] if current != saved else []
    defaults = defaults if isinstance(defaults, dict) else {}
    changed = list[str]()
    for key, value in current.items():
        changed += changed_keys(f"{name}.{key}", value, saved.get(key, defaults.get(key)), defaults.get(key))
    return changed


class MetricsLog:
    """The metrics of a run, a row for each reported step: metrics.jsonl and the trackers that the config names."""

    def __init__(self, out: Path, step: int, dist: DistributedContext, config: RunConfig | None = None) -> None:
        self._jsonl: JsonlLogger | None = None
        self._trackers: list[Logger] = []
        if dist.is_main:
            run = LoggedRun(out, step, config.model_dump(mode="json") if config else {})
            self._jsonl = JsonlLogger(run)
            self._trackers = [TRACKERS[name](run) for name in (config.loggers if config else ())]

    def write(self, step: int, **values: float) -> None:
        if self._jsonl is not None:
            self._jsonl.write(step, values)
            finite = {key: value for key, value in values.items() if math.isfinite(value)}
            for tracker in self._trackers:
                tracker.write(step, finite)

    def close(self) -> None:
        if self._jsonl is not None:
            for logger in (self._jsonl, *self._trackers):
                logger.close()
