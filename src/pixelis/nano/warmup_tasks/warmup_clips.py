"""Warm-up tasks on clips: moments, and things followed one after another."""

from __future__ import annotations

from math import hypot

from numpy.random import Generator

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle.running_notes import SPEED_KEYS, START_TIME_KEYS, RankingKey
from pixelis.nano.warmup_tasks.warmup_vocabulary import (
    Turn,
    TurnMaker,
    Turns,
    WarmupTask,
    format_region,
    random_box,
    random_box_pair,
    random_figure,
    random_word,
    rank_in_turn,
    sample_distinct,
    seg_turn,
)
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall
from pixelis.tools.trk import centre_displacement, direction

DIRECTIONS = {
    "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "up-left": (-1, -1), "up-right": (1, -1),
    "down-left": (-1, 1), "down-right": (1, 1), "still": (0, 0),
}  # fmt: skip
"""TRK's names, with the signs of x and y."""
OPPOSITES = (("left", "right"), ("right", "left"), ("up", "down"), ("down", "up"))


def read_at_moment(rng: Generator) -> WarmupTask:
    """Find a moment, then read at one of its ends."""
    name, line = random_figure(rng), random_word(rng)
    start = 0.25 * int(rng.integers(0, 56))
    end = start + 0.25 * int(rng.integers(2, 16))
    which, time_s = (("first", start), ("last", end))[int(rng.integers(2))]
    find, read = temp_turn(name, start, end, rng), ToolCall(tool="OCR", args={"time_s": time_s})
    result_text = f'"{line}" at {coordinates(random_box(rng))}'
    turns = [find, (f"At {start:.2f}-{end:.2f} s. Read the {which} moment.", read, result_text)]
    return f"What is written in the {which} moment of the {name}?", turns, f"At {time_s:.2f} s it says {line}.", line


def follow_things(rng: Generator) -> WarmupTask:
    """Find and follow things in turn; in which direction does the last one go?"""
    things = sample_distinct(rng, 1, 3, random_figure)
    turns, heading, previous_note = Turns(), "", ""
    for name in things:
        steps, heading = track_thing(name, str(rng.choice(tuple(DIRECTIONS))), previous_note, rng)
        turns += steps
        previous_note = "It stays where it is. " if heading == "still" else f"It goes {heading}. "
    name, heading_words = things[-1], heading.replace("-", " ")
    full_answer = f"{heading}: {heading_words}" if "-" in heading else heading
    question = f"Which way does the {name} go? Follow {', '.join(things)}."
    return question, turns, f"The {name} goes {full_answer}.", heading_words


def track_thing(name: str, heading: str, previous_note: str, rng: Generator, **media: str) -> tuple[Turns, str]:
    """Find and follow a thing; also returns the direction that TRK reports."""
    x, y = DIRECTIONS[heading]
    distance = rng.uniform(0.12, 0.6)
    begin, end = random_box_pair(rng, x * distance + rng.uniform(-0.02, 0.02), y * distance + rng.uniform(-0.02, 0.02))
    frames = int(rng.integers(24, 64))
    find = seg_turn(name, format_region(name, begin, rng), previous_note, frame=0, **media)
    return [find, trk_turn(name, begin, end, frames, rng, **media)], direction(begin, end)


def trk_turn(name: str, begin: UnitBox, end: UnitBox, frames: int, rng: Generator, **media: str) -> Turn:
    call = ToolCall(tool="TRK", args={"box": list(begin), **media})
    return f"Found. Follow the {name}.", call, format_track(begin, end, frames, rng)


def format_track(begin: UnitBox, end: UnitBox, frames: int, rng: Generator) -> str:
    """A track as TRK prints it."""
    header = f"1 tracked; {frames} frames looked at, every 1 from 0 to {frames - 1}"
    times = f"0.00-{0.25 * (frames - 1):.2f}s"
    visibility = f"seen {frames}, {rng.choice(('flow', 'both'))}, {rng.uniform(0.5, 1):.2f}"
    motion = f"{direction(begin, end)} {hypot(*centre_displacement(begin, end)):.2f}"
    return f"{header}\n#1 thing {times} {coordinates(begin)} -> {coordinates(end)} {motion}, {visibility}"


def temp_turn(name: str, start: float, end: float, rng: Generator, note: str = "") -> Turn:
    """A turn that finds a moment with TEMP."""
    call = ToolCall(tool="TEMP", args={"query": f"the {name} appears", "top_k": 1})
    frames_note = f"looked at {int(rng.integers(20, 70))} frames (4.0/s) with regions: {name} (1.00)"
    result_text = f"1. {start:.2f}-{end:.2f} s ({rng.uniform(0.5, 1):.2f}); {frames_note}"
    return f"{note}When is it: {name} appears?", call, result_text


def rank_in_clip(rng: Generator, sides: dict[str, RankingKey], make_turns: TurnMaker, question: str) -> WarmupTask:
    """Examine the things of the question in turn, and rank them."""
    things = sample_distinct(rng, 2, 4, random_figure)
    superlative = tuple(sides)[int(rng.integers(len(sides)))]
    turns, tally = rank_in_turn(things, sides[superlative], make_turns)
    question = question.format(most=superlative, things=", ".join(things))
    return question, turns, tally.to_conclusion(superlative), tally.ranking[0][0]


def find_fastest(rng: Generator) -> WarmupTask:
    """Which of several moves furthest in the same time, or least far?"""
    frames = int(rng.integers(24, 64))

    def make_turns(name: str, note: str) -> tuple[Turns, float]:
        begin, end = random_box_pair(rng, rng.uniform(0.05, 0.7) * rng.choice((-1, 1)), rng.uniform(-0.02, 0.02))
        found = seg_turn(name, format_region(name, begin, rng), note, frame=0)
        distance = round(hypot(*centre_displacement(begin, end)), 2)
        return [found, trk_turn(name, begin, end, frames, rng)], distance

    return rank_in_clip(rng, SPEED_KEYS, make_turns, "Which is the {most}: {things}?")


def find_first_moment(rng: Generator) -> WarmupTask:
    """Which of several appears first, or last?"""

    def make_turns(name: str, note: str) -> tuple[Turns, float]:
        start = 0.25 * int(rng.integers(0, 56))
        return [temp_turn(name, start, start + 1.0, rng, note)], start

    return rank_in_clip(rng, START_TIME_KEYS, make_turns, "Which appears {most}: {things}?")


def compare_clips(rng: Generator) -> WarmupTask:
    """In which of two clips does a thing go in one direction? In the others it goes in the opposite one."""
    name, (target_heading, opposite_heading) = random_figure(rng), OPPOSITES[int(rng.integers(len(OPPOSITES)))]
    k = int(rng.integers(4))
    turns, headings, previous_note = Turns(), list[str](), ""
    for number, media in enumerate(("Video_0", "Video_1")):
        heading = target_heading if k >> number & 1 else opposite_heading
        steps, heading = track_thing(name, heading, previous_note, rng, media=media)
        turns += steps
        headings.append(heading)
        previous_note = f"It goes {heading}. "
    answer = ("neither", "Video_0", "Video_1", "both")[k]
    final_thought = f"Asked for {target_heading}: Video_0 {headings[0]}, Video_1 {headings[1]}: {answer}."
    question = f"In which clip does the {name} go {target_heading}: Video_0, Video_1, both or neither?"
    return question, turns, final_thought, answer


CLIP_TASKS = (read_at_moment, follow_things, find_fastest, find_first_moment, compare_clips)
