"""A pool of solver processes. One that dies is restarted, and its units are assigned again."""

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
"""A unit that kills this many processes stops the build."""

ReplyQueue = queue.SimpleQueue["tuple[SolverProcess, SolverReply | None]"]
"""A process and its reply, or None when the process ends."""


class SolverProcess:
    """One solver process and the units that are assigned to it."""

    def __init__(self, hello: dict[str, Any], scratch: Path, replies: ReplyQueue) -> None:
        self.assigned_units: dict[str, Unit] = {}
        self._process = ChildProcess("pixelis.data.build.solver", {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)})
        self._send(hello)
        threading.Thread(target=self._listen, args=(replies,), daemon=True).start()

    def _listen(self, replies: ReplyQueue) -> None:
        try:
            for line in self._process.stdout:
                replies.put((self, SolverReply(**json.loads(line))))
        except (ValueError, TypeError):  # a torn reply: the process has died or cannot be understood
            self._process.kill()
        finally:
            replies.put((self, None))

    def _send(self, message: Any) -> None:
        with suppress(BrokenPipeError):  # it has died, which the listener reports
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
    """Assigns units to processes and collects their replies."""

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
        """Whether a process accepts a unit; each has one more than it works on, so that it never idles."""
        return any(len(process.assigned_units) <= self._threads for process in self._processes)

    @property
    def is_busy(self) -> bool:
        return any(process.assigned_units for process in self._processes)

    def submit(self, unit: Unit) -> None:
        min(self._processes, key=lambda process: len(process.assigned_units)).assign(unit)

    def wait_for_reply(self) -> SolverReply:
        """The next reply; TraceError if a unit has killed too many processes."""
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
        for unit in units[: self._threads]:  # the units that it worked on; the others were waiting
            self._crashes[unit.name] = self._crashes.get(unit.name, 0) + 1
            if self._crashes[unit.name] >= MAX_CRASHES_PER_UNIT:
                description = unit.source or f"{unit.family}, difficulty {unit.difficulty}, seed {unit.seed}"
                raise TraceError(
                    f"item {unit.name} ({description}) killed {MAX_CRASHES_PER_UNIT} processes ({reason}); "
                    "finished items are kept"
                )
        replacement = self._start_process()
        self._processes[self._processes.index(crashed)] = replacement
        for unit in units:
            replacement.assign(unit)
