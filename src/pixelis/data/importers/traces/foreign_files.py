"""Files from other projects, in any encoding, read one entry after another.

Each reader yields what it could read and, in the same stream, a `Problem` for everything else.
"""

from __future__ import annotations

import codecs
import json
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.text_lines import Problem, decode_text, parse_json, read_lines

QUESTION_KEYS = {"question", "query", "user_request", "conversations", "messages", "message_list"}
"""An object with one of these keys is a record, even if all of its values are texts."""
Buffer = bytes | mmap.mmap
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
COLON = re.compile(rb"\s*:")


class JsonElement(NamedTuple):
    """The position of a member in a large JSON file, and its keys."""

    section: str
    """Key of its list or table; empty if the file is one list."""
    key: str
    """Its key in a table; empty in a list."""
    start: int
    end: int


class ForeignEntry(NamedTuple):
    """One record of a file of traces."""

    location: str
    value: Any
    encoding: str = "utf-8"


@contextmanager
def map_file(path: Path) -> Iterator[Buffer]:
    """The bytes of a file, memory-mapped."""
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


def iter_elements(content: Buffer) -> Iterator[JsonElement]:
    """Every member of the outermost list, or of the lists and tables in the outermost object, in the file's order.

    Only brackets and strings are examined, so that a broken member does not affect others. In a truncated file the last
    element runs to the end and is not JSON.
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
                yield JsonElement(section, key, start, token.end())
                start, key = -1, ""
        elif depth in (1, level):
            is_key = COLON.match(content, token.end()) is not None
            if is_key and depth == 1 and opener == b"{":
                section, key = unquote(text), ""
            elif is_key and depth == level:
                key = unquote(text)
            elif depth == level:
                yield JsonElement(section, key, token.start(), token.end())
    if depth > 0:
        yield JsonElement(section, key, start if start >= 0 else len(content), len(content))


def unquote(quoted: bytes) -> str:
    """A JSON string without its quotes."""
    try:
        return str(json.loads(decode_text(quoted)[0]))
    except ValueError:
        return decode_text(quoted)[0].strip('"')


def parse_element(content: Buffer, element: JsonElement) -> tuple[Any, str]:
    """An element's value and its encoding; ValueError if it is not JSON."""
    text, encoding = decode_text(content[element.start : element.end])
    if not text.strip():
        raise ValueError("the file breaks off here")
    return parse_json(text), encoding


def line_number(content: Buffer, start: int, block: int = 1 << 20) -> int:
    """The line number of a byte, from 1."""
    return 1 + sum(content[at : min(at + block, start)].count(b"\n") for at in range(0, start, block))


def find_under(root: Path, name: str) -> Path | None:
    """The file or folder of a foreign name below `root`, with or without its first folders; never outside `root`."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in name:
        return None
    for first in range(len(parts)):
        candidate = root.joinpath(*parts[first:])
        try:
            if candidate.exists():
                return candidate
        except OSError:  # the name is too long
            return None
    return None


def read_entries(path: Path) -> Iterator[ForeignEntry | Problem]:
    """The records of a file: JSON lines, one JSON list, one JSON object, or a transcript as plain text.

    An object that is a table of texts gives one entry per text.
    """
    with map_file(path) as content:
        head = decode_text(content[:4096])[0].lstrip()
        if head.startswith("["):
            yield from _read_list(path, content)
            return
        if not head.startswith("{"):
            text, encoding = decode_text(content[:])
            yield ForeignEntry(str(path), text, encoding)
            return
        first = content.find(b"\n")
        first_value = _try_parse(content[: first if first >= 0 else len(content)])
        if not first_value and (value := _try_parse(content[:])):
            yield from _read_object(path, *value)
            return
        if first_value and first < 0:
            yield from _read_object(path, *first_value)
            return
    yield from _read_json_lines(path)


def _try_parse(raw: bytes) -> tuple[Any, str] | None:
    text, encoding = decode_text(raw)
    try:
        return parse_json(text), encoding
    except ValueError:
        return None


def _read_json_lines(path: Path) -> Iterator[ForeignEntry | Problem]:
    for line in read_lines(path):
        if isinstance(line, Problem):
            yield line
            continue
        location = f"{path}:{line.number}"
        try:
            yield ForeignEntry(location, parse_json(line.text), line.encoding)
        except ValueError as error:
            yield Problem(location, str(error))


def _read_list(path: Path, content: Buffer) -> Iterator[ForeignEntry | Problem]:
    for element in iter_elements(content):
        location = f"{path}:{line_number(content, element.start)}"
        try:
            value, encoding = parse_element(content, element)
            yield ForeignEntry(location, value, encoding)
        except ValueError as error:
            yield Problem(location, str(error))


def _read_object(path: Path, value: Any, encoding: str) -> Iterator[ForeignEntry]:
    texts = {key: items if isinstance(items, list) else [items] for key, items in value.items()}
    if value.keys() & QUESTION_KEYS or not all(isinstance(t, str) for items in texts.values() for t in items):
        yield ForeignEntry(f"{path}:1", value, encoding)
        return
    for key, items in texts.items():
        for index, text in enumerate(items):
            yield ForeignEntry(f"{path}, {key}[{index}]", text, encoding)
