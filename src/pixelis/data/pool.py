"""Several solver processes behind one queue. One that dies is started again, and its units are handed out again."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pixelis.data.solver import Reply
from pixelis.data.splits import Unit
from pixelis.errors import TraceError

LIVES = 3
"""A unit that has killed this many processes stops the build."""


News = queue.SimpleQueue["tuple[Process, Reply | None]"]
"""Who says what; None is the end of a process."""


class Process:
    """One solver: its pipes, and the units that it has in hand."""

    def __init__(self, hello: dict[str, Any], scratch: Path, news: News) -> None:
        self.in_hand: dict[str, Unit] = {}
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "pixelis.data.solver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(scratch),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
        )
        self._send(hello)
        threading.Thread(target=self._listen, args=(news,), daemon=True).start()

    def _listen(self, news: News) -> None:
        assert self._popen.stdout is not None  # noqa: S101 - it was asked for
        try:
            for line in self._popen.stdout:
                news.put((self, Reply(**json.loads(line))))
        except (ValueError, TypeError):  # a torn reply: the process has died over it, or cannot be understood any more
            self._popen.kill()
        finally:
            news.put((self, None))

    def _send(self, message: Any) -> None:
        assert self._popen.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._popen.stdin.write(json.dumps(message).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: the listener says so

    def take(self, unit: Unit) -> None:
        self.in_hand[unit.name] = unit
        self._send(unit._asdict())

    def last_words(self) -> str:
        code = self._popen.wait()
        self._complaints.seek(0)
        lines = self._complaints.read()[-4000:].decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return how + (f": {lines[-1].strip()[:300]}" if lines else "")

    def stop(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe:
                with suppress(BrokenPipeError):  # what it was not told any more
                    pipe.close()
        self._complaints.close()


class Pool:
    """Hands out units and hears replies; a context manager, since it owns processes."""

    def __init__(self, hello: dict[str, Any], scratch: Path, *, workers: int, threads: int) -> None:
        self._hello = {**hello, "threads": threads, "path": sys.path}
        self._scratch = scratch
        self._threads = threads
        self._news: News = queue.SimpleQueue()
        self._lives: dict[str, int] = {}
        self._processes = [self._started() for _ in range(workers)]

    def _started(self) -> Process:
        return Process(self._hello, self._scratch, self._news)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.stop()

    @property
    def room(self) -> bool:
        """Whether a process waits for work: one unit more than it works on lies ready, so that it never idles."""
        return any(len(process.in_hand) <= self._threads for process in self._processes)

    @property
    def busy(self) -> bool:
        return any(process.in_hand for process in self._processes)

    def submit(self, unit: Unit) -> None:
        min(self._processes, key=lambda process: len(process.in_hand)).take(unit)

    def wait(self) -> Reply:
        """The next reply; TraceError where a unit has cost too many processes their life."""
        while True:
            process, reply = self._news.get()
            if reply is not None:
                process.in_hand.pop(reply.unit, None)
                return reply
            if process in self._processes:
                self._replace(process)

    def _replace(self, dead: Process) -> None:
        words, units = dead.last_words(), list(dead.in_hand.values())
        dead.stop()
        if not units:
            raise TraceError(f"a solver process died before it had work ({words})")
        for unit in units[: self._threads]:  # what it worked on; the rest only lay ready
            self._lives[unit.name] = self._lives.get(unit.name, 0) + 1
            if self._lives[unit.name] >= LIVES:
                what = unit.source or f"{unit.family}, difficulty {unit.difficulty}, seed {unit.seed}"
                raise TraceError(f"item {unit.name} ({what}) killed {LIVES} processes ({words}); what is done is kept")
        fresh = self._started()
        self._processes[self._processes.index(dead)] = fresh
        for unit in units:
            fresh.take(unit)
