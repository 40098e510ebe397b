"""The oracle's session with one item: calls and results, notes, and the steps that the answer rests on.

The oracle reads results as a policy does: the boxes that it reuses have two decimals (subsec:sft), as printed.
References serve only to choose a plausible place, where a strong model would look for itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.random import Generator

from pixelis.core.geometry import Mask, TextSpan, UnitBox
from pixelis.data.teachers.oracle.running_notes import write_recap
from pixelis.data.teachers.oracle.thought_templates import ThoughtWriter
from pixelis.items import Scalar
from pixelis.media import MediaSet, ViewRecipe
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.plan import ToolRunner
from pixelis.trace.recorder import TraceRecorder, without_time
from pixelis.trace.schema import StepDraft
from pixelis.world import Item, Reference

FRAME_TO_TIME_ARGS = {"frame": "time_s", "start_frame": "start_s", "end_frame": "end_s"}
MAX_STEPS = 14
"""The maximum length of a trace; recoveries stop there."""


class OracleCallOutcome(NamedTuple):
    """A result with its step, from 0, and the name of the view that it made."""

    step: int
    result: ToolResult
    view: str | None

    @property
    def ok(self) -> bool:
        return self.result.ok


class OracleRegion(NamedTuple):
    """A region that SEG found, with the phrase of the call."""

    phrase: str
    mask: Mask
    """In the coordinates of the query's medium."""
    box: UnitBox
    """As printed: two decimals, on the medium of the call."""
    media: str
    """The medium of the call."""
    score: float
    step: int

    @property
    def source_box(self) -> UnitBox:
        """In the coordinates of the query's medium, with all decimals."""
        return self.mask.box_unit or self.box

    @property
    def media_args(self) -> dict[str, Any]:
        """Medium and frame, for another call about the same region."""
        on_clip = self.media.startswith("Video")
        return {"media": self.media, **({"frame": self.mask.frame} if on_clip else {})}


class OracleLine(NamedTuple):
    """A line that OCR read."""

    span: TextSpan
    step: int

    @property
    def text(self) -> str:
        return self.span.text


@dataclass
class OracleSession:
    """The state of solving one item."""

    item: Item
    recorder: TraceRecorder
    toolbox: ToolRunner
    rng: Generator
    thought_writer: ThoughtWriter
    canonical_wording: bool = False
    """Whether to take the first of equivalent choices instead of drawing one."""
    notes: list[Reference] = field(default_factory=list)
    """What was found, as references on which the item's program can run."""
    cited_steps: set[int] = field(default_factory=set)
    call_cache: dict[str, OracleCallOutcome] = field(default_factory=dict)
    """Outcomes by tool and arguments: no call is made twice."""
    last_seg_step: int = 0
    """The last search step of SEG; the answer may rest on its finding nothing."""
    omits_first_media: bool = field(init=False)
    """Whether calls omit the name of the first medium."""

    def __post_init__(self) -> None:
        self.omits_first_media = len(self.media.sources) == 1 and (self.canonical_wording or self.chance(0.8))

    # --- calls

    @property
    def media(self) -> MediaSet:
        return self.recorder.media

    @property
    def drafts(self) -> list[StepDraft]:
        return self.recorder.steps

    @property
    def last_result(self) -> ToolResult | None:
        return self.drafts[-1].result if self.drafts else None

    @property
    def has_steps_left(self) -> bool:
        return len(self.drafts) < MAX_STEPS

    def call(self, tool: str, plan: str, subject: str = "", **args: Any) -> OracleCallOutcome:
        """Make a call after a thought; a repeated call returns the earlier outcome without a new step."""
        args = self.frames_to_times({key: value for key, value in args.items() if value is not None})
        if args.get("media") == self.media.names[0] and self.omits_first_media:
            del args["media"]  # the first medium is the default
        cached_outcome = self.call_cache.get(key := f"{tool} {json.dumps(args, sort_keys=True)}")
        if cached_outcome is not None:
            return cached_outcome
        call = ToolCall(tool=tool, args=args)
        running_note = write_recap(self.item, self.drafts) if self.canonical_wording else ""
        thought = self.thought_writer.write(plan, subject, self.last_result, running_note=running_note)
        execution = self.toolbox.run(call, self.media)
        view = self.recorder.add_step(call, execution, thought)
        self.drafts[-1] = without_time(self.drafts[-1])
        result = self.drafts[-1].result
        self.call_cache[key] = outcome = OracleCallOutcome(len(self.drafts) - 1, result, view)
        return outcome

    def frames_to_times(self, args: dict[str, Any]) -> dict[str, Any]:
        """Replace frame numbers by times, which results print and a policy can copy."""
        name = args.get("media", self.media.names[0])
        clip = self.media.source(name) if name in self.media.names[: len(self.media.sources)] else None
        if clip is None or clip.kind == "image":
            return args
        return dict(
            (FRAME_TO_TIME_ARGS[key], round(clip.time_of(value), 2))
            if key in FRAME_TO_TIME_ARGS and 0 < value < clip.frame_count
            else (key, value)
            for key, value in args.items()
        )

    def canonical_media(self, media: str | None) -> str:
        return self.media.canonical_name(media)

    # --- regions

    def seg(self, phrase: str, plan: str = "find", *, media: str | None = None, **args: Any) -> list[OracleRegion]:
        """The regions that SEG finds for a phrase; none if the call fails."""
        outcome = self.call("SEG", plan, phrase, target=phrase, media=media, **args)
        self.last_seg_step = outcome.step
        return self.regions_from_outcome(outcome, phrase, media)

    def regions_from_outcome(self, outcome: OracleCallOutcome, phrase: str, media: str | None) -> list[OracleRegion]:
        if not outcome.ok:
            return []
        masks = [f for f in outcome.result.footprints if isinstance(f, Mask)]
        printed_regions = outcome.result.output["regions"]
        name, step = self.canonical_media(media), outcome.step
        return [
            OracleRegion(phrase, mask, snap_box(region["box"]), name, float(region["score"]), step)
            for mask, region in zip(masks, printed_regions, strict=True)
            if mask.box_unit is not None
        ]

    def note_region(self, region: OracleRegion, **properties: Scalar) -> None:
        """Note a region under its phrase."""
        colour = colour_from_phrase(region.phrase)
        mask = region.mask.model_copy(update={"label": region.phrase})
        self.note(mask, region.step, **{"colour": colour, **properties})

    def note_line(self, line: OracleLine, **properties: Scalar) -> None:
        self.note(line.span, line.step, **properties)

    def note(self, footprint: Any, step: int, **properties: Scalar) -> None:
        """Note the result of a step, and cite the step."""
        self.notes.append(Reference(name=f"seen_{len(self.notes)}", footprint=footprint, properties=properties))
        self.cited_steps.add(step)

    # --- views and text

    def zoom(
        self, box: UnitBox, subject: str, plan: str = "closer", *, media: str | None = None, **args: Any
    ) -> OracleCallOutcome:
        return self.call("ZOOM", plan, subject, box=list(box), media=media, **args)

    def read(self, subject: str, plan: str = "read", **args: Any) -> list[OracleLine]:
        """The lines of one OCR call, in the coordinates of the query's medium."""
        outcome = self.call("OCR", plan, subject, **args)
        footprints = outcome.result.footprints if outcome.ok else ()
        return [OracleLine(f, outcome.step) for f in footprints if isinstance(f, TextSpan)]

    # --- chance

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def prefers(self, probability: float) -> bool:
        """Draw with a probability; with canonical wording the more probable outcome."""
        return probability > 0.5 if self.canonical_wording else self.chance(probability)

    def with_margin(self, box: Sequence[float], margin_x: float, margin_y: float | None = None) -> UnitBox:
        """A box with a margin on every side; none with canonical wording, since a margin needs arithmetic."""
        return snap_box(box) if self.canonical_wording else expand_box(box, margin_x, margin_y)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[0 if self.canonical_wording else int(self.rng.integers(len(options)))]


