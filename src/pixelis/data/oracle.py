"""The oracle teacher: it solves an item of the world or of an importer with real tool calls, as a strong model would
(sec:data).

It knows the template of the question, hence which tools lead to the answer. References only tell it where to look. What
the tools returned is noted under the names that the question uses, and the template's own program is run on the notes:
the answer is as right as the tools were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from numpy.random import Generator

from pixelis import __version__
from pixelis.data import (
    oracle_choice,
    oracle_document,
    oracle_lecture,
    oracle_motion,
    oracle_own,
    oracle_photos,
    oracle_search,
    oracle_space,
    oracle_texts,
)
from pixelis.data.conclusions import conclude
from pixelis.data.detours import Detours
from pixelis.data.goals import goal_of, with_goal
from pixelis.data.importers.files import template
from pixelis.data.oracle_acts import Hands, nearest_option
from pixelis.data.oracle_session import Session
from pixelis.data.thoughts import Voice
from pixelis.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.trace.reopening import record_media
from pixelis.trace.running import RunsCalls
from pixelis.trace.schema import Trace, seal_trace
from pixelis.world import Item, Rendered
from pixelis.world.item import letter
from pixelis.world.programs import Unanswerable

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""When traces of a corpus say they were made: the same item gives the same bytes whenever it is solved."""
ORIGIN = "teacher:oracle"

Solver = Callable[[Hands], "str | None"]
"""Looks, and notes what it saw; it returns an answer only where the program cannot find it from the notes."""
FAMILIES = (oracle_search, oracle_choice, oracle_motion, oracle_document, oracle_lecture, oracle_space)
IMPORTED = (oracle_photos, oracle_texts, oracle_own)
SOLVERS: Mapping[str, Solver] = {
    name: solver for module in (*FAMILIES, *IMPORTED) for name, solver in module.SOLVERS.items()
}


def knows(template: str) -> bool:
    """Whether the oracle can solve items of a template."""
    return template in SOLVERS


class Solved(NamedTuple):
    """What the oracle did with one item."""

    trace: Trace
    """Origin `teacher:oracle`; seconds are 0, because the record of a corpus must not depend on the machine."""
    blobs: Mapping[str, bytes]
    """The bytes of its artifacts, by their SHA-256."""
    answer: str
    cited: tuple[int, ...]
    """Steps, from 0, whose results the answer was computed from; empty where it is a guess."""


def solve_item(
    rendered: Rendered,
    toolbox: RunsCalls,
    *,
    rng: Generator,
    detours: float = 1.0,
    by_eye: float = 1.0,
    plain: bool = False,
    created_at: datetime = EPOCH,
) -> Solved:
    """Solve one item. Wordings and detours come from `rng`; the answer comes from what the tools returned.

    The toolbox should have `seg="classical"`. Where the tools do not give it away, the answer is a guess and nothing is
    cited; it is never empty. `detours` is how likely it goes ways round; at 0 it takes the shortest way. ConfigError
    for an item of another world.
    """
    item, media = rendered.item, MediaSet(rendered.media)
    solver = SOLVERS.get(item.template)
    if solver is None:
        raise ConfigError(
            f"the oracle does not know the template {item.template!r} of item {item.id}: "
            "a VLM can teach it (teacher.kind: vlm), or its answer alone (teacher.kind: answers)"
        )
    goal = goal_of(item)
    session = Session(item, media, toolbox, rng, Voice(rng, plain=plain, goal=goal), plain=plain)
    round_about = detours == 1.0 or (detours > 0.0 and session.chance(detours))
    said = solver(Hands(session, Detours(session, enabled=round_about, by_eye=by_eye)))
    answer = said or computed(session)
    cited = session.cited if answer else ()
    final = as_answer(item, answer) if answer else guess(item, rng)
    words = item.options[ord(final) - ord("A")] if item.options else final
    final = words if plain else final  # the words are a copy of what was seen; their letter has to be looked up
    why = conclude(item, session.notes, session.drafts, words, rng=rng, plain=plain) if answer else ""
    why = with_goal(goal, why) if plain else why
    trace = seal_trace(
        id=item.id.replace("/", "-"),
        query=item.question,
        media=record_media(media),
        origin=ORIGIN,
        created_at=created_at,
        steps=session.drafts,
        answer=final,
        answer_thought=why,
        pixelis=__version__,
    )
    return Solved(trace, session.blobs, final, tuple(sorted(cited)))


def computed(session: Session) -> str:
    """The answer that the template's program finds in the notes; empty where they do not hold it."""
    try:
        return template(session.item.template).solve(session.notes, session.item.parameters)
    except (ConfigError, Unanswerable, KeyError, ZeroDivisionError, ValueError):
        return ""  # ConfigError: no program stands behind somebody's own question


def as_answer(item: Item, words: str) -> str:
    """The words as the item wants them: for multiple choice the letter of the option that is nearest to them."""
    return letter(nearest_option(words, item.options)) if item.options else words


def guess(item: Item, rng: Generator) -> str:
    """What somebody says who has seen nothing."""
    if item.options:
        return letter(int(rng.integers(len(item.options))))
    return "1" if item.scoring == "mra" else "unknown"
