"""Footprints: boxes, masks, tracks, time spans and text spans, as frozen, validated values.

Everything here is in *unit* coordinates: x to the right and y down, from 0 to 1 over the medium's width and height.
Pixels have another type (`PixelBox`), and only a `Size` converts between the two, so that the frames of reference
cannot be confused: a function that takes a `Box` does not accept a `PixelBox`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pixelis.core import rle

UnitCoordinate = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Score = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Point = tuple[UnitCoordinate, UnitCoordinate]
UnitBox = tuple[UnitCoordinate, UnitCoordinate, UnitCoordinate, UnitCoordinate]
FULL_FRAME: UnitBox = (0.0, 0.0, 1.0, 1.0)

FrameNumber = Annotated[int, Field(ge=0, lt=2**31)]

DECIMALS = 6
"""Footprints keep six decimals: finer than a pixel of any picture, coarse enough to print the same everywhere."""
MAX_MASK_CELLS = 120_000_000
"""Maximum cells of a mask: the pixels of the largest picture that is decoded."""


def round_unit(value: float) -> float:
    """A coordinate or score with the precision that footprints keep."""
    return round(float(value), DECIMALS)


def separate_edges(low: float, high: float) -> tuple[float, float]:
    """Two edges, kept apart after rounding: a box on a view of a few pixels still has area on its source."""
    minimum = 10.0**-DECIMALS
    start = min(low, 1.0 - minimum)
    return (low, high) if low < high else (round_unit(start), round_unit(start + minimum))


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    def scaled(self, factor: float) -> Size:
        """This size times a factor, in whole pixels, at least one."""
        return Size(max(round(self.width * factor), 1), max(round(self.height * factor), 1))


class PixelBox(NamedTuple):
    """A box in the pixels of one particular frame: left, top, right, bottom; right and bottom lie outside."""

    left: float
    top: float
    right: float
    bottom: float

    def to_unit(self, size: Size) -> UnitBox:
        """The box in unit coordinates, clipped to the frame; ValueError if nothing of it is inside."""
        x0, x1 = (min(max(v / size.width, 0.0), 1.0) for v in (self.left, self.right))
        y0, y1 = (min(max(v / size.height, 0.0), 1.0) for v in (self.top, self.bottom))
        x0, y0, x1, y1 = round_unit(x0), round_unit(y0), round_unit(x1), round_unit(y1)
        if not (x0 < x1 and y0 < y1):
            raise ValueError(f"box {tuple(self)} has no area inside a frame of {size.width}x{size.height} pixels")
        return x0, y0, x1, y1

    def pixel_bounds(self, size: Size) -> tuple[int, int, int, int]:
        """The whole pixels that the box touches, clipped to the frame, never empty: `frame[top:bottom, left:right]`."""
        left = min(max(int(np.floor(self.left + 1e-6)), 0), size.width - 1)
        top = min(max(int(np.floor(self.top + 1e-6)), 0), size.height - 1)
        right = min(max(int(np.ceil(self.right - 1e-6)), left + 1), size.width)
        bottom = min(max(int(np.ceil(self.bottom - 1e-6)), top + 1), size.height)
        return left, top, right, bottom


def to_pixels(box_unit: UnitBox, size: Size) -> PixelBox:
    """A unit box in the pixels of a frame of this size."""
    x0, y0, x1, y1 = box_unit
    return PixelBox(x0 * size.width, y0 * size.height, x1 * size.width, y1 * size.height)


class Value(BaseModel):
    """A frozen value that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FootprintBase(Value):
    """The fields of every footprint: medium, label and score."""

    media: str = "Image_0"
    """Name of the medium in the query."""
    label: str = ""
    score: Score = 1.0


class Box(FootprintBase):
    """An upright rectangle on one frame."""

    kind: Literal["box"] = "box"
    frame: FrameNumber = 0
    x0: UnitCoordinate
    y0: UnitCoordinate
    x1: UnitCoordinate
    y1: UnitCoordinate

    @model_validator(mode="after")
    def _has_area(self) -> Self:
        if not (self.x0 < self.x1 and self.y0 < self.y1):
            raise ValueError(f"box [{self.x0}, {self.y0}, {self.x1}, {self.y1}] has no area: want x0 < x1 and y0 < y1")
        return self

    @property
    def box_unit(self) -> UnitBox:
        return self.x0, self.y0, self.x1, self.y1

    @property
    def area(self) -> float:
        """Share of the frame, 0 to 1."""
        return (self.x1 - self.x0) * (self.y1 - self.y0)


