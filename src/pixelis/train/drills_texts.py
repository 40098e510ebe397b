"""Drills of what people ask about signs and pages: all that is written, the first line, what stands after a label.

The corpus has a few hundred such pictures, with a few words on most. Questions are those of its templates, thoughts
those of its plain teacher; what OCR says is made up, of one line or of a page of them.
"""

from __future__ import annotations

from numpy.random import Generator

from pixelis.data.conclusions_photos import LONG
from pixelis.data.goals import GOALS, with_goal
from pixelis.data.importers.text_questions import TEMPLATES
from pixelis.data.signs import SURFACES
from pixelis.tools.results import ToolCall
from pixelis.train.drills_pages import lines_down, listed
from pixelis.train.drills_words import Drill, Talk, number, several, word

EVERY_SURFACE = sorted({surface for kind in SURFACES.values() for surface in kind})
UNNAMED = "sign"
"""What the teacher reads where the question does not say what it is."""


def asked(template: str, rng: Generator, texts: list[str], **names: str) -> tuple[str, Talk, str, str]:
    """A question of the corpus, the call that reads, the goal, and what was read."""
    wordings = TEMPLATES[template].wordings
    wording = wordings[int(rng.integers(len(wordings)))]
    surface = str(rng.choice(EVERY_SURFACE)) if "{surface}" in wording else UNNAMED
    goal = GOALS[template]
    told = listed(lines_down(texts, rng))
    talk: Talk = [(with_goal(goal, f"Read the {surface}."), ToolCall(tool="OCR", args={}), told)]
    return wording.format(surface=surface, **names), talk, goal, surface


def shouted(rng: Generator) -> str:
    """A word, in capitals, or a number."""
    kind = rng.random()
    return word(rng).upper() if kind < 0.3 else number(rng) if kind > 0.85 else word(rng)


def line_of_words(rng: Generator, most: int) -> str:
    return " ".join(several(rng, 1, most, shouted))


def written(rng: Generator, least: int) -> list[str]:
    """The lines of a sign, or of a page."""
    page = rng.random() < 0.6
    return several(rng, least, 12 if page else 4, lambda r: line_of_words(r, 8 if page else 3))


def everything(rng: Generator) -> Drill:
    texts = written(rng, 1)
    question, talk, goal, surface = asked("text.all", rng, texts)
    whole = " ".join(texts)
    long = len(whole.split()) > LONG
    last = f"The {surface} says all of this, line by line." if long else f"It says {whole}."
    return question, talk, with_goal(goal, last), whole


def heading(rng: Generator) -> Drill:
    texts = written(rng, 2)
    question, talk, goal, _ = asked("text.title", rng, texts)
    return question, talk, with_goal(goal, f"The first line is {texts[0]}."), texts[0]


def entry(rng: Generator) -> Drill:
    texts, label, value = written(rng, 1), word(rng).capitalize(), line_of_words(rng, 2)
    line = f"{label}: {value}"
    texts.insert(int(rng.integers(1, len(texts) + 1)), line)
    question, talk, goal, _ = asked("text.after", rng, texts, label=label, name=label.lower())
    return question, talk, with_goal(goal, f'The line reads "{line}": {value}.'), value


DRILLS = (everything, everything, heading, entry)
