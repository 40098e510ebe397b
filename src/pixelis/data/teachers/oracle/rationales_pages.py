"""Conclusions about what was read: tables, charts, notices and slides; for the families document and lecture."""

from __future__ import annotations

import re
from collections.abc import Callable

from pixelis.data.teachers.oracle.column_arithmetic import write_column_arithmetic
from pixelis.data.teachers.oracle.page_layout import TITLE_STRIP
from pixelis.data.teachers.oracle.rationale_context import RationaleContext, Wordings, require
from pixelis.world import Reference
from pixelis.world.programs import format_number, get_box, get_centre, line_text, nearest, parse_number
from pixelis.world.tasks.charts import find_at_height, value_above
from pixelis.world.tasks.document import find_cell

SUM_PATTERN = re.compile(r"(\d+) ?([+-]) ?(\d+)")

# --- tables and charts


def format_positions(context: RationaleContext, *notes_and_axes: tuple[Reference, int]) -> list[str]:
    """` at x 0.12` for each, if all were printed on the same picture or view; else nothing."""
    printed_boxes = [context.locate(note) for note, _ in notes_and_axes]
    if len({view.recipe if view else None for _, view in printed_boxes}) > 1:
        return [""] * len(notes_and_axes)
    return [
        f" at {'xy'[axis]} {box[axis]:.2f}" for (box, _), (_, axis) in zip(printed_boxes, notes_and_axes, strict=True)
    ]


def value_text(context: RationaleContext, label: str) -> str:
    """The number over a name."""
    return line_text(value_above(context.facts, label))


def explain_cell(context: RationaleContext) -> Wordings:
    """The places of the row and the column, then what is in the cell."""
    row, column = (context.facts.line(context.parameter(key), role=key) for key in ("row", "column"))
    y, x = format_positions(context, (row, 1), (column, 0))
    return context.say("document.cell", x=x, y=y)


def explain_best_row(context: RationaleContext) -> Wordings:
    column = context.facts.line(context.parameter("column"), role="column")
    rows = sorted(context.facts.lines(role="row"), key=lambda r: get_box(r)[1])
    return explain_best(context, [(line_text(r), line_text(find_cell(context.facts, r, column))) for r in rows])


def explain_best_label(context: RationaleContext) -> Wordings:
    labels = [line_text(r) for r in sorted(context.facts.lines(role="label"), key=lambda r: get_box(r)[0])]
    values = [(label, value_text(context, label)) for label in labels]
    under: Wordings = ()
    if context.answer.casefold() in [label.casefold() for label in labels]:
        under = context.say("best.under", value=value_text(context, context.answer))
    return (*under, *explain_best(context, values))


def explain_best(context: RationaleContext, values: list[tuple[str, str]]) -> Wordings:
    """Every name with its number, and the one that is asked for."""
    best_values = [text for name, text in values if name == context.answer]
    if not best_values or len(values) > 12:
        return context.say("without_numbers")
    items_text = ", ".join(f"{name} {text}" for name, text in values)
    return context.say("best", items=items_text, best=best_values[0])


def explain_value_over(context: RationaleContext) -> Wordings:
    name = context.parameter("label")
    label = context.facts.line(name, role="label")
    x, position = format_positions(context, (label, 0), (value_above(context.facts, name), 0))
    return context.say("value_over", x=x, position=position)


def explain_difference(context: RationaleContext) -> Wordings:
    a, b = (value_text(context, context.parameter(key)) for key in ("a", "b"))
    arithmetic = write_arithmetic(context, parse_number(a), "-", parse_number(b))
    return context.say("document.difference", value_a=a, value_b=b, arithmetic=arithmetic)


def write_arithmetic(context: RationaleContext, a: float, sign: str, b: float) -> str:
    """A sum with its result; with canonical wording digit by digit, if all is whole and the result is the answer."""
    result = a + b if sign == "+" else a - b
    can_write_out = a.is_integer() and b.is_integer() and min(a, b, result) >= 0
    if not context.canonical_wording or not can_write_out or format_number(result) != context.answer:
        return f"{a:g} {sign} {b:g} = {context.answer}"
    return write_column_arithmetic(int(a), sign, int(b))


def explain_coloured_value(context: RationaleContext) -> Wordings:
    column = context.find_thing(context.parameter("target"))
    values = [r for r in context.facts.lines(role="value") if line_text(r) == context.answer]
    value = nearest(values, lambda r: abs(get_centre(r)[0] - get_centre(column)[0]))
    x, position = format_positions(context, (column, 0), (value, 0))
    return context.say("document.colour_value", x=x, position=position)


