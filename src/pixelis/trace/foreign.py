"""Foreign traces in: Pixel-Reasoner, DeepEyes, TACO's CoTA and OpenThinkIMG become traces of ours.

Nobody executed the calls here. A step says so in a way that no executed step can: its result has the key `imported` in
`output` (the call as it was written, and what the log says came back), no identity, no confidence and no footprints.
The status is `failed` where the call only waits to be executed, and `invalid` where it cannot be: it has no counterpart
among our tools, or its pixels belong to a picture of unknown size. See docs/own_datasets.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pixelis import __version__
from pixelis.errors import MediaError, PixelisError
from pixelis.media import MediaSet, Medium, open_media
from pixelis.tools.results import ToolResult
from pixelis.trace.foreign_calls import Asked, Pictures, Turned, spoken, turned
from pixelis.trace.foreign_files import Entry, Problem, entries, under
from pixelis.trace.foreign_turns import Conversation, Said, Source, UnreadableError, conversation
from pixelis.trace.reopening import record_media
from pixelis.trace.running import Plan, PlannedStep
from pixelis.trace.schema import Draft, Step, Trace, canonical_json, seal_trace

IMPORTED = "imported"


class Imported(NamedTuple):
    """A foreign trace under our schema."""

    trace: Trace
    where: str
    unknown: tuple[str, ...]
    """Names of the calls that have no counterpart or cannot be read."""
    waiting: int
    """Calls that could be executed as they stand."""


def read_foreign(
    path: Path,
    *,
    source: Source | None = None,
    media: Path | None = None,
    beside: Path | None = None,
    created_at: datetime | None = None,
) -> Iterator[Imported | Problem]:
    """The traces of a foreign file, one after another, and a problem for whatever was not taken over as it stands.

    `media` is the folder in which the files that the traces name are looked for; `beside` is where the traces will be
    written, for the hints where those files lie.
    """
    seen: dict[str, list[str]] = {}
    for entry in entries(path):
        if isinstance(entry, Problem):
            yield entry
            continue
        identity = hashlib.sha256(canonical_json(entry.value)).hexdigest()[:16]
        before = seen.setdefault(identity, [])
        if before:
            yield Problem(entry.where, f"the same record as {before[0]}, taken over once more", "changed")
            identity += f"-{len(before) + 1}"
        before.append(entry.where)
        if entry.encoding != "utf-8":
            yield Problem(entry.where, f"read as {entry.encoding}: it is not UTF-8", "changed")
        yield from _taken_over(entry, identity, source, media, beside, created_at or datetime.now(UTC))


def _taken_over(
    entry: Entry, identity: str, source: Source | None, folder: Path | None, beside: Path | None, created_at: datetime
) -> Iterator[Imported | Problem]:
    try:
        talk = conversation(entry.value, source)
    except UnreadableError as error:
        yield Problem(entry.where, str(error))
        return
    given, missing = _given(talk, folder)
    for reason in missing:
        yield Problem(entry.where, reason, "changed")
    told = _steps(talk, given)
    for reason in told.remarks:
        yield Problem(entry.where, reason, "changed")
    if not told.drafts and told.answer is None:
        yield Problem(entry.where, "it holds neither a call nor an answer")
        return
    at_hand = all(given) and len(given) > 0
    try:
        trace = seal_trace(
            query=talk.question,
            media=record_media(MediaSet(tuple(m for m in given if m)), beside) if at_hand else (),
            origin=f"imported:{talk.source}",
            created_at=created_at,
            steps=told.drafts,
            answer=told.answer,
            pixelis=__version__,
            id=f"{talk.source}-{identity}",
        )
    except PixelisError as error:
        yield Problem(entry.where, str(error))
        return
    yield Imported(trace, entry.where, told.unknown, told.waiting)


def _given(talk: Conversation, folder: Path | None) -> tuple[tuple[Medium | None, ...], list[str]]:
    """The media of the question, where they are at hand, and what is missing of them."""
    if folder is None:
        return (None,) * talk.given, []
    found: list[Medium | None] = []
    missing = []
    for name in talk.media[: talk.given] or [""]:
        path = under(folder, name) if name else None
        try:
            found.append(open_media(path) if path else None)
        except MediaError as error:
            found.append(None)
            missing.append(str(error))
            continue
        if path is None:
            missing.append(f"{name} is not in {folder}" if name else "it names no picture")
    found += [None] * (talk.given - len(found))
    return tuple(found), missing


class Told(NamedTuple):
    """The steps of a conversation."""

    drafts: list[Draft]
    answer: str | None
    unknown: tuple[str, ...]
    waiting: int
    remarks: list[str]


def _steps(talk: Conversation, given: tuple[Medium | None, ...]) -> Told:
    pictures = Pictures.start(given, clip=talk.clip)
    drafts: list[Draft] = []
    unknown: list[str] = []
    remarks: list[str] = []
    answer, waiting, kept = None, 0, ""
    turns = talk.turns
    for place, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        told = spoken(turn.text, talk.source)
        answer = told.answer if told.answer is not None else answer
        thought = "\n".join(part for part in (kept, told.thought) if part)
        seen = _observation(turns[place + 1 :])
        for asked in told.calls:
            for one in turned(asked, talk.source, pictures):
                drafts.append(Draft(thought=thought, call=one.call, result=_unexecuted(one, asked, talk.source, seen)))
                thought = seen = ""
                waiting += not one.reason
                if one.unknown:
                    unknown.append(one.call.tool)
                if one.clipped:
                    remarks.append(f"step {len(drafts)}: its box goes beyond the picture and was clipped")
        kept = "" if told.calls else thought  # a thought without a call belongs to the next one
    return Told(drafts, answer if answer is not None else talk.answer, tuple(unknown), waiting, remarks)


def _observation(later: list[Said]) -> str:
    """What the log says came back: the turn after the call, unless nobody spoke in between."""
    if not later or later[0].role != "user":
        return ""
    return later[0].text.strip().removeprefix("OBSERVATION:").strip()


def _unexecuted(one: Turned, asked: Asked, source: Source, seen: str) -> ToolResult:
    error = one.reason or f"not executed: the call comes from a log of {source}"
    record = {"source": source, "name": asked.name, "arguments": dict(asked.args), "observation": seen}
    return ToolResult(
        tool=one.call.tool,
        status="invalid" if one.reason else "failed",
        error=error,
        text=seen,
        output={IMPORTED: record},
    )


def executed(step: Step) -> bool:
    """Whether a step's call ran in a toolbox of ours, or was only read in a log."""
    return IMPORTED not in step.result.output


def as_plan(trace: Trace) -> Plan | None:
    """The calls of an imported trace that can be executed, for `run_plan`; None where there is none."""
    steps = tuple(
        PlannedStep(thought=step.thought, tool=step.call.tool, args=step.call.args)
        for step in trace.steps
        if not executed(step) and step.result.status == "failed"
    )
    return Plan(question=trace.query, answer=trace.answer, steps=steps) if steps else None
