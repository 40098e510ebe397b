"""`pixelis bench trk`: the association behind TRK on given detections, scored by TrackEval.

Detections and gold tracks are MOTChallenge rows: frame, id, left, top, width, height, confidence, … Frames have the
numbers of the files; those of a folder or a video are taken in order, from frame 1 (or 0, if the files begin there).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Value
from pixelis.media import open_media
from pixelis.media.medium import Frame
from pixelis.metrics.tracking import CLASSES, PEDESTRIAN, score_rows
from pixelis.tools.backends.botsort import FrameDetections, TrackRow, associate
from pixelis.tools.backends.botsort_tracker import AssociationSettings

MotArray = NDArray[np.float64]
"""(N, 7 or more) MOTChallenge rows."""

MAX_FRAMES = 500_000
MOT_FIELDS = 9
"""Fields of a gold row since MOT16; the last two are class and visibility."""


class TrkBench(Value):
    """Result of a run; scores are None without gold tracks. Shares are in [0, 1]."""

    frames: int
    detections: int
    tracks: int
    boxes: int
    compensated: bool
    """Whether camera motion was compensated, which needs the frames."""
    hota: float | None = None
    det_a: float | None = None
    ass_a: float | None = None
    loc_a: float | None = None
    mota: float | None = None
    idf1: float | None = None
    id_switches: int | None = None


def bench_trk(
    media: Path | None, det: Path, gt: Path | None, *, settings: AssociationSettings = AssociationSettings()
) -> TrkBench:
    """Track the detections, with camera-motion compensation if the frames are given, and score the tracks."""
    detections = read_mot(det)
    gold = None if gt is None else read_mot(gt)
    all_rows = detections if gold is None else np.vstack([detections[:, :7], gold[:, :7]])
    first, last = int(all_rows[:, 0].min()), int(all_rows[:, 0].max())
    if last - first >= MAX_FRAMES:
        raise MediaError(f"the rows span frames {first} to {last}; at most {MAX_FRAMES} frames are tracked")
    get_frame = None if media is None else frame_reader(media, min(first, 1), last)
    rows = associate(sightings(detections, first, last), settings, get_frame)
    result = TrkBench(
        frames=last - first + 1,
        detections=len(detections),
        tracks=len({row.track_id for row in rows}),
        boxes=len(rows),
        compensated=get_frame is not None,
    )
    if gold is None:
        return result
    scores = score_rows(to_gold_rows(gold), to_mot_rows(rows), benchmark="MOT17" if has_classes(gold) else "MOT15")
    keys = ("hota", "det_a", "ass_a", "loc_a", "mota", "idf1", "id_switches")
    return result.model_copy(update={key: getattr(scores, key) for key in keys})


def read_mot(path: Path) -> MotArray:
    """The rows of a MOTChallenge file, separated by commas or blanks; MediaError names an invalid line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MediaError(f"{path} cannot be read as MOTChallenge rows ({error})") from error
    rows: list[list[float]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            fields = [float(field) for field in line.replace(",", " ").split()]
        except ValueError as error:
            raise MediaError(f"{path}:{number}: {line.strip()[:60]!r} contains a field that is not a number") from error
        if not 6 <= len(fields) <= 20 or not np.isfinite(fields).all() or fields[0] != int(fields[0]):
            raise MediaError(
                f"{path}:{number}: expected frame, id, left, top, width, height, confidence; got {len(fields)} fields"
            )
        rows.append(fields if len(fields) > 6 else [*fields, 1.0])
    if not rows:
        raise MediaError(f"{path} contains no rows")
    if len({len(row) for row in rows}) > 1:
        raise MediaError(f"{path}: the rows differ in their number of fields")
    return np.array(rows)


def sightings(rows: MotArray, first: int, last: int) -> list[FrameDetections]:
    """Detections of every frame from the first to the last, empty ones included, without boxes of no area."""
    boxes = np.hstack([rows[:, 2:4], rows[:, 2:4] + rows[:, 4:6]])
    scores = normalise_scores(rows[:, 6])
    has_area = (rows[:, 4] > 0) & (rows[:, 5] > 0)
    result = []
    for frame in range(first, last + 1):
        in_frame = has_area & (rows[:, 0] == frame)
        result.append(FrameDetections(frame, boxes[in_frame], scores[in_frame]))
    return result


def normalise_scores(confidences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Detector scores of any scale, mapped to [0, 1].

    A constant (1, or MOTChallenge's -1 for "not given") becomes 1. Scores in [0, 1] stay, percentages are divided by
    100, and unscaled margins (DPM's, -1 to 3) are mapped from their 2nd and 98th percentile to 0.3 and 1.
    """
    low, high = float(confidences.min()), float(confidences.max())
    if low == high:
        return np.ones_like(confidences)
    if low >= 0.0 and high <= 1.0:
        return confidences.copy()
    if low >= 0.0 and 20.0 < high <= 100.0:
        return confidences / 100.0
    floor, ceiling = np.percentile(confidences, [2.0, 98.0])
    return np.asarray(np.clip(0.3 + 0.7 * (confidences - floor) / max(ceiling - floor, 1e-12), 0.0, 1.0))


def frame_reader(media: Path, first: int, last: int) -> Callable[[int], Frame]:
    """A function from a frame number to its pixels; the clip begins with frame `first`."""
    clip = open_media(media)
    if last - first >= clip.frame_count:
        raise MediaError(
            f"the rows reach frame {last}; {clip.describe()} has {clip.frame_count} frames from frame {first}"
        )
    return lambda frame: clip.frame(frame - first)


def has_classes(gold: MotArray) -> bool:
    """Whether the gold rows have class and visibility (MOT16 or later) and contain pedestrians."""
    classes = gold[:, 7] if gold.shape[1] == MOT_FIELDS else np.zeros(1)
    return bool(np.isin(classes, CLASSES).all() and (classes == PEDESTRIAN).any())


def to_gold_rows(gold: MotArray) -> MotArray:
    """Gold rows for scoring, without MOT15's world coordinates after the seventh field."""
    return gold[:, :8] if has_classes(gold) else gold[:, :7]


def to_mot_rows(rows: list[TrackRow]) -> MotArray:
    """Tracks as MOTChallenge rows."""
    fields = [
        (row.frame, row.track_id, x0, y0, x1 - x0, y1 - y0, row.score)
        for row in rows
        for x0, y0, x1, y1 in [row.box_px]
    ]
    return np.array(fields).reshape(-1, 7)
