"""What the templates of still pictures share: sizes, casts of things, two pictures at once, four options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numpy.random import Generator

from pixelis.geometry import Size
from pixelis.world.programs import Parameters, References, Unanswerable, box_of, centre, region, says, spans, text_of
from pixelis.world.stage import Stage, Thing
from pixelis.world.template import Brief, ChainStep, Draft
from pixelis.world.vocabulary import choose, sample

CLEAR = (
    "circle",
    "square",
    "triangle",
    "star",
    "ring",
    "diamond",
    "ellipse",
    "rectangle",
    "pentagon",
    "hexagon",
    "cross",
)
"""Figures that are told apart even when small; the last three from about 40 pixels on."""
FIGURES = CLEAR[:6]

PATTERNED = {
    "red": (224, 40, 40), "green": (64, 180, 64), "cyan": (40, 206, 210),
    "blue": (60, 110, 224), "purple": (150, 70, 204), "yellow": (250, 226, 60), "pink": (240, 96, 165),
}  # fmt: skip
"""Paints that keep their hue in the dark bands of a pattern; the last two only just."""


LOOK = ChainStep(tool="SEG", args={"target": "{target}"})
EACH_OPTION = ChainStep(tool="SEG", args={"target": "{options[i]}"}, note="once for each option")


def steady(stage: Stage) -> list[str]:
    """Colours for patterned things, the surest first, in random order within that."""
    return sorted(stage.lone_colours, key=lambda colour: colour in ("yellow", "pink"))


def large(brief: Brief, media: str = "Image_0") -> Stage:
    """A picture of 768 to 1280 pixels."""
    width = (768, 896, 1024, 1152, 1280)[brief.dial.level - 1]
    return Stage(brief, Size(width, width * 3 // 4), media)


def small_radius(stage: Stage, *, big: bool) -> int:
    """Half size of the asked thing in pixels of the picture: small, but not under what SEG can make out."""
    if big:
        return stage.radius(big=True)
    low, high = ((30, 44), (26, 38), (24, 34), (22, 30), (20, 26))[stage.brief.dial.level - 1]
    return int(stage.rng.integers(low, high + 1))


def drafted(stage: Stage, evidence: list[str], parameters: Mapping[str, object]) -> Draft:
    """A draft over one picture."""
    image, references = stage.finish()
    return Draft((image,), references, evidence, parameters, traits=stage.traits)  # type: ignore[arg-type]


def two_stages(brief: Brief, size: Size) -> tuple[Stage, Stage, list[str]]:
    """Two pictures, and the colours that neither ground shows."""
    first, second = Stage(brief, size, "Image_0"), Stage(brief, size, "Image_1")
    shared = [c for c in first.colours if c in second.colours]
    for stage in (first, second):
        stage.traits.add("pair")
    return first, second, shared


def both(first: Stage, second: Stage, evidence: list[str], parameters: Mapping[str, object]) -> Draft:
    """A draft over two pictures."""
    (image, references), (other, others) = first.finish(), second.finish()
    traits = first.traits | second.traits
    return Draft((image, other), references + others, evidence, parameters, traits=traits)  # type: ignore[arg-type]


def pairs(rng: Generator, colours: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Different (colour, figure) pairs; with enough colours, no two share one."""
    hues = sample(rng, colours, min(count, len(colours)))
    hues += [choose(rng, colours) for _ in range(count - len(hues))]
    figures = [choose(rng, FIGURES) for _ in range(count)]
    return list(zip(hues, figures, strict=True))


def four(rng: Generator, right: str, wrong: Sequence[str]) -> tuple[str, ...]:
    """The right option at a random place among three wrong ones."""
    options = list(dict.fromkeys(w for w in wrong if w != right))[:3]
    options.insert(int(rng.integers(4)), right)
    return tuple(options)


def group(brief: Brief, stage: Stage, wanted: Sequence[tuple[str, str]], *, big: bool) -> list[Thing]:
    """Several asked things at once: a glance shows them only if all of them are large."""
    limit = 46 if big else 30
    made = []
    for colour, figure in wanted:
        low, high = (40, limit) if big else brief.dial.radius
        radius = min(round(int(brief.rng.integers(low, high + 1)) * stage.unit), limit)
        made.append(stage.add(colour, figure, radius, gap=26))
    if made:
        stage.maybe_hide(choose(brief.rng, made))
    return made


def plural(colour: str, figure: str) -> str:
    return f"{colour} {figure}es" if figure.endswith("s") else f"{colour} {figure}s"


def text_on(references: References, parameters: Parameters) -> str:
    x0, y0, x1, y1 = box_of(region(references, text_of(parameters, "target"), parameters.get("media")))  # type: ignore[arg-type]
    media = parameters.get("media")
    for r in spans(references, str(media) if media else None):
        x, y = centre(box_of(r))
        if x0 <= x <= x1 and y0 <= y <= y1:
            return says(r)
    raise Unanswerable("nothing is written there")
