"""The tool interface: a small class with declared arguments that looks at a scene and returns an observation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from pixelis.core.errors import ToolError
from pixelis.core.geometry import Box, Footprint, Mask, Span, TextSpan, Track, UnitBox, Value, separate_edges, to_pixels
from pixelis.media import Medium, ViewRecipe
from pixelis.media.medium import Frame, frame_size
from pixelis.media.query import to_source
from pixelis.tools.results import Blob, ToolIdentity

ALIASES = {"READ": "OCR", "TEMPORAL": "TEMP", "CROP": "ZOOM"}
"""Other names that the paper itself uses for the same tools."""


def canonical_name(name: str) -> str:
    """A tool's name as written in traces."""
    upper = name.strip().upper()
    return ALIASES.get(upper, upper)


class ToolArgs(Value):
    """Arguments of a call. Unknown keys, NaN and strings in place of numbers are refused."""

    media: str | None = Field(default=None, description="Image_0, Video_1, View_0 …; the first one if left out")


class FrameArgs(ToolArgs):
    """Arguments of a call that looks at one frame."""

    frame: int | None = Field(default=None, ge=0, description="frame number, from 0; the first one if left out")
    time_s: float | None = Field(default=None, ge=0.0, description="the same by time, in seconds")

    @model_validator(mode="after")
    def _one_way_of_naming_the_frame(self) -> Self:
        if self.frame is not None and self.time_s is not None:
            raise ValueError("give frame or time_s, not both")
        return self


def require_area(box: UnitBox) -> UnitBox:
    """The box, if it has area; pydantic turns the error into an invalid call."""
    x0, y0, x1, y1 = box
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"box [{x0:g}, {y0:g}, {x1:g}, {y1:g}] has no area: want [x0, y0, x1, y1], x0 < x1, y0 < y1")
    return box


AreaBox = Annotated[UnitBox, AfterValidator(require_area)]
"""A unit box of a call: an empty one is an invalid call."""


class MaskArg(Value):
    """A mask as SEG returns it."""

    width: int = Field(gt=0)
    height: int = Field(gt=0)
    counts: str = Field(description="COCO's compressed run lengths")

    @model_validator(mode="after")
    def _is_a_mask(self) -> Self:
        if self.mask.box_unit is None:
            raise ValueError("the mask is empty")
        return self

    @cached_property
    def mask(self) -> Mask:
        return Mask(width=self.width, height=self.height, counts=self.counts)


class WorkLimits(Value):
    """Bounds on work. They apply before any deadline, so that results are the same on a slow machine."""

    track_frames: int = Field(default=240, gt=0)
    """Tracking horizon: frames examined in one TRK call (supp:failures_risk_coverage asks for a cap)."""
    track_fps: float = Field(default=12.5, gt=0.0)
    """TRK samples a clip at about this rate."""
    temp_frames: int = Field(default=96, gt=0)
    """Frames scored in one TEMP call."""
    ocr_side: int = Field(default=4096, gt=0)
    """A region longer than this is scaled down before it is read."""
    regions: int = Field(default=64, gt=0)
    """Masks or tracks returned by one call, and lines of text that the policy is shown."""


Perceive = Callable[[str, Callable[[], bytes]], bytes]
"""The per-frame perception cache: a key, and a function that computes the value on a miss."""


def no_cache(key: str, compute: Callable[[], bytes]) -> bytes:
    return compute()


