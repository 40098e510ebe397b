"""Classical region segmentation with OpenCV: milliseconds, no weights, exact on drawn things."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import PixelBox
from pixelis.media.medium import Frame, frame_size
from pixelis.tools.vision.colours import colour_mask
from pixelis.tools.vision.shapes import classify_shape, segment_figure

MIN_REGION_SHARE = 0.0002
"""A smaller region, as a share of the frame, is noise."""
MAX_REGION_SHARE = 0.5
"""A region around a click that fills more than half of the frame has leaked into the background."""
TOLERANCES = (6, 10, 16, 24, 34, 46)
"""Steps of colour distance (of 255) tried around a click."""

Grid = NDArray[np.bool_]


class RegionMask(NamedTuple):
    """A mask with its confidence, 0 to 1."""

    mask: Grid
    score: float
    label: str = ""
    """The name of what it shows, where that is known."""


def find_regions(image: Frame, colours: tuple[str, ...], shape: str | None, max_regions: int) -> list[RegionMask]:
    """Regions of a colour, or of any colour if none is named, and of a shape if one is."""
    if colours:
        return find_by_colour(image, colours, shape, max_regions)
    return find_by_contrast(image, shape, max_regions)


def find_by_colour(image: Frame, colours: tuple[str, ...], shape: str | None, max_regions: int) -> list[RegionMask]:
    """Connected regions of a colour (any of several) and, if named, of a shape; largest first."""
    smooth = cv2.medianBlur(image, 3)
    member = np.zeros(image.shape[:2], dtype=np.uint8)
    for colour in colours:
        member |= colour_mask(smooth, colour).astype(np.uint8)
    return _connected_regions(member, shape, max_regions)


def find_by_contrast(image: Frame, shape: str | None, max_regions: int) -> list[RegionMask]:
    """Regions that stand out from the background, for a phrase that names a shape and no colour."""
    lab = cv2.cvtColor(cv2.medianBlur(image, 3), cv2.COLOR_RGB2LAB).astype(np.int16)
    edge = np.concatenate([lab[0], lab[-1], lab[:, 0], lab[:, -1]])
    distance = np.abs(lab - np.median(edge, axis=0)).sum(axis=2)
    clipped = np.minimum(distance, 255).astype(np.uint8)
    threshold, _ = cv2.threshold(clipped, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    return _connected_regions((distance > max(threshold, 18)).astype(np.uint8), shape, max_regions)


def _connected_regions(member: NDArray[np.uint8], shape: str | None, max_regions: int) -> list[RegionMask]:
    _, labels, stats, _ = cv2.connectedComponentsWithStats(member, connectivity=8)
    areas = stats[1:, cv2.CC_STAT_AREA]
    order = np.argsort(-areas, kind="stable") + 1
    min_area = max(MIN_REGION_SHARE * member.size, 12)
    regions: list[RegionMask] = []
    for label in order[: max(max_regions * 4, 64)]:
        if stats[label, cv2.CC_STAT_AREA] < min_area:
            break
        left, top, width, height = stats[label, : cv2.CC_STAT_AREA]
        component = labels[top : top + height, left : left + width] == label
        score = _solidity(component)
        if shape is not None:
            match = classify_shape(component)
            if match.name != shape:
                continue
            score = match.score
        mask = np.zeros(member.shape, dtype=bool)
        mask[top : top + height, left : left + width] = _fill_specks(component)
        regions.append(RegionMask(mask, score))
        if len(regions) == max_regions:
            break
    return regions


def _fill_specks(component: Grid) -> Grid:
    """Fill specks inside a region; holes of over a fiftieth of it remain."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats((~np.pad(component, 1)).astype(np.uint8), connectivity=4)
    small = stats[:, cv2.CC_STAT_AREA] < 0.02 * np.count_nonzero(component)
    return component | small[labels][1:-1, 1:-1] if count > 2 and small.any() else component


def _solidity(component: Grid) -> float:
    """Share of its convex hull that a region fills: ragged texture scores low."""
    contours, _ = cv2.findContours(component.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    hull = cv2.contourArea(cv2.convexHull(np.concatenate(contours)))
    return float(np.clip(component.sum() / max(hull, 1.0), 0.0, 1.0))


def segment_at_point(image: Frame, x: int, y: int) -> RegionMask | None:
    """The region around a click: among growing tolerances, the one that changes least to the next.

    Flat objects are filled exactly. If that leaks into the background, edges become walls.
    """
    smooth = cv2.medianBlur(image, 3)
    lab = cv2.cvtColor(smooth, cv2.COLOR_RGB2LAB)
    walls = np.zeros(lab.shape[:2], dtype=np.uint8)
    best = _most_stable([_flood_fill(lab, x, y, tolerance, walls) for tolerance in TOLERANCES])
    if best is None or best.score < 0.95:
        walls = cv2.Canny(cv2.GaussianBlur(smooth, (5, 5), 0), 20, 60)
        walls[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = 0
        masks = [_flood_fill(lab, x, y, tolerance, walls) for tolerance in TOLERANCES]
        bounded = _most_stable([cv2.dilate(g.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0 for g in masks])
        best = max((r for r in (best, bounded) if r), key=lambda r: r.score, default=None)
    return best


def _most_stable(masks: list[Grid]) -> RegionMask | None:
    best: RegionMask | None = None
    for inner, outer in pairwise(masks):
        area = int(inner.sum())
        if area < 12 or area > MAX_REGION_SHARE * inner.size:
            continue
        stability = area / int(outer.sum())
        if best is None or stability > best.score + 0.02:
            best = RegionMask(inner, stability)
    return best._replace(mask=_fill_specks(best.mask)) if best else None


def _flood_fill(lab: NDArray[np.uint8], x: int, y: int, tolerance: int, walls: NDArray[np.uint8]) -> Grid:
    mask = np.pad(np.minimum(walls, 1), 1)
    flags = 4 | (255 << 8) | cv2.FLOODFILL_MASK_ONLY | cv2.FLOODFILL_FIXED_RANGE
    reach = (tolerance * 2, tolerance, tolerance)  # light varies more over an object than hue
    cv2.floodFill(lab, mask, (x, y), 0, reach, reach, flags)
    return mask[1:-1, 1:-1] == 255


def segment_in_box(image: Frame, box: PixelBox) -> RegionMask | None:
    """The object in a box, without its background; None if the two cannot be separated."""
    left, top, right, bottom = box.pixel_bounds(frame_size(image))
    figure = segment_figure(image, (left, top, right, bottom))
    if figure is None or figure.mean() < 0.15:
        return None  # the box holds several objects, or darkness: the rest is not what was meant
    mask = np.zeros(image.shape[:2], dtype=bool)
    mask[top:bottom, left:right] = figure
    return RegionMask(mask, float(np.clip(0.35 + min(figure.mean(), 0.6), 0.0, 0.95)))
