"""How the oracle answers the search family: find the small thing, look closer, read or describe it."""

from __future__ import annotations

from rapidfuzz.distance import Levenshtein

from pixelis.data.oracle_acts import Hands, Said
from pixelis.data.oracle_session import Found, Line, around, grown, holds, noun_of
from pixelis.geometry import TextSpan, UnitBox
from pixelis.tools.colours import ACHROMATIC


def panel_text(h: Hands) -> None:
    """The text on a panel of a colour."""
    s = h.s
    media = str(s.item.parameters["media"]) if "media" in s.item.parameters else None
    panel = h.the(str(s.item.parameters["target"]), media=media)
    if panel is None:
        return
    what = noun_of(panel.phrase)
    lines = h.read_place(panel.box, what, media=panel.media, scale=s.choose((None, 0.8, 0.9)))
    inside = [line for line in lines if holds(panel.mask.box_unit or panel.box, line.span.box_unit)]
    if inside or lines:
        s.note_line(joined(inside or lines[:1]))


def joined(lines: list[Line]) -> Line:
    """One line out of the parts of it that were read apart, from left to right."""
    ordered = sorted(lines, key=lambda line: line.span.box_unit[0])
    if len(ordered) == 1:
        return ordered[0]
    boxes = [line.span.box_unit for line in ordered]
    x0, y0 = min(b[0] for b in boxes), min(b[1] for b in boxes)
    x1, y1 = max(b[2] for b in boxes), max(b[3] for b in boxes)
    text = " ".join(line.text for line in ordered)
    quad = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
    return ordered[0]._replace(span=ordered[0].span.model_copy(update={"text": text, "quad": quad}))


def tag_text(h: Hands) -> None:
    """The tag just below a thing."""
    s = h.s
    found = h.the(str(s.item.parameters["target"]))
    if found is None:
        return
    view = h.closer(found.box, "tag", media=found.media, scale=s.choose((0.3, 0.35, 0.4)))
    lines = below(h.read_view(view, "tag"), found)
    if not lines and s.has_room:
        x0, _, x1, y1 = found.box
        lines = below(s.read("tag", "reread", box=list(grown((x0, y1, x1, min(y1 + 0.08, 1.0)), 0.08, 0.01))), found)
    elif h.detours.take("reread"):
        s.read("tag", "reread", box=list(s.room(lines[0].span.box_unit, 0.01)), media=None)
    for line in lines:
        s.note_line(line)


def below(lines: list[Line], found: Found) -> list[Line]:
    """Lines of more than one letter: round figures are read as letters too."""
    box = found.mask.box_unit or found.box
    kept = [line for line in lines if len(line.text.strip()) > 2 and line.span.box_unit[3] > box[3]]
    return sorted(kept, key=lambda line: line.span.box_unit[1])


def ink_colour(h: Hands) -> None:
    """The colour of a word: find the word, then ask for its colour."""
    s = h.s
    word = str(s.item.parameters["word"])
    if h.detours.take("skim"):
        s.read("", "skim")
    box = where_it_says(h, word)
    lines = h.read_view(h.closer(box, f'word "{word}"'), f'word "{word}"')
    fits = min(lines, key=lambda line: distance(line.text, word), default=None)
    if fits is None or distance(fits.text, word) > 0.4:
        again = s.read(word, "reread", box=list(box))
        fits = min([*again, *lines], key=lambda line: distance(line.text, word), default=None)
    if fits is None:
        return
    seen = s.call("PROP", "measure", "colour", box=list(grown(fits.span.box_unit, 0.0)), attributes=["colour"])
    if seen.ok:
        s.cited.add(seen.step)
        shares = seen.result.output["properties"]["colour"]["measures"]
        hues = {name: share for name, share in shares.items() if name not in ACHROMATIC}
        colour = max(hues or shares, key=lambda name: shares[name])
        named = fits._replace(span=fits.span.model_copy(update={"text": word}))
        s.note_line(named, colour=colour)


def where_it_says(h: Hands, word: str) -> UnitBox:
    """About where a word stands: by OCR of the whole picture where it is read, else by eye."""
    s = h.s
    read = [] if h.detours.take("look") else s.read("", "skim")
    best = min(read, key=lambda line: distance(line.text, word), default=None)
    if best is not None and distance(best.text, word) <= 0.4:
        return s.room(best.span.box_unit, 0.02)
    evidence = [r.footprint for r in s.item.references if r.name in s.item.evidence]
    return next(around(footprint.box_unit, s.rng) for footprint in evidence if isinstance(footprint, TextSpan))


def distance(read: str, word: str) -> float:
    return Levenshtein.normalized_distance(read.lower(), word.lower())


def looks(h: Hands) -> None:
    """Shape, texture or orientation of the only thing of a colour."""
    s = h.s
    attribute = str(s.item.parameters["attribute"])
    found = h.find(str(s.item.parameters["target"]))
    if found:
        best = max(found, key=lambda f: f.mask.area)
        s.note_region(best, **{attribute: appearance(h, best, attribute)})


WORDS = {"texture": ("plain", "striped", "checkered"), "orientation": ("horizontal", "vertical", "rising", "falling")}
SURE = {"shape": 0.95, "texture": 1.1, "orientation": 0.5}
"""From this confidence on a property of a box is believed; a pattern is asked of the outline in any case."""


def appearance(h: Hands, found: Found, attribute: str) -> str:
    """A property of a thing, by its box, or by its outline where the box has too much of the ground in it."""
    readings: list[Said] = []
    if SURE[attribute] <= 1.0:
        readings.append(h.describe(found, attribute))
    if not readings or readings[0].sure < SURE[attribute]:
        readings.insert(0, h.describe(found, attribute, by_colour=True))
    words = WORDS.get(attribute)
    fits = [said for said in readings if said.value != "irregular" and (words is None or said.value in words)]
    if not fits and len(readings) == 1:
        fits = [h.describe(found, attribute)]
    best = (fits or readings)[0]
    h.s.cited |= best.steps
    return best.value


def relation(h: Hands) -> None:
    """Two things, one seen from the other."""
    for key in ("a", "b"):
        h.the(str(h.s.item.parameters[key]))


def part_of_frame(h: Hands) -> None:
    """In which of nine parts a thing is."""
    found = h.the(str(h.s.item.parameters["target"]))
    if found is not None:
        h.s.cited |= h.describe(found, "position").steps


def pair_presence(h: Hands) -> None:
    """In which of two pictures a thing is."""
    s = h.s
    target = str(s.item.parameters["target"])
    for name in ("Image_0", "Image_1"):
        for found in h.find(target, media=name, must=False):
            s.note_region(found)
        s.cited.add(s.looked)  # that nothing was found says something too


SOLVERS = {
    "search.panel_text": panel_text,
    "search.pair_text": panel_text,
    "search.tag_text": tag_text,
    "search.ink_colour": ink_colour,
    "search.shape": looks,
    "search.texture": looks,
    "search.orientation": looks,
    "search.relation": relation,
    "search.field": part_of_frame,
    "search.pair_presence": pair_presence,
}
