"""Everyday questions about signs and pages: the whole text, the first line, the text after a label."""

from __future__ import annotations

from pixelis.data.importers.dataset_questions import refuse_to_compose
from pixelis.items import Reference
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    centre,
    find_lines,
    get_box,
    get_line_text,
    get_text,
    nearest,
)
from pixelis.world.template import ChainStep, Template


def lines_in_reading_order(references: References) -> list[str]:
    """Lines from top to bottom, those of one row from left to right."""
    rows: list[list[Reference]] = []
    for line in sorted(find_lines(references), key=lambda r: centre(get_box(r))[1]):
        if rows and centre(get_box(line))[1] < get_box(rows[-1][0])[3]:  # its centre is not below the row's first line
            rows[-1].append(line)
        else:
            rows.append([line])
    return [get_line_text(line) for row in rows for line in sorted(row, key=lambda r: get_box(r)[0])]


def _all_text(references: References, parameters: Parameters) -> str:
    lines = lines_in_reading_order(references)
    if not lines:
        raise Unanswerable("nothing is written")
    return " ".join(lines)


def _title(references: References, parameters: Parameters) -> str:
    return get_line_text(nearest(find_lines(references), lambda r: get_box(r)[1]))


def _text_after_label(references: References, parameters: Parameters) -> str:
    label = get_text(parameters, "label").casefold()
    for line in lines_in_reading_order(references):
        start, colon, rest = line.partition(":")
        if colon and start.strip().casefold() == label and rest.strip():
            return rest.strip()
    raise Unanswerable(f"nothing stands after {label!r}")


READ = ChainStep(tool="OCR")
TEMPLATES: dict[str, Template] = {
    template.id: template
    for template in (
        Template(
            "text.all", "document",
            (
                "What does the {surface} say?", "Read the {surface}.", "What is written on the {surface}?",
                "What does this {surface} say?", "Read the text on this {surface}.", "What is written here?",
                "What text is on the {surface}?", "What does it say?", "Can you read the {surface}?",
                "What do the letters say?", "Read the text in the picture.", "What is the text on this {surface}?",
            ),
            refuse_to_compose, _all_text, "anls", (READ,), reads_operands=True, doc="the lines that OCR read, in order",
        ),
        Template(
            "text.title", "document",
            (
                "What is the title of this {surface}?", "What is the heading of the {surface}?",
                "What does the first line say?", "Read the first line.", "What is written at the top of the {surface}?",
                "What is the title?", "Read the heading.", "Which words stand at the top?",
            ),
            refuse_to_compose, _title, "anls", (READ,), doc="the topmost line",
        ),
        Template(
            "text.after", "document",
            (
                "What is the {name} on this {surface}?", "What does the {surface} say after {label}?",
                "Which {name} is given?", "What stands after {label}?", "What is the {name}?",
                "Read the {name} from the {surface}.", "What does it say next to {label}?",
            ),
            refuse_to_compose, _text_after_label, "anls", (READ,), doc="what stands behind the label in its line",
        ),
    )
}  # fmt: skip
