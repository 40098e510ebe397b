"""Progress on stderr: bars and live tables on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import typer

from pixelis.cli.terminal import escape_markup, printable

LINE_INTERVAL_S = 10.0
"""Between two lines where there is no terminal to draw on."""
_QUIET = threading.Event()


class ShowProgress(Protocol):
    def __call__(self, description: str, completed: float, total: float | None = None, details: str = "") -> None: ...


def set_quiet(requested: bool) -> bool:
    """Callback of `--quiet`."""
    (_QUIET.set if requested else _QUIET.clear)()
    return requested


def is_quiet() -> bool:
    """Under torchrun only the first process reports."""
    return _QUIET.is_set() or os.environ.get("RANK", "0") != "0"


def is_live() -> bool:
    """Whether there is a terminal to draw on."""
    return sys.stderr.isatty() and not is_quiet()


class LineThrottle:
    """Plain progress lines for logs and pipes: at most one in `LINE_INTERVAL_S`, apart from those of `log`."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def write(self, text: str, *, always: bool = False) -> None:
        if not is_quiet() and (always or time.monotonic() - self._last >= LINE_INTERVAL_S):
            self._last = time.monotonic()
            typer.echo(text, err=True)

    def log(self, text: str) -> None:
        self.write(text, always=True)


@contextmanager
def spinner(message: str) -> Iterator[None]:
    """A spinner on a terminal; elsewhere one line if the work takes longer than `LINE_INTERVAL_S`."""
    if is_live():
        from rich.console import Console

        with Console(stderr=True).status(escape_markup(message)):
            yield
        return
    timer = threading.Timer(LINE_INTERVAL_S, LineThrottle().log, [f"{message} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def live_table() -> Iterator[Callable[..., None]]:
    """`show(rows, line, always=False)`: a live table of names and values on a terminal, elsewhere the line."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    lines = LineThrottle()
    view = Live(console=Console(stderr=True), transient=True, refresh_per_second=2) if is_live() else nullcontext()
    with view as live:

        def show(rows: Iterable[tuple[str, str]], line: str, *, always: bool = False) -> None:
            if live is None:
                lines.write(line, always=always)
                return
            table = Table.grid(padding=(0, 3))
            for name, text in rows:
                table.add_row(name, printable(text))
            live.update(table)

        yield show


@contextmanager
def progress_bars() -> Iterator[ShowProgress]:
    """A bar for each description, or plain lines."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[details]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    lines, tasks = LineThrottle(), dict[str, Any]()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_live()) as bars:

        def show(description: str, completed: float, total: float | None = None, details: str = "") -> None:
            if description not in tasks:
                tasks[description] = bars.add_task(escape_markup(description), total=total, details="")
            bars.update(tasks[description], completed=completed, total=total, details=escape_markup(details))
            if not is_live():
                total_text = f" of {total:,.0f}" if total else ""
                amount = f"{100 * completed:.0f} %" if total == 1.0 else f"{completed:,.0f}{total_text}"
                lines.write(f"{description}: {amount}{', ' if details else ''}{details}")

        yield show
