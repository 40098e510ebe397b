"""space (VSI-Bench): counts, sizes, distances and order; numbers are scored by mean relative accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot

from pixelis.geometry import Size
from pixelis.world.figures import different
from pixelis.world.programs import (
    Parameters,
    References,
    apart,
    area,
    aspect,
    box_of,
    centre,
    counted,
    nearest,
    number,
    region,
    says,
    spans,
    text_of,
    value_of,
    words_of,
)
from pixelis.world.stage import Stage, Thing
from pixelis.world.tasks.staging import FIGURES, both, group, pairs, plural, two_stages
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import choose, listed, sample, whole

ROOM = Size(640, 512)


def drafted(stage: Stage, evidence: Sequence[str], parameters: Mapping[str, object]) -> Draft:
    image, references = stage.finish()
    stretched = {**parameters, "aspect": stage.size.height / stage.size.width}
    return Draft((image,), references, list(evidence), stretched, traits=stage.traits)  # type: ignore[arg-type]


# --- counting


def _count(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    colour, figure, big = stage.colours[0], choose(brief.rng, FIGURES), brief.glance()
    count = whole(brief.rng, 1, 5) if big else whole(brief.rng, 2, 6 + brief.dial.level)
    made = group(brief, stage, [(colour, figure)] * count, big=big)
    for _ in range(2):
        stage.add(colour, choose(brief.rng, different(FIGURES, figure)), min(stage.radius(big=False), 30), gap=26)
    stage.distract(brief.dial.distractors - 2, avoid=(colour,))
    parameters = {"target": f"{colour} {figure}", "plural": plural(colour, figure)}
    return drafted(stage, [stage.named(thing) for thing in made], parameters)


def _counted(references: References, parameters: Parameters) -> str:
    return str(counted(references, text_of(parameters, "target")))


def _together(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    (first, second), big = pairs(brief.rng, stage.colours, 2), brief.glance()
    counts = [whole(brief.rng, 1, 3) if big else whole(brief.rng, 1, 3 + brief.dial.level) for _ in range(2)]
    made = [
        t
        for pair, count in zip((first, second), counts, strict=True)
        for t in group(brief, stage, [pair] * count, big=big)
    ]
    stage.distract(brief.dial.distractors - 2, avoid=(first[0], second[0]))
    parameters = {
        "a": " ".join(first), "b": " ".join(second), "plural_a": plural(*first), "plural_b": plural(*second),
    }  # fmt: skip
    return drafted(stage, [stage.named(thing) for thing in made], parameters)


def _sum(references: References, parameters: Parameters) -> str:
    return str(sum(counted(references, text_of(parameters, key)) for key in ("a", "b")))


def _pair_count(brief: Brief) -> Draft:
    first, second, shared = two_stages(brief, Size(448, 448))
    colour, figure, big = shared[0], choose(brief.rng, FIGURES), brief.glance()
    evidence = []
    for stage in (first, second):
        count = whole(brief.rng, 0, 3) if big else whole(brief.rng, 1, 3 + brief.dial.level // 2)
        evidence += [stage.named(thing) for thing in group(brief, stage, [(colour, figure)] * count, big=big)]
        stage.add(colour, choose(brief.rng, different(FIGURES, figure)), min(stage.radius(big=False), 30), gap=26)
        stage.distract(brief.dial.distractors - 2, avoid=(colour,))
    if not evidence:
        evidence = [second.named(group(brief, second, [(colour, figure)], big=False)[0])]
    return both(first, second, evidence, {"target": f"{colour} {figure}", "plural": plural(colour, figure)})


# --- sizes and distances


def two_things(brief: Brief, stage: Stage, radii: tuple[int, int]) -> tuple[Thing, Thing]:
    """Two round or square things of these half sizes, in colours of their own."""
    hues, figures = stage.colours[:2], sample(brief.rng, ("circle", "square", "hexagon", "ring", "star"), 2)
    first, second = (stage.add(c, f, r, gap=24) for c, f, r in zip(hues, figures, radii, strict=True))
    stage.distract(brief.dial.distractors - 1, avoid=tuple(hues))
    return first, second


def _ratio(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    least = 30 - 3 * brief.dial.level
    factor = brief.rng.uniform(1.3, 4.2)
    first, second = two_things(brief, stage, (min(round(least * factor), 110), least))
    return drafted(stage, [stage.named(first), stage.named(second)], {"a": first.phrase, "b": second.phrase})


def _times_as_wide(references: References, parameters: Parameters) -> str:
    a, b = (box_of(region(references, text_of(parameters, key))) for key in ("a", "b"))
    return number(round((a[2] - a[0]) / (b[2] - b[0]), 2))


def _share(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    radius = round(512 * brief.rng.uniform(0.05, 0.24))
    colour, figure = stage.colours[0], choose(brief.rng, ("circle", "square", "hexagon", "diamond", "rectangle"))
    target = stage.add(colour, figure, radius)
    stage.maybe_hide(target)
    stage.distract(brief.dial.distractors, avoid=(colour,))
    return drafted(stage, [stage.named(target)], {"target": target.phrase})


def _percent(references: References, parameters: Parameters) -> str:
    return number(round(100 * area(region(references, text_of(parameters, "target"))), 2))


def scale_bar(brief: Brief, stage: Stage) -> tuple[Thing, str]:
    """A bar with its length in metres written under it; the phrase to find it by is its colour's."""
    metres = choose(brief.rng, (10, 12, 15, 18, 20, 24, 25, 30, 36, 40, 45, 50, 60, 75))
    half = int(brief.rng.integers(46, 78))
    at = (int(brief.rng.integers(half + 16, stage.size.width - half - 15)), int(brief.rng.integers(16, 440)))
    bar = stage.add(stage.colours[2], "bar", half, at=at, turn=0.0)
    stage.label(f"{metres} metres", max(stage.text_px(), 15), bar)
    return bar, stage.texts[-1].name


