"""How the oracle answers the choice family: look for each option, and compare."""

from __future__ import annotations

from pixelis.data.oracle_acts import Hands, Said
from pixelis.data.oracle_search import panel_text
from pixelis.data.oracle_session import Found, colour_of
from pixelis.tools.grounding import understand


def options(h: Hands) -> list[str]:
    """The options in the order in which they are looked for: mostly as listed."""
    listed = list(h.s.item.options)
    return listed if h.s.plain or h.s.chance(0.7) else [listed[int(i)] for i in h.s.rng.permutation(len(listed))]


def present(h: Hands) -> None:
    """The one option that is there."""
    s = h.s
    hasty = s.plain or s.chance(0.6)
    seen: dict[str, Found] = {}
    for option in options(h):
        found = h.find(option, must=False)
        s.cited.add(s.looked)
        if found:
            seen[option] = max(found, key=lambda f: f.mask.area)
            if hasty:
                break
    if not seen:
        seen = by_shape(h, list(s.item.options))
    if seen:
        s.note_region(max(seen.values(), key=lambda f: f.score * f.mask.area**0.5))


def absent(h: Hands) -> None:
    """The one option that is not there."""
    s = h.s
    seen: dict[str, Found] = {}
    for option in options(h):
        found = h.find(option, must=False)
        s.cited.add(s.looked)
        if found:
            seen[option] = found[0]
    missing = [option for option in s.item.options if option not in seen]
    if len(missing) > 1:
        seen |= by_shape(h, missing)
    if len(seen) > 3:  # one of them was taken for what it is not
        seen.pop(min(seen, key=lambda o: seen[o].score))
    for region in seen.values():
        s.note_region(region)


def by_shape(h: Hands, phrases: list[str]) -> dict[str, Found]:
    """Options that SEG did not name, by their colour first and then by the shape that PROP gives them."""
    s, fits = h.s, dict[str, Found]()
    rest: list[tuple[float, str, Found]] = []
    for phrase in phrases:
        if not s.has_room or (fits and len(phrases) == 4):
            break
        regions = s.seg(f"{colour_of(phrase)} thing", "instead")
        if not regions:
            continue
        best = max(regions, key=lambda f: f.mask.area)._replace(phrase=phrase)
        shape, sure, steps = h.describe(best, "shape")
        s.cited |= steps
        if shape == understand(phrase).shape:
            fits[phrase] = best
        elif shape == "irregular":  # partly hidden, perhaps
            rest.append((sure, phrase, best))
    if not fits and rest:
        _, phrase, best = min(rest, key=lambda r: r[0])
        fits[phrase] = best
    return fits


def each(h: Hands) -> None:
    """All options, to be compared by place or size."""
    if "target" in h.s.item.parameters:
        h.the(str(h.s.item.parameters["target"]))
    for option in options(h):
        h.the(option)


def count(h: Hands) -> None:
    """How many there are of one kind, on every picture."""
    s = h.s
    for media in [f"Image_{k}" for k in range(len(s.media.given))]:
        counted(h, str(s.item.parameters["target"]), media)


def counted(h: Hands, phrase: str, media: str | None = None) -> None:
    """Note all things of a kind; perhaps count again where they are, enlarged, or have PROP count."""
    s = h.s
    found = h.find(phrase, media=media, must=False, plan="count", limit=32)
    s.cited.add(s.looked)
    if found and h.detours.take("recount", 2):
        boxes = [f.mask.box_unit or f.box for f in found]
        hull = (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))
        view = h.closer(s.room(hull, 0.04), f"{phrase} group", media=media)
        again = s.seg(phrase, "count", media=view.view, limit=32) if view.ok else []
        found = again if len(again) == len(found) else found
    elif h.detours.take("recount"):
        s.call("PROP", "measure", f"number of {phrase} things", attributes=["count"], of=phrase, media=media)
    for region in found:
        s.note_region(region)


def colour(h: Hands) -> None:
    """The colour in which a figure is there."""
    s = h.s
    figure = str(s.item.parameters["figure"])
    seen: list[Found] = []
    for option in options(h):
        found = h.find(f"{option} {figure}", must=False)
        s.cited.add(s.looked)
        seen += found[:1]
        if found and s.prefers(0.6):
            break
    if not seen:
        seen = list(by_shape(h, [f"{option} {figure}" for option in s.item.options]).values())
    if seen:
        s.note_region(max(seen, key=lambda f: f.score * f.mask.area**0.5))


def pattern(h: Hands) -> str | None:
    """The option with a pattern: the first whose texture fits."""
    s = h.s
    wanted = str(s.item.parameters["pattern"])
    said: dict[str, Said] = {}
    for option in options(h):
        found = h.find(option)
        if not found:
            continue
        s.cited.add(found[0].step)
        said[option] = h.describe(max(found, key=lambda f: f.mask.area), "texture", by_colour=True)
        s.cited |= said[option].steps
        if said[option].value == wanted:
            return option
    return min((o for o in said if said[o].value != "plain"), key=lambda o: said[o].sure, default=None)


SOLVERS = {
    "choice.present": present,
    "choice.absent": absent,
    "choice.extreme": each,
    "choice.size": each,
    "choice.count": count,
    "choice.colour": colour,
    "choice.panel": panel_text,
    "choice.neighbour": each,
    "choice.pattern": pattern,
    "choice.pair_more": count,
}
