"""A given list of calls, executed into a trace. Nobody chose the calls, and the record says so: origin `plan`.

A plan's arguments may refer to earlier results (`"$1.box"`, `"$2.view"`: see `references`); they are resolved before
the call runs, so that the trace holds what was really asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import Field, ValidationError

from pixelis import __version__
from pixelis.errors import TraceError
from pixelis.geometry import Score, Value
from pixelis.media import MediaSet
from pixelis.tools.base import canonical_name
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.trace.references import DeadReferenceError, resolve
from pixelis.trace.reopening import record_media
from pixelis.trace.schema import Draft, Trace, canonical_json, require_shallow, seal_trace

PLAN_BYTES = 16 * 2**20


class RunsCalls(Protocol):
    """What a trace needs of a toolbox."""

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        """The result of one call; a failure is a result, nothing is raised."""


class OffersTools(RunsCalls, Protocol):
    """A toolbox that can say what it offers."""

    def schemas(self) -> list[dict[str, Any]]:
        """Every tool in the OpenAI function format."""


class PlannedStep(Value):
    """One call as a person writes it down."""

    thought: str = ""
    tool: str
    args: dict[str, Any] = Field(default_factory=dict)


class Plan(Value):
    """Calls to execute in order, and the question and answer that go with them, if any."""

    question: str = ""
    answer: str | None = None
    answer_confidence: Score | None = None
    steps: tuple[PlannedStep, ...] = Field(min_length=1, max_length=1000)


class Recording(NamedTuple):
    """A trace with the bytes of its artifacts, by their SHA-256."""

    trace: Trace
    blobs: Mapping[str, bytes]


def read_plan(path: Path) -> Plan:
    """A plan from its JSON file; TraceError, in one line, for whatever is not one."""
    try:
        if path.stat().st_size > PLAN_BYTES:
            raise TraceError(f"{path} is no plan: it has over {PLAN_BYTES} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from error
    try:
        plan = Plan.model_validate(json.loads(content))
        canonical_json([step.args for step in plan.steps])
        require_shallow([step.args for step in plan.steps])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{path} is no plan: {where or 'the whole'}: {first['msg']}") from error
    except (ValueError, RecursionError, TraceError) as error:
        raise TraceError(f"{path} is no plan: {str(error).splitlines()[0]}") from error
    return plan


def run_plan(
    plan: Plan, media: MediaSet, toolbox: RunsCalls, *, beside: Path | None = None, created_at: datetime | None = None
) -> Recording:
    """Execute every call of a plan. A step that fails stops nothing; one that refers to it is recorded as invalid.

    `beside` is where the trace will be written, for the hints where the media lie.
    """
    given = record_media(media, beside)
    drafts: list[Draft] = []
    blobs: dict[str, bytes] = {}
    for planned in plan.steps:
        call, execution = run_planned(planned, drafts, media, toolbox)
        drafts.append(Draft(thought=planned.thought, call=call, result=execution.result))
        blobs.update(execution.blobs)
        if execution.result.view is not None:
            media = media.with_view(execution.result.view)
    trace = seal_trace(
        query=plan.question,
        media=given,
        origin="plan",
        created_at=created_at or datetime.now(UTC),
        steps=drafts,
        answer=plan.answer,
        answer_confidence=plan.answer_confidence,
        pixelis=__version__,
    )
    return Recording(trace, blobs)


def run_planned(
    planned: PlannedStep, before: Sequence[Draft], media: MediaSet, toolbox: RunsCalls
) -> tuple[ToolCall, Execution]:
    """One step of a plan: its call with concrete arguments, and what came back."""
    name = canonical_name(planned.tool)
    try:
        call = ToolCall(tool=name, args=resolve(planned.args, [draft.result for draft in before], media))
    except DeadReferenceError as error:
        call = ToolCall(tool=name, args=planned.args)
        return call, Execution(ToolResult.failed(name, str(error), "invalid"), {})
    return call, toolbox.run(call, media)
