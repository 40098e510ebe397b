"""Track one object from its first box: by motion from frame to frame, corrected by the detector where it sees it.

Optical flow and a correlation filter are fast and need no class, but drift; the detector costs ten times as much and
does not. So the detector runs on the first frame, every `DETECTION_INTERVAL` frames, and whenever motion is uncertain.
A detection replaces the box only after one has covered it, so that a box drawn on a part is not pulled to the whole;
from then on the detector decides: an object that it does not confirm for a while is lost, and returns only through it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from pixelis.core.geometry import PixelBox, Size
from pixelis.media.medium import Frame, frame_size
from pixelis.tools.backends.botsort import box_iou
from pixelis.tools.backends.correlation import CorrelationFilter
from pixelis.tools.backends.flow import Appearance, BoxEstimate, downscale, flow_box
from pixelis.tools.backends.nanodet import Detection

WORK_SIDE = 80
"""Frames are scaled down until the longer side of the first box has this many pixels."""
DETECTION_INTERVAL = 5
"""Frames between two runs of the detector while motion is confident."""
MIN_QUALITY = 0.2
"""Minimum quality of a motion estimate."""
CONFIDENT_QUALITY = 0.65
"""Quality from which a motion estimate needs no detector."""
MIN_SIMILARITY = 0.6
"""Minimum similarity of colours for two boxes to be the same object."""
CERTAIN_SHARPNESS, NOISE_SHARPNESS = 20.0, 7.0
"""Sharpness of a certain correlation peak, and of noise (a lost object gives about 7)."""
MIN_TEMPLATE_MATCH = 0.8
"""Minimum match of template and colours for a lost object to be found again."""
MIN_CLAIM_SCORE = 0.35
"""Minimum score of a detection that adds a class to the object; lower ones only confirm known classes."""
MAX_FAILED_CHECKS = 4
"""Failed detector runs after which an object with a class is lost, and one without is tracked without the detector."""

Method = Literal["detector", "flow"]


class TrackPoint(NamedTuple):
    """The object on one frame."""

    frame: int
    box_px: PixelBox
    score: float
    method: Method


@dataclass
class TrackerState:
    """State between two frames."""

    size: Size
    appearance: Appearance
    filter: CorrelationFilter
    box: PixelBox
    mean_area: float
    """Mean area of the confident boxes, in pixels: at the edge of the frame an object is small for a while."""
    velocity: tuple[float, float] = (0.0, 0.0)
    frames_missing: int = 0
    """Frames since the object was last found."""
    frames_since_detection: int = 0
    """Frames since the detector last ran."""
    failed_checks: int = 0
    """Consecutive detector runs that did not confirm the box."""
    label_scores: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Scores by class of the detections on the object; empty until one has covered the box."""


def track_box(
    frames: Sequence[int],
    load_frame: Callable[[int], Frame],
    box_px: PixelBox,
    detect: Callable[[int], list[Detection]] | None,
) -> tuple[list[TrackPoint], str]:
    """The object in `box_px` of the first frame on all frames where it is found, and its class."""
    scale = WORK_SIDE / max(box_px.right - box_px.left, box_px.bottom - box_px.top)
    scale = scale if scale < 0.75 else 1.0  # slight downscaling costs more than it saves
    detect_scaled = (
        None if detect is None else lambda frame: [d._replace(box_px=scale_box(d.box_px, scale)) for d in detect(frame)]
    )
    start = scale_box(box_px, scale)
    previous = downscale(load_frame(frames[0]), scale)
    appearance, correlation = Appearance(previous, start), CorrelationFilter(previous, start)
    state = TrackerState(frame_size(previous), appearance, correlation, start, box_area(start))
    if detect_scaled is not None:
        add_label_scores(state, detect_scaled(frames[0]), start)
    points = [TrackPoint(frames[0], start, 1.0, "detector" if state.label_scores else "flow")]
    unconfirmed: list[TrackPoint] = []  # kept only if the detector then finds the object where they lead
    for frame in frames[1:]:
        image = downscale(load_frame(frame), scale)
        last_box = state.box
        point = step(state, previous, image, None if detect_scaled is None else partial(detect_scaled, frame))
        previous = image
        has_jumped = centre_distance(last_box, state.box) > 2.0 * max(state.appearance.size)
        if point is None or (point.method == "detector" and has_jumped):
            unconfirmed.clear()
        if point is not None and state.failed_checks and state.label_scores:
            unconfirmed.append(point._replace(frame=frame))
        elif point is not None:
            points += [*unconfirmed, point._replace(frame=frame)]
            unconfirmed.clear()
    rescaled = [s._replace(box_px=scale_box(s.box_px, 1.0 / scale)) for s in (*points, *unconfirmed)]
    return rescaled, majority_label(state.label_scores)


