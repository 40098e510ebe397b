"""Conclusions about what was read: tables, charts, notices and slides; for the families document and lecture."""

from __future__ import annotations

import re
from collections.abc import Callable

from pixelis.data.conclusions_pictures import Wordings, unexplained
from pixelis.data.conclusions_seen import Chain, two
from pixelis.data.oracle_pages import TITLE_STRIP
from pixelis.data.sums import worked
from pixelis.world import Reference
from pixelis.world.programs import box_of, centre, line, nearest, number, says, spans, stretches, value_of

SUM = re.compile(r"(\d+) ?([+-]) ?(\d+)")

# --- tables and charts


def places(c: Chain, *spots: tuple[Reference, int]) -> list[str]:
    """` at x 0.12` for each, where all were printed on the same picture or view; else nothing."""
    shown = [c.shown(note) for note, _ in spots]
    if len({view.recipe if view else None for _, view in shown}) > 1:
        return [""] * len(spots)
    return [f" at {'xy'[axis]} {two(box[axis])}" for (box, _), (_, axis) in zip(shown, spots, strict=True)]


def above(c: Chain, label: str) -> Reference:
    """The number over a name."""
    x = centre(box_of(line(c.notes, label, role="label")))[0]
    return nearest(spans(c.notes, role="value"), lambda r: abs(centre(box_of(r))[0] - x))


def beside(c: Chain, note: Reference, role: str) -> Reference:
    """What is in the same row."""
    y = centre(box_of(note))[1]
    return nearest(spans(c.notes, role=role), lambda r: abs(centre(box_of(r))[1] - y))


def line_of(c: Chain, text: str, role: str) -> Reference | None:
    return next((r for r in spans(c.notes, role=role) if says(r).casefold() == text.casefold()), None)


def cell_at(c: Chain, row: Reference, column: Reference) -> Reference:
    y, x = centre(box_of(row))[1], centre(box_of(column))[0]

    def off(r: Reference) -> float:
        across, down = centre(box_of(r))
        return abs(across - x) + abs(down - y)

    return nearest(spans(c.notes, role="cell"), off)


def cell(c: Chain) -> Wordings:
    """Where the row and the column are, then what stands there."""
    names = c.asked("row"), c.asked("column")
    row, column = line_of(c, names[0], "row"), line_of(c, names[1], "column")
    if row is None or column is None:
        return unexplained(c)
    y, x = places(c, (row, 1), (column, 0))
    return (
        f"There stands {c.words}.",
        f"{names[0]}{y}, {names[1]}{x}: {c.words}.",
        f"Row {names[0]}{y}, column {names[1]}{x}; there stands {c.words}.",
    )


def best_row(c: Chain) -> Wordings:
    column = line_of(c, c.asked("column"), "column")
    if column is None:
        return unexplained(c)
    rows = sorted(spans(c.notes, role="row"), key=lambda r: box_of(r)[1])
    return best(c, [(says(r), says(cell_at(c, r, column))) for r in rows])


def best_label(c: Chain) -> Wordings:
    labels = sorted(spans(c.notes, role="label"), key=lambda r: box_of(r)[0])
    under = f"Under {says(above(c, c.words))} stands {c.words}." if line_of(c, c.words, "label") else ""
    others = best(c, [(says(r), says(above(c, says(r)))) for r in labels])
    return (under, *others) if under else others


def best(c: Chain, values: list[tuple[str, str]]) -> Wordings:
    """Every name with its number, and the one that counts."""
    most = c.asked("most")
    ends = [text for name, text in values if name == c.words]
    if not ends or len(values) > 12:
        return unexplained(c)
    listed = ", ".join(f"{name} {text}" for name, text in values)
    return (
        f"{listed}: {most} is {ends[0]}, {c.words}.",
        f"{listed}; the {most} is {ends[0]} of {c.words}.",
    )


def value_over(c: Chain) -> Wordings:
    name = c.asked("label")
    label = line_of(c, name, "label")
    if label is None:
        return unexplained(c)
    x, over = places(c, (label, 0), (above(c, name), 0))
    return (
        f"Over {name} stands {c.words}.",
        f"{name}{x} has {c.words}{over} above it.",
        f"Over {name}{x} stands {c.words}{over}.",
    )


