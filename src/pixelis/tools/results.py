"""Calls and results: typed records that traces keep and policies read.

A failed call is data: it has a status and a sentence, and the run continues.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from pixelis.core.geometry import Footprint, Score, Value
from pixelis.media.query import ViewRecipe

Status = Literal["ok", "failed", "invalid", "disabled", "timeout", "crashed"]
"""`failed`: the tool ran; `invalid`: wrong arguments; `disabled`: removed (the paper's ablation)."""


class ToolCall(Value):
    """One action: a tool by name with its arguments as the caller wrote them."""

    tool: str
    args: dict[str, Any] = Field(default_factory=dict)


class ToolIdentity(Value):
    """The code and weights that produced a result."""

    tool: str
    version: str
    backend: str
    weights: str = ""
    """SHA-256 over the weight files in use; empty for a backend without weights."""


class Artifact(Value):
    """A file that a call produced, identified by its content."""

    name: str
    media_type: str
    sha256: str
    size_bytes: int


class ToolResult(Value):
    """The result of one call. Everything but `seconds` is the same when the call is repeated."""

    tool: str
    status: Status
    error: str = ""
    text: str = ""
    """The policy reads this: short, structured, coordinates with two decimals."""
    output: dict[str, Any] = Field(default_factory=dict)
    """The tool's own typed output as JSON; its schema is the tool's `Output`."""
    footprints: tuple[Footprint, ...] = ()
    """In the coordinates of the query's own media, also for a call on a view."""
    confidence: Score | None = None
    artifacts: tuple[Artifact, ...] = ()
    view: ViewRecipe | None = None
    """A new picture that later calls may name."""
    identity: ToolIdentity | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @classmethod
    def failed(cls, tool: str, error: str, status: Status = "failed", **fields: Any) -> ToolResult:
        return cls(tool=tool, status=status, error=error, text=f"{tool} {status}: {error}", **fields)


class Execution(NamedTuple):
    """A result with the bytes of its artifacts, by their SHA-256."""

    result: ToolResult
    blobs: Mapping[str, bytes]
    cached: bool = False
    first_seconds: float | None = None
    """Of a cached result: the time of the run that produced it; `result.seconds` is the time of the look-up."""
    repeatable: bool = True
    """Whether the same call gives this again. A failure for lack of time, memory, a file or weights may not."""


class Blob(NamedTuple):
    """An artifact with its bytes."""

    name: str
    media_type: str
    content: bytes

    def artifact(self) -> Artifact:
        sha256 = hashlib.sha256(self.content).hexdigest()
        return Artifact(name=self.name, media_type=self.media_type, sha256=sha256, size_bytes=len(self.content))


def pack(execution: Execution) -> bytes:
    """An execution as bytes: JSON, then the artifacts in order. `unpack` is the inverse."""
    head = execution.result.model_dump_json().encode()
    contents = [execution.blobs[artifact.sha256] for artifact in execution.result.artifacts]
    return b"".join([len(head).to_bytes(8, "big"), head, *contents])


def unpack(packed: bytes) -> Execution:
    """Raises ValueError on bytes that `pack` did not write."""
    length = int.from_bytes(packed[:8], "big")
    result = ToolResult.model_validate_json(packed[8 : 8 + length])
    blobs, offset = {}, 8 + length
    for artifact in result.artifacts:
        content = packed[offset : offset + artifact.size_bytes]
        if hashlib.sha256(content).hexdigest() != artifact.sha256:
            raise ValueError(f"artifact {artifact.name} does not have the hash that its record says")
        blobs[artifact.sha256] = content
        offset += artifact.size_bytes
    return Execution(result, blobs)
