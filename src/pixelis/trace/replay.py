"""Execute a trace again: its evidence follows from the media alone, or a step differs.

Every step runs on the recorded views, so that one difference does not affect the steps after it.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, NamedTuple

from pixelis.core.errors import TraceError
from pixelis.media import MediaSet
from pixelis.tools.results import Execution, ToolResult
from pixelis.trace.plan import ToolRunner
from pixelis.trace.plan_references import DeadReferenceError, has_references, resolve
from pixelis.trace.schema import Trace, canonical_json

Outcome = Literal["identical", "different", "timeout"]


class StepReplay(NamedTuple):
    """The replay of one step."""

    step: int
    """From 1."""
    tool: str
    outcome: Outcome
    detail: str = ""
    recorded_timeout: bool = False
    cached: bool = False


class ReplayReport(NamedTuple):
    """The replay of a trace."""

    trace_id: str
    steps: tuple[StepReplay, ...]

    @property
    def first_difference(self) -> StepReplay | None:
        return next((s for s in self.steps if s.outcome == "different"), None)

    @property
    def identical(self) -> bool:
        """Whether every step that had a result when recorded has the same one now."""
        return all(s.outcome == "identical" or s.recorded_timeout for s in self.steps)

    @property
    def timeouts(self) -> tuple[StepReplay, ...]:
        return tuple(s for s in self.steps if s.outcome == "timeout")

    def sentence(self) -> str:
        """The whole report in one line."""
        different = self.first_difference
        if different is not None:
            return f"different: step {different.step} ({different.tool}): {different.detail}"
        if self.timeouts:
            late = "; ".join(f"step {s.step} ({s.tool}) {s.detail}" for s in self.timeouts)
            rest = len(self.steps) - len(self.timeouts)
            return f"{'identical' if self.identical else 'not proven'}: {rest} of {len(self.steps)} steps; {late}"
        return f"identical: {len(self.steps)} of {len(self.steps)} steps"


def replay(trace: Trace, toolbox: ToolRunner, media: MediaSet) -> ReplayReport:
    """Execute every call again, on the media that `reopen_media` found by their hashes.

    Use a toolbox without a result cache: a cached result proves nothing, and is reported as cached.
    """
    recorded_hashes = [record.sha256 for record in trace.media]
    if [medium.sha256 for medium in media.sources] != recorded_hashes:
        raise TraceError("the media are not the ones that the trace was made on")
    steps = []
    for number, step in enumerate(trace.steps, start=1):
        earlier_results = [earlier.result for earlier in trace.steps[: number - 1]]
        execution = replay_refusal(trace, number, earlier_results, media) or toolbox.run(step.call, media)
        outcome = compare_execution(step.result, execution)
        steps.append(outcome._replace(step=number, tool=step.call.tool, cached=execution.cached))
        if step.result.view is not None:
            media = media.with_view(step.result.view)
    return ReplayReport(trace.id, tuple(steps))


def replay_refusal(trace: Trace, number: int, earlier_results: list[ToolResult], media: MediaSet) -> Execution | None:
    """The refusal of a plan's call whose reference has no target; None for a call that a tool runs."""
    call = trace.steps[number - 1].call
    if trace.origin != "plan" or not has_references(call.args):
        return None
    try:
        resolve(call.args, earlier_results, media)
    except DeadReferenceError as error:
        return Execution(ToolResult.failed(call.tool, str(error), "invalid"), {})
    return None


def compare_execution(recorded: ToolResult, execution: Execution) -> StepReplay:
    """Compare a result with the recorded one: all but the seconds must be equal, artifacts to the byte."""
    current = execution.result
    if recorded.status == "timeout":
        detail = f"timed out when it was recorded (now: {current.status})"
        return StepReplay(0, "", "timeout", detail, recorded_timeout=True)
    if current.status == "timeout":
        return StepReplay(0, "", "timeout", f"timed out now; it was {recorded.status} when it was recorded")
    differs = describe_difference(recorded, current) or find_artifact_difference(execution)
    return StepReplay(0, "", "different" if differs else "identical", differs or "")


def describe_difference(recorded: ToolResult, current: ToolResult) -> str | None:
    """How two results differ, by the first field in `FIELD_ORDER`; also whether code or weights differ."""
    before, after = (r.model_dump(mode="json", exclude={"seconds"}) for r in (recorded, current))
    if canonical_json(before) == canonical_json(after):
        return None
    fields = sorted(before, key=lambda name: FIELD_ORDER.index(name) if name in FIELD_ORDER else len(FIELD_ORDER))
    changes = [change for name in fields if (change := find_first_change(name, before[name], after[name]))]
    if before["identity"] == after["identity"]:
        return changes[0]
    identity = find_first_change("identity", before["identity"], after["identity"])
    results = [change for change in changes if change != identity]
    result_note = "the result is the same" if not results else results[0]
    return f"another tool answered ({identity}); {result_note}"


FIELD_ORDER = ("status", "error", "text", "output", "footprints", "confidence", "view", "artifacts", "identity", "tool")
"""Order in which differences are reported: what a person reads first."""


ABSENT = object()


def find_first_change(path: str, before: Any, after: Any) -> str | None:
    """The first difference between two JSON values."""
    if before is after or (ABSENT not in (before, after) and canonical_json(before) == canonical_json(after)):
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(k for k in after if k not in before)]:
            if change := find_first_change(f"{path}.{key}", before.get(key, ABSENT), after.get(key, ABSENT)):
                return change
    if isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            if change := find_first_change(f"{path}[{index}]", old, new):
                return change
        if len(before) != len(after):
            return f"{path}: {len(before)} entries became {len(after)}"
    return f"{path} {format_value(before)} became {format_value(after)}"


def format_value(value: Any) -> str:
    text = repr(value) if value is not ABSENT else "(absent)"
    return text if len(text) <= 160 else text[:157] + "…"


def find_artifact_difference(execution: Execution) -> str | None:
    """An artifact whose bytes are missing or do not match its hash."""
    for artifact in execution.result.artifacts:
        content = execution.blobs.get(artifact.sha256)
        if content is None or hashlib.sha256(content).hexdigest() != artifact.sha256:
            return f"artifact {artifact.name} came without the bytes that its hash names"
    return None
