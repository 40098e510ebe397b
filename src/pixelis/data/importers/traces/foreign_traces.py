"""Importer of traces of Pixel-Reasoner, DeepEyes, TACO's CoTA and OpenThinkIMG.

The calls were not executed here. The result of such a step has the key `imported` in `output` (the original call, and
the observation in the log), but no identity, confidence or footprints. Its status is `failed` if the call can still be
executed, and `invalid` if not: it has no counterpart among our tools, or is in pixels of a picture of unknown size. See
docs/how-to/own_datasets.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pixelis.core.errors import MediaError, PixelisError
from pixelis.data.corpus.text_lines import Problem
from pixelis.data.importers.traces.foreign_calls import (
    ConvertedCall,
    ForeignCall,
    ForeignImages,
    convert_call,
    parse_reply,
)
from pixelis.data.importers.traces.foreign_files import ForeignEntry, find_under, read_entries
from pixelis.data.importers.traces.foreign_turns import (
    ForeignConversation,
    ForeignTurn,
    Source,
    UnreadableError,
    parse_conversation,
)
from pixelis.media import MediaSet, Medium, open_media
from pixelis.tools.results import Execution, ToolResult
from pixelis.trace.plan import CallPlan, PlannedStep
from pixelis.trace.recorder import TraceRecorder
from pixelis.trace.schema import Step, Trace, canonical_json

IMPORTED_KEY = "imported"


class ImportedTrace(NamedTuple):
    """A foreign trace in our schema."""

    trace: Trace
    location: str
    unknown: tuple[str, ...]
    """Names of calls without a counterpart or that cannot be parsed."""
    waiting: int
    """Calls that can be executed."""


def read_foreign(
    path: Path,
    *,
    source: Source | None = None,
    media: Path | None = None,
    beside: Path | None = None,
    created_at: datetime | None = None,
) -> Iterator[ImportedTrace | Problem]:
    """The traces of a foreign file in order, and a problem for whatever was not imported as it stands.

    `media` is the folder of the media that the traces name; media paths are relative to `beside`, where the traces will
    be written.
    """
    earlier_by_identity: dict[str, list[str]] = {}
    for entry in read_entries(path):
        if isinstance(entry, Problem):
            yield entry
            continue
        identity = hashlib.sha256(canonical_json(entry.value)).hexdigest()[:16]
        earlier = earlier_by_identity.setdefault(identity, [])
        if earlier:
            yield Problem(entry.location, f"the same record as {earlier[0]}, imported again", "changed")
            identity += f"-{len(earlier) + 1}"
        earlier.append(entry.location)
        if entry.encoding != "utf-8":
            yield Problem(entry.location, f"read as {entry.encoding}: it is not UTF-8", "changed")
        yield from _import_entry(entry, identity, source, media, beside, created_at or datetime.now(UTC))


def _import_entry(
    entry: ForeignEntry,
    identity: str,
    source: Source | None,
    folder: Path | None,
    beside: Path | None,
    created_at: datetime,
) -> Iterator[ImportedTrace | Problem]:
    try:
        conversation = parse_conversation(entry.value, source)
    except UnreadableError as error:
        yield Problem(entry.location, str(error))
        return
    query_media, missing = _open_query_media(conversation, folder)
    for reason in missing:
        yield Problem(entry.location, reason, "changed")
    foreign_steps = _convert_turns(conversation, query_media)
    for reason in foreign_steps.remarks:
        yield Problem(entry.location, reason, "changed")
    if not foreign_steps.recorder.steps and foreign_steps.answer is None:
        yield Problem(entry.location, "it has neither a call nor an answer")
        return
    try:
        trace = foreign_steps.recorder.seal(
            id=f"{conversation.source}-{identity}",
            query=conversation.question,
            origin=f"imported:{conversation.source}",
            created_at=created_at,
            answer=foreign_steps.answer,
            trace_path=beside,
        )
    except PixelisError as error:
        yield Problem(entry.location, str(error))
        return
    yield ImportedTrace(trace, entry.location, foreign_steps.unknown, foreign_steps.waiting)


def _open_query_media(
    conversation: ForeignConversation, folder: Path | None
) -> tuple[tuple[Medium | None, ...], list[str]]:
    """The media of the question as far as they are available, and problems with the others."""
    if folder is None:
        return (None,) * conversation.media_count, []
    media: list[Medium | None] = []
    missing = []
    for name in conversation.media[: conversation.media_count] or [""]:
        path = find_under(folder, name) if name else None
        try:
            media.append(open_media(path) if path else None)
        except MediaError as error:
            media.append(None)
            missing.append(str(error))
            continue
        if path is None:
            missing.append(f"{name} is not in {folder}" if name else "it names no picture")
    media += [None] * (conversation.media_count - len(media))
    return tuple(media), missing


class ForeignSteps(NamedTuple):
    """The steps of a conversation."""

    recorder: TraceRecorder
    answer: str | None
    unknown: tuple[str, ...]
    waiting: int
    remarks: list[str]


def _convert_turns(conversation: ForeignConversation, query_media: tuple[Medium | None, ...]) -> ForeignSteps:
    images = ForeignImages.start(query_media, clip=conversation.clip)
    recorder = TraceRecorder(MediaSet(tuple(m for m in query_media if m) if all(query_media) else ()))
    unknown: list[str] = []
    remarks: list[str] = []
    answer, waiting, pending_thought = None, 0, ""
    turns = conversation.turns
    for index, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        reply = parse_reply(turn.text, conversation.source)
        answer = reply.answer if reply.answer is not None else answer
        thought = "\n".join(part for part in (pending_thought, reply.thought) if part)
        observation = _following_observation(turns[index + 1 :])
        for foreign_call in reply.calls:
            for converted in convert_call(foreign_call, conversation.source, images):
                result = _unexecuted_result(converted, foreign_call, conversation.source, observation)
                recorder.add_step(converted.call, Execution(result, {}), thought)
                thought = observation = ""
                waiting += not converted.reason
                if converted.unknown:
                    unknown.append(converted.call.tool)
                if converted.clipped:
                    remarks.append(f"step {len(recorder.steps)}: its box goes beyond the picture and was clipped")
        pending_thought = "" if reply.calls else thought  # a thought without a call belongs to the next one
    answer = conversation.answer if answer is None else answer
    return ForeignSteps(recorder, answer, tuple(unknown), waiting, remarks)


def _following_observation(later: list[ForeignTurn]) -> str:
    """The observation in the log: the user turn after the call, if there is one."""
    if not later or later[0].role != "user":
        return ""
    return later[0].text.strip().removeprefix("OBSERVATION:").strip()


def _unexecuted_result(
    converted: ConvertedCall, foreign_call: ForeignCall, source: Source, observation: str
) -> ToolResult:
    error = converted.reason or f"not executed: the call comes from a log of {source}"
    arguments = dict(foreign_call.args)
    record = {"source": source, "name": foreign_call.name, "arguments": arguments, "observation": observation}
    return ToolResult(
        tool=converted.call.tool,
        status="invalid" if converted.reason else "failed",
        error=error,
        text=observation,
        output={IMPORTED_KEY: record},
    )


def is_executed(step: Step) -> bool:
    """Whether the call of a step was executed, or only read from a log."""
    return IMPORTED_KEY not in step.result.output


def to_plan(trace: Trace) -> CallPlan | None:
    """The executable calls of an imported trace, for `run_plan`; None if there are none."""
    steps = tuple(
        PlannedStep(thought=step.thought, tool=step.call.tool, args=step.call.args)
        for step in trace.steps
        if not is_executed(step) and step.result.status == "failed"
    )
    return CallPlan(question=trace.query, answer=trace.answer, steps=steps) if steps else None
