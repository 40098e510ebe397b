"""space (VSI-Bench): counts, sizes, distances and order; numbers are scored by mean relative accuracy."""

from __future__ import annotations

from math import hypot

from pixelis.core.geometry import Size
from pixelis.world.programs import (
    Facts,
    area,
    centre_distance,
    format_number,
    get_box,
    get_centre,
    line_number,
    nearest,
)
from pixelis.world.stage import Stage, Thing
from pixelis.world.tasks.staging import (
    COMMON_FIGURES,
    add_decoy,
    add_group,
    make_stage_pair,
    plural_phrase,
    sample_colour_figures,
)
from pixelis.world.template import Brief, Evidence, ItemDraft, load_templates, make_draft, make_measured_draft
from pixelis.world.vocabulary import choose, join_words, sample, sample_int

IMAGE_SIZE = Size(640, 512)


# --- counting


def _compose_count(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour, figure, big = stage.colours[0], choose(brief.rng, COMMON_FIGURES), brief.sample_is_large()
    count = sample_int(brief.rng, 1, 5) if big else sample_int(brief.rng, 2, 6 + brief.difficulty.level)
    things = add_group(brief, stage, [(colour, figure)] * count, big=big)
    for _ in range(2):
        add_decoy(stage, colour, figure, max_radius=30, gap=26)
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=(colour,))
    parameters = {"target": f"{colour} {figure}", "plural": plural_phrase(colour, figure)}
    return make_measured_draft(stage, things, parameters)


def _solve_count(facts: Facts) -> str:
    return str(facts.count(facts.text("target")))


def _compose_together(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    (first, second), big = sample_colour_figures(brief.rng, stage.colours, 2), brief.sample_is_large()
    counts = [sample_int(brief.rng, 1, 3 if big else 3 + brief.difficulty.level) for _ in range(2)]
    groups = [add_group(brief, stage, [pair] * n, big=big) for pair, n in zip((first, second), counts, strict=True)]
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=(first[0], second[0]))
    plurals = {"plural_a": plural_phrase(*first), "plural_b": plural_phrase(*second)}
    parameters = {"a": " ".join(first), "b": " ".join(second), **plurals}
    return make_measured_draft(stage, [*groups[0], *groups[1]], parameters)


def _solve_together(facts: Facts) -> str:
    return str(sum(facts.count(facts.text(key)) for key in ("a", "b")))


