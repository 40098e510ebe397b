"""Conclusions about pictures: what is there, where, how many, how large; for the families search, choice and space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import hypot

from pixelis.data.teachers.oracle.oracle_session import noun_from_phrase
from pixelis.data.teachers.oracle.rationale_context import DerivedNumber, RationaleContext, format_result, two_decimals
from pixelis.data.teachers.oracle.running_notes import (
    POSITION_KEYS,
    format_comparison,
    looks_at_view,
    make_running_note,
)
from pixelis.world import Reference
from pixelis.world.programs import (
    aspect,
    count_regions,
    find_lines,
    find_regions,
    format_number,
    get_line_text,
    nearest,
    parse_number,
)
from pixelis.world.programs import get_box as source_box

Wordings = tuple[str, ...]
MAX_WORDS = 37
"""Words of a sentence; beyond, computations of single numbers are left out."""
FILL_FRACTIONS = {"square": 1.0, "rectangle": 1.0, "circle": 0.79, "hexagon": 0.75, "diamond": 0.5}
"""How much of its upright box a figure fills, as people know it."""


def with_option(context: RationaleContext, wordings: Sequence[str]) -> Wordings:
    """The same with the option that it is, where there are options."""
    return tuple(f"{w}: {context.option_label}." if context.option_label else f"{w}." for w in wordings)


def compare_numbers(
    context: RationaleContext, quantity: str, readings: Sequence[tuple[str, DerivedNumber]], verdict: str
) -> Wordings:
    """`x: the red star 0.12, the blue ring 0.08; the red star is larger.`"""
    for with_computations in (True, False):
        items_text = ", ".join(f"{phrase} {r.text if with_computations else r.short}" for phrase, r in readings)
        texts = with_option(
            context, (f"{quantity}: {items_text}; {verdict}", f"{quantity}: {items_text}. So {verdict}")
        )
        if max(len(text.split()) for text in texts) <= MAX_WORDS:
            break
    return texts


# --- what is there


def explain_text_on(context: RationaleContext) -> Wordings:
    panel = context.parameter("target")
    lines_read = [get_line_text(r) for r in find_lines(context.notes)]
    if context.item.options and context.answer_text not in lines_read:
        return with_option(
            context,
            [f"It reads {lines_read[0]}, nearest is {context.answer_text}"]
            if lines_read
            else [f"It reads {context.answer_text}"],
        )
    return with_option(
        context,
        (
            f"The {panel} says {context.answer_text}",
            f"On the {panel} stands {context.answer_text}",
            f"It reads {context.answer_text}",
        ),
    )


def explain_tag(context: RationaleContext) -> Wordings:
    target = context.parameter("target")
    return f"Below the {target} stands {context.answer_text}.", f"The tag of the {target} says {context.answer_text}."


def explain_ink(context: RationaleContext) -> Wordings:
    word = context.parameter("word")
    return f'The letters of "{word}" are {context.answer_text}.', f'"{word}" is written in {context.answer_text}.'


def explain_appearance(context: RationaleContext) -> Wordings:
    target, attribute = context.parameter("target"), context.parameter("attribute")
    return (
        f"The {attribute} of the {target} is {context.answer_text}.",
        f"The {target}: {attribute} {context.answer_text}.",
    )


def explain_which_picture(context: RationaleContext) -> Wordings:
    target = context.parameter("target")
    search_results = ["found" if find_regions(context.notes, target, f"Image_{k}") else "not found" for k in (0, 1)]
    first, second = (f"{word} in Image_{k}" for k, word in enumerate(search_results))
    return (
        f"The {target} is {first} and {second}: {context.answer_text}.",
        f"{target.capitalize()}: {first}, {second}. So {context.answer_text}.",
    )


def explain_present(context: RationaleContext) -> Wordings:
    return with_option(
        context,
        (
            f"The {context.answer_text} was found",
            f"There is a {context.answer_text}",
            f"Only the {context.answer_text} fits",
        ),
    )


def explain_absent(context: RationaleContext) -> Wordings:
    running_note = make_running_note(context.item, context.drafts) if context.canonical_wording else None
    if running_note is not None and [name for name, _ in running_note.ranking] == [context.answer_text]:
        return (f"{running_note.latest}; missing is the {context.answer_text}.",)
    return with_option(
        context,
        (
            f"No {context.answer_text} was found",
            f"The {context.answer_text} is missing",
            f"There is no {context.answer_text}",
        ),
    )


def explain_colour(context: RationaleContext) -> Wordings:
    figure = context.parameter("figure")
    return with_option(
        context, (f"A {context.answer_text} {figure} was found", f"The {figure} is {context.answer_text}")
    )


def explain_pattern(context: RationaleContext) -> Wordings:
    target_pattern = context.parameter("pattern")
    return with_option(
        context,
        (
            f"The {context.answer_text} is {target_pattern}",
            f"{target_pattern.capitalize()} is the {context.answer_text}",
        ),
    )


# --- where it is


def explain_field(context: RationaleContext) -> Wordings:
    """The centre, and in which third of the picture it is each way."""
    note = context.find_thing(context.parameter("target"))
    if note is None:
        return explain_without_numbers(context)
    x, y = context.centre(note, 0), context.centre(note, 1)
    if frame_part(x.value, y.value) != context.answer_text:
        return explain_without_numbers(context)
    if x.computation:
        return (
            f"Centre x {x.text}, y {y.text}: {context.answer_text}.",
            f"x {x.text} and y {y.text}, so {context.answer_text}.",
        )
    centre_text = next(
        (f"({v['x']:.2f}, {v['y']:.2f})" for v in printed_positions(context)),
        f"({two_decimals(x.value)}, {two_decimals(y.value)})",
    )
    return (
        f"Its centre is at {centre_text}: {context.answer_text}.",
        f"{centre_text} is {context.answer_text}.",
        f"At {centre_text}, so {context.answer_text}.",
    )


def printed_positions(context: RationaleContext) -> list[dict[str, float]]:
    """The centres that PROP printed of places on the picture."""
    prop_outputs = [
        draft.result.output["properties"].get("position")
        for draft in context.drafts
        if draft.call.tool == "PROP" and draft.result.ok and not looks_at_view(draft.call)
    ]
    return [p["measures"] for p in prop_outputs if p and p["value"] == context.answer_text]


def frame_part(x: float, y: float) -> str:
    across, down = ("left", "", "right")[min(int(x * 3), 2)], ("top", "", "bottom")[min(int(y * 3), 2)]
    return f"{down} {across}".strip() or "centre"


def explain_relation(context: RationaleContext) -> Wordings:
    """The corners of both along the way in which they differ most."""
    pair = context.find_things((context.parameter("a"), context.parameter("b")))
    if pair is None:
        return explain_without_numbers(context)
    axis = 0 if context.answer_text in ("left", "right") else 1
    a, b = (context.edge(note, axis) for note in pair)
    name = "xy"[axis]
    if (a.value < b.value) != (context.answer_text in ("left", "above")) or a.value == b.value:
        return explain_without_numbers(context)
    if context.canonical_wording and all(context.is_on_picture(note) for note in pair):
        corner_a, corner_b = ((context.edge(note, 0).value, context.edge(note, 1).value) for note in pair)
        return (format_comparison(corner_a, corner_b, context.answer_text),)
    first, second = context.parameter("a"), context.parameter("b")
    less = "less" if a.value < b.value else "more"
    facts = f"The {first} is at {name} {a.text}, the {second} at {b.text}"
    return f"{facts}: {context.answer_text}.", f"{facts}; {less} {name} is {context.answer_text}."


def explain_extreme(context: RationaleContext) -> Wordings:
    notes, ranking_word = context.find_things(context.item.options), context.parameter("most")
    if notes is None:
        return explain_without_numbers(context)
    if context.canonical_wording:
        return explain_first(context, ranking_word)
    key = POSITION_KEYS[ranking_word]
    readings = [(o, context.edge(n, key.edge or 0)) for o, n in zip(context.item.options, notes, strict=True)]
    return explain_ranking(context, key.name.lower(), readings, ranking_word, smallest=not key.largest)


def explain_size(context: RationaleContext) -> Wordings:
    notes, ranking_word = context.find_things(context.item.options), context.parameter("most")
    if notes is None:
        return explain_without_numbers(context)
    if context.canonical_wording:
        return explain_first(context, ranking_word)
    readings = [(o, context.width(n)) for o, n in zip(context.item.options, notes, strict=True)]
    return explain_ranking(context, "Widths", readings, ranking_word, smallest=ranking_word == "smallest")


def explain_first(context: RationaleContext, ranking_word: str, names_key: str = "options") -> Wordings:
    """What a plain teacher has kept count of; without numbers where it has not, or not of all, or they hide it.

    Several subtractions in one sentence are beyond whom it teaches.
    """
    running_note = make_running_note(context.item, context.drafts)
    if (
        running_note is None
        or len(running_note.ranking) != len(context.names(names_key))
        or running_note.ranking[0][0] != context.answer_text
        or running_note.is_tied
    ):
        return (f"The {context.answer_text} is the {ranking_word}.",)
    return (running_note.to_conclusion(ranking_word),)


def explain_ranking(
    context: RationaleContext,
    quantity: str,
    readings: Sequence[tuple[str, DerivedNumber]],
    ranking_word: str,
    *,
    smallest: bool,
) -> Wordings:
    """All values and the one that counts; without values where rounding hides it."""
    best = (min if smallest else max)(r.value for _, r in readings)
    if [phrase for phrase, r in readings if abs(r.value - best) < 1e-6] != [context.answer_text]:
        return with_option(
            context,
            (
                f"The {context.answer_text} is the {ranking_word}",
                f"{ranking_word.capitalize()} is the {context.answer_text}",
            ),
        )
    return compare_numbers(context, quantity, readings, f"{ranking_word} is the {context.answer_text}")


def explain_neighbour(context: RationaleContext) -> Wordings:
    """How far each option is away, along the way in which it lies."""
    target_note, option_notes = (
        context.find_thing(context.parameter("target")),
        context.find_things(context.item.options),
    )
    if target_note is None or option_notes is None:
        return explain_without_numbers(context)
    if context.canonical_wording:
        return explain_first(context, "nearest")
    option_distances = [
        (o, axis_distance(context, target_note, note))
        for o, note in zip(context.item.options, option_notes, strict=True)
    ]
    return explain_ranking(context, "Away", option_distances, "nearest", smallest=True)


def axis_distance(context: RationaleContext, a: Reference, b: Reference) -> DerivedNumber:
    pairs = [(context.centre(a, axis), context.centre(b, axis)) for axis in (0, 1)]
    low, high = max((sorted((p.value, q.value)) for p, q in pairs), key=lambda v: v[1] - v[0])
    computation = (
        f"{two_decimals(high)} - {two_decimals(low)} = {two_decimals(high - low)}"
        if context.is_on_picture(a) and context.is_on_picture(b)
        else ""
    )
    return DerivedNumber(round(high - low, 2), computation)


def explain_order(context: RationaleContext) -> Wordings:
    """Several things along an axis."""
    phrases, across = context.names("things"), context.parameter("way") == "left to right"
    notes = context.find_things(phrases)
    if notes is None:
        return explain_without_numbers(context)
    readings = [(p, context.edge(n, 0 if across else 1)) for p, n in zip(phrases, notes, strict=True)]
    ordered = sorted(readings, key=lambda r: r[1].value)
    if ", ".join(p for p, _ in ordered) != context.answer_text:
        return (f"From {context.parameter('way')}: {context.answer_text}.",)
    running_note = make_running_note(context.item, context.drafts) if context.canonical_wording else None
    if running_note is not None and ", ".join(name for name, _ in running_note.ranking) == context.answer_text:
        return (running_note.to_ordered_list(),)
    return compare_numbers(context, "xy"[not across], readings, f"in order {', '.join(r.short for _, r in ordered)}")


# --- how many


def format_count(count: int, target: str) -> str:
    """`3 red stars`."""
    return f"{count} {target}" if count == 1 else f"{count} {target}{'es' if target.endswith('s') else 's'}"


def explain_count(context: RationaleContext) -> Wordings:
    target = context.parameter("target")
    if str(count_regions(context.notes, target)) != context.answer_text:
        return explain_without_numbers(context)
    count_text = format_count(int(context.answer_text), target)
    return with_option(context, (f"I count {count_text}", f"{count_text.capitalize()} found"))


def explain_two_pictures(context: RationaleContext) -> Wordings:
    """Counts in two pictures: added, or compared."""
    first, second = (count_regions(context.notes, context.parameter("target"), f"Image_{k}") for k in (0, 1))
    facts = f"{first} in Image_0 and {second} in Image_1"
    if context.item.options:
        return with_option(
            context, (f"{facts}, so {context.answer_text}", f"There are {facts}, that is {context.answer_text}")
        )
    if format_number(first + second) != context.answer_text:
        return explain_without_numbers(context)
    return (
        f"{facts}: {first} + {second} = {context.answer_text}.",
        f"There are {facts}; {first} + {second} = {context.answer_text}.",
    )


def explain_together(context: RationaleContext) -> Wordings:
    a, b = context.parameter("a"), context.parameter("b")
    first, second = count_regions(context.notes, a), count_regions(context.notes, b)
    if format_number(first + second) != context.answer_text:
        return explain_without_numbers(context)
    facts = f"{format_count(first, a)} and {format_count(second, b)}"
    return (
        f"{facts}: {first} + {second} = {context.answer_text}.",
        f"There are {facts}; {first} + {second} = {context.answer_text}.",
    )


# --- how large, how far


def explain_ratio(context: RationaleContext) -> Wordings:
    a, b = context.parameter("a"), context.parameter("b")
    pair = context.find_things((a, b))
    if pair is None:
        return explain_without_numbers(context)
    first, second = (context.width(note) for note in pair)
    arithmetic = (
        f"{result_text(first)} / {result_text(second)}{format_result(first.value / second.value, context.answer_text)}"
    )
    return (
        f"{a.capitalize()}: {first.text}, {b}: {second.text}; {arithmetic}.",
        f"Widths {first.text} and {second.text}; {arithmetic}.",
    )


def result_text(reading: DerivedNumber) -> str:
    """The result of its computation, with the decimals that it was given there."""
    return reading.text.rpartition("= ")[2]


def explain_share(context: RationaleContext) -> Wordings:
    """Its box, and how much of a box such a figure fills."""
    target = context.parameter("target")
    note = context.find_thing(target)
    if note is None:
        return explain_without_numbers(context)
    (x0, y0, x1, y1), view = context.locate(note)
    box_width, box_height, fill_fraction = x1 - x0, y1 - y0, FILL_FRACTIONS.get(noun_from_phrase(target), 1.0)
    answer = float(context.answer_text)
    if view is not None and view.printed_box is not None:
        area, across, down = printed_area(context, note), *box_sides(view.printed_box)
        computed = 100 * area * across * down
        arithmetic = f"100 * {two_decimals(area)} * {two_decimals(across)} * {two_decimals(down)}{format_result(computed, context.answer_text)}"
        return (
            f"It fills {two_decimals(area)} of the view: {arithmetic}.",
            f"Its share of the view is {two_decimals(area)}; {arithmetic}.",
        )
    computed = 100 * box_width * box_height * fill_fraction
    fill_text = f" * {two_decimals(fill_fraction)}" if fill_fraction < 1 else ""
    if abs(computed - answer) > 0.1 * answer:  # it lies aslant, or is partly hidden
        return f"It covers {context.answer_text} percent.", f"Its area is {context.answer_text} percent."
    arithmetic = f"100 * {two_decimals(box_width)} * {two_decimals(box_height)}{fill_text}{format_result(computed, context.answer_text)}"
    return (
        f"{two_decimals(box_width)} wide, {two_decimals(box_height)} high: {arithmetic}.",
        f"Its box is {two_decimals(box_width)} by {two_decimals(box_height)}; {arithmetic}.",
    )


def printed_area(context: RationaleContext, note: Reference) -> float:
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


def find_scale_bar(context: RationaleContext) -> tuple[DerivedNumber, str] | None:
    """The width of the scale bar, and the metres that it stands for."""
    bar = context.find_thing(context.parameter("bar"))
    if bar is None or not find_lines(context.notes):
        return None
    x0, _, x1, y1 = source_box(bar)
    middle = (x0 + x1) / 2
    label = nearest(
        find_lines(context.notes), lambda r: hypot(sum(source_box(r)[::2]) / 2 - middle, source_box(r)[1] - y1)
    )
    return context.width(bar), format_number(parse_number(get_line_text(label)))


def explain_width(context: RationaleContext) -> Wordings:
    note, bar = context.find_thing(context.parameter("target")), find_scale_bar(context)
    if note is None or bar is None:
        return explain_without_numbers(context)
    thing_width, (length, metres) = context.width(note), bar
    result = format_result(thing_width.value / length.value * float(metres), context.answer_text)
    arithmetic = f"{result_text(thing_width)} / {result_text(length)} * {metres}{result}"
    return (
        f"Width {thing_width.text}, bar {length.text} for {metres} metres: {arithmetic}.",
        f"{thing_width.text}; the bar {length.text} is {metres} metres. {arithmetic}.",
    )


def explain_distance(context: RationaleContext) -> Wordings:
    pair, bar = context.find_things((context.parameter("a"), context.parameter("b"))), find_scale_bar(context)
    if pair is None or bar is None:
        return explain_without_numbers(context)
    a, b = (tuple(context.centre(note, axis).value for axis in (0, 1)) for note in pair)
    across, down = abs(a[0] - b[0]), abs(a[1] - b[1])
    scaled_down = down * aspect(context.item.parameters)
    separation = round(hypot(across, scaled_down), 2)
    length, metres = bar
    result = format_result(separation / length.value * float(metres), context.answer_text)
    centres = f"({two_decimals(a[0])}, {two_decimals(a[1])}) to ({two_decimals(b[0])}, {two_decimals(b[1])})"
    arithmetic = f"{two_decimals(separation)} / {result_text(length)} * {metres}{result}"
    return (
        f"{centres}: {two_decimals(across)} across, {two_decimals(down)} down, {two_decimals(separation)} away; bar {length.text}. {arithmetic}.",
        f"From {centres} is {two_decimals(separation)}; the bar {length.text} is {metres} metres. {arithmetic}.",
    )


def explain_without_numbers(context: RationaleContext) -> Wordings:
    """Where no numbers lead to it that the policy has read."""
    return with_option(context, (f"So it is {context.answer_text}", f"That gives {context.answer_text}"))


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "search.panel_text": explain_text_on,
    "search.pair_text": explain_text_on,
    "search.tag_text": explain_tag,
    "search.ink_colour": explain_ink,
    "search.shape": explain_appearance,
    "search.texture": explain_appearance,
    "search.orientation": explain_appearance,
    "search.relation": explain_relation,
    "search.field": explain_field,
    "search.pair_presence": explain_which_picture,
    "choice.present": explain_present,
    "choice.absent": explain_absent,
    "choice.extreme": explain_extreme,
    "choice.size": explain_size,
    "choice.count": explain_count,
    "choice.colour": explain_colour,
    "choice.panel": explain_text_on,
    "choice.neighbour": explain_neighbour,
    "choice.pattern": explain_pattern,
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
