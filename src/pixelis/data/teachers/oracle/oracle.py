"""The oracle teacher: it solves an item of the world or of an importer with real tool calls (sec:data).

It knows the template of the question, and so which tools lead to the answer. References only tell it where to look. It
notes what the tools return under the names that the question uses, and runs the template's program on the notes: the
answer is as correct as the tools' results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from numpy.random import Generator

from pixelis.core.errors import ConfigError
from pixelis.data.importers.imported_items import get_template
from pixelis.data.teachers.oracle import (
    oracle_choice,
    oracle_document,
    oracle_lecture,
    oracle_motion,
    oracle_photos,
    oracle_search,
    oracle_space,
    oracle_texts,
    oracle_user_questions,
)
from pixelis.data.teachers.oracle.clip_actions import ClipActions
from pixelis.data.teachers.oracle.detours import Detours
from pixelis.data.teachers.oracle.oracle_session import OracleSession
from pixelis.data.teachers.oracle.picture_actions import nearest_option
from pixelis.data.teachers.oracle.question_goals import get_goal, prefix_goal
from pixelis.data.teachers.oracle.rationales import write_rationale
from pixelis.data.teachers.oracle.thought_templates import ThoughtWriter
from pixelis.items import option_letter
from pixelis.media import MediaSet
from pixelis.trace.plan import ToolRunner
from pixelis.trace.recorder import TraceRecorder
from pixelis.trace.schema import Trace
from pixelis.world import Item, RenderedItem
from pixelis.world.programs import Unanswerable

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The creation time in traces of a corpus: the same item gives the same bytes at any time."""
ORIGIN = "teacher:oracle"

Solver = Callable[[ClipActions], "str | None"]
"""Calls tools and takes notes. It returns an answer only if the program cannot find it in the notes."""
FAMILY_MODULES = (oracle_search, oracle_choice, oracle_motion, oracle_document, oracle_lecture, oracle_space)
IMPORTED_MODULES = (oracle_photos, oracle_texts, oracle_user_questions)
SOLVERS: Mapping[str, Solver] = {
    name: solver for module in (*FAMILY_MODULES, *IMPORTED_MODULES) for name, solver in module.SOLVERS.items()
}


def can_solve(template: str) -> bool:
    """Whether the oracle has a solver for a template."""
    return template in SOLVERS


class OracleSolution(NamedTuple):
    """The oracle's trace of one item."""

    trace: Trace
    """Origin `teacher:oracle`; seconds are 0, because a corpus must not depend on the machine."""
    blobs: Mapping[str, bytes]
    """The bytes of its artifacts, by their SHA-256."""
    answer: str
    cited_steps: tuple[int, ...]
    """Steps, from 0, whose results the answer was computed from; empty if it is a guess."""


def solve_item(
    rendered: RenderedItem,
    toolbox: ToolRunner,
    *,
    rng: Generator,
    detour_rate: float = 1.0,
    visual_guess_rate: float = 1.0,
    canonical_wording: bool = False,
    created_at: datetime = EPOCH,
) -> OracleSolution:
    """Solve one item. Wordings and detours come from `rng`; the answer comes from what the tools returned.

    The toolbox should have `seg="classical"`. If the tools do not reveal the answer, it is a guess (never empty) and
    nothing is cited. `detour_rate` is the probability that detours are allowed at all; at 0 the solution is the
    shortest. Raises ConfigError for an unknown template.
    """
    item, recorder = rendered.item, TraceRecorder(MediaSet(rendered.media))
    solver = SOLVERS.get(item.template)
    if solver is None:
        raise ConfigError(
            f"the oracle does not know the template {item.template!r} of item {item.id}: "
            "a VLM can teach it (teacher.kind: vlm), or its answer alone (teacher.kind: answers)"
        )
    goal = get_goal(item)
    writer = ThoughtWriter(rng, canonical_wording=canonical_wording, goal=goal)
    session = OracleSession(item, recorder, toolbox, rng, writer, canonical_wording=canonical_wording)
    with_detours = detour_rate == 1.0 or (detour_rate > 0.0 and session.chance(detour_rate))
    detours = Detours(session, enabled=with_detours, visual_guess_rate=visual_guess_rate)
    answer = solver(ClipActions(session, detours)) or compute_answer(session)
    cited_steps = session.cited_steps if answer else ()
    final_answer = to_item_answer(item, answer) if answer else guess(item, rng)
    answer_text = item.options[ord(final_answer) - ord("A")] if item.options else final_answer
    final_answer = (
        answer_text if canonical_wording else final_answer
    )  # the option's text is a copy of what was seen; its letter is one more step
    rationale = (
        write_rationale(item, session.notes, session.drafts, answer_text, rng=rng, canonical_wording=canonical_wording)
        if answer
        else ""
    )
    rationale = prefix_goal(goal, rationale) if canonical_wording else rationale
    trace = recorder.seal(
        id=item.id.replace("/", "-"),
        query=item.question,
        origin=ORIGIN,
        created_at=created_at,
        answer=final_answer,
        answer_thought=rationale,
    )
    return OracleSolution(trace, recorder.blobs, final_answer, tuple(sorted(cited_steps)))


def compute_answer(session: OracleSession) -> str:
    """The answer that the template's program finds in the notes; empty if it finds none."""
    try:
        return get_template(session.item.template).solve(session.notes, session.item.parameters)
    except (ConfigError, Unanswerable, KeyError, ZeroDivisionError, ValueError):
        return ""  # ConfigError: a user's own question has no program


def to_item_answer(item: Item, text: str) -> str:
    """The answer as the item expects it: for multiple choice the letter of the nearest option."""
    return option_letter(nearest_option(text, item.options)) if item.options else text


def guess(item: Item, rng: Generator) -> str:
    """An answer without any evidence."""
    if item.options:
        return option_letter(int(rng.integers(len(item.options))))
    return "1" if item.scoring == "mra" else "unknown"