class Mask(FootprintBase):
    """A region of one frame as COCO run lengths over a grid of `width` x `height` cells, column by column."""

    kind: Literal["mask"] = "mask"
    frame: FrameNumber = 0
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    counts: str
    """COCO's compressed run lengths, as text."""

    @model_validator(mode="after")
    def _runs_fill_the_grid(self) -> Self:
        if self.width * self.height > MAX_MASK_CELLS:  # a few characters of run lengths may encode any number
            raise ValueError(f"a mask of {self.width}x{self.height} cells is too large: at most {MAX_MASK_CELLS}")
        total = int(self.runs.sum())
        if total != self.width * self.height:
            raise ValueError(f"mask runs cover {total} cells, the grid {self.width}x{self.height} has another number")
        return self

    @classmethod
    def from_array(cls, array: NDArray[np.bool_], **fields: object) -> Mask:
        """A mask from a (height, width) array of booleans."""
        height, width = array.shape
        counts = rle.to_text(rle.encode_mask(array))
        return cls.model_validate({"width": width, "height": height, "counts": counts, **fields})

    def __eq__(self, other: object) -> bool:
        """By the fields alone: pydantic would compare cached arrays too, which have no single truth value."""
        return isinstance(other, Mask) and all(getattr(self, k) == getattr(other, k) for k in type(self).model_fields)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, k) for k in type(self).model_fields))

    @cached_property
    def runs(self) -> rle.Runs:
        return rle.from_text(self.counts)

    @cached_property
    def array(self) -> NDArray[np.bool_]:
        """(height, width) booleans, read-only."""
        decoded = rle.decode_mask(self.runs, width=self.width, height=self.height)
        decoded.flags.writeable = False
        return decoded

    @property
    def area(self) -> float:
        """Share of the frame, 0 to 1."""
        return float(self.runs[1::2].sum()) / (self.width * self.height)

    @property
    def box_unit(self) -> UnitBox | None:
        """The smallest box around the mask; None where the mask is empty."""
        box = rle.bounding_box(self.runs, self.height)
        return PixelBox(*box).to_unit(Size(self.width, self.height)) if box else None


class TextSpan(FootprintBase):
    """A line of text with its four corners, clockwise from the text's own top left."""

    kind: Literal["text"] = "text"
    frame: FrameNumber = 0
    text: str
    quad: tuple[Point, Point, Point, Point]

    @property
    def box_unit(self) -> UnitBox:
        xs, ys = zip(*self.quad, strict=True)
        return min(xs), min(ys), max(xs), max(ys)


class Track(FootprintBase):
    """One object over frames: a box for each frame in which it is visible, in ascending order."""

    kind: Literal["track"] = "track"
    track_id: int = Field(ge=0, lt=2**31)
    frames: tuple[FrameNumber, ...] = Field(min_length=1)
    boxes: tuple[UnitBox, ...]

    @model_validator(mode="after")
    def _one_box_for_each_frame(self) -> Self:
        if len(self.frames) != len(self.boxes):
            raise ValueError(f"track has {len(self.frames)} frames and {len(self.boxes)} boxes: want one box a frame")
        if any(b <= a for a, b in zip(self.frames, self.frames[1:], strict=False)):
            raise ValueError("track frames must rise strictly")
        if any(not (x0 < x1 and y0 < y1) for x0, y0, x1, y1 in self.boxes):
            raise ValueError("track has a box without area: want x0 < x1 and y0 < y1")
        return self

    def box_at(self, frame: int) -> UnitBox | None:
        """The box on this frame, if the track has one."""
        return dict(zip(self.frames, self.boxes, strict=True)).get(frame)


class Span(FootprintBase):
    """A time span in seconds; `start_s` equals `end_s` for a single frame."""

    kind: Literal["span"] = "span"
    start_s: float = Field(ge=0.0)
    end_s: float = Field(ge=0.0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end_s < self.start_s:
            raise ValueError(f"span ends ({self.end_s} s) before it starts ({self.start_s} s)")
        return self

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


Footprint = Annotated[Box | Mask | Track | Span | TextSpan, Field(discriminator="kind")]
"""Evidence of a call: the union that traces keep, rewards compare and pages draw."""
