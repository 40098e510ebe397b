"""Solvers of the space family: outline, count, and measure against a scale."""

from __future__ import annotations

from pixelis.data.teachers.oracle.oracle_choice import note_all_of_kind, solve_count
from pixelis.data.teachers.oracle.oracle_session import expand_box
from pixelis.data.teachers.oracle.picture_actions import PictureActions

SCALE_BAR_ZOOM = 0.3
"""The scale of a view of the bar that includes the words below it."""


def solve_together(actions: PictureActions) -> None:
    """Count two kinds of things."""
    for key in ("a", "b"):
        note_all_of_kind(actions, actions.parameter(key))


def solve_two_things(actions: PictureActions) -> None:
    """Find two things, to compare them."""
    for key in ("a", "b"):
        actions.note_largest(actions.parameter(key))


def solve_share(actions: PictureActions) -> None:
    """Find a thing, to measure its area."""
    region = actions.note_largest(actions.parameter("target"))
    if region is not None and actions.session.prefers(0.5):
        actions.session.cited_steps |= actions.describe(region, "size").steps


def solve_with_scale_bar(actions: PictureActions) -> None:
    """Find the things, and the bar whose length is written below it."""
    session = actions.session
    for phrase in actions.given_parameters("a", "b", "target"):
        actions.note_largest(phrase)
    bar = actions.note_largest(actions.parameter("bar"))
    if bar is None:
        return
    x0, _, x1, y1 = bar.source_box
    box_below = expand_box((x0, y1, x1, min(y1 + 0.07, 1.0)), 0.03, 0.01)
    box, scale = (bar.box, SCALE_BAR_ZOOM) if session.canonical_wording else (box_below, None)
    lines = [
        line for line in actions.read_place(box, "tag", media=None, scale=scale) if any(c.isdigit() for c in line.text)
    ]
    if not lines and session.has_steps_left:
        lines = [line for line in session.read("", "skim") if "met" in line.text]
    if lines:
        session.note_line(min(lines, key=lambda line: abs(line.span.box_unit[1] - y1)))


def solve_order(actions: PictureActions) -> None:
    """Find several things, to sort them."""
    things = actions.session.item.parameters["things"]
    for phrase in things if isinstance(things, tuple) else (things,):
        actions.note_largest(str(phrase))


SOLVERS = {
    "space.count": solve_count,
    "space.pair_count": solve_count,
    "space.together": solve_together,
    "space.ratio": solve_two_things,
    "space.share": solve_share,
    "space.distance": solve_with_scale_bar,
    "space.width": solve_with_scale_bar,
    "space.order": solve_order,
}
