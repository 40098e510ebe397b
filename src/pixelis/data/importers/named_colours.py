"""The colour of a thing in a photograph as an annotator would name it: the median of its pixels in CIELAB.

It is independent of the colour table of SEG and PROP, so that a reference does not repeat a tool. A colour on which
people would disagree has no name.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

ANCHORS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((200, 30, 35), (150, 20, 25), (120, 25, 30)),
    "orange": ((240, 130, 30), (215, 110, 40)),
    "yellow": ((240, 215, 50), (205, 175, 50)),
    "green": ((70, 200, 85), (50, 140, 60), (35, 85, 45), (120, 160, 70), (80, 105, 55)),
    "cyan": ((60, 185, 190),),
    "blue": ((40, 80, 180), (30, 50, 110), (90, 140, 205)),
    "purple": ((115, 55, 150), (150, 80, 200)),
    "pink": ((235, 140, 170), (235, 85, 150)),
    "brown": ((115, 75, 45), (80, 55, 35), (150, 100, 65)),
    "beige": ((220, 200, 165),),
    "white": ((245, 245, 245), (215, 217, 220)),
    "grey": ((150, 150, 152), (110, 110, 112), (75, 76, 78)),
    "black": ((15, 15, 17), (38, 38, 40)),
}
"""Typical colours of a name, in sRGB: bright, in shade, faded."""
MAX_DISTANCE_RATIO = 0.7
"""The nearest name's distance must be under this share of the second's."""
MAX_DISTANCE = 26.0
"""Further from every anchor than this (CIELAB units) a colour has no name."""
MIN_SHARE = 0.45
"""Minimum share of pixels that have this name individually."""
GREY_LIGHTNESS = {"white": (80.0, 100.0), "grey": (38.0, 60.0), "black": (0.0, 20.0)}
"""Lightness range in which people agree: a white thing in shade is grey only to a camera."""
MIN_PIXELS = 150


def _to_lab(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(N, 3) of sRGB to (N, 3) of CIELAB."""
    scaled = pixels.reshape(1, -1, 3).astype(np.float32) / np.float32(255)
    return np.asarray(cv2.cvtColor(scaled, cv2.COLOR_RGB2LAB), dtype=np.float32)[0]


ANCHOR_NAMES = tuple(name for name, anchors in ANCHORS.items() for _ in anchors)
ANCHOR_LAB = _to_lab(np.array([rgb for anchors in ANCHORS.values() for rgb in anchors], dtype=np.uint8))


def name_colour(pixels: NDArray[np.uint8]) -> str | None:
    """The everyday colour name of the (N, 3) pixels of one thing; None if it is unclear."""
    if len(pixels) < MIN_PIXELS:
        return None
    lab = _to_lab(pixels[:: max(len(pixels) // 4000, 1)])
    distances = np.linalg.norm(ANCHOR_LAB - np.median(lab, axis=0), axis=1)  # (A,)
    nearest = {name: min(d for n, d in zip(ANCHOR_NAMES, distances, strict=True) if n == name) for name in ANCHORS}
    first, second = sorted(nearest, key=lambda name: nearest[name])[:2]
    nearest_anchor = np.linalg.norm(lab[:, None] - ANCHOR_LAB[None], axis=2).argmin(axis=1)  # (N,)
    share = float(np.mean([ANCHOR_NAMES[k] == first for k in nearest_anchor]))
    if first in GREY_LIGHTNESS:
        low, high = GREY_LIGHTNESS[first]
        return first if low <= float(np.median(lab[:, 0])) <= high and share >= MIN_SHARE else None
    is_clear = (
        nearest[first] < MAX_DISTANCE and nearest[first] < MAX_DISTANCE_RATIO * nearest[second] and share >= MIN_SHARE
    )
    return first if is_clear else None
