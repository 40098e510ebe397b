"""One thing from its first box on: by motion from frame to frame, held to the thing by the detector where it sees it.

Optical flow and a correlation filter are quick and need no class, but drift; the detector costs ten times as much and
does not. So the detector looks at the first frame, every `ANCHOR_EVERY` frames, and whenever motion is unsure. A
detection takes the box over only once one has covered it, so that a box drawn on a part is not pulled to the whole;
from then on the detector is believed: what it does not confirm for a while is lost, and comes back only through it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from pixelis.geometry import PixelBox, Size
from pixelis.media.medium import Frame
from pixelis.tools.backends.botsort import overlaps
from pixelis.tools.backends.correlation import CorrelationFilter
from pixelis.tools.backends.flow import Appearance, Moved, flow_box, resized
from pixelis.tools.backends.nanodet import Detection

WORK_SIDE = 80
"""Frames are made smaller until the longer side of the first box has so many pixels."""
ANCHOR_EVERY = 5
"""Frames between two looks of the detector while motion is sure."""
LIKELY = 0.2
"""A motion of less quality is not believed."""
SURE = 0.65
"""Quality of a motion from which on the detector need not be asked."""
ALIKE = 0.6
"""Two boxes with colours this much alike may be the same thing."""
SHARP, BLUNT = 20.0, 7.0
"""Sharpness of the correlation peak that is certain, and that says nothing (a lost thing gives about 7)."""
TEMPLATE = 0.8
"""A place is the lost thing again if its template fits this well and its colours do."""
CLAIM = 0.35
"""A detection of this score may say what the thing is; fainter ones only hold what is known."""
DOUBTS = 4
"""Looks in vain after which what the detector knew is taken for lost, or never tried again if it never knew it."""

Method = Literal["detector", "flow"]


class Seen(NamedTuple):
    """The thing on one frame."""

    frame: int
    box_px: PixelBox
    score: float
    method: Method


@dataclass
class Follower:
    """State between two frames."""

    size: Size
    appearance: Appearance
    filter: CorrelationFilter
    box: PixelBox
    usual_area: float
    """Mean area of the boxes that were sure, in pixels: at the edge of the frame a thing is small for a while."""
    velocity: tuple[float, float] = (0.0, 0.0)
    missing: int = 0
    """Frames since the thing was last seen."""
    rested: int = 0
    """Frames since the detector last looked."""
    doubts: int = 0
    """Looks of the detector in a row that did not confirm the box."""
    labels: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Scores by class, of the detections that held the thing; empty until one has covered the box."""


def follow(
    frames: Sequence[int],
    image_of: Callable[[int], Frame],
    box_px: PixelBox,
    detect: Callable[[int], list[Detection]] | None,
) -> tuple[list[Seen], str]:
    """The thing in `box_px` of the first frame on all the frames where it is seen, and what the detector calls it."""
    scale = WORK_SIDE / max(box_px.right - box_px.left, box_px.bottom - box_px.top)
    scale = scale if scale < 0.75 else 1.0  # making a frame a little smaller costs more than it saves
    look = None if detect is None else lambda frame: [d._replace(box_px=scaled(d.box_px, scale)) for d in detect(frame)]
    start = scaled(box_px, scale)
    before = resized(image_of(frames[0]), scale)
    size = Size(before.shape[1], before.shape[0])
    state = Follower(size, Appearance(before, start), CorrelationFilter(before, start), start, area(start))
    if look is not None:
        claim(state, look(frames[0]), start)
    seen = [Seen(frames[0], start, 1.0, "detector" if state.labels else "flow")]
    doubted: list[Seen] = []  # kept only if the detector then finds the thing where they led
    for frame in frames[1:]:
        image = resized(image_of(frame), scale)
        at = state.box
        found = step(state, before, image, None if look is None else partial(look, frame))
        before = image
        if found is None or (found.method == "detector" and away(at, state.box) > 2.0 * max(state.appearance.size)):
            doubted.clear()
        if found is not None and state.doubts and state.labels:
            doubted.append(found._replace(frame=frame))
        elif found is not None:
            seen += [*doubted, found._replace(frame=frame)]
            doubted.clear()
    kept = [s._replace(box_px=scaled(s.box_px, 1.0 / scale)) for s in (*seen, *doubted)]
    return kept, agreed(state.labels)


