"""The region that PROP measures: the pixels that a box, a mask, a track or a phrase names, and the object in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pixelis.core.errors import ToolError
from pixelis.core.geometry import FULL_FRAME, FrameNumber, Size, Track, UnitBox, Value, to_pixels
from pixelis.media.medium import Frame, frame_size
from pixelis.tools.backends.temporal_signals import detections
from pixelis.tools.base import AreaBox, FrameArgs, MaskArg, Scene
from pixelis.tools.vision import regions
from pixelis.tools.vision.grounding import match_detections, parse_phrase
from pixelis.tools.vision.shapes import segment_figure
from pixelis.weights import is_available

Attribute = Literal[
    "colour", "size", "position", "shape", "orientation", "texture", "count", "speed", "direction", "brightness"
]  # fmt: skip
WORKING_SIDE = 512
"""Pixels are measured on a region of at most this side; sizes and positions come from the arguments."""


class TrackArg(Value):
    """A track as TRK returns it: a box for each frame in which the thing was seen."""

    frames: tuple[FrameNumber, ...] = Field(min_length=1, max_length=10_000)
    boxes: tuple[UnitBox, ...]

    @model_validator(mode="after")
    def _is_a_track(self) -> Self:
        _ = self.track
        return self

    @cached_property
    def track(self) -> Track:
        return Track(track_id=0, frames=self.frames, boxes=self.boxes)


class PropArgs(FrameArgs):
    """What to describe: a box, a mask, a track, the thing that a phrase names, or the whole frame."""

    box: AreaBox | None = Field(default=None, description="region [x0, y0, x1, y1] from 0 to 1")
    mask: MaskArg | None = None
    track: TrackArg | None = None
    attributes: tuple[Attribute, ...] = Field(default=(), max_length=10, description="those that apply if left out")
    of: str | None = Field(
        default=None, min_length=1, max_length=200, description='what to describe or count: "red ring", "people"'
    )

    @model_validator(mode="after")
    def _one_region(self) -> Self:
        if sum(region is not None for region in (self.box, self.mask, self.track)) > 1:
            raise ValueError("give one of box, mask and track")
        if self.of and set(self.attributes) - {"count"} and (self.mask is not None or self.track is not None):
            raise ValueError("a mask or a track says which thing: leave `of` out")
        return self


@dataclass(frozen=True)
class PropRegion:
    """The measured pixels."""

    kind: Literal["frame", "box", "mask", "track"]
    index: int
    box_unit: UnitBox
    crop: Frame
    figure: NDArray[np.bool_]
    """Over the crop: the pixels of the object."""
    is_segmented: bool
    """Whether figure and ground were separated."""
    area_unit: float
    centre: tuple[float, float]
    size: Size


def resolve_region(args: PropArgs, scene: Scene) -> PropRegion:
    """The region that the arguments name; MediaError for a frame that does not exist."""
    index = scene.index(args)
    kind: Literal["frame", "box", "mask", "track"] = "frame"
    box = FULL_FRAME
    if args.track is not None:
        scene.medium.check_index(args.track.frames[-1])
        kind, (index, box) = "track", track_box_at(args.track.track, args, index)
    elif args.mask is not None and args.mask.mask.box_unit is not None:
        kind, box = "mask", args.mask.mask.box_unit
    elif args.box is not None:
        kind, box = "box", args.box
    frame = scene.frame(index)
    size = frame_size(frame)
    left, top, right, bottom = to_pixels(box, size).pixel_bounds(size)
    pixels: NDArray[Any] = frame[top:bottom, left:right]
    figure: NDArray[np.bool_] | None = None
    area, centre = (box[2] - box[0]) * (box[3] - box[1]), ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    if args.mask is not None:
        grid = args.mask.mask.array
        area, centre = args.mask.mask.area, _centroid(grid)
        full_mask = cv2.resize(grid.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST)
        figure = full_mask[top:bottom, left:right].astype(bool)
        figure = figure if figure.any() else None  # thinner than the frame's own pixels
    elif kind in ("box", "track"):
        figure = segment_figure(frame, (left, top, right, bottom))
    is_segmented = figure is not None
    shrink = min(1.0, WORKING_SIDE / max(pixels.shape[:2]))
    small = frame_size(pixels).scaled(shrink)
    pixels = cv2.resize(pixels, small, interpolation=cv2.INTER_AREA) if shrink < 1.0 else pixels
    figure = np.ones(pixels.shape[:2], dtype=bool) if figure is None else figure
    figure = cv2.resize(figure.astype(np.uint8), small, interpolation=cv2.INTER_NEAREST).astype(bool)
    if not figure.any():
        figure[:] = True
    return PropRegion(kind, index, box, np.asarray(pixels), figure, is_segmented, area, centre, size)


def track_box_at(track: Track, args: PropArgs, index: int) -> tuple[int, UnitBox]:
    """Frame and box of a track: the requested frame, or the middle one."""
    if args.frame is None and args.time_s is None:
        middle = len(track.frames) // 2
        return track.frames[middle], track.boxes[middle]
    nearest = min(range(len(track.frames)), key=lambda i: abs(track.frames[i] - index))
    return track.frames[nearest], track.boxes[nearest]


def _centroid(grid: NDArray[np.bool_]) -> tuple[float, float]:
    ys, xs = np.nonzero(grid)
    return float(xs.mean() + 0.5) / grid.shape[1], float(ys.mean() + 0.5) / grid.shape[0]


def locate_target(args: PropArgs, search_region: PropRegion, scene: Scene) -> PropRegion:
    """The object that `of` names, segmented, within the region of the call: the largest of several."""
    phrase = parse_phrase(args.of or "")
    if phrase.is_empty:
        raise ToolError(f"PROP cannot find {args.of!r}: name a colour, a shape or a COCO class, or give a box")
    if phrase.classes and is_available("nanodet"):
        x0, y0, x1, y1 = search_region.box_unit
        detected = match_detections(detections(scene, search_region.index), phrase)
        boxes = [d.box_px.to_unit(search_region.size) for d in detected]
        boxes_inside = [b for b in boxes if x0 <= (b[0] + b[2]) / 2 <= x1 and y0 <= (b[1] + b[3]) / 2 <= y1]
        if not boxes_inside:
            raise ToolError(f"PROP found nothing that fits {args.of!r}")
        largest = max(boxes_inside, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]))
        return resolve_region(args.model_copy(update={"box": largest, "of": None}), scene)
    if not (phrase.colours or phrase.shape):
        raise ToolError(f"PROP finds {args.of!r} with the detector; run `pixelis models pull nanodet`, or give a box")
    candidates = regions.find_regions(search_region.crop, phrase.colours, phrase.shape, scene.limits.regions)
    if not candidates:
        raise ToolError(f"PROP found nothing that fits {args.of!r}")
    figure = max((region.mask for region in candidates), key=lambda mask: int(mask.sum())).astype(bool)
    rows, columns = np.flatnonzero(figure.any(axis=1)), np.flatnonzero(figure.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    (x0, y0, x1, y1), (height, width) = search_region.box_unit, figure.shape
    across, down = (x1 - x0) / width, (y1 - y0) / height  # of one cell, in the frame
    x, y = _centroid(figure)
    return replace(
        search_region,
        kind="mask",
        box_unit=(x0 + left * across, y0 + top * down, x0 + right * across, y0 + bottom * down),
        crop=np.ascontiguousarray(search_region.crop[top:bottom, left:right]),
        figure=figure[top:bottom, left:right],
        is_segmented=True,
        area_unit=float(figure.sum()) * across * down,
        centre=(x0 + x * (x1 - x0), y0 + y * (y1 - y0)),
    )
