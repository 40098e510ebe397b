"""The solver of users' own questions, which have no program, but references that say where to look.

Each reference is visited with a real call: text is read, a thing is searched by its label, and an unnamed place is
enlarged. The answer, which comes with the question, rests on what these calls find; if they find nothing, the oracle
does not give it.
"""

from __future__ import annotations

from pixelis.core.geometry import TextSpan
from pixelis.data.teachers.oracle.oracle_photos import find_labelled, note_labelled_region
from pixelis.data.teachers.oracle.oracle_session import expand_box
from pixelis.data.teachers.oracle.picture_actions import PictureActions
from pixelis.world import Reference

REFERENCE_MARGIN = 0.03
"""The margin around a reference, in shares of the frame."""


def solve_user_question(actions: PictureActions) -> str | None:
    """Visit every reference, each label once per medium."""
    visited = set[tuple[str, str]]()
    for reference in actions.session.item.references:
        media, label = reference.footprint.media, reference.footprint.label
        if not actions.session.has_steps_left or (label and (media, label) in visited):
            continue
        visited.add((media, label))
        inspect_reference(actions, reference)
    return actions.session.item.answer_text if actions.session.cited_steps else None


def inspect_reference(actions: PictureActions, reference: Reference) -> None:
    """Visit one reference, and note what the call finds."""
    footprint = reference.footprint
    box = expand_box(getattr(footprint, "box_unit", None) or (0.0, 0.0, 1.0, 1.0), REFERENCE_MARGIN)
    if isinstance(footprint, TextSpan):
        for line in actions.read_place(box, footprint.label or "text", media=footprint.media):
            actions.session.note_line(line)
    elif footprint.label:
        regions = find_labelled(actions, footprint.label, footprint.label, media=footprint.media)
        actions.session.cited_steps -= (
            set() if regions else {actions.session.last_seg_step}
        )  # it is there, so no answer rests on SEG missing it
        for region in regions:
            note_labelled_region(actions, region)
    else:
        view = actions.zoom_in(box, "the place", media=footprint.media)
        actions.session.cited_steps |= {view.step} if view.ok else set()


SOLVERS = {"own.shown": solve_user_question}
