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

SIDE = 32
SCALES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Width or height of a crop as a share of the original."""

ENOUGH = 0.85
"""Correlation at which the search ends."""

Thumbnail = NDArray[np.uint8]
"""(32, 32) grey, the whole picture squeezed in."""


def thumbnail_of(frame: Frame) -> Thumbnail:
    """Of a picture in colour or in grey."""
    small = cv2.resize(frame, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY) if frame.ndim == 3 else small
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), 1.2))  # half a pixel's shift must not matter


class Place(NamedTuple):
    """Where one picture lies in the other, in shares of the other's width and height."""

    score: float
    """Correlation in [-1, 1]."""
    left: float
    top: float
    wide: float
    high: float
    part_is_second: bool


def place(a: Thumbnail, b: Thumbnail, *, enough: float = 1.0) -> Place:
    """The best way to see one as a part of the other; `enough` ends the search."""
    best = Place(-1.0, 0.0, 0.0, 1.0, 1.0, True)
    for wide, high in product(SCALES, SCALES):
        if not 0.85 < wide / high < 1.18:  # a crop of one side only still passes
            continue
        size = round(SIDE * wide), round(SIDE * high)
        for whole, part, second in ((a, b, True), (b, a, False)):
            small = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
            _, score, _, (x, y) = cv2.minMaxLoc(cv2.matchTemplate(whole, small, cv2.TM_CCOEFF_NORMED))
            if score > best.score:
                best = Place(score, x / SIDE, y / SIDE, size[0] / SIDE, size[1] / SIDE, second)
        if best.score > enough:
            break
    return best


def fit(a: Thumbnail, b: Thumbnail) -> float:
    """The best correlation of one as a part of the other, in [-1, 1]; 1 where a flat one says nothing."""
    if min(int(np.ptp(a)), int(np.ptp(b))) < 8:
        return 1.0
    return place(a, b, enough=ENOUGH).score
