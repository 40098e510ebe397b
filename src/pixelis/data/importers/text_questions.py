"""Questions as people put them about signs and pages: all that it says, the first line, what stands after a label."""

from __future__ import annotations

from pixelis.data.importers.questions import annotated
from pixelis.world.item import Reference
from pixelis.world.programs import Parameters, References, Unanswerable, box_of, centre, nearest, says, spans, text_of
from pixelis.world.template import ChainStep, Template


def in_order(references: References) -> list[str]:
    """Lines from top to bottom; what stands in one row from left to right."""
    rows: list[list[Reference]] = []
    for one in sorted(spans(references), key=lambda r: centre(box_of(r))[1]):
        if rows and centre(box_of(one))[1] < box_of(rows[-1][0])[3]:  # its middle is not below the row's first line
            rows[-1].append(one)
        else:
            rows.append([one])
    return [says(one) for row in rows for one in sorted(row, key=lambda r: box_of(r)[0])]


def _all(references: References, parameters: Parameters) -> str:
    lines = in_order(references)
    if not lines:
        raise Unanswerable("nothing is written")
    return " ".join(lines)


def _title(references: References, parameters: Parameters) -> str:
    return says(nearest(spans(references), lambda r: box_of(r)[1]))


def _after(references: References, parameters: Parameters) -> str:
    label = text_of(parameters, "label").casefold()
    for line in in_order(references):
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
            annotated, _all, "anls", (READ,), reads_operands=True, doc="the lines that OCR read, in order",
        ),
        Template(
            "text.title", "document",
            (
                "What is the title of this {surface}?", "What is the heading of the {surface}?",
                "What does the first line say?", "Read the first line.", "What is written at the top of the {surface}?",
                "What is the title?", "Read the heading.", "Which words stand at the top?",
            ),
            annotated, _title, "anls", (READ,), doc="the topmost line",
        ),
        Template(
            "text.after", "document",
            (
                "What is the {name} on this {surface}?", "What does the {surface} say after {label}?",
                "Which {name} is given?", "What stands after {label}?", "What is the {name}?",
                "Read the {name} from the {surface}.", "What does it say next to {label}?",
            ),
            annotated, _after, "anls", (READ,), doc="what stands behind the label in its line",
        ),
    )
}  # fmt: skip
