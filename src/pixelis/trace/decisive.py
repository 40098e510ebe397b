"""Which steps carried the answer.

The paper calls a step decisive that "succeeded and changes the intermediate state or the final answer"
(sec:data), and counts high-confidence, answer-contributing calls. We take it to be a call that succeeded, with
confidence at or over its tool's threshold, of which a region, text, view, time or value reaches a later call or the
answer. A tool that states no confidence is exact. A later call that never ran (invalid, disabled) uses nothing. Pure:
the record alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pixelis.geometry import Box, Mask, Span, TextSpan, Track, UnitBox
from pixelis.media.query import ViewRecipe, to_source
from pixelis.tools.base import Tool
from pixelis.trace.schema import MediaRecord, Step, Trace
from pixelis.trace.words import boxes_in, named_in, numbers_in, same_number, telling_words, words_of

THRESHOLD = Tool.decisive_confidence
SAME_REGION_IOU = 0.5
HELD_SHARE = 0.2
"""A later box that holds a region with room around it counts, as long as the region fills this much of it."""
TOLD_OTHERWISE = frozenset(
    (
        "box", "boxes", "quad", "mask", "counts", "point", "score", "scores", "confidence", "frame", "frames", "text",
        "track_id", "width", "height", "lines", "regions", "tracks", "segments", "turned_degrees", "magnification",
    )
)  # fmt: skip
"""Keys of outputs that footprints tell better, or whose small numbers would match an answer by accident."""


class Decision(NamedTuple):
    """Whether a step was decisive, and why: what of it was used where, or what it lacks."""

    decisive: bool
    reason: str


class Arguments(NamedTuple):
    """What a later call was given, in the coordinates of the media that the query was given."""

    media: str
    boxes: tuple[UnitBox, ...]
    points: tuple[tuple[float, float], ...]
    text: str
    frame: int | None
    times_s: tuple[float, ...]
    view: str | None


def decisive_steps(trace: Trace, thresholds: Mapping[str, float] | None = None) -> list[Decision]:
    """One decision for each step. `thresholds` are the tools' own, by name; 0.5 for a tool that is not named."""
    views = dict(zip(trace.views, (s.result.view for s in trace.steps), strict=True))
    later = [arguments(step, trace.media, views) for step in trace.steps]
    return [
        decide(trace, k, later, (thresholds or {}).get(s.result.tool, THRESHOLD)) for k, s in enumerate(trace.steps)
    ]


def decide(trace: Trace, k: int, all_arguments: list[Arguments], threshold: float) -> Decision:
    step = trace.steps[k]
    if not step.result.ok:
        return Decision(False, f"the call did not succeed ({step.result.status})")
    if step.result.confidence is not None and step.result.confidence < threshold:
        return Decision(False, f"confidence {step.result.confidence:.2f} is under its tool's {threshold:.2f}")
    for j in range(k + 1, len(trace.steps)):
        if trace.steps[j].result.status in ("invalid", "disabled"):
            continue
        used = used_by_call(trace, k, all_arguments[j])
        if used:
            return Decision(True, f"its {used} went into step {j + 1} ({trace.steps[j].result.tool})")
    used = used_by_answer(step, trace.answer or "")
    if used:
        return Decision(True, f"its {used} stands in the answer")
    return Decision(False, "nothing of it was used later")


def used_by_call(trace: Trace, k: int, later: Arguments) -> str | None:
    """What of step k a later call was given."""
    step, view = trace.steps[k], trace.views[k]
    if view is not None and later.view == view:
        return f"view {view}"
    for footprint in step.result.footprints:
        if isinstance(footprint, TextSpan) and named_in(footprint.text, later.text):
            return f"text {footprint.text!r}"
        if footprint.media != later.media:
            continue
        if isinstance(footprint, Span):
            whole = duration_of(trace, footprint.media)
            if footprint.seconds < 0.95 * whole and any(
                footprint.start_s - 1e-3 <= t <= footprint.end_s + 1e-3 for t in later.times_s
            ):
                return f"time {footprint.start_s:.2f} to {footprint.end_s:.2f} s"
        elif any(reaches(region, later) for region in regions(footprint, later.frame)):
            return "track" if isinstance(footprint, Track) else "region"
    values = {
        w for text in leaves(step.result.output, TOLD_OTHERWISE) if isinstance(text, str) for w in telling_words(text)
    }
    own = words_of(" ".join(t for t in leaves(step.call.args) if isinstance(t, str)))
    shared = words_of(later.text) & (values - own)
    return f"value {min(shared)!r}" if shared else None


def used_by_answer(step: Step, answer: str) -> str | None:
    """What of a step the answer says."""
    said = words_of(answer)
    for footprint in step.result.footprints:
        if isinstance(footprint, TextSpan) and named_in(footprint.text, answer):
            return f"text {footprint.text!r}"
        if isinstance(footprint, Span) and any(
            same_number(number, edge) for number in numbers_in(answer) for edge in (footprint.start_s, footprint.end_s)
        ):
            return f"time {footprint.start_s:.2f} to {footprint.end_s:.2f} s"
        if any(overlap(region, box) for region in regions(footprint, None) for box in boxes_in(answer)):
            return "region"
    own = words_of(" ".join(t for t in leaves(step.call.args) if isinstance(t, str)))
    for value in leaves(step.result.output, TOLD_OTHERWISE):
        if isinstance(value, str) and (telling_words(value) - own) & said:
            return f"value {value!r}"
        if isinstance(value, int | float) and any(same_number(number, value) for number in numbers_in(answer)):
            return f"value {value:g}"
    return None


