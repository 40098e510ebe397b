"""Drills: short conversations without pictures, made by rule, that a policy with random weights does before phase 1.

What a chain mostly asks of a small model is to carry things over: a phrase of the question into a call, a box that a
result printed into the next one, a line that was read into the answer; and to find the right one among several. In the
corpus these are a few tokens among hundreds. Here they are nearly all that is taught, over words and numbers that no
corpus has, so that they cannot be learnt by heart. The form is that of real conversations (`policy.script`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from pixelis.geometry import UnitBox
from pixelis.policy import script
from pixelis.policy.ledger import KINDS, Ledger
from pixelis.policy.pictures import Optics
from pixelis.policy.script import Piece, Style, Words
from pixelis.policy.tokens import Tokens
from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.base import coordinates
from pixelis.tools.colours import COLOURS
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.shapes import SHAPES
from pixelis.train.examples import Example, no_steps, outputs
from pixelis.world.vocabulary import invented

Talk = list[tuple[str, ToolCall, str]]
"""Thought, call, and the words that came back."""


def phrase(rng: Generator) -> str:
    """Something to look for."""
    kind = rng.random()
    if kind < 0.5:
        return f"{rng.choice(COLOURS)} {rng.choice(SHAPES[:-1])}"
    return str(rng.choice(COCO_NAMES)) if kind < 0.7 else invented(rng)


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


def region(name: str, where: UnitBox, rng: Generator) -> str:
    return f"{name} {coordinates(where)} area {rng.uniform(0, 0.4):.2f} score {rng.uniform(0.3, 1):.2f}"


def number(rng: Generator) -> str:
    return str(int(10 ** rng.uniform(0, 3)))


def read_a_thing(rng: Generator) -> tuple[str, Talk, str, str]:
    """Find it, look closer at the box that came back, read."""
    things = several(rng, 1, 3)
    asked, said, where = str(rng.choice(things)), invented(rng), box(rng)
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


def one_of_many_lines(rng: Generator) -> tuple[str, Talk, str, str]:
    """Among the lines of a page: the box of one, and what another one says."""
    names = several(rng, 2, 6, invented)
    values = [number(rng) if rng.random() < 0.6 else invented(rng) for _ in names]
    places = [box(rng) for _ in names]
    page = "; ".join(f'"{n}: {v}" at {coordinates(p)}' for n, v, p in zip(names, values, places, strict=True))
    k = int(rng.integers(len(names)))
    talk: Talk = [
        ("All lines.", ToolCall(tool="OCR", args={}), f"{len(names)} lines: {page}"),
        (f'A closer look at "{names[k]}".', ToolCall(tool="ZOOM", args={"box": list(places[k])}), "view"),
    ]
    return f'What stands after "{names[k]}"?', talk, f"{names[k]}: {values[k]}.", values[k]


def find_each(rng: Generator) -> tuple[str, Talk, str, str]:
    """Several things of the question, one after the other, and which of them lies furthest to one side."""
    things = several(rng, 2, 3)
    places = [box(rng) for _ in things]
    side, pick = [("leftmost", min), ("rightmost", max)][int(rng.integers(2))]
    best = pick(range(len(things)), key=lambda k: places[k][0])
    talk: Talk = [
        (f"Where is the {name}?", ToolCall(tool="SEG", args={"target": name}), region(name, where, rng))
        for name, where in zip(things, places, strict=True)
    ]
    listed = ", ".join(f"{name} {where[0]:.2f}" for name, where in zip(things, places, strict=True))
    answer = things[best]
    return f"Which is {side}: {', '.join(things)}?", talk, f"Left edges: {listed}; {side} is the {answer}.", answer


def one_of_many_regions(rng: Generator) -> tuple[str, Talk, str, str]:
    """Several regions in one result: how many, and the box of one."""
    count, name = int(rng.integers(1, 7)), phrase(rng)
    places = [box(rng) for _ in range(count)]
    listed = "; ".join(region(name, where, rng) for where in places)
    k = int(rng.integers(count))
    order = ("first", "second", "third", "fourth", "fifth", "sixth")[k]
    talk: Talk = [
        (f"Find the {name}.", ToolCall(tool="SEG", args={"target": name}), f"{count} regions: {listed}"),
        (f"The {order} one.", ToolCall(tool="PROP", args={"box": list(places[k]), "attributes": ["colour"]}), "seen"),
    ]
    return f"How many {name}s are there?", talk, f"Found {count}.", str(count)


DRILLS = (read_a_thing, one_of_many_lines, find_each, one_of_many_regions)


def drill(rng: Generator, tokens: Tokens, style: Style, optics: Optics) -> Example:
    """One conversation."""
    question, talk, thought, answer = DRILLS[int(rng.integers(len(DRILLS)))](rng)
    pieces: list[Piece] = [
        Words(f"<|im_start|>system\n{style.system}<|im_end|>\n<|im_start|>user\n", "prompt", control=True),
        Words(question, "prompt"),
        Words("<|im_end|>\n<|im_start|>assistant\n", "prompt", control=True),
    ]
    for number, (words, call, said) in enumerate(talk, start=1):
        result = ToolResult(tool=call.tool, status="ok", text=said)
        pieces += script.called(words, call, step=number)
        pieces += script.told(result, step=number)
    pieces += script.answered(thought, answer, step=len(talk) + 1)
    ledger = Ledger()
    ledger.give(pieces, tokens, optics)
    ids = np.array(ledger.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in ledger.kinds], dtype=np.uint8)
    step_of = np.array(ledger.steps, dtype=np.int16)
    return Example(
        id="drill", family="drill", difficulty=1, accepted=True, ids=ids, kinds=kinds, step_of=step_of,
        output_of=outputs(ids, kinds, step_of, tokens), places=(), steps=no_steps(),
    )  # fmt: skip


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
