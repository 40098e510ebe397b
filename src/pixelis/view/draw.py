"""Footprints as SVG, drawn over a picture in the picture's own pixels, so that they stay sharp at every size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from pixelis.core.geometry import Footprint, Mask, Size, Span, TextSpan, Track, UnitBox
from pixelis.trace.decisive import CallArguments

FULL_FRAME: UnitBox = (0.0, 0.0, 1.0, 1.0)
COLOURS = 8
MAX_LABELLED = 14
"""More labels than this would cover a picture; the list beside it has them all."""
LARGE_LETTERS = 0.06
"""Text over this share of the longer side is legible in the picture: it is outlined, not written over."""
PHONE_WIDTHS, SCREEN_WIDTHS = (332.0, 160.0), (600.0, 220.0)
"""Widths in CSS pixels of a picture and of one in a film strip, on a phone of 390 and a large screen (page.css)."""
MAX_HEIGHT_PX = 640.0
PHONE_LABEL_PX, SCREEN_LABEL_PX = 11.5, 12.0
LETTER_ASPECT = 0.64
"""Mean width of a letter by its height."""
MAX_CONTOURS = 160


class SvgCanvas(NamedTuple):
    """A picture to draw on: its size in pixels, and the part of the source frame that it shows."""

    size: Size
    window: UnitBox = FULL_FRAME
    frame: int = 0
    strip: bool = False
    """Whether it is one of a film strip, which are smaller."""

    def to_canvas(self, x: float, y: float) -> tuple[float, float]:
        """A point in unit coordinates of the source to pixels of the canvas."""
        x0, y0, x1, y1 = self.window
        return (x - x0) / (x1 - x0) * self.size.width, (y - y0) / (y1 - y0) * self.size.height

    @property
    def letter_height(self) -> float:
        """Font size of labels in pixels of the canvas, so that they have `PHONE_LABEL_PX` on a phone."""
        return PHONE_LABEL_PX / self._scale_at(PHONE_WIDTHS)

    @property
    def letter_share(self) -> int:
        """Tenths of `letter_height` that give `SCREEN_LABEL_PX` on a large screen, where the picture is larger."""
        share = SCREEN_LABEL_PX / self._scale_at(SCREEN_WIDTHS) / self.letter_height
        return min(max(math.ceil(10 * share), 3), 10)

    def _scale_at(self, widths: tuple[float, float]) -> float:
        """CSS pixels per pixel of the canvas."""
        return min(widths[self.strip] / self.size.width, MAX_HEIGHT_PX / self.size.height)


class Mark(NamedTuple):
    """A footprint with its colour, and the key that links its drawings to its entry in the list."""

    footprint: Footprint
    key: str
    colour: int


def make_marks(footprints: Sequence[Footprint], prefix: str) -> list[Mark]:
    """Assign colours: to a track by its id, to others in turn."""
    numbers = (f.track_id if isinstance(f, Track) else i for i, f in enumerate(footprints))
    return [Mark(f, f"{prefix}-f{i}", n % COLOURS) for i, (f, n) in enumerate(zip(footprints, numbers, strict=True))]


def draw(marks: Sequence[Mark], canvas: SvgCanvas) -> Markup:
    """Draw the footprints that lie on this canvas."""
    labelled = len(marks) <= MAX_LABELLED
    group = Markup('<g class="mark c{} {}" data-mark="{}"><title>{}</title>{}</g>')
    parts = []
    for mark in marks:
        if shape := draw_one(mark.footprint, canvas, labelled=labelled):
            title = clean(tooltip(mark.footprint))
            parts.append(group.format(mark.colour, mark.footprint.kind, mark.key, title, shape))
    return Markup("").join(parts)


def draw_one(footprint: Footprint, canvas: SvgCanvas, *, labelled: bool) -> Markup | None:
    if isinstance(footprint, Track):
        return draw_track(footprint, canvas)
    if isinstance(footprint, Span) or footprint.frame != canvas.frame:
        return None
    label = footprint.label if labelled else ""
    if isinstance(footprint, Mask):
        return draw_mask(footprint, canvas, label)
    if isinstance(footprint, TextSpan):
        return draw_text(footprint, canvas)
    return rectangle(footprint.box_unit, canvas) + label_at(footprint.box_unit, label, canvas)


def rectangle(box: UnitBox, canvas: SvgCanvas, kind: str = "shape") -> Markup:
    left, top = canvas.to_canvas(box[0], box[1])
    right, bottom = canvas.to_canvas(box[2], box[3])
    shape = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>')
    return shape.format(kind, left, top, max(right - left, 1.0), max(bottom - top, 1.0))


def draw_arguments(arguments: CallArguments, canvas: SvgCanvas) -> Markup:
    """Draw the boxes and points in a call's arguments, for a call without footprints."""
    boxes = [rectangle(box, canvas, kind) for box in arguments.boxes for kind in ("argument ground", "argument")]
    spots = [canvas.to_canvas(x, y) for x, y in arguments.points]
    dot = Markup('<circle class="argument" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>')
    return Markup("").join([*boxes, *(dot.format(x, y, 0.5 * canvas.letter_height) for x, y in spots)])


def label_at(box: UnitBox | None, label: str, canvas: SvgCanvas) -> Markup:
    """A label over a box, or inside it at the upper edge."""
    if not label or box is None:
        return Markup("")
    return label_text(*canvas.to_canvas(box[0], box[1]), label, canvas)


