"""Conclusions about what was read: tables, charts, notices and slides; for the families document and lecture."""

from __future__ import annotations

import re
from collections.abc import Callable

from pixelis.data.teachers.oracle.column_arithmetic import write_column_arithmetic
from pixelis.data.teachers.oracle.page_layout import TITLE_STRIP
from pixelis.data.teachers.oracle.rationale_context import RationaleContext, two_decimals
from pixelis.data.teachers.oracle.rationales_pictures import Wordings, explain_without_numbers
from pixelis.world import Reference
from pixelis.world.programs import (
    centre,
    find_lines,
    find_printed_line,
    find_time_spans,
    format_number,
    get_box,
    get_line_text,
    nearest,
    parse_number,
)

SUM_PATTERN = re.compile(r"(\d+) ?([+-]) ?(\d+)")

# --- tables and charts


def format_positions(context: RationaleContext, *notes_and_axes: tuple[Reference, int]) -> list[str]:
    """` at x 0.12` for each, where all were printed on the same picture or view; else nothing."""
    printed_boxes = [context.locate(note) for note, _ in notes_and_axes]
    if len({view.recipe if view else None for _, view in printed_boxes}) > 1:
        return [""] * len(notes_and_axes)
    return [
        f" at {'xy'[axis]} {two_decimals(box[axis])}"
        for (box, _), (_, axis) in zip(printed_boxes, notes_and_axes, strict=True)
    ]


def value_above(context: RationaleContext, label: str) -> Reference:
    """The number over a name."""
    x = centre(get_box(find_printed_line(context.notes, label, role="label")))[0]
    return nearest(find_lines(context.notes, role="value"), lambda r: abs(centre(get_box(r))[0] - x))


def line_beside(context: RationaleContext, note: Reference, role: str) -> Reference:
    """What is in the same row."""
    y = centre(get_box(note))[1]
    return nearest(find_lines(context.notes, role=role), lambda r: abs(centre(get_box(r))[1] - y))


def find_line(context: RationaleContext, text: str, role: str) -> Reference | None:
    return next(
        (r for r in find_lines(context.notes, role=role) if get_line_text(r).casefold() == text.casefold()), None
    )


def find_cell(context: RationaleContext, row: Reference, column: Reference) -> Reference:
    y, x = centre(get_box(row))[1], centre(get_box(column))[0]

    def distance_to_crossing(r: Reference) -> float:
        across, down = centre(get_box(r))
        return abs(across - x) + abs(down - y)

    return nearest(find_lines(context.notes, role="cell"), distance_to_crossing)


def explain_cell(context: RationaleContext) -> Wordings:
    """Where the row and the column are, then what stands there."""
    names = context.parameter("row"), context.parameter("column")
    row, column = find_line(context, names[0], "row"), find_line(context, names[1], "column")
    if row is None or column is None:
        return explain_without_numbers(context)
    y, x = format_positions(context, (row, 1), (column, 0))
    return (
        f"There stands {context.answer_text}.",
        f"{names[0]}{y}, {names[1]}{x}: {context.answer_text}.",
        f"Row {names[0]}{y}, column {names[1]}{x}; there stands {context.answer_text}.",
    )


def explain_best_row(context: RationaleContext) -> Wordings:
    column = find_line(context, context.parameter("column"), "column")
    if column is None:
        return explain_without_numbers(context)
    rows = sorted(find_lines(context.notes, role="row"), key=lambda r: get_box(r)[1])
    return explain_best(context, [(get_line_text(r), get_line_text(find_cell(context, r, column))) for r in rows])


def explain_best_label(context: RationaleContext) -> Wordings:
    labels = sorted(find_lines(context.notes, role="label"), key=lambda r: get_box(r)[0])
    first_wording = (
        f"Under {get_line_text(value_above(context, context.answer_text))} stands {context.answer_text}."
        if find_line(context, context.answer_text, "label")
        else ""
    )
    other_wordings = explain_best(
        context, [(get_line_text(r), get_line_text(value_above(context, get_line_text(r)))) for r in labels]
    )
    return (first_wording, *other_wordings) if first_wording else other_wordings


def explain_best(context: RationaleContext, values: list[tuple[str, str]]) -> Wordings:
    """Every name with its number, and the one that counts."""
    ranking_word = context.parameter("most")
    best_values = [text for name, text in values if name == context.answer_text]
    if not best_values or len(values) > 12:
        return explain_without_numbers(context)
    items_text = ", ".join(f"{name} {text}" for name, text in values)
    return (
        f"{items_text}: {ranking_word} is {best_values[0]}, {context.answer_text}.",
        f"{items_text}; the {ranking_word} is {best_values[0]} of {context.answer_text}.",
    )