@dataclass(frozen=True)
class Scene:
    """What one call may look at: one medium, in that medium's own coordinates."""

    medium: Medium
    name: str = "Image_0"
    """Canonical name of the source medium; footprints carry it."""
    recipe: ViewRecipe | None = None
    """How the medium was cut, if it is a view."""
    source: Medium | None = None
    """The medium that a view was cut from."""
    limits: WorkLimits = field(default_factory=WorkLimits)
    perceive: Perceive = no_cache

    def index(self, args: FrameArgs) -> int:
        """The frame that the arguments name; MediaError where it does not exist."""
        if args.time_s is not None:
            return self.medium.index_at(args.time_s)
        index = args.frame or 0
        self.medium.check_index(index)
        return index

    def frame(self, index: int) -> Frame:
        return self.medium.frame(index)

    def source_frame(self, index: int) -> Frame:
        """The full frame of the source medium, also for a view."""
        return self.source.frame(self.recipe.frame) if self.source and self.recipe else self.medium.frame(index)

    def to_source_unclipped(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """A box of the medium in the coordinates of its source, not clipped to the frame."""
        if self.recipe is None:
            return box
        x0, y0, x1, y1 = self.recipe.box
        width, height = x1 - x0, y1 - y0
        return x0 + box[0] * width, y0 + box[1] * height, x0 + box[2] * width, y0 + box[3] * height

    def require_clip(self, tool: str) -> None:
        if self.medium.kind != "clip":
            raise ToolError(f"{tool} needs a clip; {self.medium.describe()} is a still picture")

    def to_source_footprint(self, footprint: Any) -> Any:
        """A footprint in the coordinates and under the name of the query's own medium."""
        if self.recipe is None:
            return footprint.model_copy(update={"media": self.name})
        updates: dict[str, Any] = {"media": self.recipe.media}
        if isinstance(footprint, Box):
            x0, y0, x1, y1 = to_source(footprint.box_unit, self.recipe)
            (x0, x1), (y0, y1) = separate_edges(x0, x1), separate_edges(y0, y1)
            updates |= {"x0": x0, "y0": y0, "x1": x1, "y1": y1}
        if isinstance(footprint, TextSpan):
            corners = [to_source((x, y, x, y), self.recipe)[:2] for x, y in footprint.quad]
            updates["quad"] = tuple(corners)
        if isinstance(footprint, Box | TextSpan | Mask):
            updates["frame"] = self.recipe.frame
        if isinstance(footprint, Mask):
            return self._mask_on_source(footprint).model_copy(update=updates)
        if isinstance(footprint, Track | Span):
            raise ToolError("a view is a still picture: it has no tracks or spans")
        return footprint.model_copy(update=updates)

    def _mask_on_source(self, mask: Mask) -> Mask:
        """The mask on a grid over the whole source frame, at the view's resolution."""
        import cv2

        assert self.recipe is not None  # noqa: S101 - checked by to_source_footprint
        x0, y0, x1, y1 = self.recipe.box
        width = max(round(mask.width / (x1 - x0)), 1)
        height = max(round(mask.height / (y1 - y0)), 1)
        shrink = min(1.0, (4_000_000 / (width * height)) ** 0.5)
        width, height = max(round(width * shrink), 1), max(round(height * shrink), 1)
        left, top = round(x0 * width), round(y0 * height)
        right, bottom = max(round(x1 * width), left + 1), max(round(y1 * height), top + 1)
        resized = cv2.resize(mask.array.astype(np.uint8), (right - left, bottom - top), interpolation=cv2.INTER_NEAREST)
        grid = np.zeros((height, width), dtype=bool)
        grid[top:bottom, left:right] = resized[: height - top, : width - left].astype(bool)
        return Mask.from_array(grid, label=mask.label, score=mask.score)


@dataclass(frozen=True)
class Observation:
    """What a tool returns, in the coordinates of the medium that it looked at."""

    text: str
    output: Value
    footprints: tuple[Footprint, ...] = ()
    in_source_coordinates: bool = False
    """Whether the footprints already have the coordinates and the name of the source."""
    confidence: float | None = None
    blobs: tuple[Blob, ...] = ()
    view: ViewRecipe | None = None


A = TypeVar("A", bound=ToolArgs)


class Tool(ABC, Generic[A]):
    """Subclass, declare, and implement `look`. Raise ToolError or MediaError, with a sentence, if the call fails."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence, for the policy and for `pixelis tools list`."""
    Args: ClassVar[type[ToolArgs]]
    Output: ClassVar[type[Value]]
    version: ClassVar[str] = "1"
    """Increase it whenever the same call may give another result: caches and replays depend on it."""
    decisive_confidence: ClassVar[float] = 0.5
    """A step with less confidence is not decisive."""
    weights: ClassVar[tuple[str, ...]] = ()
    """Names of `pixelis models list` that the tool cannot do without; `pixelis tools run` pulls them."""
    deadline_s: ClassVar[float] = 120.0
    """Deadline of one call, a last resort: limits on work apply first."""

    @abstractmethod
    def look(self, args: A, scene: Scene) -> Observation:
        """Run the call on one medium."""

    def identity(self) -> ToolIdentity:
        """Cheap: it must not load a model."""
        return ToolIdentity(tool=self.name, version=self.version, backend="builtin")

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The tool in the OpenAI function format."""
        parameters = cls.Args.model_json_schema()
        parameters.pop("title", None)
        parameters.pop("description", None)
        function = {"name": cls.name, "description": cls.summary, "parameters": parameters}
        return {"type": "function", "function": function}


def coordinates(box: UnitBox) -> str:
    """A box as a policy reads it (subsec:sft: normalised coordinates at 10^-2)."""
    return "[" + ", ".join(f"{v:.2f}" for v in box) + "]"


def crop(frame: Frame, box_unit: UnitBox) -> tuple[Frame, UnitBox]:
    """The whole pixels under a unit box, and the unit box that they cover."""
    from pixelis.core.geometry import PixelBox

    size = frame_size(frame)
    left, top, right, bottom = to_pixels(box_unit, size).pixel_bounds(size)
    return frame[top:bottom, left:right], PixelBox(left, top, right, bottom).to_unit(size)
