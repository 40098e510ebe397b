"""Which steps carried the answer.

The paper calls a step decisive that "succeeded and changes the intermediate state or the final answer"
(sec:data), and counts high-confidence, answer-contributing calls. Here it is a call that succeeded with at least its
tool's threshold of confidence, and of which a later call or the answer uses a region, text, view, time or value. A tool
without confidence is exact. A later call that never ran (invalid, disabled) uses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track, UnitBox
from pixelis.media.query import ViewRecipe, to_source
from pixelis.tools.base import Tool
from pixelis.trace.schema import MediaRecord, Step, Trace
from pixelis.trace.text_match import boxes_in, content_words, mentions_line, numbers_in, same_number, word_set

DEFAULT_THRESHOLD = Tool.decisive_confidence
SAME_REGION_IOU = 0.5
MIN_FILLED_SHARE = 0.2
"""Least share of a later box that a region in it fills to count as the same region."""
IGNORED_OUTPUT_KEYS = frozenset(
    (
        "box", "boxes", "quad", "mask", "counts", "point", "score", "scores", "confidence", "frame", "frames", "text",
        "track_id", "width", "height", "lines", "regions", "tracks", "segments", "turned_degrees", "magnification",
    )
)  # fmt: skip
"""Output keys that footprints represent better, or whose small numbers would match an answer by accident."""


class StepDecision(NamedTuple):
    """Whether a step was decisive, and why or why not."""

    decisive: bool
    reason: str


class CallArguments(NamedTuple):
    """The arguments of a later call, in the coordinates of the query's media."""

    media: str
    boxes: tuple[UnitBox, ...]
    points: tuple[tuple[float, float], ...]
    text: str
    frame: int | None
    times_s: tuple[float, ...]
    view: str | None


def decisive_steps(trace: Trace, thresholds: Mapping[str, float]) -> list[StepDecision]:
    """One decision for each step. `thresholds` are the tools' own (`tools.toolbox.decisive_thresholds`); a tool without
    one has the default of `Tool`."""
    views = dict(zip(trace.views, (s.result.view for s in trace.steps), strict=True))
    all_arguments = [extract_arguments(step, trace.media, views) for step in trace.steps]
    limits = [thresholds.get(step.result.tool, DEFAULT_THRESHOLD) for step in trace.steps]
    return [decide_step(trace, k, all_arguments, limit) for k, limit in enumerate(limits)]


def decide_step(trace: Trace, k: int, all_arguments: list[CallArguments], threshold: float) -> StepDecision:
    step = trace.steps[k]
    if not step.result.ok:
        return StepDecision(False, f"the call did not succeed ({step.result.status})")
    if step.result.confidence is not None and step.result.confidence < threshold:
        return StepDecision(False, f"confidence {step.result.confidence:.2f} is under its tool's {threshold:.2f}")
    for j in range(k + 1, len(trace.steps)):
        if trace.steps[j].result.status in ("invalid", "disabled"):
            continue
        if used := used_by_call(trace, k, all_arguments[j]):
            return StepDecision(True, f"its {used} went into step {j + 1} ({trace.steps[j].result.tool})")
    if used := used_by_answer(step, trace.answer or ""):
        return StepDecision(True, f"its {used} stands in the answer")
    return StepDecision(False, "nothing of it was used later")


def used_by_call(trace: Trace, k: int, later: CallArguments) -> str | None:
    """What a later call used of step k."""
    step, view = trace.steps[k], trace.views[k]
    if view is not None and later.view == view:
        return f"view {view}"
    for footprint in step.result.footprints:
        if isinstance(footprint, TextSpan) and mentions_line(footprint.text, later.text):
            return f"text {footprint.text!r}"
        if footprint.media != later.media:
            continue
        if isinstance(footprint, Span):
            inside = any(footprint.start_s - 1e-3 <= t <= footprint.end_s + 1e-3 for t in later.times_s)
            if inside and footprint.seconds < 0.95 * get_duration(trace, footprint.media):
                return f"time {footprint.start_s:.2f} to {footprint.end_s:.2f} s"
        elif any(is_region_used(region, later) for region in iter_boxes(footprint, later.frame)):
            return "track" if isinstance(footprint, Track) else "region"
    outputs = [v for v in iter_leaves(step.result.output, IGNORED_OUTPUT_KEYS) if isinstance(v, str)]
    values = {word for output in outputs for word in content_words(output)}
    shared = word_set(later.text) & (values - call_words(step))
    return f"value {min(shared)!r}" if shared else None


def used_by_answer(step: Step, answer: str) -> str | None:
    """What the answer uses of a step."""
    answer_words = word_set(answer)
    for footprint in step.result.footprints:
        if isinstance(footprint, TextSpan) and mentions_line(footprint.text, answer):
            return f"text {footprint.text!r}"
        if isinstance(footprint, Span) and any(
            same_number(number, edge) for number in numbers_in(answer) for edge in (footprint.start_s, footprint.end_s)
        ):
            return f"time {footprint.start_s:.2f} to {footprint.end_s:.2f} s"
        if any(boxes_match(region, box) for region in iter_boxes(footprint, None) for box in boxes_in(answer)):
            return "region"
    for value in iter_leaves(step.result.output, IGNORED_OUTPUT_KEYS):
        if isinstance(value, str) and (content_words(value) - call_words(step)) & answer_words:
            return f"value {value!r}"
        if isinstance(value, int | float) and any(same_number(number, value) for number in numbers_in(answer)):
            return f"value {value:g}"
    return None