def explain_beside(context: RationaleContext, key: str, note: Reference, role: str) -> Wordings:
    """What is in the same row as something."""
    beside = find_at_height(context.facts, get_centre(note)[1], role)
    y, position = format_positions(context, (note, 1), (beside, 1))
    return context.say(key, y=y, position=position)


def explain_percentage(context: RationaleContext) -> Wordings:
    label = context.facts.line(context.parameter("label"), role="label")
    return explain_beside(context, "document.share", label, "value")


def explain_legend(context: RationaleContext) -> Wordings:
    return explain_beside(context, "document.legend", context.find_thing(context.parameter("target")), "label")


# --- notices


def reread_title_lines(context: RationaleContext) -> list[str]:
    """The lines of the strip of a title, if that was the last call."""
    call, result = context.drafts[-1].call, context.drafts[-1].result
    is_title_strip = call.tool == "OCR" and call.args.get("box") == list(TITLE_STRIP) and result.ok
    return str(result.output["text"]).splitlines() if is_title_strip else []


def explain_more_seats(context: RationaleContext) -> Wordings:
    """The entry on both notices, and the title of the one with more."""
    key, values = context.parameter("key"), list[str]()
    for media in ("Image_0", "Image_1"):
        lines = [line_text(r).partition(": ") for r in context.facts.lines(media, role="line")]
        values += [after for before, _, after in lines if before == key][:1]
    require(len(values) == 2)
    larger = "Image_0" if parse_number(values[0]) > parse_number(values[1]) else "Image_1"
    if context.canonical_wording and context.answer in reread_title_lines(context):
        return context.say("document.pair_more.title", larger=larger)
    return context.say("document.pair_more", first=values[0], second=values[1], larger=larger, noun=key.lower())


# --- slides


def explain_then(context: RationaleContext) -> Wordings:
    """With the time at which the mark was found to appear, if it was."""
    appearances = context.facts.spans(f"{context.parameter('target')} appears")
    return context.say(context.item.template, time=f" at {appearances[0].start_s:.2f} s" if appearances else "")


def taken_lines(context: RationaleContext) -> list[Reference]:
    """The lines that the solver took its values from, in the order of the question."""
    return context.facts.lines(role="taken")


def explain_task(context: RationaleContext) -> Wordings:
    lines = taken_lines(context)
    require(bool(lines))
    task = line_text(lines[0])
    if context.canonical_wording and (m := SUM_PATTERN.fullmatch(task)):
        arithmetic = write_arithmetic(context, float(m[1]), m[2], float(m[3]))
        return context.say("lecture.task.written_out", arithmetic=arithmetic)
    return context.say("lecture.task", task=task)


def explain_pointed(context: RationaleContext) -> Wordings:
    target, lines = context.parameter("target"), taken_lines(context)
    marks = [r.footprint for r in context.notes if r.footprint.kind == "track" and r.footprint.label == target]
    if context.canonical_wording or not lines or not marks or not context.is_on_picture(lines[0]):
        return context.say("lecture.pointed.without_numbers")
    return context.say("lecture.pointed", y=marks[0].boxes[0][1], line_y=context.locate(lines[0]).box[1])


def explain_two_values(context: RationaleContext) -> Wordings:
    """The sum of two values, or how far they differ."""
    values = [float(str(r.properties["value"])) for r in taken_lines(context)]
    require(len(values) == 2)
    is_sum = context.item.template == "lecture.sum"
    operands = values if is_sum else sorted(values, reverse=True)
    arithmetic = write_arithmetic(context, operands[0], "+" if is_sum else "-", operands[1])
    return context.say(context.item.template, first=values[0], second=values[1], arithmetic=arithmetic)


def explain_slide_count(context: RationaleContext) -> Wordings:
    cuts = len(context.facts.spans("cut"))
    require(str(cuts + 1) == context.answer)
    return context.say("lecture.count", cuts=cuts, many="1 cut" if cuts == 1 else f"{cuts} cuts")


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "document.cell": explain_cell,
    "document.row_most": explain_best_row,
    "document.column_value": explain_value_over,
    "document.most_label": explain_best_label,
    "document.difference": explain_difference,
    "document.colour_value": explain_coloured_value,
    "document.month_value": explain_value_over,
    "document.peak": explain_best_label,
    "document.share": explain_percentage,
    "document.legend": explain_legend,
    "document.pair_more": explain_more_seats,
    "lecture.title_when": explain_then,
    "lecture.value_when": explain_then,
    "lecture.task": explain_task,
    "lecture.pointed": explain_pointed,
    "lecture.sum": explain_two_values,
    "lecture.change": explain_two_values,
    "lecture.count": explain_slide_count,
}
