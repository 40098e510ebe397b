"""Outlines of things: twelve figures that SEG and PROP know by name, and icons that only their colour identifies.

An outline is a list of closed polygons in the square from -1 to 1; overlapping polygons leave a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import cos, pi, sin

import numpy as np
from numpy.typing import NDArray

Polygon = list[tuple[float, float]]
Outline = list[Polygon]


def _arc(cx: float, cy: float, rx: float, ry: float, start: float, end: float, steps: int = 32) -> Polygon:
    """Points along an ellipse from one angle to another, in turns, clockwise as seen."""
    turns = [start + (end - start) * k / steps for k in range(steps + 1)]
    return [(cx + rx * cos(2 * pi * t), cy + ry * sin(2 * pi * t)) for t in turns]


def _disc(cx: float, cy: float, r: float) -> Polygon:
    return _arc(cx, cy, r, r, 0.0, 1.0, 48)[:-1]


def _regular(corners: int, turn: float = -0.25) -> Polygon:
    return [(cos(2 * pi * (turn + k / corners)), sin(2 * pi * (turn + k / corners))) for k in range(corners)]


def _star(points: int, inner: float) -> Polygon:
    radii = [1.0, inner] * points
    return [(r * cos(pi * (k / points - 0.5)), r * sin(pi * (k / points - 0.5))) for k, r in enumerate(radii)]


def _rect(x0: float, y0: float, x1: float, y1: float) -> Polygon:
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def _mirror(right: Polygon) -> Polygon:
    """A right half, from top to bottom, with its mirror image."""
    return right + [(-x, y) for x, y in reversed(right)]


FIGURE_OUTLINES: dict[str, Outline] = {
    "circle": [_disc(0, 0, 1)],
    "ellipse": [_arc(0, 0, 1, 0.58, 0, 1, 48)[:-1]],
    "square": [_rect(-0.88, -0.88, 0.88, 0.88)],
    "rectangle": [_rect(-1, -0.56, 1, 0.56)],
    "triangle": [[(0, -0.92), (1, 0.82), (-1, 0.82)]],
    "diamond": [[(0, -1), (0.86, 0), (0, 1), (-0.86, 0)]],
    "pentagon": [_regular(5)],
    "hexagon": [_regular(6, 0.0)],
    "star": [_star(5, 0.45)],
    "cross": [_mirror([(0.34, -1), (0.34, -0.34), (1, -0.34), (1, 0.34), (0.34, 0.34), (0.34, 1)])],
    "ring": [_disc(0, 0, 1), _disc(0, 0, 0.55)],
    "bar": [_rect(-1, -0.15, 1, 0.15)],
}
NAMED_FIGURES = tuple(FIGURE_OUTLINES)
"""The names that SEG and PROP know."""


def _heart() -> Outline:
    turns = [k / 48 * 2 * pi for k in range(48)]
    points = [(sin(t) ** 3, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)) / 16 - 0.08) for t in turns]
    return [points]


def _crescent() -> Outline:
    return [_arc(0.1, 0, 1, 1, 0.14, 0.86) + _arc(0.55, 0, 0.78, 0.78, 0.78, 0.22)]


def _gear() -> Outline:
    teeth: Polygon = []
    for k in range(8):
        for offset, radius in ((-0.032, 0.74), (-0.022, 1.0), (0.022, 1.0), (0.032, 0.74)):
            turn = k / 8 + offset
            teeth.append((radius * cos(2 * pi * turn), radius * sin(2 * pi * turn)))
    return [teeth, _disc(0, 0, 0.34)]


def _cloud() -> Outline:
    return [
        _arc(-0.55, 0.2, 0.42, 0.42, 0.25, 0.62)
        + _arc(-0.2, -0.2, 0.48, 0.5, 0.52, 0.86)
        + _arc(0.35, -0.1, 0.42, 0.42, 0.68, 0.98)
        + _arc(0.62, 0.25, 0.36, 0.37, 0.85, 1.25)
    ]


def _flower() -> Outline:
    turns = [k / 96 * 2 * pi for k in range(96)]
    return [
        [((0.72 + 0.28 * cos(6 * t)) * cos(t), (0.72 + 0.28 * cos(6 * t)) * sin(t)) for t in turns],
        _disc(0, 0, 0.2),
    ]


def _butterfly() -> Outline:
    return [
        _mirror(
            [(0.0, -0.5), (0.1, -0.5), (0.5, -0.95), (0.98, -0.8), (0.95, -0.3), (0.6, 0.02), (0.85, 0.4), (0.6, 0.9),
             (0.25, 0.7), (0.1, 0.25), (0.08, 0.7), (0.0, 0.75)]
        )
    ]  # fmt: skip


ICON_OUTLINES: dict[str, Callable[[], Outline]] = {
    "heart": _heart,
    "crescent": _crescent,
    "gear": _gear,
    "cloud": _cloud,
    "flower": _flower,
    "butterfly": _butterfly,
    "arrow": lambda: [[(-1, -0.26), (0.1, -0.26), (0.1, -0.7), (1, 0), (0.1, 0.7), (0.1, 0.26), (-1, 0.26)]],
    "house": lambda: [
        [(0, -1), (1, -0.1), (0.75, -0.1), (0.75, 0.95), (0.25, 0.95), (0.25, 0.35), (-0.25, 0.35), (-0.25, 0.95),
         (-0.75, 0.95), (-0.75, -0.1), (-1, -0.1)]
    ],
    "fir": lambda: [
        _mirror([(0, -1), (0.45, -0.45), (0.22, -0.45), (0.65, 0.1), (0.32, 0.1), (0.85, 0.7), (0.15, 0.7),
                   (0.15, 1)])
    ],
    "fish": lambda: [[*_arc(-0.2, 0, 0.8, 0.5, 0.06, 0.94), (1, -0.5), (0.82, 0), (1, 0.5)], _disc(-0.6, -0.12, 0.09)],
    "drop": lambda: [[(0, -1), *_arc(0, 0.35, 0.65, 0.65, 0.93, 1.57)]],
    "leaf": lambda: [_arc(-0.6, 0.6, 1.2, 1.2, 0.75, 1.0) + _arc(0.6, -0.6, 1.2, 1.2, 0.25, 0.5)],
    "crown": lambda: [
        [(-1, 0.75), (-1, -0.55), (-0.5, 0.05), (0, -0.8), (0.5, 0.05), (1, -0.55), (1, 0.75)]
    ],
    "flag": lambda: [[(-0.7, -1), (0.95, -0.75), (0.4, -0.35), (0.95, 0.1), (-0.45, 0.1), (-0.45, 1), (-0.7, 1)]],
    "bolt": lambda: [[(0.25, -1), (-0.7, 0.2), (-0.08, 0.2), (-0.3, 1), (0.7, -0.3), (0.08, -0.3), (0.5, -1)]],
    "mushroom": lambda: [
        [*_arc(0, 0, 1, 0.9, 0.5, 1.0), (0.3, 0.0), (0.4, 0.9), (-0.4, 0.9), (-0.3, 0.0)]
    ],
    "rocket": lambda: [
        _mirror([(0, -1), (0.36, -0.5), (0.36, 0.3), (0.75, 0.85), (0.25, 0.65), (0.18, 1.0)]), _disc(0, -0.3, 0.17)
    ],
    "hourglass": lambda: [_mirror([(0, -1), (0.75, -1), (0.75, -0.75), (0.12, 0), (0.75, 0.75), (0.75, 1), (0, 1)])],
    "shield": lambda: [_mirror([(0, -1), (0.85, -0.75), (0.8, 0.1), (0.5, 0.65), (0, 1)])],
    "tent": lambda: [[(0, -0.85), (1, 0.8), (0.3, 0.8), (0, 0.15), (-0.3, 0.8), (-1, 0.8)]],
    "bell": lambda: [
        _mirror([(0, -1), (0.4, -0.8), (0.58, -0.3), (0.62, 0.35), (0.95, 0.65), (0.22, 0.65), (0.15, 0.95), (0, 1)])
    ],
    "spade": lambda: [
        _mirror([(0, -1), (0.45, -0.45), (0.9, 0.05), (0.9, 0.4), (0.6, 0.6), (0.2, 0.4), (0.15, 0.6),
                   (0.4, 0.98), (0, 0.98)])
    ],
    "anchor": lambda: [
        _mirror([(0, -0.5), (0.12, -0.5), (0.12, -0.3), (0.5, -0.3), (0.5, -0.08), (0.12, -0.08), (0.12, 0.6),
                   (0.6, 0.35), (0.5, 0.2), (1, 0.1), (0.95, 0.6), (0.8, 0.5), (0.4, 0.9), (0, 1)]),
        _disc(0, -0.75, 0.27), _disc(0, -0.75, 0.13),
    ],
    "lamp": lambda: [
        _mirror([(0, -1), (0.4, -1), (0.85, 0), (0.12, 0), (0.12, 0.7), (0.55, 0.7), (0.55, 0.95), (0, 0.95)])
    ],
}  # fmt: skip
ICON_NAMES = tuple(ICON_OUTLINES)


@cache
def outline(name: str) -> tuple[NDArray[np.float64], ...]:
    """The polygons of a figure or icon, each (N, 2)."""
    polygons = FIGURE_OUTLINES[name] if name in FIGURE_OUTLINES else ICON_OUTLINES[name]()
    return tuple(np.array(polygon, dtype=np.float64) for polygon in polygons)


def place_outline(name: str, radius: float, turn_degrees: float = 0.0) -> list[NDArray[np.int32]]:
    """The polygons around (0, 0) with this half size and turn, in 256ths of a pixel."""
    c, s = cos(turn_degrees * pi / 180), sin(turn_degrees * pi / 180)
    rotation = np.array([[c, s], [-s, c]])
    return [np.round(polygon @ rotation * (radius * 256)).astype(np.int32) for polygon in outline(name)]


def distinct_figures(names: Sequence[str], other: str) -> list[str]:
    """The figures that cannot be mistaken for `other`, even small and half hidden."""
    look_alikes = [
        {"circle", "ellipse", "hexagon", "pentagon"},
        {"square", "rectangle", "diamond"},
        {"rectangle", "bar", "ellipse"},
        {"star", "cross", "gear", "flower"},
        {"triangle", "tent", "fir"},
    ]
    similar = {other}.union(*(group for group in look_alikes if other in group))
    return [name for name in names if name not in similar]
