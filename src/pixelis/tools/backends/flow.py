"""Motion from pixels: of the camera, of one box, and the search for a lost object by its appearance."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import PixelBox
from pixelis.media.medium import Frame, frame_size

Floats = NDArray[np.float64]
Grey = NDArray[np.uint8]
Vector = tuple[float, float]
"""Pixels to the right and down."""

SEED = 20
"""Seed of OpenCV's generator, set before each RANSAC, so that the same frames give the same motion."""
CAMERA_SIDE = 480
"""Longer side of the picture on which the camera's motion is estimated."""
TEMPLATE_SIDE = 28
"""Longer side of a template in a search over a whole frame."""


class CameraMotion:
    """The similarity transform from one picture to the next, by pyramidal Lucas–Kanade on the background."""

    def __init__(self) -> None:
        self._grey: Grey | None = None

    def step(self, image: Frame, boxes_px: Floats) -> Floats:
        """(2, 3), in the image's pixels; the identity for the first picture and where nothing can be followed."""
        scale = min(1.0, CAMERA_SIDE / max(image.shape[:2]))
        grey = to_grey(downscale(image, scale))
        previous, self._grey = self._grey, grey
        if previous is None or previous.shape != grey.shape:
            return np.eye(2, 3)
        mask = np.full(grey.shape, 255, dtype=np.uint8)
        for x0, y0, x1, y1 in np.maximum(np.asarray(boxes_px) * scale, 0.0).astype(np.int64):
            mask[y0:y1, x0:x1] = 0
        # corners are detected on the new picture, whose detections are known, and tracked back to the old one
        points = cv2.goodFeaturesToTrack(grey, 200, 0.01, 7, mask=mask)
        if points is None:
            return np.eye(2, 3)
        old_points, status, _ = cv2.calcOpticalFlowPyrLK(grey, previous, points, None, winSize=(21, 21), maxLevel=4)
        good = status.reshape(-1) == 1
        fit = fit_similarity(old_points[good].reshape(-1, 2), points[good].reshape(-1, 2))
        if fit is None or fit.inliers.sum() < 8:
            return np.eye(2, 3)
        fit.motion[:, 2] /= scale
        return fit.motion


class SimilarityFit(NamedTuple):
    motion: Floats  # (2, 3)
    inliers: NDArray[np.bool_]  # (N,)


def fit_similarity(source: Floats, target: Floats) -> SimilarityFit | None:
    """Shift, rotation and scale that most point pairs agree on, by RANSAC; None for fewer than four pairs."""
    if len(source) < 4:
        return None
    cv2.setRNGSeed(SEED)
    motion, inliers = cv2.estimateAffinePartial2D(source, target, ransacReprojThreshold=2.0)
    return None if motion is None else SimilarityFit(np.asarray(motion), inliers.reshape(-1).astype(bool))


class BoxEstimate(NamedTuple):
    """A box estimated on the next frame."""

    box_px: PixelBox
    quality: float
    """Share of the box's points that return to their start and agree on the motion, 0 to 1."""