def agreed(labels: dict[str, float]) -> str:
    """What the detector called the thing, if it said one word with more than half of its weight; else nothing."""
    best = max(labels, key=lambda name: labels[name], default="")
    return best if best and labels[best] > 0.5 * sum(labels.values()) else ""


def step(state: Follower, before: Frame, image: Frame, detect: Callable[[], list[Detection]] | None) -> Seen | None:
    """One frame on: by motion; and by the detector, where motion is not sure or its turn has come."""
    moved = by_motion(state, before, image) if state.missing == 0 else None
    sure = moved is not None and moved.quality >= SURE
    state.rested += 1
    if detect is not None and due(state, sure):
        state.rested = 0
        held = looked_up(state, image, detect(), moved)
        if held is not None:
            return held
        if state.labels and (state.doubts >= DOUBTS or not sure):
            moved = None
    if state.missing and not state.labels:
        moved = by_template(state, image)
    if moved is None:
        state.missing += 1
        return None
    return accept(state, image, moved.box_px, moved.quality, "flow")


def due(state: Follower, sure: bool) -> bool:
    """Whether the detector should look."""
    if state.missing:
        return bool(state.labels) and state.rested >= 2
    if not state.labels:
        return state.doubts < DOUBTS and state.rested >= ANCHOR_EVERY
    return not sure or state.doubts > 0 or state.rested >= ANCHOR_EVERY


def looked_up(state: Follower, image: Frame, detections: list[Detection], moved: Moved | None) -> Seen | None:
    """The thing as the detector sees it, its box halfway to where motion put it if the two agree."""
    if not state.labels and moved is not None:
        claim(state, detections, moved.box_px)
    # a motion that the detector has not confirmed for a while no longer says where to look
    believed = moved if moved is not None and moved.quality >= SURE and state.doubts < DOUBTS - 1 else None
    expected = believed.box_px if believed else shifted(state.box, state.velocity)
    held = held_by(state, image, detections, expected, believed is not None) if state.labels else None
    if held is None:
        state.doubts += 1
        return None
    state.doubts = 0
    box = between(held.box_px, moved.box_px) if moved and iou(held.box_px, moved.box_px) >= 0.5 else held.box_px
    if moved is None or iou(box, moved.box_px) < 0.5:
        state.filter = CorrelationFilter(image, box)
    return accept(state, image, box, 0.5 * held.score + 0.5 * state.appearance.likeness(image, box), "detector")


def by_motion(state: Follower, before: Frame, image: Frame) -> Moved | None:
    """The box where flow puts it, or the filter if flow is unsure; None where it is off the frame or looks unlike."""
    flow = weighed(state, image, flow_box(before, image, state.box, state.velocity))
    if flow is not None and flow.quality >= SURE:
        return flow
    peak = weighed(state, image, by_filter(state, image))
    return max((m for m in (flow, peak) if m is not None), key=lambda m: m.quality, default=None)


def weighed(state: Follower, image: Frame, moved: Moved | None) -> Moved | None:
    """A motion whose quality also counts how much the box looks like the thing; None if it cannot be the thing."""
    if moved is None or moved.quality < LIKELY or not inside(moved.box_px, state.size):
        return None
    alike = state.appearance.likeness(image, moved.box_px)
    return Moved(moved.box_px, 0.5 * moved.quality + 0.5 * alike) if alike >= ALIKE else None


def by_filter(state: Follower, image: Frame) -> Moved:
    """The sharpest answer: around the last place or where the thing was heading, then a little smaller or larger."""
    place, peak = state.box, state.filter.find(image, state.box)
    if abs(state.velocity[0]) + abs(state.velocity[1]) > 0.1 * max(state.appearance.size):
        ahead = shifted(state.box, state.velocity)
        answer = state.filter.find(image, ahead)
        if answer.sharpness > peak.sharpness:
            place, peak = ahead, answer
    for scale in (0.96, 1.04):
        answer = state.filter.find(image, place, scale)
        peak = answer if answer.sharpness > 1.05 * peak.sharpness else peak
    return Moved(peak.box_px, float(np.clip((peak.sharpness - BLUNT) / (SHARP - BLUNT), 0.0, 1.0)))


