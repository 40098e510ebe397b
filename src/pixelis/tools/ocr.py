"""OCR (also READ): the text of a region or a whole frame, with where each line stands."""

from __future__ import annotations

import json

import numpy as np
from pydantic import Field

from pixelis.core.geometry import FULL_FRAME, Size, TextSpan, UnitBox, Value, round_unit, to_pixels
from pixelis.media.medium import Frame, frame_size
from pixelis.media.query import resample
from pixelis.tools.backends.ppocr import WEIGHTS, OcrLine, PpOcr
from pixelis.tools.base import AreaBox, FrameArgs, Observation, Scene, Tool, coordinates
from pixelis.tools.results import ToolIdentity

MARGIN = 0.25
"""A region is read with a margin of this share of its height: glyphs that touch an edge are misread."""


class OcrArgs(FrameArgs):
    """Where to read."""

    box: AreaBox | None = Field(
        default=None, description="region [x0, y0, x1, y1] from 0 to 1; the whole frame if left out"
    )


class OcrOutput(Value):
    """What was read."""

    text: str
    """Lines in reading order, joined by line breaks."""
    lines: int
    turned_degrees: int
    """Counter-clockwise rotation of the picture before it was read."""


class Ocr(Tool[OcrArgs]):
    """PP-OCR over a region."""

    name = "OCR"
    summary = "Read the text in a region or in the whole frame."
    Args = OcrArgs
    Output = OcrOutput
    version = "2"
    weights = WEIGHTS
    decisive_confidence = 0.6

    def __init__(self) -> None:
        self._reader = PpOcr()

    def identity(self) -> ToolIdentity:
        backend, weights = self._reader.backend, self._reader.fingerprint
        return ToolIdentity(tool=self.name, version=self.version, backend=backend, weights=weights)

    def look(self, args: OcrArgs, scene: Scene) -> Observation:
        index = scene.index(args)
        region = add_margin(args.box, scene.medium.size) if args.box else FULL_FRAME
        side = scene.limits.ocr_side
        key = f"ocr {Ocr.version}/{self._reader.fingerprint}/{scene.medium.sha256}/{index}/{region}/{side}"
        cached = json.loads(scene.perceive(key, lambda: self._read_region(scene.frame(index), region, side)))
        spans = [TextSpan(frame=index, **span) for span in cached["spans"]]
        if args.box:
            spans = [span for span in spans if contains_centre(span.box_unit, args.box)]
        return build_observation(spans, cached["turned"], scene.limits.regions)

    def _read_region(self, frame: Frame, region: UnitBox, side: int) -> bytes:
        left, top, right, bottom = to_pixels(region, frame_size(frame)).pixel_bounds(frame_size(frame))
        shrink = min(1.0, side / max(right - left, bottom - top))
        size = Size(right - left, bottom - top).scaled(shrink)
        lines, rotation = self._reader.read_page(resample(frame, region, size))
        origin = np.array([left / frame.shape[1], top / frame.shape[0]])
        scale = np.array([(right - left) / frame.shape[1], (bottom - top) / frame.shape[0]]) / np.array(size)
        return json.dumps({"turned": rotation, "spans": [_span_fields(line, origin, scale) for line in lines]}).encode()


def _span_fields(line: OcrLine, origin: np.ndarray, scale: np.ndarray) -> dict[str, object]:
    corners = np.clip(origin + line.quad_px * scale, 0.0, 1.0)
    quad = [[round_unit(x), round_unit(y)] for x, y in corners]
    return {"text": line.text, "score": round_unit(min(line.confidence, 1.0)), "quad": quad}


def add_margin(box: UnitBox, size: Size) -> UnitBox:
    """The region with a margin, within the frame."""
    x0, y0, x1, y1 = box
    dy = MARGIN * (y1 - y0)
    dx = min(dy * size.height / size.width, MARGIN * (x1 - x0))
    return max(x0 - dx, 0.0), max(y0 - dy, 0.0), min(x1 + dx, 1.0), min(y1 + dy, 1.0)


def contains_centre(inner: UnitBox, outer: UnitBox) -> bool:
    x, y = (inner[0] + inner[2]) / 2, (inner[1] + inner[3]) / 2
    return outer[0] <= x <= outer[2] and outer[1] <= y <= outer[3]


def build_observation(spans: list[TextSpan], rotation: int, max_lines: int) -> Observation:
    """Lines as a policy reads them: each quoted, with its box."""
    text = "\n".join(span.text for span in spans)
    letters = [max(len(span.text), 1) for span in spans]
    confidence = float(np.average([span.score for span in spans], weights=letters)) if spans else 0.0
    listing = "; ".join(f'"{span.text}" at {coordinates(span.box_unit)}' for span in spans[:max_lines])
    remainder = f" … and {len(spans) - max_lines} more lines" if len(spans) > max_lines else ""
    summary = f"{len(spans)} lines: {listing}{remainder}" if len(spans) > 1 else (listing or "no text")
    output = OcrOutput(text=text, lines=len(spans), turned_degrees=rotation)
    return Observation(text=summary, output=output, footprints=tuple(spans), confidence=confidence)
