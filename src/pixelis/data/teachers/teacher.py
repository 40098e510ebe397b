"""Teachers: each demonstrates how to solve an item with tools, as a sealed trace."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.random import Generator

from pixelis.core.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.trace.plan import ToolProvider
from pixelis.trace.recorder import TraceRecorder, reseal, without_time
from pixelis.trace.schema import Trace
from pixelis.world import Item, RenderedItem

if TYPE_CHECKING:
    from pixelis.data.corpus.corpus_config import CorpusConfig


class Demonstration(NamedTuple):
    """A teacher's trace of one item."""

    trace: Trace
    blobs: Mapping[str, bytes]
    """Bytes of the trace's artifacts, by their SHA-256."""
    cited_steps: tuple[int, ...] | None = None
    """Steps, from 0, whose results the answer was computed from, if the teacher knows them."""
    details: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Anything else worth recording: how the item ended, and turns that were not calls."""


class Teacher(Protocol):
    """Solves items. The same item, `rng` and tool results give the same demonstration."""

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        """Solve one item. Raises RetryLaterError if the item must be tried again in another run."""

    def close(self) -> None:
        """Release connections."""
        return


@dataclass(frozen=True)
class OracleTeacher(Teacher):
    """The procedural teacher: it knows how to solve each template, and does so with real tool calls."""

    detour_rate: float = 1.0
    visual_guess_rate: float = 1.0
    canonical_wording: bool = False

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        from pixelis.data.teachers.oracle.oracle import solve_item

        solution = solve_item(rendered, toolbox, rng=rng, **asdict(self))
        return Demonstration(solution.trace, solution.blobs, solution.cited_steps)


class AnswersTeacher(Teacher):
    """Records question, media and the item's own answer without any step, for items that no teacher here can solve."""

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


class AutoTeacher(Teacher):
    """The oracle if it knows the template and its trace is accepted, otherwise the answer alone."""

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


def make_teacher(config: CorpusConfig, replies: Path) -> Teacher:
    """The teacher that a configuration names. `replies` is the folder for a VLM's replies."""
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
        if not hasattr(teacher, "demonstrate"):
            teacher.demonstrate = teacher.teach  # type: ignore[attr-defined,method-assign] # the method's name in earlier releases
    except (ImportError, AttributeError, TypeError) as error:
        message = f"teacher {teacher_config.plugin!r} cannot be loaded ({error}); want module:factory"
        raise ConfigError(message) from error
    return teacher


def canonicalise_trace(trace: Trace, item: Item) -> Trace:
    """The trace as a corpus keeps it: no measured times, and media paths as the item states them.

    A corpus must not depend on the machine that built it. The trace is sealed again if anything changes.
    """
    paths: Any = item.parameters.get("media_paths", ())
    if not isinstance(paths, tuple) or len(paths) != len(trace.media):
        paths = (None,) * len(trace.media)
    media = tuple(
        medium.model_copy(update={"path": None if path is None else str(path)})
        for medium, path in zip(trace.media, paths, strict=True)
    )
    if all(step.result.seconds == 0.0 for step in trace.steps) and media == trace.media:
        return trace
    return reseal(trace, steps=[without_time(step) for step in trace.steps], media=media)
