"""Agreement of regions: IoU of boxes and masks, Dice, and DAVIS's region (J) and boundary (F) measures.

Boxes are `x0, y0, x1, y1` in any one frame of reference, unit or pixels: IoU does not change with the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pycocotools import mask as coco

from pixelis.core.geometry import Mask

BOUNDARY_TOLERANCE = 0.008
"""DAVIS: boundaries match within 0.8 % of the image diagonal, rounded up to whole pixels."""


class DavisScores(NamedTuple):
    """DAVIS measures of one object over frames, each in [0, 1]."""

    j_mean: float
    """Region similarity: mean mask IoU."""
    j_recall: float
    """Share of frames with J above 0.5."""
    f_mean: float
    """Contour accuracy: mean boundary F1."""
    f_recall: float
    """Share of frames with F above 0.5."""
    j: tuple[float, ...]
    f: tuple[float, ...]

    @property
    def j_and_f(self) -> float:
        return (self.j_mean + self.f_mean) / 2


def box_iou_matrix(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """IoU of every box of `a` with every box of `b`, in [0, 1].

    A box without area (or with its corners swapped) has IoU 0 with everything, itself included. Without boxes on one
    side the matrix has no rows or no columns.
    """
    a, b = _boxes(a), _boxes(b)  # (N, 4), (M, 4)
    width = np.minimum(a[:, None, 2], b[None, :, 2]) - np.maximum(a[:, None, 0], b[None, :, 0])  # (N, M)
    height = np.minimum(a[:, None, 3], b[None, :, 3]) - np.maximum(a[:, None, 1], b[None, :, 1])  # (N, M)
    intersection = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    areas_a, areas_b = _areas(a), _areas(b)  # (N,), (M,)
    union = areas_a[:, None] + areas_b[None, :] - intersection
    real = (areas_a[:, None] > 0) & (areas_b[None, :] > 0)
    return np.divide(intersection, union, out=np.zeros_like(union), where=real)


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """IoU of two boxes, in [0, 1]; 0 if one of them has no area."""
    (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = a, b
    area_a, area_b = max(ax1 - ax0, 0.0) * max(ay1 - ay0, 0.0), max(bx1 - bx0, 0.0) * max(by1 - by0, 0.0)
    if not (area_a > 0 and area_b > 0):
        return 0.0
    intersection = max(min(ax1, bx1) - max(ax0, bx0), 0.0) * max(min(ay1, by1) - max(ay0, by0), 0.0)
    return float(intersection / (area_a + area_b - intersection))


def mask_iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """IoU of two masks of the same shape, in [0, 1]: DAVIS's J. Two empty masks agree: 1."""
    a, b = _same_shape(a, b)
    union = np.count_nonzero(a | b)
    return float(np.count_nonzero(a & b) / union) if union else 1.0


def region_iou(a: Mask, b: Mask) -> float:
    """IoU of two run-length masks over the same grid, in [0, 1], without unpacking them. Two empty masks agree: 1."""
    if (a.width, a.height) != (b.width, b.height):
        raise ValueError(f"masks lie on grids of {a.width}x{a.height} and {b.width}x{b.height}: expected one grid")
    first, second = _run_lengths(a), _run_lengths(b)
    if not (coco.area(first) or coco.area(second)):
        return 1.0
    return float(coco.iou([first], [second], [0])[0, 0])


def dice(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Dice coefficient 2|A∩B| / (|A| + |B|) of two masks of the same shape, in [0, 1]. Two empty masks agree: 1."""
    a, b = _same_shape(a, b)
    total = np.count_nonzero(a) + np.count_nonzero(b)
    return float(2 * np.count_nonzero(a & b) / total) if total else 1.0


def boundary_map(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels that differ from their right, lower or lower-right neighbour; the image's border is not a boundary."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")  # (H+1, W+1)
    right, below, diagonal = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    result: NDArray[np.bool_] = (mask ^ right) | (mask ^ below) | (mask ^ diagonal)
    return result


def boundary_f1(
    gold: NDArray[np.bool_], predicted: NDArray[np.bool_], *, tolerance: float = BOUNDARY_TOLERANCE
) -> float:
    """Boundary F1 of a predicted mask, in [0, 1]: DAVIS 2017's F.

    A `tolerance` below 1 is a share of the diagonal, else it is in pixels. As in DAVIS, two masks without any boundary
    (both empty, both full, or one of each) score 1, and a boundary against none scores 0.
    """
    gold, predicted = _same_shape(gold, predicted)
    radius = int(tolerance) if tolerance >= 1 else int(np.ceil(tolerance * np.hypot(*gold.shape)))
    edge_gold, edge_predicted = boundary_map(gold), boundary_map(predicted)  # (H, W)
    count_gold, count_predicted = np.count_nonzero(edge_gold), np.count_nonzero(edge_predicted)
    if not (count_gold and count_predicted):
        return float(count_gold == count_predicted)
    precision = np.count_nonzero(edge_predicted & _dilate(edge_gold, radius)) / count_predicted
    recall = np.count_nonzero(edge_gold & _dilate(edge_predicted, radius)) / count_gold
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def davis_scores(gold: Sequence[NDArray[np.bool_]], predicted: Sequence[NDArray[np.bool_]]) -> DavisScores:
    """J and F over the frames of one object. Raises ValueError without frames, or if their numbers differ.

    The DAVIS benchmark skips the first and the last frame of a sequence; here every frame counts.
    """
    if len(gold) != len(predicted) or not gold:
        raise ValueError(f"{len(gold)} gold and {len(predicted)} predicted frames: expected as many, at least one")
    j = tuple(mask_iou(g, p) for g, p in zip(gold, predicted, strict=True))
    f = tuple(boundary_f1(g, p) for g, p in zip(gold, predicted, strict=True))
    return DavisScores(
        j_mean=float(np.mean(j)),
        j_recall=float(np.mean(np.array(j) > 0.5)),
        f_mean=float(np.mean(f)),
        f_recall=float(np.mean(np.array(f) > 0.5)),
        j=j,
        f=f,
    )


def _boxes(boxes: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(boxes, dtype=np.float64)
    if array.size == 0:
        return array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4:
        raise ValueError(f"boxes have the shape {array.shape}: expected (N, 4), one row x0, y0, x1, y1 for each box")
    return array


def _areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    areas: NDArray[np.float64] = np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None), axis=1)
    return areas


def _same_shape(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"masks have the shapes {a.shape} and {b.shape}: expected one shape (height, width) for both")
    return a.astype(bool, copy=False), b.astype(bool, copy=False)


def _run_lengths(mask: Mask) -> dict[str, object]:
    return {"size": [mask.height, mask.width], "counts": mask.counts.encode("ascii")}


def _dilate(edge: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    import cv2

    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disk = (x * x + y * y <= radius * radius).astype(np.uint8)  # (2r+1, 2r+1)
    return cv2.dilate(edge.astype(np.uint8), disk).astype(bool)
