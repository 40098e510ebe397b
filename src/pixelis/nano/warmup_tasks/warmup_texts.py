"""Warm-up tasks on signs and pages: read everything, the first line, or the text after a label.

The corpus has a few hundred such pictures, most with a few words. Questions come from its templates, thoughts from its
plain teacher; OCR results of one line or a page are invented.
"""

from __future__ import annotations

from numpy.random import Generator

from pixelis.data.importers.text_questions import TEMPLATES
from pixelis.data.photographs.signs import SURFACES
from pixelis.data.teachers.oracle.question_goals import GOALS, prefix_goal
from pixelis.data.teachers.oracle.rationales_photos import MAX_QUOTED_WORDS
from pixelis.nano.warmup_tasks.warmup_pages import format_lines, stack_lines
from pixelis.nano.warmup_tasks.warmup_vocabulary import Turns, WarmupTask, random_number, random_word, sample_distinct
from pixelis.tools.results import ToolCall

EVERY_SURFACE = sorted({surface for kind in SURFACES.values() for surface in kind})
DEFAULT_SURFACE = "sign"
"""The teacher's word if the question names no surface."""


def make_text_question(template: str, rng: Generator, texts: list[str], **names: str) -> tuple[str, Turns, str, str]:
    """A question of the corpus, the OCR turn, the goal, and the surface."""
    wordings = TEMPLATES[template].wordings
    wording = wordings[int(rng.integers(len(wordings)))]
    surface = str(rng.choice(EVERY_SURFACE)) if "{surface}" in wording else DEFAULT_SURFACE
    goal = GOALS[template]
    result_text = format_lines(stack_lines(texts, rng))
    turns: Turns = [(prefix_goal(goal, f"Read the {surface}."), ToolCall(tool="OCR", args={}), result_text)]
    return wording.format(surface=surface, **names), turns, goal, surface


def random_token(rng: Generator) -> str:
    """A word, perhaps in capitals, or a number."""
    kind = rng.random()
    return random_word(rng).upper() if kind < 0.3 else random_number(rng) if kind > 0.85 else random_word(rng)


def random_line(rng: Generator, max_words: int) -> str:
    return " ".join(sample_distinct(rng, 1, max_words, random_token))


def random_lines(rng: Generator, min_lines: int) -> list[str]:
    """The lines of a sign or a page."""
    is_page = rng.random() < 0.6
    return sample_distinct(rng, min_lines, 12 if is_page else 4, lambda r: random_line(r, 8 if is_page else 3))


def read_all_text(rng: Generator) -> WarmupTask:
    texts = random_lines(rng, 1)
    question, turns, goal, surface = make_text_question("text.all", rng, texts)
    full_text = " ".join(texts)
    long = len(full_text.split()) > MAX_QUOTED_WORDS
    final_thought = f"The {surface} says all of this, line by line." if long else f"It says {full_text}."
    return question, turns, prefix_goal(goal, final_thought), full_text


def read_heading(rng: Generator) -> WarmupTask:
    texts = random_lines(rng, 2)
    question, turns, goal, _ = make_text_question("text.title", rng, texts)
    return question, turns, prefix_goal(goal, f"The first line is {texts[0]}."), texts[0]


def read_entry(rng: Generator) -> WarmupTask:
    texts, label, value = random_lines(rng, 1), random_word(rng).capitalize(), random_line(rng, 2)
    line = f"{label}: {value}"
    texts.insert(int(rng.integers(1, len(texts) + 1)), line)
    question, turns, goal, _ = make_text_question("text.after", rng, texts, label=label, name=label.lower())
    return question, turns, prefix_goal(goal, f'The line reads "{line}": {value}.'), value


TEXT_TASKS = (read_all_text, read_all_text, read_heading, read_entry)
