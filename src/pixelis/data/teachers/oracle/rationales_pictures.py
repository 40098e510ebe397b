"""Conclusions about pictures: what is there, where, how many, how large; for the families search, choice and space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import hypot

from pixelis.data.teachers.oracle.oracle_session import noun_from_phrase
from pixelis.data.teachers.oracle.rationale_context import (
    DerivedNumber,
    RationaleContext,
    Wordings,
    format_result,
    require,
)
from pixelis.data.teachers.oracle.running_notes import POSITION_KEYS, format_comparison, looks_at_view
from pixelis.world import Reference
from pixelis.world.programs import format_number, get_box, line_number, line_text, nearest

MAX_WORDS = 37
"""Words of a sentence; in longer ones the computations of single numbers are left out."""
FILL_FRACTIONS = {"square": 1.0, "rectangle": 1.0, "circle": 0.79, "hexagon": 0.75, "diamond": 0.5}
"""How much of its upright box a figure fills."""


def compare_numbers(
    context: RationaleContext, key: str, quantity: str, readings: Sequence[tuple[str, DerivedNumber]], **fields: object
) -> Wordings:
    """`x: the red star 0.12, the blue ring 0.08; the red star is larger.`"""
    for with_computations in (True, False):
        items_text = ", ".join(f"{phrase} {r.text if with_computations else r.short}" for phrase, r in readings)
        texts = context.say(key, quantity=quantity, items=items_text, **fields)
        if max(len(text.split()) for text in texts) <= MAX_WORDS:
            break
    return texts


# --- what is there


def explain_text_on(context: RationaleContext) -> Wordings:
    lines_read = [line_text(r) for r in context.facts.lines()]
    if not context.item.options or context.answer in lines_read:
        return context.say("text_on")
    return context.say("text_on.nearest", read=lines_read[0]) if lines_read else context.say("text_on.unread")


def describe_presence(context: RationaleContext) -> dict[str, str]:
    """Whether the thing was found in the `first` and in the `second` picture."""
    found = [context.facts.regions(context.parameter("target"), f"Image_{k}") for k in (0, 1)]
    first, second = ("found" if regions else "not found" for regions in found)
    return {"first": first, "second": second}


def explain_which_picture(context: RationaleContext) -> Wordings:
    return context.say("search.pair_presence", **describe_presence(context))


def explain_absent(context: RationaleContext) -> Wordings:
    if note := context.conclusive_note:
        return context.say("choice.absent.listed", latest=note.latest)
    return context.say("choice.absent")


# --- where it is


def explain_field(context: RationaleContext) -> Wordings:
    """The centre, and in which third of the picture it is each way."""
    note = context.find_thing(context.parameter("target"))
    x, y = context.centre(note, 0), context.centre(note, 1)
    require(frame_part(x.value, y.value) == context.answer)
    if x.computation:
        return context.say("field.computed", x=x.text, y=y.text)
    printed = next(iter(printed_positions(context)), {"x": x.value, "y": y.value})
    return context.say("field", centre=f"({printed['x']:.2f}, {printed['y']:.2f})")


def printed_positions(context: RationaleContext) -> list[dict[str, float]]:
    """The centres that PROP printed for places on the picture."""
    prop_outputs = [
        draft.result.output["properties"].get("position")
        for draft in context.drafts
        if draft.call.tool == "PROP" and draft.result.ok and not looks_at_view(draft.call)
    ]
    return [p["measures"] for p in prop_outputs if p and p["value"] == context.answer]


def frame_part(x: float, y: float) -> str:
    across, down = ("left", "", "right")[min(int(x * 3), 2)], ("top", "", "bottom")[min(int(y * 3), 2)]
    return f"{down} {across}".strip() or "centre"


def explain_relation(context: RationaleContext) -> Wordings:
    """The corners of both along the axis on which they differ most."""
    pair = context.find_things((context.parameter("a"), context.parameter("b")))
    axis = 0 if context.answer in ("left", "right") else 1
    a, b = (context.edge(note, axis) for note in pair)
    require((a.value < b.value) == (context.answer in ("left", "above")) and a.value != b.value)
    if context.canonical_wording and all(context.is_on_picture(note) for note in pair):
        corner_a, corner_b = ((context.edge(note, 0).value, context.edge(note, 1).value) for note in pair)
        return (format_comparison(corner_a, corner_b, context.answer),)
    less = "less" if a.value < b.value else "more"
    return context.say("search.relation", axis="xy"[axis], at_a=a.text, at_b=b.text, less=less)


def explain_extreme(context: RationaleContext) -> Wordings:
    key = POSITION_KEYS[context.parameter("most")]
    edge = lambda note: context.edge(note, key.edge or 0)  # noqa: E731
    return explain_options(context, key.name.lower(), edge, smallest=not key.largest)


def explain_size(context: RationaleContext) -> Wordings:
    return explain_options(context, "Widths", context.width, smallest=context.parameter("most") == "smallest")


def explain_neighbour(context: RationaleContext) -> Wordings:
    """How far each option is away, along the axis on which it is farther."""
    target = context.find_thing(context.parameter("target"))
    return explain_options(context, "Away", lambda note: axis_distance(context, target, note), "nearest")


def explain_options(
    context: RationaleContext,
    quantity: str,
    measure: Callable[[Reference], DerivedNumber],
    ranking_word: str = "",
    *,
    smallest: bool = True,
) -> Wordings:
    """All options with their values, and the one that comes first; without values if rounding hides it."""
    ranking_word = ranking_word or context.parameter("most")
    notes = context.find_things(context.item.options)
    if context.canonical_wording:
        return explain_first(context, ranking_word)
    readings = [(option, measure(note)) for option, note in zip(context.item.options, notes, strict=True)]
    best = (min if smallest else max)(r.value for _, r in readings)
    if [phrase for phrase, r in readings if abs(r.value - best) < 1e-6] != [context.answer]:
        return context.say("ranking.without_numbers", ranking_word=ranking_word)
    return compare_numbers(context, "ranking", quantity, readings, ranking_word=ranking_word)


def explain_first(context: RationaleContext, ranking_word: str, names_key: str = "options") -> Wordings:
    """The running note; without numbers if it does not list all names, or rounding hides which comes first.

    Several subtractions in one sentence are beyond a small policy.
    """
    note = context.running_note
    is_complete = note is not None and len(note.ranking) == len(context.names(names_key))
    if note is None or not is_complete or note.ranking[0][0] != context.answer or note.is_tied:
        return context.say("ranking.without_numbers", ranking_word=ranking_word)
    return (note.to_conclusion(ranking_word),)


def axis_distance(context: RationaleContext, a: Reference, b: Reference) -> DerivedNumber:
    pairs = [(context.centre(a, axis), context.centre(b, axis)) for axis in (0, 1)]
    low, high = max((sorted((p.value, q.value)) for p, q in pairs), key=lambda v: v[1] - v[0])
    on_picture = context.is_on_picture(a) and context.is_on_picture(b)
    return DerivedNumber(round(high - low, 2), f"{high:.2f} - {low:.2f} = {high - low:.2f}" if on_picture else "")


def explain_order(context: RationaleContext) -> Wordings:
    """Several things along an axis."""
    phrases, across = context.names("things"), context.parameter("way") == "left to right"
    notes = context.find_things(phrases)
    readings = [(p, context.edge(n, 0 if across else 1)) for p, n in zip(phrases, notes, strict=True)]
    ordered = sorted(readings, key=lambda r: r[1].value)
    if ", ".join(p for p, _ in ordered) != context.answer:
        return context.say("order.without_numbers")
    note = context.running_note
    if note is not None and ", ".join(name for name, _ in note.ranking) == context.answer:
        return (note.to_ordered_list(),)
    return compare_numbers(context, "order", "xy"[not across], readings, ordered=", ".join(r.short for _, r in ordered))


# --- how many


def format_count(count: int, target: str) -> str:
    """`3 red stars`."""
    return f"{count} {target}" if count == 1 else f"{count} {target}{'es' if target.endswith('s') else 's'}"


def explain_count(context: RationaleContext) -> Wordings:
    count = context.facts.count(context.parameter("target"))
    require(str(count) == context.answer)
    return context.say("count", counted=format_count(count, context.parameter("target")))


def explain_two_pictures(context: RationaleContext) -> Wordings:
    """Counts in two pictures: added, or compared."""
    first, second = (context.facts.count(context.parameter("target"), f"Image_{k}") for k in (0, 1))
    facts = f"{first} in Image_0 and {second} in Image_1"
    if context.item.options:
        return context.say("choice.pair_more", facts=facts)
    return say_sum(context, facts, first, second)


def explain_together(context: RationaleContext) -> Wordings:
    a, b = context.parameter("a"), context.parameter("b")
    first, second = context.facts.count(a), context.facts.count(b)
    return say_sum(context, f"{format_count(first, a)} and {format_count(second, b)}", first, second)


def say_sum(context: RationaleContext, facts: str, first: int, second: int) -> Wordings:
    require(str(first + second) == context.answer)
    return context.say("sum", facts=facts, first=first, second=second)


# --- how large, how far


def explain_ratio(context: RationaleContext) -> Wordings:
    first, second = (context.width(context.find_thing(context.parameter(key))) for key in ("a", "b"))
    result = format_result(first.value / second.value, context.answer)
    arithmetic = f"{result_text(first)} / {result_text(second)}{result}"
    return context.say("space.ratio", first=first.text, second=second.text, arithmetic=arithmetic)


def result_text(reading: DerivedNumber) -> str:
    """The result of its computation, with as many decimals as there."""
    return reading.text.rpartition("= ")[2]


def explain_share(context: RationaleContext) -> Wordings:
    """Its box, and how much of a box such a figure fills."""
    target = context.parameter("target")
    box, view = context.locate(context.find_thing(target))
    width, height = box_sides(box)
    fill_fraction = FILL_FRACTIONS.get(noun_from_phrase(target), 1.0)
    answer = float(context.answer)
    if view is not None and view.printed_box is not None:
        area, (across, down) = printed_area(context), box_sides(view.printed_box)
        result = format_result(100 * area * across * down, context.answer)
        arithmetic = f"100 * {area:.2f} * {across:.2f} * {down:.2f}{result}"
        return context.say("space.share.on_view", area=area, arithmetic=arithmetic)
    computed = 100 * width * height * fill_fraction
    if abs(computed - answer) > 0.1 * answer:
        return context.say("space.share.without_numbers")
    fill_text = f" * {fill_fraction:.2f}" if fill_fraction < 1 else ""
    arithmetic = f"100 * {width:.2f} * {height:.2f}{fill_text}{format_result(computed, context.answer)}"
    return context.say("space.share", width=width, height=height, arithmetic=arithmetic)


def printed_area(context: RationaleContext) -> float:
    """The area that SEG printed last for something on a view."""
    on_views = [
        region["area"]
        for draft in context.drafts
        if draft.call.tool == "SEG" and draft.result.ok and looks_at_view(draft.call)
        for region in draft.result.output["regions"]
    ]
    return round(float(on_views[-1]), 2) if on_views else 0.0


def box_sides(box: Sequence[float]) -> tuple[float, float]:
    return box[2] - box[0], box[3] - box[1]


def find_scale_bar(context: RationaleContext) -> tuple[DerivedNumber, str]:
    """The width of the scale bar, and the metres that it stands for."""
    bar = context.find_thing(context.parameter("bar"))
    x0, _, x1, y1 = get_box(bar)
    middle = (x0 + x1) / 2
    label = nearest(context.facts.lines(), lambda r: hypot(sum(get_box(r)[::2]) / 2 - middle, get_box(r)[1] - y1))
    return context.width(bar), format_number(line_number(label))


def explain_width(context: RationaleContext) -> Wordings:
    width, (length, metres) = context.width(context.find_thing(context.parameter("target"))), find_scale_bar(context)
    result = format_result(width.value / length.value * float(metres), context.answer)
    arithmetic = f"{result_text(width)} / {result_text(length)} * {metres}{result}"
    return context.say("space.width", width=width.text, length=length.text, metres=metres, arithmetic=arithmetic)


def explain_distance(context: RationaleContext) -> Wordings:
    pair = context.find_things((context.parameter("a"), context.parameter("b")))
    length, metres = find_scale_bar(context)
    a, b = (tuple(context.centre(note, axis).value for axis in (0, 1)) for note in pair)
    across, down = abs(a[0] - b[0]), abs(a[1] - b[1])
    separation = round(hypot(across, down * context.facts.aspect), 2)
    result = format_result(separation / length.value * float(metres), context.answer)
    return context.say(
        "space.distance",
        centres=f"({a[0]:.2f}, {a[1]:.2f}) to ({b[0]:.2f}, {b[1]:.2f})",
        across=across,
        down=down,
        separation=separation,
        length=length.text,
        metres=metres,
        arithmetic=f"{separation:.2f} / {result_text(length)} * {metres}{result}",
    )


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "search.panel_text": explain_text_on,
    "search.pair_text": explain_text_on,
    "search.relation": explain_relation,
    "search.field": explain_field,
    "search.pair_presence": explain_which_picture,
    "choice.absent": explain_absent,
    "choice.extreme": explain_extreme,
    "choice.size": explain_size,
    "choice.count": explain_count,
    "choice.panel": explain_text_on,
    "choice.neighbour": explain_neighbour,
    "choice.pair_more": explain_two_pictures,
    "space.count": explain_count,
    "space.pair_count": explain_two_pictures,
    "space.together": explain_together,
    "space.ratio": explain_ratio,
    "space.share": explain_share,
    "space.distance": explain_distance,
    "space.width": explain_width,
    "space.order": explain_order,
}
