"""The oracle before signs and pages: read, look closer where a reading is unsure, and keep the lines that count."""

from __future__ import annotations

from pixelis.data.oracle_acts import SURE_READING, Hands
from pixelis.data.oracle_session import Line, as_read, centre
from pixelis.geometry import UnitBox

NOISE = 0.6
"""Lines of one or two letters under this confidence are no text: grounds are read as letters too."""


def lines_of(h: Hands) -> list[Line]:
    """All lines; those of a closer view where the first reading was unsure, or just to be sure."""
    s = h.s
    what = str(s.item.parameters.get("surface", "text"))
    lines = clean(s.read(what, s.choose(("read", "skim"))))
    if not lines:
        return lines
    unsure = min(line.span.score for line in lines) < SURE_READING
    if unsure or h.detours.take("reread", 2, scale=0.3):
        box = h.s.room(around([line.span.box_unit for line in lines]), 0.02)
        view = s.zoom(box, what)
        again = clean(s.read(what, "read", media=view.view)) if view.ok else []
        if again and confidence(again) >= confidence(lines) and letters(again) >= 0.9 * letters(lines):
            return again
    return lines


def clean(lines: list[Line]) -> list[Line]:
    return [line for line in lines if len(line.text.strip()) > 2 or line.span.score >= NOISE]


def confidence(lines: list[Line]) -> float:
    return sum(line.span.score for line in lines) / len(lines)


def letters(lines: list[Line]) -> int:
    return sum(len(line.text) for line in lines)


def around(boxes: list[UnitBox]) -> UnitBox:
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def everything(h: Hands) -> None:
    """The whole text, or what the program finds in it."""
    for line in lines_of(h):
        h.s.note_line(line)


def at_point(h: Hands) -> None:
    """Zoom to the point, read there; the whole picture where that gave nothing."""
    s = h.s
    given = s.item.parameters["point"]
    x, y = (float(str(v)) for v in (given if isinstance(given, tuple) else (given,)))
    box = as_read((max(x - 0.15, 0.0), max(y - 0.08, 0.0), min(x + 0.15, 1.0), min(y + 0.08, 1.0)))
    lines = h.read_view(h.closer(box, "text"), "text")
    covering = [line for line in lines if covers(line.span.box_unit, x, y)]
    if not covering or covering[0].span.score < SURE_READING:
        covering = covering or [line for line in s.read("text", "reread") if covers(line.span.box_unit, x, y)]
    nearest = min(covering, key=lambda line: abs(centre(line.span.box_unit)[0] - x), default=None)
    if nearest is not None:
        s.note_line(nearest)


def covers(box: UnitBox, x: float, y: float) -> bool:
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


SOLVERS = {
    "ocr.at": at_point,
    "ocr.largest": everything,
    "text.all": everything,
    "text.title": everything,
    "text.after": everything,
}
