"""What drills are made of: invented words, boxes, regions and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.random import Generator

from pixelis.data.oracle_session import as_read
from pixelis.data.tallies import Side, Tally
from pixelis.geometry import UnitBox
from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.base import coordinates
from pixelis.tools.colours import COLOURS
from pixelis.tools.results import ToolCall
from pixelis.tools.shapes import SHAPES
from pixelis.world.vocabulary import invented

LETTERS = tuple("aaabcdeeefghiiijklmnooopqrsttuuvwxyz")
COMMON = ("person", "car", "bus", "truck", "dog", "cat", "bicycle", "chair", "bottle", "cup", "bird", "boat", "horse")
Talk = list[tuple[str, ToolCall, str]]
"""Thought, call, and the words that came back."""
Drill = tuple[str, Talk, str, str]
"""Question, conversation, last thought, answer."""
Step = Callable[[str, str], tuple[Talk, float]]
"""From a name and what is noted before it: calls, and the number that they give."""


def thing(rng: Generator) -> str:
    """A coloured figure."""
    return f"{rng.choice(COLOURS)} {rng.choice(SHAPES[:-1])}"


def phrase(rng: Generator) -> str:
    """Something to look for."""
    kind = rng.random()
    if kind < 0.35:
        return thing(rng)
    return noun(rng) if kind < 0.7 else word(rng)


def noun(rng: Generator) -> str:
    """What people ask for in photographs, mostly the same few things; half of them as several."""
    name = str(rng.choice(COMMON if rng.random() < 0.5 else COCO_NAMES))
    return name if rng.random() < 0.5 else plural(name)


def plural(name: str) -> str:
    if name == "person":
        return "people"
    return f"{name}es" if name.endswith(("s", "sh", "ch")) else f"{name}s"


def word(rng: Generator) -> str:
    """A word that no list holds; half of them of any letters, so that every piece of the tokenizer is copied."""
    if rng.random() < 0.5:
        return invented(rng)
    letters = "".join(rng.choice(LETTERS, size=int(rng.integers(3, 10))))
    return letters if rng.random() < 0.3 else letters.capitalize()


def several(rng: Generator, low: int, high: int, make: Callable[[Generator], str] = phrase) -> list[str]:
    """Different things."""
    wanted, found = int(rng.integers(low, high + 1)), dict[str, None]()
    while len(found) < wanted:
        found[make(rng)] = None
    return list(found)


def box(rng: Generator) -> UnitBox:
    x, y = rng.uniform(0.0, 0.85, 2).tolist()
    w, h = rng.uniform(0.05, 0.4, 2).tolist()
    return round(x, 2), round(y, 2), round(min(x + w, 1.0), 2), round(min(y + h, 1.0), 2)


def pair_of_boxes(rng: Generator, across: float, down: float) -> tuple[UnitBox, UnitBox]:
    """A box and the same one moved by so much, both inside the frame."""
    wide, high = rng.uniform(0.05, 0.2, 2).tolist()
    x = rng.uniform(max(0.0, -across), min(1.0, 1.0 - across) - wide)
    y = rng.uniform(max(0.0, -down), min(1.0, 1.0 - down) - high)
    first, second = ((left, top, left + wide, top + high) for left, top in ((x, y), (x + across, y + down)))
    return as_read(first), as_read(second)


def region(name: str, where: UnitBox, rng: Generator, area: float | None = None) -> str:
    area = rng.uniform(0, 0.4) if area is None else area
    return f"{name} {coordinates(where)} area {area:.2f} score {rng.uniform(0.3, 1):.2f}"


def one_after_another(things: Sequence[str], side: Side, step: Step, *, named: int | None = 1) -> tuple[Talk, Tally]:
    """Calls for each thing in turn, every thought with the count so far; of `named` things, or of all.

    Drawn again while two numbers that decide are equal: nobody could tell who comes first.
    """
    while True:
        talk, kept, noted = Talk(), Tally("", (), side), ""
        for name in things:
            steps, value = step(name, noted)
            talk += steps
            kept = Tally(side.now(value), side.order([*kept.first, (name, value)]), side)
            noted = f"{kept.noted(named)} "
        values = [value for _, value in kept.first]
        if len(set(values)) == len(values):
            return talk, kept


def number(rng: Generator) -> str:
    return str(int(10 ** rng.uniform(0, 3)))
