"""What a plain teacher keeps count of while it looks: who comes first so far, or who has been lost.

A small policy cannot hold four boxes against each other in one sentence. It can copy a number from the result that has
just come back and hold it against one that the thought before has named; the last sentence then has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pixelis.geometry import Track
from pixelis.trace.schema import Draft
from pixelis.world import Item

SIDES = {"leftmost": 0, "topmost": 1, "rightmost": 2, "bottommost": 3}


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
    if item.template == "motion.leaver":
        lost = ", ".join(name for name, _ in found.first)
        return f"{found.now}, lost so far: {lost}." if lost else f"{found.now}."
    return f"{found.now}, so far {found.so_far(1 if item.template == 'choice.extreme' else None)}."


def places(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Edges of the things that were found one by one on the picture."""
    if item.template == "choice.extreme":
        side = SIDES[str(item.parameters["most"])]
    else:
        side = 0 if item.parameters["way"] == "left to right" else 1
    found = dict[str, float]()
    last = None
    for draft in drafts:
        last = edge(draft, side)
        if last is not None:
            found[str(draft.call.args["target"])] = last
    if last is None:
        return None
    ordered = sorted(found.items(), key=lambda pair: pair[1], reverse=side > 1)
    return Tally(f"{'XYXY'[side]} {last:.2f}", tuple(ordered))


def edge(draft: Draft, side: int) -> float | None:
    """Of the one region that SEG found on the picture itself."""
    call, result = draft.call, draft.result
    if call.tool != "SEG" or not result.ok or str(call.args.get("media", "")).startswith("View"):
        return None
    regions = result.output["regions"]
    return round(float(regions[0]["box"][side]), 2) if len(regions) == 1 else None


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


COUNTS = {"choice.extreme": places, "space.order": places, "motion.leaver": losses}
