"""Everyday questions about signs and pages: the whole text, the first line, the text after a label."""

from __future__ import annotations

from collections.abc import Sequence

from pixelis.data.importers.dataset_questions import load_question_templates
from pixelis.items import Reference
from pixelis.world.programs import Facts, Unanswerable, get_box, get_centre, line_text, nearest


def lines_in_reading_order(references: Sequence[Reference]) -> list[str]:
    """Lines from top to bottom, those of one row from left to right."""
    rows: list[list[Reference]] = []
    for line in sorted(Facts(references).lines(), key=lambda r: get_centre(r)[1]):
        if rows and get_centre(line)[1] < get_box(rows[-1][0])[3]:  # its centre is not below the row's first line
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line_text(line) for row in rows for line in sorted(row, key=lambda r: get_box(r)[0])]


def _all_text(facts: Facts) -> str:
    lines = lines_in_reading_order(facts.references)
    if not lines:
        raise Unanswerable("nothing is written")
    return " ".join(lines)


def _title(facts: Facts) -> str:
    return line_text(nearest(facts.lines(), lambda r: get_box(r)[1]))


def _text_after_label(facts: Facts) -> str:
    label = facts.text("label").casefold()
    for line in lines_in_reading_order(facts.references):
        start, colon, rest = line.partition(":")
        if colon and start.strip().casefold() == label and rest.strip():
            return rest.strip()
    raise Unanswerable(f"nothing stands after {label!r}")


TEMPLATES = load_question_templates({"text.all": _all_text, "text.title": _title, "text.after": _text_after_label})
