"""Detections into identities: BoT-SORT with camera-motion compensation, and what it leaves open.

The paper runs BoT-SORT without ReID (supp:tool-vs-eval). Around `botsort_tracker` this module does four things: it
estimates the camera's motion on a small picture with the detections masked out; it gives a track the detection before
its id came (a track is numbered at its second detection); it drops tracks of one or two detections; and it fills
short gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.media.medium import Frame
from pixelis.tools.backends.botsort_tracker import AssociationSettings, BotSortTracker
from pixelis.tools.backends.flow import CameraMotion

Boxes = NDArray[np.float64]
"""(N, 4) left, top, right, bottom in pixels."""


@dataclass(frozen=True)
class FrameDetections:
    """The detections on one frame."""

    frame: int
    boxes_px: Boxes
    scores: NDArray[np.float64]
    """(N,) in [0, 1]."""
    labels: tuple[str, ...] = ()
    """(N,) or none."""


class TrackRow(NamedTuple):
    """One box of one identity on one frame."""

    frame: int
    track_id: int
    box_px: tuple[float, float, float, float]
    score: float
    label: str


@dataclass(frozen=True)
class Tracklet:
    """One identity: frames in ascending order with their boxes and scores."""

    frames: NDArray[np.int64]  # (T,)
    boxes: Boxes  # (T, 4)
    scores: NDArray[np.float64]  # (T,)
    labels: tuple[str, ...]


def associate(
    frame_detections: Iterable[FrameDetections],
    settings: AssociationSettings = AssociationSettings(),
    load_frame: Callable[[int], Frame] | None = None,
) -> list[TrackRow]:
    """Associate detections into identities, ordered by id and frame; ids count from 1 in the order of appearance.

    Detections are consumed one frame at a time, each just before its picture, so that a frame is decoded once.
    With `load_frame`, the camera's motion is compensated.
    """
    tracklets, steps = run_botsort(frame_detections, settings, load_frame)
    min_detections = min(settings.min_detections, len(steps))
    tracklets = [fill_gaps(t, steps, settings.fill_gap) for t in tracklets if len(t.frames) >= min_detections]
    tracklets.sort(key=lambda t: (int(t.frames[0]), tuple(t.boxes[0])))
    return [row for i, t in enumerate(tracklets, start=1) for row in to_rows(t, i)]


def to_rows(tracklet: Tracklet, track_id: int) -> Iterable[TrackRow]:
    label = Counter(tracklet.labels).most_common(1)[0][0] if tracklet.labels else ""
    for frame, box, score in zip(tracklet.frames, tracklet.boxes, tracklet.scores, strict=True):
        x0, y0, x1, y1 = (float(v) for v in box)
        yield TrackRow(int(frame), track_id, (x0, y0, x1, y1), float(score), label)


def run_botsort(
    stream: Iterable[FrameDetections], settings: AssociationSettings, load_frame: Callable[[int], Frame] | None
) -> tuple[list[Tracklet], list[int]]:
    """Run BoT-SORT frame by frame; the tracks, and the frames that were examined."""
    tracker = BotSortTracker(settings)
    camera = CameraMotion() if load_frame is not None else None
    members: dict[int, list[tuple[int, int]]] = {}  # id -> (position in history, detection)
    unassigned: list[int] = []
    history: list[FrameDetections] = []
    for at, current in enumerate(stream):
        history.append(current)
        motion = None
        if camera is not None and load_frame is not None:
            motion = camera.step(load_frame(current.frame), current.boxes_px[current.scores >= settings.high_score])
        ids = tracker.update(current.boxes_px.reshape(-1, 4), current.scores, motion)
        for detection, track_id in ids.items():
            if track_id < 0:
                continue
            if track_id not in members:
                members[track_id] = []
                box = current.boxes_px[detection]
                start = find_start_detection(history[at - 1], unassigned, box, motion) if at else None
                if start is not None:
                    unassigned.remove(start)
                    members[track_id].append((at - 1, start))
            members[track_id].append((at, detection))
        unassigned = [d for d, track_id in ids.items() if track_id < 0]
    return [build_tracklet(history, pairs) for pairs in members.values()], [s.frame for s in history]


def build_tracklet(history: Sequence[FrameDetections], pairs: Sequence[tuple[int, int]]) -> Tracklet:
    return Tracklet(
        frames=np.array([history[s].frame for s, _ in pairs], dtype=np.int64),
        boxes=np.array([history[s].boxes_px[d] for s, d in pairs], dtype=np.float64),
        scores=np.array([history[s].scores[d] for s, d in pairs], dtype=np.float64),
        labels=tuple(history[s].labels[d] for s, d in pairs if history[s].labels),
    )


def find_start_detection(
    previous: FrameDetections, unassigned: Sequence[int], box: Boxes, motion: NDArray[np.float64] | None
) -> int | None:
    """The detection on the previous frame from which a newly numbered track started."""
    if not unassigned:
        return None
    boxes = previous.boxes_px[list(unassigned)]
    similarity = box_iou(boxes if motion is None else transform_boxes(boxes, motion), box[None])[:, 0]
    best = int(np.argmax(similarity))
    return unassigned[best] if similarity[best] >= 0.3 else None


def transform_boxes(boxes: Boxes, motion: NDArray[np.float64]) -> Boxes:
    """Axis-aligned boxes under a similarity transform (2, 3): centres are mapped, sides are scaled."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2 @ motion[:, :2].T + motion[:, 2]
    half = (boxes[:, 2:] - boxes[:, :2]) / 2 * np.hypot(motion[0, 0], motion[1, 0])
    return np.hstack([centres - half, centres + half])


