"""Solvers for signs and pages: read, and read unsure lines again in a closer view."""

from __future__ import annotations

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle.oracle_session import OracleLine, box_centre, snap_box
from pixelis.data.teachers.oracle.picture_actions import MIN_READING_CONFIDENCE, PictureActions

MIN_SHORT_LINE_CONFIDENCE = 0.6
"""Lines of one or two characters below this confidence are dropped: grounds are read as letters too."""


def read_text_lines(actions: PictureActions) -> list[OracleLine]:
    """All lines; perhaps from a closer view, if the first reading was unsure or as a detour."""
    session = actions.session
    subject = str(session.item.parameters.get("surface", "text"))
    lines = drop_noise(session.read(subject, session.choose(("read", "skim"))))
    if not lines:
        return lines
    is_unsure = min(line.span.score for line in lines) < MIN_READING_CONFIDENCE
    if is_unsure or actions.detours.should_take("reread", 2, scale=0.3):
        box = actions.session.with_margin(bounding_box([line.span.box_unit for line in lines]), 0.02)
        view = session.zoom(box, subject)
        closer_lines = drop_noise(session.read(subject, "read", media=view.view)) if view.ok else []
        if (
            closer_lines
            and mean_confidence(closer_lines) >= mean_confidence(lines)
            and count_characters(closer_lines) >= 0.9 * count_characters(lines)
        ):
            return closer_lines
    return lines


def drop_noise(lines: list[OracleLine]) -> list[OracleLine]:
    return [line for line in lines if len(line.text.strip()) > 2 or line.span.score >= MIN_SHORT_LINE_CONFIDENCE]


def mean_confidence(lines: list[OracleLine]) -> float:
    return sum(line.span.score for line in lines) / len(lines)


def count_characters(lines: list[OracleLine]) -> int:
    return sum(len(line.text) for line in lines)


def bounding_box(boxes: list[UnitBox]) -> UnitBox:
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def solve_all_lines(actions: PictureActions) -> None:
    """Note all lines, for the program."""
    for line in read_text_lines(actions):
        actions.session.note_line(line)


def solve_at_point(actions: PictureActions) -> None:
    """Zoom to the point and read there, or read the whole picture if that gives nothing."""
    session = actions.session
    point = session.item.parameters["point"]
    x, y = (float(str(v)) for v in (point if isinstance(point, tuple) else (point,)))
    box = snap_box((max(x - 0.15, 0.0), max(y - 0.08, 0.0), min(x + 0.15, 1.0), min(y + 0.08, 1.0)))
    lines = actions.read_view(actions.zoom_in(box, "text"), "text")
    covering_lines = [line for line in lines if contains_point(line.span.box_unit, x, y)]
    if not covering_lines or covering_lines[0].span.score < MIN_READING_CONFIDENCE:
        covering_lines = covering_lines or [
            line for line in session.read("text", "reread") if contains_point(line.span.box_unit, x, y)
        ]
    nearest = min(covering_lines, key=lambda line: abs(box_centre(line.span.box_unit)[0] - x), default=None)
    if nearest is not None:
        session.note_line(nearest)


def contains_point(box: UnitBox, x: float, y: float) -> bool:
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


SOLVERS = {
    "ocr.at": solve_at_point,
    "ocr.largest": solve_all_lines,
    "text.all": solve_all_lines,
    "text.title": solve_all_lines,
    "text.after": solve_all_lines,
}
