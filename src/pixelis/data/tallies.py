"""What a plain teacher keeps count of while it looks: who comes first so far, or who has been lost.

A small policy cannot hold four boxes against each other in one sentence. It can copy a number from the result that has
just come back and hold it against one that the thought before has named; the last sentence then has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pixelis.geometry import Track, UnitBox
from pixelis.tools.results import ToolCall
from pixelis.trace.schema import Draft
from pixelis.world import Item

FIRST = {"left to right": "leftmost", "top to bottom": "topmost"}


class Side(NamedTuple):
    """The number of a box that decides.

    Of an edge it is the left or the upper one, whichever end is asked for, and it is written as a box has it, with a
    comma behind: nano's token for it is then the one that the result printed, and has only to be copied.
    """

    name: str
    edge: int | None
    """Which of x0 and y0; None for the width."""
    largest: bool
    """Whether the largest number comes first."""

    def of(self, box: UnitBox) -> float:
        return round(box[2] - box[0], 2) if self.edge is None else box[self.edge]

    def now(self, value: float) -> str:
        return f"{self.name} {self.said('now', value)}"

    def said(self, name: str, value: float) -> str:
        return f"{name} {value:.2f}" if self.edge is None else f"({value:.2f}, {name})"

    def order(self, found: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
        return tuple(sorted(found, key=lambda pair: pair[1], reverse=self.largest))


SIDES = {
    "leftmost": Side("X", 0, largest=False), "topmost": Side("Y", 1, largest=False),
    "rightmost": Side("X", 0, largest=True), "bottommost": Side("Y", 1, largest=True),
    "smallest": Side("Width", None, largest=False), "largest": Side("Width", None, largest=True),
}  # fmt: skip


class Tally(NamedTuple):
    """What has been counted up to the last call."""

    now: str
    """What the last call added."""
    first: tuple[tuple[str, float], ...]
    """Names and values, in the order that was asked for."""
    side: Side | None = None
    """What the values are; None for moments, which are not said again."""

    def so_far(self, most: int | None = None) -> str:
        return ", ".join(self.side.said(*pair) if self.side else pair[0] for pair in self.first[:most])

    def noted(self, most: int | None = None) -> str:
        """As a thought says it before the next call."""
        return f"{self.now}, so far {self.so_far(most)}."

    def ended(self, most: str) -> str:
        """As the last sentence says who comes first. It ends with what is answered, as all last sentences do: nano had
        the right pair here and then answered with another name."""
        return f"{self.now}; {most} is {self.so_far(1)}: {self.first[0][0]}."

    def ordered(self) -> str:
        return f"{self.now}; in order {self.so_far()}: {', '.join(name for name, _ in self.first)}."

    @property
    def tied(self) -> bool:
        """Whether rounding hides who comes first."""
        return len(self.first) > 1 and self.first[0][1] == self.first[1][1]


def corner(name: str, box: Sequence[float]) -> str:
    """The first two numbers of a box, written as a box has them."""
    return f"({box[0]:.2f}, {box[1]:.2f}, {name})"


def against(a: tuple[str, Sequence[float]], b: tuple[str, Sequence[float]], words: str) -> str:
    """Two things, by their left and upper edges, held against each other along both axes."""
    return f"{corner(*b)} against {corner(*a)}: {words}."


def tally(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """None where the question is not of this kind, or where the last call gave nothing to count."""
    counts = COUNTS.get(item.template)
    return counts(item, drafts) if counts and drafts else None


def look_back(item: Item, drafts: Sequence[Draft]) -> str:
    """`Y (0.36, now), so far (0.09, cyan star).`; empty where there is nothing to count."""
    found = tally(item, drafts)
    if found is None:
        return ""
    if item.template == "search.relation":
        return f"{found.now}."
    if item.template in SO_FAR:
        return f"{found.now}, {SO_FAR[item.template]} so far: {found.so_far()}." if found.first else f"{found.now}."
    return found.noted(None if item.template == "space.order" else 1)


def places(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Edges or widths of the things that were found one by one on the picture."""
    side = SIDES[str(item.parameters["most"] if "most" in item.parameters else FIRST[str(item.parameters["way"])])]
    asked = set(item.options) | set(item.parameters.get("things") or ())  # type: ignore[arg-type]
    found = dict[str, float]()
    box = None
    for draft in drafts:
        name = str(draft.call.args.get("target"))
        box = one_box(draft) if name in asked else None
        if box is not None:
            found[name] = side.of(box)
    return None if box is None else Tally(side.now(side.of(box)), side.order(found.items()), side)


def corners(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Left and upper edge of what was found last."""
    box = one_box(drafts[-1])
    return None if box is None else Tally(corner(str(drafts[-1].call.args["target"]), box), ())


def one_box(draft: Draft) -> UnitBox | None:
    """Of the one region that SEG found on the picture itself, as printed."""
    call, result = draft.call, draft.result
    if call.tool != "SEG" or not result.ok or looks_at_view(call):
        return None
    regions = result.output["regions"]
    x0, y0, x1, y1 = (round(float(v), 2) for v in regions[0]["box"])
    return (x0, y0, x1, y1) if len(regions) == 1 else None


def looks_at_view(call: ToolCall) -> bool:
    """Whether a call looks at a view, whose coordinates are its own."""
    return str(call.args.get("media", "")).startswith("View")


def losses(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Things whose tracks end before the clip does; one that was followed over a stretch only is not known yet."""
    end = int(str(item.parameters["frames"])) - 1
    lost = dict[str, float]()
    name, last, reached = "", None, False
    for draft in drafts:
        last = None
        if draft.call.tool == "SEG":
            name = str(draft.call.args["target"])
        tracks = [seen for seen in draft.result.footprints if isinstance(seen, Track)]
        if draft.call.tool == "TRK" and tracks:
            last = float(draft.result.output["tracks"][0]["last_s"])
            lost.pop(name, None)
            reached = tracks[0].frames[-1] >= end
            if not reached and not {"end_s", "end_frame"} & set(draft.call.args):
                lost[name] = last
    if last is None:
        return None
    return Tally("To the end" if reached else f"To {last:.2f} s", tuple(lost.items()))


def misses(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Options that SEG did not find on the picture; None where the last call looked for none of them."""
    missing, found = dict[str, float](), None
    for draft in drafts:
        name = str(draft.call.args.get("target"))
        found = draft.result.ok if draft.call.tool == "SEG" and name in item.options else None
        if found is not None and not looks_at_view(draft.call):
            missing.pop(name, None)
            missing |= {} if found else {name: 0.0}
    return None if found is None else Tally("Found" if found else "Nothing fits", tuple(missing.items()))


def moves(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Things whose tracks went somewhere."""
    moving = dict[str, float]()
    name, way = "", None
    for draft in drafts:
        way = None
        if draft.call.tool == "SEG":
            name = str(draft.call.args.get("target"))
        elif draft.call.tool == "TRK" and draft.result.ok and draft.result.output["tracks"]:
            way = str(draft.result.output["tracks"][0]["direction"])
            moving |= {name: 0.0} if way != "still" else {}
    return (
        None
        if way is None
        else Tally("It stays where it is" if way == "still" else f"It goes {way}", tuple(moving.items()))
    )


SO_FAR = {"motion.leaver": "lost", "motion.mover": "moving", "choice.absent": "missing"}
"""What is said of the names that a tally without numbers holds."""
COUNTS = {
    "choice.extreme": places, "choice.size": places, "space.order": places, "search.relation": corners,
    "motion.leaver": losses, "motion.mover": moves, "choice.absent": misses,
}  # fmt: skip
