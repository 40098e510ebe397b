"""Solvers of the choice family: search for each option, and compare."""

from __future__ import annotations

from pixelis.data.teachers.oracle.oracle_search import solve_panel_text
from pixelis.data.teachers.oracle.oracle_session import OracleRegion, colour_from_phrase
from pixelis.data.teachers.oracle.picture_actions import PictureActions, PropertyReading
from pixelis.tools.vision.grounding import parse_phrase


def options_to_search(actions: PictureActions) -> list[str]:
    """The options in the order of the search, mostly as listed."""
    item_options = list(actions.session.item.options)
    return (
        item_options
        if actions.session.canonical_wording or actions.session.chance(0.7)
        else [item_options[int(i)] for i in actions.session.rng.permutation(len(item_options))]
    )


def solve_present(actions: PictureActions) -> None:
    """The only option that is present."""
    session = actions.session
    stop_at_first = session.canonical_wording or session.chance(0.6)
    matches: dict[str, OracleRegion] = {}
    for option in options_to_search(actions):
        regions = actions.find(option, required=False)
        session.cited_steps.add(session.last_seg_step)
        if regions:
            matches[option] = max(regions, key=lambda f: f.mask.area)
            if stop_at_first:
                break
    if not matches:
        matches = match_by_shape(actions, list(session.item.options))
    if matches:
        session.note_region(max(matches.values(), key=lambda f: f.score * f.mask.area**0.5))


def solve_absent(actions: PictureActions) -> None:
    """The only option that is absent."""
    session = actions.session
    matches: dict[str, OracleRegion] = {}
    for option in options_to_search(actions):
        regions = actions.find(option, required=False)
        session.cited_steps.add(session.last_seg_step)
        if regions:
            matches[option] = regions[0]
    missing = [option for option in session.item.options if option not in matches]
    if len(missing) > 1:
        matches |= match_by_shape(actions, missing)
    if len(matches) > 3:  # one of them is a false match
        matches.pop(min(matches, key=lambda o: matches[o].score))
    for region in matches.values():
        session.note_region(region)


def match_by_shape(actions: PictureActions, phrases: list[str]) -> dict[str, OracleRegion]:
    """Find options that SEG did not find by name, by their colour and the shape that PROP reports."""
    session, matches = actions.session, dict[str, OracleRegion]()
    irregular: list[tuple[float, str, OracleRegion]] = []
    for phrase in phrases:
        if not session.has_steps_left or (matches and len(phrases) == 4):
            break
        regions = session.seg(f"{colour_from_phrase(phrase)} thing", "instead")
        if not regions:
            continue
        best = max(regions, key=lambda f: f.mask.area)._replace(phrase=phrase)
        shape, confidence, steps = actions.describe(best, "shape")
        session.cited_steps |= steps
        if shape == parse_phrase(phrase).shape:
            matches[phrase] = best
        elif shape == "irregular":  # partly hidden, perhaps
            irregular.append((confidence, phrase, best))
    if not matches and irregular:
        _, phrase, best = min(irregular, key=lambda r: r[0])
        matches[phrase] = best
    return matches


def solve_comparison(actions: PictureActions) -> None:
    """Find all options, to compare places or sizes."""
    if "target" in actions.session.item.parameters:
        actions.note_largest(actions.parameter("target"))
    for option in options_to_search(actions):
        actions.note_largest(option)


def solve_count(actions: PictureActions) -> None:
    """Count one kind of thing on every picture."""
    session = actions.session
    for media in [f"Image_{k}" for k in range(len(session.media.sources))]:
        note_all_of_kind(actions, actions.parameter("target"), media)


def note_all_of_kind(actions: PictureActions, phrase: str, media: str | None = None) -> None:
    """Note all things of a kind; perhaps count again in an enlarged view, or with PROP."""
    session = actions.session
    regions = actions.find(phrase, media=media, required=False, plan="count", limit=32)
    session.cited_steps.add(session.last_seg_step)
    if regions and actions.detours.should_take("recount", 2):
        boxes = [f.source_box for f in regions]
        hull = (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))
        view = actions.zoom_in(session.with_margin(hull, 0.04), f"{phrase} group", media=media)
        second_count = session.seg(phrase, "count", media=view.view, limit=32) if view.ok else []
        regions = second_count if len(second_count) == len(regions) else regions
    elif actions.detours.should_take("recount"):
        session.call("PROP", "measure", f"number of {phrase} things", attributes=["count"], of=phrase, media=media)
    for region in regions:
        session.note_region(region)


def solve_colour(actions: PictureActions) -> None:
    """The colour of a figure."""
    session = actions.session
    figure = actions.parameter("figure")
    candidates: list[OracleRegion] = []
    for option in options_to_search(actions):
        regions = actions.find(f"{option} {figure}", required=False)
        session.cited_steps.add(session.last_seg_step)
        candidates += regions[:1]
        if regions and session.prefers(0.6):
            break
    if not candidates:
        candidates = list(match_by_shape(actions, [f"{option} {figure}" for option in session.item.options]).values())
    if candidates:
        session.note_region(max(candidates, key=lambda f: f.score * f.mask.area**0.5))


def solve_pattern(actions: PictureActions) -> str | None:
    """The option with a pattern: the first whose texture matches."""
    session = actions.session
    target_pattern = actions.parameter("pattern")
    readings: dict[str, PropertyReading] = {}
    for option in options_to_search(actions):
        regions = actions.find(option)
        if not regions:
            continue
        session.cited_steps.add(regions[0].step)
        readings[option] = actions.describe(max(regions, key=lambda f: f.mask.area), "texture", by_colour=True)
        session.cited_steps |= readings[option].steps
        if readings[option].value == target_pattern:
            return option
    return min(
        (o for o in readings if readings[o].value != "plain"), key=lambda o: readings[o].confidence, default=None
    )


SOLVERS = {
    "choice.present": solve_present,
    "choice.absent": solve_absent,
    "choice.extreme": solve_comparison,
    "choice.size": solve_comparison,
    "choice.count": solve_count,
    "choice.colour": solve_colour,
    "choice.panel": solve_panel_text,
    "choice.neighbour": solve_comparison,
    "choice.pattern": solve_pattern,
    "choice.pair_more": solve_count,
}
