"""Solvers of the document family: read the page, arrange its lines by role, and read closely."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle import page_layout as pages
from pixelis.data.teachers.oracle.oracle_session import (
    OracleCallOutcome,
    OracleLine,
    OracleRegion,
    colour_from_phrase,
    expand_box,
    sample_box_around,
    snap_box,
)
from pixelis.data.teachers.oracle.picture_actions import MIN_READING_CONFIDENCE, PictureActions
from pixelis.metrics.overlap import box_iou
from pixelis.tools.base import coordinates
from pixelis.world.programs import parse_number

NAME_PARAMETERS = ("row", "column", "label", "a", "b")
"""Parameters that name something on the page."""
PAGE_HALVES = (((0.0, 0.0, 1.0, 0.56), (0.0, 0.44, 1.0, 1.0)), ((0.0, 0.0, 1.0, 0.5), (0.0, 0.4, 1.0, 1.0)))
STRIP_TEMPLATES = ("document.share", "document.column_value", "document.month_value", "document.difference")
"""Templates whose named lines are read again with their row or column."""
ROW_TEMPLATES = ("document.cell", "document.share")
"""Templates whose values are in the row of a name, not above it."""
LinesByRole = dict[str, list[OracleLine]]


def read_page(actions: PictureActions, media: str | None = None) -> list[OracleLine]:
    """All lines of a page, in one call or in parts."""
    session = actions.session
    if actions.detours.should_take("parts", 3):
        lines: list[OracleLine] = []
        for part in session.choose(PAGE_HALVES):
            lines += actions.read_view(session.zoom(part, "page", "closer", media=media), "page")
        return pages.merge_lines(lines)
    if actions.detours.should_take("refused"):
        session.call("OCR", "skim", box=[1.0, 0.0, 0.0, 1.0], media=media)
        return session.read("page", "correct", media=media)
    return session.read("page", "skim", media=media)


def reread_enlarged(actions: PictureActions, line: OracleLine, subject: str, media: str | None) -> OracleLine:
    """Read one line again, enlarged; the more confident reading is kept."""
    view = actions.zoom_in(actions.session.with_margin(line.span.box_unit, 0.03, 0.02), subject, media=media)
    candidates = [r for r in actions.read_view(view, subject) if box_iou(r.span.box_unit, line.span.box_unit) > 0.3]
    if not candidates:
        return line
    best = max(candidates, key=lambda r: r.span.score)
    is_complete = len(best.text) >= len(line.text) - 1
    return best if is_complete and best.span.score >= line.span.score - 0.05 else line._replace(step=best.step)


def page_solver(
    arrange: Callable[[Sequence[OracleLine]], LinesByRole],
    lines_to_check: Callable[[PictureActions, LinesByRole], list[tuple[str, OracleLine]]],
) -> Callable[[PictureActions], None]:
    """Make a solver: read, arrange by role, read the important lines again, note everything."""

    def solve(actions: PictureActions) -> None:
        session = actions.session
        regions = [region for phrase in actions.given_parameters("target") for region in actions.find(phrase)]
        lines = read_page(actions)
        names = actions.given_parameters(*NAME_PARAMETERS)
        lines = pages.snap_to_names(lines, names)
        if missing_names := [name for name in names if all(line.text != name for line in lines)]:
            lines = pages.merge_lines([*lines, *reread_missing_names(actions, missing_names)])
            lines = pages.snap_to_names(lines, names)
        roles = arrange(lines)
        if "label" in roles and arrange is pages.arrange_chart and fill_gaps(actions, lines, roles):
            roles = arrange(pages.snap_to_names(lines, names))
        if regions:
            session.note_region(choose_region(actions, regions, roles))
        for role, line in lines_to_check(actions, roles):
            if line.span.score < MIN_READING_CONFIDENCE or actions.detours.should_take("reread", 2):
                closer_line = reread_enlarged(actions, line, f'"{line.text}"', None)
                corrected = pages.with_text(closer_line, line.text) if line.text in names else closer_line
                roles[role] = [corrected if other is line else other for other in roles[role]]
        if session.canonical_wording:
            read_row_or_column(actions, roles, regions)
        for role, members in roles.items():
            for line in members:
                session.note_line(line, role=role)

    return solve


def read_row_or_column(actions: PictureActions, roles: LinesByRole, regions: list[OracleRegion]) -> None:
    """Read only the row or the column of what was asked for, so that the answer is all that remains.

    A small policy finds it hard to compare boxes of lines, and easy to see a row in the picture.
    """
    template = actions.session.item.template
    names = actions.given_parameters(*NAME_PARAMETERS)
    lines = [line for name in names if (line := find_named_line(roles, name)) is not None]
    if template == "document.cell" and len(lines) == 2:
        row, column = (snap_box(line.span.box_unit) for line in lines)
        crossing = f"{quote_line(lines[0])} and {quote_line(lines[1])}"
        cite(actions, actions.session.call("OCR", "cross", crossing, box=[column[0], row[1], column[2], row[3]]))
    elif template in STRIP_TEMPLATES:
        for line in lines:
            read_strip(actions, quote_line(line), line.span.box_unit)
    elif template in ("document.peak", "document.most_label"):
        for _, line in extreme_lines(actions, roles):
            read_strip(actions, quote_line(line), line.span.box_unit)
    elif regions:
        box = choose_region(actions, regions, roles).source_box
        read_strip(actions, f"{colour_from_phrase(regions[0].phrase)} {coordinates(snap_box(box))}", box)


def find_named_line(roles: LinesByRole, name: str) -> OracleLine | None:
    return next((line for members in roles.values() for line in members if line.text == name), None)


def quote_line(line: OracleLine) -> str:
    return f'"{line.text}" at {coordinates(snap_box(line.span.box_unit))}'


def read_strip(actions: PictureActions, subject: str, box: UnitBox) -> None:
    """Read the strip of the page through a box, from side to side or from top to bottom."""
    x0, y0, x1, y1 = snap_box(box)
    if actions.session.item.template in ("document.share", "document.legend"):
        outcome = actions.session.call("OCR", "along", subject, box=[0.0, y0, 1.0, y1])
    else:
        outcome = actions.session.call("OCR", "down", subject, box=[x0, 0.0, x1, 1.0])
    cite(actions, outcome)


def cite(actions: PictureActions, outcome: OracleCallOutcome) -> None:
    """Mark a step as one that the answer rests on."""
    if outcome.ok:
        actions.session.cited_steps.add(outcome.step)


def fill_gaps(actions: PictureActions, lines: list[OracleLine], roles: LinesByRole) -> bool:
    """Read below numbers without a name, and above names without a number. Whether anything was read."""
    session, new_lines = actions.session, list[OracleLine]()
    centres_x = {role: [pages.line_centre(line)[0] for line in roles[role]] for role in ("label", "value")}

    def lines_without(role: str, counterpart: str) -> list[OracleLine]:
        others = centres_x[counterpart]
        return [line for line in roles[role] if all(abs(pages.line_centre(line)[0] - x) > 0.04 for x in others)][:2]

    bottom = max((line.span.box_unit[3] for line in roles["label"]), default=1.0)
    top = min((line.span.box_unit[1] for line in roles["label"]), default=0.9)
    for line in lines_without("value", "label"):
        x = pages.line_centre(line)[0]
        strip = expand_box((x - 0.06, top, x + 0.06, bottom), 0.0, 0.03)
        if session.has_steps_left:
            new_lines += actions.read_view(session.zoom(strip, "name below", "closer"), "name")
    for line in lines_without("label", "value"):
        x = pages.line_centre(line)[0]
        strip_above = expand_box((x - 0.05, 0.1, x + 0.05, top - 0.01), 0.0)
        if session.has_steps_left:
            new_lines += session.read("number above", "reread", box=list(strip_above))
    lines += [line for line in new_lines if len(line.text.strip()) > 1]
    return bool(new_lines)


def reread_missing_names(actions: PictureActions, missing_names: Sequence[str]) -> list[OracleLine]:
    """Enlarge the place of a name that was not read."""
    session = actions.session
    for reference in session.item.references:
        box = getattr(reference.footprint, "box_unit", None)
        if getattr(reference.footprint, "text", "") in missing_names and box is not None and session.has_steps_left:
            view = session.zoom(sample_box_around(box, session.rng), missing_names[0], "closer", media=None)
            return actions.read_view(view, missing_names[0])
    return []


def choose_region(actions: PictureActions, regions: list[OracleRegion], roles: LinesByRole) -> OracleRegion:
    if actions.session.item.template == "document.legend":
        return min(regions, key=lambda f: min((row_gap(f, line) for line in roles["label"]), default=1.0))
    return max(regions, key=lambda f: f.mask.area)


def row_gap(region: OracleRegion, line: OracleLine) -> float:
    """The distance from the right side of a region to the left side of a line; large if they are in different rows."""
    _, y0, x1, y1 = region.source_box
    left, top, _, bottom = line.span.box_unit
    offset_y = abs((y0 + y1) / 2 - (top + bottom) / 2)
    return abs(left - x1) + 4 * offset_y + (y1 - y0)


# --- the important lines of each kind of page


def named_lines(*keys: str) -> Callable[[PictureActions, LinesByRole], list[tuple[str, OracleLine]]]:
    """The lines that the question names, then those that the program would answer with."""

    def choose(actions: PictureActions, roles: LinesByRole) -> list[tuple[str, OracleLine]]:
        names, axis = actions.given_parameters(*keys), int(actions.session.item.template in ROW_TEMPLATES)
        matches = [(role, line) for role, members in roles.items() for line in members if line.text in names]
        values = [(role, line) for role in ("cell", "value") for line in roles.get(role, [])]

        def nearest_value(line: OracleLine) -> list[tuple[str, OracleLine]]:
            place = pages.line_centre(line)[axis]
            return sorted(values, key=lambda v: abs(pages.line_centre(v[1])[axis] - place))[:1]

        return matches + [value for _, line in matches for value in nearest_value(line)] or values[:1]

    return choose


def extreme_lines(actions: PictureActions, roles: LinesByRole) -> list[tuple[str, OracleLine]]:
    """The line with the largest or the smallest number."""
    values = [(role, line) for role in ("cell", "value") for line in roles.get(role, [])]
    ordered = sorted(values, key=lambda v: float("".join(c for c in v[1].text if c.isdigit()) or 0))
    ranking_word = str(actions.session.item.parameters.get("most", ""))
    return ordered[-1:] if ranking_word == "highest" else ordered[:1]


def solve_entry(actions: PictureActions) -> None:
    """Read the entry of a key on a notice."""
    note_notice(actions, next(iter(actions.given_parameters("media")), None))


def solve_two_notices(actions: PictureActions) -> None:
    """Read the same entry and the titles of two notices; with canonical wording, the title of the larger one again."""
    names, values = ("Image_0", "Image_1"), list[float]()
    for name in names:
        entry_text = note_notice(actions, name)
        values += [parse_number(entry_text)] if entry_text and any(letter.isdigit() for letter in entry_text) else []
    if actions.session.canonical_wording and len(values) == 2 and values[0] != values[1]:
        larger_media = names[int(values[1] > values[0])]
        box, subject = list(pages.TITLE_STRIP), f"title of {larger_media}"
        cite(actions, actions.session.call("OCR", "read", subject, box=box, media=larger_media))


def note_notice(actions: PictureActions, media: str | None) -> str | None:
    """Read a notice, and perhaps its entry again, enlarged. Returns what follows the key."""
    session, key = actions.session, actions.parameter("key")
    roles = pages.arrange_notice(read_page(actions, media))
    key_line = pages.find_entry(roles["line"], key)
    if key_line is not None:
        best = key_line
        if key_line.span.score < MIN_READING_CONFIDENCE or actions.detours.should_take("reread", 2):
            reread_entries = pages.arrange_notice([reread_enlarged(actions, key_line, key, media)])["line"]
            best = reread_entries[0] if reread_entries else key_line
        corrected = pages.with_text(best, f"{key}: {best.text.partition(': ')[2]}")
        roles["line"] = [corrected if line is key_line else line for line in roles["line"]]
    for role, members in roles.items():
        for line in members:
            session.note_line(line, role=role)
    return next((line.text.partition(": ")[2] for line in roles["line"] if line.text.startswith(f"{key}: ")), None)


SOLVERS = {
    "document.cell": page_solver(pages.arrange_table, named_lines("row", "column")),
    "document.row_most": page_solver(pages.arrange_table, extreme_lines),
    "document.column_value": page_solver(pages.arrange_chart, named_lines("label")),
    "document.most_label": page_solver(pages.arrange_chart, extreme_lines),
    "document.difference": page_solver(pages.arrange_chart, named_lines("a", "b")),
    "document.colour_value": page_solver(pages.arrange_chart, named_lines()),
    "document.month_value": page_solver(pages.arrange_chart, named_lines("label")),
    "document.peak": page_solver(pages.arrange_chart, extreme_lines),
    "document.share": page_solver(pages.arrange_legend, named_lines("label")),
    "document.legend": page_solver(pages.arrange_legend, named_lines()),
    "document.field": solve_entry,
    "document.pair_field": solve_entry,
    "document.pair_more": solve_two_notices,
}
