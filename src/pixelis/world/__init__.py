"""The procedural world: pictures and clips from a seed, with exact references, in six task families, and shifts."""

from pixelis.items import FAMILIES, TOOLS, Family, Item, Necessity, Reference, rotations, score
from pixelis.world.generate import RenderedItem, generate, template, templates
from pixelis.world.shifts import SHIFTS, apply_shift, shift_item
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
    "RenderedItem",
    "Template",
    "apply_shift",
    "generate",
    "rotations",
    "score",
    "shift_item",
    "template",
    "templates",
]