def difference(c: Chain) -> Wordings:
    names = c.asked("a"), c.asked("b")
    a, b = (says(above(c, name)) for name in names)
    sum_up = reckoned(c, value_of(a), "-", value_of(b))
    return f"{names[0]} {a}, {names[1]} {b}; {sum_up}.", f"{a} for {names[0]} and {b} for {names[1]}; {sum_up}."


def reckoned(c: Chain, a: float, sign: str, b: float) -> str:
    """A sum with its result; digit by digit for a plain teacher, where both are whole and the result is the answer."""
    result = a + b if sign == "+" else a - b
    on_paper = a.is_integer() and b.is_integer() and min(a, b, result) >= 0
    if not c.plain or not on_paper or number(result) != c.words:
        return f"{a:g} {sign} {b:g} = {c.words}"
    return worked(int(a), sign, int(b))


def on_column(c: Chain) -> Wordings:
    target = c.asked("target")
    column = c.thing(target)
    values = [r for r in spans(c.notes, role="value") if says(r) == c.words]
    if column is None or not values:
        return unexplained(c)
    value = min(values, key=lambda r: abs(centre(box_of(r))[0] - centre(box_of(column))[0]))
    x, over = places(c, (column, 0), (value, 0))
    return (
        f"Over the {target} stands {c.words}.",
        f"The {target}{x} has {c.words}{over}.",
        f"Over the {target}{x} stands {c.words}{over}.",
    )


def percentage(c: Chain) -> Wordings:
    name = c.asked("label")
    label = line_of(c, name, "label")
    if label is None:
        return unexplained(c)
    y, here = places(c, (label, 1), (beside(c, label, "value"), 1))
    return (
        f"Beside {name} stands {c.words}.",
        f"{name}{y} has {c.words}{here}.",
        f"In the row of {name}{y} stands {c.words}{here}.",
    )


def legend(c: Chain) -> Wordings:
    colour, key = c.asked("colour"), c.thing(c.asked("target"))
    if key is None:
        return unexplained(c)
    y, here = places(c, (key, 1), (beside(c, key, "label"), 1))
    return (
        f"Beside the {colour} key stands {c.words}.",
        f"The {colour} key{y} is {c.words}{here}.",
        f"Beside the {colour} key{y} stands {c.words}{here}.",
    )


# --- notices


def entry(c: Chain) -> Wordings:
    key = c.asked("key")
    return f'The line is "{key}: {c.words}".', f"After {key} stands {c.words}.", f"{key}: {c.words}."


def title_read_again(c: Chain) -> list[str]:
    """The lines of the strip of a title, where that was the last call."""
    call, result = c.drafts[-1].call, c.drafts[-1].result
    strip = call.tool == "OCR" and call.args.get("box") == list(TITLE_STRIP) and result.ok
    return str(result.output["text"]).splitlines() if strip else []


def more_seats(c: Chain) -> Wordings:
    """The entry on both notices, and the title of the one with more."""
    key, found = c.asked("key"), list[str]()
    for media in ("Image_0", "Image_1"):
        lines = [says(r).partition(": ") for r in spans(c.notes, media, role="line")]
        found += [after for before, _, after in lines if before == key][:1]
    if len(found) < 2:
        return unexplained(c)
    first = value_of(found[0]) > value_of(found[1])
    if c.plain and c.words in title_read_again(c):
        return (f"The title of Image_{int(not first)} is {c.words}.",)
    return (
        f"{key} {found[0]} in Image_0, {found[1]} in Image_1: more in Image_{int(not first)}, {c.words}.",
        f"{found[0]} {key.lower()} in Image_0 and {found[1]} in Image_1, so Image_{int(not first)}: {c.words}.",
    )


# --- slides


def moment(c: Chain) -> str:
    """` at 6.75 s`: when the mark was found to appear."""
    spans_of_time = stretches(c.notes, f"{c.asked('target')} appears")
    return f" at {two(spans_of_time[0].start_s)} s" if spans_of_time else ""


