"""Running notes of a teacher with canonical wording: what ranks first so far, what was lost, what was read where.

A small policy cannot compare four boxes in one sentence. It can copy a number from the last result and compare it with
one in the thought before; the last sentence then has nothing left to compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pixelis.core.geometry import Track, UnitBox
from pixelis.tools.results import ToolCall
from pixelis.trace.schema import StepDraft
from pixelis.world import Item
from pixelis.world.programs import Facts, parse_number

END_ARGS = {"end_s", "end_frame"}
CLIP_RANGE_ARGS = {"start_s", "start_frame", *END_ARGS}
FIRST_BY_DIRECTION = {"left to right": "leftmost", "top to bottom": "topmost"}


class RankingKey(NamedTuple):
    """The number by which things are ranked.

    For positions it is the left or upper edge, whichever end the question asks for. It is written as in a box, with a
    comma after it, so that nano's token is the printed one and can be copied.
    """

    name: str
    edge: int | None
    """0 for x0, 1 for y0; None for a number that is not part of a box."""
    largest: bool
    """Whether the largest number comes first."""

    def format_current(self, value: float) -> str:
        return f"{self.name} {self.format_value('now', value)}"

    def format_value(self, name: str, value: float) -> str:
        return f"{name} {value:.2f}" if self.edge is None else f"({value:.2f}, {name})"

    def sort_values(self, values: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
        return tuple(sorted(values, key=lambda pair: pair[1], reverse=self.largest))


POSITION_KEYS = {
    "leftmost": RankingKey("X", 0, largest=False), "topmost": RankingKey("Y", 1, largest=False),
    "rightmost": RankingKey("X", 0, largest=True), "bottommost": RankingKey("Y", 1, largest=True),
    "smallest": RankingKey("Area", None, largest=False), "largest": RankingKey("Area", None, largest=True),
}  # fmt: skip
SPEED_KEYS = {"slowest": RankingKey("Way", None, largest=False), "fastest": RankingKey("Way", None, largest=True)}
"""By the distance over the same time, as TRK prints it."""
START_TIME_KEYS = {"first": RankingKey("Start", None, largest=False), "last": RankingKey("Start", None, largest=True)}
DISTANCE_KEY = RankingKey("Away", None, largest=False)


class RunningNote(NamedTuple):
    """The state of the count after the last call."""

    latest: str
    """What the last call added."""
    ranking: tuple[tuple[str, float], ...]
    """Names and values, in the order that the question asks for."""
    key: RankingKey | None = None
    """What the values are; None if only names are listed."""

    def format_ranking(self, limit: int | None = None) -> str:
        return ", ".join(self.key.format_value(*pair) if self.key else pair[0] for pair in self.ranking[:limit])

    def to_thought(self, limit: int | None = None) -> str:
        """The note in the next thought. If rounding hides which comes first, all candidates are named."""
        tie_count = sum(value == self.ranking[0][1] for _, value in self.ranking)
        return f"{self.latest}, so far {self.format_ranking(None if limit is None else max(limit, tie_count))}."

    def to_conclusion(self, ranking_word: str) -> str:
        """The note in the last sentence. It ends with the answer, like every last sentence: nano once named the right
        pair here, and then answered with another name."""
        return f"{self.latest}; {ranking_word} is {self.format_ranking(1)}: {self.ranking[0][0]}."

    def to_ordered_list(self) -> str:
        return f"{self.latest}; in order {self.format_ranking()}: {', '.join(name for name, _ in self.ranking)}."

    @property
    def is_tied(self) -> bool:
        """Whether rounding hides which comes first."""
        return len(self.ranking) > 1 and self.ranking[0][1] == self.ranking[1][1]


def format_corner(name: str, box: Sequence[float]) -> str:
    """The first two numbers of a box, written as a box has them."""
    return f"({box[0]:.2f}, {box[1]:.2f}, {name})"


def format_comparison(a: Sequence[float], b: Sequence[float], words: str) -> str:
    """Compare the left and upper edges of two things along each axis.

    They are called even along the axis that does not decide. Which axis decides, and in which direction, are then two
    small questions instead of one.
    """
    across = words in ("left", "right")
    x, y = (words, "even") if across else ("even", words)
    return f"X ({a[0]:.2f}, {b[0]:.2f}, {x}), Y ({a[1]:.2f}, {b[1]:.2f}, {y}): {words}."


def make_running_note(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """None if the question needs no note, or the last call gave nothing to count."""
    note_builder = NOTE_BUILDERS.get(item.template)
    return note_builder(item, drafts) if note_builder and drafts else None


def write_recap(item: Item, drafts: Sequence[StepDraft]) -> str:
    """`Y (0.36, now), so far (0.09, cyan star).`; empty if there is nothing to count."""
    running_note = make_running_note(item, drafts)
    if running_note is None:
        return ""
    if item.template == "search.relation":
        return f"{running_note.latest}."
    if item.template in ("lecture.change", "document.pair_more"):
        return running_note.latest
    if item.template in NAME_LIST_LABELS:
        label, names = NAME_LIST_LABELS[item.template], running_note.format_ranking()
        return f"{running_note.latest}, {label} so far: {names}." if names else f"{running_note.latest}."
    return running_note.to_thought(None if item.template == "space.order" else 1)


def rank_positions(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """Rank things by the edges or areas found one by one on the picture."""
    most = item.parameters.get("most") or FIRST_BY_DIRECTION[str(item.parameters["way"])]
    key = POSITION_KEYS[str(most)]
    candidates = set(item.options) | set(item.parameters.get("things") or ())  # type: ignore[arg-type]
    values = dict[str, float]()
    value = None
    for draft in drafts:
        name = str(draft.call.args.get("target"))
        value, box = None, single_region_box(draft) if name in candidates else None
        if box is not None:
            area = round(float(draft.result.output["regions"][0]["area"]), 2)
            values[name] = value = area if key.edge is None else box[key.edge]
    return ranking_note(key, value, values)


def rank_distances(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """Rank the options by their distance from the target, between left or upper edges."""
    target_box: UnitBox | None = None
    values = dict[str, float]()
    value = None
    for draft in drafts:
        name, box, value = str(draft.call.args.get("target")), single_region_box(draft), None
        if box is not None and name == item.parameters["target"]:
            target_box = box
        elif box is not None and target_box is not None and name in item.options:
            values[name] = value = round(max(abs(box[0] - target_box[0]), abs(box[1] - target_box[1])), 2)
    return ranking_note(DISTANCE_KEY, value, values)


def rank_speeds(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """Rank things by their distance in tracks of the whole clip."""
    values = dict[str, float]()
    value = None
    for draft, name in pair_tracks_with_names(item, drafts):
        tracks = draft.result.output.get("tracks") if name and draft.result.ok else None
        value = round(float(tracks[0]["way"]), 2) if tracks and not CLIP_RANGE_ARGS & set(draft.call.args) else None
        if value is not None:
            values[name] = value
    return ranking_note(SPEED_KEYS[str(item.parameters["most"])], value, values)


def pair_tracks_with_names(item: Item, drafts: Sequence[StepDraft]) -> Iterator[tuple[StepDraft, str]]:
    """Each call; a TRK call with the name of the thing that SEG searched for last, others with an empty name.

    The name is also empty if SEG searched for other words than the question's, or at a point.
    """
    name = ""
    for draft in drafts:
        if draft.call.tool == "SEG":
            target = str(draft.call.args.get("target"))
            name = target if target in Facts((), item.parameters).words("things") else ""
        yield draft, name if draft.call.tool == "TRK" else ""


def round_box(box: Sequence[float]) -> UnitBox:
    """A box with two decimals."""
    x0, y0, x1, y1 = (round(float(v), 2) for v in box)
    return x0, y0, x1, y1


def rank_start_times(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """Rank things by the times at which they appear."""
    things = Facts((), item.parameters).words("things")
    values = dict[str, float]()
    value = None
    for draft in drafts:
        mentioned = [thing for thing in things if thing in str(draft.call.args.get("query"))]
        value = None
        if draft.call.tool == "TEMP" and draft.result.ok and len(mentioned) == 1 and not draft.result.output["frames"]:
            values[mentioned[0]] = value = round(float(draft.result.output["segments"][0]["start_s"]), 2)
    return ranking_note(START_TIME_KEYS[str(item.parameters["which"])], value, values)


def ranking_note(key: RankingKey, value: float | None, values: Mapping[str, float]) -> RunningNote | None:
    return None if value is None else RunningNote(key.format_current(value), key.sort_values(values.items()), key)


def compare_entries(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """The values of a key on the notices that were read in full, and which is larger."""
    key, values, value = str(item.parameters["key"]), dict[str, float](), None
    for draft in drafts:
        is_full_page = "box" not in draft.call.args and not looks_at_view(draft.call)
        value = find_entry_line(draft, key) if is_full_page else None
        if value:
            values[str(draft.call.args.get("media"))] = parse_number(value[len(key) :])
    if value is None:
        return None
    listed_values = ", ".join(f"{number:g} in {media}" for media, number in values.items())
    comparison = f": more in {max(values, key=lambda m: values[m])}" if len(values) > 1 else ""
    return RunningNote(f"{listed_values}{comparison}.", ())


def latest_entry(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """The line of a key on the last slide read."""
    entry_line = find_entry_line(drafts[-1], str(item.parameters["key"]))
    return RunningNote(f"{entry_line}.", ()) if entry_line else None


def find_entry_line(draft: StepDraft, key: str) -> str | None:
    """The only line that OCR read with a key and a number; None if there are none or several."""
    lines = str(draft.result.output["text"]).splitlines() if draft.call.tool == "OCR" and draft.result.ok else []
    matches = [line for line in lines if re.match(rf"{re.escape(key)}\s*[:：=]\s*\d", line)]
    return matches[0] if len(matches) == 1 else None


def latest_corner(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """Left and upper edge of the last region."""
    box = single_region_box(drafts[-1])
    return None if box is None else RunningNote(format_corner(str(drafts[-1].call.args["target"]), box), ())


def single_region_box(draft: StepDraft) -> UnitBox | None:
    """The printed box, if SEG found exactly one region on the picture itself."""
    call, result = draft.call, draft.result
    if call.tool != "SEG" or not result.ok or looks_at_view(call):
        return None
    regions = result.output["regions"]
    return round_box(regions[0]["box"]) if len(regions) == 1 else None


def looks_at_view(call: ToolCall) -> bool:
    """Whether a call looks at a view, which has its own coordinates."""
    return str(call.args.get("media", "")).startswith("View")


def list_lost(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """List things whose tracks end before the clip; a track with an end argument does not count."""
    end = int(str(item.parameters["frames"])) - 1
    last_seconds = dict[str, float]()
    last_second, reached_end = None, False
    for draft, name in pair_tracks_with_names(item, drafts):
        last_second = None
        tracks = [footprint for footprint in draft.result.footprints if isinstance(footprint, Track)]
        if name and tracks:
            last_second = float(draft.result.output["tracks"][0]["last_s"])
            last_seconds.pop(name, None)
            reached_end = tracks[0].frames[-1] >= end
            if not reached_end and not END_ARGS & set(draft.call.args):
                last_seconds[name] = last_second
    if last_second is None:
        return None
    return RunningNote("To the end" if reached_end else f"To {last_second:.2f} s", tuple(last_seconds.items()))


def list_missing(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """List options that SEG did not find on the picture; None if the last call searched for none of them."""
    missing, is_found = dict[str, float](), None
    for draft in drafts:
        name = str(draft.call.args.get("target"))
        is_found = draft.result.ok if draft.call.tool == "SEG" and name in item.options else None
        if is_found is not None and not looks_at_view(draft.call):
            missing.pop(name, None)
            missing |= {} if is_found else {name: 0.0}
    return None if is_found is None else RunningNote("Found" if is_found else "Nothing fits", tuple(missing.items()))


def list_moving(item: Item, drafts: Sequence[StepDraft]) -> RunningNote | None:
    """List things whose tracks are not still."""
    moving = dict[str, float]()
    direction = None
    for draft, name in pair_tracks_with_names(item, drafts):
        direction = None
        if name and draft.result.ok and draft.result.output["tracks"]:
            direction = str(draft.result.output["tracks"][0]["direction"])
            moving |= {name: 0.0} if direction != "still" else {}
    if direction is None:
        return None
    return RunningNote(
        "It stays where it is" if direction == "still" else f"It goes {direction}", tuple(moving.items())
    )


NAME_LIST_LABELS = {"motion.leaver": "lost", "motion.mover": "moving", "choice.absent": "missing"}
"""The word for the names in a note without numbers."""
NOTE_BUILDERS = {
    "choice.extreme": rank_positions,
    "choice.size": rank_positions,
    "choice.neighbour": rank_distances,
    "choice.absent": list_missing,
    "space.order": rank_positions,
    "search.relation": latest_corner,
    "motion.leaver": list_lost,
    "motion.mover": list_moving,
    "motion.fastest": rank_speeds,
    "motion.order": rank_start_times,
    "lecture.change": latest_entry,
    "document.pair_more": compare_entries,
}