def _distance(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    bar, text = scale_bar(brief, stage)
    first, second = _apart_from(brief, stage, bar)
    evidence = [stage.named(first), stage.named(second), stage.named(bar), text]
    return drafted(stage, evidence, {"a": first.phrase, "b": second.phrase, "bar": bar.phrase})


def _apart_from(brief: Brief, stage: Stage, bar: Thing) -> tuple[Thing, Thing]:
    radius = min(stage.radius(big=False), 30)
    made = []
    for colour, figure in zip(stage.colours[:2], sample(brief.rng, FIGURES, 2), strict=True):
        made.append(stage.add(colour, figure, radius, gap=40))
    stage.distract(brief.dial.distractors - 2, avoid=(*stage.colours[:2], bar.colour))
    return made[0], made[1]


def metres_per_width(references: References, parameters: Parameters) -> float:
    """Metres over the frame's width, from the bar and the line under it."""
    x0, _, x1, y1 = box_of(region(references, text_of(parameters, "bar")))
    label = nearest(spans(references), lambda r: hypot(centre(box_of(r))[0] - (x0 + x1) / 2, box_of(r)[1] - y1))
    return value_of(says(label)) / (x1 - x0)


def _metres_apart(references: References, parameters: Parameters) -> str:
    a, b = (box_of(region(references, text_of(parameters, key))) for key in ("a", "b"))
    return number(round(apart(a, b, aspect(parameters)) * metres_per_width(references, parameters), 2))


def _width(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    bar, text = scale_bar(brief, stage)
    colour, figure = stage.colours[0], choose(brief.rng, ("circle", "square", "hexagon", "ring", "rectangle"))
    target = stage.add(colour, figure, int(brief.rng.integers(20, 70)))
    stage.distract(brief.dial.distractors - 1, avoid=(colour, bar.colour))
    evidence = [stage.named(target), stage.named(bar), text]
    return drafted(stage, evidence, {"target": target.phrase, "bar": bar.phrase})


def _metres_wide(references: References, parameters: Parameters) -> str:
    x0, _, x1, _ = box_of(region(references, text_of(parameters, "target")))
    return number(round((x1 - x0) * metres_per_width(references, parameters), 2))


# --- order


def _order(brief: Brief) -> Draft:
    stage = Stage(brief, ROOM)
    wanted = pairs(brief.rng, stage.colours, 3)
    way = choose(brief.rng, ("left to right", "top to bottom"))
    across, big = way == "left to right", brief.glance()
    made = []
    for (colour, figure), slot in zip(wanted, sample(brief.rng, range(3), 3), strict=True):
        radius = 44 if big else min(stage.radius(big=False), 40)
        length = stage.size.width if across else stage.size.height
        along = round(length * (slot + 0.5) / 3) + int(brief.rng.integers(-26, 27))
        box = stage.layout.room(2 * radius + 8, 2 * radius + 8, gap=20)
        at = (along, box[1] + radius + 4) if across else (box[0] + radius + 4, along)
        made.append(stage.add(colour, figure, radius, at=at))
    stage.distract(brief.dial.distractors - 2, avoid=tuple(c for c, _ in wanted))
    phrases = tuple(thing.phrase for thing in made)
    parameters = {"way": way, "things": phrases, "listed": listed(phrases, "and")}
    return drafted(stage, [stage.named(thing) for thing in made], parameters)


def _in_order(references: References, parameters: Parameters) -> str:
    axis = 0 if text_of(parameters, "way") == "left to right" else 1
    found = [(centre(box_of(region(references, phrase)))[axis], phrase) for phrase in words_of(parameters, "things")]
    return ", ".join(phrase for _, phrase in sorted(found))


BAR = ChainStep(tool="SEG", args={"target": "{bar}"})
TAG = ChainStep(tool="OCR", note="find the line `n metres` just below the bar")
COUNT = ChainStep(tool="SEG", args={"target": "{target}", "limit": 32})

TEMPLATES = (
    Template(
        "space.count", "space",
        (
            "How many {plural} are there?",
            "Count the {plural} in the picture.",
            "What is the number of {plural}?",
            "How many times does a {target} appear?",
        ),
        _count, _counted, "mra", (COUNT,), doc="the number of regions",
    ),
    Template(
        "space.together", "space",
        (
            "How many {plural_a} and {plural_b} are there together?",
            "Add the number of {plural_a} to the number of {plural_b}.",
            "Count the {plural_a} and the {plural_b}: how many in all?",
            "What do you get when you count {plural_a} and {plural_b} together?",
        ),
        _together, _sum, "mra",
        (
            ChainStep(tool="SEG", args={"target": "{a}", "limit": 32}),
            ChainStep(tool="SEG", args={"target": "{b}", "limit": 32}),
        ),
        doc="the sum of both numbers of regions",
    ),
    Template(
        "space.pair_count", "space",
        (
            "How many {plural} are there in Image_0 and Image_1 together?",
            "Count the {plural} of both pictures. How many in all?",
            "What is the total number of {plural} over the two pictures?",
            "Together, how many {plural} do the two pictures show?",
        ),
        _pair_count, _counted, "mra",
        (
            ChainStep(tool="SEG", args={"target": "{target}", "media": "Image_0", "limit": 32}, note="a failure is 0"),
            ChainStep(tool="SEG", args={"target": "{target}", "media": "Image_1", "limit": 32}),
        ),
        doc="the sum of both numbers of regions",
    ),
    Template(
        "space.ratio", "space",
        (
            "How many times as wide as the {b} is the {a}?",
            "Divide the width of the {a} by the width of the {b}.",
            "What is the ratio of the widths of the {a} and the {b}?",
            "The {a} is how many times wider than the {b}?",
        ),
        _ratio, _times_as_wide, "mra",
        (ChainStep(tool="SEG", args={"target": "{a}"}), ChainStep(tool="SEG", args={"target": "{b}"})),
        doc="the quotient of the widths of the two boxes",
    ),
    Template(
        "space.share", "space",
        (
            "What percentage of the picture does the {target} cover?",
            "How many percent of the picture's area is the {target}?",
            "Give the share of the frame that the {target} fills, in percent.",
            "How large is the {target}, in percent of the picture?",
        ),
        _share, _percent, "mra", (ChainStep(tool="SEG", args={"target": "{target}"}),),
        doc="a hundred times the area of the region",
    ),
    Template(
        "space.distance", "space",
        (
            "How many metres apart are the {a} and the {b}, from centre to centre? The {bar} shows the scale.",
            "The {bar} is as long as its tag says. How many metres lie between the centres of the {a} and the {b}?",
            "Using the {bar} as a scale, give the distance in metres between the centres of the {a} and the {b}.",
            "What is the distance in metres from the {a} to the {b} (centres), by the scale of the {bar}?",
        ),
        _distance, _metres_apart, "mra",
        (ChainStep(tool="SEG", args={"target": "{a}"}), ChainStep(tool="SEG", args={"target": "{b}"}), BAR, TAG),
        reads_operands=True, doc="distance of the centres over the width of the bar, times its metres",
    ),
    Template(
        "space.width", "space",
        (
            "How wide is the {target} in metres? The {bar} shows the scale.",
            "The {bar} is as long as its tag says. What is the width of the {target} in metres?",
            "Give the width of the {target} in metres, measured against the {bar}.",
            "By the scale of the {bar}, how many metres across is the {target}?",
        ),
        _width, _metres_wide, "mra", (ChainStep(tool="SEG", args={"target": "{target}"}), BAR, TAG),
        reads_operands=True, doc="width of the target over the width of the bar, times its metres",
    ),
    Template(
        "space.order", "space",
        (
            "Name these from {way}: {listed}.",
            "In which order do {listed} come, from {way}?",
            "Sort the {listed} from {way}.",
            "From {way}, what is the order of {listed}?",
        ),
        _order, _in_order, "exact",
        (ChainStep(tool="SEG", args={"target": "{things[i]}"}, note="once for each"),),
        doc="the phrases by the centres of their boxes, joined by commas",
    ),
)  # fmt: skip
