"""What people call the 80 classes of COCO: one, several, and by other names that mean no other class."""

from __future__ import annotations

from typing import NamedTuple

from numpy.random import Generator

from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.grounding import KIN, coco_class, understand

SYNONYMS: dict[str, tuple[str, ...]] = {
    "airplane": ("plane", "aeroplane", "aircraft"),
    "bicycle": ("bike",),
    "car": ("automobile",),
    "cell phone": ("phone", "smartphone"),
    "couch": ("sofa",),
    "dining table": ("table",),
    "donut": ("doughnut",),
    "motorcycle": ("motorbike",),
    "potted plant": ("plant",),
    "refrigerator": ("fridge",),
    "sports ball": ("ball",),
    "suitcase": ("suitcase",),
    "teddy bear": ("teddy",),
    "tv": ("television", "TV"),
}
"""Only names under which everybody would count the same things: a van is a truck to SEG, and not to everybody."""
PLURALS = {
    "person": "people", "sheep": "sheep", "skis": "skis", "scissors": "scissors", "aircraft": "aircraft",
    "broccoli": "broccoli", "knife": "knives", "mouse": "mouses", "toothbrush": "toothbrushes",
}  # fmt: skip
"""`mouses`, of computers: SEG knows no mice."""
NOT_A_NOUN = {"broccoli", "skis", "scissors", "hair drier", "donut"}
"""Nobody says `a broccoli`, and to SEG a donut is a ring that is drawn: no question is put about one of them."""


class Noun(NamedTuple):
    """A class as one question says it."""

    one: str
    several: str


def plural(one: str) -> str:
    """`people` of person, `traffic lights`, `buses`, `benches`."""
    if one in PLURALS:
        return PLURALS[one]
    return one + ("es" if one.endswith(("s", "sh", "ch", "x")) else "s")


def nouns(name: str) -> tuple[Noun, ...]:
    """Every way to say a class; the class's own name first. Any other class name is said as it is."""
    own = Noun(name, plural(name))
    return (own, *(Noun(word, plural(word)) for word in SYNONYMS.get(name, ())))


def drawn(name: str, rng: Generator) -> Noun:
    """One of them: its own name two times in three."""
    ways = nouns(name)
    return ways[0] if len(ways) == 1 or rng.random() < 0.67 else ways[int(rng.integers(1, len(ways)))]


def absent(present: set[str], rng: Generator) -> str | None:
    """A class that is certainly not there: none of those present, nor what a detector or a person takes them for."""
    taken = {kin for name in present for kin in (name, *KIN.get(name, ()))}
    taken |= {name for name in COCO_NAMES if any(set(name.split()) & set(other.split()) for other in present)}
    free = [name for name in COCO_NAMES if name not in taken and name not in NOT_A_NOUN]
    return free[int(rng.integers(len(free)))] if free else None


def class_of(label: str) -> str | None:
    """The COCO class that another dataset's label is: `sofa` is couch, `aeroplane` is airplane; None for no class."""
    name = coco_class(label)
    return name if name in COCO_NAMES else None


def understood(phrase: str, name: str) -> bool:
    """Whether SEG takes the phrase for this class and nothing else."""
    return understand(phrase).classes == (name,)
