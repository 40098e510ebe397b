"""document (InfoVQA), second part: column charts, line charts and pies; scored by ANLS."""

from __future__ import annotations

from itertools import pairwise

from pixelis.core.geometry import Size
from pixelis.items import Reference
from pixelis.world.pages import DocumentPage, draw_columns, draw_curve, draw_pie
from pixelis.world.programs import Facts, centre, format_number, get_box, get_centre, line_number, line_text, nearest
from pixelis.world.tasks.document import pick_extreme
from pixelis.world.template import Brief, ItemDraft, load_templates, make_draft
from pixelis.world.vocabulary import (
    MONTHS,
    TOPICS,
    choose,
    choose_name,
    choose_names,
    sample,
    sample_int,
    sample_spaced_integers,
)


def _make_column_chart(brief: Brief) -> tuple[DocumentPage, list[str], list[int], list[str]]:
    page = DocumentPage(brief)
    count = min(3 + (brief.difficulty.level + 1) // 2, 6, len(page.colours))
    labels, values = choose_names(brief.rng, count), sample_spaced_integers(brief.rng, count, 14, 970, 11)
    hues = page.colours[:count]
    page.write_title(f"{choose(brief.rng, TOPICS)} {sample_int(brief.rng, 1962, 2039)}")
    draw_columns(page, labels, values, hues)
    return page, labels, values, hues


def value_above(facts: Facts, label: str) -> Reference:
    """The value above the name of a column or of a point."""
    x = get_centre(facts.line(label, role="label"))[0]
    return nearest(facts.lines(role="value"), lambda r: abs(get_centre(r)[0] - x))


def _compose_column_value(brief: Brief) -> ItemDraft:
    page, labels, _, _ = _make_column_chart(brief)
    return _ask_value(page, choose(brief.rng, labels))


def _ask_value(page: DocumentPage, label: str) -> ItemDraft:
    return make_draft(page, [page.facts.line(label), value_above(page.facts, label)], {"label": label})


def _solve_label_value(facts: Facts) -> str:
    return line_text(value_above(facts, facts.text("label")))


def _compose_most_label(brief: Brief) -> ItemDraft:
    return _ask_extreme(brief, _make_column_chart(brief)[0])


def _ask_extreme(brief: Brief, page: DocumentPage) -> ItemDraft:
    evidence = page.facts.lines(role="label") + page.facts.lines(role="value")
    return make_draft(page, evidence, {"most": choose(brief.rng, ("highest", "lowest"))})


def _solve_most_label(facts: Facts) -> str:
    names = [line_text(r) for r in facts.lines(role="label")]
    return pick_extreme([(line_number(value_above(facts, name)), name) for name in names], facts.text("most"))


def _compose_difference(brief: Brief) -> ItemDraft:
    page, labels, values, _ = _make_column_chart(brief)
    pair = sorted(sample(brief.rng, range(len(labels)), 2), key=lambda k: -values[k])
    a, b = (labels[k] for k in pair)
    evidence = [r for label in (a, b) for r in (page.facts.line(label), value_above(page.facts, label))]
    return make_draft(page, evidence, {"a": a, "b": b})


def _solve_difference(facts: Facts) -> str:
    a, b = (line_number(value_above(facts, facts.text(key))) for key in ("a", "b"))
    return format_number(a - b)


def _compose_colour_value(brief: Brief) -> ItemDraft:
    page, _, _, hues = _make_column_chart(brief)
    colour = choose(brief.rng, hues)
    target = page.facts.region(f"{colour} column")
    evidence = [target, _find_value_on_top(page.facts, target)]
    return make_draft(page, evidence, {"colour": colour, "target": f"{colour} column"})


def _find_value_on_top(facts: Facts, column: Reference) -> Reference:
    x0, y0, x1, _ = get_box(column)
    distance = lambda r: abs(get_centre(r)[0] - (x0 + x1) / 2) + abs(get_box(r)[3] - y0)  # noqa: E731
    return nearest(facts.lines(role="value"), distance)


def _solve_colour_value(facts: Facts) -> str:
    return line_text(_find_value_on_top(facts, facts.region(facts.text("target"))))


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
    return _ask_value(page, choose(brief.rng, labels))


def _compose_peak(brief: Brief) -> ItemDraft:
    return _ask_extreme(brief, _make_line_chart(brief)[0])


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


def find_at_height(facts: Facts, y: float, role: str) -> Reference:
    return nearest(facts.lines(role=role), lambda r: abs(get_centre(r)[1] - y))


def _compose_share(brief: Brief) -> ItemDraft:
    page, labels, _ = _make_pie_chart(brief)
    label = choose(brief.rng, labels)
    label_line = page.facts.line(label)
    value = find_at_height(page.facts, get_centre(label_line)[1], "value")
    draft = make_draft(page, [label_line, value], {"label": label})
    draft.accepted_answers = lambda answer: (answer, answer.replace("%", " %"), answer.removesuffix("%"))
    return draft


def _solve_share(facts: Facts) -> str:
    y = get_centre(facts.line(facts.text("label"), role="label"))[1]
    return line_text(find_at_height(facts, y, "value"))


def _compose_legend(brief: Brief) -> ItemDraft:
    page, _, hues = _make_pie_chart(brief)
    colour = choose(brief.rng, hues)
    key = page.facts.region(f"{colour} key")
    label = find_at_height(page.facts, get_centre(key)[1], "label")
    return make_draft(page, [key, label], {"colour": colour, "target": f"{colour} key"})


def _solve_legend(facts: Facts) -> str:
    y = centre(facts.box("target"))[1]
    return line_text(find_at_height(facts, y, "label"))


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
