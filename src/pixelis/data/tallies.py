"""What a plain teacher keeps count of while it looks: who comes first so far, or who has been lost.

A small policy cannot hold four boxes against each other in one sentence. It can copy a number from the result that has
just come back and hold it against one that the thought before has named; the last sentence then has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pixelis.geometry import Track, UnitBox
from pixelis.trace.schema import Draft
from pixelis.world import Item

SIDES = {"leftmost": 0, "topmost": 1, "rightmost": 2, "bottommost": 3, "smallest": 4, "largest": 5}
"""Which number decides: an edge of the box, or its width."""
NAMES = ("X", "Y", "X", "Y", "Width", "Width")
LARGEST = (2, 3, 5)
"""Where the largest number comes first."""
FIRST = {"left to right": "leftmost", "top to bottom": "topmost"}


class Tally(NamedTuple):
    """What has been counted up to the last call."""

    now: str
    """What the last call added."""
    first: tuple[tuple[str, float], ...]
    """Names and values, in the order that was asked for."""

    def so_far(self, most: int | None = None) -> str:
        return ", ".join(f"{name} {value:.2f}" for name, value in self.first[:most])


def tally(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """None where the question is not of this kind, or where the last call gave nothing to count."""
    counts = COUNTS.get(item.template)
    return counts(item, drafts) if counts and drafts else None


def look_back(item: Item, drafts: Sequence[Draft]) -> str:
    """`Y 0.36, so far cyan star 0.09.`; empty where there is nothing to count."""
    found = tally(item, drafts)
    if found is None:
        return ""
    if item.template == "search.relation":
        return f"{found.now}."
    if item.template == "motion.leaver":
        lost = ", ".join(name for name, _ in found.first)
        return f"{found.now}, lost so far: {lost}." if lost else f"{found.now}."
    return f"{found.now}, so far {found.so_far(None if item.template == 'space.order' else 1)}."


def places(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Edges or widths of the things that were found one by one on the picture."""
    side = SIDES[str(item.parameters["most"] if "most" in item.parameters else FIRST[str(item.parameters["way"])])]
    found = dict[str, float]()
    box = None
    for draft in drafts:
        box = one_box(draft)
        if box is not None:
            found[str(draft.call.args["target"])] = measured(box, side)
    if box is None:
        return None
    ordered = sorted(found.items(), key=lambda pair: pair[1], reverse=side in LARGEST)
    return Tally(f"{NAMES[side]} {measured(box, side):.2f}", tuple(ordered))


def corners(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Left and upper edge of what was found last."""
    box = one_box(drafts[-1])
    return None if box is None else Tally(f"X {box[0]:.2f}, y {box[1]:.2f}", ())


def one_box(draft: Draft) -> UnitBox | None:
    """Of the one region that SEG found on the picture itself, as printed."""
    call, result = draft.call, draft.result
    if call.tool != "SEG" or not result.ok or str(call.args.get("media", "")).startswith("View"):
        return None
    regions = result.output["regions"]
    x0, y0, x1, y1 = (round(float(v), 2) for v in regions[0]["box"])
    return (x0, y0, x1, y1) if len(regions) == 1 else None


def measured(box: UnitBox, side: int) -> float:
    """An edge, or the width."""
    return box[side] if side < 4 else round(box[2] - box[0], 2)


def losses(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Things whose tracks end before the clip does."""
    end = int(str(item.parameters["frames"])) - 1
    lost = dict[str, float]()
    name, last = "", None
    for draft in drafts:
        last = None
        if draft.call.tool == "SEG":
            name = str(draft.call.args["target"])
        tracks = [seen for seen in draft.result.footprints if isinstance(seen, Track)]
        if draft.call.tool == "TRK" and tracks:
            last = float(draft.result.output["tracks"][0]["last_s"])
            lost.pop(name, None)
            if tracks[0].frames[-1] < end:
                lost[name] = last
    if last is None:
        return None
    return Tally("To the end" if name not in lost else f"To {last:.2f} s", tuple(lost.items()))


COUNTS = {
    "choice.extreme": places, "choice.size": places, "space.order": places, "search.relation": corners,
    "motion.leaver": losses,
}  # fmt: skip
