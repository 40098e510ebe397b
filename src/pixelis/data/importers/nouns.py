"""Everyday nouns for the 80 classes of COCO: singular, plural and unambiguous synonyms."""

from __future__ import annotations

from typing import NamedTuple

from numpy.random import Generator

from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.vision.grounding import RELATED_CLASSES, coco_class, parse_phrase

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
"""Only names that mean the same things to everybody: a van is a truck to SEG, but not to everybody."""
PLURALS = {
    "person": "people", "sheep": "sheep", "skis": "skis", "scissors": "scissors", "aircraft": "aircraft",
    "broccoli": "broccoli", "knife": "knives", "mouse": "mouses", "toothbrush": "toothbrushes",
}  # fmt: skip
"""`mouses`, of computers: SEG knows no mice."""
EXCLUDED_CLASSES = {"broccoli", "skis", "scissors", "hair drier", "donut"}
"""Classes without questions: nobody says `a broccoli`, and to SEG a donut is a drawn ring."""


class Noun(NamedTuple):
    """The noun for a class in one question."""

    singular: str
    plural: str


def pluralise(singular: str) -> str:
    """`people` of person, `traffic lights`, `buses`, `benches`."""
    if singular in PLURALS:
        return PLURALS[singular]
    return singular + ("es" if singular.endswith(("s", "sh", "ch", "x")) else "s")


def noun_variants(name: str) -> tuple[Noun, ...]:
    """All nouns for a class, its own name first."""
    class_noun = Noun(name, pluralise(name))
    return (class_noun, *(Noun(word, pluralise(word)) for word in SYNONYMS.get(name, ())))


def draw_noun(name: str, rng: Generator) -> Noun:
    """One noun for a class: its own name two times in three."""
    variants = noun_variants(name)
    return variants[0] if len(variants) == 1 or rng.random() < 0.67 else variants[int(rng.integers(1, len(variants)))]


def draw_absent_class(present: set[str], rng: Generator) -> str | None:
    """A class that is certainly absent: not present, and not confused with a present one by a detector or a person."""
    excluded = {kin for name in present for kin in (name, *RELATED_CLASSES.get(name, ()))}
    excluded |= {name for name in COCO_NAMES if any(set(name.split()) & set(other.split()) for other in present)}
    available = [name for name in COCO_NAMES if name not in excluded and name not in EXCLUDED_CLASSES]
    return available[int(rng.integers(len(available)))] if available else None


def to_coco_class(label: str) -> str | None:
    """The COCO class of another dataset's label: `sofa` is couch, `aeroplane` is airplane; None if there is none."""
    name = coco_class(label)
    return name if name in COCO_NAMES else None


def is_understood(phrase: str, name: str) -> bool:
    """Whether SEG understands the phrase as this class alone."""
    return parse_phrase(phrase).classes == (name,)
