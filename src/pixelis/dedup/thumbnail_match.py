"""A test of one millisecond whether one picture could be a part of the other.

With 108,000 media, one pair in a thousand is still a hundred pairs per picture. Before a file is opened again,
thumbnails of 32 pixels are matched at the scales of a crop; this rejects unrelated pictures with similar embeddings.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.media import Frame

THUMBNAIL_SIDE = 32
CROP_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Width or height of a crop as a share of the original."""

STOP_CORRELATION = 0.85
"""Correlation at which the search ends."""

Thumbnail = NDArray[np.uint8]
"""(32, 32) grey, the whole picture resized."""


def make_thumbnail(frame: Frame) -> Thumbnail:
    """The thumbnail of a colour or grey picture."""
    resized = cv2.resize(frame, (THUMBNAIL_SIDE, THUMBNAIL_SIDE), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(resized, cv2.COLOR_RGB2GRAY) if frame.ndim == 3 else resized
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), 1.2))  # tolerates a shift of half a pixel


class ThumbnailMatch(NamedTuple):
    """The position of one picture within the other, in shares of the other's width and height."""

    score: float
    """Correlation in [-1, 1]."""
    left: float
    top: float
    width: float
    height: float
    second_is_crop: bool


def match_thumbnails(a: Thumbnail, b: Thumbnail, *, stop_at: float = 1.0) -> ThumbnailMatch:
    """The best match of one as a part of the other; a score above `stop_at` ends the search."""
    best = ThumbnailMatch(-1.0, 0.0, 0.0, 1.0, 1.0, True)
    for scale_x, scale_y in product(CROP_SCALES, CROP_SCALES):
        if not 0.85 < scale_x / scale_y < 1.18:  # a crop of one side only still passes
            continue
        size = round(THUMBNAIL_SIDE * scale_x), round(THUMBNAIL_SIDE * scale_y)
        for image, crop, second_is_crop in ((a, b, True), (b, a, False)):
            resized = cv2.resize(crop, size, interpolation=cv2.INTER_AREA)
            _, score, _, (x, y) = cv2.minMaxLoc(cv2.matchTemplate(image, resized, cv2.TM_CCOEFF_NORMED))
            if score > best.score:
                left, top, width, height = (pixels / THUMBNAIL_SIDE for pixels in (x, y, *size))
                best = ThumbnailMatch(score, left, top, width, height, second_is_crop)
        if best.score > stop_at:
            break
    return best


def thumbnail_correlation(a: Thumbnail, b: Thumbnail) -> float:
    """The best correlation of one as a part of the other, in [-1, 1]; 1 if one is flat and says nothing."""
    if min(int(np.ptp(a)), int(np.ptp(b))) < 8:
        return 1.0
    return match_thumbnails(a, b, stop_at=STOP_CORRELATION).score
