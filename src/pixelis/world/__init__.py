"""The procedural gym: pictures and clips from a seed, with exact references, six task families, and shifts."""

from pixelis.world.generate import Rendered, generate, template, templates
from pixelis.world.item import FAMILIES, TOOLS, Family, Item, Necessity, Reference, rotations, score
from pixelis.world.shifts import SHIFTS, apply, shifted
from pixelis.world.template import ChainStep, Template

__all__ = [
    "FAMILIES",
    "SHIFTS",
    "TOOLS",
    "ChainStep",
    "Family",
    "Item",
    "Necessity",
    "Reference",
    "Rendered",
    "Template",
    "apply",
    "generate",
    "rotations",
    "score",
    "shifted",
    "template",
    "templates",
]
