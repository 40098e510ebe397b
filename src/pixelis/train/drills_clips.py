"""Drills on clips: moments, and things that are followed one after another."""

from __future__ import annotations

from collections.abc import Callable

from numpy.random import Generator

from pixelis.data.tallies import MOMENTS, SPEEDS, Side, Tally
from pixelis.geometry import UnitBox
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall
from pixelis.train.drills_words import Drill, Talk, box, region, several, thing, word

WAYS = ("left", "right", "up", "down", "up-left", "up-right", "down-left", "down-right", "still")


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
    """Things found and followed in turn; which of them goes which way."""
    things = several(rng, 1, 3, thing)
    talk, ways = list[tuple[str, ToolCall, str]](), list[str]()
    for i, name in enumerate(things):
        begin, end = box(rng), box(rng)
        back = f"It goes {ways[-1]}. " if i else ""
        ways.append(str(rng.choice(WAYS)))
        told = tracked(begin, end, ways[-1], rng)
        seg = ToolCall(tool="SEG", args={"frame": 0, "target": name})
        talk.append((f"{back}Let me find the {name}.", seg, region(name, begin, rng)))
        talk.append((f"Found. Follow the {name}.", ToolCall(tool="TRK", args={"box": list(begin)}), told))
    name, way = things[-1], ways[-1]
    worded = way.replace("-", " ")
    said = f"{way}: {worded}" if "-" in way else way
    return f"Which way does the {name} go? Follow {', '.join(things)}.", talk, f"The {name} goes {said}.", worded


def tracked(begin: UnitBox, end: UnitBox, way: str, rng: Generator) -> str:
    """A track as TRK prints it."""
    frames = int(rng.integers(24, 64))
    looked = f"1 tracked; {frames} frames looked at, every 1 from 0 to {frames - 1}"
    times = f"0.00-{0.25 * (frames - 1):.2f}s"
    seen = f"seen {frames}, {rng.choice(('flow', 'both'))}, {rng.uniform(0.5, 1):.2f}"
    return f"{looked}\n#1 thing {times} {coordinates(begin)} -> {coordinates(end)} {way}, {seen}"


def found_at(name: str, start: float, end: float, rng: Generator) -> str:
    """A moment as TEMP prints it."""
    looked = f"looked at {int(rng.integers(20, 70))} frames (4.0/s) with regions: {name} (1.00)"
    return f"1. {start:.2f}-{end:.2f} s ({rng.uniform(0.5, 1):.2f}); {looked}"


def one_after_another(
    rng: Generator, sides: dict[str, Side], step: Callable[[str, str], tuple[Talk, float]], question: str
) -> Drill:
    """Things of the question in turn, with a count of who comes first."""
    things = several(rng, 2, 4, thing)
    most = tuple(sides)[int(rng.integers(len(sides)))]
    side = sides[most]
    talk, kept, noted = Talk(), Tally("", (), side), ""
    for name in things:
        steps, value = step(name, noted)
        talk += steps
        kept = Tally(side.now(value), side.order([*kept.first, (name, value)]), side)
        noted = f"{kept.noted(1)} "
    return question.format(most=most, things=", ".join(things)), talk, kept.ended(most), kept.first[0][0]


def fastest(rng: Generator) -> Drill:
    """Which of several came furthest in the same time, or least far."""

    def step(name: str, noted: str) -> tuple[Talk, float]:
        x0, y0, x1, y1 = begin = box(rng)
        by = round(rng.uniform(-x0, 1 - x1), 2)
        end = (round(x0 + by, 2), y0, round(x1 + by, 2), y1)
        seg = ToolCall(tool="SEG", args={"frame": 0, "target": name})
        told = tracked(begin, end, "right" if by > 0 else "left", rng)
        follow = ToolCall(tool="TRK", args={"box": list(begin)})
        found = (f"{noted}Let me find the {name}.", seg, region(name, begin, rng))
        return [found, (f"Found. Follow the {name}.", follow, told)], round(abs(end[0] - begin[0]), 2)

    return one_after_another(rng, SPEEDS, step, "Which is the {most}: {things}?")


def first_of_moments(rng: Generator) -> Drill:
    """Which of several appears first, or last."""

    def step(name: str, noted: str) -> tuple[Talk, float]:
        start = 0.25 * int(rng.integers(0, 56))
        call = ToolCall(tool="TEMP", args={"query": f"the {name} appears", "top_k": 1})
        return [(f"{noted}When is it: {name} appears?", call, found_at(name, start, start + 1.0, rng))], start

    return one_after_another(rng, MOMENTS, step, "Which appears {most}: {things}?")


def both_clips(rng: Generator) -> Drill:
    """In which of two clips a thing goes one way."""
    name, wanted = thing(rng), str(rng.choice(WAYS[:4]))
    talk, ways, back = Talk(), list[str](), ""
    for media in ("Video_0", "Video_1"):
        ways.append(wanted if rng.random() < 0.5 else str(rng.choice(WAYS[:4])))
        begin = box(rng)
        seg = ToolCall(tool="SEG", args={"frame": 0, "media": media, "target": name})
        follow = ToolCall(tool="TRK", args={"box": list(begin), "media": media})
        talk.append((f"{back}Let me find the {name}.", seg, region(name, begin, rng)))
        talk.append((f"Found. Follow the {name}.", follow, tracked(begin, box(rng), ways[-1], rng)))
        back = f"It goes {ways[-1]}. "
    said = ("neither", "Video_0", "Video_1", "both")[(ways[0] == wanted) + 2 * (ways[1] == wanted)]
    last = f"Asked for {wanted}: Video_0 {ways[0]}, Video_1 {ways[1]}: {said}."
    return f"In which clip does the {name} go {wanted}: Video_0, Video_1, both or neither?", talk, last, said


DRILLS = (at_a_moment, followed, fastest, first_of_moments, both_clips)
