"""Solvers for photographs with annotations like COCO's.

SEG is called with the question's own words, since a policy can copy them. If the detector misses a thing there is no
fallback, so that the answer is as correct as the tools' results.
"""

from __future__ import annotations

from pixelis.core.geometry import Mask
from pixelis.data.teachers.oracle import detours
from pixelis.data.teachers.oracle.oracle_session import OracleRegion, largest_region
from pixelis.data.teachers.oracle.picture_actions import PictureActions
from pixelis.items import Scalar

RECOUNT_SCALE = 0.3
"""The share of recounts that PROP makes."""


def find_labelled(
    actions: PictureActions, phrase: str, label: str, *, media: str | None = None, plan: str = "find"
) -> list[OracleRegion]:
    """What SEG finds for the words of the question, labelled with the class of the references."""
    session, detour_sampler = actions.session, actions.detours
    if detour_sampler.should_take("unknown", scale=0.5):
        session.seg(detours.vague_phrase(session, phrase), "find", media=media)
        plan = "instead"
    elif detour_sampler.should_take("refused"):
        detours.call_with_wrong_arguments(session, "SEG", phrase, plan, target=phrase, media=media)
        plan = "correct"
    regions = session.seg(phrase, plan, media=media)
    if not regions:
        session.cited_steps.add(session.last_seg_step)  # the answer rests on finding nothing
    return [region._replace(phrase=label) for region in regions]


def note_labelled_region(actions: PictureActions, region: OracleRegion, **properties: Scalar) -> None:
    mask = Mask.model_validate({**region.mask.model_dump(), "label": region.phrase})  # without its cached array
    actions.session.note(mask, region.step, **properties)


def find_largest(actions: PictureActions, phrase: str, label: str, *, media: str | None = None) -> OracleRegion | None:
    """The largest of the regions found."""
    return largest_region(find_labelled(actions, phrase, label, media=media))


# --- how many


def solve_count(actions: PictureActions) -> None:
    """Note every region of the noun; perhaps PROP counts too."""
    session = actions.session
    phrase, media = actions.parameter("things"), session.item.parameters.get("media")
    regions = find_labelled(
        actions, phrase, actions.parameter("target"), media=None if media is None else str(media), plan="count"
    )
    for region in regions:
        note_labelled_region(actions, region)
    if regions and actions.detours.should_take("recount", scale=RECOUNT_SCALE):
        session.call("PROP", "check", of=phrase, attributes=["count"], media=media)


def solve_count_class(actions: PictureActions) -> None:
    """The same for a question that names a class of the annotations."""
    for region in find_labelled(actions, actions.parameter("target"), actions.parameter("target"), plan="count"):
        note_labelled_region(actions, region)


# --- one thing


def solve_where(actions: PictureActions) -> None:
    """Find the thing, then measure in which part of the picture it is."""
    region = find_largest(actions, actions.parameter("thing"), actions.parameter("target"))
    if region is None:
        return
    note_labelled_region(actions, region)
    actions.session.cited_steps |= actions.describe(region, "position").steps


def solve_colour(actions: PictureActions) -> None:
    """Find the thing, then measure its colour."""
    region = find_largest(actions, actions.parameter("thing"), actions.parameter("target"))
    if region is None:
        return
    reading = actions.describe(region, "colour")
    note_labelled_region(actions, region, **({"colour": reading.value} if reading.value else {}))
    actions.session.cited_steps |= reading.steps


def solve_presence(actions: PictureActions) -> None:
    regions = find_labelled(actions, actions.parameter("thing"), actions.parameter("target"))
    for region in regions[:1]:
        note_labelled_region(actions, region)
    if regions and actions.detours.should_take("check", scale=0.5):
        detours.check_property(actions.session, regions[0])


def solve_absence(actions: PictureActions) -> None:
    """Search for a thing that is absent."""
    for region in find_labelled(actions, actions.parameter("thing"), actions.parameter("target"))[:1]:
        note_labelled_region(actions, region)


# --- two things


def note_pair(actions: PictureActions, phrases: tuple[str, str], labels: tuple[str, str]) -> None:
    for phrase, label in zip(phrases, labels, strict=True):
        if (region := find_largest(actions, phrase, label)) is not None:
            note_labelled_region(actions, region)


def solve_two_things(actions: PictureActions) -> None:
    note_pair(
        actions,
        (actions.parameter("thing_a"), actions.parameter("thing_b")),
        (actions.parameter("a"), actions.parameter("b")),
    )


def solve_side(actions: PictureActions) -> None:
    labels = actions.parameter("a"), actions.parameter("b")
    note_pair(actions, labels, labels)


def solve_largest(actions: PictureActions) -> None:
    """Find every option in turn."""
    for name in actions.session.item.options:
        if (region := find_largest(actions, name, name)) is not None:
            note_labelled_region(actions, region)


def solve_which_picture(actions: PictureActions) -> None:
    for media in ("Image_0", "Image_1"):
        for region in find_labelled(actions, actions.parameter("thing"), actions.parameter("target"), media=media)[:1]:
            note_labelled_region(actions, region)


SOLVERS = {
    "coco.count": solve_count_class,
    "coco.side": solve_side,
    "coco.largest": solve_largest,
    "photo.count": solve_count,
    "photo.count_in": solve_count,
    "photo.where": solve_where,
    "photo.colour": solve_colour,
    "photo.there": solve_presence,
    "photo.larger": solve_two_things,
    "photo.side": solve_two_things,
    "photo.missing": solve_absence,
    "photo.which_picture": solve_which_picture,
}
