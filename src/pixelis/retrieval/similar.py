"""Whether two pictures show the same: laid over each other, evened in tone, and compared window by window
(supp:index_whitelist_dedup: SSIM tie-break, localized overlap of the template exception).

pHash and embeddings see a slide's template and not its words. Here one picture is laid over the other (a crop is a
shift and a scale), given the other's tone (so that brightness and clipping cost nothing), and every small window that
holds structure in either of them must hold the same in both.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from pixelis.media import Frame
from pixelis.retrieval.placing import Thumbnail, thumbnail_of
from pixelis.retrieval.placing import place as placed

SIDE = 512
"""Longer side at which windows are compared: the text of a slide is still text."""
SSIM_SIDE = 256
WINDOW = 11
"""Pixels: about one letter of a slide."""
NOISE = 6.0
"""Grey levels that JPEG 10 adds by itself."""
STRUCTURE = 10.0
"""Standard deviation in grey levels from which a window holds something."""
AGREES = 0.7
"""Structural similarity from which two windows hold the same."""
NEARLY = 0.7
"""Overlap from which a placement by keypoints is worth refining; below it, thumbnails give another start."""
KEPT_STRUCTURE = 0.2
"""Share of the structure that a tone curve may not destroy: one flat picture would otherwise explain every other."""
KEYPOINTS = 600
KEYPOINT_SIDE = 288
"""SIFT doubles a picture first: at 512 it would cost four times as much and place no better."""
INLIERS = 10
GRADIENT_SIDES = (160.0, 320.0)
"""Coarse, then fine."""
MIN_COVER = 0.6
"""Share of the smaller picture that must lie on the other."""
COLOURED = 12.0
"""Distance from grey, in levels of Cr and Cb, from which a place has a colour."""

Grey = NDArray[np.float32]
Here = NDArray[np.bool_]
Affine = NDArray[np.float64]
"""(2, 3)"""


class Keypoints(NamedTuple):
    """Places that can be found again."""

    points: NDArray[np.float32]
    """(k, 2) x, y"""
    descriptors: Any
    """(k, 128); None where k = 0"""


class View:
    """What is compared of a picture, computed once."""

    def __init__(self, grey: Grey, chroma: NDArray[np.float32]) -> None:
        self.grey, self.chroma = grey, chroma  # (h, w) and (h, w, 2), longer side at most SIDE; Cr and Cb around 0

    @classmethod
    def of(cls, frame: Frame) -> View:
        height, width = frame.shape[:2]
        scale = min(1.0, SIDE / max(height, width))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = cv2.resize(frame, size, interpolation=cv2.INTER_AREA) if scale < 1.0 else frame
        tones = cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb).astype(np.float32)
        return cls(np.ascontiguousarray(tones[:, :, 0]), cv2.GaussianBlur(tones[:, :, 1:] - 128.0, (0, 0), 3.0))

    @property
    def mirrored(self) -> View:
        return View(np.ascontiguousarray(self.grey[:, ::-1]), np.ascontiguousarray(self.chroma[:, ::-1]))

    @cached_property
    def thumbnail(self) -> Thumbnail:
        return thumbnail_of(np.round(self.grey).astype(np.uint8))

    @cached_property
    def keypoints(self) -> Keypoints:
        # a third of SIFT's usual contrast: a moon or a cell has few corners, and a wrong match is voted down later
        sift = cv2.SIFT.create(nfeatures=KEYPOINTS, contrastThreshold=0.013)
        scale = min(1.0, KEYPOINT_SIDE / max(self.grey.shape))
        small = (
            cv2.resize(self.grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else self.grey
        )
        found, descriptors = sift.detectAndCompute(np.round(small).astype(np.uint8), None)
        points = np.array([k.pt for k in found], np.float32).reshape(-1, 2)
        return Keypoints((points + 0.5) / scale - 0.5, descriptors)


class Likeness(NamedTuple):
    """How two pictures compare where they lie over each other."""

    ssim: float
    """Of the part that both show, at 256 pixels, tone evened."""
    overlap: float
    """Share of the structure, after erosion, that is the same in both."""
    colour: float
    """Share of the coloured places whose hue is the same; 1 where one of the two is grey."""
    cover: float
    """Share of the smaller picture that lies on the other."""


NOTHING = Likeness(ssim=0.0, overlap=0.0, colour=0.0, cover=0.0)


def likeness(a: View, b: View, *, enough: float = 0.99) -> Likeness:
    """The best way to lay one over the other: whole on whole, by keypoints, by gradient (`enough` ends the search)."""
    place = stretched(a, b)
    best = compared(a, b, place)
    if best.overlap >= enough:
        return best
    by_points = keypoint_affine(a, b)
    if by_points is not None:
        found = compared(a, b, by_points)
        best, place = max((best, place), (found, by_points), key=lambda way: (way[0].overlap, way[0].ssim))
    start = place if best.overlap >= NEARLY else slid_affine(a, b)
    for side in GRADIENT_SIDES:
        start = None if start is None or best.overlap >= enough else gradient_affine(a, b, start, side)
        if start is not None:
            best = max(best, compared(a, b, start), key=lambda found: (found.overlap, found.ssim))
        if best.overlap < NEARLY:
            break
    return best


def stretched(a: View, b: View) -> Affine:
    """b's pixels to a's, corner on corner; pixel centres lie at whole numbers."""
    sx, sy = a.grey.shape[1] / b.grey.shape[1], a.grey.shape[0] / b.grey.shape[0]
    return np.array([[sx, 0.0, (sx - 1) / 2], [0.0, sy, (sy - 1) / 2]])


def keypoint_affine(a: View, b: View) -> Affine | None:
    """b's pixels to a's from matched keypoints; None where too few agree on one plausible map."""
    if min(len(a.keypoints.points), len(b.keypoints.points)) < INLIERS:
        return None
    pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(b.keypoints.descriptors, a.keypoints.descriptors, k=2)
    good = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.85 * p[1].distance]
    if len(good) < INLIERS:
        return None
    source = b.keypoints.points[[m.queryIdx for m in good]]
    target = a.keypoints.points[[m.trainIdx for m in good]]
    cv2.setRNGSeed(0)
    matrix, inside = cv2.estimateAffine2D(source, target, method=cv2.RANSAC, ransacReprojThreshold=2.0)
    return matrix if matrix is not None and int(inside.sum()) >= INLIERS and plausible(matrix) else None


def slid_affine(a: View, b: View) -> Affine | None:
    """b's pixels to a's from thumbnails slid over each other; None where whole on whole fits best: that was tried."""
    best = placed(a.thumbnail, b.thumbnail)
    if best.wide == best.high == 1.0 or best.score < 0.5:
        return None
    whole, part = (a, b) if best.part_is_second else (b, a)
    (high, wide), (part_high, part_wide) = whole.grey.shape, part.grey.shape
    sx, sy = wide * best.wide / part_wide, high * best.high / part_high
    matrix = np.array([[sx, 0.0, best.left * wide + (sx - 1) / 2], [0.0, sy, best.top * high + (sy - 1) / 2]])
    return matrix if best.part_is_second else np.asarray(cv2.invertAffineTransform(matrix))


def gradient_affine(a: View, b: View, start: Affine, side: float) -> Affine | None:
    """b's pixels to a's by ECC from a first guess: for soft pictures without corners, and for the last half pixel."""
    grid_a, grid_b = (min(1.0, side / max(view.grey.shape)) for view in (a, b))
    small_a = cv2.resize(a.grey, None, fx=grid_a, fy=grid_a, interpolation=cv2.INTER_AREA)
    small_b = cv2.resize(b.grey, None, fx=grid_b, fy=grid_b, interpolation=cv2.INTER_AREA)
    if min(*small_a.shape, *small_b.shape) < 16 or min(float(small_a.std()), float(small_b.std())) < 1.0:
        return None
    guess = np.column_stack([start[:, :2] * (grid_a / grid_b), start[:, 2] * grid_a]).astype(np.float32)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 60, 1e-5)
    try:  # ECC returns the map from its template's pixels (b) to its input's (a)
        _, matrix = cv2.findTransformECC(small_b, small_a, guess, cv2.MOTION_AFFINE, criteria, None, 5)
    except cv2.error:  # it did not converge: the pictures have no map between them
        return None
    grown = np.column_stack([matrix[:, :2] * (grid_b / grid_a), matrix[:, 2] / grid_a]).astype(np.float64)
    return grown if plausible(grown) else None


def plausible(matrix: Affine) -> bool:
    """Neither a speck nor a sliver nor a mirror: a flip is asked for by itself."""
    if np.linalg.det(matrix[:, :2]) <= 0.0:
        return False
    stretch = np.linalg.svd(matrix[:, :2], compute_uv=False)
    return bool(stretch[1] > 0.2 and stretch[0] < 5.0 and stretch[0] < 1.5 * stretch[1])


def compared(a: View, b: View, b_to_a: Affine) -> Likeness:
    """Both on the grid of the one that is sampled more coarsely, then window by window."""
    scale = float(np.sqrt(abs(np.linalg.det(b_to_a[:, :2]))))
    if scale > 1.0:  # a pixel of b is more than one of a
        a, b, scale, b_to_a = b, a, 1.0 / scale, np.asarray(cv2.invertAffineTransform(b_to_a))
    fine = cv2.GaussianBlur(b.grey, (0, 0), 0.5 / scale) if scale < 0.9 else b.grey  # what the coarser cannot show
    both = laid(np.ones(b.grey.shape, np.uint8), b_to_a, a, cv2.INTER_NEAREST) > 0
    cover = float(both.sum()) / min(a.grey.size, b.grey.size * scale * scale)
    if cover < MIN_COVER:
        return NOTHING
    rows, columns = np.flatnonzero(both.any(axis=1)), np.flatnonzero(both.any(axis=0))
    part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    both = both[part]
    here = cv2.GaussianBlur(a.grey[part], (0, 0), 1.0)
    there = cv2.GaussianBlur(laid(fine, b_to_a, a)[part], (0, 0), 1.0)
    toned = (here, evened(there, here, both)), (evened(here, there, both), there)  # whichever of them was clipped
    most = max(structure(variance(here), both).sum(), structure(variance(there), both).sum())
    return Likeness(
        ssim=max(small_ssim(x, y) for x, y in toned),
        overlap=max(local_overlap(x, y, both, most=int(most)) for x, y in toned),
        colour=same_hue(a.chroma[part], laid(b.chroma, b_to_a, a)[part], both),
        cover=min(1.0, cover),
    )


def laid(values: NDArray[Any], matrix: Affine, onto: View, way: int = cv2.INTER_LINEAR) -> NDArray[Any]:
    border = cv2.BORDER_CONSTANT if way == cv2.INTER_NEAREST else cv2.BORDER_REPLICATE
    return np.asarray(cv2.warpAffine(values, matrix, onto.grey.shape[::-1], flags=way, borderMode=border))


def evened(source: Grey, target: Grey, both: Here) -> Grey:
    """`source` with the rising tone curve that brings it nearest to `target`: brightness, contrast, gamma, clipping."""
    tones = source[both]
    bins = np.clip(tones / 8.0, 0, 31).astype(np.int64)
    counts = np.bincount(bins, minlength=32)
    used = counts > 0
    levels = np.bincount(bins, weights=tones, minlength=32)[used] / counts[used]
    curve = np.bincount(bins, weights=target[both], minlength=32)[used] / counts[used]
    return np.interp(source, levels, np.maximum.accumulate(curve)).astype(np.float32)


def variance(values: Grey) -> Grey:
    """Of the window around each pixel."""
    box = (WINDOW, WINDOW)
    return np.maximum(cv2.blur(values * values, box) - cv2.blur(values, box) ** 2, 0)


def structure(var: Grey, both: Here) -> Here:
    """Windows that hold something and lie wholly on both pictures, eroded."""
    inner = cv2.erode(both.astype(np.uint8), np.ones((WINDOW, WINDOW), np.uint8))
    holds = (var > STRUCTURE**2).astype(np.uint8) & inner
    return cv2.erode(holds, np.ones((3, 3), np.uint8)) > 0


def local_overlap(a: Grey, b: Grey, both: Here, *, most: int) -> float:
    """Share of the structure of either that the other shows too; two flat pictures agree in their tone or not."""
    box = (WINDOW, WINDOW)
    var_a, var_b = variance(a), variance(b)
    where = structure(np.maximum(var_a, var_b), both)
    total = int(where.sum())
    if most < 64:
        return float(np.abs(a - b)[both].mean() < NOISE)
    if total < KEPT_STRUCTURE * most:
        return 0.0
    covariance = cv2.blur(a * b, box) - cv2.blur(a, box) * cv2.blur(b, box)
    same = (2 * covariance + NOISE**2) / (var_a + var_b + NOISE**2)
    return float((same[where] > AGREES).mean())


def same_hue(a: NDArray[np.float32], b: NDArray[np.float32], both: Here) -> float:
    """Brightness scales a colour and keeps its hue; a grey copy has no hue to disagree with."""
    strength_a, strength_b = np.linalg.norm(a, axis=2), np.linalg.norm(b, axis=2)
    coloured = (np.maximum(strength_a, strength_b) > COLOURED) & both
    if int(coloured.sum()) < 64 or min(float(strength_a[both].max()), float(strength_b[both].max())) < COLOURED:
        return 1.0
    towards = (a * b).sum(axis=2) > 0.5 * strength_a * strength_b  # within 60 degrees
    return float(towards[coloured].mean())


def small_ssim(a: Grey, b: Grey) -> float:
    scale = min(1.0, SSIM_SIDE / max(a.shape))
    size = (max(1, round(a.shape[1] * scale)), max(1, round(a.shape[0] * scale)))
    x, y = (cv2.resize(v, size, interpolation=cv2.INTER_AREA) if scale < 1.0 else v for v in (a, b))
    if min(size) < 7:  # smaller than SSIM's window
        return float(np.abs(x - y).mean() < NOISE)
    return float(structural_similarity(x, y, data_range=255.0))