def _compose_pair_count(brief: Brief) -> ItemDraft:
    first, second, shared = make_stage_pair(brief, Size(448, 448))
    colour, figure, big = shared[0], choose(brief.rng, COMMON_FIGURES), brief.sample_is_large()
    evidence: list[Evidence] = []
    for stage in (first, second):
        low, high = (0, 3) if big else (1, 3 + brief.difficulty.level // 2)
        evidence += add_group(brief, stage, [(colour, figure)] * sample_int(brief.rng, low, high), big=big)
        add_decoy(stage, colour, figure, max_radius=30, gap=26)
        stage.add_distractors(brief.difficulty.distractors - 2, avoid=(colour,))
    if not evidence:
        evidence += add_group(brief, second, [(colour, figure)], big=False)
    parameters = {"target": f"{colour} {figure}", "plural": plural_phrase(colour, figure)}
    return make_draft((first, second), evidence, parameters)


# --- sizes and distances


def add_two_things(brief: Brief, stage: Stage, radii: tuple[int, int]) -> tuple[Thing, Thing]:
    """Add two things of these half sizes, in different colours."""
    hues, figures = stage.colours[:2], sample(brief.rng, ("circle", "square", "hexagon", "ring", "star"), 2)
    first, second = (stage.add(c, f, r, gap=24) for c, f, r in zip(hues, figures, radii, strict=True))
    stage.add_distractors(brief.difficulty.distractors - 1, avoid=tuple(hues))
    return first, second


def _compose_ratio(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    min_radius = 30 - 3 * brief.difficulty.level
    factor = brief.rng.uniform(1.3, 4.2)
    first, second = add_two_things(brief, stage, (min(round(min_radius * factor), 110), min_radius))
    return make_measured_draft(stage, [first, second], {"a": first.phrase, "b": second.phrase})


def _solve_ratio(facts: Facts) -> str:
    a, b = (facts.box(key) for key in ("a", "b"))
    return format_number(round((a[2] - a[0]) / (b[2] - b[0]), 2))


def _compose_share(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    radius = round(512 * brief.rng.uniform(0.05, 0.24))
    colour, figure = stage.colours[0], choose(brief.rng, ("circle", "square", "hexagon", "diamond", "rectangle"))
    target = stage.add(colour, figure, radius)
    stage.maybe_occlude(target)
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    return make_measured_draft(stage, [target], {"target": target.phrase})


def _solve_share(facts: Facts) -> str:
    return format_number(round(100 * area(facts.region(facts.text("target"))), 2))


def add_scale_bar(brief: Brief, stage: Stage) -> tuple[Thing, str]:
    """Add a bar with its length in metres written below it; returns it and the name of the text."""
    metres = choose(brief.rng, (10, 12, 15, 18, 20, 24, 25, 30, 36, 40, 45, 50, 60, 75))
    half = int(brief.rng.integers(46, 78))
    at = (int(brief.rng.integers(half + 16, stage.size.width - half - 15)), int(brief.rng.integers(16, 440)))
    bar = stage.add(stage.colours[2], "bar", half, at=at, turn=0.0)
    stage.add_tag(f"{metres} metres", max(stage.sample_text_px(), 15), bar)
    return bar, stage.texts[-1].name


def _compose_distance(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    bar, text = add_scale_bar(brief, stage)
    first, second = _add_two_apart(brief, stage, bar)
    evidence: list[Evidence] = [first, second, bar, text]
    return make_measured_draft(stage, evidence, {"a": first.phrase, "b": second.phrase, "bar": bar.phrase})


def _add_two_apart(brief: Brief, stage: Stage, bar: Thing) -> tuple[Thing, Thing]:
    radius = min(stage.sample_radius(big=False), 30)
    things = []
    for colour, figure in zip(stage.colours[:2], sample(brief.rng, COMMON_FIGURES, 2), strict=True):
        things.append(stage.add(colour, figure, radius, gap=40))
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=(*stage.colours[:2], bar.colour))
    return things[0], things[1]


def metres_per_width(facts: Facts) -> float:
    """Metres per frame width, from the bar and the text below it."""
    x0, _, x1, y1 = facts.box("bar")
    label = nearest(facts.lines(), lambda r: hypot(get_centre(r)[0] - (x0 + x1) / 2, get_box(r)[1] - y1))
    return line_number(label) / (x1 - x0)


def _solve_distance(facts: Facts) -> str:
    a, b = (facts.box(key) for key in ("a", "b"))
    return format_number(round(centre_distance(a, b, facts.aspect) * metres_per_width(facts), 2))


def _compose_width(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    bar, text = add_scale_bar(brief, stage)
    colour, figure = stage.colours[0], choose(brief.rng, ("circle", "square", "hexagon", "ring", "rectangle"))
    target = stage.add(colour, figure, int(brief.rng.integers(20, 70)))
    stage.add_distractors(brief.difficulty.distractors - 1, avoid=(colour, bar.colour))
    evidence: list[Evidence] = [target, bar, text]
    return make_measured_draft(stage, evidence, {"target": target.phrase, "bar": bar.phrase})


def _solve_width(facts: Facts) -> str:
    x0, _, x1, _ = facts.box("target")
    return format_number(round((x1 - x0) * metres_per_width(facts), 2))


# --- order


def _compose_order(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour_figures = sample_colour_figures(brief.rng, stage.colours, 3)
    direction = choose(brief.rng, ("left to right", "top to bottom"))
    across, big = direction == "left to right", brief.sample_is_large()
    things = []
    for (colour, figure), slot in zip(colour_figures, sample(brief.rng, range(3), 3), strict=True):
        radius = 44 if big else min(stage.sample_radius(big=False), 40)
        length = stage.size.width if across else stage.size.height
        along = round(length * (slot + 0.5) / 3) + int(brief.rng.integers(-26, 27))
        box = stage.layout.find_room(2 * radius + 8, 2 * radius + 8, gap=20)
        at = (along, box[1] + radius + 4) if across else (box[0] + radius + 4, along)
        things.append(stage.add(colour, figure, radius, at=at))
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=tuple(c for c, _ in colour_figures))
    phrases = tuple(thing.phrase for thing in things)
    parameters = {"way": direction, "things": phrases, "listed": join_words(phrases, "and")}
    return make_measured_draft(stage, things, parameters)


def _solve_order(facts: Facts) -> str:
    axis = 0 if facts.text("way") == "left to right" else 1
    positions = [(get_centre(facts.region(phrase))[axis], phrase) for phrase in facts.words("things")]
    return ", ".join(phrase for _, phrase in sorted(positions))


TEMPLATES = load_templates(
    "space",
    count=(_compose_count, _solve_count),
    together=(_compose_together, _solve_together),
    pair_count=(_compose_pair_count, _solve_count),
    ratio=(_compose_ratio, _solve_ratio),
    share=(_compose_share, _solve_share),
    distance=(_compose_distance, _solve_distance),
    width=(_compose_width, _solve_width),
    order=(_compose_order, _solve_order),
)