def explain_value_over(context: RationaleContext) -> Wordings:
    name = context.parameter("label")
    label = find_line(context, name, "label")
    if label is None:
        return explain_without_numbers(context)
    x, value_position = format_positions(context, (label, 0), (value_above(context, name), 0))
    return (
        f"Over {name} stands {context.answer_text}.",
        f"{name}{x} has {context.answer_text}{value_position} above it.",
        f"Over {name}{x} stands {context.answer_text}{value_position}.",
    )


def explain_difference(context: RationaleContext) -> Wordings:
    names = context.parameter("a"), context.parameter("b")
    a, b = (get_line_text(value_above(context, name)) for name in names)
    arithmetic = write_arithmetic(context, parse_number(a), "-", parse_number(b))
    return f"{names[0]} {a}, {names[1]} {b}; {arithmetic}.", f"{a} for {names[0]} and {b} for {names[1]}; {arithmetic}."


def write_arithmetic(context: RationaleContext, a: float, sign: str, b: float) -> str:
    """A sum with its result; digit by digit for a plain teacher, where both are whole and the result is the answer."""
    result = a + b if sign == "+" else a - b
    can_write_out = a.is_integer() and b.is_integer() and min(a, b, result) >= 0
    if not context.canonical_wording or not can_write_out or format_number(result) != context.answer_text:
        return f"{a:g} {sign} {b:g} = {context.answer_text}"
    return write_column_arithmetic(int(a), sign, int(b))


def explain_coloured_value(context: RationaleContext) -> Wordings:
    target = context.parameter("target")
    column = context.find_thing(target)
    values = [r for r in find_lines(context.notes, role="value") if get_line_text(r) == context.answer_text]
    if column is None or not values:
        return explain_without_numbers(context)
    value = min(values, key=lambda r: abs(centre(get_box(r))[0] - centre(get_box(column))[0]))
    x, value_position = format_positions(context, (column, 0), (value, 0))
    return (
        f"Over the {target} stands {context.answer_text}.",
        f"The {target}{x} has {context.answer_text}{value_position}.",
        f"Over the {target}{x} stands {context.answer_text}{value_position}.",
    )


def explain_percentage(context: RationaleContext) -> Wordings:
    name = context.parameter("label")
    label = find_line(context, name, "label")
    if label is None:
        return explain_without_numbers(context)
    y, position = format_positions(context, (label, 1), (line_beside(context, label, "value"), 1))
    return (
        f"Beside {name} stands {context.answer_text}.",
        f"{name}{y} has {context.answer_text}{position}.",
        f"In the row of {name}{y} stands {context.answer_text}{position}.",
    )


def explain_legend(context: RationaleContext) -> Wordings:
    colour, key = context.parameter("colour"), context.find_thing(context.parameter("target"))
    if key is None:
        return explain_without_numbers(context)
    y, position = format_positions(context, (key, 1), (line_beside(context, key, "label"), 1))
    return (
        f"Beside the {colour} key stands {context.answer_text}.",
        f"The {colour} key{y} is {context.answer_text}{position}.",
        f"Beside the {colour} key{y} stands {context.answer_text}{position}.",
    )


# --- notices


def explain_entry(context: RationaleContext) -> Wordings:
    key = context.parameter("key")
    return (
        f'The line is "{key}: {context.answer_text}".',
        f"After {key} stands {context.answer_text}.",
        f"{key}: {context.answer_text}.",
    )


def reread_title_lines(context: RationaleContext) -> list[str]:
    """The lines of the strip of a title, where that was the last call."""
    call, result = context.drafts[-1].call, context.drafts[-1].result
    is_title_strip = call.tool == "OCR" and call.args.get("box") == list(TITLE_STRIP) and result.ok
    return str(result.output["text"]).splitlines() if is_title_strip else []


def explain_more_seats(context: RationaleContext) -> Wordings:
    """The entry on both notices, and the title of the one with more."""
    key, entry_values = context.parameter("key"), list[str]()
    for media in ("Image_0", "Image_1"):
        lines = [get_line_text(r).partition(": ") for r in find_lines(context.notes, media, role="line")]
        entry_values += [after for before, _, after in lines if before == key][:1]
    if len(entry_values) < 2:
        return explain_without_numbers(context)
    first_is_larger = parse_number(entry_values[0]) > parse_number(entry_values[1])
    if context.canonical_wording and context.answer_text in reread_title_lines(context):
        return (f"The title of Image_{int(not first_is_larger)} is {context.answer_text}.",)
    return (
        f"{key} {entry_values[0]} in Image_0, {entry_values[1]} in Image_1: more in Image_{int(not first_is_larger)}, {context.answer_text}.",
        f"{entry_values[0]} {key.lower()} in Image_0 and {entry_values[1]} in Image_1, so Image_{int(not first_is_larger)}: {context.answer_text}.",
    )


# --- slides


