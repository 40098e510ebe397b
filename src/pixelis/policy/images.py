"""Image preprocessing for a Qwen-VL tower: scaled, cut into patches, in its order. No torchvision.

Tests compare it with `Qwen2VLImageProcessorPil` of transformers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil

from pixelis.media import Frame

MAX_ASPECT_RATIO = 200
"""Longest side over shortest: a thinner image is widened to this."""


class ImageProcessorConfig(NamedTuple):
    """What a vision tower expects."""

    patch: int = 16
    merge: int = 2
    """Patches along a side that become one token."""
    temporal: int = 2
    """Frames in one patch: a still image is repeated."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    least_pixels: int = 1
    """A smaller image is enlarged to this."""

    @property
    def cell(self) -> int:
        """Pixels along a side of one token."""
        return self.patch * self.merge


class ProcessedImage(NamedTuple):
    """An image at the size at which the policy sees it."""

    name: str
    pixels: NDArray[np.uint8]
    """(height, width, 3), multiples of the cell."""
    rows: int
    columns: int
    """Of tokens."""

    @property
    def token_count(self) -> int:
        return self.rows * self.columns


def fit_token_grid(width: int, height: int, max_pixels: int, cell: int, min_pixels: int = 1) -> tuple[int, int]:
    """Rows and columns of tokens: the image's shape as nearly as whole cells allow, within the budget."""
    width, height = max(width, -(-height // MAX_ASPECT_RATIO)), max(height, -(-width // MAX_ASPECT_RATIO))
    rows, columns = max(round(height / cell), 1), max(round(width / cell), 1)
    if rows * columns * cell * cell > max_pixels:
        shrink = (height * width / max_pixels) ** 0.5
        rows, columns = max(int(height / shrink / cell), 1), max(int(width / shrink / cell), 1)
        cells = max(max_pixels // (cell * cell), 1)
        rows, columns = min(rows, cells), min(columns, cells)  # a strip one cell high or wide
    elif rows * columns * cell * cell < min_pixels:
        grow = (min_pixels / (height * width)) ** 0.5
        rows, columns = math.ceil(height * grow / cell), math.ceil(width * grow / cell)
    return rows, columns


def preprocess(name: str, frame: Frame, max_pixels: int, image_config: ImageProcessorConfig) -> ProcessedImage:
    """A frame as the policy sees it."""
    height, width, _ = frame.shape
    rows, columns = fit_token_grid(width, height, max_pixels, image_config.cell, image_config.least_pixels)
    size = columns * image_config.cell, rows * image_config.cell
    image = Pil.fromarray(np.asarray(frame))
    scaled = image if image.size == size else image.resize(size, Pil.Resampling.BICUBIC)
    return ProcessedImage(name, np.asarray(scaled, dtype=np.uint8), rows, columns)


def extract_patches(image: ProcessedImage, image_config: ImageProcessorConfig) -> NDArray[np.float32]:
    """(patches, 3·temporal·patch²), normalised, in the tower's order: the patches of a token together."""
    scale = np.asarray(image_config.std, dtype=np.float32) * 255.0
    shift = np.asarray(image_config.mean, dtype=np.float32) * 255.0
    values = (image.pixels.astype(np.float32) - shift) / scale  # (H, W, 3)
    p, m = image_config.patch, image_config.merge
    grid = values.reshape(image.rows, m, p, image.columns, m, p, 3)
    grid = grid.transpose(0, 3, 1, 4, 6, 2, 5)  # (rows, columns, m, m, 3, p, p)
    flat = grid.reshape(image.token_count * m * m, 3, 1, p, p)
    doubled = np.repeat(flat, image_config.temporal, axis=2)  # a still image fills both frames of a patch
    return np.ascontiguousarray(doubled.reshape(len(flat), -1))
