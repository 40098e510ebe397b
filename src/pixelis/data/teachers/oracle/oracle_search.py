"""Solvers of the search family: find the small thing, zoom in, read or describe it."""

from __future__ import annotations

from rapidfuzz.distance import Levenshtein

from pixelis.core.geometry import TextSpan, UnitBox
from pixelis.data.teachers.oracle.oracle_session import (
    OracleLine,
    OracleRegion,
    contains_centre,
    expand_box,
    largest_region,
    noun_from_phrase,
    sample_box_around,
)
from pixelis.data.teachers.oracle.picture_actions import PictureActions, PropertyReading
from pixelis.tools.vision.colours import ACHROMATIC


def solve_panel_text(actions: PictureActions) -> None:
    """The text on a panel of a colour."""
    session = actions.session
    media = next(iter(actions.given_parameters("media")), None)
    panel = actions.note_largest(actions.parameter("target"), media=media)
    if panel is None:
        return
    subject = noun_from_phrase(panel.phrase)
    lines = actions.read_place(panel.box, subject, media=panel.media, scale=session.choose((None, 0.8, 0.9)))
    inside = [line for line in lines if contains_centre(panel.source_box, line.span.box_unit)]
    if inside or lines:
        session.note_line(join_lines(inside or lines[:1]))


def join_lines(lines: list[OracleLine]) -> OracleLine:
    """Join the parts of one line, from left to right."""
    ordered = sorted(lines, key=lambda line: line.span.box_unit[0])
    if len(ordered) == 1:
        return ordered[0]
    boxes = [line.span.box_unit for line in ordered]
    x0, y0 = min(b[0] for b in boxes), min(b[1] for b in boxes)
    x1, y1 = max(b[2] for b in boxes), max(b[3] for b in boxes)
    text = " ".join(line.text for line in ordered)
    quad = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
    return ordered[0]._replace(span=ordered[0].span.model_copy(update={"text": text, "quad": quad}))


def solve_tag_text(actions: PictureActions) -> None:
    """The tag just below a thing."""
    session = actions.session
    region = actions.note_largest(actions.parameter("target"))
    if region is None:
        return
    view = actions.zoom_in(region.box, "tag", media=region.media, scale=session.choose((0.3, 0.35, 0.4)))
    lines = lines_below(actions.read_view(view, "tag"), region)
    if not lines and session.has_steps_left:
        x0, _, x1, y1 = region.box
        lines = lines_below(
            session.read("tag", "reread", box=list(expand_box((x0, y1, x1, min(y1 + 0.08, 1.0)), 0.08, 0.01))), region
        )
    elif actions.detours.should_take("reread"):
        session.read("tag", "reread", box=list(session.with_margin(lines[0].span.box_unit, 0.01)), media=None)
    for line in lines:
        session.note_line(line)


def lines_below(lines: list[OracleLine], region: OracleRegion) -> list[OracleLine]:
    """Lines of more than two characters below a region: round figures are read as letters too."""
    box = region.source_box
    matches = [line for line in lines if len(line.text.strip()) > 2 and line.span.box_unit[3] > box[3]]
    return sorted(matches, key=lambda line: line.span.box_unit[1])


def solve_ink_colour(actions: PictureActions) -> None:
    """Find a word, then measure its colour."""
    session = actions.session
    word = actions.parameter("word")
    if actions.detours.should_take("skim"):
        session.read("", "skim")
    box = locate_word(actions, word)
    lines = actions.read_view(actions.zoom_in(box, f'word "{word}"'), f'word "{word}"')
    match_line = min(lines, key=lambda line: spelling_distance(line.text, word), default=None)
    if match_line is None or spelling_distance(match_line.text, word) > 0.4:
        second_reading = session.read(word, "reread", box=list(box))
        match_line = min([*second_reading, *lines], key=lambda line: spelling_distance(line.text, word), default=None)
    if match_line is None:
        return
    outcome = session.call(
        "PROP", "measure", "colour", box=list(expand_box(match_line.span.box_unit, 0.0)), attributes=["colour"]
    )
    if outcome.ok:
        session.cited_steps.add(outcome.step)
        shares = outcome.result.output["properties"]["colour"]["measures"]
        hues = {name: share for name, share in shares.items() if name not in ACHROMATIC}
        colour = max(hues or shares, key=lambda name: shares[name])
        corrected = match_line._replace(span=match_line.span.model_copy(update={"text": word}))
        session.note_line(corrected, colour=colour)