def largest_region(regions: Sequence[OracleRegion]) -> OracleRegion | None:
    return max(regions, key=lambda f: f.mask.area, default=None)


def colour_from_phrase(phrase: str) -> str:
    """`red` of `red star`."""
    return phrase.partition(" ")[0]


def noun_from_phrase(phrase: str) -> str:
    """`star` of `red star`."""
    return phrase.rpartition(" ")[2]


def snap_box(box: Sequence[float]) -> UnitBox:
    """A box with two decimals, at least 0.01 wide and high."""
    x0, y0, x1, y1 = (min(max(round(float(v), 2), 0.0), 1.0) for v in box)
    if x1 <= x0:
        x0, x1 = (x0, round(x0 + 0.01, 2)) if x0 < 1.0 else (0.99, 1.0)
    if y1 <= y0:
        y0, y1 = (y0, round(y0 + 0.01, 2)) if y0 < 1.0 else (0.99, 1.0)
    return x0, y0, x1, y1


def expand_box(box: Sequence[float], margin_x: float, margin_y: float | None = None) -> UnitBox:
    """A box with a margin on every side, in shares of the frame, with two decimals."""
    x, y = margin_x, margin_x if margin_y is None else margin_y
    return _grow_box(box, x, y, x, y)


def _grow_box(box: Sequence[float], left: float, top: float, right: float, bottom: float) -> UnitBox:
    return snap_box((max(box[0] - left, 0.0), max(box[1] - top, 0.0), box[2] + right, box[3] + bottom))


def sample_box_around(box: Sequence[float], rng: Generator, margin: float = 0.08) -> UnitBox:
    """A box around a place, not centred on it, with about this margin on each side."""
    return _grow_box(box, *rng.uniform(0.5 * margin, 1.5 * margin, size=4))


def to_view_box(box: UnitBox, recipe: ViewRecipe) -> UnitBox | None:
    x0, y0, x1, y1 = recipe.box
    view_width, view_height = x1 - x0, y1 - y0
    left, right = ((x - x0) / view_width for x in box[::2])
    top, bottom = ((y - y0) / view_height for y in box[1::2])
    clipped = tuple(min(max(v, 0.0), 1.0) for v in (left, top, right, bottom))
    return snap_box(clipped) if clipped[0] < clipped[2] and clipped[1] < clipped[3] else None


def box_centre(box: Sequence[float]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def contains_centre(outer: Sequence[float], inner: Sequence[float]) -> bool:
    """Whether the centre of one box lies in another."""
    x, y = box_centre(inner)
    return outer[0] <= x <= outer[2] and outer[1] <= y <= outer[3]
