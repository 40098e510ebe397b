"""What a teacher is: it takes an item with its pixels and tools, and gives back a trace."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.random import Generator

from pixelis import __version__
from pixelis.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.trace.reopening import record_media
from pixelis.trace.running import OffersTools
from pixelis.trace.schema import Draft, Trace, seal_trace
from pixelis.world import Item, Rendered

if TYPE_CHECKING:
    from pixelis.data.corpus_config import CorpusConfig


class Lesson(NamedTuple):
    """What a teacher did with one item."""

    trace: Trace
    blobs: Mapping[str, bytes]
    """Bytes of the trace's artifacts, by their SHA-256."""
    cited: tuple[int, ...] | None = None
    """Steps, from 0, whose results the answer was computed from, where the teacher knows."""
    teaching: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """What else is worth keeping: how it ended, what was said that was no call."""


class Teacher(Protocol):
    """Solves items. The same item, `rng` and tool results give the same lesson."""

    def teach(self, rendered: Rendered, toolbox: OffersTools, *, rng: Generator) -> Lesson:
        """One item; UndoneError where it has to be tried again another time."""

    def close(self) -> None:
        """Let go of connections."""


class OracleTeacher:
    """The teacher that knows each template's way to the answer, and takes it with real tool calls."""

    def __init__(self, *, detours: float = 1.0, by_eye: float = 1.0, plain: bool = False) -> None:
        self.detours = detours
        self.by_eye = by_eye
        self.plain = plain

    def teach(self, rendered: Rendered, toolbox: OffersTools, *, rng: Generator) -> Lesson:
        from pixelis.data.oracle import solve_item

        solved = solve_item(rendered, toolbox, rng=rng, detours=self.detours, by_eye=self.by_eye, plain=self.plain)
        return Lesson(solved.trace, solved.blobs, solved.cited)

    def close(self) -> None:
        """Nothing to let go of."""


class AnswersTeacher:
    """No teacher at all: question, media and the item's own answer, without a step. For items nobody can solve here."""

    def teach(self, rendered: Rendered, toolbox: OffersTools, *, rng: Generator) -> Lesson:
        from pixelis.data.oracle import EPOCH

        item = rendered.item
        trace = seal_trace(
            id=item.id.replace("/", "-"),
            query=item.question,
            media=record_media(MediaSet(rendered.media)),
            origin="teacher:answers",
            created_at=EPOCH,
            steps=(),
            answer=item.answer,
            pixelis=__version__,
        )
        return Lesson(trace, {}, ())

    def close(self) -> None:
        """Nothing to let go of."""


class AutoTeacher:
    """The oracle where it knows the way and its chain is accepted, and the answer alone where not."""

    def __init__(self, oracle: OracleTeacher) -> None:
        self.oracle, self.answers = oracle, AnswersTeacher()

    def teach(self, rendered: Rendered, toolbox: OffersTools, *, rng: Generator) -> Lesson:
        from pixelis.data.acceptance import judge
        from pixelis.data.oracle import knows

        if knows(rendered.item.template):
            lesson = self.oracle.teach(rendered, toolbox, rng=rng)
            if judge(rendered.item, lesson.trace, cited=lesson.cited).accepted:
                return lesson
        return self.answers.teach(rendered, toolbox, rng=rng)

    def close(self) -> None:
        """Nothing to let go of."""


def make_teacher(config: CorpusConfig, replies: Path) -> Teacher:
    """The teacher that a configuration names; `replies` is where a VLM's replies are kept."""
    wanted = config.teacher
    if wanted.kind in ("oracle", "auto"):
        oracle = OracleTeacher(detours=wanted.detours, by_eye=wanted.by_eye, plain=wanted.plain)
        return oracle if wanted.kind == "oracle" else AutoTeacher(oracle)
    if wanted.kind == "answers":
        return AnswersTeacher()
    if wanted.kind == "vlm":
        from pixelis.data.vlm_teacher import VlmTeacher

        return VlmTeacher(wanted, replies=replies)
    module_name, _, factory = wanted.plugin.partition(":")
    try:
        teacher: Teacher = getattr(importlib.import_module(module_name), factory)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"teacher {wanted.plugin!r} cannot be loaded ({error}); want module:factory") from error
    return teacher


def settled(trace: Trace, item: Item) -> Trace:
    """The trace with every measured time 0 and media where the item says: no corpus depends on the machine it is from.

    It is sealed anew, unless there is nothing to change.
    """
    said = item.parameters.get("media_paths", ())
    paths = said if isinstance(said, tuple) and len(said) == len(trace.media) else (None,) * len(trace.media)
    media = tuple(
        medium.model_copy(update={"path": None if path is None else str(path)})
        for medium, path in zip(trace.media, paths, strict=True)
    )
    if all(step.result.seconds == 0.0 for step in trace.steps) and media == trace.media:
        return trace
    drafts = [
        Draft(
            thought=step.thought,
            call=step.call,
            result=step.result.model_copy(update={"seconds": 0.0}),
            tokens=step.tokens,
        )
        for step in trace.steps
    ]
    return seal_trace(
        id=trace.id,
        query=trace.query,
        media=media,
        origin=trace.origin,
        created_at=trace.created_at,
        steps=drafts,
        answer=trace.answer,
        answer_thought=trace.answer_thought,
        answer_confidence=trace.answer_confidence,
        answer_tokens=trace.answer_tokens,
        pixelis=trace.pixelis,
    )
