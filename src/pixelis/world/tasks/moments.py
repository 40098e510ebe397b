"""motion (MVBench), second part: when things happen, how often, in which order, and what is to be seen then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pixelis.geometry import Mask, Span, Track
from pixelis.world.film import FPS, Film, Path
from pixelis.world.item import Reference
from pixelis.world.painting import mask_at
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    field_of,
    middle,
    region,
    says,
    showing,
    stretch,
    stretches,
    text_of,
    track,
    words_of,
)
from pixelis.world.tasks.motion import START, cast, drafted, lanes
from pixelis.world.tasks.staging import FIGURES
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import choose, listed, names, sample, whole

WHICH = ("first", "last")


def bystanders(brief: Brief, film: Film, hues: Sequence[str], count: int, spots: Sequence[tuple[float, float]]) -> None:
    """Things that stay where they are, in colours that nobody asks for."""
    for spot in sample(brief.rng, spots, min(count, len(spots))):
        film.add(choose(brief.rng, hues), choose(brief.rng, FIGURES), film.still(*spot), radius=film.radius())


def _order(brief: Brief) -> Draft:
    film = Film(brief, frames=48, pan=brief.chance(0.6))
    width, _ = film.size
    starts = sample(brief.rng, (whole(brief.rng, 4, 7), whole(brief.rng, 17, 21), whole(brief.rng, 31, 36)), 3)
    made, evidence = [], []
    for (colour, figure), row, first in zip(cast(brief, film, 3), lanes(brief, film, 3), starts, strict=True):
        x = brief.rng.uniform(0.25, 0.75) * width
        made.append(film.add(colour, figure, film.straight((x, row), (x + brief.rng.uniform(-40, 40), row), first)))
        evidence.append(film.event(f"{colour} {figure} appears", first))
    phrases = tuple(sample(brief.rng, [a.phrase for a in made], 3))
    parameters = {"things": phrases, "listed": listed(phrases), "which": choose(brief.rng, WHICH)}
    return drafted(film, evidence, parameters)


def _in_time(references: References, parameters: Parameters) -> str:
    found = [
        (span.start_s, p)
        for p in words_of(parameters, "things")
        if comes_into_view(track(references, p), span := stretch(references, f"{p} appears"))
    ]
    if len(found) < len(words_of(parameters, "things")):
        raise Unanswerable("one of them does not appear then")
    return (min(found) if text_of(parameters, "which") == "first" else max(found))[1]


def _times(brief: Brief) -> Draft:
    count = whole(brief.rng, 1, 4)
    film = Film(brief, frames=64 if count == 4 else 48, pan=brief.chance(0.6))
    width, height = film.size
    colour, figure = film.colours[0], choose(brief.rng, FIGURES)
    period = (film.frames - 4) // max(count, 2)
    spot = (brief.rng.uniform(0.3, 0.7) * width, brief.rng.uniform(0.3, 0.7) * height)
    path, evidence = film.still(*spot, 0, 0), []
    for k in range(count):
        first = 4 + k * period + int(brief.rng.integers(0, 2))
        path[first : first + period // 2] = spot
        evidence.append(film.event(f"{colour} {figure} appears", first))
    film.add(colour, figure, path)
    spots = [(60, 60), (width - 60, 60), (60, height - 60), (width - 60, height - 60)]
    spots = [s for s in spots if abs(s[0] - spot[0]) + abs(s[1] - spot[1]) > 130]
    bystanders(brief, film, [c for c in film.colours if c != colour], 2, spots)
    return drafted(film, evidence, {"target": f"{colour} {figure}"})


def _how_often(references: References, parameters: Parameters) -> str:
    target = text_of(parameters, "target")
    followed = track(references, target)
    return str(sum(comes_into_view(followed, span) for span in stretches(references, f"{target} appears")))


def comes_into_view(followed: Track, span: Span) -> bool:
    """Whether a thing is there at the end of a segment and was not just before it."""
    before, after = round(span.start_s * FPS) - 1, round(span.end_s * FPS) - 1
    return followed.at(before) is None and followed.at(after) is not None if before >= 0 else False


def _where_when(brief: Brief) -> Draft:
    film = Film(brief, frames=44)
    width, height = film.size
    (a, b) = cast(brief, film, 2)
    radius = min(film.radius(), 24)
    path, first, goal = _bounce_through(brief, film, int(brief.rng.integers(9)), radius)
    subject = film.add(*a, path, radius=radius)
    corner = next(
        spot
        for spot in sample(brief.rng, [(56, 50), (width - 56, 50), (56, height - 50), (width - 56, height - 50)], 4)
        if abs(spot[0] - goal[0]) + abs(spot[1] - goal[1]) > 150
    )
    film.add(*b, film.still(*corner, first), radius=min(film.radius(), 24))
    event = film.event(f"{' '.join(b)} appears", first)
    return drafted(film, [subject.name, event], {"target": subject.phrase, "b": " ".join(b)})


def _bounce_through(brief: Brief, film: Film, index: int, radius: int) -> tuple[Path, int, tuple[float, float]]:
    """A bouncing way that is well inside one of nine fields about a frame; the way, the frame, and the place."""
    width, height = film.size
    best: tuple[float, Path, int] | None = None
    for _ in range(60):
        start = (brief.rng.uniform(radius, width - radius), brief.rng.uniform(radius, height - radius))
        step = (brief.rng.uniform(-7.0, 7.0), brief.rng.uniform(-5.0, 5.0))
        path = film.bouncing(start, step, radius + 2)
        off = np.abs(path / [width, height] * 3 - [index % 3 + 0.5, index // 3 + 0.5]).max(axis=1)  # under 0.5: inside
        around = np.maximum.reduce([off[10:-10], off[9:-11], off[11:-9], off[12:-8]])
        k = int(around.argmin())
        if best is None or around[k] < best[0]:
            best = (float(around[k]), path, k + 10)
        if best[0] < 0.33:
            break
    assert best is not None  # noqa: S101 - the loop ran
    _, path, first = best
    return path, first, (float(path[first, 0]), float(path[first, 1]))


def _field_at(references: References, parameters: Parameters) -> str:
    followed = track(references, text_of(parameters, "target"))
    other = text_of(parameters, "b")
    span = stretch(references, f"{other} appears")
    if not comes_into_view(track(references, other), span):
        raise Unanswerable(f"the {other} does not appear then")
    index = round(middle(span) * FPS)
    box = followed.at(min(max(index, followed.frames[0]), followed.frames[-1]))
    if box is None:
        raise Unanswerable("it is out of sight then")
    return field_of(box)


def _turns(brief: Brief) -> Draft:
    film = Film(brief, frames=40)
    width, height = film.size
    figure, before, after = (
        choose(brief.rng, ("circle", "square", "diamond", "triangle", "star")),
        film.colours[0],
        film.colours[1],
    )
    change = whole(brief.rng, 14, 28)
    spot = (brief.rng.uniform(0.25, 0.75) * width, brief.rng.uniform(0.25, 0.75) * height)
    radius = film.radius(big=brief.chance(0.3))
    state = brief.rng.bit_generator.state
    film.add(before, figure, film.still(*spot, 0, change), radius=radius)
    brief.rng.bit_generator.state = state  # the same light, slant and style in another paint
    later = film.add(after, figure, film.still(*spot, change), radius=radius)
    spots = [(50, 50), (width - 50, 50), (50, height - 50), (width - 50, height - 50)]
    far = [s for s in spots if abs(s[0] - spot[0]) + abs(s[1] - spot[1]) > 150]
    bystanders(brief, film, [c for c in film.colours if c not in (before, after)], 2, far)
    last = film.frames - 1
    camera = (int(film.camera[last, 0]), int(film.camera[last, 1]))
    box = later.box(last, camera)
    assert box is not None  # noqa: S101 - it stays to the end
    mask: Mask = mask_at(
        later.sprite.alpha > 127,
        box[0],
        box[1],
        film.size,
        media=film.media,
        frame=last,
        label=f"{before} {figure} at the end",
    )
    film.extra.append(Reference(name="end", footprint=mask, properties={"colour": after, "shape": figure}))
    parameters = {"target": f"{before} {figure}", "attribute": "colour", "last_frame": last}
    return drafted(film, ["end"], parameters)


def _colour_at_end(references: References, parameters: Parameters) -> str:
    return str(region(references, f"{text_of(parameters, 'target')} at the end").properties["colour"])


def _passing(brief: Brief) -> Draft:
    film = Film(brief, frames=44, pan=brief.chance(0.6))
    width, height = film.size
    words = names(brief.rng, 2)
    hues = film.lone_colours[:2]
    px = min((24, 22, 20, 16, 13)[brief.dial.level - 1], 24)
    first = whole(brief.rng, 6, 22)
    last = first + whole(brief.rng, 10, 14)
    rows = sample(brief.rng, (0.3 * height, 0.7 * height), 2)
    x = brief.rng.uniform(0.4, 0.6) * width
    hopping = film.bouncing((60.0, 60.0), (brief.rng.uniform(3, 9), brief.rng.uniform(3, 7)), 16)
    film.add(film.lone_colours[2], choose(brief.rng, FIGURES), hopping, radius=14)  # behind the panels
    asked = film.panel(hues[0], words[0], film.straight((x - 30, rows[0]), (x + 30, rows[0]), first, last), px)
    film.panel(hues[1], words[1], film.still(brief.rng.uniform(0.35, 0.65) * width, rows[1]), px)
    evidence = [film.event(asked.phrase, first, last), f"text_{asked.name}"]
    return drafted(film, evidence, {"target": asked.phrase, "colour": hues[0]})


def _says_then(references: References, parameters: Parameters) -> str:
    target = text_of(parameters, "target")
    found = showing(references, middle(stretch(references, target)), panel=target)
    if not found:
        raise Unanswerable(f"the {target} is not there then")
    return says(found[0])


TEMPLATES = (
    Template(
        "motion.order", "motion",
        (
            "Which appears {which}: {listed}?",
            "Three things come into the picture: {listed}. Which comes {which}?",
            "Of {listed}, what is the {which} to appear?",
            "In the order of their appearance, which of {listed} is {which}?",
        ),
        _order, _in_time, "exact",
        (ChainStep(tool="TEMP", args={"query": "the {things[i]} appears", "top_k": 1}, note="once for each"),),
        doc="compare the starts of the segments",
    ),
    Template(
        "motion.times", "motion",
        (
            "How many times does the {target} appear?",
            "Count how often the {target} comes into view.",
            "The {target} comes and goes. How many times does it appear?",
            "How often can one see the {target} show up?",
        ),
        _times, _how_often, "exact", (ChainStep(tool="TEMP", args={"query": "the {target} appears", "top_k": 10}),),
        doc="the number of segments",
    ),
    Template(
        "motion.where_when", "motion",
        (
            "Where in the picture is the {target} when the {b} appears? Answer like: top left, centre, bottom.",
            "At the moment that the {b} appears, which part of the frame (top left … bottom right) holds the {target}?",
            "The {b} appears. Where is the {target} then, of nine fields from top left to bottom right?",
            "Find the {target} at the time of the {b}'s appearance: is it top left, top, centre, …?",
        ),
        _where_when, _field_at, "exact",
        (
            ChainStep(tool="TEMP", args={"query": "the {b} appears", "top_k": 1}),
            ChainStep(tool="SEG", args={"target": "{target}", "time_s": "$1.span.start_s"}),
            ChainStep(tool="PROP", args={"mask": "$2.mask", "attributes": ["position"]}),
        ),
        doc="the position that PROP names",
    ),
    Template(
        "motion.turns", "motion",
        (
            "What colour does the {target} turn into?",
            "Which colour does the {target} have at the end?",
            "The {target} changes its colour. To which one?",
            "At the end of the clip, what is the colour of what was the {target}?",
        ),
        _turns, _colour_at_end, "exact",
        (START, ChainStep(tool="PROP", args={"box": "$1.box", "frame": "{last_frame}", "attributes": ["colour"]})),
        doc="the colour that PROP names on the last frame",
    ),
    Template(
        "motion.passing", "motion",
        (
            "What is written on the {colour} panel that comes and goes?",
            "For a while a {colour} panel is shown. What does it say?",
            "Read the {colour} panel while it is in the picture.",
            "Which word is on the {colour} panel?",
        ),
        _passing, _says_then, "exact",
        (
            ChainStep(tool="TEMP", args={"query": "the {target}", "top_k": 1}),
            ChainStep(tool="SEG", args={"target": "{target}", "time_s": "$1.span.start_s"}, note="mid-segment is best"),
            ChainStep(tool="ZOOM", args={"box": "$2.box", "frame": "$2.frame"}),
            ChainStep(tool="OCR", args={"media": "$3.view"}),
        ),
        doc="the text that OCR read",
    ),
)  # fmt: skip
