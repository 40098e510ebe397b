"""Pixel similarity of two pictures: registered, matched in tone, and compared window by window
(supp:index_whitelist_dedup: SSIM tie-break, localized overlap of the template exception).

pHash and embeddings see a slide's template but not its words. Here one picture is registered onto the other (a crop is
a shift and a scale) and takes its tone (so that brightness and clipping do not count); then every small window with
structure in either picture must have the same structure in both.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from pixelis.dedup.thumbnail_match import Thumbnail, make_thumbnail, match_thumbnails
from pixelis.media import Frame

SIDE = 512
"""Longer side at which windows are compared: the text of a slide is still legible."""
SSIM_SIDE = 256
WINDOW = 11
"""Side in pixels: about one letter of a slide."""
NOISE_LEVEL = 6.0
"""Grey levels of the noise that JPEG quality 10 adds."""
MIN_STRUCTURE_STD = 10.0
"""Standard deviation in grey levels from which a window has structure."""
MIN_WINDOW_SIMILARITY = 0.7
"""Structural similarity from which two windows match."""
MIN_REFINABLE_OVERLAP = 0.7
"""Overlap from which a registration is refined; below it, thumbnails give another start."""
MIN_STRUCTURE_SHARE = 0.2
"""Share of the structure that must survive the tone curve; otherwise a flat picture would match every other."""
KEYPOINTS = 600
KEYPOINT_SIDE = 288
"""SIFT first doubles a picture: at 512 it would cost four times as much without being more accurate."""
INLIERS = 10
GRADIENT_SIDES = (160.0, 320.0)
"""Coarse, then fine."""
MIN_COVER = 0.6
"""Share of the smaller picture that must lie within the other."""
MIN_CHROMA = 12.0
"""Distance from grey, in levels of Cr and Cb, from which a pixel is coloured."""

Grey = NDArray[np.float32]
BoolImage = NDArray[np.bool_]
Affine = NDArray[np.float64]
"""(2, 3)"""


def shrink(picture: NDArray[Any], side: int) -> NDArray[Any]:
    """The picture with a longer side of at most `side`."""
    height, width = picture.shape[:2]
    scale = min(1.0, side / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA) if scale < 1.0 else picture


class Keypoints(NamedTuple):
    """SIFT keypoints."""

    points: NDArray[np.float32]
    """(k, 2) x, y"""
    descriptors: Any
    """(k, 128); None where k = 0"""


class ComparisonImage:
    """A picture prepared for comparison; what comparisons need is computed once."""

    def __init__(self, grey: Grey, chroma: NDArray[np.float32]) -> None:
        self.grey, self.chroma = grey, chroma  # (h, w) and (h, w, 2), longer side at most SIDE; Cr and Cb around 0

    @classmethod
    def from_frame(cls, frame: Frame) -> ComparisonImage:
        channels = cv2.cvtColor(shrink(frame, SIDE), cv2.COLOR_RGB2YCrCb).astype(np.float32)
        return cls(np.ascontiguousarray(channels[:, :, 0]), cv2.GaussianBlur(channels[:, :, 1:] - 128.0, (0, 0), 3.0))

    @property
    def mirrored(self) -> ComparisonImage:
        return ComparisonImage(np.ascontiguousarray(self.grey[:, ::-1]), np.ascontiguousarray(self.chroma[:, ::-1]))

    @cached_property
    def thumbnail(self) -> Thumbnail:
        return make_thumbnail(np.round(self.grey).astype(np.uint8))

    @cached_property
    def keypoints(self) -> Keypoints:
        # a third of SIFT's default contrast: a moon or a cell has few corners, and RANSAC rejects wrong matches
        sift = cv2.SIFT.create(nfeatures=KEYPOINTS, contrastThreshold=0.013)
        scale = min(1.0, KEYPOINT_SIDE / max(self.grey.shape))
        resized = (
            cv2.resize(self.grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else self.grey
        )
        detected, descriptors = sift.detectAndCompute(np.round(resized).astype(np.uint8), None)
        points = np.array([k.pt for k in detected], np.float32).reshape(-1, 2)
        return Keypoints((points + 0.5) / scale - 0.5, descriptors)


class PixelSimilarity(NamedTuple):
    """How similar two pictures are in the part that both show."""

    ssim: float
    """SSIM at 256 pixels, tones matched."""
    overlap: float
    """Share of the structure, after erosion, that agrees."""
    colour: float
    """Share of the coloured pixels whose hue agrees; 1 if one picture is grey."""
    cover: float
    """Share of the smaller picture that lies within the other."""


NO_SIMILARITY = PixelSimilarity(ssim=0.0, overlap=0.0, colour=0.0, cover=0.0)


def similarity_rank(similarity: PixelSimilarity) -> tuple[float, float]:
    """Sort key that prefers the better registration."""
    return similarity.overlap, similarity.ssim


def compare_images(a: ComparisonImage, b: ComparisonImage, *, stop_at: float = 0.99) -> PixelSimilarity:
    """Similarity under the best registration: whole on whole, by keypoints, by gradient; ends at overlap `stop_at`."""
    affine = stretch_affine(a, b)
    best = compare_aligned(a, b, affine)
    if best.overlap >= stop_at:
        return best
    keypoint_map = keypoint_affine(a, b)
    if keypoint_map is not None:
        similarity = compare_aligned(a, b, keypoint_map)
        if similarity_rank(similarity) > similarity_rank(best):
            best, affine = similarity, keypoint_map
    guess = affine if best.overlap >= MIN_REFINABLE_OVERLAP else thumbnail_affine(a, b)
    for side in GRADIENT_SIDES:
        guess = None if guess is None or best.overlap >= stop_at else gradient_affine(a, b, guess, side)
        if guess is not None:
            best = max(best, compare_aligned(a, b, guess), key=similarity_rank)
        if best.overlap < MIN_REFINABLE_OVERLAP:
            break
    return best


def stretch_affine(a: ComparisonImage, b: ComparisonImage) -> Affine:
    """Map b's pixels to a's, corner on corner; pixel centres have integer coordinates."""
    sx, sy = a.grey.shape[1] / b.grey.shape[1], a.grey.shape[0] / b.grey.shape[0]
    return np.array([[sx, 0.0, (sx - 1) / 2], [0.0, sy, (sy - 1) / 2]])


def keypoint_affine(a: ComparisonImage, b: ComparisonImage) -> Affine | None:
    """Map b's pixels to a's by matched keypoints; None if too few agree on a plausible map."""
    if min(len(a.keypoints.points), len(b.keypoints.points)) < INLIERS:
        return None
    pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(b.keypoints.descriptors, a.keypoints.descriptors, k=2)
    good_matches = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.85 * p[1].distance]
    if len(good_matches) < INLIERS:
        return None
    source = b.keypoints.points[[m.queryIdx for m in good_matches]]
    target = a.keypoints.points[[m.trainIdx for m in good_matches]]
    cv2.setRNGSeed(0)
    matrix, inliers = cv2.estimateAffine2D(source, target, method=cv2.RANSAC, ransacReprojThreshold=2.0)
    return matrix if matrix is not None and int(inliers.sum()) >= INLIERS and is_plausible(matrix) else None


def thumbnail_affine(a: ComparisonImage, b: ComparisonImage) -> Affine | None:
    """Map b's pixels to a's by matched thumbnails; None if whole on whole, tried already, fits best."""
    match = match_thumbnails(a.thumbnail, b.thumbnail)
    if match.width == match.height == 1.0 or match.score < 0.5:
        return None
    image, crop = (a, b) if match.second_is_crop else (b, a)
    (height, width), (crop_height, crop_width) = image.grey.shape, crop.grey.shape
    sx, sy = width * match.width / crop_width, height * match.height / crop_height
    matrix = np.array([[sx, 0.0, match.left * width + (sx - 1) / 2], [0.0, sy, match.top * height + (sy - 1) / 2]])
    return matrix if match.second_is_crop else np.asarray(cv2.invertAffineTransform(matrix))


def gradient_affine(a: ComparisonImage, b: ComparisonImage, start: Affine, side: float) -> Affine | None:
    """Map b's pixels to a's by ECC from a first guess, for pictures without corners and for subpixel accuracy."""
    grid_a, grid_b = (min(1.0, side / max(view.grey.shape)) for view in (a, b))
    small_a = cv2.resize(a.grey, None, fx=grid_a, fy=grid_a, interpolation=cv2.INTER_AREA)
    small_b = cv2.resize(b.grey, None, fx=grid_b, fy=grid_b, interpolation=cv2.INTER_AREA)
    if min(*small_a.shape, *small_b.shape) < 16 or min(float(small_a.std()), float(small_b.std())) < 1.0:
        return None
    guess = np.column_stack([start[:, :2] * (grid_a / grid_b), start[:, 2] * grid_a]).astype(np.float32)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 60, 1e-5)
    try:  # ECC returns the map from its template's pixels (b) to its input's (a)
        _, matrix = cv2.findTransformECC(small_b, small_a, guess, cv2.MOTION_AFFINE, criteria, None, 5)
    except cv2.error:  # no convergence: no affine map relates the pictures
        return None
    rescaled = np.column_stack([matrix[:, :2] * (grid_b / grid_a), matrix[:, 2] / grid_a]).astype(np.float64)
    return rescaled if is_plausible(rescaled) else None


def is_plausible(matrix: Affine) -> bool:
    """Whether a map neither shrinks to a point or line nor mirrors; mirror images are compared separately."""
    if np.linalg.det(matrix[:, :2]) <= 0.0:
        return False
    stretch = np.linalg.svd(matrix[:, :2], compute_uv=False)
    return bool(stretch[1] > 0.2 and stretch[0] < 5.0 and stretch[0] < 1.5 * stretch[1])


def compare_aligned(a: ComparisonImage, b: ComparisonImage, b_to_a: Affine) -> PixelSimilarity:
    """Resample onto the grid of the coarser picture, then compare window by window."""
    scale = float(np.sqrt(abs(np.linalg.det(b_to_a[:, :2]))))
    if scale > 1.0:  # a pixel of b covers more than one of a
        a, b, scale, b_to_a = b, a, 1.0 / scale, np.asarray(cv2.invertAffineTransform(b_to_a))
    smoothed = (
        cv2.GaussianBlur(b.grey, (0, 0), 0.5 / scale) if scale < 0.9 else b.grey
    )  # details that the coarser grid cannot show
    overlap_mask = warp_onto(np.ones(b.grey.shape, np.uint8), b_to_a, a, cv2.INTER_NEAREST) > 0
    cover = float(overlap_mask.sum()) / min(a.grey.size, b.grey.size * scale * scale)
    if cover < MIN_COVER:
        return NO_SIMILARITY
    rows, columns = np.flatnonzero(overlap_mask.any(axis=1)), np.flatnonzero(overlap_mask.any(axis=0))
    window = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    overlap_mask = overlap_mask[window]
    grey_a = cv2.GaussianBlur(a.grey[window], (0, 0), 1.0)
    grey_b = cv2.GaussianBlur(warp_onto(smoothed, b_to_a, a)[window], (0, 0), 1.0)
    tone_pairs = (
        (grey_a, match_tones(grey_b, grey_a, overlap_mask)),
        (match_tones(grey_a, grey_b, overlap_mask), grey_b),
    )  # either picture may be the one whose tones were clipped
    max_structure = max(int(structure_mask(local_variance(v), overlap_mask).sum()) for v in (grey_a, grey_b))
    return PixelSimilarity(
        ssim=max(small_ssim(x, y) for x, y in tone_pairs),
        overlap=max(local_overlap(x, y, overlap_mask, max_structure=max_structure) for x, y in tone_pairs),
        colour=hue_agreement(a.chroma[window], warp_onto(b.chroma, b_to_a, a)[window], overlap_mask),
        cover=min(1.0, cover),
    )


def warp_onto(
    values: NDArray[Any], matrix: Affine, target: ComparisonImage, interpolation: int = cv2.INTER_LINEAR
) -> NDArray[Any]:
    border = cv2.BORDER_CONSTANT if interpolation == cv2.INTER_NEAREST else cv2.BORDER_REPLICATE
    return np.asarray(cv2.warpAffine(values, matrix, target.grey.shape[::-1], flags=interpolation, borderMode=border))


def match_tones(source: Grey, target: Grey, overlap_mask: BoolImage) -> Grey:
    """`source` under the monotone tone curve that fits `target`: brightness, contrast, gamma, clipping."""
    tones = source[overlap_mask]
    bins = np.clip(tones / 8.0, 0, 31).astype(np.int64)
    counts = np.bincount(bins, minlength=32)
    is_used = counts > 0
    levels = np.bincount(bins, weights=tones, minlength=32)[is_used] / counts[is_used]
    curve = np.bincount(bins, weights=target[overlap_mask], minlength=32)[is_used] / counts[is_used]
    return np.interp(source, levels, np.maximum.accumulate(curve)).astype(np.float32)


def local_variance(values: Grey) -> Grey:
    """Variance of the window around each pixel."""
    box = (WINDOW, WINDOW)
    return np.maximum(cv2.blur(values * values, box) - cv2.blur(values, box) ** 2, 0)


def structure_mask(window_variance: Grey, overlap_mask: BoolImage) -> BoolImage:
    """Windows that have structure and lie entirely within both pictures, eroded."""
    inner_mask = cv2.erode(overlap_mask.astype(np.uint8), np.ones((WINDOW, WINDOW), np.uint8))
    has_structure = (window_variance > MIN_STRUCTURE_STD**2).astype(np.uint8) & inner_mask
    return cv2.erode(has_structure, np.ones((3, 3), np.uint8)) > 0


def local_overlap(a: Grey, b: Grey, overlap_mask: BoolImage, *, max_structure: int) -> float:
    """Share of the structure of either picture that the other shares; two flat pictures are compared by tone."""
    box = (WINDOW, WINDOW)
    var_a, var_b = local_variance(a), local_variance(b)
    windows = structure_mask(np.maximum(var_a, var_b), overlap_mask)
    num_windows = int(windows.sum())
    if max_structure < 64:
        return float(np.abs(a - b)[overlap_mask].mean() < NOISE_LEVEL)
    if num_windows < MIN_STRUCTURE_SHARE * max_structure:
        return 0.0
    covariance = cv2.blur(a * b, box) - cv2.blur(a, box) * cv2.blur(b, box)
    same = (2 * covariance + NOISE_LEVEL**2) / (var_a + var_b + NOISE_LEVEL**2)
    return float((same[windows] > MIN_WINDOW_SIMILARITY).mean())


def hue_agreement(a: NDArray[np.float32], b: NDArray[np.float32], overlap_mask: BoolImage) -> float:
    """Share of coloured pixels with equal hue, which brightness keeps; a grey copy has no hue and agrees."""
    strength_a, strength_b = np.linalg.norm(a, axis=2), np.linalg.norm(b, axis=2)
    is_coloured = (np.maximum(strength_a, strength_b) > MIN_CHROMA) & overlap_mask
    least_colourful = min(float(strength_a[overlap_mask].max()), float(strength_b[overlap_mask].max()))
    if int(is_coloured.sum()) < 64 or least_colourful < MIN_CHROMA:
        return 1.0
    same_direction = (a * b).sum(axis=2) > 0.5 * strength_a * strength_b  # within 60 degrees
    return float(same_direction[is_coloured].mean())


def small_ssim(a: Grey, b: Grey) -> float:
    x, y = shrink(a, SSIM_SIDE), shrink(b, SSIM_SIDE)
    if min(x.shape) < 7:  # smaller than SSIM's window
        return float(np.abs(x - y).mean() < NOISE_LEVEL)
    return float(structural_similarity(x, y, data_range=255.0))
