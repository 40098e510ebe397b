"""Execute a written list of calls into a trace, whose origin is `plan`: no model chose the calls.

Arguments may refer to earlier results (`"$1.box"`, `"$2.view"`: see `plan_references`). They are resolved before the
call runs, so that the trace holds the concrete arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import Field, ValidationError

from pixelis.core.errors import TraceError, validation_problem
from pixelis.core.geometry import Score, Value
from pixelis.media import MediaSet
from pixelis.tools.base import canonical_name
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.trace.plan_references import DeadReferenceError, resolve
from pixelis.trace.recorder import TraceRecorder
from pixelis.trace.schema import Trace, canonical_json, require_shallow

MAX_PLAN_BYTES = 16 * 2**20


class ToolRunner(Protocol):
    """Whatever runs calls: a toolbox."""

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        """Run one call. A failure is a result; nothing is raised."""


class ToolProvider(ToolRunner, Protocol):
    """A toolbox that lists its tools."""

    def schemas(self) -> list[dict[str, Any]]:
        """Every tool in the OpenAI function format."""


class PlannedStep(Value):
    """One call of a plan."""

    thought: str = ""
    tool: str
    args: dict[str, Any] = Field(default_factory=dict)


class CallPlan(Value):
    """Calls to execute in order, with the question and answer if any."""

    question: str = ""
    answer: str | None = None
    answer_confidence: Score | None = None
    steps: tuple[PlannedStep, ...] = Field(min_length=1, max_length=1000)


class Recording(NamedTuple):
    """A trace with the bytes of its artifacts, by their SHA-256."""

    trace: Trace
    blobs: Mapping[str, bytes]


def read_plan(path: Path) -> CallPlan:
    """Read a plan from its JSON file; TraceError, in one line, if it is invalid."""
    try:
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise TraceError(f"{path} is not a plan: it has over {MAX_PLAN_BYTES} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from error
    try:
        plan = CallPlan.model_validate(json.loads(content))
        canonical_json([step.args for step in plan.steps])
        require_shallow([step.args for step in plan.steps])
    except ValidationError as error:
        raise TraceError(f"{path} is not a plan: {validation_problem(error)}") from error
    except (ValueError, RecursionError, TraceError) as error:
        raise TraceError(f"{path} is not a plan: {str(error).splitlines()[0]}") from error
    return plan


def run_plan(
    plan: CallPlan,
    media: MediaSet,
    tools: ToolRunner,
    *,
    beside: Path | None = None,
    created_at: datetime | None = None,
) -> Recording:
    """Execute every call of a plan. After a failed step the others run; one that refers to it is recorded as invalid.

    `beside` is where the trace will be written: paths of media are relative to it.
    """
    recorder = TraceRecorder(media)
    for planned_step in plan.steps:
        call, execution = run_planned_step(planned_step, recorder, tools)
        recorder.add_step(call, execution, planned_step.thought)
    trace = recorder.seal(
        query=plan.question,
        origin="plan",
        created_at=created_at or datetime.now(UTC),
        answer=plan.answer,
        answer_confidence=plan.answer_confidence,
        trace_path=beside,
    )
    return Recording(trace, recorder.blobs)


def run_planned_step(step: PlannedStep, recorder: TraceRecorder, toolbox: ToolRunner) -> tuple[ToolCall, Execution]:
    """Run one step of a plan: its call with concrete arguments, and the execution."""
    name = canonical_name(step.tool)
    try:
        call = ToolCall(tool=name, args=resolve(step.args, recorder.results, recorder.media))
    except DeadReferenceError as error:
        call = ToolCall(tool=name, args=step.args)
        return call, Execution(ToolResult.failed(name, str(error), "invalid"), {})
    return call, toolbox.run(call, recorder.media)
