"""How the oracle answers the document family: read the page, see how its lines stand to each other, read closely."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pixelis.data import oracle_pages as pages
from pixelis.data.oracle_acts import SURE_READING, Hands
from pixelis.data.oracle_session import Found, Line, Seen, around, as_read, grown
from pixelis.geometry import UnitBox
from pixelis.metrics.overlap import box_iou
from pixelis.tools.base import coordinates
from pixelis.world.programs import value_of

ASKED = ("row", "column", "label", "a", "b")
"""Parameters that are names on the page."""
HALVES = (((0.0, 0.0, 1.0, 0.56), (0.0, 0.44, 1.0, 1.0)), ((0.0, 0.0, 1.0, 0.5), (0.0, 0.4, 1.0, 1.0)))
Roles = dict[str, list[Line]]


def read_page(h: Hands, media: str | None = None) -> list[Line]:
    """All lines of a page: in one go, or part by part."""
    s = h.s
    if h.detours.take("parts", 3):
        lines: list[Line] = []
        for part in s.choose(HALVES):
            lines += h.read_view(s.zoom(part, "page", "closer", media=media), "page")
        return pages.merged(lines)
    if h.detours.take("refused"):
        s.call("OCR", "skim", box=[1.0, 0.0, 0.0, 1.0], media=media)
        return s.read("page", "correct", media=media)
    return s.read("page", "skim", media=media)


def closely(h: Hands, line: Line, what: str, media: str | None) -> Line:
    """One line again, enlarged: the surer reading counts."""
    view = h.closer(h.s.room(line.span.box_unit, 0.03, 0.02), what, media=media)
    again = [r for r in h.read_view(view, what) if box_iou(r.span.box_unit, line.span.box_unit) > 0.3]
    if not again:
        return line
    best = max(again, key=lambda r: r.span.score)
    longer = len(best.text) >= len(line.text) - 1
    return best if longer and best.span.score >= line.span.score - 0.05 else line._replace(step=best.step)


def page(
    arrange: Callable[[Sequence[Line]], Roles], used: Callable[[Hands, Roles], list[tuple[str, Line]]]
) -> Callable[[Hands], None]:
    """A solver: read, arrange by roles, read again what matters, note everything."""

    def solve(h: Hands) -> None:
        s = h.s
        region = coloured(h)
        lines = read_page(h)
        names = [str(s.item.parameters[key]) for key in ASKED if key in s.item.parameters]
        lines = pages.recognised(lines, names)
        if lost := [name for name in names if all(line.text != name for line in lines)]:
            lines = pages.recognised(pages.merged([*lines, *look_again(h, lost)]), names)
        roles = arrange(lines)
        if "label" in roles and arrange is pages.chart and fill_gaps(h, lines, roles):
            roles = arrange(pages.recognised(lines, names))
        if region is not None:
            note_smallest(h, region, roles)
        for role, line in used(h, roles):
            if line.span.score < SURE_READING or h.detours.take("reread", 2):
                better = closely(h, line, f'"{line.text}"', None)
                kept = pages.renamed(better, line.text) if line.text in names else better
                roles[role] = [kept if other is line else other for other in roles[role]]
        if s.plain:
            look_along(h, roles, region)
        for role, members in roles.items():
            for line in members:
                s.note_line(line, role=role)

    return solve


def look_along(h: Hands, roles: Roles, region: list[Found] | None) -> None:
    """Read once more only what stands in a row or a column with what was asked for: then the answer is all there is.

    Where lines stand to each other is hard to tell from their boxes for a small policy, and easy to see in the picture.
    """
    s = h.s
    asked = {key: str(s.item.parameters[key]) for key in ASKED if key in s.item.parameters}
    found = {key: line for key, name in asked.items() if (line := named_line(roles, name)) is not None}
    if s.item.template == "document.cell" and len(found) == 2:
        row, column = (as_read(found[key].span.box_unit) for key in ("row", "column"))
        both = f"{printed(found['row'])} and {printed(found['column'])}"
        cite(h, s.call("OCR", "cross", both, box=[column[0], row[1], column[2], row[3]]))
    elif s.item.template in ("document.share", "document.column_value", "document.month_value", "document.difference"):
        for line in found.values():
            read_along(h, printed(line), line.span.box_unit, across=s.item.template == "document.share")
    elif s.item.template in ("document.peak", "document.most_label"):
        for _, line in extremes(h, roles):
            read_along(h, printed(line), line.span.box_unit, across=False)
    elif region:
        target = chosen_region(h, region, roles)
        what = f"{target.phrase.partition(' ')[0]} {coordinates(as_read(target.mask.box_unit or target.box))}"
        read_along(h, what, target.mask.box_unit or target.box, across=s.item.template == "document.legend")


def named_line(roles: Roles, name: str) -> Line | None:
    return next((line for members in roles.values() for line in members if line.text == name), None)


def printed(line: Line) -> str:
    return f'"{line.text}" at {coordinates(as_read(line.span.box_unit))}'


def read_along(h: Hands, what: str, box: UnitBox, *, across: bool) -> None:
    """The strip of the page through a box, from side to side or from top to bottom."""
    x0, y0, x1, y1 = as_read(box)
    strip = [0.0, y0, 1.0, y1] if across else [x0, 0.0, x1, 1.0]
    cite(h, h.s.call("OCR", "along" if across else "down", what, box=strip))


def cite(h: Hands, seen: Seen) -> None:
    """The answer rests on this step."""
    if seen.ok:
        h.s.cited.add(seen.step)


def fill_gaps(h: Hands, lines: list[Line], roles: Roles) -> bool:
    """Read below a number that has no name under it, and above a name that has no number over it."""
    s, found = h.s, list[Line]()
    across = {role: [pages.middle(line)[0] for line in roles[role]] for role in ("label", "value")}
    bare = [line for line in roles["value"] if all(abs(pages.middle(line)[0] - x) > 0.04 for x in across["label"])]
    floor = max((line.span.box_unit[3] for line in roles["label"]), default=1.0)
    roof = min((line.span.box_unit[1] for line in roles["label"]), default=0.9)
    for line in bare[:2]:
        x = pages.middle(line)[0]
        strip = grown((x - 0.06, roof, x + 0.06, floor), 0.0, 0.03)
        found += h.read_view(s.zoom(strip, "name below", "closer"), "name") if s.has_room else []
    empty = [line for line in roles["label"] if all(abs(pages.middle(line)[0] - x) > 0.04 for x in across["value"])]
    for line in empty[:2]:
        x = pages.middle(line)[0]
        tower = grown((x - 0.05, 0.1, x + 0.05, roof - 0.01), 0.0)
        found += s.read("number above", "reread", box=list(tower)) if s.has_room else []
    lines += [line for line in found if len(line.text.strip()) > 1]
    return bool(found)


def look_again(h: Hands, lost: Sequence[str]) -> list[Line]:
    """Enlarge where a name seems to stand that was not read."""
    s = h.s
    for reference in s.item.references:
        box = getattr(reference.footprint, "box_unit", None)
        if getattr(reference.footprint, "text", "") in lost and box is not None and s.has_room:
            view = s.zoom(around(box, s.rng), lost[0], "closer", media=None)
            return h.read_view(view, lost[0])
    return []


def coloured(h: Hands) -> list[Found] | None:
    """The regions of the colour that is asked for, if one is."""
    s = h.s
    if "target" not in s.item.parameters:
        return None
    return h.find(str(s.item.parameters["target"]))


def note_smallest(h: Hands, found: list[Found], roles: Roles) -> None:
    """The column itself; in a pie, the square beside a name rather than the slice."""
    if found:
        h.s.note_region(chosen_region(h, found, roles))


def chosen_region(h: Hands, found: list[Found], roles: Roles) -> Found:
    if h.s.item.template == "document.legend":
        return min(found, key=lambda f: min((gap(f, line) for line in roles["label"]), default=1.0))
    return max(found, key=lambda f: f.mask.area)


def gap(found: Found, line: Line) -> float:
    """From the right side of a region to the left side of a line in its row; far where it is not in its row."""
    _, y0, x1, y1 = found.mask.box_unit or found.box
    left, top, _, bottom = line.span.box_unit
    off = abs((y0 + y1) / 2 - (top + bottom) / 2)
    return abs(left - x1) + 4 * off + (y1 - y0)


# --- what matters most on each kind of page


def named(*keys: str) -> Callable[[Hands, Roles], list[tuple[str, Line]]]:
    """The lines of the names in the question, then those that the program would answer with."""

    def choose(h: Hands, roles: Roles) -> list[tuple[str, Line]]:
        s = h.s
        asked = {str(s.item.parameters[key]) for key in keys if key in s.item.parameters}
        near = [(role, line) for role, members in roles.items() for line in members if line.text in asked]
        values = [(role, line) for role in ("cell", "value") for line in roles.get(role, [])]
        for _, line in list(near):
            x, y = pages.middle(line)
            by = "row" if s.item.template in ("document.cell", "document.share") else "column"
            key = (
                (lambda v, y=y: abs(pages.middle(v[1])[1] - y))
                if by == "row"
                else (lambda v, x=x: abs(pages.middle(v[1])[0] - x))
            )  # type: ignore[misc]
            near += sorted(values, key=key)[:1]
        return near or values[:1]

    return choose


def extremes(h: Hands, roles: Roles) -> list[tuple[str, Line]]:
    """The largest and the smallest number."""
    values = [(role, line) for role in ("cell", "value") for line in roles.get(role, [])]
    ordered = sorted(values, key=lambda v: float("".join(c for c in v[1].text if c.isdigit()) or 0))
    most = str(h.s.item.parameters.get("most", ""))
    return ordered[-1:] if most == "highest" else ordered[:1]


def entry(h: Hands) -> None:
    """What follows a key on a notice."""
    s = h.s
    media = str(s.item.parameters["media"]) if "media" in s.item.parameters else None
    note_notice(h, media)


def two_notices(h: Hands) -> None:
    """The same entry on two notices, and their titles; a plain teacher reads the title of the one with more again."""
    names, found = ("Image_0", "Image_1"), list[float]()
    for name in names:
        said = note_notice(h, name)
        found += [value_of(said)] if said and any(letter.isdigit() for letter in said) else []
    if h.s.plain and len(found) == 2 and found[0] != found[1]:
        more = names[int(found[1] > found[0])]
        cite(h, h.s.call("OCR", "read", f"title of {more}", box=list(pages.TITLE_STRIP), media=more))


def note_notice(h: Hands, media: str | None) -> str | None:
    """Read a notice; its asked entry again, enlarged. What stands after the key there."""
    s, key = h.s, str(h.s.item.parameters["key"])
    roles = pages.notice(read_page(h, media))
    wanted = pages.entry_of(roles["line"], key)
    if wanted is not None:
        best = wanted
        if wanted.span.score < SURE_READING or h.detours.take("reread", 2):
            again = pages.notice([closely(h, wanted, key, media)])["line"]
            best = again[0] if again else wanted
        spelled = pages.renamed(best, f"{key}: {best.text.partition(': ')[2]}")
        roles["line"] = [spelled if line is wanted else line for line in roles["line"]]
    for role, members in roles.items():
        for line in members:
            s.note_line(line, role=role)
    return next((line.text.partition(": ")[2] for line in roles["line"] if line.text.startswith(f"{key}: ")), None)


SOLVERS = {
    "document.cell": page(pages.table, named("row", "column")),
    "document.row_most": page(pages.table, extremes),
    "document.column_value": page(pages.chart, named("label")),
    "document.most_label": page(pages.chart, extremes),
    "document.difference": page(pages.chart, named("a", "b")),
    "document.colour_value": page(pages.chart, named()),
    "document.month_value": page(pages.chart, named("label")),
    "document.peak": page(pages.chart, extremes),
    "document.share": page(pages.legend, named("label")),
    "document.legend": page(pages.legend, named()),
    "document.field": entry,
    "document.pair_field": entry,
    "document.pair_more": two_notices,
}