def majority_label(label_scores: dict[str, float]) -> str:
    """The class with more than half of the detector's total score; else nothing."""
    best = max(label_scores, key=lambda name: label_scores[name], default="")
    return best if best and label_scores[best] > 0.5 * sum(label_scores.values()) else ""


def step(
    state: TrackerState, previous: Frame, image: Frame, detect: Callable[[], list[Detection]] | None
) -> TrackPoint | None:
    """Advance one frame: by motion, and by the detector if motion is uncertain or a run is due."""
    motion = estimate_motion(state, previous, image) if state.frames_missing == 0 else None
    is_confident = motion is not None and motion.quality >= CONFIDENT_QUALITY
    state.frames_since_detection += 1
    if detect is not None and is_detection_due(state, is_confident):
        state.frames_since_detection = 0
        point = update_from_detections(state, image, detect(), motion)
        if point is not None:
            return point
        if state.label_scores and (state.failed_checks >= MAX_FAILED_CHECKS or not is_confident):
            motion = None
    if state.frames_missing and not state.label_scores:
        motion = find_by_template(state, image)
    if motion is None:
        state.frames_missing += 1
        return None
    return accept_box(state, image, motion.box_px, motion.quality, "flow")


def is_detection_due(state: TrackerState, is_confident: bool) -> bool:
    """Whether the detector should run."""
    if state.frames_missing:
        return bool(state.label_scores) and state.frames_since_detection >= 2
    if not state.label_scores:
        return state.failed_checks < MAX_FAILED_CHECKS and state.frames_since_detection >= DETECTION_INTERVAL
    return not is_confident or state.failed_checks > 0 or state.frames_since_detection >= DETECTION_INTERVAL


def update_from_detections(
    state: TrackerState, image: Frame, detections: list[Detection], motion: BoxEstimate | None
) -> TrackPoint | None:
    """The object by detection; its box is averaged with that of motion if the two agree."""
    if not state.label_scores and motion is not None:
        add_label_scores(state, detections, motion.box_px)
    # a motion without confirmation for a while is no guide to the search
    is_confirmed = state.failed_checks < MAX_FAILED_CHECKS - 1
    trusted = motion if motion is not None and motion.quality >= CONFIDENT_QUALITY and is_confirmed else None
    expected = trusted.box_px if trusted else shift_box(state.box, state.velocity)
    match = match_detection(state, image, detections, expected, trusted is not None) if state.label_scores else None
    if match is None:
        state.failed_checks += 1
        return None
    state.failed_checks = 0
    agrees = motion is not None and pair_iou(match.box_px, motion.box_px) >= 0.5
    box = mean_box(match.box_px, motion.box_px) if motion and agrees else match.box_px
    if motion is None or pair_iou(box, motion.box_px) < 0.5:
        state.filter = CorrelationFilter(image, box)
    score = 0.5 * match.score + 0.5 * state.appearance.similarity(image, box)
    return accept_box(state, image, box, score, "detector")


def estimate_motion(state: TrackerState, previous: Frame, image: Frame) -> BoxEstimate | None:
    """The box by optical flow, or by the filter if flow is uncertain; None off the frame or if it looks different."""
    flow = score_motion(state, image, flow_box(previous, image, state.box, state.velocity))
    if flow is not None and flow.quality >= CONFIDENT_QUALITY:
        return flow
    peak = score_motion(state, image, estimate_by_filter(state, image))
    return max((m for m in (flow, peak) if m is not None), key=lambda m: m.quality, default=None)


def score_motion(state: TrackerState, image: Frame, motion: BoxEstimate | None) -> BoxEstimate | None:
    """The motion with its quality averaged with the similarity of the box; None if it cannot be the object."""
    if motion is None or motion.quality < MIN_QUALITY or not is_in_frame(motion.box_px, state.size):
        return None
    similarity = state.appearance.similarity(image, motion.box_px)
    return BoxEstimate(motion.box_px, 0.5 * motion.quality + 0.5 * similarity) if similarity >= MIN_SIMILARITY else None


def estimate_by_filter(state: TrackerState, image: Frame) -> BoxEstimate:
    """The sharpest response: around the last or the predicted place, then at a slightly smaller and larger scale."""
    search_from, peak = state.box, state.filter.find(image, state.box)
    if abs(state.velocity[0]) + abs(state.velocity[1]) > 0.1 * max(state.appearance.size):
        ahead = shift_box(state.box, state.velocity)
        response = state.filter.find(image, ahead)
        if response.sharpness > peak.sharpness:
            search_from, peak = ahead, response
    for scale in (0.96, 1.04):
        response = state.filter.find(image, search_from, scale)
        peak = response if response.sharpness > 1.05 * peak.sharpness else peak
    quality = (peak.sharpness - NOISE_SHARPNESS) / (CERTAIN_SHARPNESS - NOISE_SHARPNESS)
    return BoxEstimate(peak.box_px, float(np.clip(quality, 0.0, 1.0)))


