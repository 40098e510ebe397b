"""Shared by the templates of still pictures: sizes, groups of things, pairs of pictures, options."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.random import Generator

from pixelis.core.geometry import Size
from pixelis.world.figure_outlines import distinct_figures
from pixelis.world.programs import Facts, Unanswerable, get_box, get_centre, line_text
from pixelis.world.stage import Stage, Thing
from pixelis.world.template import Brief
from pixelis.world.vocabulary import choose, sample

DISTINCT_FIGURES = (
    "circle", "square", "triangle", "star", "ring", "diamond", "ellipse", "rectangle", "pentagon", "hexagon", "cross"
)  # fmt: skip
"""Figures that can be told apart when small; the last three from about 40 pixels on."""
COMMON_FIGURES = DISTINCT_FIGURES[:6]

PATTERN_PAINTS = {
    "red": (224, 40, 40), "green": (64, 180, 64), "cyan": (40, 206, 210),
    "blue": (60, 110, 224), "purple": (150, 70, 204), "yellow": (250, 226, 60), "pink": (240, 96, 165),
}  # fmt: skip
"""Paints that keep their colour name in the dark bands of a pattern; the last two only just."""


def pattern_colours(stage: Stage) -> list[str]:
    """Colours for patterned things in random order, the least reliable last."""
    return sorted(stage.standalone_colours, key=lambda colour: colour in ("yellow", "pink"))


def make_large_stage(brief: Brief, media: str = "Image_0") -> Stage:
    """A picture of 768 to 1280 pixels."""
    width = (768, 896, 1024, 1152, 1280)[brief.difficulty.level - 1]
    return Stage(brief, Size(width, width * 3 // 4), media)


def sample_small_radius(stage: Stage, *, big: bool) -> int:
    """Half size of the target in pixels: small, but large enough for SEG."""
    if big:
        return stage.sample_radius(big=True)
    low, high = ((30, 44), (26, 38), (24, 34), (22, 30), (20, 26))[stage.brief.difficulty.level - 1]
    return int(stage.rng.integers(low, high + 1))


def make_stage_pair(brief: Brief, size: Size) -> tuple[Stage, Stage, list[str]]:
    """Two pictures, and the colours that neither ground contains."""
    first, second = Stage(brief, size, "Image_0"), Stage(brief, size, "Image_1")
    shared = [c for c in first.colours if c in second.colours]
    return first, second, shared


def sample_colour_figures(rng: Generator, colours: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Different (colour, figure) pairs; no colour is repeated if there are enough."""
    hues = sample(rng, colours, min(count, len(colours)))
    hues += [choose(rng, colours) for _ in range(count - len(hues))]
    figures = [choose(rng, COMMON_FIGURES) for _ in range(count)]
    return list(zip(hues, figures, strict=True))


def make_options(rng: Generator, correct: str, wrong: Sequence[str]) -> tuple[str, ...]:
    """The correct option at a random place among three wrong ones."""
    options = list(dict.fromkeys(w for w in wrong if w != correct))[:3]
    options.insert(int(rng.integers(4)), correct)
    return tuple(options)


def add_group(brief: Brief, stage: Stage, colour_figures: Sequence[tuple[str, str]], *, big: bool) -> list[Thing]:
    """Add several targets, large ones if `big`."""
    limit = 46 if big else 30
    things = []
    for colour, figure in colour_figures:
        low, high = (40, limit) if big else brief.difficulty.radius_range
        radius = min(round(int(brief.rng.integers(low, high + 1)) * stage.unit), limit)
        things.append(stage.add(colour, figure, radius, gap=26))
    if things:
        stage.maybe_occlude(choose(brief.rng, things))
    return things


def add_decoy(stage: Stage, colour: str, figure: str, *, max_radius: int | None = None, gap: int | None = None) -> None:
    """Add a thing of the same colour that cannot be mistaken for the figure."""
    other = choose(stage.rng, distinct_figures(COMMON_FIGURES, figure))
    radius = stage.sample_radius(big=False)
    stage.add(colour, other, min(radius, max_radius or radius), gap=gap)


def plural_phrase(colour: str, figure: str) -> str:
    return f"{colour} {figure}es" if figure.endswith("s") else f"{colour} {figure}s"


def name_presence(names: Sequence[str], is_present: Sequence[bool]) -> str:
    """Which of two media shows something: a name, `both` or `neither`."""
    if all(is_present):
        return "both"
    return names[is_present.index(True)] if any(is_present) else "neither"


def solve_text_on(facts: Facts) -> str:
    x0, y0, x1, y1 = get_box(facts.region(facts.text("target"), facts.media))
    for r in facts.lines(facts.media):
        x, y = get_centre(r)
        if x0 <= x <= x1 and y0 <= y <= y1:
            return line_text(r)
    raise Unanswerable("nothing is written there")