def call_words(step: Step) -> frozenset[str]:
    return word_set(" ".join(t for t in iter_leaves(step.call.args) if isinstance(t, str)))


def iter_boxes(footprint: object, frame: int | None) -> Iterator[UnitBox]:
    """Boxes of a footprint, on one frame if `frame` is given."""
    if isinstance(footprint, Track):
        for at, box in zip(footprint.frames, footprint.boxes, strict=True):
            if frame is None or at == frame:
                yield box
    elif isinstance(footprint, Box | Mask | TextSpan) and (frame is None or footprint.frame == frame):
        box_unit = footprint.box_unit
        if box_unit is not None:
            yield box_unit


def is_region_used(region: UnitBox, later: CallArguments) -> bool:
    x0, y0, x1, y1 = region
    if any(boxes_match(region, box) for box in later.boxes):
        return True
    return any(x0 <= x <= x1 and y0 <= y <= y1 for x, y in later.points)


def boxes_match(region: UnitBox, box: UnitBox) -> bool:
    """Whether two boxes show the same region: they coincide, or the second contains the first with a margin."""
    a, b, c, d = max(region[0], box[0]), max(region[1], box[1]), min(region[2], box[2]), min(region[3], box[3])
    shared = max(c - a, 0.0) * max(d - b, 0.0)
    region_area = (region[2] - region[0]) * (region[3] - region[1])
    box_area = (box[2] - box[0]) * (box[3] - box[1])
    if region_area <= 0.0 or box_area <= 0.0:
        return False
    iou = shared / (region_area + box_area - shared)
    return iou >= SAME_REGION_IOU or (shared >= 0.9 * region_area and iou >= MIN_FILLED_SHARE)


def extract_arguments(
    step: Step, media: tuple[MediaRecord, ...], views: Mapping[str | None, ViewRecipe | None]
) -> CallArguments:
    """Arguments recognised by their shape and key, for any tool."""
    args = step.call.args
    media_name = str(args.get("media") or (media[0].name if media else "")).strip().lower()
    view = next((name for name in views if name is not None and name.lower() == media_name), None)
    recipe = views[view] if view else None
    record = next((m for m in media if m.name.lower() == (recipe.media.lower() if recipe else media_name)), None)
    boxes, points = find_boxes_and_points(args)
    if recipe is not None:
        boxes = [to_source(box, recipe) for box in boxes]
        points = [to_source((x, y, x, y), recipe)[:2] for x, y in points]
    clip = record is not None and record.kind == "clip"
    frames = [v for v in iter_leaves({k: args[k] for k in args if "frame" in k}) if isinstance(v, int)]
    times = [float(v) for v in iter_leaves({k: args[k] for k in args if k.endswith("_s")}) if not isinstance(v, str)]
    seconds_a_frame = record.duration_s / record.frame_count if record else 0.0
    return CallArguments(
        media=record.name if record else "",
        boxes=tuple(boxes),
        points=tuple(points),
        text=" ".join(v for k, t in args.items() if k != "media" for v in iter_leaves(t) if isinstance(v, str)),
        frame=recipe.frame if recipe else (frames[0] if clip and frames else None if clip else 0),
        times_s=tuple(times + [f * seconds_a_frame for f in frames]),
        view=view,
    )


def find_boxes_and_points(value: Any) -> tuple[list[UnitBox], list[tuple[float, float]]]:
    """Lists of four and of two numbers in [0, 1], anywhere in the arguments."""
    boxes: list[UnitBox] = []
    points: list[tuple[float, float]] = []
    if isinstance(value, dict):
        inner = list(value.values())
        keys = ("x0", "y0", "x1", "y1")
        if all(isinstance(value.get(k), int | float) for k in keys):
            inner.append([value[k] for k in keys])
        if value.keys() == {"width", "height", "counts"} and (surrounding_box := mask_box(value)) is not None:
            boxes.append(surrounding_box)
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
        more_boxes, more_points = find_boxes_and_points(part)
        boxes += more_boxes
        points += more_points
    return boxes, points


def mask_box(value: dict[str, Any]) -> UnitBox | None:
    """The bounding box of a mask argument; None if it is invalid or empty."""
    try:
        return Mask.model_validate(value).box_unit
    except ValueError:
        return None


def iter_leaves(value: Any, excluded: frozenset[str] = frozenset()) -> Iterator[str | float]:
    """Texts and numbers in JSON, except under certain keys."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in excluded or (isinstance(part, list) and part and isinstance(part[0], dict)):
                yield from iter_leaves(part, excluded)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from iter_leaves(part, excluded)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def get_duration(trace: Trace, name: str) -> float:
    return next((m.duration_s for m in trace.media if m.name == name), 0.0)
