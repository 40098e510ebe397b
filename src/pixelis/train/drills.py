"""Drills: short conversations without pictures, made by rule, that a policy with random weights does before phase 1.

What a chain mostly asks of a small model is to carry things over: a phrase of the question into a call, a box that a
result printed into the next one, a line that was read into the answer; and to find the right one among several. In the
corpus these are a few tokens among hundreds. Here they are nearly all that is taught, over words and numbers that no
corpus has, so that they cannot be learnt by heart. The form is that of real conversations (`policy.script`).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.random import Generator

from pixelis.data.goals import GOALS, with_goal
from pixelis.data.tallies import NEAREST, SIDES, against, corner
from pixelis.policy import script
from pixelis.policy.ledger import KINDS, Ledger
from pixelis.policy.pictures import Optics
from pixelis.policy.quoting import quote_of
from pixelis.policy.script import Style
from pixelis.policy.tokens import Tokens
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.train import drills_clips, drills_pages, drills_photos, drills_texts
from pixelis.train.drills_words import (
    Drill,
    Talk,
    box,
    number,
    one_after_another,
    pair_of_boxes,
    phrase,
    region,
    several,
    thing,
    word,
)
from pixelis.train.examples import Example, no_steps, outputs
from pixelis.world.item import letter

SLOT = re.compile(r"\{\w+\}")
EVEN, APART = 0.12, 0.3
"""How far two things are apart, at most and at least, along the axis that does not count and the one that does."""
WITH_GOAL = 0.5
"""Share of drills whose every thought carries a word on from the end of the question, as a plain teacher's does."""


def read_a_thing(rng: Generator) -> Drill:
    """Find it, look closer at the box that came back, read."""
    things = several(rng, 1, 3)
    asked, said, where = str(rng.choice(things)), word(rng), box(rng)
    others = f" Not the {things[0]}." if things[0] != asked else ""
    talk: Talk = [
        (f"First the {asked}.", ToolCall(tool="SEG", args={"target": asked}), region(asked, where, rng)),
        (
            f"A closer look at the {asked}.",
            ToolCall(tool="ZOOM", args={"box": list(where)}),
            f"view of {coordinates(where)}",
        ),
        ("Read it.", ToolCall(tool="OCR", args={"media": "View_0"}), f'"{said}" at {coordinates(box(rng))}'),
    ]
    return f"What does the {asked} say?{others}", talk, f"It says {said}.", said


def one_of_many_lines(rng: Generator) -> Drill:
    """Among the lines of a page: the box of one, and what another one says."""
    names = several(rng, 2, 6, word)
    values = [number(rng) if rng.random() < 0.6 else word(rng) for _ in names]
    places = [box(rng) for _ in names]
    between = ": " if rng.random() < 0.5 else " = "
    page = "; ".join(f'"{n}{between}{v}" at {coordinates(p)}' for n, v, p in zip(names, values, places, strict=True))
    k = int(rng.integers(len(names)))
    talk: Talk = [
        ("All lines.", ToolCall(tool="OCR", args={}), f"{len(names)} lines: {page}"),
        (f'A closer look at "{names[k]}".', ToolCall(tool="ZOOM", args={"box": list(places[k])}), "view"),
    ]
    return f'What stands after "{names[k]}"?', talk, f"{names[k]}{between}{values[k]}.", values[k]


def find_each(rng: Generator) -> Drill:
    """Several things of the question, one after the other: which lies furthest to one side, or their order."""
    things = several(rng, 2, 4, thing if rng.random() < 0.7 else phrase)
    furthest = tuple(SIDES)[int(rng.integers(len(SIDES)))]
    side, only = SIDES[furthest], rng.random() < 0.6

    def step(name: str, noted: str) -> tuple[Talk, float]:
        where, area = box(rng), round(rng.uniform(0.0, 0.4), 2)
        told = region(name, where, rng, area)
        call = ToolCall(tool="SEG", args={"target": name})
        return [(f"{noted}Let me find the {name}.", call, told)], area if side.edge is None else where[side.edge]

    talk, kept = one_after_another(things, side, step, named=1 if only else None)
    listed = ", ".join(things)
    if only:
        return f"Which is {furthest}: {listed}?", talk, kept.ended(furthest), kept.first[0][0]
    return f"Sort {listed}: {furthest} first.", talk, kept.ordered(), ", ".join(name for name, _ in kept.first)