def title_then(c: Chain) -> Wordings:
    target, when = c.asked("target"), moment(c)
    return f"The {target} appears{when}; the title is {c.words}.", f"The slide{when} is {c.words}."


def taken(c: Chain) -> list[Reference]:
    """The lines that the solver took its values from, in the order of the question."""
    return spans(c.notes, role="taken")


def value_then(c: Chain) -> Wordings:
    key, when = c.asked("key"), moment(c)
    return f"The {c.asked('target')} appears{when}; then {key} = {c.words}.", f"{key}{when} is {c.words}."


def value_there(c: Chain) -> Wordings:
    key, title = c.asked("key"), c.asked("title")
    return f"On {title} it says {key} = {c.words}.", f"{title}: {key} = {c.words}."


def task(c: Chain) -> Wordings:
    lines = taken(c)
    if not lines:
        return unexplained(c)
    said = says(lines[0])
    sum_up = SUM.fullmatch(said)
    if sum_up and c.plain:
        return (f"{reckoned(c, float(sum_up[1]), sum_up[2], float(sum_up[3]))}.",)
    return f"{said} = {c.words}.", f"The task is {said} = {c.words}."


def pointed(c: Chain) -> Wordings:
    target, lines = c.asked("target"), taken(c)
    mark = [r for r in c.notes if r.footprint.kind == "track" and r.footprint.label == target]
    if c.plain or not lines or not mark or not c.on_frame(lines[0]):
        return f"Beside the {target} stands {c.words}.", f"At its height it says {c.words}."
    y = mark[0].footprint.boxes[0][1]  # type: ignore[union-attr]
    height = two(c.shown(lines[0]).box[1])
    return (
        f"The {target} is at y {two(y)}, {c.words} at y {height}.",
        f"At y {two(y)} is the {target}; the line at y {height} is {c.words}.",
    )


def values(c: Chain) -> list[float]:
    return [float(str(r.properties["value"])) for r in taken(c)]


def total(c: Chain) -> Wordings:
    found = values(c)
    if len(found) != 2:
        return unexplained(c)
    a, b = found
    sum_up = reckoned(c, a, "+", b)
    return f"{c.asked('a')} {a:g}, {c.asked('b')} {b:g}; {sum_up}.", f"On {c.asked('title')}: {sum_up}."


def change(c: Chain) -> Wordings:
    found = values(c)
    if len(found) != 2:
        return unexplained(c)
    a, b = found
    sum_up = reckoned(c, max(a, b), "-", min(a, b))
    key = c.asked("key")
    return (
        f"{key} is {a:g} on {c.asked('a')}, {b:g} on {c.asked('b')}; {sum_up}.",
        f"{c.asked('a')} {a:g}, {c.asked('b')} {b:g}; {sum_up}.",
    )


def following(c: Chain) -> Wordings:
    title = c.asked("title")
    return f"After {title} comes {c.words}.", f"The title after {title} is {c.words}."


def slides(c: Chain) -> Wordings:
    cuts = len(stretches(c.notes, "cut"))
    if str(cuts + 1) != c.words:
        return unexplained(c)
    many = "1 cut" if cuts == 1 else f"{cuts} cuts"
    return f"{many}, {cuts} + 1 = {c.words} slides.", f"There are {many}: {cuts} + 1 = {c.words}."


SAYINGS: dict[str, Callable[[Chain], Wordings]] = {
    "document.cell": cell,
    "document.row_most": best_row,
    "document.column_value": value_over,
    "document.most_label": best_label,
    "document.difference": difference,
    "document.colour_value": on_column,
    "document.month_value": value_over,
    "document.peak": best_label,
    "document.share": percentage,
    "document.legend": legend,
    "document.field": entry,
    "document.pair_field": entry,
    "document.pair_more": more_seats,
    "lecture.title_when": title_then,
    "lecture.value_when": value_then,
    "lecture.task": task,
    "lecture.pointed": pointed,
    "lecture.value_on": value_there,
    "lecture.sum": total,
    "lecture.change": change,
    "lecture.next": following,
    "lecture.count": slides,
}
