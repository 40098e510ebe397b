"""Conclusions about photographs, signs and pages: what was found of a noun, and what was read."""

from __future__ import annotations

from collections.abc import Callable

from pixelis.data.teachers.oracle.rationale_context import RationaleContext, two_decimals
from pixelis.data.teachers.oracle.rationales_pictures import Wordings, explain_without_numbers, with_option
from pixelis.data.teachers.oracle.rationales_pictures import explain_field as field_of
from pixelis.world.programs import area, find_lines, find_regions, get_line_text

MAX_QUOTED_WORDS = 8
"""Words of a text that is not said over again before the answer."""


def explain_count(context: RationaleContext) -> Wordings:
    things = context.parameter("things") if "things" in context.item.parameters else f"of {context.parameter('target')}"
    if context.answer_text == "0":
        return f"No {things} were found: 0.", f"Nothing was found, so there are 0 {things}.", "None: 0."
    return (
        f"{context.answer_text} regions: {context.answer_text} {things}.",
        f"{context.answer_text} were found: {context.answer_text}.",
        f"That makes {context.answer_text}.",
    )


def explain_colour(context: RationaleContext) -> Wordings:
    thing = context.parameter("thing")
    return (
        f"The {thing} is {context.answer_text}.",
        f"The colour of the {thing} is {context.answer_text}.",
        f"Mostly {context.answer_text}: {context.answer_text}.",
    )


def explain_presence(context: RationaleContext) -> Wordings:
    thing = context.parameter("thing")
    if context.answer_text == "no":
        return f"No {thing} was found: no.", f"There is no {thing}: no.", f"SEG finds no {thing}, so no."
    return f"A {thing} was found: yes.", f"There is a {thing}: yes.", f"SEG finds a {thing}, so yes."


def explain_absence(context: RationaleContext) -> Wordings:
    thing = context.parameter("thing")
    return f"No {thing} was found: {context.answer_text}.", f"SEG finds no {thing}, so {context.answer_text}."


def explain_larger(context: RationaleContext) -> Wordings:
    """Both areas as SEG printed them."""
    names = (
        (context.parameter("thing_a"), context.find_thing(context.parameter("a"))),
        (context.parameter("thing_b"), context.find_thing(context.parameter("b"))),
    )
    areas = [(name, round(area(note), 2)) for name, note in names if note is not None]
    if len(areas) < 2:
        return explain_without_numbers(context)
    (a, first), (b, second) = areas
    if first == second or (context.answer_text == a) != (first > second):
        return explain_without_numbers(context)
    facts = f"areas: {a} {two_decimals(first)}, {b} {two_decimals(second)}"
    return f"{facts}; the {context.answer_text} is larger.", f"{facts}. So the {context.answer_text}."


def explain_largest(context: RationaleContext) -> Wordings:
    notes = [(name, note) for name in context.item.options if (note := context.find_thing(name)) is not None]
    if not notes:
        return explain_without_numbers(context)
    best = max(notes, key=lambda pair: round(area(pair[1]), 2))[0]
    if best != context.answer_text:
        return explain_without_numbers(context)
    items_text = ", ".join(f"{name} {two_decimals(area(note))}" for name, note in notes)
    return with_option(
        context,
        (
            f"Areas: {items_text}; largest is the {context.answer_text}",
            f"Areas: {items_text}. The {context.answer_text}",
        ),
    )


def explain_side(context: RationaleContext) -> Wordings:
    a, b = context.find_thing(context.parameter("a")), context.find_thing(context.parameter("b"))
    if a is None or b is None:
        return explain_without_numbers(context)
    first, second = context.centre(a, 0), context.centre(b, 0)
    if first.value == second.value or (first.value < second.value) != (context.answer_text == "left"):
        return explain_without_numbers(context)
    names = [str(context.item.parameters.get(f"thing_{key}", context.parameter(key))) for key in "ab"]
    facts = f"The {names[0]} has its middle at x {first.text}, the {names[1]} at {second.text}"
    return f"{facts}: {context.answer_text}.", f"{facts}; so {context.answer_text}."


def explain_which_picture(context: RationaleContext) -> Wordings:
    thing = context.parameter("thing")
    search_results = [
        "found" if find_regions(context.notes, context.parameter("target"), f"Image_{k}") else "not found"
        for k in (0, 1)
    ]
    facts = f"The {thing} was {search_results[0]} in the first picture and {search_results[1]} in the second"
    return f"{facts}: {context.answer_text}.", f"{facts}, so {context.answer_text}."


# --- text


def explain_text(context: RationaleContext) -> Wordings:
    surface = str(context.item.parameters.get("surface", "text"))
    if len(context.answer_text.split()) > MAX_QUOTED_WORDS:
        return f"The {surface} says all of this, line by line.", "These lines, one after another.", "That is the text."
    return (
        f"It says {context.answer_text}.",
        f"The {surface} says {context.answer_text}.",
        f"It reads {context.answer_text}.",
    )


def explain_title(context: RationaleContext) -> Wordings:
    return (
        f"The first line is {context.answer_text}.",
        f"At the top stands {context.answer_text}.",
        f"The title is {context.answer_text}.",
    )


def explain_text_after(context: RationaleContext) -> Wordings:
    label = context.parameter("label")
    line = next(
        (
            get_line_text(r)
            for r in find_lines(context.notes)
            if get_line_text(r).casefold().startswith(label.casefold())
        ),
        "",
    )
    if not line:
        return explain_without_numbers(context)
    return f'The line reads "{line}": {context.answer_text}.', f"After {label} stands {context.answer_text}."


def explain_text_at_point(context: RationaleContext) -> Wordings:
    return (
        f"There stands {context.answer_text}.",
        f"It reads {context.answer_text}.",
        f"The text there is {context.answer_text}.",
    )


def explain_largest_text(context: RationaleContext) -> Wordings:
    return f"The highest letters say {context.answer_text}.", f"Largest is {context.answer_text}."


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "coco.count": explain_count,
    "coco.side": explain_side,
    "coco.largest": explain_largest,
    "photo.count": explain_count,
    "photo.count_in": explain_count,
    "photo.where": field_of,
    "photo.colour": explain_colour,
    "photo.there": explain_presence,
    "photo.larger": explain_larger,
    "photo.side": explain_side,
    "photo.missing": explain_absence,
    "photo.which_picture": explain_which_picture,
    "text.all": explain_text,
    "text.title": explain_title,
    "text.after": explain_text_after,
    "ocr.at": explain_text_at_point,
    "ocr.largest": explain_largest_text,
}
