"""PP-OCR's two networks: where lines of text stand, and what a line says.

Sizes, thresholds and rounding are those of rapidocr 3.10 (Apache-2.0), which this module replaces: the same picture
gives the same corners, texts and confidences (docs/decisions/0009-extras.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.weights import weight_path
from pixelis.weights.session import open_session

Pixels = NDArray[np.uint8]
Quads = NDArray[np.float32]
"""(N, 4, 2) corners in pixels, clockwise."""

DETECTION_SIDE = 1536
"""Longest side on which text is detected. Only ever scales down: rapidocr's default enlarges small regions."""
MIN_SIDE, MAX_SIDE = 30, 4096
MAX_ASPECT = 8
"""A wider picture is padded above and below."""
PIXEL_THRESHOLD = 0.3
BOX_THRESHOLD = 0.5
MAX_CANDIDATES = 1000
UNCLIP_RATIO = 1.6
SMALLEST_BOX = 3
ROW_STEP = 10
"""Boxes whose tops differ by less than this many pixels are sorted as one row."""
LINE_HEIGHT, LEAST_LINE_WIDTH = 48, 320
ARC_TOLERANCE = 0.25


class LineReader:
    """Both networks. The models load at the first use."""

    @cached_property
    def _detector(self) -> Any:
        return open_session(weight_path("ocr-detection"), arena=False)

    @cached_property
    def _recogniser(self) -> Any:
        return open_session(weight_path("ocr-recognition"), arena=False)

    @cached_property
    def _characters(self) -> list[str]:
        listed = self._recogniser.get_modelmeta().custom_metadata_map["character"]
        return ["", *listed.splitlines(), " "]

    def detect(self, bgr: Pixels) -> Quads:
        """The corners of the lines in a picture."""
        height, width = bgr.shape[:2]
        before = bgr
        scaled = _resize(bgr, MAX_SIDE / max(height, width)) if max(height, width) > MAX_SIDE else bgr
        if scaled is not None and min(scaled.shape[:2]) < MIN_SIDE:
            before = scaled  # as in rapidocr: of two steps, corners are scaled back by the second alone
            scaled = _resize(scaled, MIN_SIDE / min(scaled.shape[:2]))
        if scaled is None:
            return np.zeros((0, 4, 2), np.float32)
        ratio = np.array([before.shape[1] / scaled.shape[1], before.shape[0] / scaled.shape[0]])
        rows, columns = scaled.shape[:2]
        padding = 0
        if rows <= MIN_SIDE or columns / rows > MAX_ASPECT:
            padding = abs(max(int(columns / MAX_ASPECT), MIN_SIDE) * 2 - rows) // 2
            scaled = cv2.copyMakeBorder(scaled, padding, padding, 0, 0, cv2.BORDER_CONSTANT, value=(0, 0, 0))
        quads = self._find_quads(scaled)
        quads -= np.array([0, padding], np.float32)
        quads *= ratio.astype(np.float32)
        return np.clip(quads, 0, np.array([width, height], np.float32))

    def _find_quads(self, bgr: Pixels) -> Quads:
        height, width = bgr.shape[:2]
        resized = _resize(bgr, min(1.0, DETECTION_SIDE / max(height, width)))
        if resized is None:
            return np.zeros((0, 4, 2), np.float32)
        normalised = (resized.astype("float32") * (1 / 255.0) - np.full(3, 0.5)) / np.full(3, 0.5)
        scores = _run(self._detector, normalised.transpose(2, 0, 1))[0]  # (H, W)
        quads = np.array(list(_boxes(scores, width, height)), np.float32).reshape(-1, 4, 2)
        quads = quads[np.argsort(quads[:, 0, 1], kind="stable")]
        row = np.concatenate([[0], np.cumsum(np.diff(quads[:, 0, 1]) >= ROW_STEP)])[: len(quads)]
        return quads[np.lexsort((quads[:, 0, 0], row))]

    def recognise(self, crops: Iterable[Pixels]) -> list[tuple[str, float]]:
        """Text and confidence of each line; one at a time, since a batch pads every line to its widest."""
        return [self._recognise_line(crop) for crop in crops]

    def _recognise_line(self, crop: Pixels) -> tuple[str, float]:
        height, width = crop.shape[:2]
        padded_width = int(LINE_HEIGHT * max(LEAST_LINE_WIDTH / LINE_HEIGHT, width / height))
        line_width = min(math.ceil(LINE_HEIGHT * (width / height)), padded_width)
        resized = cv2.resize(np.ascontiguousarray(crop), (line_width, LINE_HEIGHT)).astype("float32")
        line = resized.transpose(2, 0, 1) / 255
        padded = np.zeros((3, LINE_HEIGHT, padded_width), np.float32)
        padded[:, :, :line_width] = (line - 0.5) / 0.5
        scores = _run(self._recogniser, padded)  # (T, C)
        best = scores.argmax(axis=1)
        chosen = best != 0  # CTC: repetitions and blanks are dropped
        chosen[1:] &= best[1:] != best[:-1]
        confidences = [round(c, 5) for c in scores.max(axis=1)[chosen].tolist()] or [0]
        return "".join(self._characters[k] for k in best[chosen]), float(np.mean(confidences).round(5))


