"""What warm-up tasks are made of: invented words, boxes, regions and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.random import Generator

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle.oracle_session import snap_box
from pixelis.data.teachers.oracle.running_notes import RankingKey, RunningNote
from pixelis.items import option_letter
from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall
from pixelis.tools.vision.colours import COLOURS
from pixelis.tools.vision.shapes import SHAPES
from pixelis.world.vocabulary import invent_word

LETTERS = tuple("aaabcdeeefghiiijklmnooopqrsttuuvwxyz")
COMMON = ("person", "car", "bus", "truck", "dog", "cat", "bicycle", "chair", "bottle", "cup", "bird", "boat", "horse")
Turn = tuple[str, ToolCall, str]
"""Thought, call, and the text of its result."""
Turns = list[Turn]
WarmupTask = tuple[str, Turns, str, str]
"""Question, conversation, last thought, answer."""
TurnMaker = Callable[[str, str], tuple[Turns, float]]
"""Maps a name and the note before it to turns and the number that they yield."""


def random_figure(rng: Generator) -> str:
    """A coloured figure."""
    return f"{rng.choice(COLOURS)} {rng.choice(SHAPES[:-1])}"


def random_phrase(rng: Generator) -> str:
    """A phrase to search for."""
    kind = rng.random()
    if kind < 0.35:
        return random_figure(rng)
    return random_noun(rng) if kind < 0.7 else random_word(rng)


def random_noun(rng: Generator) -> str:
    """A noun that people ask about in photographs, mostly one of a few; half of them in the plural."""
    name = str(rng.choice(COMMON if rng.random() < 0.5 else COCO_NAMES))
    return name if rng.random() < 0.5 else plural(name)


def plural(name: str) -> str:
    if name == "person":
        return "people"
    return f"{name}es" if name.endswith(("s", "sh", "ch")) else f"{name}s"


def random_word(rng: Generator) -> str:
    """An invented word; half of them of random letters, so that every token of the tokenizer gets copied."""
    if rng.random() < 0.5:
        return invent_word(rng)
    letters = "".join(rng.choice(LETTERS, size=int(rng.integers(3, 10))))
    return letters if rng.random() < 0.3 else letters.capitalize()


def sample_distinct(rng: Generator, low: int, high: int, make: Callable[[Generator], str] = random_phrase) -> list[str]:
    """Between `low` and `high` different values."""
    target_count, values = int(rng.integers(low, high + 1)), dict[str, None]()
    while len(values) < target_count:
        values[make(rng)] = None
    return list(values)


def random_box(rng: Generator) -> UnitBox:
    x, y = rng.uniform(0.0, 0.85, 2).tolist()
    w, h = rng.uniform(0.05, 0.4, 2).tolist()
    return round(x, 2), round(y, 2), round(min(x + w, 1.0), 2), round(min(y + h, 1.0), 2)


def random_box_pair(rng: Generator, across: float, down: float) -> tuple[UnitBox, UnitBox]:
    """A box, and the same box moved across and down, both inside the frame."""
    width, height = rng.uniform(0.05, 0.2, 2).tolist()
    x = rng.uniform(max(0.0, -across), min(1.0, 1.0 - across) - width)
    y = rng.uniform(max(0.0, -down), min(1.0, 1.0 - down) - height)
    first, second = ((left, top, left + width, top + height) for left, top in ((x, y), (x + across, y + down)))
    return snap_box(first), snap_box(second)


def format_region(name: str, unit_box: UnitBox, rng: Generator, area: float | None = None) -> str:
    area = rng.uniform(0, 0.4) if area is None else area
    return f"{name} {coordinates(unit_box)} area {area:.2f} score {rng.uniform(0.3, 1):.2f}"


def seg_turn(name: str, result_text: str, note: str = "", **media: object) -> Turn:
    """A turn that finds a thing with SEG."""
    return f"{note}Let me find the {name}.", ToolCall(tool="SEG", args={**media, "target": name}), result_text


def zoom_turn(name: str, unit_box: UnitBox, result_text: str) -> Turn:
    return f"A closer look at {name}.", ToolCall(tool="ZOOM", args={"box": list(unit_box)}), result_text


def not_found_text(words: str) -> str:
    return f"SEG failed: SEG found nothing that fits '{words}'"


def list_options(things: Sequence[str]) -> str:
    return " ".join(f"({option_letter(i)}) {name}" for i, name in enumerate(things))


def rank_in_turn(
    things: Sequence[str], side: RankingKey, make_turns: TurnMaker, *, named: int | None = 1
) -> tuple[Turns, RunningNote]:
    """Calls for each thing in turn; every thought states the ranking so far, of `named` things or of all.

    Values are redrawn while two of them are equal, since no ranking would then be correct.
    """
    while True:
        turns, tally, note = Turns(), RunningNote("", (), side), ""
        for name in things:
            new_turns, value = make_turns(name, note)
            turns += new_turns
            tally = RunningNote(side.format_current(value), side.sort_values([*tally.ranking, (name, value)]), side)
            note = f"{tally.to_thought(named)} "
        values = [value for _, value in tally.ranking]
        if len(set(values)) == len(values):
            return turns, tally


def random_number(rng: Generator) -> str:
    return str(int(10 ** rng.uniform(0, 3)))