def beside(rng: Generator) -> Drill:
    """Two things, and on which side of one the other lies."""
    names, way = several(rng, 2, 2, thing), str(rng.choice(("left", "right", "above", "below")))
    near, far = rng.uniform(-EVEN, EVEN), rng.uniform(APART, 0.7) * (1 if way in ("right", "below") else -1)
    across, down = (far, near) if way in ("left", "right") else (near, far)
    seen_from, there = pair_of_boxes(rng, across, down)
    places = [there, seen_from]
    talk: Talk = [
        (
            f"{noted}Let me find the {name}.",
            ToolCall(tool="SEG", args={"target": name}),
            region(name, where, rng),
        )
        for name, where, noted in zip(names, places, ("", f"{corner(names[0], places[0])}. "), strict=True)
    ]
    last = against(places[0], places[1], way)
    return f"Seen from the {names[1]}, where is the {names[0]}: left, right, above or below?", talk, last, way


def nearest(rng: Generator) -> Drill:
    """Which of several lies nearest to one."""
    name, *things = several(rng, 4, 5, thing)
    here = box(rng)

    def step(one: str, noted: str) -> tuple[Talk, float]:
        there = box(rng)
        call = ToolCall(tool="SEG", args={"target": one})
        away = round(max(abs(there[0] - here[0]), abs(there[1] - here[1])), 2)
        return [(f"{noted or 'Found. '}Let me find the {one}.", call, region(one, there, rng))], away

    talk, kept = one_after_another(things, NEAREST, step)
    talk.insert(0, (f"Let me find the {name}.", ToolCall(tool="SEG", args={"target": name}), region(name, here, rng)))
    listed = " ".join(f"({letter(i)}) {one}" for i, one in enumerate(things))
    return f"Which is nearest to the {name}? Options: {listed}", talk, kept.ended("nearest"), kept.first[0][0]


def one_of_many_regions(rng: Generator) -> Drill:
    """Several regions in one result: how many, and the box of one."""
    count, name = int(rng.integers(1, 7)), phrase(rng)
    places = [box(rng) for _ in range(count)]
    listed = "; ".join(region(name, where, rng) for where in places)
    told = listed if count == 1 else f"{count} regions: {listed}"
    k = int(rng.integers(count))
    order = ("first", "second", "third", "fourth", "fifth", "sixth")[k]
    talk: Talk = [
        (f"Find the {name}.", ToolCall(tool="SEG", args={"target": name}), told),
        (f"The {order} one.", ToolCall(tool="PROP", args={"box": list(places[k]), "attributes": ["colour"]}), "seen"),
    ]
    asked = str(rng.choice(HOW_MANY)).format(name)
    return asked, talk, f"Found {count}.", str(count)


HOW_MANY = ("How many {} are there?", "Count the {} in the photo.", "How many {} can you see?")


def one_by_one(rng: Generator) -> Drill:
    """Options in turn, until one is there; what was not found is not looked for again."""
    things = several(rng, 3, 4, thing)
    k = int(rng.integers(len(things)))
    listed = " ".join(f"({letter(i)}) {name}" for i, name in enumerate(things))
    talk: Talk = []
    for i, name in enumerate(things[: k + 1]):
        said = region(name, box(rng), rng) if i == k else f"SEG failed: SEG found nothing that fits '{name}'"
        back = "Nothing fits. " if i else ""
        talk.append((f"{back}Let me find the {name}.", ToolCall(tool="SEG", args={"target": name}), said))
    return f"Which of these is there? Options: {listed}", talk, f"The {things[k]} is there.", things[k]


