"""The oracle before somebody's own question: no program stands behind it, but its references say where to look.

Each reference is visited with a real call: a text is read, a thing is sought by its label, a place without a name is
looked at closely. What is seen there is what the answer, which the question came with, rests on; where nothing is seen
the oracle does not know it.
"""

from __future__ import annotations

from pixelis.data.oracle_acts import Hands
from pixelis.data.oracle_photos import keep, seek
from pixelis.data.oracle_session import grown
from pixelis.geometry import TextSpan
from pixelis.world import Reference

ROOM = 0.03
"""Around a reference, in shares of the frame."""


def visit(h: Hands) -> str | None:
    """Every reference in turn, each label once on each medium."""
    sought = set[tuple[str, str]]()
    for reference in h.s.item.references:
        media, label = reference.footprint.media, reference.footprint.label
        if not h.s.has_room or (label and (media, label) in sought):
            continue
        sought.add((media, label))
        look(h, reference)
    return h.s.item.answer_text if h.s.cited else None


def look(h: Hands, reference: Reference) -> None:
    """One reference: whatever the call gave is kept."""
    footprint = reference.footprint
    box = grown(getattr(footprint, "box_unit", None) or (0.0, 0.0, 1.0, 1.0), ROOM)
    if isinstance(footprint, TextSpan):
        for line in h.read_place(box, footprint.label or "text", media=footprint.media):
            h.s.note_line(line)
    elif footprint.label:
        found = seek(h, footprint.label, footprint.label, media=footprint.media)
        h.s.cited -= set() if found else {h.s.looked}  # it is there: that SEG does not see it leads to no answer
        for one in found:
            keep(h, one)
    else:
        view = h.closer(box, "the place", media=footprint.media)
        h.s.cited |= {view.step} if view.ok else set()


SOLVERS = {"own.shown": visit}
