"""BoT-SORT without ReID (arXiv:2206.14651): Kalman-filtered boxes, matched to detections in three rounds of IoU.

The update order, the noise and the float types are those of the library `trackers` 2.6.1 (Apache-2.0), which this
module replaces: on the same detections it gives the same ids (docs/decisions/0009-extras.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pixelis.tools.backends.assignment import assign_rows

Floats = NDArray[np.float64]

STATE_SIGMA = np.repeat([0.05, 0.00625], 4)
INITIAL_FACTOR = np.repeat([2.0, 10.0], 4)
MEASUREMENT_SIGMA = 0.05
"""Noise of positions and velocities as a share of the box's sides, larger for a new track."""
CONFIRMING_UPDATES = 2
LOWEST_SCORE = 0.1
SMALLEST_SIDE = 1e-3
IDENTITY = np.eye(8)
TRANSITION = IDENTITY + np.eye(8, k=4)
OBSERVATION = np.eye(4, 8)


@dataclass(frozen=True)
class AssociationSettings:
    """How detections become tracks. The similarities are BoT-SORT's own; scores are in [0, 1]."""

    start_score: float = 0.6
    """A detection under this starts no track (BoT-SORT's 0.7 was set for a detector that is surer of itself)."""
    high_score: float = 0.5
    """Detections from here on are matched first, the others in the second round."""
    first_similarity: float = 0.3
    """Least IoU x score in the first round. With BoT-SORT's 0.2 lost tracks take over strangers."""
    second_similarity: float = 0.5
    newborn_similarity: float = 0.3
    box_buffer: float = 0.0
    """Boxes are widened by this share of their sides before they are compared: for things that leap between frames."""
    patience: int = 30
    """Frames that a track lives on without a detection."""
    fill_gap: int = 20
    """Gaps of at most this many frames are filled by interpolation."""
    min_detections: int = 3
    """A track of fewer detections is dropped."""


class KalmanTrack:
    """One track: centre, width, height and their velocities (8, 1) with covariance (8, 8)."""

    def __init__(self, box: Floats) -> None:
        measurement = _to_measurement(box)
        self.state = np.vstack([measurement[:, None], np.zeros((4, 1))])
        self.covariance = np.diag((INITIAL_FACTOR * STATE_SIGMA * np.tile(measurement[2:], 4)) ** 2)
        self.track_id = -1
        self.frames_missed = 0
        self.updates = 1

    @property
    def box(self) -> Floats:
        x, y, width, height = self.state[:4, 0]
        return np.array([x - width * 0.5, y - height * 0.5, x + width * 0.5, y + height * 0.5])

    @property
    def is_confirmed(self) -> bool:
        return self.track_id != -1 or self.updates >= CONFIRMING_UPDATES

    def _sides(self) -> Floats:
        box = self.box
        width, height = max(box[2] - box[0], SMALLEST_SIDE), max(box[3] - box[1], SMALLEST_SIDE)
        return np.array([width, height, width, height, width, height, width, height])

    def _clamp_sides(self) -> None:
        self.state[2:4] = np.maximum(self.state[2:4], SMALLEST_SIDE)

    def predict(self) -> None:
        noise = np.diag((STATE_SIGMA * self._sides()) ** 2)
        self.state = TRANSITION @ self.state
        self.covariance = TRANSITION @ self.covariance @ TRANSITION.T + noise
        self._clamp_sides()
        self.frames_missed += 1

    def update(self, box: Floats) -> None:
        noise = np.diag((MEASUREMENT_SIGMA * self._sides()[:4]) ** 2)
        cross_covariance = self.covariance @ OBSERVATION.T  # (8, 4)
        gain = cross_covariance @ np.linalg.inv(OBSERVATION @ cross_covariance + noise)
        self.state = self.state + gain @ (_to_measurement(box)[:, None] - OBSERVATION @ self.state)
        residual = IDENTITY - gain @ OBSERVATION
        self.covariance = residual @ self.covariance @ residual.T + gain @ noise @ gain.T  # Joseph form
        self._clamp_sides()
        self.frames_missed = 0
        self.updates += 1