def flow_box(before: Frame, after: Frame, box_px: PixelBox, drift_px: Vector = (0.0, 0.0)) -> BoxEstimate | None:
    """Track a box to the next frame; `drift_px` is the expected motion. None if too few points can be tracked.

    Points in the box that move with its surroundings are background, unless nearly all of them do.
    """
    side = max(box_px.right - box_px.left, box_px.bottom - box_px.top)
    left, top, right, bottom = search_bounds(box_px, drift_px, side, before.shape)
    if min(right - left, bottom - top) < 16:
        return None
    old, new = (to_grey(f[top:bottom, left:right]) for f in (before, after))
    inner = PixelBox(box_px.left - left, box_px.top - top, box_px.right - left, box_px.bottom - top)
    inside = find_corners(old, inner)
    if len(inside) < 6:
        return None
    outside = find_corners(old, inner, outside=True)
    starts = np.concatenate([inside, outside])  # (N, 2)
    ends, is_consistent = forward_backward_flow(old, new, starts, np.asarray(drift_px))
    is_inside = np.arange(len(starts)) < len(inside)
    background = fit_similarity(starts[~is_inside & is_consistent], ends[~is_inside & is_consistent])
    selected = is_inside & is_consistent
    if background is not None:
        background_ends = starts @ background.motion[:, :2].T + background.motion[:, 2]
        moves_apart = selected & (np.linalg.norm(ends - background_ends, axis=1) > 1.0)
        selected = moves_apart if moves_apart.sum() >= max(0.45 * selected.sum(), 6) else selected
    fit = fit_similarity(starts[selected], ends[selected])
    if fit is None or fit.inliers.sum() < 5:
        return None
    growth = float(np.clip(np.hypot(fit.motion[0, 0], fit.motion[1, 0]) ** 0.5, 0.97, 1.03))
    centre = np.array([inner.left + inner.right, inner.top + inner.bottom]) / 2
    new_centre = (fit.motion[:, :2] @ centre + fit.motion[:, 2]) + (left, top)
    half = np.array([box_px.right - box_px.left, box_px.bottom - box_px.top]) * growth / 2
    quality = float(fit.inliers.sum()) / max(len(inside) - int((is_inside & is_consistent & ~selected).sum()), 1)
    return BoxEstimate(PixelBox(*(new_centre - half).tolist(), *(new_centre + half).tolist()), min(quality, 1.0))


