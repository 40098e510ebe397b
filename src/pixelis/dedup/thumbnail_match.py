"""A look that costs a millisecond: could one picture be a part of the other?

At 108,000 media even one pair in a thousand is a hundred a picture. Before anything is opened again, thumbnails of 32
pixels are slid over each other at the scales of a crop; unrelated pictures that an embedding takes for kin end here.
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
"""(32, 32) grey, the whole picture squeezed in."""


def make_thumbnail(frame: Frame) -> Thumbnail:
    """Of a picture in colour or in grey."""
    resized = cv2.resize(frame, (THUMBNAIL_SIDE, THUMBNAIL_SIDE), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(resized, cv2.COLOR_RGB2GRAY) if frame.ndim == 3 else resized
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), 1.2))  # half a pixel's shift must not matter


class ThumbnailMatch(NamedTuple):
    """Where one picture lies in the other, in shares of the other's width and height."""

    score: float
    """Correlation in [-1, 1]."""
    left: float
    top: float
    width: float
    height: float
    second_is_crop: bool


def match_thumbnails(a: Thumbnail, b: Thumbnail, *, stop_at: float = 1.0) -> ThumbnailMatch:
    """The best way to see one as a part of the other; `enough` ends the search."""
    best = ThumbnailMatch(-1.0, 0.0, 0.0, 1.0, 1.0, True)
    for scale_x, scale_y in product(CROP_SCALES, CROP_SCALES):
        if not 0.85 < scale_x / scale_y < 1.18:  # a crop of one side only still passes
            continue
        size = round(THUMBNAIL_SIDE * scale_x), round(THUMBNAIL_SIDE * scale_y)
        for image, crop, second_is_crop in ((a, b, True), (b, a, False)):
            resized = cv2.resize(crop, size, interpolation=cv2.INTER_AREA)
            _, score, _, (x, y) = cv2.minMaxLoc(cv2.matchTemplate(image, resized, cv2.TM_CCOEFF_NORMED))
            if score > best.score:
                best = ThumbnailMatch(
                    score,
                    x / THUMBNAIL_SIDE,
                    y / THUMBNAIL_SIDE,
                    size[0] / THUMBNAIL_SIDE,
                    size[1] / THUMBNAIL_SIDE,
                    second_is_crop,
                )
        if best.score > stop_at:
            break
    return best


def thumbnail_correlation(a: Thumbnail, b: Thumbnail) -> float:
    """The best correlation of one as a part of the other, in [-1, 1]; 1 where a flat one says nothing."""
    if min(int(np.ptp(a)), int(np.ptp(b))) < 8:
        return 1.0
    return match_thumbnails(a, b, stop_at=STOP_CORRELATION).score
