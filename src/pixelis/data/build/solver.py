"""The process that makes records: it renders a unit, has a teacher solve it, judges the trace and writes the record.

A record depends on its unit and the configuration alone, so that any number of these processes, in any order and
however often killed, write the same files. Messages are JSON lines over the pipes of the process.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import PixelisError, RetryLaterError
from pixelis.data.corpus.acceptance_checks import judge_trace
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.item_files import ItemReader
from pixelis.data.corpus.record import Record, encode, pack
from pixelis.data.corpus.splits import Unit
from pixelis.data.teachers.teacher import Demonstration, Teacher, canonicalise_trace, make_teacher
from pixelis.media import MediaSet
from pixelis.tools.toolbox import Toolbox, decisive_thresholds
from pixelis.world import RenderedItem, generate, shift_item

TIMEOUT_RETRIES = 2
"""A time-out depends on the machine, so an item is retried before the time-out is recorded."""


class SolverReply(NamedTuple):
    """The result of a unit, for the parent."""

    unit: str
    """Its name; empty if the solver cannot start, and `error` says why."""
    accepted: bool = False
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    undone: str = ""
    """Why there is no record if a later run may make one: `server` or `cap`."""
    stop: bool = False
    full: bool = False
    """The disk is full."""
    error: str = ""
    """The error, or the detail of `undone`."""


class Solver:
    """Makes the records of one configuration in one folder; thread-safe."""

    def __init__(
        self, config: CorpusConfig, folder: Path, replies: Path, items: Mapping[str, str] | None = None
    ) -> None:
        self.config = config
        self.items = ItemReader(config.items, items or {})
        self.folder = folder
        self.toolbox = Toolbox(config.toolbox)
        self.teacher: Teacher = make_teacher(config, replies)
        self._count_lock = threading.Lock()
        self._last_lookups = (0, 0)

    def close(self) -> None:
        self.toolbox.close()
        self.teacher.close()

    def solve(self, unit: Unit) -> SolverReply:
        """Make and write the record of a unit; an expected failure becomes a reply too."""
        try:
            record, blobs, timeouts = self.make_record(unit)
            with atomic_write(unit_path(self.folder, unit)) as file:
                file.write(pack(encode(record), blobs))
        except RetryLaterError as error:
            return SolverReply(unit.name, undone=error.outcome, stop=error.stop_run, error=str(error))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            return SolverReply(unit.name, full=full, error=f"{error.strerror or error}")
        except PixelisError as error:
            return SolverReply(unit.name, error=str(error))
        hits, misses = self.take_lookup_counts()
        return SolverReply(unit.name, record.accepted, hits, misses, timeouts)

    def take_lookup_counts(self) -> tuple[int, int]:
        """Cache hits and misses since the last call, over all threads."""
        with self._count_lock:
            cache = self.toolbox.cache
            current = (cache.hits, cache.misses) if cache else (0, 0)
            previous, self._last_lookups = self._last_lookups, current
        return current[0] - previous[0], current[1] - previous[1]

    def make_record(self, unit: Unit) -> tuple[Record, dict[str, bytes], int]:
        """The record of a unit, the blobs to keep, and the number of calls that timed out."""
        rendered = self.render_unit(unit)
        try:
            demonstration = self.demonstrate(rendered, unit)
        finally:
            self.toolbox.release(MediaSet(rendered.media))  # 5,000 clips would take tens of gigabytes
        demonstration = demonstration._replace(trace=canonicalise_trace(demonstration.trace, rendered.item))
        cited = demonstration.cited_steps
        judgement = judge_trace(
            rendered.item, demonstration.trace, cited=cited, thresholds=decisive_thresholds(self.toolbox.tools)
        )
        record = Record(
            split=unit.split,
            ordinal=unit.ordinal,
            source=unit.source,
            item=rendered.item,
            trace=demonstration.trace,
            accepted=judgement.accepted,
            acceptance=judgement.model_dump(mode="json", exclude={"accepted"}),
            teaching=demonstration.details | ({} if cited is None else {"cited": list(cited)}),
        )
        blobs = dict(demonstration.blobs) if self.config.store_artifacts else {}
        if self.config.store_media and unit.items:
            blobs |= media_files(rendered)
        return record, blobs, count_timeouts(demonstration)

    def render_unit(self, unit: Unit) -> RenderedItem:
        if unit.items:
            return self.items.render(unit.items, unit.line)
        base = generate(unit.family, seed=unit.seed, difficulty=unit.difficulty, photographs=self.config.photographs)
        return shift_item(base, unit.shift, unit.severity, seed=unit.seed) if unit.shift else base

    def demonstrate(self, rendered: RenderedItem, unit: Unit) -> Demonstration:
        for attempt in range(TIMEOUT_RETRIES + 1):
            rng = np.random.default_rng(np.random.SeedSequence([unit.seed, 11]))
            demonstration = self.teacher.demonstrate(rendered, self.toolbox, rng=rng)
            if not count_timeouts(demonstration) or attempt == TIMEOUT_RETRIES:
                break
        return demonstration


def count_timeouts(demonstration: Demonstration) -> int:
    """Calls that timed out or crashed."""
    return sum(step.result.status in ("timeout", "crashed") for step in demonstration.trace.steps)


def media_files(rendered: RenderedItem) -> dict[str, bytes]:
    """The files of imported media by hash, if they are single files."""
    paths = {medium.sha256: medium.path for medium in rendered.media}
    return {sha256: path.read_bytes() for sha256, path in paths.items() if path is not None and path.is_file()}


def unit_path(folder: Path, unit: Unit) -> Path:
    return folder / "units" / f"{unit.name}.unit"


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Serve units after a greeting until the pipe closes; the process never outlives its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    hello = json.loads(requests.readline())
    sys.path[:] = hello["path"]
    try:
        config = CorpusConfig.model_validate(hello["config"])
        solver = Solver(config, Path(hello["folder"]), Path(hello["replies"]), hello.get("items"))
    except PixelisError as error:
        send(replies, SolverReply("", error=str(error)))
        return
    units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
    lock = threading.Lock()

    def answer(unit: Unit) -> None:
        try:
            reply = solver.solve(unit)
        except Exception as error:  # noqa: BLE001 - an error in a teacher stops the build by its name
            frame = traceback.extract_tb(error.__traceback__)[-1]
            location = f"{Path(frame.filename).name}:{frame.lineno}"
            reply = SolverReply(unit.name, error=f"{type(error).__name__}: {str(error)[:300]} ({location})")
        with lock:
            send(replies, reply)

    def listen() -> None:
        for line in requests:
            units.put(Unit(**json.loads(line)))
        os._exit(0)  # the parent has closed the pipe

    with ThreadPoolExecutor(hello["threads"]) as pool:
        threading.Thread(target=listen, daemon=True).start()
        while (unit := units.get()) is not None:
            pool.submit(answer, unit)


def send(replies: BinaryIO, reply: SolverReply) -> None:
    replies.write(json.dumps(reply._asdict()).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    reply_stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the replies
    serve(sys.stdin.buffer, reply_stdout)
