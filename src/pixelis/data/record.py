"""One entry of the corpus: an item, the trace that a teacher made for it, and what acceptance said.

A record is one canonical line, so that equal content has equal bytes. Its row is what can be known without reading
the line: enough to choose by split, family, difficulty and acceptance, and to draw a curriculum.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from pixelis.errors import TraceError
from pixelis.geometry import Score, Value
from pixelis.trace.codec import LINE_BYTES, refuse, without_doubles
from pixelis.trace.schema import Trace, canonical_json, verify, verify_record
from pixelis.world.item import Family, Item, ToolName

VERSION: Literal[1] = 1
Split = Literal["train", "dev", "dev-cal", "test"]
Span = Literal["still", "short", "medium", "long"]
"""Length of the item's longest clip: none, under 6 s, under 15 s, longer."""
SPLITS: tuple[Split, ...] = ("train", "dev", "dev-cal", "test")
"""`dev-cal` is kept for calibration alone: temperature, conformal level, thresholds."""


class Record(Value):
    """What a shard holds for one planned item."""

    version: Literal[1] = VERSION
    split: Split
    ordinal: int = Field(ge=0)
    """Place within the split."""
    source: str = ""
    """Where an imported item was read, `items.jsonl:17`; empty, and not written, for an item of the world."""
    item: Item
    trace: Trace
    accepted: bool
    acceptance: dict[str, Any] = Field(default_factory=dict)
    """Scores, step checks and reasons: a `pixelis.data.acceptance.Judgement` without its verdict."""
    teaching: dict[str, Any] = Field(default_factory=dict)
    """What else a teacher says about its work: outcome, slips, cited steps."""

    @property
    def row(self) -> Row:
        """The entry of the shard's index."""
        item = self.item
        return Row(
            id=item.id,
            split=self.split,
            ordinal=self.ordinal,
            family=item.family,
            template=item.template,
            difficulty=item.difficulty,
            accepted=self.accepted,
            steps=len(self.trace.steps),
            needs=item.needs,
            span=span_of(item),
            hardness=hardness(self),
            media=tuple(medium.sha256 for medium in item.media),
        )


class Row(Value):
    """A record without its content."""

    id: str
    split: Split
    ordinal: int
    family: Family
    template: str
    difficulty: int
    accepted: bool
    steps: int
    needs: tuple[ToolName, ...]
    """The tools that the item cannot do without."""
    span: Span
    hardness: Score
    """A first guess for the curriculum, before SFT has predicted errors."""
    media: tuple[str, ...]
    """SHA-256 of each medium: what de-duplication and the evaluation mask compare."""


def span_of(item: Item) -> Span:
    """The stratum of time that an item belongs to."""
    seconds = max((medium.duration_s for medium in item.media if medium.frames > 1), default=0.0)
    if seconds == 0.0:
        return "still"
    return "short" if seconds < 6.0 else "medium" if seconds < 15.0 else "long"


def hardness(record: Record) -> float:
    """How hard an item looks before anything was trained, 0 to 1: half its difficulty, the rest its tools and detours.

    The paper schedules by an SFT predictor (sec:data), which does not exist yet when the corpus is built: SFT replaces
    this with its own predicted error.
    """
    steps = record.trace.steps
    stumbled = sum(not step.result.ok for step in steps) / len(steps) if steps else 0.0
    dial = (record.item.difficulty - 1) / 4
    tools = min(len(record.item.needs), 3) / 3
    return round(0.5 * dial + 0.3 * tools + 0.2 * stumbled, 6)


def encode(record: Record) -> bytes:
    """The line of a record; its trace is checked once more before it leaves."""
    verify(record.trace)
    line = canonical_json(record.model_dump(mode="json", exclude=None if record.source else {"source"})) + b"\n"
    if len(line) > LINE_BYTES:
        raise TraceError(f"record {record.item.id} takes {len(line)} bytes; a line holds at most {LINE_BYTES}")
    return line


def decode(line: bytes) -> Record:
    """A record from its line; TraceError where a byte of it is not what was written."""
    try:
        content = json.loads(line.decode("utf-8"), object_pairs_hook=without_doubles, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).splitlines()[0]
        raise TraceError(f"not JSON ({reason})") from error
    if not isinstance(content, dict) or not isinstance(content.get("trace"), dict):
        raise TraceError("no record: it has no trace")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise TraceError(f"record version {version}, this build reads up to {VERSION}; update pixelis")
    verify_record(content["trace"])
    if canonical_json(content) != line.rstrip(b"\n"):
        raise TraceError("the line is not spelled as it was written")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"no record: {where}: {first['msg']}") from error


def pack(line: bytes, blobs: dict[str, bytes]) -> bytes:
    """A finished unit of work as one string of bytes, whole or recognisably not: a digest, a head, the line, blobs."""
    names = sorted(blobs)
    head = json.dumps({"line": len(line), "blobs": [[name, len(blobs[name])] for name in names]}).encode()
    body = b"".join([len(head).to_bytes(8, "big"), head, line, *(blobs[name] for name in names)])
    return hashlib.sha256(body).digest() + body


def unpack(packed: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The line and its blobs; ValueError where a byte is missing or wrong."""
    digest, body = packed[:32], packed[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the unit is not what was written")
    length = int.from_bytes(body[:8], "big")
    head = json.loads(body[8 : 8 + length])
    at = 8 + length + head["line"]
    blobs = {}
    for name, size in head["blobs"]:
        blobs[name] = body[at : at + size]
        at += size
    return body[8 + length : 8 + length + head["line"]], blobs
