"""ZOOM (also CROP): a closer look, or a step back, as a new picture that the policy sees."""

from __future__ import annotations

import io
from typing import Self

from PIL import Image as Pil
from pydantic import Field, model_validator

from pixelis.core.geometry import FULL_FRAME, Box, Point, Size, UnitBox, Value
from pixelis.media.medium import Frame, frame_size
from pixelis.media.query import ViewRecipe, resample
from pixelis.tools.base import AreaBox, FrameArgs, Observation, Scene, Tool, coordinates, crop
from pixelis.tools.results import Blob

MAX_UPSAMPLE = 4.0
"""Further enlargement shows nothing new."""
ENLARGE_TO = 512
"""A small crop is enlarged until its longer side has this many pixels, within MAX_UPSAMPLE."""
MAX_SIDE = 1024
"""A large crop is scaled down to this longer side."""


class ZoomArgs(FrameArgs):
    """Where to look: a box, or a scale around a point."""

    box: AreaBox | None = Field(default=None, description="region [x0, y0, x1, y1] from 0 to 1")
    scale: float | None = Field(
        default=None, gt=0.0, le=64.0, description="over 1 looks closer, under 1 steps back; around the box or center"
    )
    center: Point | None = Field(default=None, description="[x, y] from 0 to 1; the middle if left out")

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if self.box is None and self.scale is None:
            raise ValueError("give a box, or a scale (with or without a center)")
        if self.box is not None and self.center is not None:
            raise ValueError("give a box or a center, not both")
        return self


class ZoomOutput(Value):
    """What the new view shows."""

    box: UnitBox
    """In the coordinates of the query's own medium, also for a call on a view."""
    width: int
    height: int
    magnification: float
    """Pixels of the view for one pixel of the source; under 1 it was scaled down."""


class Zoom(Tool[ZoomArgs]):
    """A crop at a useful size. Exact: it has no model."""

    name = "ZOOM"
    summary = "Look closer at a box, or step back (scale under 1); returns a new picture, View_k."
    Args = ZoomArgs
    Output = ZoomOutput
    deadline_s = 60.0

    def look(self, args: ZoomArgs, scene: Scene) -> Observation:
        index = scene.index(args)
        source_box, frame = view_box(args, scene), scene.source_frame(index)
        pixels, exact = crop(frame, source_box)
        size, magnification = view_size(frame_size(pixels))
        source_index = scene.recipe.frame if scene.recipe else index
        view = ViewRecipe(media=scene.name, frame=source_index, box=exact, width=size.width, height=size.height)
        x0, y0, x1, y1 = exact
        return Observation(
            text=f"view of {coordinates(exact)}, {size.width}x{size.height} pixels, {magnification:.2f}x",
            output=ZoomOutput(box=exact, width=size.width, height=size.height, magnification=magnification),
            footprints=(Box(media=scene.name, frame=view.frame, x0=x0, y0=y0, x1=x1, y1=y1),),
            in_source_coordinates=True,
            confidence=1.0,
            blobs=(Blob("view.png", "image/png", encode_png(resample(frame, exact, size))),),
            view=view,
        )


def view_box(args: ZoomArgs, scene: Scene) -> UnitBox:
    """The region to show, in the coordinates of the source, clipped to its frame."""
    x0, y0, x1, y1 = scene.to_source_unclipped(args.box or FULL_FRAME)
    cx, cy = (x0 + x1) / 2, (y0 + y1) / 2
    if args.center is not None:
        cx, cy, _, _ = scene.to_source_unclipped((*args.center, *args.center))
    half_w, half_h = (x1 - x0) / 2 / (args.scale or 1.0), (y1 - y0) / 2 / (args.scale or 1.0)
    return max(cx - half_w, 0.0), max(cy - half_h, 0.0), min(cx + half_w, 1.0), min(cy + half_h, 1.0)


def view_size(region: Size) -> tuple[Size, float]:
    """Size of the view for a region of this many pixels, and its magnification."""
    longer = max(region)
    factor = MAX_SIDE / longer if longer > MAX_SIDE else min(MAX_UPSAMPLE, max(ENLARGE_TO / longer, 1.0))
    return region.scaled(factor), round(factor, 4)


def encode_png(frame: Frame) -> bytes:
    buffer = io.BytesIO()
    Pil.fromarray(frame).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()
