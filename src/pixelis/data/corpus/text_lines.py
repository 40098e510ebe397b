"""Text files line by line, in any encoding; every line that cannot be used becomes a problem."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar

from pixelis.core.errors import ConfigError

MAX_LINE_BYTES = 64 * 2**20
"""Longer lines are skipped and reported."""
MAX_SHOWN_PROBLEMS = 12
"""Problems of an import that are printed; its file of problems holds all of them."""
NUMBER_PATTERN = re.compile(r"(?<![A-Za-z]{2})(?<![A-Za-z]-)(?<!\d)\d+(?:\.\d+)?")
"""A number in a reason; UTF-8 and img1 are names."""


class Problem(NamedTuple):
    """Something in a foreign file that was not imported as it stands."""

    where: str
    """`file:line`, or the file and the entry's own id."""
    reason: str
    kind: Literal["skipped", "changed", "unasked"] = "skipped"
    """`skipped`: not imported; `changed`: imported after a change; `unasked`: valid, but not asked about."""


class TextLine(NamedTuple):
    """A line of text with its number, from 1, and how it was encoded."""

    number: int
    text: str
    encoding: Literal["utf-8", "latin-1"]


T = TypeVar("T")


class ParsedLine(NamedTuple, Generic[T]):
    """The value of a line, and where it stands."""

    where: str
    number: int
    value: T


@dataclass
class ImportResult:
    """The counts of an import."""

    count: int = 0
    problem_counts: Counter[str] = field(default_factory=Counter)
    """By kind: skipped, changed, unasked."""
    reason_counts: Counter[str] = field(default_factory=Counter)
    """By reason, with its numbers masked."""
    first_problems: list[Problem] = field(default_factory=list)
    """The first few, each with its location."""
    call_counts: Counter[str] = field(default_factory=Counter)
    """Calls of imported traces: `waiting` for execution, `unusable`, and `unknown NAME` without a counterpart."""

    def add_problem(self, problem: Problem) -> None:
        self.problem_counts[problem.kind] += 1
        if len(self.first_problems) < MAX_SHOWN_PROBLEMS:
            self.first_problems.append(problem)
        self.reason_counts[f"{problem.kind}: {NUMBER_PATTERN.sub('#', problem.reason)}"] += 1

    @property
    def exit_status(self) -> int:
        """0: everything was imported, 1: some entries were skipped, 2: nothing could be read."""
        return 2 if not self.count else 1 if self.problem_counts["skipped"] else 0


def decode_text(raw: bytes) -> tuple[str, Literal["utf-8", "latin-1"]]:
    """Text as UTF-8 without a byte-order mark, or else as Latin-1."""
    try:
        return raw.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return raw.removeprefix(codecs.BOM_UTF8).decode("latin-1"), "latin-1"


def read_lines(path: Path) -> Iterator[TextLine | Problem]:
    """The lines of a text file that are not blank, each decoded separately since encodings may be mixed."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise ConfigError(f"{path} is UTF-16; save it as UTF-8")
                if len(raw) > MAX_LINE_BYTES:
                    yield Problem(f"{path}:{number}", f"the line has over {MAX_LINE_BYTES} bytes")
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(MAX_LINE_BYTES)
                    continue
                text, encoding = decode_text(raw)
                if text.strip():
                    yield TextLine(number, text.rstrip("\r\n"), encoding)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error


def parse_lines(path: Path, parse: Callable[[TextLine], T]) -> Iterator[ParsedLine[T] | Problem]:
    """Each line through `parse`, whose ValueError becomes a problem; a line that is not UTF-8 is reported too."""
    for line in read_lines(path):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{path}:{line.number}"
        if line.encoding != "utf-8":
            yield Problem(where, "read as Latin-1: it is not UTF-8", "changed")
        try:
            yield ParsedLine(where, line.number, parse(line))
        except ValueError as error:
            yield Problem(where, str(error))


def parse_json(text: str) -> Any:
    """A JSON value; ValueError with a short reason for anything else, NaN and endless nesting included."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError as error:
        raise ValueError("not JSON (nested too deeply)") from error


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"not JSON ({constant} is not a number)")
