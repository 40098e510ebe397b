"""Painting: sprites with light, rim and pattern, text, shadows, and which thing is visible where.

All blending is in integers. A `RasterCanvas` records for every pixel which thing is on top, so that the masks of partly
hidden things are exact too.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pixelis.core import rle
from pixelis.core.geometry import Mask, PixelBox, Size, TextSpan, round_unit
from pixelis.world.figure_outlines import place_outline
from pixelis.world.lettering import Ink, render_text
from pixelis.world.palette import DARKEST, LIGHTEST, Rgb, apply_light

Pixels = NDArray[np.uint8]
Alpha = NDArray[np.uint8]
Style = str
"""`flat`, `lit`, `rim`; patterns are `plain`, `striped`, `checkered`."""


class Sprite(NamedTuple):
    """The paint (height, width, 3) and the coverage (height, width) of a thing."""

    rgb: Pixels
    alpha: Alpha

    @property
    def size(self) -> Size:
        return Size(self.alpha.shape[1], self.alpha.shape[0])


def figure_sprite(
    figure: str, colour: Rgb, radius: float, *, turn: float = 0.0, style: Style = "lit", pattern: str = "plain"
) -> Sprite:
    """A painted figure or icon, cropped to its extent."""
    polygons = place_outline(figure, radius, turn)
    corners = np.concatenate(polygons)
    low, high = corners.min(axis=0) // 256 - 1, -(-corners.max(axis=0) // 256) + 2
    width, height = (int(v) for v in high - low)
    alpha = np.zeros((height, width), dtype=np.uint8)
    shifted = [polygon - (low * 256).astype(np.int32) for polygon in polygons]
    cv2.fillPoly(alpha, shifted, 255, lineType=cv2.LINE_AA, shift=8)
    rgb = _surface(colour, width, height, style, pattern, radius)
    if style == "rim":
        edge = np.zeros_like(alpha)
        cv2.polylines(edge, shifted, True, 255, max(round(radius / 10), 1), cv2.LINE_AA, shift=8)
        rgb[edge > 127] = apply_light(colour, DARKEST)
    return Sprite(rgb, alpha)


def _surface(colour: Rgb, width: int, height: int, style: Style, pattern: str, radius: float) -> Pixels:
    """The paint over a box: evenly lit, lit from above, or in two shades of the same colour name."""
    light = np.linspace(LIGHTEST, DARKEST + 8, height) if style == "lit" else np.full(height, 256.0)
    base = np.array(colour, dtype=np.int64)[None, :] * light.astype(np.int64)[:, None]
    rgb = np.minimum(base // 256, 255).astype(np.uint8)
    rgb = np.repeat(rgb[:, None], width, axis=1)
    if pattern != "plain":
        period = max(round(radius / 4), 3)
        y, x = np.arange(height)[:, None], np.arange(width)[None, :]
        stripes = (x // period) % 2 if pattern == "striped" else (x // period + y // period) % 2
        dark = np.broadcast_to(stripes.astype(bool), (height, width))
        rgb[dark] = (rgb[dark].astype(np.uint16) * PATTERN_LIGHT // 256).astype(np.uint8)
    return rgb


PATTERN_LIGHT = 176
"""The dark shade of a pattern, of 256; paints of patterned things keep their colour name in it."""


def panel_sprite(width: int, height: int, colour: Rgb, *, corner: int = 4, style: Style = "lit") -> Sprite:
    """A panel with rounded corners, for text."""
    return Sprite(_surface(colour, width, height, style, "plain", 8), rounded_corners(width, height, corner))


def sheet_sprite(pixels: Pixels) -> Sprite:
    """A textured sheet with slightly rounded corners."""
    return Sprite(pixels, rounded_corners(pixels.shape[1], pixels.shape[0], 3))


def rounded_corners(width: int, height: int, corner: int) -> Alpha:
    """The coverage of a rectangle with rounded corners."""
    alpha = np.zeros((height, width), dtype=np.uint8)
    cv2.rectangle(alpha, (corner, 0), (width - 1 - corner, height - 1), 255, -1)
    cv2.rectangle(alpha, (0, corner), (width - 1, height - 1 - corner), 255, -1)
    for x in (corner, width - 1 - corner):
        for y in (corner, height - 1 - corner):
            cv2.circle(alpha, (x, y), corner, 255, -1, cv2.LINE_AA)
    return alpha


def blend(pixels: Pixels, rgb: Pixels | Rgb, alpha: Alpha, left: int, top: int) -> tuple[slice, slice, Alpha] | None:
    """Paint over pixels in place, clipped to the frame. Returns the painted area, or None if nothing is inside."""
    height, width = alpha.shape
    y0, x0 = max(top, 0), max(left, 0)
    y1, x1 = min(top + height, pixels.shape[0]), min(left + width, pixels.shape[1])
    if y0 >= y1 or x0 >= x1:
        return None
    cut = (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
    into = (slice(y0, y1), slice(x0, x1))
    cover = alpha[cut].astype(np.uint16)[:, :, None]
    source = np.asarray(rgb, dtype=np.uint16) if isinstance(rgb, tuple) else rgb[cut].astype(np.uint16)
    weighted_sum = source * cover + pixels[into].astype(np.uint16) * (255 - cover) + 127
    pixels[into] = (weighted_sum // 255).astype(np.uint8)
    return into[0], into[1], alpha[cut]


class RasterCanvas:
    """A picture under construction, with the owner of each pixel (0 is the ground)."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = np.ascontiguousarray(pixels).copy()
        self.size = Size(pixels.shape[1], pixels.shape[0])
        self.owner = np.zeros(pixels.shape[:2], dtype=np.int16)
        self.owner_count = 0

    def paste(self, sprite: Sprite, left: int, top: int, *, shadow: int = 0) -> int:
        """Paste a sprite on top; returns its number as an owner."""
        if shadow:
            self.add_shadow(sprite.alpha, left + shadow, top + shadow, shadow)
        self.owner_count += 1
        painted_area = blend(self.pixels, sprite.rgb, sprite.alpha, left, top)
        if painted_area is not None:
            rows, columns, alpha = painted_area
            self.owner[rows, columns][alpha > 127] = self.owner_count
        return self.owner_count

    def add_shadow(self, alpha: Alpha, left: int, top: int, soft: int) -> None:
        """A soft shadow, which takes a third of the light."""
        margin = 2 * soft
        wide = cv2.copyMakeBorder(alpha, margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=0)
        wide = cv2.GaussianBlur(wide, (2 * soft + 1, 2 * soft + 1), 0)
        cover = (wide.astype(np.uint16) * 80 // 256).astype(np.uint8)
        blend(self.pixels, (0, 0, 0), cover, left - margin, top - margin)

    def draw_text(self, text: str, font: str, px: int, colour: Rgb, left: int, top: int, **fields: object) -> TextSpan:
        """Draw text with the top left corner of its ink at a place."""
        return self.draw_ink(render_text(text, font, px), text, colour, left, top, **fields)

    def draw_ink(self, ink: Ink, text: str, colour: Rgb, left: int, top: int, **fields: object) -> TextSpan:
        blend(self.pixels, colour, ink.alpha, left, top)
        return make_text_span(text, (left, top, left + ink.width, top + ink.height), self.size, **fields)

    def visible_mask(self, owner: int, box: tuple[int, int, int, int], **fields: object) -> Mask | None:
        """The visible part of a thing, searched for in a pixel box; None if it is hidden."""
        left, top = max(box[0], 0), max(box[1], 0)
        patch = self.owner[top : box[3], left : box[2]] == owner
        return make_mask(patch, left, top, self.size, **fields) if patch.any() else None


def make_text_span(text: str, box: tuple[int, int, int, int], size: Size, **fields: object) -> TextSpan:
    """A line of text over a box of pixels."""
    x0, y0, x1, y1 = PixelBox(*box).to_unit(size)
    return TextSpan.model_validate({"text": text, "quad": ((x0, y0), (x1, y0), (x1, y1), (x0, y1)), **fields})


def make_mask(patch: NDArray[np.bool_], left: int, top: int, size: Size, **fields: object) -> Mask:
    """A mask of the whole frame from the patch that is not empty."""
    height, width = patch.shape
    padded = np.zeros((height + 2, width), dtype=np.int8)
    padded[1:-1] = patch
    columns, rows = np.nonzero(np.diff(padded, axis=0).T)  # column by column, starts and ends by turns
    edges = (columns + left) * size.height + rows + top
    edges = np.concatenate([[0], edges, [size.width * size.height]])
    runs = np.diff(edges)
    run_lengths: list[int] = runs.tolist()
    while 0 in run_lengths[1:-1]:  # a run to the foot of one column goes on at the head of the next
        k = run_lengths.index(0, 1)
        run_lengths[k - 1 : k + 2] = [run_lengths[k - 1] + run_lengths[k + 1]]
    counts = rle.to_text(np.array(run_lengths))
    # built, not validated: the runs fill the grid by construction, and reading them again costs more than the painting
    return Mask.model_construct(width=size.width, height=size.height, counts=counts, **fields)  # type: ignore[arg-type]


def to_unit_box(box: tuple[int, int, int, int], size: Size) -> tuple[float, float, float, float]:
    """A pixel box in unit coordinates, clipped to the frame."""
    return PixelBox(*box).to_unit(size)


def sample_slant(rng: Generator, figure: str, max_degrees: float) -> float:
    """Draw a slant for a figure; 0 for figures that would become another one or do not show it."""
    if figure in ("square", "diamond", "cross", "circle", "ring", "rectangle", "ellipse"):
        return 0.0
    return round_unit(float(rng.uniform(-max_degrees, max_degrees)))
