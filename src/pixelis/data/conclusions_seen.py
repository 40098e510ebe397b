"""What a policy could read of the things in the notes: boxes as the results printed them, two decimals, also on views.

A thing that was seen on a view only lies elsewhere on the picture: its numbers come with the small computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pixelis.data.oracle_session import as_read, on_view
from pixelis.data.tallies import looks_at_view
from pixelis.geometry import Mask, TextSpan, UnitBox
from pixelis.media import ViewRecipe
from pixelis.metrics.overlap import box_iou
from pixelis.trace.schema import Draft
from pixelis.world import Item, Reference
from pixelis.world.item import letter
from pixelis.world.programs import box_of, regions, text_of, words_of

SAME = 0.5
"""Regions that overlap so far (IoU) are the same thing, outlined twice."""
NEARLY = 0.1
WHOLE: UnitBox = (0.0, 0.0, 1.0, 1.0)


class Reading(NamedTuple):
    """A number as the policy can come by it."""

    value: float
    worked: str
    """The computation that leads to it, with its result; empty where it was printed as it is."""

    @property
    def short(self) -> str:
        return two(self.value)

    @property
    def text(self) -> str:
        return self.worked or self.short


class View(NamedTuple):
    """A view, and the box that the result of its call printed; None where that box was itself on a view."""

    recipe: ViewRecipe
    printed: UnitBox | None


class Shown(NamedTuple):
    """A box as it was printed, and the view that it was printed for."""

    box: UnitBox
    view: View | None


@dataclass(frozen=True)
class Chain:
    """What was asked, what was seen, and what the answer is."""

    item: Item
    notes: Sequence[Reference]
    drafts: Sequence[Draft]
    words: str
    """The answer in words; for multiple choice those of the option."""
    plain: bool = False
    """Whether a plain teacher speaks: no letters of options, sums on paper, and what it has kept count of."""

    # --- the question

    def asked(self, key: str) -> str:
        return text_of(self.item.parameters, key)

    def named(self, key: str) -> tuple[str, ...]:
        """Things in the order in which the question names them."""
        return self.item.options if key == "options" else words_of(self.item.parameters, key)

    @property
    def option(self) -> str:
        """`option B`; empty where there are none."""
        fits = [k for k, option in enumerate(self.item.options) if option == self.words]
        return f"option {letter(fits[0])}" if fits and not self.plain else ""

    # --- things

    def thing(self, phrase: str, media: str | None = None) -> Reference | None:
        found = regions(self.notes, phrase, media)
        return found[0] if found else None

    def things(self, phrases: Sequence[str]) -> list[Reference] | None:
        """One for each phrase; None where one was not noted."""
        found = [self.thing(phrase) for phrase in phrases]
        return None if None in found else [note for note in found if note is not None]

    @cached_property
    def views(self) -> dict[str, View]:
        made: dict[str, View] = {}
        for draft in self.drafts:
            if draft.result.view is not None:
                on_source = not looks_at_view(draft.call)
                printed = as_read(draft.result.view.box) if on_source else None
                made[f"View_{len(made)}"] = View(draft.result.view, printed)
        return made

    def shown(self, note: Reference) -> Shown:
        """Where a thing was printed to lie: on the picture if it was, else on the view on which it was found."""
        footprint, box = note.footprint, box_of(note)
        on_views: list[Shown] = []
        for draft in self.drafts:
            if draft.call.tool not in ("SEG", "OCR") or not draft.result.ok:
                continue
            view = self.views.get(str(draft.call.args.get("media", "")))
            for k, seen in enumerate(draft.result.footprints):
                if not isinstance(seen, Mask | TextSpan) or not same(seen, footprint, box):
                    continue
                place = seen.box_unit or box
                if view is None or view.recipe.box == WHOLE:
                    return Shown(as_read(place), None)
                outlined = draft.call.tool == "SEG"
                local = as_read(draft.result.output["regions"][k]["box"]) if outlined else on_view(place, view.recipe)
                on_views += [Shown(local, view)] if local else []
        return on_views[-1] if on_views else Shown(as_read(box), None)

    def edge(self, note: Reference, side: int) -> Reading:
        """One of left, top, right, bottom (0 to 3) on the picture."""
        box, view = self.shown(note)
        if view is None:
            return Reading(box[side], "")
        if view.printed is None:
            return Reading(round(box_of(note)[side], 2), "")
        start, length = view.printed[side % 2], view.printed[side % 2 + 2] - view.printed[side % 2]
        value = round(start + box[side] * length, 2)
        return Reading(value, f"{two(start)} + {two(box[side])} * {two(length)} = {two(value)}")

    def middle(self, note: Reference, axis: int) -> Reading:
        """The centre along an axis, on the picture."""
        box, view = self.shown(note)
        here = half_up((box[axis] + box[axis + 2]) / 2)
        if view is None:
            return Reading(here, "")
        if view.printed is None:
            whole = box_of(note)
            return Reading(half_up((whole[axis] + whole[axis + 2]) / 2), "")
        start, length = view.printed[axis], view.printed[axis + 2] - view.printed[axis]
        value = half_up(start + here * length)
        return Reading(value, f"{two(start)} + {two(here)} * {two(length)} = {two(value)}")

    def width(self, note: Reference) -> Reading:
        box, view = self.shown(note)
        if view is None:
            value = box[2] - box[0]
            return Reading(value, f"{two(box[2])} - {two(box[0])} = {two(value)}")
        if view.printed is None:
            x0, _, x1, _ = box_of(note)
            return Reading(round(x1 - x0, 2), "")
        part, length = box[2] - box[0], view.printed[2] - view.printed[0]
        value = round(part * length, 3)
        return Reading(value, f"{two(part)} * {two(length)} = {value:.3f}")

    def on_frame(self, note: Reference) -> bool:
        """Whether its box was printed in the coordinates of the picture."""
        return self.shown(note).view is None


def same(seen: Mask | TextSpan, footprint: object, box: UnitBox) -> bool:
    """Whether a footprint of a result is what a note was made of."""
    if isinstance(seen, Mask) != isinstance(footprint, Mask) or seen.box_unit is None:
        return False
    here = getattr(footprint, "media", ""), getattr(footprint, "frame", 0)
    return (seen.media, seen.frame) == here and box_iou(seen.box_unit, box) > SAME


def two(value: float) -> str:
    """Two decimals, as boxes and times are printed."""
    return f"{value:.2f}"


def enumerated(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def half_up(value: float) -> float:
    """Two decimals, 0.125 as 0.13: the middle of two printed numbers as people round it."""
    return round(value + 1e-9, 2)


def equals(own: float, answer: str) -> str:
    """` = 2.4`: the answer where rounded numbers give it to two digits, about it where they nearly do, else their own.

    The answer was computed from what the tools measured, of which the policy reads two decimals.
    """
    exact = float(answer)
    if f"{own:.1e}" == f"{exact:.1e}":
        return f" = {answer}"
    return f" is about {answer}" if abs(own - exact) <= NEARLY * abs(exact) else f" = {own:.3g}"
