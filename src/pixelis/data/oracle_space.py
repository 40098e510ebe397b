"""How the oracle answers the space family: outline, count, and measure against a scale."""

from __future__ import annotations

from pixelis.data.oracle_acts import Hands
from pixelis.data.oracle_choice import count, counted
from pixelis.data.oracle_session import grown

AROUND = 0.3
"""The scale of a view of the bar that holds the words below it."""


def together(h: Hands) -> None:
    """Two kinds, counted together."""
    for key in ("a", "b"):
        counted(h, str(h.s.item.parameters[key]))


def two(h: Hands) -> None:
    """Two things, to be compared."""
    for key in ("a", "b"):
        h.the(str(h.s.item.parameters[key]))


def share(h: Hands) -> None:
    """How much of the picture a thing covers."""
    found = h.the(str(h.s.item.parameters["target"]))
    if found is not None and h.s.prefers(0.5):
        h.s.cited |= h.describe(found, "size").steps


def against_scale(h: Hands) -> None:
    """Things, and the bar whose length is written below it."""
    s = h.s
    for key in ("a", "b", "target"):
        if key in s.item.parameters:
            h.the(str(s.item.parameters[key]))
    bar = h.the(str(s.item.parameters["bar"]))
    if bar is None:
        return
    x0, _, x1, y1 = bar.mask.box_unit or bar.box
    below = grown((x0, y1, x1, min(y1 + 0.07, 1.0)), 0.03, 0.01)
    box, scale = (bar.box, AROUND) if s.plain else (below, None)
    lines = [line for line in h.read_place(box, "tag", media=None, scale=scale) if any(c.isdigit() for c in line.text)]
    if not lines and s.has_room:
        lines = [line for line in s.read("", "skim") if "met" in line.text]
    if lines:
        s.note_line(min(lines, key=lambda line: abs(line.span.box_unit[1] - y1)))


def order(h: Hands) -> None:
    """Several things in a row."""
    things = h.s.item.parameters["things"]
    for phrase in things if isinstance(things, tuple) else (things,):
        h.the(str(phrase))


SOLVERS = {
    "space.count": count,
    "space.pair_count": count,
    "space.together": together,
    "space.ratio": two,
    "space.share": share,
    "space.distance": against_scale,
    "space.width": against_scale,
    "space.order": order,
}
