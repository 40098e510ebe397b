"""Text for a terminal or for the program that reads it: printable whatever a file or a tool contains."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import typer


def printable(text: str) -> str:
    """Text without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def escape_markup(text: str) -> str:
    """Printable text for rich, which otherwise reads [brackets] as markup."""
    from rich.markup import escape

    return escape(printable(text))


def stdout() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def plain_table(*headings: str, left: tuple[str, ...] = (), **options: Any) -> Any:
    """A table without lines; columns not named in `left` are numbers, aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", **options)
    for heading in headings:
        is_text = heading in left
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


def format_duration(seconds: float) -> str:
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes}:{remainder:02d}"


def print_json(value: object) -> None:
    typer.echo(json.dumps(value))


def print_report(content: object, print_text: Callable[[], None], *, as_json: bool) -> None:
    """Print one JSON object, or the text for a person."""
    if as_json:
        print_json(content)
    else:
        print_text()


def pluralise(count: int, singular: str, plural: str = "") -> str:
    """1 item, 2 items; give `plural` where adding an s is wrong."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"
