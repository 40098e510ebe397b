"""document (InfoVQA), second part: column charts, line charts and pies; scored by ANLS."""

from __future__ import annotations

from itertools import pairwise

from pixelis.geometry import Size
from pixelis.world.item import Reference
from pixelis.world.pages import Page, columns, curve, pie
from pixelis.world.programs import (
    Parameters,
    References,
    box_of,
    centre,
    line,
    nearest,
    number,
    region,
    says,
    spans,
    text_of,
    value_of,
)
from pixelis.world.tasks.document import READ, drafted, picked, texts
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import MONTHS, TOPICS, choose, name, names, sample, spread, whole


def _columns(brief: Brief) -> tuple[Page, list[str], list[int], list[str]]:
    page = Page(brief)
    count = min(3 + (brief.dial.level + 1) // 2, 6, len(page.colours))
    labels, values = names(brief.rng, count), spread(brief.rng, count, 14, 970, 11)
    hues = page.colours[:count]
    page.title(f"{choose(brief.rng, TOPICS)} {whole(brief.rng, 1962, 2039)}")
    columns(page, labels, values, hues)
    return page, labels, values, hues


def above(references: References, label: str) -> Reference:
    """The value over the name of a column or of a point."""
    x = centre(box_of(line(references, label, role="label")))[0]
    return nearest(spans(references, role="value"), lambda r: abs(centre(box_of(r))[0] - x))


def _column_value(brief: Brief) -> Draft:
    page, labels, _, _ = _columns(brief)
    label = choose(brief.rng, labels)
    return drafted(page, {"label": label}, [line(page.references, label), above(page.references, label)])


def _value_of_label(references: References, parameters: Parameters) -> str:
    return says(above(references, text_of(parameters, "label")))


def _most_label(brief: Brief) -> Draft:
    page, _, _, _ = _columns(brief)
    used = texts(page, role="label") + texts(page, role="value")
    return drafted(page, {"most": choose(brief.rng, ("highest", "lowest"))}, used)


def _label_most(references: References, parameters: Parameters) -> str:
    found = [(value_of(says(above(references, says(r)))), says(r)) for r in spans(references, role="label")]
    return picked(found, text_of(parameters, "most"))


def _difference(brief: Brief) -> Draft:
    page, labels, values, _ = _columns(brief)
    pair = sorted(sample(brief.rng, range(len(labels)), 2), key=lambda k: -values[k])
    a, b = (labels[k] for k in pair)
    used = [f(page.references, label) for label in (a, b) for f in (line, above)]
    return drafted(page, {"a": a, "b": b}, used)


def _minus(references: References, parameters: Parameters) -> str:
    a, b = (value_of(says(above(references, text_of(parameters, key)))) for key in ("a", "b"))
    return number(a - b)


def _colour_value(brief: Brief) -> Draft:
    page, _, _, hues = _columns(brief)
    colour = choose(brief.rng, hues)
    target = region(page.references, f"{colour} column")
    return drafted(page, {"colour": colour, "target": f"{colour} column"}, [target, _on_top(page.references, target)])


def _on_top(references: References, column: Reference) -> Reference:
    x0, y0, x1, _ = box_of(column)
    off = lambda r: abs(centre(box_of(r))[0] - (x0 + x1) / 2) + abs(box_of(r)[3] - y0)  # noqa: E731
    return nearest(spans(references, role="value"), off)


def _value_on_top(references: References, parameters: Parameters) -> str:
    return says(_on_top(references, region(references, text_of(parameters, "target"))))


def _curve(brief: Brief) -> tuple[Page, list[str]]:
    page = Page(brief, size=Size(704, 576))
    count = 4 + brief.dial.level
    first = int(brief.rng.integers(0, 12 - count + 1))
    labels = list(MONTHS[first : first + count])
    values = spread(brief.rng, count, 21, 480, 7)
    page.title(f"{choose(brief.rng, TOPICS)} in {name(brief.rng)}")
    curve(page, labels, values, page.colours[0])
    return page, labels


def _month_value(brief: Brief) -> Draft:
    page, labels = _curve(brief)
    label = choose(brief.rng, labels)
    return drafted(page, {"label": label}, [line(page.references, label), above(page.references, label)])


def _peak(brief: Brief) -> Draft:
    page, _ = _curve(brief)
    used = texts(page, role="label") + texts(page, role="value")
    return drafted(page, {"most": choose(brief.rng, ("highest", "lowest"))}, used)


def _pie(brief: Brief) -> tuple[Page, list[str], list[str]]:
    page = Page(brief, size=Size(704, 576))
    count = min(3 + brief.dial.level // 2, 5, len(page.colours))
    while True:
        parts = spread(brief.rng, count - 1, 12, 88, 10)
        cuts = [0, *sorted(parts), 100]
        shares = [b - a for a, b in pairwise(cuts)]
        if min(shares) >= 10 and len(set(shares)) == count:
            break
    labels = names(brief.rng, count)
    page.title(f"Share of {choose(brief.rng, TOPICS).lower()}")
    pie(page, labels, shares, page.colours[:count])
    return page, labels, page.colours[:count]


def beside(references: References, y: float, role: str) -> Reference:
    return nearest(spans(references, role=role), lambda r: abs(centre(box_of(r))[1] - y))


def _share(brief: Brief) -> Draft:
    page, labels, _ = _pie(brief)
    label = choose(brief.rng, labels)
    named = line(page.references, label)
    value = beside(page.references, centre(box_of(named))[1], "value")
    draft = drafted(page, {"label": label}, [named, value])
    draft.accepted = lambda answer: (answer, answer.replace("%", " %"), answer.removesuffix("%"))
    return draft


def _share_of(references: References, parameters: Parameters) -> str:
    y = centre(box_of(line(references, text_of(parameters, "label"), role="label")))[1]
    return says(beside(references, y, "value"))


def _legend(brief: Brief) -> Draft:
    page, _, hues = _pie(brief)
    colour = choose(brief.rng, hues)
    key = region(page.references, f"{colour} key")
    label = beside(page.references, centre(box_of(key))[1], "label")
    return drafted(page, {"colour": colour, "target": f"{colour} key"}, [key, label])


def _stands_for(references: References, parameters: Parameters) -> str:
    y = centre(box_of(region(references, text_of(parameters, "target"))))[1]
    return says(beside(references, y, "label"))


TEMPLATES = (
    Template(
        "document.column_value", "document",
        (
            "What is the value of {label}?",
            "Which number does the chart give for {label}?",
            "How much is it for {label}?",
            "Read the chart: what is the figure for {label}?",
        ),
        _column_value, _value_of_label, "anls", (READ,), doc="the number over {label}",
    ),
    Template(
        "document.most_label", "document",
        (
            "Which name has the {most} value?",
            "What is the name of the {most} column?",
            "For which name is the value {most}?",
            "Name the {most} one in the chart.",
        ),
        _most_label, _label_most, "anls", (READ,), doc="compare the numbers; the name below",
    ),
    Template(
        "document.difference", "document",
        (
            "By how much is {a} higher than {b}?",
            "What is the difference between {a} and {b}?",
            "Subtract the value of {b} from that of {a}.",
            "How much more does {a} have than {b}?",
        ),
        _difference, _minus, "anls", (READ,), reads_operands=True, doc="the number over {a} minus that over {b}",
    ),
    Template(
        "document.colour_value", "document",
        (
            "What is the value of the {colour} column?",
            "Which number stands on top of the {colour} column?",
            "How high is the {colour} column, as written above it?",
            "Read the figure of the {colour} column.",
        ),
        _colour_value, _value_on_top, "anls",
        (ChainStep(tool="SEG", args={"target": "{target}"}), READ),
        doc="the number just above the region, or ZOOM on it with scale 0.6 and OCR",
    ),
    Template(
        "document.month_value", "document",
        (
            "What is the value in {label}?",
            "Which number does the line reach in {label}?",
            "How much was it in {label}?",
            "Read the curve at {label}.",
        ),
        _month_value, _value_of_label, "anls", (READ,), doc="the number over the point above {label}",
    ),
    Template(
        "document.peak", "document",
        (
            "In which month is the value {most}?",
            "When does the curve have its {most} point?",
            "Which month shows the {most} value?",
            "Name the month with the {most} number.",
        ),
        _peak, _label_most, "anls", (READ,), doc="compare the numbers; the month below",
    ),
    Template(
        "document.share", "document",
        (
            "What share does {label} have?",
            "How many percent are {label}?",
            "Which percentage belongs to {label}?",
            "What part of the whole is {label}?",
        ),
        _share, _share_of, "anls", (READ,), doc="the percentage in the row of {label}",
    ),
    Template(
        "document.legend", "document",
        (
            "What does the {colour} slice stand for?",
            "Which name belongs to the {colour} slice?",
            "According to the legend, what is {colour}?",
            "The {colour} part of the pie: what is it called?",
        ),
        _legend, _stands_for, "anls",
        (ChainStep(tool="SEG", args={"target": "{target}"}, note="the slice and the square of the legend"), READ),
        doc="the name in the row of the smaller region",
    ),
)  # fmt: skip
