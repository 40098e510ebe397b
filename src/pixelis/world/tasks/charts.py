"""document (InfoVQA), second part: column charts, line charts and pies; scored by ANLS."""

from __future__ import annotations

from itertools import pairwise

from pixelis.core.geometry import Size
from pixelis.items import Reference
from pixelis.world.pages import DocumentPage, draw_columns, draw_curve, draw_pie
from pixelis.world.programs import (
    Parameters,
    References,
    centre,
    find_lines,
    find_printed_line,
    find_region,
    format_number,
    get_box,
    get_line_text,
    get_text,
    nearest,
    parse_number,
)
from pixelis.world.tasks.document import find_texts, pick_extreme
from pixelis.world.template import Brief, ItemDraft, load_templates, make_draft
from pixelis.world.vocabulary import (
    MONTHS,
    TOPICS,
    choose,
    choose_name,
    choose_names,
    sample,
    sample_integer,
    sample_spaced_integers,
)


def _make_column_chart(brief: Brief) -> tuple[DocumentPage, list[str], list[int], list[str]]:
    page = DocumentPage(brief)
    count = min(3 + (brief.difficulty.level + 1) // 2, 6, len(page.colours))
    labels, values = choose_names(brief.rng, count), sample_spaced_integers(brief.rng, count, 14, 970, 11)
    hues = page.colours[:count]
    page.write_title(f"{choose(brief.rng, TOPICS)} {sample_integer(brief.rng, 1962, 2039)}")
    draw_columns(page, labels, values, hues)
    return page, labels, values, hues


def find_value_above(references: References, label: str) -> Reference:
    """The value above the name of a column or of a point."""
    x = centre(get_box(find_printed_line(references, label, role="label")))[0]
    return nearest(find_lines(references, role="value"), lambda r: abs(centre(get_box(r))[0] - x))


def _compose_column_value(brief: Brief) -> ItemDraft:
    page, labels, _, _ = _make_column_chart(brief)
    label = choose(brief.rng, labels)
    return make_draft(
        page, [find_printed_line(page.references, label), find_value_above(page.references, label)], {"label": label}
    )


def _solve_label_value(references: References, parameters: Parameters) -> str:
    return get_line_text(find_value_above(references, get_text(parameters, "label")))


def _compose_most_label(brief: Brief) -> ItemDraft:
    page, _, _, _ = _make_column_chart(brief)
    evidence = find_texts(page, role="label") + find_texts(page, role="value")
    return make_draft(page, evidence, {"most": choose(brief.rng, ("highest", "lowest"))})


def _solve_most_label(references: References, parameters: Parameters) -> str:
    label_values = [
        (parse_number(get_line_text(find_value_above(references, get_line_text(r)))), get_line_text(r))
        for r in find_lines(references, role="label")
    ]
    return pick_extreme(label_values, get_text(parameters, "most"))


def _compose_difference(brief: Brief) -> ItemDraft:
    page, labels, values, _ = _make_column_chart(brief)
    pair = sorted(sample(brief.rng, range(len(labels)), 2), key=lambda k: -values[k])
    a, b = (labels[k] for k in pair)
    evidence = [f(page.references, label) for label in (a, b) for f in (find_printed_line, find_value_above)]
    return make_draft(page, evidence, {"a": a, "b": b})


def _solve_difference(references: References, parameters: Parameters) -> str:
    a, b = (parse_number(get_line_text(find_value_above(references, get_text(parameters, key)))) for key in ("a", "b"))
    return format_number(a - b)


def _compose_colour_value(brief: Brief) -> ItemDraft:
    page, _, _, hues = _make_column_chart(brief)
    colour = choose(brief.rng, hues)
    target = find_region(page.references, f"{colour} column")
    return make_draft(
        page, [target, _find_value_on_top(page.references, target)], {"colour": colour, "target": f"{colour} column"}
    )


def _find_value_on_top(references: References, column: Reference) -> Reference:
    x0, y0, x1, _ = get_box(column)
    distance = lambda r: abs(centre(get_box(r))[0] - (x0 + x1) / 2) + abs(get_box(r)[3] - y0)  # noqa: E731
    return nearest(find_lines(references, role="value"), distance)


def _solve_colour_value(references: References, parameters: Parameters) -> str:
    return get_line_text(_find_value_on_top(references, find_region(references, get_text(parameters, "target"))))


def _make_line_chart(brief: Brief) -> tuple[DocumentPage, list[str]]:
    page = DocumentPage(brief, size=Size(704, 576))
    count = 4 + brief.difficulty.level
    first = int(brief.rng.integers(0, 12 - count + 1))
    labels = list(MONTHS[first : first + count])
    values = sample_spaced_integers(brief.rng, count, 21, 480, 7)
    page.write_title(f"{choose(brief.rng, TOPICS)} in {choose_name(brief.rng)}")
    draw_curve(page, labels, values, page.colours[0])
    return page, labels


def _compose_month_value(brief: Brief) -> ItemDraft:
    page, labels = _make_line_chart(brief)
    label = choose(brief.rng, labels)
    return make_draft(
        page, [find_printed_line(page.references, label), find_value_above(page.references, label)], {"label": label}
    )


def _compose_peak(brief: Brief) -> ItemDraft:
    page, _ = _make_line_chart(brief)
    evidence = find_texts(page, role="label") + find_texts(page, role="value")
    return make_draft(page, evidence, {"most": choose(brief.rng, ("highest", "lowest"))})


def _make_pie_chart(brief: Brief) -> tuple[DocumentPage, list[str], list[str]]:
    page = DocumentPage(brief, size=Size(704, 576))
    count = min(3 + brief.difficulty.level // 2, 5, len(page.colours))
    while True:
        parts = sample_spaced_integers(brief.rng, count - 1, 12, 88, 10)
        cuts = [0, *sorted(parts), 100]
        shares = [b - a for a, b in pairwise(cuts)]
        if min(shares) >= 10 and len(set(shares)) == count:
            break
    labels = choose_names(brief.rng, count)
    page.write_title(f"Share of {choose(brief.rng, TOPICS).lower()}")
    draw_pie(page, labels, shares, page.colours[:count])
    return page, labels, page.colours[:count]


def find_at_height(references: References, y: float, role: str) -> Reference:
    return nearest(find_lines(references, role=role), lambda r: abs(centre(get_box(r))[1] - y))


def _compose_share(brief: Brief) -> ItemDraft:
    page, labels, _ = _make_pie_chart(brief)
    label = choose(brief.rng, labels)
    label_line = find_printed_line(page.references, label)
    value = find_at_height(page.references, centre(get_box(label_line))[1], "value")
    draft = make_draft(page, [label_line, value], {"label": label})
    draft.accepted_answers = lambda answer: (answer, answer.replace("%", " %"), answer.removesuffix("%"))
    return draft


def _solve_share(references: References, parameters: Parameters) -> str:
    y = centre(get_box(find_printed_line(references, get_text(parameters, "label"), role="label")))[1]
    return get_line_text(find_at_height(references, y, "value"))


def _compose_legend(brief: Brief) -> ItemDraft:
    page, _, hues = _make_pie_chart(brief)
    colour = choose(brief.rng, hues)
    key = find_region(page.references, f"{colour} key")
    label = find_at_height(page.references, centre(get_box(key))[1], "label")
    return make_draft(page, [key, label], {"colour": colour, "target": f"{colour} key"})


def _solve_legend(references: References, parameters: Parameters) -> str:
    y = centre(get_box(find_region(references, get_text(parameters, "target"))))[1]
    return get_line_text(find_at_height(references, y, "label"))


TEMPLATES = load_templates(
    "document",
    column_value=(_compose_column_value, _solve_label_value),
    most_label=(_compose_most_label, _solve_most_label),
    difference=(_compose_difference, _solve_difference),
    colour_value=(_compose_colour_value, _solve_colour_value),
    month_value=(_compose_month_value, _solve_label_value),
    peak=(_compose_peak, _solve_most_label),
    share=(_compose_share, _solve_share),
    legend=(_compose_legend, _solve_legend),
)
