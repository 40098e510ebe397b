"""What a plain teacher keeps count of while it looks: who comes first so far, who has been lost, what stood where.

A small policy cannot hold four boxes against each other in one sentence. It can copy a number from the result that has
just come back and hold it against one that the thought before has named; the last sentence then has nothing left to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pixelis.geometry import Track, UnitBox
from pixelis.tools.results import ToolCall
from pixelis.trace.schema import Draft
from pixelis.world import Item
from pixelis.world.programs import value_of, words_of

ENDS = {"end_s", "end_frame"}
PART_OF_A_CLIP = {"start_s", "start_frame", *ENDS}
FIRST = {"left to right": "leftmost", "top to bottom": "topmost"}


class Side(NamedTuple):
    """The number that decides.

    Of an edge it is the left or the upper one, whichever end is asked for, and it is written as a box has it, with a
    comma behind: nano's token for it is then the one that the result printed, and has only to be copied.
    """

    name: str
    edge: int | None
    """Which of x0 and y0; None for a number that is none of a box's."""
    largest: bool
    """Whether the largest number comes first."""

    def now(self, value: float) -> str:
        return f"{self.name} {self.said('now', value)}"

    def said(self, name: str, value: float) -> str:
        return f"{name} {value:.2f}" if self.edge is None else f"({value:.2f}, {name})"

    def order(self, found: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
        return tuple(sorted(found, key=lambda pair: pair[1], reverse=self.largest))


SIDES = {
    "leftmost": Side("X", 0, largest=False), "topmost": Side("Y", 1, largest=False),
    "rightmost": Side("X", 0, largest=True), "bottommost": Side("Y", 1, largest=True),
    "smallest": Side("Area", None, largest=False), "largest": Side("Area", None, largest=True),
}  # fmt: skip
SPEEDS = {"slowest": Side("Way", None, largest=False), "fastest": Side("Way", None, largest=True)}
"""By how far something came, over the same time, as TRK prints it."""
MOMENTS = {"first": Side("Start", None, largest=False), "last": Side("Start", None, largest=True)}
NEAREST = Side("Away", None, largest=False)


class Tally(NamedTuple):
    """What has been counted up to the last call."""

    now: str
    """What the last call added."""
    first: tuple[tuple[str, float], ...]
    """Names and values, in the order that was asked for."""
    side: Side | None = None
    """What the values are; None where names are all that is kept."""

    def so_far(self, most: int | None = None) -> str:
        return ", ".join(self.side.said(*pair) if self.side else pair[0] for pair in self.first[:most])

    def noted(self, most: int | None = None) -> str:
        """As a thought says it before the next call. Where rounding hides who comes first, all who may are named."""
        alike = sum(value == self.first[0][1] for _, value in self.first)
        return f"{self.now}, so far {self.so_far(None if most is None else max(most, alike))}."

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


def against(a: Sequence[float], b: Sequence[float], words: str) -> str:
    """Two things, by their left and upper edges, held against each other along each axis.

    Along the one that does not count they are called even: which it is, and which way the other goes, are then two
    small questions instead of one.
    """
    across = words in ("left", "right")
    x, y = (words, "even") if across else ("even", words)
    return f"X ({a[0]:.2f}, {b[0]:.2f}, {x}), Y ({a[1]:.2f}, {b[1]:.2f}, {y}): {words}."


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
    if item.template in ("lecture.change", "document.pair_more"):
        return found.now
    if item.template in SO_FAR:
        return f"{found.now}, {SO_FAR[item.template]} so far: {found.so_far()}." if found.first else f"{found.now}."
    return found.noted(None if item.template == "space.order" else 1)


def places(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Edges or areas of the things that were found one by one on the picture."""
    side = SIDES[str(item.parameters["most"] if "most" in item.parameters else FIRST[str(item.parameters["way"])])]
    asked = set(item.options) | set(item.parameters.get("things") or ())  # type: ignore[arg-type]
    found = dict[str, float]()
    value = None
    for draft in drafts:
        name = str(draft.call.args.get("target"))
        value, box = None, one_box(draft) if name in asked else None
        if box is not None:
            area = round(float(draft.result.output["regions"][0]["area"]), 2)
            found[name] = value = area if side.edge is None else box[side.edge]
    return counted(side, value, found)


def distances(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """How far the options lie from the thing that is asked about, left or upper edge from the same edge."""
    here: UnitBox | None = None
    found = dict[str, float]()
    value = None
    for draft in drafts:
        name, box, value = str(draft.call.args.get("target")), one_box(draft), None
        if box is not None and name == item.parameters["target"]:
            here = box
        elif box is not None and here is not None and name in item.options:
            found[name] = value = round(max(abs(box[0] - here[0]), abs(box[1] - here[1])), 2)
    return counted(NEAREST, value, found)


def speeds(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """How far things came that were followed one by one through the whole clip."""
    found = dict[str, float]()
    value = None
    for draft, name in followed_one(item, drafts):
        tracks = draft.result.output.get("tracks") if name and draft.result.ok else None
        value = round(float(tracks[0]["way"]), 2) if tracks and not PART_OF_A_CLIP & set(draft.call.args) else None
        if value is not None:
            found[name] = value
    return counted(SPEEDS[str(item.parameters["most"])], value, found)


def followed_one(item: Item, drafts: Sequence[Draft]) -> Iterator[tuple[Draft, str]]:
    """Each call with the thing of the question that SEG found last before it; the empty name for any other call.

    A thing that was sought by other words, or by a click, has no name that the question knows.
    """
    name = ""
    for draft in drafts:
        if draft.call.tool == "SEG":
            asked = str(draft.call.args.get("target"))
            name = asked if asked in words_of(item.parameters, "things") else ""
        yield draft, name if draft.call.tool == "TRK" else ""


def printed(box: Sequence[float]) -> UnitBox:
    """A box with two decimals."""
    x0, y0, x1, y1 = (round(float(v), 2) for v in box)
    return x0, y0, x1, y1


def moments(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """When things appear that were looked for one by one."""
    found = dict[str, float]()
    value = None
    for draft in drafts:
        named = [thing for thing in words_of(item.parameters, "things") if thing in str(draft.call.args.get("query"))]
        value = None
        if draft.call.tool == "TEMP" and draft.result.ok and len(named) == 1 and not draft.result.output["frames"]:
            found[named[0]] = value = round(float(draft.result.output["segments"][0]["start_s"]), 2)
    return counted(MOMENTS[str(item.parameters["which"])], value, found)


def counted(side: Side, value: float | None, found: Mapping[str, float]) -> Tally | None:
    return None if value is None else Tally(side.now(value), side.order(found.items()), side)


def seats(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """What stands after a key on the notices, as each was read whole, and on which there is more."""
    key, found, value = str(item.parameters["key"]), dict[str, float](), None
    for draft in drafts:
        whole = "box" not in draft.call.args and not looks_at_view(draft.call)
        value = entry_of(draft, key) if whole else None
        if value:
            found[str(draft.call.args.get("media"))] = value_of(value[len(key) :])
    if value is None:
        return None
    said = ", ".join(f"{number:g} in {media}" for media, number in found.items())
    return Tally(f"{said}: more in {max(found, key=lambda m: found[m])}." if len(found) > 1 else f"{said}.", ())


def entries(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """The line of a key on the slide that was read last."""
    own = entry_of(drafts[-1], str(item.parameters["key"]))
    return Tally(f"{own}.", ()) if own else None


def entry_of(draft: Draft, key: str) -> str | None:
    """The one line with a number that OCR read after a key."""
    lines = str(draft.result.output["text"]).splitlines() if draft.call.tool == "OCR" and draft.result.ok else []
    own = [line for line in lines if re.match(rf"{re.escape(key)}\s*[:：=]\s*\d", line)]
    return own[0] if len(own) == 1 else None


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
    return printed(regions[0]["box"]) if len(regions) == 1 else None


def looks_at_view(call: ToolCall) -> bool:
    """Whether a call looks at a view, whose coordinates are its own."""
    return str(call.args.get("media", "")).startswith("View")


def losses(item: Item, drafts: Sequence[Draft]) -> Tally | None:
    """Things whose tracks end before the clip does; one that was followed over a stretch only is not known yet."""
    end = int(str(item.parameters["frames"])) - 1
    lost = dict[str, float]()
    last, reached = None, False
    for draft, name in followed_one(item, drafts):
        last = None
        tracks = [seen for seen in draft.result.footprints if isinstance(seen, Track)]
        if name and tracks:
            last = float(draft.result.output["tracks"][0]["last_s"])
            lost.pop(name, None)
            reached = tracks[0].frames[-1] >= end
            if not reached and not ENDS & set(draft.call.args):
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
    way = None
    for draft, name in followed_one(item, drafts):
        way = None
        if name and draft.result.ok and draft.result.output["tracks"]:
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
    "choice.extreme": places, "choice.size": places, "choice.neighbour": distances, "choice.absent": misses,
    "space.order": places, "search.relation": corners, "motion.leaver": losses, "motion.mover": moves,
    "motion.fastest": speeds, "motion.order": moments, "lecture.change": entries,
    "document.pair_more": seats,
}  # fmt: skip
