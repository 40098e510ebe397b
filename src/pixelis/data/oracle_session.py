"""One item in the oracle's hands: calls and what they gave, the notes made of it, and what the answer rests on.

The oracle reads results as a policy does: boxes that it hands on have two decimals (subsec:sft), as their text says.
References serve only where a strong model would look for itself: to choose a plausible place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.random import Generator

from pixelis.data.tallies import look_back
from pixelis.data.thoughts import Voice
from pixelis.geometry import Mask, TextSpan, UnitBox
from pixelis.media import MediaSet, ViewRecipe
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.running import RunsCalls
from pixelis.trace.schema import Draft
from pixelis.world import Item, Reference
from pixelis.world.item import Scalar

SECONDS = {"frame": "time_s", "start_frame": "start_s", "end_frame": "end_s"}
MOST_STEPS = 14
"""No chain grows longer; a recovery that would go beyond is not tried."""


class Seen(NamedTuple):
    """A result with the number of its step, from 0, and the name of the view that it made."""

    step: int
    result: ToolResult
    view: str | None

    @property
    def ok(self) -> bool:
        return self.result.ok


class Found(NamedTuple):
    """A region that SEG gave, under the phrase that it was asked for."""

    phrase: str
    mask: Mask
    """In the coordinates of the medium that the query was given."""
    box: UnitBox
    """As the text of the result says it: two decimals, on the medium that the call looked at."""
    media: str
    """The medium that the call looked at."""
    score: float
    step: int

    @property
    def place(self) -> dict[str, Any]:
        """Medium and frame, for another call about the same region."""
        on_clip = self.media.startswith("Video")
        return {"media": self.media, **({"frame": self.mask.frame} if on_clip else {})}


class Line(NamedTuple):
    """A line that OCR read."""

    span: TextSpan
    step: int

    @property
    def text(self) -> str:
        return self.span.text


@dataclass
class Session:
    """Everything about one item that is under way."""

    item: Item
    media: MediaSet
    toolbox: RunsCalls
    rng: Generator
    voice: Voice
    plain: bool = False
    """Choices that nothing depends on are not drawn: the first is taken."""
    drafts: list[Draft] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    notes: list[Reference] = field(default_factory=list)
    """What was seen, as references: the item's own program can be run on them."""
    cited: set[int] = field(default_factory=set)
    made: dict[str, Seen] = field(default_factory=dict)
    """Calls by tool and arguments: none is made twice."""
    looked: int = 0
    """The step in which SEG last looked for a phrase: that it found nothing may be what the answer rests on."""
    terse: bool = field(init=False)
    """Whether this chain leaves the first medium unnamed."""

    def __post_init__(self) -> None:
        self.terse = len(self.media.given) == 1 and (self.plain or self.chance(0.8))

    # --- calls

    @property
    def last(self) -> ToolResult | None:
        return self.drafts[-1].result if self.drafts else None

    @property
    def has_room(self) -> bool:
        return len(self.drafts) < MOST_STEPS

    def call(self, tool: str, plan: str, what: str = "", **args: Any) -> Seen:
        """Make a call after a thought; a call that was made before gives what it gave, without a new step."""
        args = self.by_time({key: value for key, value in args.items() if value is not None})
        if args.get("media") == self.media.names[0] and self.terse:
            del args["media"]  # the first medium goes without saying
        known = self.made.get(key := f"{tool} {json.dumps(args, sort_keys=True)}")
        if known is not None:
            return known
        call = ToolCall(tool=tool, args=args)
        noted = look_back(self.item, self.drafts) if self.plain else ""
        thought = self.voice.plan(plan, what, self.last, noted=noted)
        execution = self.toolbox.run(call, self.media)
        result = execution.result.model_copy(update={"seconds": 0.0})
        self.blobs.update(execution.blobs)
        self.drafts.append(Draft(thought=thought, call=call, result=result))
        view = None
        if result.view is not None:
            view = f"View_{len(self.media.views)}"
            self.media = self.media.with_view(result.view)
        self.made[key] = seen = Seen(len(self.drafts) - 1, result, view)
        return seen

    def by_time(self, args: dict[str, Any]) -> dict[str, Any]:
        """Frames of a clip named by their time: that is what results say, so that a policy can copy it."""
        name = args.get("media", self.media.names[0])
        clip = self.media.source(name) if name in self.media.names[: len(self.media.given)] else None
        if clip is None or clip.kind == "image":
            return args
        return dict(
            (SECONDS[key], round(clip.time_of(value), 2))
            if key in SECONDS and 0 < value < clip.frame_count
            else (key, value)
            for key, value in args.items()
        )

    def name(self, media: str | None) -> str:
        return self.media.canonical(media)

    # --- regions

    def seg(self, phrase: str, plan: str = "find", *, media: str | None = None, **more: Any) -> list[Found]:
        """What SEG finds for a phrase; nothing where the call fails."""
        seen = self.call("SEG", plan, phrase, target=phrase, media=media, **more)
        self.looked = seen.step
        return self.found(seen, phrase, media)

    def found(self, seen: Seen, phrase: str, media: str | None) -> list[Found]:
        if not seen.ok:
            return []
        masks = [f for f in seen.result.footprints if isinstance(f, Mask)]
        short = seen.result.output["regions"]
        return [
            Found(phrase, mask, as_read(region["box"]), self.name(media), float(region["score"]), seen.step)
            for mask, region in zip(masks, short, strict=True)
            if mask.box_unit is not None
        ]

    def note_region(self, found: Found, **properties: Scalar) -> None:
        """Keep a region under its phrase, and the step as one that the answer rests on."""
        colour = colour_of(found.phrase)
        mask = found.mask.model_copy(update={"label": found.phrase})
        self.note(mask, found.step, **{"colour": colour, **properties})

    def note_line(self, line: Line, **properties: Scalar) -> None:
        self.note(line.span, line.step, **properties)

    def note(self, footprint: Any, step: int, **properties: Scalar) -> None:
        """Keep what a step gave; the answer may rest on it."""
        self.notes.append(Reference(name=f"seen_{len(self.notes)}", footprint=footprint, properties=properties))
        self.cited.add(step)

    # --- views and text

    def zoom(self, box: UnitBox, what: str, plan: str = "closer", *, media: str | None = None, **more: Any) -> Seen:
        return self.call("ZOOM", plan, what, box=list(box), media=media, **more)

    def read(self, what: str, plan: str = "read", **args: Any) -> list[Line]:
        """The lines that one OCR call gives, in the coordinates of the medium that the query was given."""
        return self.lines(self.call("OCR", plan, what, **args))

    def lines(self, seen: Seen) -> list[Line]:
        return [Line(f, seen.step) for f in seen.result.footprints if isinstance(f, TextSpan)] if seen.ok else []

    def on_view(self, box: UnitBox, view: str) -> UnitBox | None:
        """A box of the source as it lies on a view; None where nothing of it does."""
        recipe = self.media.recipe(view)
        return None if recipe is None else on_view(box, recipe)

    # --- chance

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def prefers(self, share: float) -> bool:
        """Which of two ways to go, this one so often; a plain teacher always goes the more frequent one."""
        return share > 0.5 if self.plain else self.chance(share)

    def room(self, box: Sequence[float], across: float, down: float | None = None) -> UnitBox:
        """A box with room on every side; as it was printed for a plain teacher, since a margin is arithmetic."""
        return as_read(box) if self.plain else grown(box, across, down)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[0 if self.plain else int(self.rng.integers(len(options)))]