def regions(footprint: object, frame: int | None) -> Iterator[UnitBox]:
    """Boxes of a footprint, on one frame where a frame is named."""
    if isinstance(footprint, Track):
        for at, box in zip(footprint.frames, footprint.boxes, strict=True):
            if frame is None or at == frame:
                yield box
    elif isinstance(footprint, Box | Mask | TextSpan) and (frame is None or footprint.frame == frame):
        whole = footprint.box_unit
        if whole is not None:
            yield whole


def reaches(region: UnitBox, later: Arguments) -> bool:
    x0, y0, x1, y1 = region
    return any(overlap(region, box) for box in later.boxes) or any(
        x0 <= x <= x1 and y0 <= y <= y1 for x, y in later.points
    )


def overlap(region: UnitBox, box: UnitBox) -> bool:
    """Whether two boxes are about the same place: they coincide, or the second holds the first with some room."""
    a, b, c, d = max(region[0], box[0]), max(region[1], box[1]), min(region[2], box[2]), min(region[3], box[3])
    shared = max(c - a, 0.0) * max(d - b, 0.0)
    own = (region[2] - region[0]) * (region[3] - region[1])
    other = (box[2] - box[0]) * (box[3] - box[1])
    if own <= 0.0 or other <= 0.0:
        return False
    iou = shared / (own + other - shared)
    return iou >= SAME_REGION_IOU or (shared >= 0.9 * own and iou >= HELD_SHARE)


def arguments(step: Step, media: tuple[MediaRecord, ...], views: Mapping[str | None, ViewRecipe | None]) -> Arguments:
    """What a call was given, found by shape and key, whatever the tool."""
    args = step.call.args
    named = str(args.get("media") or (media[0].name if media else "")).strip().lower()
    view = next((name for name in views if name is not None and name.lower() == named), None)
    recipe = views[view] if view else None
    record = next((m for m in media if m.name.lower() == (recipe.media.lower() if recipe else named)), None)
    boxes, points = shapes(args)
    if recipe is not None:
        boxes = [to_source(box, recipe) for box in boxes]
        points = [to_source((x, y, x, y), recipe)[:2] for x, y in points]
    clip = record is not None and record.kind == "clip"
    frames = [v for v in leaves({k: args[k] for k in args if "frame" in k}) if isinstance(v, int)]
    times = [
        float(v) for v in leaves({k: v for k, v in args.items() if k.endswith("_s")}) if isinstance(v, int | float)
    ]
    seconds_a_frame = record.duration_s / record.frame_count if record else 0.0
    return Arguments(
        media=record.name if record else "",
        boxes=tuple(boxes),
        points=tuple(points),
        text=" ".join(v for k, t in args.items() if k != "media" for v in leaves(t) if isinstance(v, str)),
        frame=recipe.frame if recipe else (frames[0] if clip and frames else None if clip else 0),
        times_s=tuple(times + [f * seconds_a_frame for f in frames]),
        view=view,
    )


def shapes(value: Any) -> tuple[list[UnitBox], list[tuple[float, float]]]:
    """Lists of four and of two unit numbers, anywhere in the arguments."""
    boxes: list[UnitBox] = []
    points: list[tuple[float, float]] = []
    if isinstance(value, dict):
        inner = list(value.values())
        keys = ("x0", "y0", "x1", "y1")
        if all(isinstance(value.get(k), int | float) for k in keys):
            inner.append([value[k] for k in keys])
        if value.keys() == {"width", "height", "counts"} and (around := mask_box(value)) is not None:
            boxes.append(around)
    elif isinstance(value, list):
        inner = value
        if value and all(isinstance(v, int | float) and 0.0 <= v <= 1.0 for v in value):
            if len(value) == 4:
                boxes.append((value[0], value[1], value[2], value[3]))
            if len(value) == 2:
                points.append((value[0], value[1]))
    else:
        inner = []
    for part in inner:
        more_boxes, more_points = shapes(part)
        boxes += more_boxes
        points += more_points
    return boxes, points


def mask_box(value: dict[str, Any]) -> UnitBox | None:
    """The box around a mask that was given as an argument; None where it is no mask, or empty."""
    try:
        return Mask.model_validate(value).box_unit
    except ValueError:
        return None


def leaves(value: Any, without: frozenset[str] = frozenset()) -> Iterator[str | float]:
    """Texts and numbers in JSON, save those under certain keys."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in without or (isinstance(part, list) and part and isinstance(part[0], dict)):
                yield from leaves(part, without)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, without)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def duration_of(trace: Trace, name: str) -> float:
    return next((m.duration_s for m in trace.media if m.name == name), 0.0)
