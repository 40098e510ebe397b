"""The process that makes records: it renders a unit, has it taught, judges it, and puts the record on disk whole.

A unit's record depends on the unit and the configuration alone, so that any number of these processes, in any order
and however often killed, leave the same files. Messages are JSON lines over the pipes of the process.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from pixelis.data.acceptance import judge
from pixelis.data.corpus_config import CorpusConfig
from pixelis.data.item_files import ItemReader
from pixelis.data.record import Record, encode, pack
from pixelis.data.splits import Unit
from pixelis.data.teaching import Lesson, Teacher, make_teacher, settled
from pixelis.errors import PixelisError, UndoneError
from pixelis.media import MediaSet
from pixelis.rundir import replacing
from pixelis.tools.toolbox import Toolbox
from pixelis.world import Rendered, generate, shifted

TRIES_AFTER_A_TIMEOUT = 2
"""A wall-clock deadline is no property of an item: it gets more chances before the time-out is recorded."""


class Reply(NamedTuple):
    """What the parent hears about a unit."""

    unit: str
    """Its name; empty where no unit can be worked on, and `error` says why."""
    accepted: bool = False
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    undone: str = ""
    """Why there is no record, where another run may make one: `server` or `cap`."""
    stop: bool = False
    full: bool = False
    """The disk took no more."""
    error: str = ""
    """What broke, or the detail of what is undone."""


class Solver:
    """Makes records of one configuration into one folder. Safe to use from several threads."""

    def __init__(
        self, config: CorpusConfig, folder: Path, replies: Path, items: Mapping[str, str] | None = None
    ) -> None:
        self.config = config
        self.items = ItemReader(config.items, items or {})
        self.folder = folder
        self.toolbox = Toolbox(config.toolbox)
        self.teacher: Teacher = make_teacher(config, replies)
        self._counting = threading.Lock()
        self._told = (0, 0)

    def close(self) -> None:
        self.toolbox.close()
        self.teacher.close()

    def reply(self, unit: Unit) -> Reply:
        """Make the record of a unit; whatever happens is a reply."""
        try:
            record, blobs, timeouts = self.record(unit)
            with replacing(unit_path(self.folder, unit)) as file:
                file.write(pack(encode(record), blobs))
        except UndoneError as error:
            return Reply(unit.name, undone=error.outcome, stop=error.stop, error=str(error))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            return Reply(unit.name, full=full, error=f"{error.strerror or error}")
        except PixelisError as error:
            return Reply(unit.name, error=str(error))
        hits, misses = self.lookups()
        return Reply(unit.name, record.accepted, hits, misses, timeouts)

    def lookups(self) -> tuple[int, int]:
        """Hits and misses of the cache since this was last asked; threads share the cache, so they share the count."""
        with self._counting:
            cache = self.toolbox.cache
            now = (cache.hits, cache.misses) if cache else (0, 0)
            before, self._told = self._told, now
        return now[0] - before[0], now[1] - before[1]

    def record(self, unit: Unit) -> tuple[Record, dict[str, bytes], int]:
        """The record of a unit, the blobs to keep, and how many of its calls ran out of time in the end."""
        rendered = self.rendered(unit)
        try:
            lesson = self.taught(rendered, unit)
        finally:
            self.toolbox.let_go(MediaSet(rendered.media))  # 5,000 clips on disk would be tens of gigabytes
        lesson = lesson._replace(trace=settled(lesson.trace, rendered.item))
        judgement = judge(rendered.item, lesson.trace, cited=lesson.cited)
        record = Record(
            split=unit.split,
            ordinal=unit.ordinal,
            source=unit.source,
            item=rendered.item,
            trace=lesson.trace,
            accepted=judgement.accepted,
            acceptance=judgement.model_dump(mode="json", exclude={"accepted"}),
            teaching={**lesson.teaching, **({"cited": list(lesson.cited)} if lesson.cited is not None else {})},
        )
        blobs = dict(lesson.blobs) if self.config.store_artifacts else {}
        if self.config.store_media and unit.items:
            blobs |= files_of(rendered)
        return record, blobs, ran_out(lesson)

    def rendered(self, unit: Unit) -> Rendered:
        if unit.items:
            return self.items.rendered(unit.items, unit.line)
        made = generate(unit.family, seed=unit.seed, difficulty=unit.difficulty, photographs=self.config.photographs)
        return shifted(made, unit.shift, unit.severity, seed=unit.seed) if unit.shift else made

    def taught(self, rendered: Rendered, unit: Unit) -> Lesson:
        for attempt in range(TRIES_AFTER_A_TIMEOUT + 1):
            rng = np.random.default_rng(np.random.SeedSequence([unit.seed, 11]))
            lesson = self.teacher.teach(rendered, self.toolbox, rng=rng)
            if not ran_out(lesson) or attempt == TRIES_AFTER_A_TIMEOUT:
                break
        return lesson


def ran_out(lesson: Lesson) -> int:
    """Calls that ended by the clock or with their process."""
    return sum(step.result.status in ("timeout", "crashed") for step in lesson.trace.steps)


def files_of(rendered: Rendered) -> dict[str, bytes]:
    """The files of imported media by their hash, where they are single files."""
    paths = {medium.sha256: medium.path for medium in rendered.media}
    return {sha256: path.read_bytes() for sha256, path in paths.items() if path is not None and path.is_file()}


def unit_path(folder: Path, unit: Unit) -> Path:
    return folder / "units" / f"{unit.name}.unit"


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """The life of a solver: a greeting, then units until the pipe closes; it never outlives its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    hello = json.loads(requests.readline())
    sys.path[:] = hello["path"]
    try:
        config = CorpusConfig.model_validate(hello["config"])
        solver = Solver(config, Path(hello["folder"]), Path(hello["replies"]), hello.get("items"))
    except PixelisError as error:
        replies.write(json.dumps(Reply("", error=str(error))._asdict()).encode() + b"\n")
        replies.flush()
        return
    waiting: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
    lock = threading.Lock()

    def answer(unit: Unit) -> None:
        try:
            reply = solver.reply(unit)
        except Exception as error:  # noqa: BLE001 - a teacher's own mistake stops the build with its name, not silently
            import traceback

            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}:{at.lineno}"
            reply = Reply(unit.name, error=f"{type(error).__name__}: {str(error)[:300]} ({place})")
        with lock:
            replies.write(json.dumps(reply._asdict()).encode() + b"\n")
            replies.flush()

    def listen() -> None:
        for line in requests:
            waiting.put(Unit(**json.loads(line)))
        os._exit(0)  # the parent is gone, or wants no more

    with ThreadPoolExecutor(hello["threads"]) as pool:
        threading.Thread(target=listen, daemon=True).start()
        while (unit := waiting.get()) is not None:
            pool.submit(answer, unit)


if __name__ == "__main__":
    own_stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not fall among the replies
    serve(sys.stdin.buffer, own_stdout)
