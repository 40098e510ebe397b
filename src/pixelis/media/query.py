"""The media of one query by name: its own Image_0, Video_1, and View_0, View_1 … that ZOOM adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from PIL import Image as Pil
from pydantic import Field, model_validator

from pixelis.core.errors import MediaError
from pixelis.core.geometry import FrameNumber, PixelBox, Size, UnitBox, Value, round_unit, to_pixels
from pixelis.media.image import Image
from pixelis.media.medium import Frame, Medium, frame_size

MAX_VIEW_SIDE = 8192
"""Maximum side of a view in pixels: a recipe may come from an untrusted trace."""


class ViewRecipe(Value):
    """How a view is cut from a medium of the query: enough to reproduce it byte for byte."""

    media: str
    frame: FrameNumber
    box: UnitBox
    """The region of the view, in the unit coordinates of that medium."""
    width: int = Field(gt=0, le=MAX_VIEW_SIDE)
    height: int = Field(gt=0, le=MAX_VIEW_SIDE)
    """Size of the view in pixels."""

    @model_validator(mode="after")
    def _shows_something(self) -> Self:
        x0, y0, x1, y1 = self.box
        if not (x0 < x1 and y0 < y1):
            raise ValueError(f"a view of [{x0:g}, {y0:g}, {x1:g}, {y1:g}] shows nothing: want x0 < x1 and y0 < y1")
        return self


@dataclass(frozen=True)
class MediaSet:
    """The media of a query. Immutable: adding a view gives a new set."""

    sources: tuple[Medium, ...]
    views: tuple[ViewRecipe, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Image_i or Video_i by position for the sources, then View_k for the views."""
        source_names = tuple(f"{'Image' if m.kind == 'image' else 'Video'}_{i}" for i, m in enumerate(self.sources))
        return source_names + tuple(f"View_{k}" for k in range(len(self.views)))

    def with_view(self, recipe: ViewRecipe) -> MediaSet:
        return MediaSet(self.sources, (*self.views, recipe))

    def canonical_name(self, name: str | None) -> str:
        """The name as this set writes it; the first medium for None. MediaError for an unknown name."""
        if not self.sources:
            raise MediaError("the query has no media")
        if name is None:
            return self.names[0]
        for known_name in self.names:
            if known_name.lower() == name.strip().lower():
                return known_name
        raise MediaError(f"no medium is called {name!r}: this query has {', '.join(self.names)}")

    def source(self, name: str) -> Medium:
        """A source medium by its canonical name."""
        return self.sources[self.names.index(name)]

    def recipe(self, name: str) -> ViewRecipe | None:
        """The recipe of a view; None for a source medium."""
        return self.views[int(name.removeprefix("View_"))] if name.startswith("View_") else None

    def medium(self, name: str) -> Medium:
        """Any medium by its canonical name; a view is cut from its source."""
        recipe = self.recipe(name)
        return self.source(name) if recipe is None else cut_view(self.source(recipe.media), recipe)


@lru_cache(maxsize=4)  # each entry holds its source open
def cut_view(source: Medium, recipe: ViewRecipe) -> Image:
    """The view's pixels: the crop, resampled to the recipe's size (Lanczos, deterministic)."""
    return Image.from_array(resample(source.frame(recipe.frame), recipe.box, Size(recipe.width, recipe.height)))


def resample(frame: Frame, box_unit: UnitBox, size: Size) -> Frame:
    """A unit box of a frame at another size."""
    import numpy as np

    source_size = frame_size(frame)
    left, top, right, bottom = to_pixels(box_unit, source_size).pixel_bounds(source_size)
    crop = Pil.fromarray(np.asarray(frame[top:bottom, left:right]))
    return np.asarray(crop.resize(size, Pil.Resampling.LANCZOS) if crop.size != tuple(size) else crop)


def to_source(box_unit: UnitBox, recipe: ViewRecipe) -> UnitBox:
    """A box on a view, in the coordinates of the medium that the view was cut from."""
    x0, y0, x1, y1 = recipe.box
    left, top, right, bottom = to_pixels(box_unit, Size(1, 1))
    width, height = x1 - x0, y1 - y0
    box_px = PixelBox(x0 + left * width, y0 + top * height, x0 + right * width, y0 + bottom * height)
    return tuple(round_unit(min(max(v, 0.0), 1.0)) for v in box_px)  # type: ignore[return-value]
