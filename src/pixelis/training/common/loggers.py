"""Where the metrics of a run go: always to metrics.jsonl, and to the trackers that the config's `loggers` names.

A tracker is imported only if it is named. On resume metrics.jsonl and TensorBoard drop or supersede the rows after the
last saved state; Weights & Biases and trackio append to the same run, so that the steps taken twice appear twice.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pixelis.core.atomic import write_atomic
from pixelis.core.errors import ConfigError

METRICS = "metrics.jsonl"
PROJECT = "pixelis"
"""Project of the trackers, unless WANDB_PROJECT or TRACKIO_PROJECT names another."""
TRACKER_ID = ".tracker_id"
"""File of the run folder with the id that trackers know the run by."""


class Logger(Protocol):
    """Receives the metrics of a run. Values that are not finite reach metrics.jsonl only."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class LoggedRun(NamedTuple):
    """What a logger is told about its run."""

    out: Path
    first_step: int
    """The last step before the first row to come."""
    config: Mapping[str, Any]


class JsonlLogger:
    """metrics.jsonl: an object a line; null stands for a value that is not finite."""

    def __init__(self, run: LoggedRun) -> None:
        drop_rows_after(run.out / METRICS, run.first_step)
        self._file = (run.out / METRICS).open("a")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = {"step": step, **{key: value if math.isfinite(value) else None for key, value in values.items()}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandbLogger:
    """Weights & Biases. Entity, key and offline mode are its own settings (`wandb login`, WANDB_MODE=offline)."""

    def __init__(self, run: LoggedRun) -> None:
        import wandb

        project, name = os.environ.get("WANDB_PROJECT", PROJECT), run.out.resolve().name
        try:
            self._run = wandb.init(
                project=project, name=name, id=tracker_id(run.out), resume="allow", dir=run.out, config=dict(run.config)
            )
        except wandb.errors.Error as error:
            reason = str(error).partition("\n")[0]
            hint = "log in with `wandb login`, or set WANDB_MODE=offline"
            raise ConfigError(f"wandb cannot start ({reason}); {hint}") from error
        self._run.define_metric("*", step_metric="step")  # its own counter refuses warm-up steps, which are negative

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class TrackioLogger:
    """trackio, which keeps its database in TRACKIO_DIR or the Hugging Face cache."""

    def __init__(self, run: LoggedRun) -> None:
        import trackio

        project, name = os.environ.get("TRACKIO_PROJECT", PROJECT), f"{run.out.resolve().name}-{tracker_id(run.out)}"
        self._run = trackio.init(project=project, name=name, resume="allow", config=dict(run.config))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def open_tensorboard(run: LoggedRun) -> Logger:
    from pixelis.training.common.tensorboard_events import TensorBoardLogger

    return TensorBoardLogger(run.out, first_step=run.first_step)


TRACKERS: dict[str, Callable[[LoggedRun], Logger]] = {
    "tensorboard": open_tensorboard,
    "wandb": WandbLogger,
    "trackio": TrackioLogger,
}


def require_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError if the package of a tracker is missing."""
    for name in names:
        if name != "tensorboard" and find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: pip install {name}")


def tracker_id(out: Path) -> str:
    """The id under which trackers know the run in this folder; a resumed run keeps it."""
    path = out / TRACKER_ID
    if not path.exists():
        write_atomic(path, secrets.token_hex(4).encode())
    return path.read_text()


def drop_rows_after(path: Path, step: int) -> None:
    """Drop the rows of steps that a killed run took after its last saved state: they are taken again."""
    if not path.exists():
        return
    remaining = [row for row in path.read_text().splitlines() if row.endswith("}") and json.loads(row)["step"] <= step]
    write_atomic(path, "".join(f"{row}\n" for row in remaining).encode())