def label_text(left: float, top: float, label: str, canvas: SvgCanvas) -> Markup:
    """A label over a point, or under it at the upper edge; moved left if it would cross the right edge."""
    height = canvas.letter_height
    most = max(int(canvas.size.width / (LETTER_ASPECT * height)) - 1, 3)
    text = label if len(label) <= min(most, 40) else f"{label[: min(most, 40) - 1]}…"
    overflows = left + LETTER_ASPECT * height * (len(text) + 1) > canvas.size.width
    return Markup(
        '<g font-size="{:.1f}"><text class="label r{}{}" x="{:.1f}" y="{:.1f}" dx="{}" dy="{}">{}</text></g>'
    ).format(
        height, canvas.letter_share, " end" if overflows else "", canvas.size.width if overflows else max(left, 0.0),
        top, "-.2em" if overflows else ".2em", "-.4em" if top > 1.6 * height else "1.2em", clean(text),
    )  # fmt: skip


def draw_mask(mask: Mask, canvas: SvgCanvas, label: str) -> Markup | None:
    """The outline of a mask as one path with holes, and the label over its largest part."""
    import cv2

    x0, y0, x1, y1 = canvas.window
    crop = mask.model_copy().array[  # of a copy, since a mask caches its decoded array and a page may have many
        math.floor(y0 * mask.height) : math.ceil(y1 * mask.height),
        math.floor(x0 * mask.width) : math.ceil(x1 * mask.width),
    ]
    if not crop.any():
        return None
    grid = cv2.resize(crop.astype(np.uint8) * 255, tuple(canvas.size), interpolation=cv2.INTER_LINEAR)
    contours, _ = cv2.findContours((grid > 127).astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    largest = sorted(contours, key=cv2.contourArea, reverse=True)[:MAX_CONTOURS]
    outlines = [cv2.approxPolyDP(c, 0.8, closed=True).reshape(-1, 2) + 0.5 for c in largest]
    path = "".join("M" + "L".join(f"{x:g} {y:g}" for x, y in o) + "Z" for o in outlines if len(o) > 2)
    if not path:
        return None
    x, y = min(outlines[0].tolist(), key=lambda point: point[1])
    shape = Markup('<path class="shape" fill-rule="evenodd" d="{}"/>').format(path)
    return shape + label_text(x, y, label, canvas) if label else shape


def draw_text(span: TextSpan, canvas: SvgCanvas) -> Markup:
    """The line at its place, overwritten with the text that was read, in its direction and size."""
    quad = [canvas.to_canvas(x, y) for x, y in span.quad]
    (ax, ay), (bx, by), _, (dx, dy) = quad
    width, height = math.hypot(bx - ax, by - ay), math.hypot(dx - ax, dy - ay)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in quad)
    shape = Markup('<polygon class="shape" points="{}"/>').format(points)
    if width < 2.0 or height < 2.0 or not span.text.strip():
        return shape
    if height > LARGE_LETTERS * max(canvas.size):  # legible in the picture: do not hide it
        outline = Markup('<polygon class="shape outline" points="{}"/>').format(points)
        return outline + label_text(*min(quad, key=lambda corner: corner[1]), span.text, canvas)
    angle = math.degrees(math.atan2(by - ay, bx - ax))
    return shape + Markup(
        '<text class="read" transform="translate({:.1f} {:.1f}) rotate({:.2f})" x="{:.1f}" y="{:.1f}" '
        'font-size="{:.1f}" textLength="{:.1f}" lengthAdjust="spacingAndGlyphs">{}</text>'
    ).format(ax, ay, angle, 0.015 * width, 0.76 * height, 0.74 * height, 0.97 * width, clean(span.text))


def draw_track(track: Track, canvas: SvgCanvas) -> Markup | None:
    """The path of a track's centre, faint from this frame on, and its box on this frame."""
    centres = [canvas.to_canvas((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in track.boxes]
    past_count = sum(frame <= canvas.frame for frame in track.frames)
    path = polyline("trail", centres[:past_count]) + polyline("trail ahead", centres[max(past_count - 1, 0) :])
    box = track.box_at(canvas.frame)
    if box is None:
        return path if track.frames[0] <= canvas.frame <= track.frames[-1] else None
    name = f"{track.label} {track.track_id}".strip()
    x, y = canvas.to_canvas((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    dot = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(x, y, 0.22 * canvas.letter_height)
    return path + rectangle(box, canvas) + dot + label_at(box, name, canvas)


def polyline(kind: str, points: Sequence[tuple[float, float]]) -> Markup:
    """A line through at most about 120 of the points."""
    if len(points) < 2:
        return Markup("")
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*points[:: max(len(points) // 120, 1)], points[-1]])
    return Markup('<polyline class="{}" points="{}"/>').format(kind, corners)


def tooltip(footprint: Footprint) -> str:
    name = footprint.text if isinstance(footprint, TextSpan) else footprint.label or footprint.kind
    return f"{name[:200]} · {footprint.score:.2f}"


def clean(text: str) -> str:
    """Text without control characters."""
    return "".join(c if c.isprintable() or c in "\n\t " else "\N{REPLACEMENT CHARACTER}" for c in text)
