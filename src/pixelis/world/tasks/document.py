"""document (InfoVQA), first part: tables and notices; scored by ANLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.random import Generator

from pixelis.items import Reference
from pixelis.world.pages import DocumentPage, draw_poster, draw_table
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    centre,
    find_lines,
    find_printed_line,
    get_box,
    get_line_text,
    get_text,
    nearest,
    parse_number,
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
    sample_integer,
    sample_spaced_integers,
)


def find_texts(page: DocumentPage, **properties: str) -> list[Reference]:
    return find_lines(page.references, **properties)


def _make_table_page(brief: Brief) -> tuple[DocumentPage, list[str], list[str], list[list[str]]]:
    page = DocumentPage(brief)
    heads = sample(brief.rng, MEASURES, min(2 + brief.difficulty.level // 2, 3))
    rows = choose_names(brief.rng, 3 + brief.difficulty.level)
    values = [sample_spaced_integers(brief.rng, len(rows), 12, 980, 9) for _ in heads]
    cells = [[str(values[k][j]) for k in range(len(heads))] for j in range(len(rows))]
    page.write_title(
        f"{choose(brief.rng, TOPICS)} by {choose(brief.rng, ('station', 'team', 'village', 'model', 'site'))}"
    )
    draw_table(page, heads, rows, cells)
    return page, heads, rows, cells


def _compose_cell(brief: Brief) -> ItemDraft:
    page, heads, rows, _ = _make_table_page(brief)
    j, k = int(brief.rng.integers(len(rows))), int(brief.rng.integers(len(heads)))
    evidence = [
        find_printed_line(page.references, rows[j]),
        find_printed_line(page.references, heads[k]),
        _find_named_cell(page.references, rows[j], heads[k]),
    ]
    return make_draft(page, evidence, {"row": rows[j], "column": heads[k]})


def find_cell(references: References, row: Reference, column: Reference) -> Reference:
    """The cell nearest to the crossing of a row and a column."""
    x, y = centre(get_box(column))[0], centre(get_box(row))[1]

    def distance(r: Reference) -> float:
        cx, cy = centre(get_box(r))
        return abs(cx - x) + abs(cy - y)

    return nearest(find_lines(references, role="cell"), distance)


def _find_named_cell(references: References, row: str, column: str) -> Reference:
    row_line = find_printed_line(references, row, role="row")
    return find_cell(references, row_line, find_printed_line(references, column, role="column"))


def _solve_cell(references: References, parameters: Parameters) -> str:
    return get_line_text(_find_named_cell(references, get_text(parameters, "row"), get_text(parameters, "column")))


def _compose_row_most(brief: Brief) -> ItemDraft:
    page, heads, _, _ = _make_table_page(brief)
    column, most = choose(brief.rng, heads), choose(brief.rng, ("highest", "lowest"))
    evidence = [
        *find_texts(page, role="row"),
        *find_texts(page, role="cell"),
        find_printed_line(page.references, column),
    ]
    return make_draft(page, evidence, {"column": column, "most": most})


def _solve_row_most(references: References, parameters: Parameters) -> str:
    column = get_text(parameters, "column")
    row_values = [
        (parse_number(get_line_text(_find_named_cell(references, get_line_text(row), column))), get_line_text(row))
        for row in find_lines(references, role="row")
    ]
    return pick_extreme(row_values, get_text(parameters, "most"))


def pick_extreme(candidates: list[tuple[float, str]], most: str) -> str:
    if not candidates:
        raise Unanswerable("there is nothing to compare")
    return (max(candidates) if most in ("highest", "largest") else min(candidates))[1]


FIELDS: dict[str, Callable[[Generator], str]] = {
    "Room": make_code,
    "Host": choose_name,
    "Street": lambda rng: f"{choose_name(rng)} {sample_integer(rng, 12, 98)}",
    "Entry": lambda rng: f"{sample_integer(rng, 12, 98)}.50",
    "Starts": lambda rng: f"{sample_integer(rng, 12, 22)}:{choose(rng, ('15', '20', '25', '35', '45'))}",
    "Seats": lambda rng: str(sample_integer(rng, 24, 960)),
    "Date": lambda rng: f"{sample_integer(rng, 12, 28)} {choose(rng, MONTHS)}",
    "Guest": choose_name,
    "Phone": lambda rng: f"{sample_integer(rng, 222, 989)} {sample_integer(rng, 222, 989)}",
    "Theme": choose_name,
}


def _make_poster_page(
    brief: Brief, media: str = "Image_0", keys: Sequence[str] = ()
) -> tuple[DocumentPage, dict[str, str]]:
    page = DocumentPage(brief, media)
    keys = keys or sample(brief.rng, tuple(FIELDS), 4 + brief.difficulty.level // 2)
    values = {key: FIELDS[key](brief.rng) for key in keys}
    page.write_title(
        f"{choose_name(brief.rng)} {choose(brief.rng, ('Evening', 'Market', 'Concert', 'Workshop', 'Race', 'Reading'))}"
    )
    draw_poster(page, list(values.items()))
    return page, values


def _compose_field(brief: Brief) -> ItemDraft:
    page, values = _make_poster_page(brief)
    key = choose(brief.rng, tuple(values))
    return make_draft(page, find_lines(page.references, role="line", key=key), {"key": key})


def _solve_field(references: References, parameters: Parameters) -> str:
    key, media = get_text(parameters, "key"), parameters.get("media")
    for r in find_lines(references, str(media) if media else None, role="line"):
        before, _, after = get_line_text(r).partition(": ")
        if before == key:
            return after
    raise Unanswerable(f"no line begins with {key!r}")


def _compose_pair_field(brief: Brief) -> ItemDraft:
    keys = sample(brief.rng, tuple(FIELDS), 4 + brief.difficulty.level // 3)
    pages = [_make_poster_page(brief, f"Image_{k}", keys)[0] for k in (0, 1)]
    target_index, key = int(brief.rng.integers(2)), choose(brief.rng, keys)
    evidence = find_lines(pages[target_index].references, role="line", key=key)
    return make_draft(pages, evidence, {"key": key, "media": f"Image_{target_index}"})


def _compose_pair_more(brief: Brief) -> ItemDraft:
    keys = ["Seats", *sample(brief.rng, [k for k in FIELDS if k != "Seats"], 3 + brief.difficulty.level // 3)]
    keys = sample(brief.rng, keys, len(keys))
    pages = [_make_poster_page(brief, f"Image_{k}", keys)[0] for k in (0, 1)]
    evidence = [
        r
        for page in pages
        for r in (*find_lines(page.references, role="title"), *find_lines(page.references, key="Seats"))
    ]
    return make_draft(pages, evidence, {"key": "Seats"})


def _solve_pair_more(references: References, parameters: Parameters) -> str:
    seats_and_titles = []
    for media in ("Image_0", "Image_1"):
        titles = find_lines(references, media, role="title")
        if not titles:
            raise Unanswerable(f"{media} has no title")
        seats_and_titles.append(
            (parse_number(_solve_field(references, {**parameters, "media": media})), get_line_text(titles[0]))
        )
    return max(seats_and_titles)[1]


TEMPLATES = load_templates(
    "document",
    cell=(_compose_cell, _solve_cell),
    row_most=(_compose_row_most, _solve_row_most),
    field=(_compose_field, _solve_field),
    pair_field=(_compose_pair_field, _solve_field),
    pair_more=(_compose_pair_more, _solve_pair_more),
)
