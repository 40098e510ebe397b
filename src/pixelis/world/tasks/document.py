"""document (InfoVQA), first part: tables and notices; scored by ANLS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from pixelis.world.item import Reference
from pixelis.world.pages import Page, poster, table
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    box_of,
    centre,
    line,
    nearest,
    says,
    spans,
    text_of,
    value_of,
)
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import MEASURES, MONTHS, TOPICS, choose, code, name, names, sample, spread, whole


def drafted(page: Page, parameters: Mapping[str, object], evidence: Sequence[Reference]) -> Draft:
    image, references = page.finish()
    return Draft((image,), references, [r.name for r in evidence], parameters, traits=page.traits)  # type: ignore[arg-type]


def texts(page: Page, **properties: str) -> list[Reference]:
    return spans(page.references, **properties)


def _table(brief: Brief) -> tuple[Page, list[str], list[str], list[list[str]]]:
    page = Page(brief)
    heads = sample(brief.rng, MEASURES, min(2 + brief.dial.level // 2, 3))
    rows = names(brief.rng, 3 + brief.dial.level)
    values = [spread(brief.rng, len(rows), 12, 980, 9) for _ in heads]
    cells = [[str(values[k][j]) for k in range(len(heads))] for j in range(len(rows))]
    page.title(f"{choose(brief.rng, TOPICS)} by {choose(brief.rng, ('station', 'team', 'village', 'model', 'site'))}")
    table(page, heads, rows, cells)
    return page, heads, rows, cells


def _cell(brief: Brief) -> Draft:
    page, heads, rows, _ = _table(brief)
    j, k = int(brief.rng.integers(len(rows))), int(brief.rng.integers(len(heads)))
    used = [line(page.references, rows[j]), line(page.references, heads[k]), _at(page.references, rows[j], heads[k])]
    return drafted(page, {"row": rows[j], "column": heads[k]}, used)


def _at(references: References, row: str, column: str) -> Reference:
    y = centre(box_of(line(references, row, role="row")))[1]
    x = centre(box_of(line(references, column, role="column")))[0]

    def off(r: Reference) -> float:
        cx, cy = centre(box_of(r))
        return abs(cx - x) + abs(cy - y)

    return nearest(spans(references, role="cell"), off)


def _cell_of(references: References, parameters: Parameters) -> str:
    return says(_at(references, text_of(parameters, "row"), text_of(parameters, "column")))


def _row_most(brief: Brief) -> Draft:
    page, heads, _, _ = _table(brief)
    column, most = choose(brief.rng, heads), choose(brief.rng, ("highest", "lowest"))
    used = [*texts(page, role="row"), *texts(page, role="cell"), line(page.references, column)]
    return drafted(page, {"column": column, "most": most}, used)


def _best_row(references: References, parameters: Parameters) -> str:
    column = text_of(parameters, "column")
    found = [(value_of(says(_at(references, says(row), column))), says(row)) for row in spans(references, role="row")]
    return picked(found, text_of(parameters, "most"))


def picked(found: list[tuple[float, str]], most: str) -> str:
    if not found:
        raise Unanswerable("there is nothing to compare")
    return (max(found) if most in ("highest", "largest") else min(found))[1]


FIELDS: dict[str, Callable[[Generator], str]] = {
    "Room": code,
    "Host": name,
    "Street": lambda rng: f"{name(rng)} {whole(rng, 12, 98)}",
    "Entry": lambda rng: f"{whole(rng, 12, 98)}.50",
    "Starts": lambda rng: f"{whole(rng, 12, 22)}:{choose(rng, ('15', '20', '25', '35', '45'))}",
    "Seats": lambda rng: str(whole(rng, 24, 960)),
    "Date": lambda rng: f"{whole(rng, 12, 28)} {choose(rng, MONTHS)}",
    "Guest": name,
    "Phone": lambda rng: f"{whole(rng, 222, 989)} {whole(rng, 222, 989)}",
    "Theme": name,
}


def _poster(brief: Brief, media: str = "Image_0", keys: Sequence[str] = ()) -> tuple[Page, dict[str, str]]:
    page = Page(brief, media)
    keys = keys or sample(brief.rng, tuple(FIELDS), 4 + brief.dial.level // 2)
    values = {key: FIELDS[key](brief.rng) for key in keys}
    page.title(
        f"{name(brief.rng)} {choose(brief.rng, ('Evening', 'Market', 'Concert', 'Workshop', 'Race', 'Reading'))}"
    )
    poster(page, list(values.items()))
    return page, values


def _field(brief: Brief) -> Draft:
    page, values = _poster(brief)
    key = choose(brief.rng, tuple(values))
    return drafted(page, {"key": key}, spans(page.references, role="line", key=key))


def _after_colon(references: References, parameters: Parameters) -> str:
    key, media = text_of(parameters, "key"), parameters.get("media")
    for r in spans(references, str(media) if media else None, role="line"):
        before, _, after = says(r).partition(": ")
        if before == key:
            return after
    raise Unanswerable(f"no line begins with {key!r}")


def _pair_field(brief: Brief) -> Draft:
    keys = sample(brief.rng, tuple(FIELDS), 4 + brief.dial.level // 3)
    pages = [_poster(brief, f"Image_{k}", keys)[0] for k in (0, 1)]
    asked, key = int(brief.rng.integers(2)), choose(brief.rng, keys)
    used = spans(pages[asked].references, role="line", key=key)
    return _both(pages, {"key": key, "media": f"Image_{asked}"}, used)


def _both(pages: Sequence[Page], parameters: Mapping[str, object], used: Sequence[Reference]) -> Draft:
    made = [page.finish() for page in pages]
    references = [r for _, found in made for r in found]
    traits = {"pair"}.union(*(page.traits for page in pages))
    return Draft(tuple(image for image, _ in made), references, [r.name for r in used], parameters, traits=traits)  # type: ignore[arg-type]


def _pair_more(brief: Brief) -> Draft:
    keys = ["Seats", *sample(brief.rng, [k for k in FIELDS if k != "Seats"], 3 + brief.dial.level // 3)]
    keys = sample(brief.rng, keys, len(keys))
    pages = [_poster(brief, f"Image_{k}", keys)[0] for k in (0, 1)]
    used = [r for page in pages for r in (*spans(page.references, role="title"), *spans(page.references, key="Seats"))]
    return _both(pages, {"key": "Seats"}, used)


def _title_of_more(references: References, parameters: Parameters) -> str:
    found = []
    for media in ("Image_0", "Image_1"):
        titles = spans(references, media, role="title")
        if not titles:
            raise Unanswerable(f"{media} has no title")
        found.append((value_of(_after_colon(references, {**parameters, "media": media})), says(titles[0])))
    return max(found)[1]


READ = ChainStep(tool="OCR", note="the whole page; lines come with their boxes")

TEMPLATES = (
    Template(
        "document.cell", "document",
        (
            "What is the {column} of {row}?",
            "According to the table, which {column} does {row} have?",
            "Look up {row}: what stands under {column}?",
            "In the row of {row}, what is the value for {column}?",
        ),
        _cell, _cell_of, "anls", (READ,), doc="the cell in the row of {row} and below {column}",
    ),
    Template(
        "document.row_most", "document",
        (
            "Which row has the {most} {column}?",
            "Who or what has the {most} {column} in the table?",
            "Find the {most} value of {column}. To which name does it belong?",
            "In the column {column}, which name has the {most} value?",
        ),
        _row_most, _best_row, "anls", (READ,), doc="compare the cells below {column}; the name at the left of the row",
    ),
    Template(
        "document.field", "document",
        (
            'What does the notice say for "{key}"?',
            'Which entry follows "{key}"?',
            'Find the line that begins with "{key}". What comes after it?',
            'What is given as "{key}"?',
        ),
        _field, _after_colon, "anls", (READ,), doc="what follows {key} and a colon",
    ),
    Template(
        "document.pair_field", "document",
        (
            'What does {media} say for "{key}"?',
            'Both notices have an entry "{key}". What is it in {media}?',
            'In {media}, what follows "{key}"?',
            'Look at {media}: which entry belongs to "{key}"?',
        ),
        _pair_field, _after_colon, "anls", (ChainStep(tool="OCR", args={"media": "{media}"}),),
        doc="what follows {key} and a colon",
    ),
    Template(
        "document.pair_more", "document",
        (
            "Which of the two events has more seats? Give its title.",
            "Compare the seats in both notices. What is the title of the larger event?",
            "What is the heading of the notice with the higher number of seats?",
            "Where are there more seats? Answer with the title of that notice.",
        ),
        _pair_more, _title_of_more, "anls",
        (ChainStep(tool="OCR", args={"media": "Image_0"}), ChainStep(tool="OCR", args={"media": "Image_1"})),
        doc="compare what follows Seats; the first line of that page",
    ),
)  # fmt: skip
