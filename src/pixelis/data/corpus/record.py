"""One entry of the corpus: an item, the trace of its demonstration, and the acceptance verdict.

A record is one canonical line, so that equal content has equal bytes. Its row in the index is enough to select by
split, family, difficulty and acceptance, and to sample a curriculum, without reading the line.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from pixelis.core.errors import TraceError, validation_problem
from pixelis.core.geometry import Score, Value
from pixelis.items import Family, Item, ToolName
from pixelis.trace.codec import MAX_LINE_BYTES, parse
from pixelis.trace.schema import Trace, canonical_json, verify, verify_record

RECORD_VERSION: Literal[1] = 1
Split = Literal["train", "dev", "dev-cal", "test"]
DurationStratum = Literal["still", "short", "medium", "long"]
"""Length of an item's longest clip: none, under 6 s, under 15 s, longer."""
SPLITS: tuple[Split, ...] = ("train", "dev", "dev-cal", "test")
"""`dev-cal` is reserved for calibration: temperature, conformal level, thresholds."""


class Record(Value):
    """The content of a shard for one planned item."""

    version: Literal[1] = RECORD_VERSION
    split: Split
    ordinal: int = Field(ge=0)
    """Position within the split."""
    source: str = ""
    """Origin of an imported item, `items.jsonl:17`; empty, and not written, for a generated item."""
    item: Item
    trace: Trace
    accepted: bool
    acceptance: dict[str, Any] = Field(default_factory=dict)
    """Scores, step checks and reasons: an `acceptance_checks.Judgement` without `accepted`."""
    teaching: dict[str, Any] = Field(default_factory=dict)
    """Other facts from the teacher: outcome, parse errors, cited steps."""

    @property
    def row(self) -> CorpusRow:
        """The record's entry in the index of its shard."""
        item = self.item
        return CorpusRow(
            **item.model_dump(include={"id", "family", "template", "difficulty"}),
            **self.model_dump(include={"split", "ordinal", "accepted"}),
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
    """The tools that the item requires."""
    span: DurationStratum
    hardness: Score
    """A first estimate for the curriculum, until SFT predicts errors."""
    media: tuple[str, ...]
    """SHA-256 of each medium, for de-duplication and the evaluation mask."""


def duration_stratum(item: Item) -> DurationStratum:
    """The duration stratum of an item."""
    seconds = max((medium.duration_s for medium in item.media if medium.frames > 1), default=0.0)
    if seconds == 0.0:
        return "still"
    return "short" if seconds < 6.0 else "medium" if seconds < 15.0 else "long"


def estimate_hardness(record: Record) -> float:
    """Estimated hardness before training, 0 to 1, from difficulty, required tools and failed steps.

    The paper schedules by an SFT predictor (sec:data), which does not exist when the corpus is built; SFT replaces this
    estimate with its predicted error.
    """
    steps = record.trace.steps
    failed_share = sum(not step.result.ok for step in steps) / len(steps) if steps else 0.0
    difficulty = (record.item.difficulty - 1) / 4
    tools = min(len(record.item.required_tools), 3) / 3
    return round(0.5 * difficulty + 0.3 * tools + 0.2 * failed_share, 6)


def encode(record: Record) -> bytes:
    """The line of a record, whose trace is verified first."""
    verify(record.trace)
    line = canonical_json(record.model_dump(mode="json", exclude=None if record.source else {"source"})) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise TraceError(f"record {record.item.id} takes {len(line)} bytes; a line holds at most {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Record:
    """A record from its line; TraceError if a byte differs from what was written."""
    content = parse(line)
    if not isinstance(content.get("trace"), dict):
        raise TraceError("not a record: it has no trace")
    version = content.get("version")
    if isinstance(version, int) and version > RECORD_VERSION:
        raise TraceError(f"record version {version}, this build reads up to {RECORD_VERSION}; update pixelis")
    verify_record(content["trace"])
    if canonical_json(content) != line.rstrip(b"\n"):
        raise TraceError("the line is not formatted as it was written")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        raise TraceError(f"not a record: {validation_problem(error)}") from error


def pack(line: bytes, blobs: dict[str, bytes]) -> bytes:
    """A finished unit as bytes: a digest, a header, the line, blobs."""
    names = sorted(blobs)
    header = json.dumps({"line": len(line), "blobs": [[name, len(blobs[name])] for name in names]}).encode()
    body = b"".join([len(header).to_bytes(8, "big"), header, line, *(blobs[name] for name in names)])
    return hashlib.sha256(body).digest() + body


def unpack(content: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The line and the blobs of a unit; ValueError if a byte is missing or wrong."""
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the unit is damaged")
    length = int.from_bytes(body[:8], "big")
    header = json.loads(body[8 : 8 + length])
    offset = 8 + length + header["line"]
    blobs = {}
    for name, size in header["blobs"]:
        blobs[name] = body[offset : offset + size]
        offset += size
    return body[8 + length : 8 + length + header["line"]], blobs
