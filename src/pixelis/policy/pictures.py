"""Pictures as a Qwen-VL tower takes them: scaled, cut into patches, in its order. No torchvision.

`Qwen2VLImageProcessorPil` of transformers is the reference that the tests hold this against.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil

from pixelis.media import Frame

THINNEST = 200
"""Longest side over the shortest: a thinner picture is widened to this."""


class Optics(NamedTuple):
    """What a vision tower expects."""

    patch: int = 16
    merge: int = 2
    """Patches along a side that become one token."""
    temporal: int = 2
    """Frames in one patch: a still picture is given twice."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    least_pixels: int = 1
    """A smaller picture is enlarged to this."""

    @property
    def cell(self) -> int:
        """Pixels along a side of one token."""
        return self.patch * self.merge


class Picture(NamedTuple):
    """A picture at the size in which the policy sees it."""

    name: str
    pixels: NDArray[np.uint8]
    """(height, width, 3), multiples of the cell."""
    rows: int
    """Tokens down."""
    columns: int
    """Tokens across."""

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


def fitted(width: int, height: int, most_pixels: int, cell: int, least_pixels: int = 1) -> tuple[int, int]:
    """Rows and columns of tokens: the picture's shape as nearly as whole cells allow, within the budget."""
    width, height = max(width, -(-height // THINNEST)), max(height, -(-width // THINNEST))
    rows, columns = max(round(height / cell), 1), max(round(width / cell), 1)
    if rows * columns * cell * cell > most_pixels:
        shrink = (height * width / most_pixels) ** 0.5
        rows, columns = max(int(height / shrink / cell), 1), max(int(width / shrink / cell), 1)
        cells = max(most_pixels // (cell * cell), 1)
        rows, columns = min(rows, cells), min(columns, cells)  # a strip of one cell's height
    elif rows * columns * cell * cell < least_pixels:
        grow = (least_pixels / (height * width)) ** 0.5
        rows, columns = math.ceil(height * grow / cell), math.ceil(width * grow / cell)
    return rows, columns


def seen(name: str, frame: Frame, most_pixels: int, optics: Optics) -> Picture:
    """A frame as the policy will see it."""
    rows, columns = fitted(frame.shape[1], frame.shape[0], most_pixels, optics.cell, optics.least_pixels)
    size = columns * optics.cell, rows * optics.cell
    image = Pil.fromarray(np.asarray(frame))
    scaled = image if image.size == size else image.resize(size, Pil.Resampling.BICUBIC)
    return Picture(name, np.asarray(scaled, dtype=np.uint8), rows, columns)


def patches(picture: Picture, optics: Optics) -> NDArray[np.float32]:
    """(patches, 3·temporal·patch²): normalised, in the tower's order, the four patches of a token together."""
    scale = np.asarray(optics.std, dtype=np.float32) * 255.0
    shift = np.asarray(optics.mean, dtype=np.float32) * 255.0
    values = (picture.pixels.astype(np.float32) - shift) / scale  # (H, W, 3)
    p, m = optics.patch, optics.merge
    cut = values.reshape(picture.rows, m, p, picture.columns, m, p, 3)
    cut = cut.transpose(0, 3, 1, 4, 6, 2, 5)  # (rows, columns, m, m, 3, p, p)
    flat = cut.reshape(picture.tokens * m * m, 3, 1, p, p)
    doubled = np.repeat(flat, optics.temporal, axis=2)  # a still picture fills both frames of a patch
    return np.ascontiguousarray(doubled.reshape(len(flat), -1))
