"""PP-OCR on a page: which way up it is, what its lines say, and in which order they are read."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.media.medium import Frame
from pixelis.tools.backends.line_reader import LineReader
from pixelis.weights import fingerprint

WEIGHTS = ("ocr-detection", "ocr-recognition")
UPRIGHT_CONFIDENCE = 0.93
"""Mean confidence above which a page counts as upright."""
SAMPLE_LINES = 4


class OcrLine(NamedTuple):
    """A line of text with its corners in pixels, clockwise from the text's own top left."""

    text: str
    quad_px: NDArray[np.float32]
    """(4, 2)"""
    confidence: float


class OcrPage(NamedTuple):
    """The lines of a picture, and its counter-clockwise rotation in degrees before it was read."""

    lines: list[OcrLine]
    rotation: int


class PpOcr:
    """Reads text. Construction is cheap; the models load at the first page."""

    backend = "PP-OCRv6 small, rapidocr 3.10"

    @property
    def fingerprint(self) -> str:
        return "+".join(fingerprint(name) for name in WEIGHTS)

    @cached_property
    def _reader(self) -> LineReader:
        return LineReader()

    def read(self, image: Frame) -> list[OcrLine]:
        return self.read_page(image).lines

    def read_page(self, image: Frame) -> OcrPage:
        """The lines in reading order. A page that is not upright is rotated first."""
        bgr = np.ascontiguousarray(image[:, :, ::-1])
        quads = self._reader.detect(bgr)
        if not len(quads):
            return OcrPage([], 0)
        crops = [rectify(bgr, quad) for quad in quads]
        texts = self._reader.recognise(crops)
        rotation = self._detect_rotation(crops, texts)
        if rotation:
            return OcrPage(self._read_rotated(bgr, rotation), rotation)
        return OcrPage(sort_reading_order(confident_lines(texts, quads)), 0)

    def _detect_rotation(self, crops: list[NDArray[np.uint8]], texts: list[tuple[str, float]]) -> int:
        """Degrees to rotate, counter-clockwise: the orientation in which a few long lines are read best."""
        longest = sorted(range(len(crops)), key=lambda i: -max(crops[i].shape[:2]))[:SAMPLE_LINES]
        upright = mean_confidence([texts[i] for i in longest])
        if upright > UPRIGHT_CONFIDENCE:
            return 0
        rotated = {90 * k: [np.ascontiguousarray(np.rot90(crops[i], k)) for i in longest] for k in (1, 2, 3)}
        confidences = {angle: mean_confidence(self._reader.recognise(lines)) for angle, lines in rotated.items()}
        best = max(confidences, key=lambda angle: confidences[angle])
        return best if confidences[best] > upright + 0.05 else 0

    def _read_rotated(self, bgr: NDArray[np.uint8], rotation: int) -> list[OcrLine]:
        upright = np.ascontiguousarray(np.rot90(bgr, rotation // 90))
        height, width = upright.shape[:2]
        quads = self._reader.detect(upright)
        if not len(quads):
            return []
        texts = self._reader.recognise([rectify(upright, quad) for quad in quads])
        lines = sort_reading_order(confident_lines(texts, quads))
        restore = {
            90: lambda q: np.stack([height - q[:, 1], q[:, 0]], axis=1),
            180: lambda q: np.stack([width - q[:, 0], height - q[:, 1]], axis=1),
            270: lambda q: np.stack([q[:, 1], width - q[:, 0]], axis=1),
        }[rotation]
        return [line._replace(quad_px=restore(line.quad_px).astype(np.float32)) for line in lines]


def confident_lines(texts: list[tuple[str, float]], quads: NDArray[np.float32]) -> list[OcrLine]:
    """Lines with a confidence over 0.5."""
    pairs = zip(texts, quads, strict=True)
    return [OcrLine(text, quad, score) for (text, score), quad in pairs if text.strip() and score > 0.5]


def mean_confidence(texts: list[tuple[str, float]]) -> float:
    """Mean confidence by character; a crop without text counts as one character of confidence 0."""
    letters = [max(len(text.strip()), 1) for text, _ in texts]
    return float(np.average([score if text.strip() else 0.0 for text, score in texts], weights=letters))


def quad_sides(quads: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Width and height of each quad, along its edges: two arrays (N,)."""
    top, right, bottom, left = np.linalg.norm(quads - np.roll(quads, -1, axis=1), axis=2).T
    return np.maximum(top, bottom), np.maximum(left, right)


def rectify(bgr: NDArray[np.uint8], quad: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The pixels under a quad as an upright rectangle of at least one pixel."""
    (width,), (height,) = quad_sides(quad[None])
    w, h = max(int(width), 1), max(int(height), 1)
    target = np.array([[0, 0], [w, 0], [w, h], [0, h]], dtype=np.float32)
    transform = cv2.getPerspectiveTransform(quad, target)
    return cv2.warpPerspective(bgr, transform, (w, h), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)


def sort_reading_order(lines: list[OcrLine]) -> list[OcrLine]:
    """Columns of running text one after another; within each, rows from top to bottom and left to right.

    Rows lie along the text's own direction: on a slanted sign the upper line comes first.
    """
    if len(lines) < 2:
        return lines
    direction = np.sum([line.quad_px[1] - line.quad_px[0] for line in lines], axis=0)
    x, y = direction / max(float(np.hypot(*direction)), 1e-9)
    level = np.array([[x, -y], [y, x]])  # turns the text's direction into the x axis
    quads = [line.quad_px @ level for line in lines]
    boxes = np.array([[*quad.min(axis=0), *quad.max(axis=0)] for quad in quads])  # (N, 4)
    return [lines[i] for i in _reading_order(boxes, np.arange(len(lines)))]


def _reading_order(boxes: NDArray[np.float64], indices: NDArray[np.int64]) -> list[int]:
    cut = _find_column_gap(boxes[indices])
    if cut is not None:
        left = boxes[indices, 0] < cut
        return _reading_order(boxes, indices[left]) + _reading_order(boxes, indices[~left])
    centre = (boxes[indices, 1] + boxes[indices, 3]) / 2
    rows: list[list[int]] = []
    for i in indices[np.argsort(centre, kind="stable")]:
        if rows and _is_same_row(boxes[rows[-1][-1]], boxes[i]):
            rows[-1].append(int(i))
        else:
            rows.append([int(i)])
    return [i for row in rows for i in sorted(row, key=lambda k: boxes[k, 0])]


def _is_same_row(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    overlap = min(a[3], b[3]) - max(a[1], b[1])
    return bool(overlap > 0.5 * min(a[3] - a[1], b[3] - b[1]))


def _find_column_gap(boxes: NDArray[np.float64]) -> float | None:
    """The x of a gap between two columns of running text; None for a table, whose cells are read by row."""
    if len(boxes) < 6:
        return None
    order = np.argsort(boxes[:, 0], kind="stable")
    reach = np.maximum.accumulate(boxes[order, 2])
    starts = boxes[order, 0]
    heights = boxes[:, 3] - boxes[:, 1]
    running = (boxes[:, 2] - boxes[:, 0]) > 8 * heights
    for k in range(2, len(boxes) - 3):
        gap = starts[k + 1] - reach[k]
        first, second = order[: k + 1], order[k + 1 :]
        if gap > 0.6 * np.median(heights) and running[first].mean() > 0.6 and running[second].mean() > 0.6:
            return float(starts[k + 1] - gap / 2)
    return None