def box_iou(a: Boxes, b: Boxes) -> NDArray[np.float64]:
    """Intersection over union of every box of `a` with every box of `b`: (A, B)."""
    corner = np.maximum(a[:, None, :2], b[None, :, :2])
    sides = np.clip(np.minimum(a[:, None, 2:], b[None, :, 2:]) - corner, 0.0, None)
    intersection = sides.prod(axis=2)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(axis=1) for x in (a, b))
    return np.asarray(intersection / np.maximum(area_a[:, None] + area_b[None] - intersection, 1e-12))


def class_agnostic_nms(boxes: Boxes, scores: NDArray[np.float64], overlap: float = 0.65) -> list[int]:
    """Indices of the detections that remain, best first, after suppression across classes."""
    indices: list[int] = []
    for i in np.argsort(-scores, kind="stable").tolist():
        if not indices or float(box_iou(boxes[indices], boxes[[i]]).max()) <= overlap:
            indices.append(i)
    return indices


def fill_gaps(tracklet: Tracklet, steps: Sequence[int], gap: int) -> Tracklet:
    """Fill short gaps by linear interpolation, with half the lower score of the two ends.

    `steps` are the examined frames; gaps are counted in them.
    """
    position_by_frame = {frame: positions for positions, frame in enumerate(steps)}
    positions = np.array([position_by_frame[int(frame)] for frame in tracklet.frames])
    pieces = [positions[:1]]
    for before, after in pairwise(positions):
        pieces.append(np.arange(before + 1, after + 1) if after - before <= gap else np.array([after]))
    all_positions = np.concatenate(pieces)
    boxes = np.column_stack([np.interp(all_positions, positions, side) for side in tracklet.boxes.T])
    right = np.searchsorted(positions, all_positions)
    is_interpolated = ~np.isin(all_positions, positions)
    scores = tracklet.scores[right]
    scores[is_interpolated] = np.minimum(scores, tracklet.scores[np.maximum(right - 1, 0)])[is_interpolated] / 2
    frames = np.array([steps[i] for i in all_positions], dtype=np.int64)
    return replace(tracklet, frames=frames, boxes=boxes, scores=scores)