def missing(rng: Generator) -> Drill:
    """Options in turn, of which one is not there."""
    things = several(rng, 3, 4, thing)
    k = int(rng.integers(len(things)))
    listed = " ".join(f"({letter(i)}) {name}" for i, name in enumerate(things))
    talk, now, lost = list[tuple[str, ToolCall, str]](), "", ""
    for i, name in enumerate(things):
        told = f"SEG failed: SEG found nothing that fits '{name}'" if i == k else region(name, box(rng), rng)
        back = f"{now}{lost}. " if i else ""
        talk.append((f"{back}Let me find the {name}.", ToolCall(tool="SEG", args={"target": name}), told))
        now, lost = ("Nothing fits", f", missing so far: {name}") if i == k else ("Found", lost)
    return f"Which of these is missing? Options: {listed}", talk, f"{now}; missing is the {things[k]}.", things[k]


def copied(rng: Generator) -> Drill:
    """Several words of any letters, said again in order: nothing but copying."""
    words = several(rng, 2, 8, word)
    said = " ".join(words)
    talk: Talk = [
        ("Read it.", ToolCall(tool="OCR", args={}), f'"{said}" at {coordinates(where := box(rng))}'),
        (f'A closer look at "{said}".', ToolCall(tool="ZOOM", args={"box": list(where)}), "view"),
    ]
    return "What does it say?", talk, f'It reads "{said}".', said


LINE = re.compile(r'"([^"]*)" at \[')
DRILLS = (
    read_a_thing, one_of_many_lines, one_of_many_lines, one_of_many_lines, find_each, find_each, beside,
    one_of_many_regions, one_of_many_regions, one_by_one, missing, beside, nearest, copied, copied,
    *drills_clips.DRILLS, *drills_pages.DRILLS, *drills_photos.DRILLS, *drills_texts.DRILLS,
)  # fmt: skip
"""Some come more often than one in all: those that spell what was read, since most answers are quoted and other words
are not, and those that hold two numbers against each other."""


WITH_THEIR_OWN = (*drills_photos.DRILLS, *drills_texts.DRILLS)
"""Their goals are the corpus's."""


def drill(rng: Generator, tokens: Tokens, style: Style, optics: Optics) -> Example:
    """One conversation."""
    make = DRILLS[int(rng.integers(len(DRILLS)))]
    question, talk, thought, answer = make(rng)
    if make not in WITH_THEIR_OWN and rng.random() < WITH_GOAL:
        goal = SLOT.sub(lambda found: word(rng), str(rng.choice(list(GOALS.values()))))
        goal = goal if rng.random() < 0.7 else word(rng)
        question = f"{question} {goal.capitalize()}?"
        talk = [(with_goal(goal, words), call, said) for words, call, said in talk]
        thought = with_goal(goal, thought)
    pieces = script.asked(style.system, question)
    for step, (words, call, said) in enumerate(talk, start=1):
        result = ToolResult(tool=call.tool, status="ok", text=said)
        pieces += script.called(words, call, step=step)
        pieces += script.told(result, step=step)
    quote = quote_of(answer, printed(talk)) if tokens.quotes else None
    pieces += script.answered(thought, answer, style, step=len(talk) + 1, quote=quote)
    ledger = Ledger()
    ledger.give(pieces, tokens, optics)
    ids = np.array(ledger.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in ledger.kinds], dtype=np.uint8)
    step_of = np.array(ledger.steps, dtype=np.int16)
    return Example(
        id="drill", family="drill", difficulty=1, accepted=True, ids=ids, kinds=kinds, step_of=step_of,
        output_of=outputs(ids, kinds, step_of, tokens), places=(), steps=no_steps(),
    )  # fmt: skip


def printed(talk: Talk) -> list[str]:
    """The lines of the last OCR call, as its result prints them."""
    read = [said for _, call, said in talk if call.tool == "OCR"]
    return LINE.findall(read[-1]) if read else []


def drill_batch(rng: Generator, tokens: Tokens, style: Style, optics: Optics, batch_tokens: int) -> list[Example]:
    """As many conversations as fit into a batch."""
    batch: list[Example] = []
    longest = 0
    while True:
        made = drill(rng, tokens, style, optics)
        longest = max(longest, len(made))
        if batch and longest * (len(batch) + 1) > batch_tokens:
            return batch
        batch.append(made)
