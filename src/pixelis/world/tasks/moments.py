"""motion (MVBench), second part: when things happen, how often, in which order, and what is visible then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pixelis.core.geometry import Span, Track
from pixelis.items import Reference
from pixelis.world.film import FPS, Film, MotionPath
from pixelis.world.painting import make_mask
from pixelis.world.programs import Facts, Unanswerable, line_text, locate_field, midpoint, require_first
from pixelis.world.tasks.motion import choose_figures, choose_lanes
from pixelis.world.tasks.staging import COMMON_FIGURES
from pixelis.world.template import Brief, ItemDraft, load_templates, make_measured_draft
from pixelis.world.vocabulary import choose, choose_names, join_words, sample, sample_int

FIRST_OR_LAST = ("first", "last")


def add_bystanders(brief: Brief, film: Film, hues: Sequence[str], spots: Sequence[tuple[float, float]]) -> None:
    """Add up to two still things in other colours than the target's."""
    for spot in sample(brief.rng, spots, min(2, len(spots))):
        colour, figure = choose(brief.rng, hues), choose(brief.rng, COMMON_FIGURES)
        film.add(colour, figure, film.still_path(*spot), radius=film.sample_radius())


def corners(film: Film, x: int, y: int) -> list[tuple[float, float]]:
    """Places at these distances from the corners of the frame."""
    width, height = film.size
    return [(x, y), (width - x, y), (x, height - y), (width - x, height - y)]


def is_distant(a: tuple[float, float], b: tuple[float, float], distance: int) -> bool:
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) > distance


def _compose_order(brief: Brief) -> ItemDraft:
    film = Film(brief, frames=48, pan=brief.bernoulli(0.6))
    width, _ = film.size
    frames = [sample_int(brief.rng, low, high) for low, high in ((4, 7), (17, 21), (31, 36))]
    starts = sample(brief.rng, frames, 3)
    actors, evidence = [], []
    pairs, rows = choose_figures(brief, film, 3), choose_lanes(brief, film, 3)
    for (colour, figure), row, first in zip(pairs, rows, starts, strict=True):
        x = brief.rng.uniform(0.25, 0.75) * width
        path = film.straight_path((x, row), (x + brief.rng.uniform(-40, 40), row), first)
        actors.append(film.add(colour, figure, path))
        evidence.append(film.add_event(f"{colour} {figure} appears", first))
    phrases = tuple(sample(brief.rng, [a.phrase for a in actors], 3))
    parameters = {"things": phrases, "listed": join_words(phrases), "which": choose(brief.rng, FIRST_OR_LAST)}
    return make_measured_draft(film, evidence, parameters)


def _solve_order(facts: Facts) -> str:
    appearances = [
        (span.start_s, p)
        for p in facts.words("things")
        if comes_into_view(facts.track(p), span := facts.span(f"{p} appears"))
    ]
    if len(appearances) < len(facts.words("things")):
        raise Unanswerable("one of them does not appear then")
    return (min(appearances) if facts.text("which") == "first" else max(appearances))[1]


