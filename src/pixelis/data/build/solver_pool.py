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
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "pixelis.data.build.solver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(scratch),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
        )
        self._send(hello)
        threading.Thread(target=self._listen, args=(replies,), daemon=True).start()

    def _listen(self, replies: ReplyQueue) -> None:
        assert self._popen.stdout is not None  # noqa: S101 - it was asked for
        try:
            for line in self._popen.stdout:
                replies.put((self, SolverReply(**json.loads(line))))
        except (ValueError, TypeError):  # a torn reply: the process has died over it, or cannot be understood any more
            self._popen.kill()
        finally:
            replies.put((self, None))

    def _send(self, message: Any) -> None:
        assert self._popen.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._popen.stdin.write(json.dumps(message).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: the listener says so

    def assign(self, unit: Unit) -> None:
        self.assigned_units[unit.name] = unit
        self._send(unit._asdict())

    def exit_reason(self) -> str:
        code = self._popen.wait()
        self._stderr.seek(0)
        lines = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        status = f"signal {-code}" if code < 0 else f"exit status {code}"
        return status + (f": {lines[-1].strip()[:300]}" if lines else "")

    def stop(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe:
                with suppress(BrokenPipeError):  # what it was not told any more
                    pipe.close()
        self._stderr.close()


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
                    f"item {unit.name} ({description}) killed {MAX_CRASHES_PER_UNIT} processes ({reason}); what is done is kept"
                )
        replacement = self._start_process()
        self._processes[self._processes.index(crashed)] = replacement
        for unit in units:
            replacement.assign(unit)
