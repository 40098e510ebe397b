"""One versioned record per trajectory, with a hash chain over its steps.

Derived values (a view's name, the sum of the seconds, whether a step was decisive) are properties or functions, never
stored. The chain covers the header, every step and the answer, so that a changed byte is found and located: see
docs/reference/trace_format.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from pixelis.core.errors import TraceError
from pixelis.core.geometry import Score, Size, Value
from pixelis.tools.results import Artifact, ToolCall, ToolResult

VERSION: Literal[1] = 1
MAX_DEPTH = 64
"""Levels of lists and objects in arguments and outputs."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Origin = Annotated[str, StringConstraints(pattern=r"^(plan|(policy|teacher|imported):\S.*)$")]
TokenKind = Literal["thought", "action", "answer", "observation"]


class MediaRecord(Value):
    """A medium of the query: its identity and, as a hint, its path."""

    name: str
    """As the query names it: Image_0, Video_1."""
    kind: Literal["image", "clip"]
    sha256: Sha256
    width: int = Field(gt=0, lt=2**31)
    height: int = Field(gt=0, lt=2**31)
    frame_count: int = Field(gt=0, lt=2**31)
    duration_s: float = Field(ge=0.0)
    fps: float | None = None
    """Frames a second of a clip; a folder of frames is opened again at this rate."""
    path: str | None = None
    """Relative to the trace file if they share a folder. Only a hint: the hash decides."""

    @property
    def size(self) -> Size:
        return Size(self.width, self.height)


class TokenRecord(Value):
    """The tokens of one step or answer, with their log-probabilities and kinds."""

    ids: tuple[Annotated[int, Field(ge=0)], ...]
    logprobs: tuple[Annotated[float, Field(le=0.0)] | None, ...]
    """Nats; None for observation tokens, which are not sampled."""
    kinds: tuple[TokenKind, ...]

    @model_validator(mode="after")
    def _one_entry_for_each_token(self) -> Self:
        if not len(self.ids) == len(self.logprobs) == len(self.kinds):
            raise ValueError(
                f"{len(self.ids)} token ids, {len(self.logprobs)} log-probabilities, {len(self.kinds)} kinds: "
                "want one of each for every token"
            )
        for index, (logprob, kind) in enumerate(zip(self.logprobs, self.kinds, strict=True)):
            if (logprob is None) != (kind == "observation"):
                raise ValueError(f"token {index} ({kind}): exactly the observation tokens have no log-probability")
        return self


class StepDraft(Value):
    """A step before it is sealed: a thought, the call that followed it, and what came back."""

    thought: str = ""
    call: ToolCall
    result: ToolResult
    tokens: TokenRecord | None = None
    first_seconds: float | None = Field(default=None, ge=0.0)
    """Where the result came from the cache: seconds of the run that made it. Absent from the record otherwise."""

    @model_serializer(mode="wrap")
    def _omit_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        record: dict[str, Any] = serialize(self)
        if self.first_seconds is None:
            record.pop("first_seconds", None)
        return record


class Step(StepDraft):
    """A sealed step."""

    chain: Sha256
    """SHA-256 over the link before and everything else in this step."""


class Trace(Value):
    """A whole trajectory: the question, its media, the steps and the answer."""

    version: Literal[1] = VERSION
    id: str = Field(min_length=1)
    query: str = ""
    media: tuple[MediaRecord, ...]
    origin: Origin
    """Who chose the calls: `plan` (a person wrote them), `policy:NAME`, `teacher:NAME`, `imported:SOURCE`."""
    created_at: AwareDatetime
    pixelis: str
    """The version that wrote the record."""
    steps: tuple[Step, ...] = ()
    answer: str | None = None
    answer_thought: str = ""
    """The rationale before the answer."""
    answer_confidence: Score | None = None
    answer_tokens: TokenRecord | None = None
    seal: Sha256
    """SHA-256 over the last link and the answer."""

    @property
    def views(self) -> tuple[str | None, ...]:
        """For each step the name of the view that it made, if any: View_0, View_1 … by position."""
        names: list[str | None] = []
        for step in self.steps:
            view_count = sum(name is not None for name in names)
            names.append(f"View_{view_count}" if step.result.view is not None else None)
        return tuple(names)

    @property
    def artifacts(self) -> tuple[tuple[int, Artifact], ...]:
        """Every artifact with the number of its step, from 1."""
        return tuple((k, a) for k, step in enumerate(self.steps, start=1) for a in step.result.artifacts)

    @property
    def seconds(self) -> float:
        return sum(step.result.seconds for step in self.steps)