def find_by_template(state: TrackerState, image: Frame) -> BoxEstimate | None:
    """Search a lost object without a class by its last template: nearby at first, then anywhere."""
    reach = max(state.appearance.size) * (1.0 + state.frames_missing)
    left, top, right, bottom = state.box
    search_box = PixelBox(left - reach, top - reach, right + reach, bottom + reach)
    estimate = state.appearance.match_template(image, search_box if state.frames_missing < 6 else None)
    if estimate is None or estimate.quality < MIN_TEMPLATE_MATCH:
        return None
    similarity = state.appearance.similarity(image, estimate.box_px)
    quality = 0.5 * estimate.quality + 0.5 * similarity
    return BoxEstimate(estimate.box_px, quality) if similarity >= MIN_TEMPLATE_MATCH else None


def accept_box(state: TrackerState, image: Frame, box: PixelBox, score: float, method: Method) -> TrackPoint:
    """Update the state with the object's box."""
    step_x = (box.left + box.right - state.box.left - state.box.right) / 2
    step_y = (box.top + box.bottom - state.box.top - state.box.bottom) / 2
    state.velocity = (step_x, step_y) if state.frames_missing == 0 else (0.0, 0.0)
    state.box, state.frames_missing = box, 0
    # the model learns from confident boxes only, or it would drift
    if method == "detector" or score >= CONFIDENT_QUALITY:
        state.filter.update(image, box)
        state.appearance.update(image, box, confirmed=method == "detector")
        state.mean_area += 0.05 * (box_area(box) - state.mean_area)
    return TrackPoint(0, box, min(max(score, 0.0), 1.0), method)


def add_label_scores(state: TrackerState, detections: list[Detection], box: PixelBox) -> None:
    """Add the classes of confident detections that cover the box."""
    for detection in detections:
        if detection.score >= MIN_CLAIM_SCORE and pair_iou(detection.box_px, box) >= 0.5:
            state.label_scores[detection.label] += detection.score


def match_detection(
    state: TrackerState, image: Frame, detections: list[Detection], expected: PixelBox, is_confident: bool
) -> Detection | None:
    """The detection of the object: near the expected place, of a known class, and similar in colour."""
    reach = max(state.appearance.size) * (1.5 + 0.75 * state.frames_missing)
    best_label_score = max(state.label_scores.values())
    best, best_value = None, 0.0
    for detection in detections:
        box = detection.box_px
        distance = min(centre_distance(box, expected), centre_distance(box, state.box))
        label_share = state.label_scores.get(detection.label, 0.0) / best_label_score
        growth = box_area(box) / state.mean_area
        overlap = pair_iou(box, expected)
        if distance > reach or label_share < 0.2 or not 0.3 < growth < 3.0 or (is_confident and overlap < 0.3):
            continue
        similarity = state.appearance.similarity(image, box)
        if not is_confident and similarity < MIN_SIMILARITY:
            continue
        nearness = 2.0 * overlap if is_confident else overlap + 0.5 * (1.0 - distance / reach)
        value = detection.score * (0.5 + 0.5 * label_share) + similarity + nearness
        if value > best_value:
            best, best_value = detection, value
    if best is not None:
        for detection in detections:
            if pair_iou(detection.box_px, best.box_px) >= 0.7:
                state.label_scores[detection.label] += detection.score
    return best


def is_in_frame(box: PixelBox, size: Size) -> bool:
    """Whether at least a third of the box lies in the frame."""
    width = min(box.right, size.width) - max(box.left, 0.0)
    height = min(box.bottom, size.height) - max(box.top, 0.0)
    return width > 2 and height > 2 and width * height >= box_area(box) / 3


def box_area(box: PixelBox) -> float:
    return max((box.right - box.left) * (box.bottom - box.top), 1e-9)


def box_centre(box: PixelBox) -> tuple[float, float]:
    return (box.left + box.right) / 2, (box.top + box.bottom) / 2


def centre_distance(a: PixelBox, b: PixelBox) -> float:
    """Pixels between two centres."""
    return float(np.hypot(*np.subtract(box_centre(a), box_centre(b))))


def shift_box(box: PixelBox, offset: tuple[float, float]) -> PixelBox:
    return PixelBox(box.left + offset[0], box.top + offset[1], box.right + offset[0], box.bottom + offset[1])


def scale_box(box: PixelBox, factor: float) -> PixelBox:
    return PixelBox(box.left * factor, box.top * factor, box.right * factor, box.bottom * factor)


def mean_box(a: PixelBox, b: PixelBox) -> PixelBox:
    return PixelBox(*((x + y) / 2 for x, y in zip(a, b, strict=True)))


def pair_iou(a: PixelBox, b: PixelBox) -> float:
    return float(box_iou(np.array([a]), np.array([b]))[0, 0])