@dataclass
class BotSortTracker:
    """Follows boxes from frame to frame."""

    settings: AssociationSettings
    tracks: list[KalmanTrack] = field(default_factory=list)
    frame_count: int = 0
    next_id: int = 0

    def update(self, boxes: Floats, scores: Floats, motion: Floats | None) -> dict[int, int]:
        """Track id by detection, -1 for a track that is not confirmed yet; a detection may have no entry."""
        settings = self.settings
        self.frame_count += 1
        for track in self.tracks:
            track.predict()
        is_high = scores >= settings.high_score
        high = np.flatnonzero(is_high)
        low = np.flatnonzero(~is_high & (scores > LOWEST_SCORE))
        lost = [t for t in self.tracks if t.frames_missed > 1]
        confirmed = [t for t in self.tracks if t.frames_missed <= 1 and t.is_confirmed]
        newborn = [t for t in self.tracks if t.frames_missed <= 1 and not t.is_confirmed]
        if motion is not None and self.tracks:
            warp_tracks(self.tracks, motion)
        ids: dict[int, int] = {}

        def match(tracks: list[KalmanTrack], detections: NDArray[np.intp], least: float, *, fused: bool) -> None:
            if not tracks or not len(detections):
                return
            similarity = buffered_iou(np.array([t.box for t in tracks]), boxes[detections], settings.box_buffer)
            scored = similarity * scores[detections] if fused else similarity
            for row, column in assign_rows(scored):
                if scored[row, column] >= least:
                    detection, track = int(detections[column]), tracks[row]
                    track.update(boxes[detection])
                    if track.is_confirmed and track.track_id == -1:
                        self._number(track)
                    ids[detection] = track.track_id

        match(confirmed + lost, high, settings.first_similarity, fused=True)
        match([t for t in confirmed if t.frames_missed == 1], low, settings.second_similarity, fused=False)
        ids |= {int(d): -1 for d in low if int(d) not in ids}
        unmatched = np.array([d for d in high if int(d) not in ids], dtype=np.intp)
        match(newborn, unmatched, settings.newborn_similarity, fused=True)
        # a newborn without a second detection goes at once, a confirmed track when its patience ends
        self.tracks = [t for t in self.tracks if t.frames_missed == 0 or t.is_confirmed]
        for detection in (int(d) for d in unmatched if int(d) not in ids):
            ids[detection] = -1
            if scores[detection] >= settings.start_score:
                track = KalmanTrack(boxes[detection])
                if self.frame_count == 1:
                    self._number(track)
                self.tracks.append(track)
                ids[detection] = track.track_id
        self.tracks = [t for t in self.tracks if t.frames_missed <= settings.patience]
        return ids

    def _number(self, track: KalmanTrack) -> None:
        track.track_id, self.next_id = self.next_id, self.next_id + 1


def warp_tracks(tracks: list[KalmanTrack], motion: Floats) -> None:
    """Move tracks with the camera: centres and their velocities, not sides."""
    rotation, translation = motion[:, :2].astype(np.float64), motion[:, 2].astype(np.float64)
    states = np.array([t.state[:, 0] for t in tracks])  # (N, 8)
    states[:, 0:2] = states[:, 0:2] @ rotation.T + translation
    states[:, 4:6] = states[:, 4:6] @ rotation.T
    block = np.eye(8)
    block[0:2, 0:2] = block[4:6, 4:6] = rotation
    covariances = block @ np.array([t.covariance for t in tracks]) @ block.T
    for track, state, covariance in zip(tracks, states, covariances, strict=True):
        track.state, track.covariance = state[:, None], covariance


def buffered_iou(a: Floats, b: Floats, buffer: float) -> NDArray[np.float32]:
    """IoU of every box of `a` with every box of `b` (A, B), each widened by `buffer` of its sides on all sides."""
    a, b = (
        np.hstack([x[:, :2] - buffer * (x[:, 2:] - x[:, :2]), x[:, 2:] + buffer * (x[:, 2:] - x[:, :2])])
        for x in (a, b)
    )
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    intersection = np.clip(sides, 0.0, None).prod(axis=2)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(axis=1) for x in (a, b))
    union = area_a[:, None] + area_b[None] - intersection
    overlap = np.zeros(intersection.shape, dtype=np.float32)
    np.divide(intersection, union, out=overlap, where=union > 0)
    return overlap


def _to_measurement(box: Floats) -> Floats:
    x0, y0, x1, y1 = box.astype(np.float64)
    width, height = x1 - x0, y1 - y0
    return np.array([x0 + width * 0.5, y0 + height * 0.5, width, height])