def search_bounds(box_px: PixelBox, drift: Vector, margin: float, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The part of the frame in which a box and its next place lie."""
    left = int(max(box_px.left + min(drift[0], 0.0) - margin, 0))
    top = int(max(box_px.top + min(drift[1], 0.0) - margin, 0))
    right = int(min(box_px.right + max(drift[0], 0.0) + margin, shape[1]))
    bottom = int(min(box_px.bottom + max(drift[1], 0.0) + margin, shape[0]))
    return left, top, right, bottom


def find_corners(grey: Grey, box: PixelBox, *, outside: bool = False) -> Floats:
    """Corners within a box, or around it: (N, 2)."""
    mask = np.full(grey.shape, 255 if outside else 0, dtype=np.uint8)
    x, y = int((box.left + box.right) / 2), int((box.top + box.bottom) / 2)
    half_x, half_y = int((box.right - box.left) / 2), int((box.bottom - box.top) / 2)
    if outside:
        cv2.rectangle(mask, (x - half_x, y - half_y), (x + half_x, y + half_y), 0, -1)
    else:
        cv2.ellipse(mask, (x, y), (half_x, half_y), 0, 0, 360, 255, -1)
    points = cv2.goodFeaturesToTrack(grey, 40 if outside else 80, 0.01, 3, mask=mask)
    return np.empty((0, 2)) if points is None else points.reshape(-1, 2).astype(np.float64)


def forward_backward_flow(old: Grey, new: Grey, starts: Floats, drift: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The tracked points, and whether each returns to within a pixel of its start."""
    points = starts.astype(np.float32).reshape(-1, 1, 2)
    guess = points + drift.astype(np.float32)
    flow = partial(cv2.calcOpticalFlowPyrLK, winSize=(17, 17), maxLevel=3, flags=cv2.OPTFLOW_USE_INITIAL_FLOW)
    ends, forward_status, _ = flow(old, new, points, guess)
    returned, backward_status, _ = flow(new, old, ends, points.copy())
    error = np.linalg.norm((returned - points).reshape(-1, 2), axis=1)
    is_consistent = (forward_status.reshape(-1) == 1) & (backward_status.reshape(-1) == 1) & (error < 1.0)
    return ends.reshape(-1, 2).astype(np.float64), is_consistent


class Appearance:
    """Appearance of an object: colours of its first box, a running mean of later ones, and a template."""

    def __init__(self, image: Frame, box_px: PixelBox) -> None:
        self.first_histogram = self.recent_histogram = colour_histogram(image, box_px)
        self.template = crop_patch(image, box_px)
        self.size = (box_px.right - box_px.left, box_px.bottom - box_px.top)

    def similarity(self, image: Frame, box_px: PixelBox) -> float:
        """Bhattacharyya coefficient of the colours, 0 to 1: the better of the first and the recent."""
        histogram = colour_histogram(image, box_px)
        return float(max(np.sqrt(histogram * other).sum() for other in (self.first_histogram, self.recent_histogram)))

    def update(self, image: Frame, box_px: PixelBox, *, confirmed: bool) -> None:
        """Update with the object's box. Its colours change only if a detector confirms it: motion alone would drift."""
        if confirmed:
            self.recent_histogram = 0.8 * self.recent_histogram + 0.2 * colour_histogram(image, box_px)
        self.template = crop_patch(image, box_px)
        self.size = (box_px.right - box_px.left, box_px.bottom - box_px.top)

    def match_template(self, image: Frame, search_box: PixelBox | None = None) -> BoxEstimate | None:
        """The best match of the recent template, in part of the frame or all of it; None if none fits."""
        left, top, right, bottom = (0, 0, image.shape[1], image.shape[0])
        if search_box is not None:
            left, top, right, bottom = search_bounds(search_box, (0.0, 0.0), 0.0, image.shape)
        scale = min(1.0, TEMPLATE_SIDE / max(self.size))
        search_area = downscale(image[top:bottom, left:right], scale)
        best: BoxEstimate | None = None
        for growth in (1.0, 0.9, 1.1):
            width, height = (max(round(v * scale * growth), 4) for v in self.size)
            if search_area.shape[0] <= height or search_area.shape[1] <= width:
                continue
            resized_template = cv2.resize(self.template, (width, height), interpolation=cv2.INTER_AREA)
            _, value, _, (x, y) = cv2.minMaxLoc(cv2.matchTemplate(search_area, resized_template, cv2.TM_CCOEFF_NORMED))
            if best is None or value > best.quality + 0.03:
                x0, y0 = left + x / scale, top + y / scale
                best = BoxEstimate(PixelBox(x0, y0, x0 + width / scale, y0 + height / scale), float(value))
        return best


def crop_patch(image: Frame, box_px: PixelBox) -> Frame:
    left, top, right, bottom = pixel_bounds(box_px, image)
    return image[top:bottom, left:right].copy()


def colour_histogram(image: Frame, box_px: PixelBox) -> Floats:
    """Colour histogram of the ellipse in a box, in HSV: (192,), its sum is 1."""
    left, top, right, bottom = pixel_bounds(box_px, image)
    region = cv2.resize(image[top:bottom, left:right], (32, 32), interpolation=cv2.INTER_AREA)
    hsv = cv2.cvtColor(region, cv2.COLOR_RGB2HSV)
    counts = cv2.calcHist([hsv], [0, 1, 2], ELLIPSE, [12, 4, 4], [0, 180, 0, 256, 0, 256]).reshape(-1)
    counts = counts.astype(np.float64) + 1e-3
    return np.asarray(counts / counts.sum())


ELLIPSE = cv2.ellipse(np.zeros((32, 32), dtype=np.uint8), (16, 16), (13, 13), 0, 0, 360, 255, -1)


def pixel_bounds(box_px: PixelBox, image: Frame) -> tuple[int, int, int, int]:
    return box_px.pixel_bounds(frame_size(image))


def downscale(image: Frame, scale: float) -> Frame:
    if scale >= 1.0:
        return np.ascontiguousarray(image)
    return np.asarray(cv2.resize(image, frame_size(image).scaled(scale), interpolation=cv2.INTER_AREA))


def to_grey(image: Frame) -> Grey:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))