def seal_trace(
    *,
    query: str,
    media: Sequence[MediaRecord],
    origin: str,
    created_at: datetime,
    steps: Sequence[StepDraft],
    answer: str | None = None,
    answer_thought: str = "",
    answer_confidence: float | None = None,
    answer_tokens: TokenRecord | None = None,
    pixelis: str,
    id: str | None = None,
) -> Trace:
    """The record with its chain and seal; the default id is a hash of the header."""
    for draft in steps:  # pydantic would silently write NaN as null
        canonical_json([draft.call.args, draft.result.output])
        require_shallow([draft.call.args, draft.result.output])
    head = {"query": query, "media": tuple(media), "origin": origin, "created_at": created_at, "pixelis": pixelis}
    # through the model once, so that the hash covers what it dumps (a datetime has many spellings)
    unsealed = Trace.model_validate(head | {"id": id or "unnamed", "seal": "0" * 64})
    record = unsealed.model_dump(mode="json")
    record["id"] = id or hashlib.sha256(canonical_json({**record, "id": ""})).hexdigest()[:16]
    record["steps"] = [draft.model_dump(mode="json") for draft in steps]
    record |= {"answer": answer, "answer_thought": answer_thought, "answer_confidence": answer_confidence}
    record["answer_tokens"] = answer_tokens.model_dump(mode="json") if answer_tokens else None
    chains, seal = compute_chain(record)
    for step, chain in zip(record["steps"], chains, strict=True):
        step["chain"] = chain
    return Trace.model_validate(record | {"seal": seal})


def canonical_json(value: Any) -> bytes:
    """The form that is hashed and stored: sorted keys, no spaces, ASCII; TraceError for values that JSON lacks."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceError(f"a trace holds JSON only: {error}") from error


def require_shallow(value: Any) -> None:
    """TraceError for lists and objects that are nested too deeply for recursive readers."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [part for parts in inner for part in parts]
        if not level:
            return
    raise TraceError(f"arguments or outputs are nested over {MAX_DEPTH} levels deep")


END_FIELDS = ("steps", "answer", "answer_thought", "answer_confidence", "answer_tokens", "seal")


def compute_chain(record: Mapping[str, Any]) -> tuple[list[str], str]:
    """The chain and seal of a record as JSON."""
    link = hashlib.sha256(canonical_json({k: v for k, v in record.items() if k not in END_FIELDS})).hexdigest()
    chains = []
    for step in record["steps"]:
        body = {k: v for k, v in step.items() if k != "chain"}
        link = hashlib.sha256(link.encode() + canonical_json(body)).hexdigest()
        chains.append(link)
    end = {k: record.get(k) for k in END_FIELDS if k not in ("steps", "seal")}
    if not end["answer_thought"]:
        del end["answer_thought"]  # older records, which lack it, keep their seal
    return chains, hashlib.sha256(link.encode() + canonical_json(end)).hexdigest()


def verify(trace: Trace) -> None:
    """TraceError, with the place, unless every link and the seal match the content."""
    verify_record(trace.model_dump(mode="json"))


def verify_record(record: Mapping[str, Any]) -> None:
    """`verify` for a record as JSON, before it is validated."""
    steps = record.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise TraceError("the record has no list of steps")
    for step in steps:
        call, result = step.get("call"), step.get("result")
        require_shallow([call.get("args") if isinstance(call, dict) else call])
        require_shallow([result.get("output") if isinstance(result, dict) else result])
    chains, seal = compute_chain(record)
    for number, (step, chain) in enumerate(zip(steps, chains, strict=True), start=1):
        if step.get("chain") != chain:
            what = f"step {number}"
            if number == 1:
                what += ", or the header before it (id, query, media, origin, time),"
            raise TraceError(f"chain broken at step {number}: {what} was changed")
    if record.get("seal") != seal:
        raise TraceError("seal broken: the answer or the header was changed, or steps were removed")