def appearance_time(context: RationaleContext) -> str:
    """` at 6.75 s`: when the mark was found to appear."""
    appearances = find_time_spans(context.notes, f"{context.parameter('target')} appears")
    return f" at {two_decimals(appearances[0].start_s)} s" if appearances else ""


def explain_title_then(context: RationaleContext) -> Wordings:
    target, time_text = context.parameter("target"), appearance_time(context)
    return (
        f"The {target} appears{time_text}; the title is {context.answer_text}.",
        f"The slide{time_text} is {context.answer_text}.",
    )


def taken_lines(context: RationaleContext) -> list[Reference]:
    """The lines that the solver took its values from, in the order of the question."""
    return find_lines(context.notes, role="taken")


def explain_value_then(context: RationaleContext) -> Wordings:
    key, time_text = context.parameter("key"), appearance_time(context)
    return (
        f"The {context.parameter('target')} appears{time_text}; then {key} = {context.answer_text}.",
        f"{key}{time_text} is {context.answer_text}.",
    )


def explain_value_there(context: RationaleContext) -> Wordings:
    key, title = context.parameter("key"), context.parameter("title")
    return f"On {title} it says {key} = {context.answer_text}.", f"{title}: {key} = {context.answer_text}."


def explain_task(context: RationaleContext) -> Wordings:
    lines = taken_lines(context)
    if not lines:
        return explain_without_numbers(context)
    task_text = get_line_text(lines[0])
    sum_match = SUM_PATTERN.fullmatch(task_text)
    if sum_match and context.canonical_wording:
        return (f"{write_arithmetic(context, float(sum_match[1]), sum_match[2], float(sum_match[3]))}.",)
    return f"{task_text} = {context.answer_text}.", f"The task is {task_text} = {context.answer_text}."


def explain_pointed(context: RationaleContext) -> Wordings:
    target, lines = context.parameter("target"), taken_lines(context)
    mark = [r for r in context.notes if r.footprint.kind == "track" and r.footprint.label == target]
    if context.canonical_wording or not lines or not mark or not context.is_on_picture(lines[0]):
        return f"Beside the {target} stands {context.answer_text}.", f"At its height it says {context.answer_text}."
    y = mark[0].footprint.boxes[0][1]  # type: ignore[union-attr]
    height = two_decimals(context.locate(lines[0]).box[1])
    return (
        f"The {target} is at y {two_decimals(y)}, {context.answer_text} at y {height}.",
        f"At y {two_decimals(y)} is the {target}; the line at y {height} is {context.answer_text}.",
    )


def taken_values(context: RationaleContext) -> list[float]:
    return [float(str(r.properties["value"])) for r in taken_lines(context)]


def explain_sum(context: RationaleContext) -> Wordings:
    operands = taken_values(context)
    if len(operands) != 2:
        return explain_without_numbers(context)
    a, b = operands
    arithmetic = write_arithmetic(context, a, "+", b)
    return (
        f"{context.parameter('a')} {a:g}, {context.parameter('b')} {b:g}; {arithmetic}.",
        f"On {context.parameter('title')}: {arithmetic}.",
    )


def explain_change(context: RationaleContext) -> Wordings:
    operands = taken_values(context)
    if len(operands) != 2:
        return explain_without_numbers(context)
    a, b = operands
    arithmetic = write_arithmetic(context, max(a, b), "-", min(a, b))
    key = context.parameter("key")
    return (
        f"{key} is {a:g} on {context.parameter('a')}, {b:g} on {context.parameter('b')}; {arithmetic}.",
        f"{context.parameter('a')} {a:g}, {context.parameter('b')} {b:g}; {arithmetic}.",
    )


def explain_next_title(context: RationaleContext) -> Wordings:
    title = context.parameter("title")
    return f"After {title} comes {context.answer_text}.", f"The title after {title} is {context.answer_text}."


def explain_slide_count(context: RationaleContext) -> Wordings:
    cuts = len(find_time_spans(context.notes, "cut"))
    if str(cuts + 1) != context.answer_text:
        return explain_without_numbers(context)
    many = "1 cut" if cuts == 1 else f"{cuts} cuts"
    return (
        f"{many}, {cuts} + 1 = {context.answer_text} slides.",
        f"There are {many}: {cuts} + 1 = {context.answer_text}.",
    )


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
    "document.field": explain_entry,
    "document.pair_field": explain_entry,
    "document.pair_more": explain_more_seats,
    "lecture.title_when": explain_title_then,
    "lecture.value_when": explain_value_then,
    "lecture.task": explain_task,
    "lecture.pointed": explain_pointed,
    "lecture.value_on": explain_value_there,
    "lecture.sum": explain_sum,
    "lecture.change": explain_change,
    "lecture.next": explain_next_title,
    "lecture.count": explain_slide_count,
}
