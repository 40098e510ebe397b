"""What reaches a person's terminal, or the program that reads it: safe to print, whatever a file or a tool says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

LOG_INTERVAL_S = 30.0
"""Between two lines about a run that has no terminal to draw on."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
StrictCalls = Annotated[
    bool,
    typer.Option(
        "--strict-calls", help="Hold every call to its tool's schema while it is written; not behind a server."
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="nano-rft, a folder that `pixelis train` wrote, a hub id, or a server: openai:URL#name.",
    ),
]


def printable(text: str) -> str:
    """Text without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def escape_markup(text: str) -> str:
    """The same for a place where rich reads markup."""
    from rich.markup import escape

    return escape(printable(text))


def stdout() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def format_duration(seconds: float) -> str:
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes}:{remainder:02d}"


def print_json(value: object) -> None:
    typer.echo(json.dumps(value))


@contextmanager
def spinner(message: str, *, quiet: bool) -> Iterator[None]:
    """A sign of life on a terminal; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(escape_markup(message)):
        yield


def pluralise(count: int, singular: str, plural: str = "") -> str:
    """1 item, 2 items; `many` where an s does not do."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"
