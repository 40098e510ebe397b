"""What lines of a page are to each other: a heading, a name, a number, as a reader sees it by where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rapidfuzz.distance import Levenshtein

from pixelis.data.oracle_session import Line, centre
from pixelis.geometry import UnitBox
from pixelis.metrics.overlap import box_iou

NUMBER = re.compile(r"[\d.,:%\s\-]*\d[\d.,:%\s\-]*")
KEY = re.compile(r"^(\w+)\s*[:：]\s*")
TITLE_STRIP: UnitBox = (0.0, 0.0, 1.0, 0.2)
"""Where titles stand."""
SAME_NAME = 0.35
"""A name that was asked for is recognised up to this distance in spelling."""


def is_number(text: str) -> bool:
    return NUMBER.fullmatch(text.strip()) is not None


def middle(line: Line) -> tuple[float, float]:
    return centre(line.span.box_unit)


def height(line: Line) -> float:
    return line.span.box_unit[3] - line.span.box_unit[1]


def merged(readings: Iterable[Line]) -> list[Line]:
    """Lines of several readings, each once: of two in one place the longer, or the surer."""
    kept: list[Line] = []
    for line in readings:
        same = next((k for k, other in enumerate(kept) if _same_place(line, other)), None)
        if same is None:
            kept.append(line)
        elif (len(line.text), line.span.score) > (len(kept[same].text), kept[same].span.score):
            kept[same] = line
    return kept


def _same_place(a: Line, b: Line) -> bool:
    if box_iou(a.span.box_unit, b.span.box_unit) > 0.3:
        return True
    (ax, ay), (bx, by) = middle(a), middle(b)
    return abs(ax - bx) < 0.03 and abs(ay - by) < 0.4 * height(a) and a.text == b.text


def renamed(line: Line, text: str) -> Line:
    return line._replace(span=line.span.model_copy(update={"text": text}))


def recognised(lines: Sequence[Line], names: Sequence[str]) -> list[Line]:
    """The lines, those that must be a name of the question spelled as the question has it."""
    found = list(lines)
    for name in names:
        best = min(range(len(found)), key=lambda k: apart(found[k].text, name), default=None)
        if best is not None and apart(found[best].text, name) <= SAME_NAME:
            found[best] = renamed(found[best], name)
    return found


def apart(read: str, name: str) -> float:
    return Levenshtein.normalized_distance(read.casefold().strip(), name.casefold())


def title(lines: Sequence[Line]) -> Line | None:
    """The heading: the topmost line."""
    return min((line for line in lines if not is_number(line.text)), key=lambda line: middle(line)[1], default=None)


def table(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Cells are numbers; names stand left of them in their rows; heads stand above the first row."""
    heading = title(lines)
    body = [line for line in lines if line is not heading]
    cells = [line for line in body if is_number(line.text)]
    words = [line for line in body if not is_number(line.text)]
    rows = [w for w in words if any(abs(middle(c)[1] - middle(w)[1]) < 0.6 * height(w) for c in cells)]
    top = min((middle(c)[1] for c in cells), default=1.0)
    heads = [w for w in words if w not in rows and middle(w)[1] < top]
    return {"cell": cells, "row": rows, "column": heads}


def chart(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Values are numbers; labels are the words of the lowest row."""
    heading = title(lines)
    body = [line for line in lines if line is not heading]
    words = [line for line in body if not is_number(line.text) and len(line.text.strip()) > 1]
    lowest = max((middle(w)[1] for w in words), default=0.0)
    labels = [part for w in words if abs(middle(w)[1] - lowest) < 0.04 for part in single_words(w)]
    values = [line for line in body if is_number(line.text) and middle(line)[1] < lowest]
    return {"value": values, "label": labels}


def single_words(line: Line) -> list[Line]:
    """The words of a line, each with its share of the box: neighbours that were read in one go."""
    words = line.text.split()
    if len(words) < 2:
        return [line]
    x0, y0, x1, y1 = line.span.box_unit
    letters, at, parts = len(line.text), 0, []
    for word in words:
        start = line.text.index(word, at)
        at = start + len(word)
        left, right = x0 + (x1 - x0) * start / letters, x0 + (x1 - x0) * at / letters
        quad = ((left, y0), (right, y0), (right, y1), (left, y1))
        parts.append(line._replace(span=line.span.model_copy(update={"text": word, "quad": quad})))
    return parts


def legend(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Labels with a percentage in the same row."""
    heading = title(lines)
    values = [line for line in lines if is_number(line.text) and line is not heading]
    words = [line for line in lines if line is not heading and not is_number(line.text) and len(line.text.strip()) > 1]
    labels = [w for w in words if any(abs(middle(v)[1] - middle(w)[1]) < 0.6 * height(w) for v in values)]
    return {"value": values, "label": labels}


def notice(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Entries `Key: value`, and the heading."""
    entries = [
        renamed(line, KEY.sub(lambda m: f"{m[1]}: ", line.text, count=1)) for line in lines if KEY.match(line.text)
    ]
    heading = title([line for line in lines if not KEY.match(line.text)])
    return {"line": entries, "title": [heading] if heading else []}


def entry_of(entries: Sequence[Line], key: str) -> Line | None:
    """The entry of a key: the one whose first word is nearest to it, if any is near."""
    best = min(entries, key=lambda line: apart(line.text.partition(":")[0], key), default=None)
    return best if best is not None and apart(best.text.partition(":")[0], key) <= SAME_NAME else None