def colour_of(phrase: str) -> str:
    """The colour of `red star`."""
    return phrase.partition(" ")[0]


def noun_of(phrase: str) -> str:
    """The thing of `red star`."""
    return phrase.rpartition(" ")[2]


def as_read(box: Sequence[float]) -> UnitBox:
    """A box with two decimals, with some area."""
    x0, y0, x1, y1 = (min(max(round(float(v), 2), 0.0), 1.0) for v in box)
    if x1 <= x0:
        x0, x1 = (x0, round(x0 + 0.01, 2)) if x0 < 1.0 else (0.99, 1.0)
    if y1 <= y0:
        y0, y1 = (y0, round(y0 + 0.01, 2)) if y0 < 1.0 else (0.99, 1.0)
    return x0, y0, x1, y1


def grown(box: Sequence[float], across: float, down: float | None = None) -> UnitBox:
    """A box with room on every side, in shares of the frame, with two decimals."""
    dy = across if down is None else down
    return as_read((max(box[0] - across, 0.0), max(box[1] - dy, 0.0), min(box[2] + across, 1.0), min(box[3] + dy, 1.0)))


def around(box: Sequence[float], rng: Generator, loose: float = 0.08) -> UnitBox:
    """A box about a place, not centred on it, with about this much room on each side."""
    left, top, right, bottom = rng.uniform(0.5 * loose, 1.5 * loose, size=4)
    return as_read(
        (max(box[0] - left, 0.0), max(box[1] - top, 0.0), min(box[2] + right, 1.0), min(box[3] + bottom, 1.0))
    )


def on_view(box: UnitBox, recipe: ViewRecipe) -> UnitBox | None:
    x0, y0, x1, y1 = recipe.box
    wide, high = x1 - x0, y1 - y0
    moved = ((box[0] - x0) / wide, (box[1] - y0) / high, (box[2] - x0) / wide, (box[3] - y0) / high)
    cut = tuple(min(max(v, 0.0), 1.0) for v in moved)
    return as_read(cut) if cut[0] < cut[2] and cut[1] < cut[3] else None


def centre(box: Sequence[float]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def holds(outer: Sequence[float], inner: Sequence[float]) -> bool:
    """Whether the centre of one box lies in another."""
    x, y = centre(inner)
    return outer[0] <= x <= outer[2] and outer[1] <= y <= outer[3]
