"""Several solver processes behind one queue. One that dies is started again, and its units are handed out again."""

from __future__ import annotations

import json
import queue
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pixelis.core.child_process import ChildProcess
from pixelis.core.errors import TraceError
from pixelis.data.build.solver import SolverReply
from pixelis.data.corpus.splits import Unit

MAX_CRASHES_PER_UNIT = 3
"""A unit that has killed this many processes stops the build."""


ReplyQueue = queue.SimpleQueue["tuple[SolverProcess, SolverReply | None]"]
"""Who says what; None is the end of a process."""


class SolverProcess:
    """One solver: its pipes, and the units that it has in hand."""

    def __init__(self, hello: dict[str, Any], scratch: Path, replies: ReplyQueue) -> None:
        self.assigned_units: dict[str, Unit] = {}
        self._process = ChildProcess("pixelis.data.build.solver", {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)})
        self._send(hello)
        threading.Thread(target=self._listen, args=(replies,), daemon=True).start()

    def _listen(self, replies: ReplyQueue) -> None:
        try:
            for line in self._process.stdout:
                replies.put((self, SolverReply(**json.loads(line))))
        except (ValueError, TypeError):  # a torn reply: the process has died over it, or cannot be understood any more
            self._process.kill()
        finally:
            replies.put((self, None))

    def _send(self, message: Any) -> None:
        with suppress(BrokenPipeError):  # it has died: the listener says so
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def assign(self, unit: Unit) -> None:
        self.assigned_units[unit.name] = unit
        self._send(unit._asdict())

    def exit_reason(self) -> str:
        status, last_line = self._process.exit_status() or "exit status 0", self._process.last_line()[:300]
        return status + (f": {last_line}" if last_line else "")

    def stop(self) -> None:
        self._process.stop()


class SolverPool:
    """Hands out units and hears replies; a context manager, since it owns processes."""

    def __init__(self, hello: dict[str, Any], scratch: Path, *, workers: int, threads: int) -> None:
        self._hello = {**hello, "threads": threads, "path": sys.path}
        self._scratch = scratch
        self._threads = threads
        self._replies: ReplyQueue = queue.SimpleQueue()
        self._crashes: dict[str, int] = {}
        self._processes = [self._start_process() for _ in range(workers)]

    def _start_process(self) -> SolverProcess:
        return SolverProcess(self._hello, self._scratch, self._replies)

    def __enter__(self) -> SolverPool:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.stop()

    @property
    def has_capacity(self) -> bool:
        """Whether a process waits for work: one unit more than it works on lies ready, so that it never idles."""
        return any(len(process.assigned_units) <= self._threads for process in self._processes)

    @property
    def is_busy(self) -> bool:
        return any(process.assigned_units for process in self._processes)

    def submit(self, unit: Unit) -> None:
        min(self._processes, key=lambda process: len(process.assigned_units)).assign(unit)

    def wait_for_reply(self) -> SolverReply:
        """The next reply; TraceError where a unit has cost too many processes their life."""
        while True:
            process, reply = self._replies.get()
            if reply is not None:
                process.assigned_units.pop(reply.unit, None)
                return reply
            if process in self._processes:
                self._replace(process)

    def _replace(self, crashed: SolverProcess) -> None:
        reason, units = crashed.exit_reason(), list(crashed.assigned_units.values())
        crashed.stop()
        if not units:
            raise TraceError(f"a solver process died before it had work ({reason})")
        for unit in units[: self._threads]:  # what it worked on; the rest only lay ready
            self._crashes[unit.name] = self._crashes.get(unit.name, 0) + 1
            if self._crashes[unit.name] >= MAX_CRASHES_PER_UNIT:
                description = unit.source or f"{unit.family}, difficulty {unit.difficulty}, seed {unit.seed}"
                raise TraceError(
                    f"item {unit.name} ({description}) killed {MAX_CRASHES_PER_UNIT} processes ({reason}); "
                    "what is done is kept"
                )
        replacement = self._start_process()
        self._processes[self._processes.index(crashed)] = replacement
        for unit in units:
            replacement.assign(unit)
