"""The roles of lines on a page (heading, name, number), from their text and position."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rapidfuzz.distance import Levenshtein

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle.oracle_session import OracleLine, box_centre
from pixelis.metrics.overlap import box_iou

NUMBER_PATTERN = re.compile(r"[\d.,:%\s\-]*\d[\d.,:%\s\-]*")
KEY_PATTERN = re.compile(r"^(\w+)\s*[:：]\s*")
TITLE_STRIP: UnitBox = (0.0, 0.0, 1.0, 0.2)
"""The part of a page that contains the title."""
MAX_NAME_DISTANCE = 0.35
"""The largest spelling distance at which a line is taken for a name of the question."""


def is_number(text: str) -> bool:
    return NUMBER_PATTERN.fullmatch(text.strip()) is not None


def line_centre(line: OracleLine) -> tuple[float, float]:
    return box_centre(line.span.box_unit)


def line_height(line: OracleLine) -> float:
    return line.span.box_unit[3] - line.span.box_unit[1]


def merge_lines(readings: Iterable[OracleLine]) -> list[OracleLine]:
    """Merge several readings: of two lines in one place, keep the longer or the more confident one."""
    unique_lines: list[OracleLine] = []
    for line in readings:
        duplicate_index = next((k for k, other in enumerate(unique_lines) if _same_place(line, other)), None)
        if duplicate_index is None:
            unique_lines.append(line)
        elif (len(line.text), line.span.score) > (
            len(unique_lines[duplicate_index].text),
            unique_lines[duplicate_index].span.score,
        ):
            unique_lines[duplicate_index] = line
    return unique_lines


def _same_place(a: OracleLine, b: OracleLine) -> bool:
    if box_iou(a.span.box_unit, b.span.box_unit) > 0.3:
        return True
    (ax, ay), (bx, by) = line_centre(a), line_centre(b)
    return abs(ax - bx) < 0.03 and abs(ay - by) < 0.4 * line_height(a) and a.text == b.text


def with_text(line: OracleLine, text: str) -> OracleLine:
    return line._replace(span=line.span.model_copy(update={"text": text}))


def snap_to_names(lines: Sequence[OracleLine], names: Sequence[str]) -> list[OracleLine]:
    """The lines, with those nearest to a name of the question spelled like it."""
    snapped = list(lines)
    for name in names:
        best = min(range(len(snapped)), key=lambda k: spelling_distance(snapped[k].text, name), default=None)
        if best is not None and spelling_distance(snapped[best].text, name) <= MAX_NAME_DISTANCE:
            snapped[best] = with_text(snapped[best], name)
    return snapped


def spelling_distance(text: str, name: str) -> float:
    return Levenshtein.normalized_distance(text.casefold().strip(), name.casefold())


def find_heading(lines: Sequence[OracleLine]) -> OracleLine | None:
    """The topmost line that is not a number."""
    return min(
        (line for line in lines if not is_number(line.text)), key=lambda line: line_centre(line)[1], default=None
    )


def arrange_table(lines: Sequence[OracleLine]) -> dict[str, list[OracleLine]]:
    """Cells are numbers; row names share a row with them; column headings are above the first row."""
    heading = find_heading(lines)
    body = [line for line in lines if line is not heading]
    cells = [line for line in body if is_number(line.text)]
    words = [line for line in body if not is_number(line.text)]
    rows = [w for w in words if any(abs(line_centre(c)[1] - line_centre(w)[1]) < 0.6 * line_height(w) for c in cells)]
    top = min((line_centre(c)[1] for c in cells), default=1.0)
    headers = [w for w in words if w not in rows and line_centre(w)[1] < top]
    return {"cell": cells, "row": rows, "column": headers}


def arrange_chart(lines: Sequence[OracleLine]) -> dict[str, list[OracleLine]]:
    """Values are numbers; labels are the words of the lowest row."""
    heading = find_heading(lines)
    body = [line for line in lines if line is not heading]
    words = [line for line in body if not is_number(line.text) and len(line.text.strip()) > 1]
    lowest = max((line_centre(w)[1] for w in words), default=0.0)
    labels = [part for w in words if abs(line_centre(w)[1] - lowest) < 0.04 for part in split_words(w)]
    values = [line for line in body if is_number(line.text) and line_centre(line)[1] < lowest]
    return {"value": values, "label": labels}


def split_words(line: OracleLine) -> list[OracleLine]:
    """Split a line into words, each with its share of the box: neighbours may be read as one line."""
    words = line.text.split()
    if len(words) < 2:
        return [line]
    x0, y0, x1, y1 = line.span.box_unit
    length, offset, parts = len(line.text), 0, []
    for word in words:
        start = line.text.index(word, offset)
        offset = start + len(word)
        left, right = x0 + (x1 - x0) * start / length, x0 + (x1 - x0) * offset / length
        quad = ((left, y0), (right, y0), (right, y1), (left, y1))
        parts.append(line._replace(span=line.span.model_copy(update={"text": word, "quad": quad})))
    return parts


def arrange_legend(lines: Sequence[OracleLine]) -> dict[str, list[OracleLine]]:
    """Labels with a percentage in the same row."""
    heading = find_heading(lines)
    values = [line for line in lines if is_number(line.text) and line is not heading]
    words = [line for line in lines if line is not heading and not is_number(line.text) and len(line.text.strip()) > 1]
    heights = [line_centre(v)[1] for v in values]
    labels = [w for w in words if any(abs(y - line_centre(w)[1]) < 0.6 * line_height(w) for y in heights)]
    return {"value": values, "label": labels}


def arrange_notice(lines: Sequence[OracleLine]) -> dict[str, list[OracleLine]]:
    """Entries `Key: value`, and the heading."""
    entries = [
        with_text(line, KEY_PATTERN.sub(lambda m: f"{m[1]}: ", line.text, count=1))
        for line in lines
        if KEY_PATTERN.match(line.text)
    ]
    heading = find_heading([line for line in lines if not KEY_PATTERN.match(line.text)])
    return {"line": entries, "title": [heading] if heading else []}


def find_entry(entries: Sequence[OracleLine], key: str) -> OracleLine | None:
    """The entry whose key is nearest in spelling, if any is near enough."""
    distances = [spelling_distance(line.text.partition(":")[0], key) for line in entries]
    nearest = min(distances, default=MAX_NAME_DISTANCE + 1)
    return entries[distances.index(nearest)] if nearest <= MAX_NAME_DISTANCE else None
