"""One entry of the corpus: an item, the trace that a teacher made for it, and what acceptance said.

A record is one canonical line, so that equal content has equal bytes. Its row is what can be known without reading
the line: enough to choose by split, family, difficulty and acceptance, and to draw a curriculum.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from pixelis.core.errors import TraceError
from pixelis.core.geometry import Score, Value
from pixelis.items import Family, Item, ToolName
from pixelis.trace.codec import MAX_LINE_BYTES, reject_constant, reject_duplicate_keys
from pixelis.trace.schema import Trace, canonical_json, verify, verify_record

RECORD_VERSION: Literal[1] = 1
Split = Literal["train", "dev", "dev-cal", "test"]
DurationStratum = Literal["still", "short", "medium", "long"]
"""Length of the item's longest clip: none, under 6 s, under 15 s, longer."""
SPLITS: tuple[Split, ...] = ("train", "dev", "dev-cal", "test")
"""`dev-cal` is kept for calibration alone: temperature, conformal level, thresholds."""


class Record(Value):
    """What a shard holds for one planned item."""

    version: Literal[1] = RECORD_VERSION
    split: Split
    ordinal: int = Field(ge=0)
    """Place within the split."""
    source: str = ""
    """Where an imported item was read, `items.jsonl:17`; empty, and not written, for an item of the world."""
    item: Item
    trace: Trace
    accepted: bool
    acceptance: dict[str, Any] = Field(default_factory=dict)
    """Scores, step checks and reasons: a `pixelis.data.corpus.acceptance_checks.Judgement` without its verdict."""
    teaching: dict[str, Any] = Field(default_factory=dict)
    """What else a teacher says about its work: outcome, slips, cited steps."""

    @property
    def row(self) -> CorpusRow:
        """The entry of the shard's index."""
        item = self.item
        return CorpusRow(
            id=item.id,
            split=self.split,
            ordinal=self.ordinal,
            family=item.family,
            template=item.template,
            difficulty=item.difficulty,
            accepted=self.accepted,
            steps=len(self.trace.steps),
            needs=item.required_tools,
            span=duration_stratum(item),
            hardness=estimate_hardness(self),
            media=tuple(medium.sha256 for medium in item.media),
        )


class CorpusRow(Value):
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
    span: DurationStratum
    hardness: Score
    """A first guess for the curriculum, before SFT has predicted errors."""
    media: tuple[str, ...]
    """SHA-256 of each medium: what de-duplication and the evaluation mask compare."""


def duration_stratum(item: Item) -> DurationStratum:
    """The stratum of time that an item belongs to."""
    seconds = max((medium.duration_s for medium in item.media if medium.frames > 1), default=0.0)
    if seconds == 0.0:
        return "still"
    return "short" if seconds < 6.0 else "medium" if seconds < 15.0 else "long"


def estimate_hardness(record: Record) -> float:
    """How hard an item looks before anything was trained, 0 to 1: half its difficulty, the rest its tools and detours.

    The paper schedules by an SFT predictor (sec:data), which does not exist yet when the corpus is built: SFT replaces
    this with its own predicted error.
    """
    steps = record.trace.steps
    failed_share = sum(not step.result.ok for step in steps) / len(steps) if steps else 0.0
    difficulty = (record.item.difficulty - 1) / 4
    tools = min(len(record.item.required_tools), 3) / 3
    return round(0.5 * difficulty + 0.3 * tools + 0.2 * failed_share, 6)


def encode(record: Record) -> bytes:
    """The line of a record; its trace is checked once more before it leaves."""
    verify(record.trace)
    line = canonical_json(record.model_dump(mode="json", exclude=None if record.source else {"source"})) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise TraceError(f"record {record.item.id} takes {len(line)} bytes; a line holds at most {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Record:
    """A record from its line; TraceError where a byte of it is not what was written."""
    try:
        content = json.loads(
            line.decode("utf-8"), object_pairs_hook=reject_duplicate_keys, parse_constant=reject_constant
        )
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).splitlines()[0]
        raise TraceError(f"not JSON ({reason})") from error
    if not isinstance(content, dict) or not isinstance(content.get("trace"), dict):
        raise TraceError("no record: it has no trace")
    version = content.get("version")
    if isinstance(version, int) and version > RECORD_VERSION:
        raise TraceError(f"record version {version}, this build reads up to {RECORD_VERSION}; update pixelis")
    verify_record(content["trace"])
    if canonical_json(content) != line.rstrip(b"\n"):
        raise TraceError("the line is not spelled as it was written")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first_error["loc"])
        raise TraceError(f"no record: {where}: {first_error['msg']}") from error


def pack(line: bytes, blobs: dict[str, bytes]) -> bytes:
    """A finished unit of work as one string of bytes, whole or recognisably not: a digest, a head, the line, blobs."""
    names = sorted(blobs)
    header = json.dumps({"line": len(line), "blobs": [[name, len(blobs[name])] for name in names]}).encode()
    body = b"".join([len(header).to_bytes(8, "big"), header, line, *(blobs[name] for name in names)])
    return hashlib.sha256(body).digest() + body


def unpack(content: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The line and its blobs; ValueError where a byte is missing or wrong."""
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the unit is not what was written")
    length = int.from_bytes(body[:8], "big")
    header = json.loads(body[8 : 8 + length])
    offset = 8 + length + header["line"]
    blobs = {}
    for name, size in header["blobs"]:
        blobs[name] = body[offset : offset + size]
        offset += size
    return body[8 + length : 8 + length + header["line"]], blobs
