"""Conclusions about photographs, signs and pages: what SEG found for a noun, and what OCR read."""

from __future__ import annotations

from collections.abc import Callable

from pixelis.data.teachers.oracle.rationale_context import RationaleContext, Wordings, require
from pixelis.data.teachers.oracle.rationales_pictures import describe_presence, explain_field
from pixelis.world.programs import area, line_text

MAX_QUOTED_WORDS = 8
"""A text of more words is not repeated before the answer."""


def explain_count(context: RationaleContext) -> Wordings:
    things = context.item.parameters.get("things") or f"of {context.parameter('target')}"
    return context.say("photo.count.none" if context.answer == "0" else "photo.count", things=things)


def explain_presence(context: RationaleContext) -> Wordings:
    return context.say("photo.there.no" if context.answer == "no" else "photo.there.yes")


def explain_larger(context: RationaleContext) -> Wordings:
    """Compare both areas as SEG printed them."""
    first, second = (round(area(context.find_thing(context.parameter(key))), 2) for key in ("a", "b"))
    require(first != second and (context.answer == context.parameter("thing_a")) == (first > second))
    return context.say("photo.larger", first=first, second=second)


def explain_largest(context: RationaleContext) -> Wordings:
    areas = {name: area(notes[0]) for name in context.item.options if (notes := context.facts.regions(name))}
    require(bool(areas) and max(areas, key=lambda name: round(areas[name], 2)) == context.answer)
    return context.say("coco.largest", items=", ".join(f"{name} {value:.2f}" for name, value in areas.items()))


def explain_side(context: RationaleContext) -> Wordings:
    first, second = (context.centre(context.find_thing(context.parameter(key)), 0) for key in ("a", "b"))
    require(first.value != second.value and (first.value < second.value) == (context.answer == "left"))
    names = [context.item.parameters.get(f"thing_{key}", context.parameter(key)) for key in "ab"]
    return context.say("side", first=names[0], second=names[1], x_first=first.text, x_second=second.text)


def explain_which_picture(context: RationaleContext) -> Wordings:
    return context.say("photo.which_picture", **describe_presence(context))


def explain_text(context: RationaleContext) -> Wordings:
    is_long = len(context.answer.split()) > MAX_QUOTED_WORDS
    surface = context.item.parameters.get("surface", "text")
    return context.say("text.all.long" if is_long else "text.all", surface=surface)


def explain_text_after(context: RationaleContext) -> Wordings:
    label = context.parameter("label").casefold()
    lines = [text for r in context.facts.lines() if (text := line_text(r)).casefold().startswith(label)]
    require(bool(lines) and bool(lines[0]))
    return context.say("text.after", line=lines[0])


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "coco.count": explain_count,
    "coco.side": explain_side,
    "coco.largest": explain_largest,
    "photo.count": explain_count,
    "photo.count_in": explain_count,
    "photo.where": explain_field,
    "photo.there": explain_presence,
    "photo.larger": explain_larger,
    "photo.side": explain_side,
    "photo.which_picture": explain_which_picture,
    "text.all": explain_text,
    "text.after": explain_text_after,
}
