"""Files that others wrote: whatever their encoding, one entry after another, and nothing lost without a word.

Whoever reads such a file yields what it could take over and, in the same stream, a `Problem` for what it could not.
"""

from __future__ import annotations

import codecs
import json
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from pixelis.errors import ConfigError

LINE_BYTES = 64 * 2**20
"""A longer line is passed over and reported: no entry is that long."""
QUESTION_KEYS = {"question", "query", "user_request", "conversations", "messages", "message_list"}
"""An object with one of these is a record, even where all of its values are texts."""
Buffer = bytes | mmap.mmap
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
COLON = re.compile(rb"\s*:")


class Problem(NamedTuple):
    """Something in a foreign file that was not taken over as it stands."""

    where: str
    """`file:line`, or the file and the entry's own id."""
    reason: str
    kind: Literal["skipped", "changed", "unasked"] = "skipped"
    """`skipped`: the entry is not taken over; `changed`: it is, after a change; `unasked`: it is sound, and no question
    is put about it."""


class Line(NamedTuple):
    """A line of text with its number, from 1, and how it was encoded."""

    number: int
    text: str
    encoding: Literal["utf-8", "latin-1"]


class Element(NamedTuple):
    """Where a member of a large JSON file lies, and under which keys."""

    section: str
    """The key of the list or table that it belongs to; empty where the file is one list."""
    key: str
    """Its own key in a table; empty in a list."""
    start: int
    end: int


class Entry(NamedTuple):
    """One record of a file of traces."""

    where: str
    value: Any
    encoding: str = "utf-8"


def decoded(raw: bytes) -> tuple[str, Literal["utf-8", "latin-1"]]:
    """Text as UTF-8 (a byte-order mark is taken off), or as Latin-1 where it is none."""
    try:
        return raw.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return raw.removeprefix(codecs.BOM_UTF8).decode("latin-1"), "latin-1"


def lines(path: Path) -> Iterator[Line | Problem]:
    """The lines of a text file that are not blank, each decoded by itself: encodings may be mixed."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LINE_BYTES + 1):
                number += 1
                if number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise ConfigError(f"{path} is UTF-16; save it as UTF-8")
                if len(raw) > LINE_BYTES:
                    yield Problem(f"{path}:{number}", f"the line has over {LINE_BYTES} bytes")
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(LINE_BYTES)
                    continue
                text, encoding = decoded(raw)
                if text.strip():
                    yield Line(number, text.rstrip("\r\n"), encoding)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error


@contextmanager
def mapped(path: Path) -> Iterator[Buffer]:
    """The bytes of a file without reading them: a gigabyte of annotations takes no memory."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ConfigError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                    raise ConfigError(f"{path} is UTF-16; save it as UTF-8")
                yield content
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error


def elements(content: Buffer) -> Iterator[Element]:
    """Every member of the outermost list, or of the lists and tables in the outermost object, in the file's order.

    Only brackets and strings are looked at, so that one broken member spoils no other. Where the file breaks off, the
    last element runs to its end and is no JSON.
    """
    depth, level, opener = 0, 0, b""
    section = key = ""
    start = -1
    for token in TOKEN.finditer(content):
        text = token.group()
        if text in (b"{", b"["):
            if depth == 0:
                level, opener = (1, text) if text == b"[" else (2, text)
            elif depth == level:
                start = token.start()
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == level and start >= 0:
                yield Element(section, key, start, token.end())
                start, key = -1, ""
        elif depth in (1, level):
            named = COLON.match(content, token.end()) is not None
            if named and depth == 1 and opener == b"{":
                section, key = plain(text), ""
            elif named and depth == level:
                key = plain(text)
            elif depth == level:
                yield Element(section, key, token.start(), token.end())
    if depth > 0:
        yield Element(section, key, start if start >= 0 else len(content), len(content))


def plain(quoted: bytes) -> str:
    """A JSON string without its quotes."""
    try:
        return str(json.loads(decoded(quoted)[0]))
    except ValueError:
        return decoded(quoted)[0].strip('"')


def member(content: Buffer, element: Element) -> tuple[Any, str]:
    """An element's value and its encoding; ValueError with a reason where it is no JSON."""
    text, encoding = decoded(content[element.start : element.end])
    if not text.strip():
        raise ValueError("the file breaks off here")
    return parsed(text), encoding


def parsed(text: str) -> Any:
    """A JSON value; ValueError, in a few words, for anything else: NaN and nesting without end too."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError as error:
        raise ValueError("not JSON (nested too deeply)") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"not JSON ({constant} is not a number)")


def line_of(content: Buffer, start: int, block: int = 1 << 20) -> int:
    """The line of a byte, from 1."""
    return 1 + sum(content[at : min(at + block, start)].count(b"\n") for at in range(0, start, block))


def under(root: Path, name: str) -> Path | None:
    """The file or folder that a foreign name means below `root`: as given, or without its first folders.

    No name leads out of `root`.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in name:
        return None
    for first in range(len(parts)):
        candidate = root.joinpath(*parts[first:])
        try:
            if candidate.exists():
                return candidate
        except OSError:  # a name that no file can have: too long
            return None
    return None


def entries(path: Path) -> Iterator[Entry | Problem]:
    """The records of a file: JSON lines, one JSON list, one JSON object, or a transcript as plain text.

    An object that is no record but a table of texts gives one entry for each text.
    """
    with mapped(path) as content:
        head = decoded(content[:4096])[0].lstrip()
        if head.startswith("["):
            yield from _listed(path, content)
            return
        if not head.startswith("{"):
            text, encoding = decoded(content[:])
            yield Entry(str(path), text, encoding)
            return
        first = content.find(b"\n")
        alone = _readable(content[: first if first >= 0 else len(content)])
        if not alone and (value := _readable(content[:])):
            yield from _tabled(path, *value)
            return
        if alone and first < 0:
            yield from _tabled(path, *alone)
            return
    yield from _line_by_line(path)


def _readable(raw: bytes) -> tuple[Any, str] | None:
    text, encoding = decoded(raw)
    try:
        return parsed(text), encoding
    except ValueError:
        return None


def _line_by_line(path: Path) -> Iterator[Entry | Problem]:
    for line in lines(path):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{path}:{line.number}"
        try:
            yield Entry(where, parsed(line.text), line.encoding)
        except ValueError as error:
            yield Problem(where, str(error))


def _listed(path: Path, content: Buffer) -> Iterator[Entry | Problem]:
    for element in elements(content):
        where = f"{path}:{line_of(content, element.start)}"
        try:
            value, encoding = member(content, element)
            yield Entry(where, value, encoding)
        except ValueError as error:
            yield Problem(where, str(error))


def _tabled(path: Path, value: Any, encoding: str) -> Iterator[Entry]:
    texts = {key: found if isinstance(found, list) else [found] for key, found in value.items()}
    if value.keys() & QUESTION_KEYS or not all(isinstance(t, str) for found in texts.values() for t in found):
        yield Entry(f"{path}:1", value, encoding)
        return
    for key, found in texts.items():
        for place, text in enumerate(found):
            yield Entry(f"{path}, {key}[{place}]", text, encoding)
