"""TRK: track objects through a clip (supp:tool-vs-eval: BoT-SORT; outputs are boxes and ids for each frame).

From a first box or mask: motion from frame to frame, corrected by the detector (`backends.box_tracking`). Without one:
all detections, or those of one class, associated into identities by BoT-SORT (`backends.botsort`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pixelis.core.errors import ToolError
from pixelis.core.geometry import PixelBox, Score, Size, Track, UnitBox, Value, round_unit, to_pixels
from pixelis.tools.base import AreaBox, MaskArg, Observation, Scene, Tool, ToolArgs, coordinates
from pixelis.tools.results import ToolIdentity
from pixelis.tools.vision.grounding import coco_class
from pixelis.weights import fingerprint, is_available

if TYPE_CHECKING:
    from pixelis.tools.backends.botsort import TrackRow
    from pixelis.tools.backends.box_tracking import TrackPoint

FEW_FRAMES = 48
MIN_HOLD_SCORE = 0.2
"""Detections from this score on may continue a track; only higher ones start one."""
BOTSORT_STRIDE_FACTOR = 1.6
"""BoT-SORT samples frames more sparsely than motion needs, by this factor: the detector is the expensive part."""

Method = Literal["detector", "flow", "both"]


class TrkArgs(ToolArgs):
    """What to follow, and from when to when."""

    box: AreaBox | None = Field(default=None, description="[x0, y0, x1, y1] from 0 to 1 on the start frame")
    mask: MaskArg | None = Field(default=None, description="the same as a mask: width, height, COCO counts")
    label: str | None = Field(default=None, max_length=64, description="follow everything of this COCO class instead")
    start_frame: int | None = Field(default=None, ge=0, description="the first frame if left out")
    end_frame: int | None = Field(default=None, ge=0, description="the last frame, or the horizon, if left out")
    start_s: float | None = Field(default=None, ge=0.0, description="start by time, in seconds")
    end_s: float | None = Field(default=None, ge=0.0, description="end by time, in seconds")

    @model_validator(mode="after")
    def _one_way_of_saying_each(self) -> Self:
        if sum(v is not None for v in (self.box, self.mask, self.label)) > 1:
            raise ValueError("give one of box, mask and label")
        for name in ("start", "end"):
            if getattr(self, f"{name}_frame") is not None and getattr(self, f"{name}_s") is not None:
                raise ValueError(f"give {name}_frame or {name}_s, not both")
        return self


class TrackSummary(Value):
    """One identity in a line."""

    track_id: int
    label: str
    method: Method
    """The source of its boxes: the detector, motion, or both."""
    score: Score
    seen: int
    """Number of sampled frames on which it was detected."""
    first_frame: int
    last_frame: int
    first_s: float
    last_s: float
    first_box: UnitBox
    last_box: UnitBox
    direction: str
    """From the first box to the last: still, left, up-right …"""
    way: float
    """Displacement of its centre from the first box to the last, x in frame widths, y in frame heights."""


class TrkOutput(Value):
    """Summaries of the tracks; their boxes are the footprints."""

    tracks: tuple[TrackSummary, ...]
    frames_looked_at: int
    stride: int
    """Every `stride`-th frame of the clip was sampled, and the last one."""
    start_frame: int
    end_frame: int
    cut_at_horizon: bool
    """Whether the tracking horizon ended the search before the requested end."""
    tracks_left_out: int = 0


class Trk(Tool[TrkArgs]):
    """Tracking by detection and by motion."""

    name: ClassVar[str] = "TRK"
    summary: ClassVar[str] = (
        "Follow the thing in a box or mask through a clip, or everything of a COCO class (of all classes if no label "
        "is given); gives a box for each frame and an id for each thing."
    )
    Args = TrkArgs
    Output = TrkOutput
    version = "3"

    def identity(self) -> ToolIdentity:
        if not is_available("nanodet"):
            return ToolIdentity(tool=self.name, version=self.version, backend="flow")
        weights = fingerprint("nanodet")
        return ToolIdentity(tool=self.name, version=self.version, backend="botsort+flow+nanodet", weights=weights)

    def look(self, args: TrkArgs, scene: Scene) -> Observation:
        scene.require_clip(self.name)
        first = first_box(args)
        frames, stride, is_cut = sample_frames(args, scene, 1.0 if first is not None else BOTSORT_STRIDE_FACTOR)
        tracks = track_one(first, frames, scene) if first is not None else track_all(args.label, frames, scene)
        rows = [(scene.to_source_footprint(track), summarise_track(track, method, scene)) for track, method in tracks]
        listed_tracks = rows[: scene.limits.regions]
        output = TrkOutput(
            tracks=tuple(line for _, line in listed_tracks),
            frames_looked_at=len(frames),
            stride=stride,
            start_frame=frames[0],
            end_frame=frames[-1],
            cut_at_horizon=is_cut,
            tracks_left_out=len(rows) - len(listed_tracks),
        )
        confidence = round_unit(float(np.mean([line.score for line in output.tracks]))) if listed_tracks else None
        text, footprints = format_tracks(output, args.label), tuple(track for track, _ in listed_tracks)
        return Observation(text=text, output=output, footprints=footprints, confidence=confidence)


def first_box(args: TrkArgs) -> UnitBox | None:
    """The box to track, if the arguments have one."""
    return args.box if args.mask is None else args.mask.mask.box_unit


def sample_frames(args: TrkArgs, scene: Scene, stride_factor: float) -> tuple[list[int], int, bool]:
    """The sampled frames, their stride, and whether the horizon cut them off."""
    clip = scene.medium
    start = clip.index_at(args.start_s) if args.start_s is not None else args.start_frame or 0
    end = clip.index_at(args.end_s) if args.end_s is not None else args.end_frame
    end = clip.frame_count - 1 if end is None else end
    clip.check_index(start)
    clip.check_index(end)
    if end < start:
        raise ToolError(f"the range ends at frame {end}, before it starts at frame {start}")
    stride = max(round(stride_factor * clip.frame_count / clip.duration_s / scene.limits.track_fps), 1)
    if end - start < FEW_FRAMES:
        stride = 1  # a few frames, often of a folder whose rate is a guess: sample all of them
    frames = list(range(start, end + 1, stride))
    if frames[-1] != end:
        frames.append(end)
    return frames[: scene.limits.track_frames], stride, len(frames) > scene.limits.track_frames


def track_one(box: UnitBox, frames: list[int], scene: Scene) -> list[tuple[Track, Method]]:
    """Track the object in the first box."""
    from pixelis.tools.backends.box_tracking import track_box
    from pixelis.tools.backends.temporal_signals import detections

    size = scene.medium.size
    detect = (lambda frame: detections(scene, frame, threshold=MIN_HOLD_SCORE)) if is_available("nanodet") else None
    start = to_pixels(box, size)
    if min(start.right - start.left, start.bottom - start.top) < 1.0:
        start = PixelBox(*start.pixel_bounds(size))
    points, label = track_box(frames, scene.frame, start, detect)
    methods = {s.method for s in points}
    return [(to_track(1, label, points, size), "both" if len(methods) == 2 else methods.pop())]


def track_all(label: str | None, frames: list[int], scene: Scene) -> list[tuple[Track, Method]]:
    """Tracks of all detections, or of one class; the longest and most confident first."""
    if not is_available("nanodet"):
        raise ToolError("without a box TRK needs the detector; run `pixelis models pull nanodet`, or give a box")
    from pixelis.tools.backends.botsort import FrameDetections, associate, class_agnostic_nms
    from pixelis.tools.backends.botsort_tracker import AssociationSettings
    from pixelis.tools.backends.temporal_signals import detections

    target_class = None if label is None else coco_class(label)
    if label is not None and target_class is None:
        raise ToolError(
            f"{label!r} is not one of the detector's eighty COCO classes; give a box to follow anything else"
        )

    def iter_detections() -> Iterator[FrameDetections]:
        for frame in frames:
            all_classes = detections(scene, frame, threshold=MIN_HOLD_SCORE)
            matching = [d for d in all_classes if target_class in (None, d.label)]
            boxes = np.array([d.box_px for d in matching], dtype=np.float64).reshape(-1, 4)
            scores = np.array([d.score for d in matching], dtype=np.float64)
            indices = class_agnostic_nms(boxes, scores)
            yield FrameDetections(frame, boxes[indices], scores[indices], tuple(matching[i].label for i in indices))

    rate = (len(frames) - 1) / max(scene.medium.time_of(frames[-1]) - scene.medium.time_of(frames[0]), 1e-6)
    settings = AssociationSettings(
        start_score=0.45,
        high_score=0.35,
        first_similarity=0.2,
        newborn_similarity=0.15,
        box_buffer=0.5,
        patience=max(round(2.0 * rate), 2),
        fill_gap=max(round(1.0 * rate), 2),
    )
    tracks = to_tracks(associate(iter_detections(), settings, scene.frame), scene.medium.size)
    return [(track, "detector") for track in sorted(tracks, key=lambda t: -len(t.frames) * t.score)]


def to_tracks(rows: list[TrackRow], size: Size) -> list[Track]:
    """One footprint for each identity."""
    by_id: dict[int, list[TrackRow]] = {}
    for row in rows:
        by_id.setdefault(row.track_id, []).append(row)
    return [to_track(track_id, members[0].label, members, size) for track_id, members in by_id.items()]


def to_track(track_id: int, label: str, points: Sequence[TrackRow | TrackPoint], size: Size) -> Track:
    """The footprint of one identity; its score is the mean over its frames."""
    score = round_unit(float(np.mean([point.score for point in points])))
    boxes = tuple(PixelBox(*point.box_px).to_unit(size) for point in points)
    return Track(track_id=track_id, label=label, score=score, frames=tuple(p.frame for p in points), boxes=boxes)


def summarise_track(track: Track, method: Method, scene: Scene) -> TrackSummary:
    return TrackSummary(
        track_id=track.track_id,
        label=track.label,
        method=method,
        score=track.score,
        seen=len(track.frames),
        first_frame=track.frames[0],
        last_frame=track.frames[-1],
        first_s=scene.medium.time_of(track.frames[0]),
        last_s=scene.medium.time_of(track.frames[-1]),
        first_box=track.boxes[0],
        last_box=track.boxes[-1],
        direction=direction(track.boxes[0], track.boxes[-1]),
        way=round_unit(hypot(*centre_displacement(track.boxes[0], track.boxes[-1]))),
    )


def centre_displacement(first: UnitBox, last: UnitBox) -> tuple[float, float]:
    """Displacement of the centre, across and down."""
    across, down = ((last[i] + last[i + 2] - first[i] - first[i + 2]) / 2 for i in (0, 1))
    return across, down


def direction(first: UnitBox, last: UnitBox) -> str:
    """Direction of the centre, in words; less than a twentieth of the frame is still."""
    across, down = centre_displacement(first, last)
    words = []
    if abs(down) >= 0.05 and abs(down) > 0.4 * abs(across):
        words.append("down" if down > 0 else "up")
    if abs(across) >= 0.05 and abs(across) > 0.4 * abs(down):
        words.append("right" if across > 0 else "left")
    return "-".join(words) or "still"


def format_tracks(output: TrkOutput, label: str | None) -> str:
    """The text that the policy reads."""
    coverage = f"{output.frames_looked_at} frames looked at, every {output.stride}"
    coverage += f" from {output.start_frame} to {output.end_frame}" + (" (horizon)" if output.cut_at_horizon else "")
    if not output.tracks:
        return f"no {label or 'known thing'} seen; {coverage}"
    lines = [
        f"#{t.track_id} {t.label or 'thing'} {t.first_s:.2f}-{t.last_s:.2f}s {coordinates(t.first_box)} -> "
        f"{coordinates(t.last_box)} {t.direction} {t.way:.2f}, seen {t.seen}, {t.method}, {t.score:.2f}"
        for t in output.tracks
    ]
    if output.tracks_left_out:
        lines.append(f"{output.tracks_left_out} shorter tracks left out")
    return "\n".join([f"{len(output.tracks)} tracked; {coverage}", *lines])
