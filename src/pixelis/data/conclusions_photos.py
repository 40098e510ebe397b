"""Conclusions about photographs, signs and pages: what was found of a noun, and what was read."""

from __future__ import annotations

from collections.abc import Callable

from pixelis.data.conclusions_pictures import Wordings, chosen, unexplained
from pixelis.data.conclusions_pictures import field as field_of
from pixelis.data.conclusions_seen import Chain, two
from pixelis.world.programs import area, regions, says, spans

LONG = 8
"""Words of a text that is not said over again before the answer."""


def count(c: Chain) -> Wordings:
    things = c.asked("things") if "things" in c.item.parameters else f"of {c.asked('target')}"
    if c.words == "0":
        return f"No {things} were found: 0.", f"Nothing was found, so there are 0 {things}.", "None: 0."
    return f"{c.words} regions: {c.words} {things}.", f"{c.words} were found: {c.words}.", f"That makes {c.words}."


def colour(c: Chain) -> Wordings:
    thing = c.asked("thing")
    return f"The {thing} is {c.words}.", f"The colour of the {thing} is {c.words}.", f"Mostly {c.words}: {c.words}."


def there(c: Chain) -> Wordings:
    thing = c.asked("thing")
    if c.words == "no":
        return f"No {thing} was found: no.", f"There is no {thing}: no.", f"SEG finds no {thing}, so no."
    return f"A {thing} was found: yes.", f"There is a {thing}: yes.", f"SEG finds a {thing}, so yes."


def missing(c: Chain) -> Wordings:
    thing = c.asked("thing")
    return f"No {thing} was found: {c.words}.", f"SEG finds no {thing}, so {c.words}."


def larger(c: Chain) -> Wordings:
    """Both areas as SEG printed them."""
    names = (c.asked("thing_a"), c.thing(c.asked("a"))), (c.asked("thing_b"), c.thing(c.asked("b")))
    areas = [(name, round(area(note), 2)) for name, note in names if note is not None]
    if len(areas) < 2:
        return unexplained(c)
    (a, first), (b, second) = areas
    if first == second or (c.words == a) != (first > second):
        return unexplained(c)
    facts = f"areas: {a} {two(first)}, {b} {two(second)}"
    return f"{facts}; the {c.words} is larger.", f"{facts}. So the {c.words}."


def largest(c: Chain) -> Wordings:
    notes = [(name, note) for name in c.item.options if (note := c.thing(name)) is not None]
    if not notes:
        return unexplained(c)
    best = max(notes, key=lambda pair: round(area(pair[1]), 2))[0]
    if best != c.words:
        return unexplained(c)
    listed = ", ".join(f"{name} {two(area(note))}" for name, note in notes)
    return chosen(c, (f"Areas: {listed}; largest is the {c.words}", f"Areas: {listed}. The {c.words}"))


def side(c: Chain) -> Wordings:
    a, b = c.thing(c.asked("a")), c.thing(c.asked("b"))
    if a is None or b is None:
        return unexplained(c)
    first, second = c.middle(a, 0), c.middle(b, 0)
    if first.value == second.value or (first.value < second.value) != (c.words == "left"):
        return unexplained(c)
    names = [str(c.item.parameters.get(f"thing_{key}", c.asked(key))) for key in "ab"]
    facts = f"The {names[0]} has its middle at x {first.text}, the {names[1]} at {second.text}"
    return f"{facts}: {c.words}.", f"{facts}; so {c.words}."


def which_picture(c: Chain) -> Wordings:
    thing = c.asked("thing")
    seen = ["found" if regions(c.notes, c.asked("target"), f"Image_{k}") else "not found" for k in (0, 1)]
    facts = f"The {thing} was {seen[0]} in the first picture and {seen[1]} in the second"
    return f"{facts}: {c.words}.", f"{facts}, so {c.words}."


# --- text


def text(c: Chain) -> Wordings:
    surface = str(c.item.parameters.get("surface", "text"))
    if len(c.words.split()) > LONG:
        return f"The {surface} says all of this, line by line.", "These lines, one after another.", "That is the text."
    return f"It says {c.words}.", f"The {surface} says {c.words}.", f"It reads {c.words}."


def title(c: Chain) -> Wordings:
    return f"The first line is {c.words}.", f"At the top stands {c.words}.", f"The title is {c.words}."


def after(c: Chain) -> Wordings:
    label = c.asked("label")
    line = next((says(r) for r in spans(c.notes) if says(r).casefold().startswith(label.casefold())), "")
    if not line:
        return unexplained(c)
    return f'The line reads "{line}": {c.words}.', f"After {label} stands {c.words}."


def spot(c: Chain) -> Wordings:
    return f"There stands {c.words}.", f"It reads {c.words}.", f"The text there is {c.words}."


def largest_text(c: Chain) -> Wordings:
    return f"The highest letters say {c.words}.", f"Largest is {c.words}."


SAYINGS: dict[str, Callable[[Chain], Wordings]] = {
    "coco.count": count,
    "coco.side": side,
    "coco.largest": largest,
    "photo.count": count,
    "photo.count_in": count,
    "photo.where": field_of,
    "photo.colour": colour,
    "photo.there": there,
    "photo.larger": larger,
    "photo.side": side,
    "photo.missing": missing,
    "photo.which_picture": which_picture,
    "text.all": text,
    "text.title": title,
    "text.after": after,
    "ocr.at": spot,
    "ocr.largest": largest_text,
}
