"""Shapes and textures: segmentation of an object, the ideal figure that fits its mask best, and its pattern.

Each figure is fitted to the mask (equal moments, smallest enclosing triangle or rectangle, simplified outline) and
scored by how much of the union the two share, so that the scores of different figures can be compared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.media.medium import Frame

SYNONYMS = {
    "circle": "circular disc disk ball sphere round dot",
    "ellipse": "elliptical elliptic oval",
    "square": "cube tile",
    "rectangle": "rectangular box block oblong",
    "triangle": "triangular pyramid",
    "diamond": "rhombus lozenge",
    "pentagon": "pentagonal",
    "hexagon": "hexagonal",
    "star": "starlike star-shaped",
    "cross": "plus cross-shaped",
    "ring": "annulus donut doughnut hoop torus",
    "bar": "line stick strip rod stripe",
    "irregular": "blob",
}
SHAPES = tuple(SYNONYMS)
CANONICAL = {word: name for name, words in SYNONYMS.items() for word in words.split()} | {n: n for n in SHAPES}

SIDE = 128
"""Masks are resized to this first: cost and thresholds are the same for large and small objects."""
FIGURE_SIDE = 112
"""Figure and ground are separated at this size: 15 ms, and edges good to a hundredth of the box."""
MIN_OVERLAP = 0.8
"""Minimum overlap of mask and figure for the figure to name the shape."""


class Shape(NamedTuple):
    name: str
    score: float
    """IoU of mask and ideal figure, 0 to 1; for `irregular`, how badly the best figure fits."""


def parse_shape(word: str) -> str | None:
    """The shape that a word means, if it is one: "discs" is circle, "oval" is ellipse."""
    word = word.strip().lower()
    plurals = (word, word.removesuffix("s"), word.removesuffix("es"))
    return next((CANONICAL[w] for w in plurals if w in CANONICAL), None)


def classify_shape(mask: NDArray[np.bool_]) -> Shape:
    """The shape of a (height, width) mask. An empty mask is irregular, with score 0."""
    filled, holes = _normalise(mask)
    if filled is None:
        return Shape("irregular", 0.0)
    scores = _score_figures(filled)
    hole = float(holes.sum()) / float(filled.sum())
    round_score = max(scores["circle"], scores["ellipse"])
    if hole > 0.08 and _is_centred(holes, filled):
        if round_score > MIN_OVERLAP and round_score >= scores["rectangle"]:
            return Shape("ring", round(round_score, 4))
        scores = {name: score * (1.0 - 0.5 * hole) for name, score in scores.items()}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] < MIN_OVERLAP:
        return Shape("irregular", round(min(max(1.0 - scores[best], 0.0) * 2.0, 1.0), 4))
    return Shape(best, round(min(scores[best], 1.0), 4))


def orientation_deg(mask: NDArray[np.bool_]) -> float | None:
    """Angle of the long axis, in degrees from the horizontal, counter-clockwise as seen, in (-90, 90].

    None if no direction dominates: an empty mask, or one less than a tenth longer than wide.
    """
    moments = cv2.moments(mask.astype(np.uint8), binaryImage=True)
    if not moments["m00"]:
        return None
    long, short, angle = _axes(moments)
    if long < 1.1 * short:
        return None
    degrees = -np.rad2deg(angle)
    return float(round(degrees if degrees > -90.0 else degrees + 180.0, 2)) + 0.0


def _axes(moments: dict[str, float]) -> tuple[float, float, float]:
    """Half axes of the ellipse with these second moments, and the angle of the longer (image axes, radians)."""
    xx, yy, xy = (moments[k] / moments["m00"] for k in ("mu20", "mu02", "mu11"))
    xx, yy = xx + 1 / 12, yy + 1 / 12  # a pixel is a square, not a point
    middle, spread = (xx + yy) / 2.0, float(np.hypot((xx - yy) / 2.0, xy))
    angle = 0.5 * float(np.arctan2(2.0 * xy, xx - yy))
    return 2.0 * float(np.sqrt(middle + spread)), 2.0 * float(np.sqrt(max(middle - spread, 1e-9))), angle


def _normalise(mask: NDArray[np.bool_]) -> tuple[NDArray[np.uint8] | None, NDArray[np.uint8]]:
    """The largest piece of the mask, filled, about SIDE pixels long with a margin; and its holes."""
    empty = np.zeros((1, 1), dtype=np.uint8)
    ys, xs = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if len(ys) == 0:
        return None, empty
    crop: NDArray[Any] = mask[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1].astype(np.uint8) * 255
    scale = SIDE / max(crop.shape)
    size = (max(round(crop.shape[1] * scale), 1), max(round(crop.shape[0] * scale), 1))
    crop = cv2.resize(crop, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    crop = cv2.copyMakeBorder(crop, 8, 8, 8, 8, cv2.BORDER_CONSTANT, value=0)
    if scale > 1:
        crop = cv2.GaussianBlur(crop, (0, 0), min(0.35 * scale, 6.0))  # the steps of a small mask are not corners
    solid = (crop > 127).astype(np.uint8)
    contours, _ = cv2.findContours(solid, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    if not contours:
        return None, empty
    filled = np.zeros_like(solid)
    cv2.drawContours(filled, [max(contours, key=cv2.contourArea)], -1, 1, cv2.FILLED)
    return filled, filled & (1 - solid)


def _is_centred(holes: NDArray[np.uint8], filled: NDArray[np.uint8]) -> bool:
    hole, solid = cv2.moments(holes, binaryImage=True), cv2.moments(filled, binaryImage=True)
    across, down = (hole[k] / hole["m00"] - solid[k] / solid["m00"] for k in ("m10", "m01"))
    return bool(np.hypot(across, down) < 0.15 * np.sqrt(solid["m00"]))


def _score_figures(filled: NDArray[np.uint8]) -> dict[str, float]:
    """IoU of the mask with each figure."""
    contours, _ = cv2.findContours(filled, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    outline = max(contours, key=cv2.contourArea)
    moments = cv2.moments(filled, binaryImage=True)
    centre = np.array([moments["m10"], moments["m01"]]) / moments["m00"]
    long, short, angle = _axes(moments)
    radius = float(np.sqrt(moments["m00"] / np.pi))
    scores = {"circle": _overlap(filled, _ellipse(centre, radius, radius, 0.0))}
    if long > 1.15 * short:
        scores["ellipse"] = _overlap(filled, _ellipse(centre, long, short, angle))
    else:
        scores["ellipse"] = scores["circle"] - 0.02  # a near-circle is one
    scores |= _rectangles(filled, outline)
    if long > 5.0 * short:
        # a long thin region is a bar, whatever its ends
        scores["bar"] = max(scores["rectangle"], scores["ellipse"]) + 0.02
    scores["triangle"] = _triangle(filled, outline)
    scores |= _polygons(filled, outline, centre)
    return scores


def _rectangles(filled: NDArray[np.uint8], outline: NDArray[Any]) -> dict[str, float]:
    """Rectangle, square and diamond: the minimum-area rectangle, classified by its sides and its tilt."""
    box = cv2.minAreaRect(outline)
    short, long = sorted(side + 1.0 for side in box[1])
    share = _overlap(filled, cv2.boxPoints(box))
    tilt = abs(box[2] % 90.0 - 45.0)  # 0: standing on a corner, 45: lying flat
    scores = {"rectangle": share}
    if short > 0.87 * long:
        scores["diamond" if tilt < 12.0 else "square"] = share + 0.02
    corners = cv2.approxPolyDP(outline, 0.03 * cv2.arcLength(outline, True), True)[:, 0, :].astype(np.float64)
    if len(corners) == 4 and cv2.isContourConvex(corners.astype(np.int32)[:, None]):
        sides = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1)
        first, second = corners[2] - corners[0], corners[3] - corners[1]
        leaning = min(abs(first[0]), abs(first[1])) / max(np.linalg.norm(first), 1.0)
        crossing = abs(float(first @ second)) / max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1.0)
        if sides.min() > 0.75 * sides.max() and crossing < 0.2 and leaning < 0.25:
            scores["diamond"] = max(scores.get("diamond", 0.0), _overlap(filled, corners) + 0.01)
    return scores


def _triangle(filled: NDArray[np.uint8], outline: NDArray[Any]) -> float:
    area, corners = cv2.minEnclosingTriangle(outline)
    return _overlap(filled, corners.reshape(-1, 2)) if area > 0 and corners is not None else 0.0


def _polygons(filled: NDArray[np.uint8], outline: NDArray[Any], centre: NDArray[np.float64]) -> dict[str, float]:
    """Pentagon, hexagon, star and cross, from the corners of the simplified outline."""
    scores: dict[str, float] = {}
    length = cv2.arcLength(outline, True)
    solidity = float(filled.sum()) / max(cv2.contourArea(cv2.convexHull(outline)), 1.0)
    for share in (0.012, 0.02, 0.03):
        corners = cv2.approxPolyDP(outline, share * length, True)[:, 0, :].astype(np.float64)
        overlap = _overlap(filled, corners)
        sides = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1)
        even = bool(sides.min() > 0.55 * sides.max())
        name = {5: "pentagon", 6: "hexagon"}.get(len(corners))
        if name and even and solidity > 0.93:
            scores[name] = max(scores.get(name, 0.0), overlap + 0.01)
        if solidity < 0.85 and even and _has_alternating_corners(corners, centre):
            scores["star"] = max(scores.get("star", 0.0), overlap)
        if len(corners) == 12 and 0.5 < solidity < 0.9 and _has_right_angles(corners):
            scores["cross"] = max(scores.get("cross", 0.0), overlap + 0.02)
    return scores


def _has_alternating_corners(corners: NDArray[np.float64], centre: NDArray[np.float64]) -> bool:
    """Alternating tips and notches, as in a star with four to eight points."""
    if len(corners) not in (8, 10, 12, 14, 16):
        return False
    radii = np.linalg.norm(corners - centre, axis=1)
    even, odd = radii[::2], radii[1::2]
    tips, notches = (even, odd) if even.mean() > odd.mean() else (odd, even)
    return bool(tips.min() > 1.25 * notches.max() and tips.min() > 0.7 * tips.max())


def _has_right_angles(corners: NDArray[np.float64]) -> bool:
    before, after = corners - np.roll(corners, 1, axis=0), np.roll(corners, -1, axis=0) - corners
    cosine = np.abs((before * after).sum(axis=1))
    cosine /= np.maximum(np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1), 1e-9)
    return bool(cosine.max() < 0.42)


def _ellipse(centre: NDArray[np.float64], long: float, short: float, angle: float) -> NDArray[np.float64]:
    turn = np.linspace(0.0, 2.0 * np.pi, 72, endpoint=False)
    along, across = long * np.cos(turn), short * np.sin(turn)
    x = centre[0] + along * np.cos(angle) - across * np.sin(angle)
    y = centre[1] + along * np.sin(angle) + across * np.cos(angle)
    return np.stack([x, y], axis=1)


def _overlap(filled: NDArray[np.uint8], polygon: NDArray[Any]) -> float:
    """IoU of a mask and a polygon, both inside the mask's frame."""
    canvas = np.zeros_like(filled)
    points = np.round(np.asarray(polygon, dtype=np.float64) * 16.0).astype(np.int32)
    cv2.fillPoly(canvas, [points[:, None]], 1, shift=4)
    outside = max(cv2.contourArea(np.asarray(polygon, dtype=np.float32)[:, None]) - float(canvas.sum()), 0.0)
    intersection = float((canvas & filled).sum())
    return intersection / max(float((canvas | filled).sum()) + outside, 1.0)


