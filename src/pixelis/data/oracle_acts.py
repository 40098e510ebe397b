"""What the oracle can do about pictures: find, look closer, read, describe; each with its ways round and recoveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rapidfuzz.distance import Levenshtein

from pixelis.data import detours
from pixelis.data.detours import Detours
from pixelis.data.oracle_session import Found, Line, Seen, Session, around, as_read, colour_of, grown, holds
from pixelis.geometry import Track, UnitBox
from pixelis.metrics.overlap import box_iou
from pixelis.tools.grounding import understand

ROOM = 0.6
"""The scale of a view that shows a box with a third of its size around it."""
SURE_READING = 0.9
"""A reading under this confidence is read again another way."""
WHOLE: UnitBox = (0.0, 0.0, 1.0, 1.0)


class Said(NamedTuple):
    """What PROP says of a region."""

    value: str
    sure: float
    steps: frozenset[int]
    """The steps that it rests on."""


class Hands:
    """Acts on one session."""

    def __init__(self, session: Session, ways: Detours) -> None:
        self.s = session
        self.detours = ways

    # --- finding

    def find(
        self, phrase: str, *, media: str | None = None, must: bool = True, plan: str = "find", **more: Any
    ) -> list[Found]:
        """Regions of a phrase. What must be there is looked for in other ways where SEG does not see it at once."""
        s, d = self.s, self.detours
        colour = colour_of(phrase)
        if d.take("unknown"):
            s.seg(detours.vague(s, phrase), "find", media=media, **more)
            plan = "instead"
        elif d.take("refused"):
            detours.refused(s, "SEG", phrase, plan, target=phrase, media=media, **more)
            plan = "correct"
        if understand(phrase).shape and d.take("broad"):
            fits = s.seg(s.choose([colour, f"{colour} thing", f"{colour} objects"]), "broad", media=media, **more)
            plan = "narrow" if fits else plan
        if must and d.take("first_closer"):
            found = self._closer_first(phrase, media, **more)
            if found:
                return found
        found = s.seg(phrase, plan, media=media, **more)
        if not found and must:
            return self.search(phrase, media, **more)
        if len(found) == 1 and d.take("refine", 2):
            return self.refine(found[0]) or found
        if found and d.take("check"):
            detours.check(s, found[0])
        return found

    def _closer_first(self, phrase: str, media: str | None, **more: Any) -> list[Found]:
        """Zoom to where it seems to be, and look there."""
        s = self.s
        at = {"frame": more["frame"]} if "frame" in more else {}
        for box in self.glimpses(phrase, media, int(more.get("frame", 0))):
            if d_miss := self.detours.take("miss"):
                s.zoom(detours.elsewhere(s, box), phrase, "miss", media=media, **at)
            view = s.zoom(box, phrase, "again" if d_miss else "closer", media=media, **at)
            if view.ok:
                return s.seg(phrase, "find", media=view.view)
            break
        return []

    def refine(self, found: Found) -> list[Found]:
        """Zoom to a region, and outline it again there."""
        s = self.s
        if self.detours.take("miss"):
            s.zoom(detours.elsewhere(s, found.box), found.phrase, "miss", **found.place)
        room: dict[str, Any] = {"scale": ROOM} if s.plain else {}
        box = found.box if s.plain else roomy(found.box)
        view = s.zoom(box, found.phrase, "closer", **room, **found.place)
        again = s.seg(found.phrase, "find", media=view.view) if view.ok else []
        near = [f for f in again if overlap(f, found) > 0.5]
        return near[:1]

    def search(self, phrase: str, media: str | None, **more: Any) -> list[Found]:
        """Recoveries: a nearer look at where it seems to be, a broader phrase, a click."""
        s = self.s
        colour = colour_of(phrase)
        for box in list(self.glimpses(phrase, media, int(more.get("frame", 0))))[:1]:
            broader = s.seg(f"{colour} thing", "instead", media=media, **more) if s.has_room else []
            if near := [f for f in broader if holds(box, f.mask.box_unit or WHOLE)]:
                return [near[0]._replace(phrase=phrase)]
            view = s.zoom(box, phrase, "closer", media=media, frame=more.get("frame")) if s.has_room else None
            if view is None or not view.ok:
                continue
            if found := s.seg(phrase, "find", media=view.view):
                return found
            seen = s.call("SEG", "instead", "a click", target=[0.5, 0.5], media=view.view)
            if found := s.found(seen, phrase, view.view):
                return found
        return []

    def glimpses(self, phrase: str, media: str | None, frame: int = 0, *, loose: float = 0.08) -> list[UnitBox]:
        """About where things of a phrase are to be seen, on one medium."""
        name = self.s.name(media)
        colour = colour_of(phrase)
        items = [r.footprint for r in self.s.item.references if r.footprint.media == name]
        fits = [f for f in items if f.label == phrase] or [f for f in items if colour_of(f.label) == colour]
        places = [f.at(frame) if isinstance(f, Track) else getattr(f, "box_unit", None) for f in fits]
        return [around(box, self.s.rng, loose) for box in places if box is not None]

    def the(self, phrase: str, **options: Any) -> Found | None:
        """The one region of a phrase, kept in the notes: the largest, where noise gave several."""
        found = self.find(phrase, **options)
        if not found:
            return None
        best = max(found, key=lambda f: f.mask.area)
        self.s.note_region(best)
        return best

    # --- looking closer, and reading

    def closer(self, box: UnitBox, what: str, *, media: str | None = None, **more: Any) -> Seen:
        """A view of a place, perhaps after a wrong one."""
        s, d = self.s, self.detours
        plan = "closer"
        if d.take("miss"):
            s.zoom(detours.elsewhere(s, box), what, "miss", media=media)
            plan = "again"
        elif d.take("refused"):
            detours.refused(s, "ZOOM", what, plan, box=list(box), media=media, **more)
            plan = "correct"
        return s.zoom(box, what, plan, media=media, **more)

    def read_view(self, view: Seen, what: str) -> list[Line]:
        """The lines on a view."""
        s = self.s
        if not view.ok:
            return []
        if self.detours.take("refused", scale=0.5):
            detours.refused(s, "OCR", what, "read", media=view.view)
            return s.read(what, "correct", media=view.view)
        return s.read(what, "read", media=view.view)

    def read_place(
        self, box: UnitBox, what: str, *, media: str | None = None, scale: float | None = None
    ) -> list[Line]:
        """The lines at a place: enlarged first; read straight from the frame, and wider, where that is unsure."""
        s, d = self.s, self.detours
        if d.take("skim"):
            s.read("", "skim", media=media)
        lines = self.read_view(self.closer(box, what, media=media, scale=scale), what)
        if not lines or min(line.span.score for line in lines) < SURE_READING:
            if s.has_room:
                again = s.read(what, "reread", box=list(s.room(box, 0.02)), media=media)
                lines = max(lines, again, key=quality)
        elif d.take("reread"):
            s.read(
                what,
                "reread",
                box=list(as_read(lines[0].span.box_unit) if s.plain else around_line(lines[0])),
                media=media,
            )
        return lines

    # --- describing

    def describe(self, found: Found, attribute: str, *, by_colour: bool = False) -> Said:
        """A property of a region, by its box, or outlined once more by its colour: nobody writes a mask in words."""
        s = self.s
        args: dict[str, Any] = {"box": list(found.box), "attributes": [attribute], **found.place}
        if by_colour:
            args |= {"of": f"{colour_of(found.phrase)} thing"}
            args |= {} if s.plain else {"box": list(roomy(found.box))}
        plan = "measure"
        if self.detours.take("refused"):
            detours.refused(s, "PROP", attribute, plan, **args)
            plan = "correct"
        seen = s.call("PROP", plan, attribute, **args)
        if not seen.ok:
            return Said("", 0.0, frozenset())
        value = seen.result.output["properties"][attribute]
        return Said(str(value["value"]), float(value["confidence"]), frozenset({seen.step, found.step}))


def quality(lines: list[Line]) -> float:
    return sum(line.span.score * len(line.text) for line in lines) / max(len(lines), 1)


def around_line(line: Line) -> UnitBox:
    x0, y0, x1, y1 = line.span.box_unit
    return grown((x0, y0, x1, y1), 0.01)


def roomy(box: UnitBox) -> UnitBox:
    """A box with a third of its size around it."""
    return grown(box, max(0.3 * (box[2] - box[0]), 0.02), max(0.3 * (box[3] - box[1]), 0.02))


def overlap(a: Found, b: Found) -> float:
    """IoU of the boxes of two regions on the source."""
    first, second = a.mask.box_unit, b.mask.box_unit
    return box_iou(first, second) if first and second else 0.0


def nearest_option(text: str, options: Sequence[str]) -> int:
    """The option that is nearest in spelling."""
    return min(range(len(options)), key=lambda i: Levenshtein.normalized_distance(text.lower(), options[i].lower()))
