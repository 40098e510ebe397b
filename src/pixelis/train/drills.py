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
from pixelis.data.tallies import SIDES, Tally, against, corner
from pixelis.policy import script
from pixelis.policy.ledger import KINDS, Ledger
from pixelis.policy.pictures import Optics
from pixelis.policy.quoting import quote_of
from pixelis.policy.script import Style
from pixelis.policy.tokens import Tokens
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.train import drills_pages, drills_photos
from pixelis.train.drills_words import Drill, Talk, box, number, phrase, region, several, thing, word
from pixelis.train.examples import Example, no_steps, outputs
from pixelis.world.item import letter

SLOT = re.compile(r"\{\w+\}")
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
    side = SIDES[furthest]
    most = 1 if rng.random() < 0.6 else len(things)
    talk, kept, noted = list[tuple[str, ToolCall, str]](), Tally("", (), side), ""
    for name in things:
        where = box(rng)
        talk.append(
            (f"{noted}Let me find the {name}.", ToolCall(tool="SEG", args={"target": name}), region(name, where, rng))
        )
        value = side.of(where)
        kept = Tally(side.now(value), side.order([*kept.first, (name, value)]), side)
        noted = f"{kept.noted(most)} "
    listed = ", ".join(things)
    if most == 1:
        return f"Which is {furthest}: {listed}?", talk, kept.ended(furthest), kept.first[0][0]
    return f"Sort {listed}: {furthest} first.", talk, kept.ordered(), ", ".join(name for name, _ in kept.first)


def beside(rng: Generator) -> Drill:
    """Two things, and on which side of one the other lies."""
    names, places = several(rng, 2, 2, thing), [box(rng), box(rng)]
    (ax, ay, *_), (bx, by, *_) = places
    across, down = ax - bx, ay - by
    way = ("left", "right")[across > 0] if abs(across) >= abs(down) else ("above", "below")[down > 0]
    talk: Talk = [
        (
            f"{noted}Let me find the {name}.",
            ToolCall(tool="SEG", args={"target": name}),
            region(name, where, rng),
        )
        for name, where, noted in zip(names, places, ("", f"{corner(names[0], places[0])}. "), strict=True)
    ]
    last = against((names[0], places[0]), (names[1], places[1]), way)
    return f"Seen from the {names[1]}, where is the {names[0]}: left, right, above or below?", talk, last, way


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


def at_a_moment(rng: Generator) -> Drill:
    """A stretch of time, then something at one of its ends."""
    name, line = thing(rng), word(rng)
    start = 0.25 * int(rng.integers(0, 56))
    end = start + 0.25 * int(rng.integers(2, 16))
    looked = f"looked at {int(rng.integers(20, 70))} frames (4.0/s) with regions: {name} (1.00)"
    which, at = (("first", start), ("last", end))[int(rng.integers(2))]
    found = f"1. {start:.2f}-{end:.2f} s ({rng.uniform(0.5, 1):.2f}); {looked}"
    query = {"query": f"the {name} appears", "top_k": 1}
    talk: Talk = [
        (f"When is it: {name} appears?", ToolCall(tool="TEMP", args=query), found),
        (
            f"At {start:.2f}-{end:.2f} s. Read the {which} moment.",
            ToolCall(tool="OCR", args={"time_s": at}),
            f'"{line}" at {coordinates(box(rng))}',
        ),
    ]
    return f"What is written in the {which} moment of the {name}?", talk, f"At {at:.2f} s it says {line}.", line


def followed(rng: Generator) -> Drill:
    """Things found and followed in turn; which of them goes which way."""
    things = several(rng, 1, 3, thing)
    talk, ways = list[tuple[str, ToolCall, str]](), list[str]()
    for i, name in enumerate(things):
        begin, end = box(rng), box(rng)
        back = f"It goes {ways[-1]}. " if i else ""
        ways.append(str(rng.choice(WAYS)))
        told = f"1 tracked\n#1 thing {coordinates(begin)} -> {coordinates(end)} {ways[-1]}, {rng.uniform(0.5, 1):.2f}"
        seg = ToolCall(tool="SEG", args={"frame": 0, "target": name})
        talk.append((f"{back}Let me find the {name}.", seg, region(name, begin, rng)))
        talk.append((f"Found. Follow the {name}.", ToolCall(tool="TRK", args={"box": list(begin)}), told))
    k = int(rng.integers(len(things)))
    listed = ", ".join(f"{name} {way}" for name, way in zip(things, ways, strict=True))
    return f"Which way does the {things[k]} go? Follow {', '.join(things)}.", talk, f"{listed}.", ways[k]


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
WAYS = ("left", "right", "up", "down", "up-left", "up-right", "down-left", "down-right", "still")
DRILLS = (
    read_a_thing, one_of_many_lines, one_of_many_lines, one_of_many_lines, find_each, find_each, beside,
    one_of_many_regions, one_of_many_regions, one_by_one, at_a_moment, followed, copied, copied,
    *drills_pages.DRILLS, *drills_photos.DRILLS,
)  # fmt: skip
"""Those that spell what was read come more often than one in all: most answers are quoted, and other words are not."""


def drill(rng: Generator, tokens: Tokens, style: Style, optics: Optics) -> Example:
    """One conversation."""
    make = DRILLS[int(rng.integers(len(DRILLS)))]
    question, talk, thought, answer = make(rng)
    if make not in drills_photos.DRILLS and rng.random() < WITH_GOAL:  # theirs are the corpus's own
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
    pieces += script.answered(thought, answer, step=len(talk) + 1, quote=quote)
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