def segment_figure(frame: Frame, box: tuple[int, int, int, int]) -> NDArray[np.bool_] | None:
    """Segment the object in a box of whole pixels (left, top, right, bottom): booleans over the box.

    The surroundings of the box are background, and GrabCut divides its inside by colour. None if that is impossible:
    the box fills the frame, or inside and outside look the same.
    """
    left, top, right, bottom = box
    dx, dy = max((right - left) // 5, 2), max((bottom - top) // 5, 2)
    x0, y0 = max(left - dx, 0), max(top - dy, 0)
    surroundings = frame[y0 : bottom + dy, x0 : right + dx]
    if (right - left) * (bottom - top) > 0.9 * surroundings.shape[0] * surroundings.shape[1]:
        return None
    scale = min(1.0, FIGURE_SIDE / max(surroundings.shape[:2]))
    size = (max(round(surroundings.shape[1] * scale), 4), max(round(surroundings.shape[0] * scale), 4))
    small = cv2.resize(surroundings, size, interpolation=cv2.INTER_AREA)
    inner = [round((left - x0) * scale), round((top - y0) * scale)]
    inner += [max(round((right - x0) * scale), inner[0] + 2), max(round((bottom - y0) * scale), inner[1] + 2)]
    grabcut_mask = np.full(small.shape[:2], cv2.GC_BGD, dtype=np.uint8)
    grabcut_mask[inner[1] : inner[3], inner[0] : inner[2]] = cv2.GC_PR_FGD
    if not (grabcut_mask == cv2.GC_BGD).any():
        return None
    cv2.setRNGSeed(1)  # its colour models start from random centres
    cv2.grabCut(small, grabcut_mask, (0, 0, 1, 1), np.zeros((1, 65)), np.zeros((1, 65)), 2, cv2.GC_INIT_WITH_MASK)
    figure = (grabcut_mask[inner[1] : inner[3], inner[0] : inner[2]] & 1).astype(np.uint8)
    if figure.mean() < 0.04:
        return None
    return cv2.resize(figure, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST).astype(bool)


class Texture(NamedTuple):
    name: str
    confidence: float
    contrast: float
    """Standard deviation of the grey values, of 255, without slow shading."""
    regularity: float
    """Height of the second peak of the autocorrelation, 0 to 1: how strongly the pattern repeats."""


def classify_texture(grey: NDArray[np.uint8], figure: NDArray[np.bool_]) -> Texture:
    """Plain, striped, checkered, noisy or textured: how the grey values of a figure vary, by their spectrum."""
    scale = SIDE / max(grey.shape)
    shape = (max(round(grey.shape[1] * scale), 8), max(round(grey.shape[0] * scale), 8))
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    values = cv2.resize(grey, shape, interpolation=interpolation).astype(np.float64)
    solid = cv2.resize(figure.astype(np.uint8), shape, interpolation=cv2.INTER_NEAREST)
    inside = cv2.erode(solid, np.ones((3, 3), np.uint8), iterations=2, borderValue=1).astype(np.float64)
    if inside.sum() < 64:
        return Texture("plain", 0.1, 0.0, 0.0)  # too small to tell
    weight = np.maximum(cv2.GaussianBlur(inside, (0, 0), SIDE / 8), 1e-6)
    values = (values - cv2.GaussianBlur(values * inside, (0, 0), SIDE / 8) / weight) * inside
    contrast = float(np.sqrt((values**2).sum() / inside.sum()))
    power = np.abs(np.fft.fft2(values)) ** 2
    (first, across), flatness = _direction_energies(power)
    regularity = _regularity(power, inside) if contrast > 3.0 else 0.0
    name, confidence = "textured" if contrast > 14.0 else "plain", 0.5
    repeats = regularity > (0.3 if contrast > 8.0 else 0.45)  # faint stripes must be more regular
    if repeats and first > 0.5:
        name, confidence = "striped", first + regularity / 2
    elif repeats and first + across > 0.6 and min(first, across) > 0.15:
        name, confidence = "checkered", first + across
    elif contrast < 8.0:
        name, confidence = "plain", 1.0 - contrast / 16.0
    elif flatness > 0.25:
        name, confidence = "noisy", 0.5 + flatness
    return Texture(name, round(min(confidence, 1.0), 4), round(contrast, 2), regularity)


def _direction_energies(power: NDArray[np.float64]) -> tuple[tuple[float, float], float]:
    """Share of the energy along the strongest direction and along the one across it, and the spectrum's flatness."""
    height, width = power.shape
    fy, fx = np.meshgrid(np.fft.fftfreq(height) * SIDE, np.fft.fftfreq(width) * SIDE, indexing="ij")
    radius = np.hypot(fx, fy)
    band = (radius >= 3.0) & (radius <= SIDE / 2.2)
    angle = np.rad2deg(np.arctan2(fy, fx)) % 180.0
    total = float(power[band].sum()) or 1.0
    sectors = np.bincount((angle[band] // 5.0).astype(int) % 36, power[band], minlength=36) / total
    wide = np.sum([np.roll(sectors, k) for k in (-2, -1, 0, 1, 2)], axis=0)
    best = int(np.argmax(wide))
    energies = np.maximum(power[band], 1e-9)
    flatness = float(np.exp(np.log(energies).mean()) / energies.mean())
    return (float(wide[best]), float(wide[(best + 18) % 36])), flatness


def _regularity(power: NDArray[np.float64], inside: NDArray[Any]) -> float:
    """The best match of a pattern with itself, shifted beyond its first dip below zero."""
    matches = np.real(np.fft.ifft2(power))
    overlap = np.real(np.fft.ifft2(np.abs(np.fft.fft2(inside)) ** 2))
    matches = np.where(overlap > 0.3 * overlap[0, 0], matches / np.maximum(overlap, 1.0), 0.0)
    matches = np.fft.fftshift(matches / max(matches[0, 0], 1e-9))
    height, width = matches.shape
    ys, xs = np.mgrid[: height // 2 + 1, :width]
    ys, xs = height // 2 - ys, xs - width // 2
    angle = np.rad2deg(np.arctan2(ys, xs)) % 180.0
    best = 0.0
    for sector in range(0, 180, 10):  # along each direction: down to the dip, then the highest point after it
        along = (np.abs((angle - sector + 90.0) % 180.0 - 90.0) < 5.0) | ((xs == 0) & (ys == 0))
        order = np.argsort(np.hypot(xs, ys)[along], kind="stable")
        values = matches[: height // 2 + 1][along][order]
        dip = np.flatnonzero(values < -0.05)
        if len(dip):
            best = max(best, float(values[dip[0] :].max()))
    return round(min(best, 1.0), 4)
