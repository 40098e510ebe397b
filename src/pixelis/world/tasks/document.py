"""document (InfoVQA), first part: tables and notices; scored by ANLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.random import Generator

from pixelis.items import Reference
from pixelis.world.pages import DocumentPage, draw_poster, draw_table
from pixelis.world.programs import (
    Facts,
    Unanswerable,
    get_centre,
    line_number,
    line_text,
    nearest,
    parse_number,
    require_first,
)
from pixelis.world.template import Brief, ItemDraft, load_templates, make_draft
from pixelis.world.vocabulary import (
    MEASURES,
    MONTHS,
    TOPICS,
    choose,
    choose_name,
    choose_names,
    make_code,
    sample,
    sample_int,
    sample_spaced_integers,
)


def _make_table_page(brief: Brief) -> tuple[DocumentPage, list[str], list[str], list[list[str]]]:
    page = DocumentPage(brief)
    heads = sample(brief.rng, MEASURES, min(2 + brief.difficulty.level // 2, 3))
    rows = choose_names(brief.rng, 3 + brief.difficulty.level)
    values = [sample_spaced_integers(brief.rng, len(rows), 12, 980, 9) for _ in heads]
    cells = [[str(values[k][j]) for k in range(len(heads))] for j in range(len(rows))]
    topic = choose(brief.rng, TOPICS)
    page.write_title(f"{topic} by {choose(brief.rng, ('station', 'team', 'village', 'model', 'site'))}")
    draw_table(page, heads, rows, cells)
    return page, heads, rows, cells


def _compose_cell(brief: Brief) -> ItemDraft:
    page, heads, rows, _ = _make_table_page(brief)
    j, k = int(brief.rng.integers(len(rows))), int(brief.rng.integers(len(heads)))
    row, column = rows[j], heads[k]
    evidence = [page.facts.line(row), page.facts.line(column), _find_named_cell(page.facts, row, column)]
    return make_draft(page, evidence, {"row": row, "column": column})


def find_cell(facts: Facts, row: Reference, column: Reference) -> Reference:
    """The cell nearest to the crossing of a row and a column."""
    x, y = get_centre(column)[0], get_centre(row)[1]

    def distance(r: Reference) -> float:
        cx, cy = get_centre(r)
        return abs(cx - x) + abs(cy - y)

    return nearest(facts.lines(role="cell"), distance)


def _find_named_cell(facts: Facts, row: str, column: str) -> Reference:
    row_line = facts.line(row, role="row")
    return find_cell(facts, row_line, facts.line(column, role="column"))


def _solve_cell(facts: Facts) -> str:
    return line_text(_find_named_cell(facts, facts.text("row"), facts.text("column")))


def _compose_row_most(brief: Brief) -> ItemDraft:
    page, heads, _, _ = _make_table_page(brief)
    column, most = choose(brief.rng, heads), choose(brief.rng, ("highest", "lowest"))
    evidence = [*page.facts.lines(role="row"), *page.facts.lines(role="cell"), page.facts.line(column)]
    return make_draft(page, evidence, {"column": column, "most": most})


def _solve_row_most(facts: Facts) -> str:
    column = facts.text("column")
    rows = [line_text(row) for row in facts.lines(role="row")]
    return pick_extreme([(line_number(_find_named_cell(facts, row, column)), row) for row in rows], facts.text("most"))


def pick_extreme(candidates: list[tuple[float, str]], most: str) -> str:
    if not candidates:
        raise Unanswerable("there is nothing to compare")
    return (max(candidates) if most in ("highest", "largest") else min(candidates))[1]


FIELDS: dict[str, Callable[[Generator], str]] = {
    "Room": make_code,
    "Host": choose_name,
    "Street": lambda rng: f"{choose_name(rng)} {sample_int(rng, 12, 98)}",
    "Entry": lambda rng: f"{sample_int(rng, 12, 98)}.50",
    "Starts": lambda rng: f"{sample_int(rng, 12, 22)}:{choose(rng, ('15', '20', '25', '35', '45'))}",
    "Seats": lambda rng: str(sample_int(rng, 24, 960)),
    "Date": lambda rng: f"{sample_int(rng, 12, 28)} {choose(rng, MONTHS)}",
    "Guest": choose_name,
    "Phone": lambda rng: f"{sample_int(rng, 222, 989)} {sample_int(rng, 222, 989)}",
    "Theme": choose_name,
}


def _make_poster(brief: Brief, media: str = "Image_0", keys: Sequence[str] = ()) -> tuple[DocumentPage, dict[str, str]]:
    page = DocumentPage(brief, media)
    keys = keys or sample(brief.rng, tuple(FIELDS), 4 + brief.difficulty.level // 2)
    values = {key: FIELDS[key](brief.rng) for key in keys}
    name = choose_name(brief.rng)
    page.write_title(f"{name} {choose(brief.rng, ('Evening', 'Market', 'Concert', 'Workshop', 'Race', 'Reading'))}")
    draw_poster(page, list(values.items()))
    return page, values


def _compose_field(brief: Brief) -> ItemDraft:
    page, values = _make_poster(brief)
    key = choose(brief.rng, tuple(values))
    return make_draft(page, page.facts.lines(role="line", key=key), {"key": key})


def _solve_field(facts: Facts) -> str:
    return _read_field(facts, facts.text("key"), facts.media)


def _read_field(facts: Facts, key: str, media: str | None) -> str:
    for r in facts.lines(media, role="line"):
        before, _, after = line_text(r).partition(": ")
        if before == key:
            return after
    raise Unanswerable(f"no line begins with {key!r}")


def _compose_pair_field(brief: Brief) -> ItemDraft:
    keys = sample(brief.rng, tuple(FIELDS), 4 + brief.difficulty.level // 3)
    pages = [_make_poster(brief, f"Image_{k}", keys)[0] for k in (0, 1)]
    target_index, key = int(brief.rng.integers(2)), choose(brief.rng, keys)
    evidence = pages[target_index].facts.lines(role="line", key=key)
    return make_draft(pages, evidence, {"key": key, "media": f"Image_{target_index}"})


def _compose_pair_more(brief: Brief) -> ItemDraft:
    keys = ["Seats", *sample(brief.rng, [k for k in FIELDS if k != "Seats"], 3 + brief.difficulty.level // 3)]
    keys = sample(brief.rng, keys, len(keys))
    pages = [_make_poster(brief, f"Image_{k}", keys)[0] for k in (0, 1)]
    evidence = [r for page in pages for r in (*page.facts.lines(role="title"), *page.facts.lines(key="Seats"))]
    return make_draft(pages, evidence, {"key": "Seats"})


def _solve_pair_more(facts: Facts) -> str:
    seats_and_titles = []
    for media in ("Image_0", "Image_1"):
        title = require_first(facts.lines(media, role="title"), f"{media} has no title")
        seats_and_titles.append((parse_number(_read_field(facts, facts.text("key"), media)), line_text(title)))
    return max(seats_and_titles)[1]


TEMPLATES = load_templates(
    "document",
    cell=(_compose_cell, _solve_cell),
    row_most=(_compose_row_most, _solve_row_most),
    field=(_compose_field, _solve_field),
    pair_field=(_compose_pair_field, _solve_field),
    pair_more=(_compose_pair_more, _solve_pair_more),
)
