"""What a teacher is: it takes an item with its pixels and tools, and gives back a trace."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.random import Generator

from pixelis.core.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.trace.plan import ToolProvider
from pixelis.trace.recorder import TraceRecorder, reseal, without_time
from pixelis.trace.schema import StepDraft, Trace
from pixelis.world import Item, RenderedItem

if TYPE_CHECKING:
    from pixelis.data.corpus.corpus_config import CorpusConfig


class Demonstration(NamedTuple):
    """What a teacher did with one item."""

    trace: Trace
    blobs: Mapping[str, bytes]
    """Bytes of the trace's artifacts, by their SHA-256."""
    cited_steps: tuple[int, ...] | None = None
    """Steps, from 0, whose results the answer was computed from, where the teacher knows."""
    details: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """What else is worth keeping: how it ended, what was said that was no call."""


class Teacher(Protocol):
    """Solves items. The same item, `rng` and tool results give the same lesson."""

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        """One item; UndoneError where it has to be tried again another time."""

    def close(self) -> None:
        """Let go of connections."""


class OracleTeacher:
    """The teacher that knows each template's way to the answer, and takes it with real tool calls."""

    def __init__(
        self, *, detour_rate: float = 1.0, visual_guess_rate: float = 1.0, canonical_wording: bool = False
    ) -> None:
        self.detour_rate = detour_rate
        self.visual_guess_rate = visual_guess_rate
        self.canonical_wording = canonical_wording

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        from pixelis.data.teachers.oracle.oracle import solve_item

        solution = solve_item(
            rendered,
            toolbox,
            rng=rng,
            detour_rate=self.detour_rate,
            visual_guess_rate=self.visual_guess_rate,
            canonical_wording=self.canonical_wording,
        )
        return Demonstration(solution.trace, solution.blobs, solution.cited_steps)

    def close(self) -> None:
        """Nothing to let go of."""


class AnswersTeacher:
    """No teacher at all: question, media and the item's own answer, without a step. For items nobody can solve here."""

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        from pixelis.data.teachers.oracle.oracle import EPOCH

        item = rendered.item
        trace = TraceRecorder(MediaSet(rendered.media)).seal(
            id=item.id.replace("/", "-"),
            query=item.question,
            origin="teacher:answers",
            created_at=EPOCH,
            answer=item.answer,
        )
        return Demonstration(trace, {}, ())

    def close(self) -> None:
        """Nothing to let go of."""


class AutoTeacher:
    """The oracle where it knows the way and its chain is accepted, and the answer alone where not."""

    def __init__(self, oracle: OracleTeacher) -> None:
        self.oracle, self.answers = oracle, AnswersTeacher()

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        from pixelis.data.corpus.acceptance_checks import judge_trace
        from pixelis.data.teachers.oracle.oracle import can_solve

        if can_solve(rendered.item.template):
            demonstration = self.oracle.demonstrate(rendered, toolbox, rng=rng)
            if judge_trace(rendered.item, demonstration.trace, cited=demonstration.cited_steps).accepted:
                return demonstration
        return self.answers.demonstrate(rendered, toolbox, rng=rng)

    def close(self) -> None:
        """Nothing to let go of."""


def make_teacher(config: CorpusConfig, replies: Path) -> Teacher:
    """The teacher that a configuration names; `replies` is where a VLM's replies are kept."""
    teacher_config = config.teacher
    if teacher_config.kind in ("oracle", "auto"):
        oracle = OracleTeacher(
            detour_rate=teacher_config.detour_rate,
            visual_guess_rate=teacher_config.visual_guess_rate,
            canonical_wording=teacher_config.canonical_wording,
        )
        return oracle if teacher_config.kind == "oracle" else AutoTeacher(oracle)
    if teacher_config.kind == "answers":
        return AnswersTeacher()
    if teacher_config.kind == "vlm":
        from pixelis.data.teachers.vlm import VlmTeacher

        return VlmTeacher(teacher_config, replies=replies)
    module_name, _, factory = teacher_config.plugin.partition(":")
    try:
        teacher: Teacher = getattr(importlib.import_module(module_name), factory)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"teacher {teacher_config.plugin!r} cannot be loaded ({error}); want module:factory"
        ) from error
    return teacher


def canonicalise_trace(trace: Trace, item: Item) -> Trace:
    """The trace with every measured time 0 and media where the item says: no corpus depends on the machine it is from.

    It is sealed anew, unless there is nothing to change.
    """
    stated_paths = item.parameters.get("media_paths", ())
    paths = (
        stated_paths
        if isinstance(stated_paths, tuple) and len(stated_paths) == len(trace.media)
        else (None,) * len(trace.media)
    )
    media = tuple(
        medium.model_copy(update={"path": None if path is None else str(path)})
        for medium, path in zip(trace.media, paths, strict=True)
    )
    if all(step.result.seconds == 0.0 for step in trace.steps) and media == trace.media:
        return trace
    drafts = [
        StepDraft(thought=step.thought, call=step.call, result=without_time(step.result), tokens=step.tokens)
        for step in trace.steps
    ]
    return reseal(trace, steps=drafts, media=media)