def _run(session: Any, picture: NDArray[np.floating]) -> NDArray[np.float32]:
    """The first output for one picture (3, H, W), without its batch axis."""
    inputs = {session.get_inputs()[0].name: picture[None].astype(np.float32)}
    output: NDArray[np.float32] = session.run([session.get_outputs()[0].name], inputs)[0][0]
    return output


def _resize(bgr: Pixels, ratio: float) -> Pixels | None:
    """To sides that are multiples of 32, as the detector wants them; None where a side vanishes."""
    height, width = (round(int(side * ratio) / 32) * 32 for side in bgr.shape[:2])
    return cv2.resize(bgr, (width, height)) if height and width else None


def _boxes(scores: NDArray[np.float32], width: int, height: int) -> Iterable[Quads]:
    """Differentiable binarisation: boxes around the regions of the score map, in a picture of this size."""
    mask = cv2.dilate((scores > PIXEL_THRESHOLD).astype(np.uint8), np.array([[1, 1], [1, 1]]))
    contours, _ = cv2.findContours(mask * np.uint8(255), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.array([width / scores.shape[1], height / scores.shape[0]])
    for contour in contours[:MAX_CANDIDATES]:
        corners, side = _smallest_rectangle(contour)
        if side < SMALLEST_BOX or _mean_score(scores, corners) < BOX_THRESHOLD:
            continue
        corners, side = _smallest_rectangle(_grow(corners))
        if side < SMALLEST_BOX + 2:
            continue
        quad = _clockwise(np.clip(np.round(corners * scale), 0, [width, height]).astype(np.int32))
        quad = np.clip(quad, 0, np.array([width - 1, height - 1], np.float32))
        if min(int(np.linalg.norm(quad[0] - quad[1])), int(np.linalg.norm(quad[0] - quad[3]))) > SMALLEST_BOX:
            yield quad


def _smallest_rectangle(points: NDArray[np.int32]) -> tuple[NDArray[np.float32], float]:
    rectangle = cv2.minAreaRect(points)
    left, right = np.split(np.array(sorted(cv2.boxPoints(rectangle), key=lambda p: p[0])), 2)
    (a, d), (b, c) = (pair if pair[1][1] > pair[0][1] else pair[::-1] for pair in (left, right))
    return np.array([a, b, c, d]), min(rectangle[1])


def _mean_score(scores: NDArray[np.float32], corners: NDArray[np.float32]) -> float:
    """Mean of the score map inside a quad."""
    limits = np.array(scores.shape[::-1]) - 1
    low = np.clip(np.floor(corners.min(axis=0)).astype(np.int32), 0, limits)
    high = np.clip(np.ceil(corners.max(axis=0)).astype(np.int32), 0, limits)
    mask = np.zeros((high - low + 1)[::-1], np.uint8)
    cv2.fillPoly(mask, (corners - low.astype(np.float32))[None].astype(np.int32), 1)
    return cv2.mean(scores[low[1] : high[1] + 1, low[0] : high[0] + 1], mask)[0]


def _grow(corners: NDArray[np.float32]) -> NDArray[np.int32]:
    """The quad widened by its area over its perimeter, with round corners in whole pixels (Clipper 6's offset)."""
    exact = corners.astype(np.float64)
    following, preceding = np.roll(exact, -1, axis=0), np.roll(exact, 1, axis=0)
    area = abs(float(np.sum((exact[:, 0] - exact[0, 0]) * (preceding[:, 1] - following[:, 1])))) / 2
    distance = area * UNCLIP_RATIO / float(np.sum(np.hypot(*(following - exact).T)))
    quad = corners.astype(np.int64)
    turned = np.roll(quad, 1, axis=0)
    if np.sum((turned[:, 0] + quad[:, 0]) * (turned[:, 1] - quad[:, 1])) > 0:
        quad = quad[::-1]
    edges = np.roll(quad, -1, axis=0) - quad
    normals = np.stack([edges[:, 1], -edges[:, 0]], axis=1) / np.maximum(np.hypot(*edges.T), 1e-12)[:, None]
    tolerance = min(ARC_TOLERANCE, distance * ARC_TOLERANCE)
    steps = min(math.pi / math.acos(1 - tolerance / distance), distance * math.pi)
    sine, cosine = math.sin(2 * math.pi / steps), math.cos(2 * math.pi / steps)
    rotation = np.array([[cosine, -sine], [sine, cosine]])
    points = []
    for corner, before, after in zip(quad, np.roll(normals, 1, axis=0), normals, strict=True):
        angle = math.atan2(before[0] * after[1] - after[0] * before[1], before @ after)
        direction = before
        for _ in range(max(int(steps / (2 * math.pi) * abs(angle) + 0.5), 1)):
            points.append(corner + direction * distance)
            direction = rotation @ direction
        points.append(corner + after * distance)
    grown = np.array(points)
    return np.trunc(grown + np.copysign(0.5, grown)).astype(np.int32)


def _clockwise(quad: NDArray[np.int32]) -> Quads:
    """Top left, top right, bottom right, bottom left."""
    by_x = quad[np.argsort(quad[:, 0])]
    left, right = (pair[np.argsort(pair[:, 1])] for pair in (by_x[:2], by_x[2:]))
    return np.array([left[0], right[0], right[1], left[1]], np.float32)
