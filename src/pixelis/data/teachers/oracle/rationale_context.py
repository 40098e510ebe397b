"""What a policy could read about the things in the notes: boxes as the results printed them, with two decimals.

A box that was printed for a view has other coordinates on the picture: such numbers come with their computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pixelis.core.geometry import Mask, TextSpan, UnitBox
from pixelis.data.teachers.oracle.oracle_session import snap_box, to_view_box
from pixelis.data.teachers.oracle.running_notes import RunningNote, looks_at_view, make_running_note
from pixelis.items import option_letter
from pixelis.media import ViewRecipe
from pixelis.metrics.overlap import box_iou
from pixelis.trace.schema import StepDraft
from pixelis.world import Item, Reference
from pixelis.world.package_data import read_package_yaml
from pixelis.world.programs import Facts, Unanswerable, get_box

Wordings = tuple[str, ...]
"""Sentences of one meaning."""
WORDINGS: dict[str, list[str]] = read_package_yaml("pixelis.data.teachers.oracle", "rationales.yaml")
SAME_REGION_IOU = 0.5
"""From this IoU on, two regions are the same thing, outlined twice."""
APPROXIMATE_TOLERANCE = 0.1
FULL_FRAME: UnitBox = (0.0, 0.0, 1.0, 1.0)


class DerivedNumber(NamedTuple):
    """A number as the policy can derive it."""

    value: float
    computation: str
    """The computation with its result; empty if the number itself was printed."""

    @property
    def short(self) -> str:
        return f"{self.value:.2f}"

    @property
    def text(self) -> str:
        return self.computation or self.short


class PrintedView(NamedTuple):
    """A view, and the box that its result printed; None if that box was itself on a view."""

    recipe: ViewRecipe
    printed_box: UnitBox | None


class PrintedBox(NamedTuple):
    """A box as printed, and the view that it was printed for."""

    box: UnitBox
    view: PrintedView | None


@dataclass(frozen=True)
class RationaleContext:
    """The question, what was seen, and the answer."""

    item: Item
    notes: Sequence[Reference]
    drafts: Sequence[StepDraft]
    answer: str
    """The answer in words; for multiple choice those of the option."""
    canonical_wording: bool = False
    """Whether to name no option letters, write sums out, and use the running note."""

    def say(self, key: str, **fields: object) -> Wordings:
        """The wordings of `rationales.yaml` under a key, filled with these fields and the question's parameters."""
        option = f": {self.option_label}" if self.option_label else ""
        fields = {**self.item.parameters, "answer": self.answer, "option": option, **fields}
        return tuple(wording.format_map(fields) for wording in WORDINGS[key])

    @cached_property
    def running_note(self) -> RunningNote | None:
        """The running note; None without canonical wording."""
        return make_running_note(self.item, self.drafts) if self.canonical_wording else None

    @property
    def conclusive_note(self) -> RunningNote | None:
        """The running note, if the answer is the only name that it lists."""
        note = self.running_note
        return note if note and [name for name, _ in note.ranking] == [self.answer] else None

    # --- the question

    @cached_property
    def facts(self) -> Facts:
        """The notes and the parameters as a reference program reads them."""
        return Facts(self.notes, self.item.parameters)

    def parameter(self, key: str) -> str:
        return self.facts.text(key)

    def names(self, key: str) -> tuple[str, ...]:
        """Things in the order in which the question names them."""
        return self.item.options if key == "options" else self.facts.words(key)

    @property
    def option_label(self) -> str:
        """`option B`; empty for other questions."""
        if self.canonical_wording or self.answer not in self.item.options:
            return ""
        return f"option {option_letter(self.item.options.index(self.answer))}"

    # --- things

    def find_thing(self, phrase: str) -> Reference:
        """What was noted under a phrase. Raises Unanswerable if nothing was."""
        return self.facts.region(phrase)

    def find_things(self, phrases: Sequence[str]) -> list[Reference]:
        return [self.find_thing(phrase) for phrase in phrases]

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
        """The printed box of a thing: on the picture if there is one, else on the view on which it was found."""
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

    def edge(self, note: Reference, axis: int) -> DerivedNumber:
        """The left (axis 0) or upper (axis 1) edge on the picture."""
        return self._on_picture(note, axis, self.locate(note).box[axis], get_box(note)[axis], round_two_decimals)

    def centre(self, note: Reference, axis: int) -> DerivedNumber:
        """The centre along an axis, on the picture."""
        printed, source = (round_half_up((b[axis] + b[axis + 2]) / 2) for b in (self.locate(note).box, get_box(note)))
        return self._on_picture(note, axis, printed, source, round_half_up)

    def _on_picture(
        self, note: Reference, axis: int, printed: float, source: float, rounded: Callable[[float], float]
    ) -> DerivedNumber:
        """A printed coordinate, moved from its view to the picture; the exact one if the view's place is unknown."""
        view = self.locate(note).view
        if view is None:
            return DerivedNumber(printed, "")
        if view.printed_box is None:
            return DerivedNumber(rounded(source), "")
        start, length = view.printed_box[axis], view.printed_box[axis + 2] - view.printed_box[axis]
        value = rounded(start + printed * length)
        return DerivedNumber(value, f"{start:.2f} + {printed:.2f} * {length:.2f} = {value:.2f}")

    def width(self, note: Reference) -> DerivedNumber:
        box, view = self.locate(note)
        width = box[2] - box[0]
        if view is None:
            return DerivedNumber(width, f"{box[2]:.2f} - {box[0]:.2f} = {width:.2f}")
        if view.printed_box is None:
            x0, _, x1, _ = get_box(note)
            return DerivedNumber(round(x1 - x0, 2), "")
        length = view.printed_box[2] - view.printed_box[0]
        value = round(width * length, 3)
        return DerivedNumber(value, f"{width:.2f} * {length:.2f} = {value:.3f}")

    def is_on_picture(self, note: Reference) -> bool:
        """Whether its box was printed in the coordinates of the picture."""
        return self.locate(note).view is None


def is_same_thing(candidate: Mask | TextSpan, footprint: object, box: UnitBox) -> bool:
    """Whether a footprint of a result is what a note was made of."""
    if isinstance(candidate, Mask) != isinstance(footprint, Mask) or candidate.box_unit is None:
        return False
    location = getattr(footprint, "media", ""), getattr(footprint, "frame", 0)
    return (candidate.media, candidate.frame) == location and box_iou(candidate.box_unit, box) > SAME_REGION_IOU


def require(condition: bool) -> None:
    """Raise Unanswerable if a condition fails: the conclusion is then drawn without numbers."""
    if not condition:
        raise Unanswerable("the notes do not lead to the answer")


def join_with_and(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def round_two_decimals(value: float) -> float:
    return round(value, 2)


def round_half_up(value: float) -> float:
    """Two decimals, 0.125 as 0.13: the middle of two printed numbers as people round it."""
    return round(value + 1e-9, 2)


def format_result(computed: float, answer: str) -> str:
    """` = 2.4`: the answer if rounded numbers give it to two digits, "about" it if they come near, else their result.

    The answer was computed from what the tools measured, of which the policy reads two decimals.
    """
    exact = float(answer)
    if f"{computed:.1e}" == f"{exact:.1e}":
        return f" = {answer}"
    is_near = abs(computed - exact) <= APPROXIMATE_TOLERANCE * abs(exact)
    return f" is about {answer}" if is_near else f" = {computed:.3g}"
