"""What a policy could read of the things in the notes: boxes as the results printed them, two decimals, also on views.

A thing that was seen on a view only lies elsewhere on the picture: its numbers come with the small computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pixelis.core.geometry import Mask, TextSpan, UnitBox
from pixelis.data.teachers.oracle.oracle_session import snap_box, to_view_box
from pixelis.data.teachers.oracle.running_notes import looks_at_view
from pixelis.items import option_letter
from pixelis.media import ViewRecipe
from pixelis.metrics.overlap import box_iou
from pixelis.trace.schema import StepDraft
from pixelis.world import Item, Reference
from pixelis.world.programs import find_regions, get_box, get_text, get_words

SAME_REGION_IOU = 0.5
"""Regions that overlap so far (IoU) are the same thing, outlined twice."""
APPROXIMATE_TOLERANCE = 0.1
FULL_FRAME: UnitBox = (0.0, 0.0, 1.0, 1.0)


class DerivedNumber(NamedTuple):
    """A number as the policy can come by it."""

    value: float
    computation: str
    """The computation that leads to it, with its result; empty where it was printed as it is."""

    @property
    def short(self) -> str:
        return two_decimals(self.value)

    @property
    def text(self) -> str:
        return self.computation or self.short


class PrintedView(NamedTuple):
    """A view, and the box that the result of its call printed; None where that box was itself on a view."""

    recipe: ViewRecipe
    printed_box: UnitBox | None


class PrintedBox(NamedTuple):
    """A box as it was printed, and the view that it was printed for."""

    box: UnitBox
    view: PrintedView | None


@dataclass(frozen=True)
class RationaleContext:
    """What was asked, what was seen, and what the answer is."""

    item: Item
    notes: Sequence[Reference]
    drafts: Sequence[StepDraft]
    answer_text: str
    """The answer in words; for multiple choice those of the option."""
    canonical_wording: bool = False
    """Whether a plain teacher speaks: no letters of options, sums on paper, and what it has kept count of."""

    # --- the question

    def parameter(self, key: str) -> str:
        return get_text(self.item.parameters, key)

    def names(self, key: str) -> tuple[str, ...]:
        """Things in the order in which the question names them."""
        return self.item.options if key == "options" else get_words(self.item.parameters, key)

    @property
    def option_label(self) -> str:
        """`option B`; empty where there are none."""
        matches = [k for k, option in enumerate(self.item.options) if option == self.answer_text]
        return f"option {option_letter(matches[0])}" if matches and not self.canonical_wording else ""

    # --- things

    def find_thing(self, phrase: str, media: str | None = None) -> Reference | None:
        matches = find_regions(self.notes, phrase, media)
        return matches[0] if matches else None

    def find_things(self, phrases: Sequence[str]) -> list[Reference] | None:
        """One for each phrase; None where one was not noted."""
        matches = [self.find_thing(phrase) for phrase in phrases]
        return None if None in matches else [note for note in matches if note is not None]

    @cached_property
    def views(self) -> dict[str, PrintedView]:
        views_by_name: dict[str, PrintedView] = {}
        for draft in self.drafts:
            if draft.result.view is not None:
                on_source = not looks_at_view(draft.call)
                printed_box = snap_box(draft.result.view.box) if on_source else None
                views_by_name[f"View_{len(views_by_name)}"] = PrintedView(draft.result.view, printed_box)
        return views_by_name

    def locate(self, note: Reference) -> PrintedBox:
        """Where a thing was printed to lie: on the picture if it was, else on the view on which it was found."""
        footprint, box = note.footprint, get_box(note)
        on_views: list[PrintedBox] = []
        for draft in self.drafts:
            if draft.call.tool not in ("SEG", "OCR") or not draft.result.ok:
                continue
            view = self.views.get(str(draft.call.args.get("media", "")))
            for k, candidate in enumerate(draft.result.footprints):
                if not isinstance(candidate, Mask | TextSpan) or not is_same_thing(candidate, footprint, box):
                    continue
                candidate_box = candidate.box_unit or box
                if view is None or view.recipe.box == FULL_FRAME:
                    return PrintedBox(snap_box(candidate_box), None)
                is_region = draft.call.tool == "SEG"
                view_box = (
                    snap_box(draft.result.output["regions"][k]["box"])
                    if is_region
                    else to_view_box(candidate_box, view.recipe)
                )
                on_views += [PrintedBox(view_box, view)] if view_box else []
        return on_views[-1] if on_views else PrintedBox(snap_box(box), None)

    def edge(self, note: Reference, side: int) -> DerivedNumber:
        """One of left, top, right, bottom (0 to 3) on the picture."""
        box, view = self.locate(note)
        if view is None:
            return DerivedNumber(box[side], "")
        if view.printed_box is None:
            return DerivedNumber(round(get_box(note)[side], 2), "")
        start, length = view.printed_box[side % 2], view.printed_box[side % 2 + 2] - view.printed_box[side % 2]
        value = round(start + box[side] * length, 2)
        return DerivedNumber(
            value, f"{two_decimals(start)} + {two_decimals(box[side])} * {two_decimals(length)} = {two_decimals(value)}"
        )

    def centre(self, note: Reference, axis: int) -> DerivedNumber:
        """The centre along an axis, on the picture."""
        box, view = self.locate(note)
        printed_centre = round_half_up((box[axis] + box[axis + 2]) / 2)
        if view is None:
            return DerivedNumber(printed_centre, "")
        if view.printed_box is None:
            source_box = get_box(note)
            return DerivedNumber(round_half_up((source_box[axis] + source_box[axis + 2]) / 2), "")
        start, length = view.printed_box[axis], view.printed_box[axis + 2] - view.printed_box[axis]
        value = round_half_up(start + printed_centre * length)
        return DerivedNumber(
            value,
            f"{two_decimals(start)} + {two_decimals(printed_centre)} * {two_decimals(length)} = {two_decimals(value)}",
        )

    def width(self, note: Reference) -> DerivedNumber:
        box, view = self.locate(note)
        if view is None:
            value = box[2] - box[0]
            return DerivedNumber(value, f"{two_decimals(box[2])} - {two_decimals(box[0])} = {two_decimals(value)}")
        if view.printed_box is None:
            x0, _, x1, _ = get_box(note)
            return DerivedNumber(round(x1 - x0, 2), "")
        width_on_view, length = box[2] - box[0], view.printed_box[2] - view.printed_box[0]
        value = round(width_on_view * length, 3)
        return DerivedNumber(value, f"{two_decimals(width_on_view)} * {two_decimals(length)} = {value:.3f}")

    def is_on_picture(self, note: Reference) -> bool:
        """Whether its box was printed in the coordinates of the picture."""
        return self.locate(note).view is None


def is_same_thing(candidate: Mask | TextSpan, footprint: object, box: UnitBox) -> bool:
    """Whether a footprint of a result is what a note was made of."""
    if isinstance(candidate, Mask) != isinstance(footprint, Mask) or candidate.box_unit is None:
        return False
    location = getattr(footprint, "media", ""), getattr(footprint, "frame", 0)
    return (candidate.media, candidate.frame) == location and box_iou(candidate.box_unit, box) > SAME_REGION_IOU


def two_decimals(value: float) -> str:
    """Two decimals, as boxes and times are printed."""
    return f"{value:.2f}"


def join_with_and(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def round_half_up(value: float) -> float:
    """Two decimals, 0.125 as 0.13: the middle of two printed numbers as people round it."""
    return round(value + 1e-9, 2)


def format_result(computed: float, answer: str) -> str:
    """` = 2.4`: the answer where rounded numbers give it to two digits, about it where they nearly do, else their own.

    The answer was computed from what the tools measured, of which the policy reads two decimals.
    """
    exact = float(answer)
    if f"{computed:.1e}" == f"{exact:.1e}":
        return f" = {answer}"
    return (
        f" is about {answer}" if abs(computed - exact) <= APPROXIMATE_TOLERANCE * abs(exact) else f" = {computed:.3g}"
    )
