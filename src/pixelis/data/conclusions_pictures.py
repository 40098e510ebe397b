"""Conclusions about pictures: what is there, where, how many, how large; for the families search, choice and space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import hypot

from pixelis.data.conclusions_seen import Chain, Reading, equals, two
from pixelis.data.oracle_session import noun_of
from pixelis.data.tallies import SIDES, against, looks_at_view, tally
from pixelis.world import Reference
from pixelis.world.programs import aspect, counted, nearest, number, regions, says, spans, value_of
from pixelis.world.programs import box_of as source_box

Wordings = tuple[str, ...]
LONGEST = 37
"""Words of a sentence; beyond, computations of single numbers are left out."""
FILLED = {"square": 1.0, "rectangle": 1.0, "circle": 0.79, "hexagon": 0.75, "diamond": 0.5}
"""How much of its upright box a figure fills, as people know it."""


def chosen(c: Chain, wordings: Sequence[str]) -> Wordings:
    """The same with the option that it is, where there are options."""
    return tuple(f"{w}: {c.option}." if c.option else f"{w}." for w in wordings)


def compared(c: Chain, what: str, readings: Sequence[tuple[str, Reading]], verdict: str) -> Wordings:
    """`x: the red star 0.12, the blue ring 0.08; the red star is larger.`"""
    for full in (True, False):
        listed = ", ".join(f"{phrase} {r.text if full else r.short}" for phrase, r in readings)
        texts = chosen(c, (f"{what}: {listed}; {verdict}", f"{what}: {listed}. So {verdict}"))
        if max(len(text.split()) for text in texts) <= LONGEST:
            break
    return texts


# --- what is there


def text_on(c: Chain) -> Wordings:
    panel = c.asked("target")
    read = [says(r) for r in spans(c.notes)]
    if c.item.options and c.words not in read:
        return chosen(c, [f"It reads {read[0]}, nearest is {c.words}"] if read else [f"It reads {c.words}"])
    return chosen(c, (f"The {panel} says {c.words}", f"On the {panel} stands {c.words}", f"It reads {c.words}"))


def tag(c: Chain) -> Wordings:
    target = c.asked("target")
    return f"Below the {target} stands {c.words}.", f"The tag of the {target} says {c.words}."


def ink(c: Chain) -> Wordings:
    word = c.asked("word")
    return f'The letters of "{word}" are {c.words}.', f'"{word}" is written in {c.words}.'


def looks(c: Chain) -> Wordings:
    target, attribute = c.asked("target"), c.asked("attribute")
    return f"The {attribute} of the {target} is {c.words}.", f"The {target}: {attribute} {c.words}."


def which_picture(c: Chain) -> Wordings:
    target = c.asked("target")
    seen = ["found" if regions(c.notes, target, f"Image_{k}") else "not found" for k in (0, 1)]
    first, second = (f"{word} in Image_{k}" for k, word in enumerate(seen))
    return (
        f"The {target} is {first} and {second}: {c.words}.",
        f"{target.capitalize()}: {first}, {second}. So {c.words}.",
    )


def present(c: Chain) -> Wordings:
    return chosen(c, (f"The {c.words} was found", f"There is a {c.words}", f"Only the {c.words} fits"))


def absent(c: Chain) -> Wordings:
    seen = tally(c.item, c.drafts) if c.plain else None
    if seen is not None and [name for name, _ in seen.first] == [c.words]:
        return (f"{seen.now}; missing is the {c.words}.",)
    return chosen(c, (f"No {c.words} was found", f"The {c.words} is missing", f"There is no {c.words}"))


def colour(c: Chain) -> Wordings:
    figure = c.asked("figure")
    return chosen(c, (f"A {c.words} {figure} was found", f"The {figure} is {c.words}"))


def pattern(c: Chain) -> Wordings:
    wanted = c.asked("pattern")
    return chosen(c, (f"The {c.words} is {wanted}", f"{wanted.capitalize()} is the {c.words}"))


# --- where it is


def field(c: Chain) -> Wordings:
    """The centre, and in which third of the picture it is each way."""
    note = c.thing(c.asked("target"))
    if note is None:
        return unexplained(c)
    x, y = c.middle(note, 0), c.middle(note, 1)
    if part(x.value, y.value) != c.words:
        return unexplained(c)
    if x.worked:
        return f"Centre x {x.text}, y {y.text}: {c.words}.", f"x {x.text} and y {y.text}, so {c.words}."
    at = next((f"({v['x']:.2f}, {v['y']:.2f})" for v in positions(c)), f"({two(x.value)}, {two(y.value)})")
    return f"Its centre is at {at}: {c.words}.", f"{at} is {c.words}.", f"At {at}, so {c.words}."


def positions(c: Chain) -> list[dict[str, float]]:
    """The centres that PROP printed of places on the picture."""
    said = [
        d.result.output["properties"].get("position")
        for d in c.drafts
        if d.call.tool == "PROP" and d.result.ok and not looks_at_view(d.call)
    ]
    return [p["measures"] for p in said if p and p["value"] == c.words]


def part(x: float, y: float) -> str:
    across, down = ("left", "", "right")[min(int(x * 3), 2)], ("top", "", "bottom")[min(int(y * 3), 2)]
    return f"{down} {across}".strip() or "centre"


def relation(c: Chain) -> Wordings:
    """The corners of both along the way in which they differ most."""
    pair = c.things((c.asked("a"), c.asked("b")))
    if pair is None:
        return unexplained(c)
    axis = 0 if c.words in ("left", "right") else 1
    a, b = (c.edge(note, axis) for note in pair)
    name = "xy"[axis]
    if (a.value < b.value) != (c.words in ("left", "above")) or a.value == b.value:
        return unexplained(c)
    if c.plain and all(c.on_frame(note) for note in pair):
        one, other = ((c.edge(note, 0).value, c.edge(note, 1).value) for note in pair)
        return (against(one, other, c.words),)
    first, second = c.asked("a"), c.asked("b")
    less = "less" if a.value < b.value else "more"
    facts = f"The {first} is at {name} {a.text}, the {second} at {b.text}"
    return f"{facts}: {c.words}.", f"{facts}; {less} {name} is {c.words}."


def extreme(c: Chain) -> Wordings:
    notes, most = c.things(c.item.options), c.asked("most")
    if notes is None:
        return unexplained(c)
    if c.plain:
        return first_of(c, most)
    side = SIDES[most]
    readings = [(o, c.edge(n, side.edge or 0)) for o, n in zip(c.item.options, notes, strict=True)]
    return ranked(c, side.name.lower(), readings, most, smallest=not side.largest)


def size(c: Chain) -> Wordings:
    notes, most = c.things(c.item.options), c.asked("most")
    if notes is None:
        return unexplained(c)
    if c.plain:
        return first_of(c, most)
    readings = [(o, c.width(n)) for o, n in zip(c.item.options, notes, strict=True)]
    return ranked(c, "Widths", readings, most, smallest=most == "smallest")


def first_of(c: Chain, most: str, among: str = "options") -> Wordings:
    """What a plain teacher has kept count of; without numbers where it has not, or not of all, or they hide it.

    Several subtractions in one sentence are beyond whom it teaches.
    """
    seen = tally(c.item, c.drafts)
    if seen is None or len(seen.first) != len(c.named(among)) or seen.first[0][0] != c.words or seen.tied:
        return (f"The {c.words} is the {most}.",)
    return (seen.ended(most),)


def ranked(c: Chain, what: str, readings: Sequence[tuple[str, Reading]], most: str, *, smallest: bool) -> Wordings:
    """All values and the one that counts; without values where rounding hides it."""
    best = (min if smallest else max)(r.value for _, r in readings)
    if [phrase for phrase, r in readings if abs(r.value - best) < 1e-6] != [c.words]:
        return chosen(c, (f"The {c.words} is the {most}", f"{most.capitalize()} is the {c.words}"))
    return compared(c, what, readings, f"{most} is the {c.words}")


def neighbour(c: Chain) -> Wordings:
    """How far each option is away, along the way in which it lies."""
    here, there = c.thing(c.asked("target")), c.things(c.item.options)
    if here is None or there is None:
        return unexplained(c)
    if c.plain:
        return first_of(c, "nearest")
    found = [(o, away(c, here, note)) for o, note in zip(c.item.options, there, strict=True)]
    return ranked(c, "Away", found, "nearest", smallest=True)


def away(c: Chain, a: Reference, b: Reference) -> Reading:
    pairs = [(c.middle(a, axis), c.middle(b, axis)) for axis in (0, 1)]
    low, high = max((sorted((p.value, q.value)) for p, q in pairs), key=lambda v: v[1] - v[0])
    worked = f"{two(high)} - {two(low)} = {two(high - low)}" if c.on_frame(a) and c.on_frame(b) else ""
    return Reading(round(high - low, 2), worked)


def row(c: Chain) -> Wordings:
    """Several things along an axis."""
    phrases, across = c.named("things"), c.asked("way") == "left to right"
    notes = c.things(phrases)
    if notes is None:
        return unexplained(c)
    readings = [(p, c.edge(n, 0 if across else 1)) for p, n in zip(phrases, notes, strict=True)]
    ordered = sorted(readings, key=lambda r: r[1].value)
    if ", ".join(p for p, _ in ordered) != c.words:
        return (f"From {c.asked('way')}: {c.words}.",)
    seen = tally(c.item, c.drafts) if c.plain else None
    if seen is not None and ", ".join(name for name, _ in seen.first) == c.words:
        return (seen.ordered(),)
    return compared(c, "xy"[not across], readings, f"in order {', '.join(r.short for _, r in ordered)}")


# --- how many


def several(count: int, target: str) -> str:
    """`3 red stars`."""
    return f"{count} {target}" if count == 1 else f"{count} {target}{'es' if target.endswith('s') else 's'}"


def count(c: Chain) -> Wordings:
    target = c.asked("target")
    if str(counted(c.notes, target)) != c.words:
        return unexplained(c)
    found = several(int(c.words), target)
    return chosen(c, (f"I count {found}", f"{found.capitalize()} found"))


def over_pictures(c: Chain) -> Wordings:
    """Counts in two pictures: added, or compared."""
    first, second = (counted(c.notes, c.asked("target"), f"Image_{k}") for k in (0, 1))
    facts = f"{first} in Image_0 and {second} in Image_1"
    if c.item.options:
        return chosen(c, (f"{facts}, so {c.words}", f"There are {facts}, that is {c.words}"))
    if number(first + second) != c.words:
        return unexplained(c)
    return f"{facts}: {first} + {second} = {c.words}.", f"There are {facts}; {first} + {second} = {c.words}."


def together(c: Chain) -> Wordings:
    a, b = c.asked("a"), c.asked("b")
    first, second = counted(c.notes, a), counted(c.notes, b)
    if number(first + second) != c.words:
        return unexplained(c)
    facts = f"{several(first, a)} and {several(second, b)}"
    return f"{facts}: {first} + {second} = {c.words}.", f"There are {facts}; {first} + {second} = {c.words}."


# --- how large, how far


def ratio(c: Chain) -> Wordings:
    a, b = c.asked("a"), c.asked("b")
    pair = c.things((a, b))
    if pair is None:
        return unexplained(c)
    first, second = (c.width(note) for note in pair)
    sum_up = f"{exactly(first)} / {exactly(second)}{equals(first.value / second.value, c.words)}"
    return (
        f"{a.capitalize()}: {first.text}, {b}: {second.text}; {sum_up}.",
        f"Widths {first.text} and {second.text}; {sum_up}.",
    )


def exactly(reading: Reading) -> str:
    """The result of its computation, with the decimals that it was given there."""
    return reading.text.rpartition("= ")[2]


def share(c: Chain) -> Wordings:
    """Its box, and how much of a box such a figure fills."""
    target = c.asked("target")
    note = c.thing(target)
    if note is None:
        return unexplained(c)
    (x0, y0, x1, y1), view = c.shown(note)
    wide, high, fills = x1 - x0, y1 - y0, FILLED.get(noun_of(target), 1.0)
    answer = float(c.words)
    if view is not None and view.printed is not None:
        area, across, down = printed_area(c, note), *sides(view.printed)
        own = 100 * area * across * down
        sum_up = f"100 * {two(area)} * {two(across)} * {two(down)}{equals(own, c.words)}"
        return f"It fills {two(area)} of the view: {sum_up}.", f"Its share of the view is {two(area)}; {sum_up}."
    own = 100 * wide * high * fills
    filled = f" * {two(fills)}" if fills < 1 else ""
    if abs(own - answer) > 0.1 * answer:  # it lies aslant, or is partly hidden
        return f"It covers {c.words} percent.", f"Its area is {c.words} percent."
    sum_up = f"100 * {two(wide)} * {two(high)}{filled}{equals(own, c.words)}"
    return f"{two(wide)} wide, {two(high)} high: {sum_up}.", f"Its box is {two(wide)} by {two(high)}; {sum_up}."


def printed_area(c: Chain, note: Reference) -> float:
    """The area that SEG printed last for something on a view."""
    on_views = [
        region["area"]
        for d in c.drafts
        if d.call.tool == "SEG" and d.result.ok and looks_at_view(d.call)
        for region in d.result.output["regions"]
    ]
    return round(float(on_views[-1]), 2) if on_views else 0.0


def sides(box: Sequence[float]) -> tuple[float, float]:
    return box[2] - box[0], box[3] - box[1]


def scale(c: Chain) -> tuple[Reading, str] | None:
    """The width of the scale bar, and the metres that it stands for."""
    bar = c.thing(c.asked("bar"))
    if bar is None or not spans(c.notes):
        return None
    x0, _, x1, y1 = source_box(bar)
    middle = (x0 + x1) / 2
    label = nearest(spans(c.notes), lambda r: hypot(sum(source_box(r)[::2]) / 2 - middle, source_box(r)[1] - y1))
    return c.width(bar), number(value_of(says(label)))


def width(c: Chain) -> Wordings:
    note, bar = c.thing(c.asked("target")), scale(c)
    if note is None or bar is None:
        return unexplained(c)
    wide, (length, metres) = c.width(note), bar
    result = equals(wide.value / length.value * float(metres), c.words)
    sum_up = f"{exactly(wide)} / {exactly(length)} * {metres}{result}"
    return (
        f"Width {wide.text}, bar {length.text} for {metres} metres: {sum_up}.",
        f"{wide.text}; the bar {length.text} is {metres} metres. {sum_up}.",
    )


def distance(c: Chain) -> Wordings:
    pair, bar = c.things((c.asked("a"), c.asked("b"))), scale(c)
    if pair is None or bar is None:
        return unexplained(c)
    a, b = (tuple(c.middle(note, axis).value for axis in (0, 1)) for note in pair)
    across, down = abs(a[0] - b[0]), abs(a[1] - b[1])
    stretched = down * aspect(c.item.parameters)
    far = round(hypot(across, stretched), 2)
    length, metres = bar
    result = equals(far / length.value * float(metres), c.words)
    centres = f"({two(a[0])}, {two(a[1])}) to ({two(b[0])}, {two(b[1])})"
    sum_up = f"{two(far)} / {exactly(length)} * {metres}{result}"
    return (
        f"{centres}: {two(across)} across, {two(down)} down, {two(far)} away; bar {length.text}. {sum_up}.",
        f"From {centres} is {two(far)}; the bar {length.text} is {metres} metres. {sum_up}.",
    )


def unexplained(c: Chain) -> Wordings:
    """Where no numbers lead to it that the policy has read."""
    return chosen(c, (f"So it is {c.words}", f"That gives {c.words}"))


SAYINGS: dict[str, Callable[[Chain], Wordings]] = {
    "search.panel_text": text_on,
    "search.pair_text": text_on,
    "search.tag_text": tag,
    "search.ink_colour": ink,
    "search.shape": looks,
    "search.texture": looks,
    "search.orientation": looks,
    "search.relation": relation,
    "search.field": field,
    "search.pair_presence": which_picture,
    "choice.present": present,
    "choice.absent": absent,
    "choice.extreme": extreme,
    "choice.size": size,
    "choice.count": count,
    "choice.colour": colour,
    "choice.panel": text_on,
    "choice.neighbour": neighbour,
    "choice.pattern": pattern,
    "choice.pair_more": over_pictures,
    "space.count": count,
    "space.pair_count": over_pictures,
    "space.together": together,
    "space.ratio": ratio,
    "space.share": share,
    "space.distance": distance,
    "space.width": width,
    "space.order": row,
}