def locate_word(actions: PictureActions, word: str) -> UnitBox:
    """The approximate place of a word: from OCR of the whole picture, else a visual guess."""
    session = actions.session
    lines = [] if actions.detours.should_take("look") else session.read("", "skim")
    best = min(lines, key=lambda line: spelling_distance(line.text, word), default=None)
    if best is not None and spelling_distance(best.text, word) <= 0.4:
        return session.with_margin(best.span.box_unit, 0.02)
    evidence = [r.footprint for r in session.item.references if r.name in session.item.evidence]
    return next(
        sample_box_around(footprint.box_unit, session.rng) for footprint in evidence if isinstance(footprint, TextSpan)
    )


def spelling_distance(text: str, word: str) -> float:
    return Levenshtein.normalized_distance(text.lower(), word.lower())


def solve_appearance(actions: PictureActions) -> None:
    """Shape, texture or orientation of the only thing of a colour."""
    session = actions.session
    attribute = actions.parameter("attribute")
    best = largest_region(actions.find(actions.parameter("target")))
    if best is not None:
        session.note_region(best, **{attribute: read_appearance(actions, best, attribute)})


ATTRIBUTE_VALUES = {
    "texture": ("plain", "striped", "checkered"),
    "orientation": ("horizontal", "vertical", "rising", "falling"),
}
MIN_BOX_CONFIDENCE = {"shape": 0.95, "texture": 1.1, "orientation": 0.5}
"""The confidence from which a property of a box is accepted; texture always needs the outline."""


def read_appearance(actions: PictureActions, region: OracleRegion, attribute: str) -> str:
    """A property of a thing, measured in its box, or in its outline if the box contains too much ground."""
    readings: list[PropertyReading] = []
    if MIN_BOX_CONFIDENCE[attribute] <= 1.0:
        readings.append(actions.describe(region, attribute))
    if not readings or readings[0].confidence < MIN_BOX_CONFIDENCE[attribute]:
        readings.insert(0, actions.describe(region, attribute, by_colour=True))
    allowed_values = ATTRIBUTE_VALUES.get(attribute)
    matches = [
        reading
        for reading in readings
        if reading.value != "irregular" and (allowed_values is None or reading.value in allowed_values)
    ]
    if not matches and len(readings) == 1:
        matches = [actions.describe(region, attribute)]
    best = (matches or readings)[0]
    actions.session.cited_steps |= best.steps
    return best.value


def solve_relation(actions: PictureActions) -> None:
    """Find two things, to compare their places."""
    for key in ("a", "b"):
        actions.note_largest(actions.parameter(key))


def solve_frame_part(actions: PictureActions) -> None:
    """The one of nine parts that contains a thing."""
    region = actions.note_largest(actions.parameter("target"))
    if region is not None:
        actions.session.cited_steps |= actions.describe(region, "position").steps


def solve_pair_presence(actions: PictureActions) -> None:
    """Search for a thing in both pictures."""
    session = actions.session
    target = actions.parameter("target")
    for name in ("Image_0", "Image_1"):
        for region in actions.find(target, media=name, required=False):
            session.note_region(region)
        session.cited_steps.add(session.last_seg_step)  # finding nothing is evidence too


SOLVERS = {
    "search.panel_text": solve_panel_text,
    "search.pair_text": solve_panel_text,
    "search.tag_text": solve_tag_text,
    "search.ink_colour": solve_ink_colour,
    "search.shape": solve_appearance,
    "search.texture": solve_appearance,
    "search.orientation": solve_appearance,
    "search.relation": solve_relation,
    "search.field": solve_frame_part,
    "search.pair_presence": solve_pair_presence,
}