def _compose_times(brief: Brief) -> ItemDraft:
    count = sample_int(brief.rng, 1, 4)
    film = Film(brief, frames=64 if count == 4 else 48, pan=brief.bernoulli(0.6))
    width, height = film.size
    colour, figure = film.colours[0], choose(brief.rng, COMMON_FIGURES)
    period = (film.frames - 4) // max(count, 2)
    spot = (brief.rng.uniform(0.3, 0.7) * width, brief.rng.uniform(0.3, 0.7) * height)
    path, evidence = film.still_path(*spot, 0, 0), []
    for k in range(count):
        first = 4 + k * period + int(brief.rng.integers(0, 2))
        path[first : first + period // 2] = spot
        evidence.append(film.add_event(f"{colour} {figure} appears", first))
    film.add(colour, figure, path)
    spots = [s for s in corners(film, 60, 60) if is_distant(s, spot, 130)]
    add_bystanders(brief, film, film.colours[1:], spots)
    return make_measured_draft(film, evidence, {"target": f"{colour} {figure}"})


def _solve_times(facts: Facts) -> str:
    target = facts.text("target")
    track = facts.track(target)
    return str(sum(comes_into_view(track, span) for span in facts.spans(f"{target} appears")))


def comes_into_view(track: Track, span: Span) -> bool:
    """Whether a thing is present at the end of a span but not just before it."""
    before, after = round(span.start_s * FPS) - 1, round(span.end_s * FPS) - 1
    return track.box_at(before) is None and track.box_at(after) is not None if before >= 0 else False


def _compose_where_when(brief: Brief) -> ItemDraft:
    film = Film(brief, frames=44)
    (a, b) = choose_figures(brief, film, 2)
    radius = min(film.sample_radius(), 24)
    path, first, goal = _bouncing_path_through(brief, film, int(brief.rng.integers(9)), radius)
    subject = film.add(*a, path, radius=radius)
    corner = next(spot for spot in sample(brief.rng, corners(film, 56, 50), 4) if is_distant(spot, goal, 150))
    film.add(*b, film.still_path(*corner, first), radius=min(film.sample_radius(), 24))
    event = film.add_event(f"{' '.join(b)} appears", first)
    return make_measured_draft(film, [subject, event], {"target": subject.phrase, "b": " ".join(b)})


def _bouncing_path_through(
    brief: Brief, film: Film, index: int, radius: int
) -> tuple[MotionPath, int, tuple[float, float]]:
    """A bouncing path that is well inside one of nine fields around a frame; the path, the frame, and the place."""
    width, height = film.size
    best: tuple[float, MotionPath, int] | None = None
    for _ in range(60):
        start = (brief.rng.uniform(radius, width - radius), brief.rng.uniform(radius, height - radius))
        step = (brief.rng.uniform(-7.0, 7.0), brief.rng.uniform(-5.0, 5.0))
        path = film.bouncing_path(start, step, radius + 2)
        offsets = np.abs(path / [width, height] * 3 - [index % 3 + 0.5, index // 3 + 0.5]).max(axis=1)  # < 0.5: inside
        max_offsets = np.maximum.reduce([offsets[10:-10], offsets[9:-11], offsets[11:-9], offsets[12:-8]])
        k = int(max_offsets.argmin())
        if best is None or max_offsets[k] < best[0]:
            best = (float(max_offsets[k]), path, k + 10)
        if best[0] < 0.33:
            break
    assert best is not None  # noqa: S101 - the loop ran
    _, path, first = best
    return path, first, (float(path[first, 0]), float(path[first, 1]))


def _solve_where_when(facts: Facts) -> str:
    track = facts.track(facts.text("target"))
    other = facts.text("b")
    span = facts.span(f"{other} appears")
    if not comes_into_view(facts.track(other), span):
        raise Unanswerable(f"the {other} does not appear then")
    index = round(midpoint(span) * FPS)
    box = track.box_at(min(max(index, track.frames[0]), track.frames[-1]))
    if box is None:
        raise Unanswerable("it is out of sight then")
    return locate_field(box)


def _compose_turns(brief: Brief) -> ItemDraft:
    film = Film(brief, frames=40)
    width, height = film.size
    figure = choose(brief.rng, ("circle", "square", "diamond", "triangle", "star"))
    first_colour, last_colour = film.colours[:2]
    change = sample_int(brief.rng, 14, 28)
    spot = (brief.rng.uniform(0.25, 0.75) * width, brief.rng.uniform(0.25, 0.75) * height)
    radius = film.sample_radius(big=brief.bernoulli(0.3))
    state = brief.rng.bit_generator.state
    film.add(first_colour, figure, film.still_path(*spot, 0, change), radius=radius)
    brief.rng.bit_generator.state = state  # the same light, slant and style in another paint
    later = film.add(last_colour, figure, film.still_path(*spot, change), radius=radius)
    add_bystanders(brief, film, film.colours[2:], [s for s in corners(film, 50, 50) if is_distant(s, spot, 150)])
    last = film.frames - 1
    camera = (int(film.camera[last, 0]), int(film.camera[last, 1]))
    box = later.box(last, camera)
    assert box is not None  # noqa: S101 - it stays to the end
    names = {"media": film.media, "frame": last, "label": f"{first_colour} {figure} at the end"}
    mask = make_mask(later.sprite.alpha > 127, box[0], box[1], film.size, **names)
    properties = {"colour": last_colour, "shape": figure}
    film.extra_references.append(Reference(name="end", footprint=mask, properties=properties))
    parameters = {"target": f"{first_colour} {figure}", "attribute": "colour", "last_frame": last}
    return make_measured_draft(film, ["end"], parameters)


def _solve_turns(facts: Facts) -> str:
    return str(facts.region(f"{facts.text('target')} at the end").properties["colour"])


def _compose_passing(brief: Brief) -> ItemDraft:
    film = Film(brief, frames=44, pan=brief.bernoulli(0.6))
    width, height = film.size
    words = choose_names(brief.rng, 2)
    hues = film.standalone_colours[:2]
    px = min((24, 22, 20, 16, 13)[brief.difficulty.level - 1], 24)
    first = sample_int(brief.rng, 6, 22)
    last = first + sample_int(brief.rng, 10, 14)
    rows = sample(brief.rng, (0.3 * height, 0.7 * height), 2)
    x = brief.rng.uniform(0.4, 0.6) * width
    bouncing_path = film.bouncing_path((60.0, 60.0), (brief.rng.uniform(3, 9), brief.rng.uniform(3, 7)), 16)
    film.add(film.standalone_colours[2], choose(brief.rng, COMMON_FIGURES), bouncing_path, radius=14)  # behind panels
    passing_path = film.straight_path((x - 30, rows[0]), (x + 30, rows[0]), first, last)
    target_panel = film.add_panel(hues[0], words[0], passing_path, px)
    film.add_panel(hues[1], words[1], film.still_path(brief.rng.uniform(0.35, 0.65) * width, rows[1]), px)
    evidence = [film.add_event(target_panel.phrase, first, last), f"text_{target_panel.name}"]
    return make_measured_draft(film, evidence, {"target": target_panel.phrase, "colour": hues[0]})


def _solve_passing(facts: Facts) -> str:
    target = facts.text("target")
    lines = facts.lines_at(midpoint(facts.span(target)), panel=target)
    return line_text(require_first(lines, f"the {target} is not there then"))


TEMPLATES = load_templates(
    "motion",
    order=(_compose_order, _solve_order),
    times=(_compose_times, _solve_times),
    where_when=(_compose_where_when, _solve_where_when),
    turns=(_compose_turns, _solve_turns),
    passing=(_compose_passing, _solve_passing),
)
