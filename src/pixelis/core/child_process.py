"""A module of this package as a child process behind pipes: tools (`tools.worker`) and solvers (`data.build`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO


class ChildProcess:
    """Started at once; its standard error is kept in a file, for the sentence about its death."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._popen = subprocess.Popen(
            # -P: a module in the working directory, among strangers' media, is not imported
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None  # noqa: S101, PT018 - pipes, as asked
        self.stdin: IO[bytes] = self._popen.stdin
        self.stdout: IO[bytes] = self._popen.stdout

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def exit_status(self, timeout_s: float | None = None) -> str:
        """`signal 9` or `exit status 3`, when it has ended; empty for a clean exit."""
        code = self._popen.wait(timeout_s)
        return f"signal {-code}" if code < 0 else f"exit status {code}" if code else ""

    def last_line(self) -> str:
        """The last line of its standard error, or nothing."""
        self._stderr.seek(0)
        lines = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def kill(self) -> None:
        self._popen.kill()

    def stop(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for pipe in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):  # of bytes that were not sent any more
                pipe.close()
        self._stderr.close()