def by_template(state: Follower, image: Frame) -> Moved | None:
    """A thing without a class that was lost, where its last template fits: near at first, then anywhere."""
    reach = max(state.appearance.size) * (1.0 + state.missing)
    near = PixelBox(state.box.left - reach, state.box.top - reach, state.box.right + reach, state.box.bottom + reach)
    found = state.appearance.seek(image, near if state.missing < 6 else None)
    if found is None or found.quality < TEMPLATE:
        return None
    alike = state.appearance.likeness(image, found.box_px)
    return Moved(found.box_px, 0.5 * found.quality + 0.5 * alike) if alike >= TEMPLATE else None


def accept(state: Follower, image: Frame, box: PixelBox, score: float, method: Method) -> Seen:
    """The thing is here: the state moves on."""
    step_x = (box.left + box.right - state.box.left - state.box.right) / 2
    step_y = (box.top + box.bottom - state.box.top - state.box.bottom) / 2
    state.velocity = (step_x, step_y) if state.missing == 0 else (0.0, 0.0)
    state.box, state.missing = box, 0
    if method == "detector" or score >= SURE:  # what is not sure is not learnt, or the box would talk itself into it
        state.filter.learn(image, box)
        state.appearance.learn(image, box, confirmed=method == "detector")
        state.usual_area += 0.05 * (area(box) - state.usual_area)
    return Seen(0, box, min(max(score, 0.0), 1.0), method)


def claim(state: Follower, detections: list[Detection], box: PixelBox) -> None:
    """The classes of the surer detections that cover the box."""
    for detection in detections:
        if detection.score >= CLAIM and iou(detection.box_px, box) >= 0.5:
            state.labels[detection.label] += detection.score


def held_by(
    state: Follower, image: Frame, detections: list[Detection], expected: PixelBox, sure: bool
) -> Detection | None:
    """The detection that is the thing: near where it is expected, of a class that it has been, and alike."""
    reach = max(state.appearance.size) * (1.5 + 0.75 * state.missing)
    known = max(state.labels.values())
    best, best_value = None, 0.0
    for detection in detections:
        box = detection.box_px
        distance = min(away(box, expected), away(box, state.box))
        familiar = state.labels.get(detection.label, 0.0) / known
        growth = area(box) / state.usual_area
        common = iou(box, expected)
        if distance > reach or familiar < 0.2 or not 0.3 < growth < 3.0 or (sure and common < 0.3):
            continue
        alike = state.appearance.likeness(image, box)
        if not sure and alike < ALIKE:
            continue
        nearness = 2.0 * common if sure else common + 0.5 * (1.0 - distance / reach)
        value = detection.score * (0.5 + 0.5 * familiar) + alike + nearness
        if value > best_value:
            best, best_value = detection, value
    if best is not None:
        for detection in detections:
            if iou(detection.box_px, best.box_px) >= 0.7:
                state.labels[detection.label] += detection.score
    return best


def inside(box: PixelBox, size: Size) -> bool:
    """Whether at least a third of the box lies in the frame."""
    width = min(box.right, size.width) - max(box.left, 0.0)
    height = min(box.bottom, size.height) - max(box.top, 0.0)
    return width > 2 and height > 2 and width * height >= area(box) / 3


def area(box: PixelBox) -> float:
    return max((box.right - box.left) * (box.bottom - box.top), 1e-9)


def middle(box: PixelBox) -> tuple[float, float]:
    return (box.left + box.right) / 2, (box.top + box.bottom) / 2


def away(a: PixelBox, b: PixelBox) -> float:
    """Pixels between two centres."""
    return float(np.hypot(*np.subtract(middle(a), middle(b))))


def shifted(box: PixelBox, by: tuple[float, float]) -> PixelBox:
    return PixelBox(box.left + by[0], box.top + by[1], box.right + by[0], box.bottom + by[1])


def scaled(box: PixelBox, by: float) -> PixelBox:
    return PixelBox(box.left * by, box.top * by, box.right * by, box.bottom * by)


def between(a: PixelBox, b: PixelBox) -> PixelBox:
    return PixelBox(*((x + y) / 2 for x, y in zip(a, b, strict=True)))


def iou(a: PixelBox, b: PixelBox) -> float:
    return float(overlaps(np.array([a]), np.array([b]))[0, 0])
