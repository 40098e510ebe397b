"""Drills on clips: moments, and things that are followed one after another."""

from __future__ import annotations

from math import hypot

from numpy.random import Generator

from pixelis.data.tallies import MOMENTS, SPEEDS, Side
from pixelis.geometry import UnitBox
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall
from pixelis.tools.trk import direction, went
from pixelis.train.drills_words import (
    Drill,
    Step,
    Talk,
    box,
    one_after_another,
    pair_of_boxes,
    region,
    several,
    thing,
    word,
)

WAYS = {
    "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "up-left": (-1, -1), "up-right": (1, -1),
    "down-left": (-1, 1), "down-right": (1, 1), "still": (0, 0),
}  # fmt: skip
"""As TRK calls them, with the signs of x and y."""
ACROSS = (("left", "right"), ("right", "left"), ("up", "down"), ("down", "up"))


def at_a_moment(rng: Generator) -> Drill:
    """A stretch of time, then something at one of its ends."""
    name, line = thing(rng), word(rng)
    start = 0.25 * int(rng.integers(0, 56))
    end = start + 0.25 * int(rng.integers(2, 16))
    which, at = (("first", start), ("last", end))[int(rng.integers(2))]
    found = found_at(name, start, end, rng)
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
    """Things found and followed in turn; which way the last of them goes."""
    things = several(rng, 1, 3, thing)
    talk, way, back = Talk(), "", ""
    for name in things:
        steps, way = watched(name, str(rng.choice(tuple(WAYS))), back, rng)
        talk += steps
        back = "It stays where it is. " if way == "still" else f"It goes {way}. "
    name, worded = things[-1], way.replace("-", " ")
    said = f"{way}: {worded}" if "-" in way else way
    return f"Which way does the {name} go? Follow {', '.join(things)}.", talk, f"The {name} goes {said}.", worded


def watched(name: str, way: str, back: str, rng: Generator, **media: str) -> tuple[Talk, str]:
    """A thing found and followed, and the way that TRK says it goes."""
    x, y = WAYS[way]
    far = rng.uniform(0.12, 0.6)
    begin, end = pair_of_boxes(rng, x * far + rng.uniform(-0.02, 0.02), y * far + rng.uniform(-0.02, 0.02))
    seg = ToolCall(tool="SEG", args={"frame": 0, **media, "target": name})
    follow = ToolCall(tool="TRK", args={"box": list(begin), **media})
    frames = int(rng.integers(24, 64))
    talk = [
        (f"{back}Let me find the {name}.", seg, region(name, begin, rng)),
        (f"Found. Follow the {name}.", follow, tracked(begin, end, frames, rng)),
    ]
    return talk, direction(begin, end)


def tracked(begin: UnitBox, end: UnitBox, frames: int, rng: Generator) -> str:
    """A track as TRK prints it."""
    looked = f"1 tracked; {frames} frames looked at, every 1 from 0 to {frames - 1}"
    times = f"0.00-{0.25 * (frames - 1):.2f}s"
    seen = f"seen {frames}, {rng.choice(('flow', 'both'))}, {rng.uniform(0.5, 1):.2f}"
    moved = f"{direction(begin, end)} {hypot(*went(begin, end)):.2f}"
    return f"{looked}\n#1 thing {times} {coordinates(begin)} -> {coordinates(end)} {moved}, {seen}"


def found_at(name: str, start: float, end: float, rng: Generator) -> str:
    """A moment as TEMP prints it."""
    looked = f"looked at {int(rng.integers(20, 70))} frames (4.0/s) with regions: {name} (1.00)"
    return f"1. {start:.2f}-{end:.2f} s ({rng.uniform(0.5, 1):.2f}); {looked}"


def ranked(rng: Generator, sides: dict[str, Side], step: Step, question: str) -> Drill:
    """Things of the question in turn, with a count of who comes first."""
    things = several(rng, 2, 4, thing)
    most = tuple(sides)[int(rng.integers(len(sides)))]
    talk, kept = one_after_another(things, sides[most], step)
    return question.format(most=most, things=", ".join(things)), talk, kept.ended(most), kept.first[0][0]


def fastest(rng: Generator) -> Drill:
    """Which of several came furthest in the same time, or least far."""
    frames = int(rng.integers(24, 64))

    def step(name: str, noted: str) -> tuple[Talk, float]:
        begin, end = pair_of_boxes(rng, rng.uniform(0.05, 0.7) * rng.choice((-1, 1)), rng.uniform(-0.02, 0.02))
        seg = ToolCall(tool="SEG", args={"frame": 0, "target": name})
        follow = ToolCall(tool="TRK", args={"box": list(begin)})
        found = (f"{noted}Let me find the {name}.", seg, region(name, begin, rng))
        came = round(hypot(*went(begin, end)), 2)
        return [found, (f"Found. Follow the {name}.", follow, tracked(begin, end, frames, rng))], came

    return ranked(rng, SPEEDS, step, "Which is the {most}: {things}?")


def first_of_moments(rng: Generator) -> Drill:
    """Which of several appears first, or last."""

    def step(name: str, noted: str) -> tuple[Talk, float]:
        start = 0.25 * int(rng.integers(0, 56))
        call = ToolCall(tool="TEMP", args={"query": f"the {name} appears", "top_k": 1})
        return [(f"{noted}When is it: {name} appears?", call, found_at(name, start, start + 1.0, rng))], start

    return ranked(rng, MOMENTS, step, "Which appears {most}: {things}?")


def both_clips(rng: Generator) -> Drill:
    """In which of two clips a thing goes one way; where it does not, it goes the other."""
    name, (wanted, other) = thing(rng), ACROSS[int(rng.integers(len(ACROSS)))]
    k = int(rng.integers(4))
    talk, ways, back = Talk(), list[str](), ""
    for number, media in enumerate(("Video_0", "Video_1")):
        steps, way = watched(name, wanted if k >> number & 1 else other, back, rng, media=media)
        talk += steps
        ways.append(way)
        back = f"It goes {way}. "
    said = ("neither", "Video_0", "Video_1", "both")[k]
    last = f"Asked for {wanted}: Video_0 {ways[0]}, Video_1 {ways[1]}: {said}."
    return f"In which clip does the {name} go {wanted}: Video_0, Video_1, both or neither?", talk, last, said


DRILLS = (at_a_moment, followed, fastest, first_of_moments, both_clips)
