"""The one recorder of trajectories: whoever chooses the calls, their steps, views and artifacts become a trace here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pixelis import __version__
from pixelis.media import MediaSet
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import MediaRecord, StepDraft, TokenRecord, Trace, seal_trace


@dataclass
class TraceRecorder:
    """A trajectory under way."""

    media: MediaSet
    """What the next call may look at: the media of the query, then every view that a step made."""
    steps: list[StepDraft] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Bytes of the artifacts, by their SHA-256."""

    def copy(self) -> TraceRecorder:
        return TraceRecorder(self.media, list(self.steps), dict(self.blobs))

    @property
    def results(self) -> list[ToolResult]:
        return [step.result for step in self.steps]

    def add_step(self, call: ToolCall, execution: Execution, thought: str = "") -> str | None:
        """Record a call and its result; the name of the view that it made, if it made one."""
        first_seconds = execution.first_seconds
        self.steps.append(StepDraft(thought=thought, call=call, result=execution.result, first_seconds=first_seconds))
        self.blobs.update(execution.blobs)
        if execution.result.view is None:
            return None
        self.media = self.media.with_view(execution.result.view)
        return self.media.names[-1]

    def seal(
        self,
        *,
        query: str,
        origin: str,
        created_at: datetime,
        answer: str | None = None,
        answer_thought: str = "",
        answer_confidence: float | None = None,
        token_record: Callable[[int], TokenRecord] | None = None,
        id: str | None = None,
        trace_path: Path | None = None,
    ) -> Trace:
        """The sealed record.

        `token_record` gives the tokens of a step by its number from 1, and those of the answer by the number after the
        last one. `trace_path` is where the trace will be written: paths of media are relative to it.
        """
        steps, answer_tokens = self.steps, None
        if token_record is not None:
            steps = [step.model_copy(update={"tokens": token_record(k)}) for k, step in enumerate(steps, start=1)]
            answer_tokens = None if answer is None else token_record(len(steps) + 1)
        return seal_trace(
            id=id,
            query=query,
            media=record_media(self.media, trace_path),
            origin=origin,
            created_at=created_at,
            steps=steps,
            answer=answer,
            answer_thought=answer_thought,
            answer_confidence=answer_confidence,
            answer_tokens=answer_tokens,
            pixelis=__version__,
        )


def without_time(step: StepDraft) -> StepDraft:
    """A step as corpora keep it: they must not depend on how fast a machine is, or on what its cache holds."""
    result = step.result.model_copy(update={"seconds": 0.0})
    return StepDraft(thought=step.thought, call=step.call, result=result, tokens=step.tokens)


def reseal(trace: Trace, *, steps: Sequence[StepDraft], media: Sequence[MediaRecord]) -> Trace:
    """A trace with other steps and media records, and everything else as it was."""
    same = {name: value for name, value in trace if name not in ("version", "seal", "steps", "media")}
    return seal_trace(**same, steps=steps, media=media)
