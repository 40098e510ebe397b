"""PP-OCR (rapidocr's ONNX models): where text stands, which way up, and what it says."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.media.medium import Frame
from pixelis.weights import fingerprint, path_of

WEIGHTS = ("ocr-detection", "ocr-recognition")
DETECTION_SIDE = 1536
"""Longest side that text is looked for at. Only ever scales down: rapidocr's own default blows small regions up."""
SURE = 0.93
"""Lines of a page that is the right way up are read with more confidence than this, on the mean."""
SAMPLE_LINES = 4


class Line(NamedTuple):
    """A line of text with its corners in pixels, clockwise from the text's own top left."""

    text: str
    quad_px: NDArray[np.float32]
    """(4, 2)"""
    confidence: float


class Reading(NamedTuple):
    """The lines of a picture, and by how many degrees it was turned counter-clockwise before it was read."""

    lines: list[Line]
    turned: int


class PpOcr:
    """Reads text. Construction is cheap; the models load at the first reading."""

    backend = "PP-OCRv6 small, rapidocr 3.10"

    @property
    def fingerprint(self) -> str:
        return "+".join(fingerprint(name) for name in WEIGHTS)

    @cached_property
    def _engine(self) -> Any:
        from rapidocr import RapidOCR

        for name in WEIGHTS:
            path_of(name)  # or another release of the wheel would answer under the name of this one
        return RapidOCR(
            params={
                "Global.log_level": "critical",
                "Global.max_side_len": 4096,
                "Det.limit_type": "max",
                "Det.limit_side_len": DETECTION_SIDE,
                "Rec.rec_batch_num": 1,  # a batch pads every line to its widest: a quarter dearer on a CPU
                "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )

    def read(self, image: Frame) -> list[Line]:
        return self.read_page(image).lines

    def read_page(self, image: Frame) -> Reading:
        """The lines in reading order. A page on its side or head is turned first and read as a person would."""
        bgr = np.ascontiguousarray(image[:, :, ::-1])
        quads = self._find(bgr)
        if not len(quads):
            return Reading([], 0)
        crops = [straightened(bgr, quad) for quad in quads]
        read = self._texts(crops)
        turned = self._turned(crops, read)
        if turned:
            return Reading(self._read_turned(bgr, turned), turned)
        return Reading(in_reading_order(kept(read, quads)), 0)

    def _find(self, bgr: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(N, 4, 2) corners of the lines."""
        found = self._engine(bgr, use_det=True, use_cls=False, use_rec=False)
        boxes = getattr(found, "boxes", None)
        return np.zeros((0, 4, 2), np.float32) if boxes is None else np.asarray(boxes, dtype=np.float32)

    def _texts(self, crops: list[NDArray[np.uint8]]) -> list[tuple[str, float]]:
        from rapidocr.ch_ppocr_rec import TextRecInput

        read = self._engine._load_rec_model()(TextRecInput(img=crops))
        return [(text, float(score)) for text, score in zip(read.txts, read.scores, strict=True)]

    def _turned(self, crops: list[NDArray[np.uint8]], read: list[tuple[str, float]]) -> int:
        """By how many degrees to turn, counter-clockwise: the way up in which a few long lines are read best."""
        longest = sorted(range(len(crops)), key=lambda i: -max(crops[i].shape[:2]))[:SAMPLE_LINES]
        upright = certainty([read[i] for i in longest])
        if upright > SURE:
            return 0
        sure = {
            90 * k: certainty(self._texts([np.ascontiguousarray(np.rot90(crops[i], k)) for i in longest]))
            for k in (1, 2, 3)
        }
        best = max(sure, key=lambda angle: sure[angle])
        return best if sure[best] > upright + 0.05 else 0

    def _read_turned(self, bgr: NDArray[np.uint8], turned: int) -> list[Line]:
        upright = np.ascontiguousarray(np.rot90(bgr, turned // 90))
        height, width = upright.shape[:2]
        quads = self._find(upright)
        if not len(quads):
            return []
        lines = in_reading_order(kept(self._texts([straightened(upright, quad) for quad in quads]), quads))
        back = {
            90: lambda q: np.stack([height - q[:, 1], q[:, 0]], axis=1),
            180: lambda q: np.stack([width - q[:, 0], height - q[:, 1]], axis=1),
            270: lambda q: np.stack([q[:, 1], width - q[:, 0]], axis=1),
        }[turned]
        return [line._replace(quad_px=back(line.quad_px).astype(np.float32)) for line in lines]


def kept(read: list[tuple[str, float]], quads: NDArray[np.float32]) -> list[Line]:
    """What was read with more than even confidence."""
    return [
        Line(text, quad, score) for (text, score), quad in zip(read, quads, strict=True) if text.strip() and score > 0.5
    ]


def certainty(read: list[tuple[str, float]]) -> float:
    """Mean confidence by character; a crop in which nothing is read counts as one character of none."""
    letters = [max(len(text.strip()), 1) for text, _ in read]
    return float(np.average([score if text.strip() else 0.0 for text, score in read], weights=letters))


def sides(quads: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Width and height of each quad, along its own edges: two arrays (N,)."""
    width = np.maximum(
        np.linalg.norm(quads[:, 0] - quads[:, 1], axis=1), np.linalg.norm(quads[:, 2] - quads[:, 3], axis=1)
    )
    height = np.maximum(
        np.linalg.norm(quads[:, 0] - quads[:, 3], axis=1), np.linalg.norm(quads[:, 1] - quads[:, 2], axis=1)
    )
    return width, height


def straightened(bgr: NDArray[np.uint8], quad: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The pixels under a quad as an upright rectangle, at least one pixel each way."""
    (width,), (height,) = sides(quad[None])
    w, h = max(int(width), 1), max(int(height), 1)
    target = np.array([[0, 0], [w, 0], [w, h], [0, h]], dtype=np.float32)
    transform = cv2.getPerspectiveTransform(quad, target)
    return cv2.warpPerspective(bgr, transform, (w, h), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)


def in_reading_order(lines: list[Line]) -> list[Line]:
    """Columns of running text one after another; within each, rows from top to bottom and left to right.

    Rows lie along the text's own direction: on a slanted sign the upper line comes first.
    """
    if len(lines) < 2:
        return lines
    along = np.sum([line.quad_px[1] - line.quad_px[0] for line in lines], axis=0)
    x, y = along / max(float(np.hypot(*along)), 1e-9)
    level = np.array([[x, -y], [y, x]])  # turns the text's direction into the x axis
    quads = [line.quad_px @ level for line in lines]
    boxes = np.array([[*quad.min(axis=0), *quad.max(axis=0)] for quad in quads])  # (N, 4)
    return [lines[i] for i in _ordered(boxes, np.arange(len(lines)))]


def _ordered(boxes: NDArray[np.float64], which: NDArray[np.int64]) -> list[int]:
    cut = _column_cut(boxes[which])
    if cut is not None:
        left = boxes[which, 0] < cut
        return _ordered(boxes, which[left]) + _ordered(boxes, which[~left])
    centre = (boxes[which, 1] + boxes[which, 3]) / 2
    rows: list[list[int]] = []
    for i in which[np.argsort(centre, kind="stable")]:
        row = rows[-1] if rows else None
        if row and _same_row(boxes[row[-1]], boxes[i]):
            row.append(int(i))
        else:
            rows.append([int(i)])
    return [i for row in rows for i in sorted(row, key=lambda k: boxes[k, 0])]


def _same_row(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    shared = min(a[3], b[3]) - max(a[1], b[1])
    return bool(shared > 0.5 * min(a[3] - a[1], b[3] - b[1]))


def _column_cut(boxes: NDArray[np.float64]) -> float | None:
    """The x of a gap between two columns of running text; None for a table, whose cells are read along the row."""
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
