"""The oracle's actions on pictures: find, zoom, read, describe; each with its detours and recoveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rapidfuzz.distance import Levenshtein

from pixelis.core.geometry import Track, UnitBox
from pixelis.data.teachers.oracle import detours
from pixelis.data.teachers.oracle.detours import Detours
from pixelis.data.teachers.oracle.oracle_session import (
    OracleCallOutcome,
    OracleLine,
    OracleRegion,
    OracleSession,
    colour_from_phrase,
    contains_centre,
    expand_box,
    largest_region,
    sample_box_around,
)
from pixelis.metrics.overlap import box_iou
from pixelis.tools.vision.grounding import parse_phrase

CLOSE_UP_SCALE = 0.6
"""The scale of a view that shows a box with a margin of a third of its size."""
MIN_READING_CONFIDENCE = 0.9
"""A reading below this confidence is repeated in another way."""
FULL_FRAME: UnitBox = (0.0, 0.0, 1.0, 1.0)


class PropertyReading(NamedTuple):
    """A property of a region by PROP."""

    value: str
    confidence: float
    steps: frozenset[int]
    """The steps that it depends on."""


class PictureActions:
    """Actions on one session."""

    def __init__(self, session: OracleSession, detours: Detours) -> None:
        self.session = session
        self.detours = detours

    def parameter(self, key: str) -> str:
        """A parameter of the question."""
        return str(self.session.item.parameters[key])

    def given_parameters(self, *keys: str) -> list[str]:
        """Those of these parameters that the question has."""
        return [self.parameter(key) for key in keys if key in self.session.item.parameters]

    # --- finding

    def find(
        self, phrase: str, *, media: str | None = None, required: bool = True, plan: str = "find", **args: Any
    ) -> list[OracleRegion]:
        """The regions of a phrase. If it is `required` and SEG does not find it, fallbacks are tried."""
        session, detour_sampler = self.session, self.detours
        colour = colour_from_phrase(phrase)
        if detour_sampler.should_take("unknown"):
            session.seg(detours.vague_phrase(session, phrase), "find", media=media, **args)
            plan = "instead"
        elif detour_sampler.should_take("refused"):
            detours.call_with_wrong_arguments(session, "SEG", phrase, plan, target=phrase, media=media, **args)
            plan = "correct"
        if parse_phrase(phrase).shape and detour_sampler.should_take("broad"):
            broad_phrase = session.choose([colour, f"{colour} thing", f"{colour} objects"])
            matches = session.seg(broad_phrase, "broad", media=media, **args)
            plan = "narrow" if matches else plan
        if required and detour_sampler.should_take("first_closer"):
            regions = self._find_in_close_up(phrase, media, **args)
            if regions:
                return regions
        regions = session.seg(phrase, plan, media=media, **args)
        if not regions and required:
            return self.find_with_fallbacks(phrase, media, **args)
        if len(regions) == 1 and detour_sampler.should_take("refine", 2):
            return self.refine(regions[0]) or regions
        if regions and detour_sampler.should_take("check"):
            detours.check_property(session, regions[0])
        return regions

    def _find_in_close_up(self, phrase: str, media: str | None, **args: Any) -> list[OracleRegion]:
        """Zoom to a visual guess of the place, and search there."""
        session = self.session
        frame_arg = {"frame": args["frame"]} if "frame" in args else {}
        for box in self.guess_boxes(phrase, media, int(args.get("frame", 0))):
            if missed_first := self.detours.should_take("miss"):
                session.zoom(detours.sample_wrong_crop(session, box), phrase, "miss", media=media, **frame_arg)
            view = session.zoom(box, phrase, "again" if missed_first else "closer", media=media, **frame_arg)
            if view.ok:
                return session.seg(phrase, "find", media=view.view)
            break
        return []

    def refine(self, region: OracleRegion) -> list[OracleRegion]:
        """Zoom to a region, and outline it again in the view."""
        session = self.session
        if self.detours.should_take("miss"):
            session.zoom(detours.sample_wrong_crop(session, region.box), region.phrase, "miss", **region.media_args)
        scale_arg: dict[str, Any] = {"scale": CLOSE_UP_SCALE} if session.canonical_wording else {}
        box = region.box if session.canonical_wording else expand_by_third(region.box)
        view = session.zoom(box, region.phrase, "closer", **scale_arg, **region.media_args)
        candidates = session.seg(region.phrase, "find", media=view.view) if view.ok else []
        matches = [f for f in candidates if box_overlap(f, region) > 0.5]
        return matches[:1]

    def find_with_fallbacks(self, phrase: str, media: str | None, **args: Any) -> list[OracleRegion]:
        """Recoveries: a broader phrase, a closer view of the probable place, a click."""
        session = self.session
        colour = colour_from_phrase(phrase)
        for box in list(self.guess_boxes(phrase, media, int(args.get("frame", 0))))[:1]:
            broader: list[OracleRegion] = []
            if session.has_steps_left:
                broader = session.seg(f"{colour} thing", "instead", media=media, **args)
            if inside := [f for f in broader if contains_centre(box, f.mask.box_unit or FULL_FRAME)]:
                return [inside[0]._replace(phrase=phrase)]
            if not session.has_steps_left:
                continue
            view = session.zoom(box, phrase, "closer", media=media, frame=args.get("frame"))
            if not view.ok:
                continue
            if regions := session.seg(phrase, "find", media=view.view):
                return regions
            outcome = session.call("SEG", "instead", "a click", target=[0.5, 0.5], media=view.view)
            if regions := session.regions_from_outcome(outcome, phrase, view.view):
                return regions
        return []

    def guess_boxes(self, phrase: str, media: str | None, frame: int = 0, *, margin: float = 0.08) -> list[UnitBox]:
        """Approximate boxes of the things of a phrase on one medium."""
        name = self.session.canonical_media(media)
        colour = colour_from_phrase(phrase)
        items = [r.footprint for r in self.session.item.references if r.footprint.media == name]
        matches = [f for f in items if f.label == phrase] or [f for f in items if colour_from_phrase(f.label) == colour]
        boxes = [f.box_at(frame) if isinstance(f, Track) else getattr(f, "box_unit", None) for f in matches]
        return [sample_box_around(box, self.session.rng, margin) for box in boxes if box is not None]

    def note_largest(self, phrase: str, **find_args: Any) -> OracleRegion | None:
        """Note the largest region of a phrase."""
        best = largest_region(self.find(phrase, **find_args))
        if best is not None:
            self.session.note_region(best)
        return best

    # --- looking closer, and reading

    def zoom_in(self, box: UnitBox, subject: str, *, media: str | None = None, **args: Any) -> OracleCallOutcome:
        """A view of a place, perhaps after a wrong crop."""
        session, detour_sampler = self.session, self.detours
        plan = "closer"
        if detour_sampler.should_take("miss"):
            session.zoom(detours.sample_wrong_crop(session, box), subject, "miss", media=media)
            plan = "again"
        elif detour_sampler.should_take("refused"):
            detours.call_with_wrong_arguments(session, "ZOOM", subject, plan, box=list(box), media=media, **args)
            plan = "correct"
        return session.zoom(box, subject, plan, media=media, **args)

    def read_view(self, view: OracleCallOutcome, subject: str) -> list[OracleLine]:
        """Read the lines on a view."""
        session = self.session
        if not view.ok:
            return []
        if self.detours.should_take("refused", scale=0.5):
            detours.call_with_wrong_arguments(session, "OCR", subject, "read", media=view.view)
            return session.read(subject, "correct", media=view.view)
        return session.read(subject, "read", media=view.view)

    def read_place(
        self, box: UnitBox, subject: str, *, media: str | None = None, scale: float | None = None
    ) -> list[OracleLine]:
        """Read the lines at a place: enlarged, and if that is unsure, directly from the frame."""
        session, detour_sampler = self.session, self.detours
        if detour_sampler.should_take("skim"):
            session.read("", "skim", media=media)
        lines = self.read_view(self.zoom_in(box, subject, media=media, scale=scale), subject)
        if not lines or min(line.span.score for line in lines) < MIN_READING_CONFIDENCE:
            if session.has_steps_left:
                second_reading = session.read(subject, "reread", box=list(session.with_margin(box, 0.02)), media=media)
                lines = max(lines, second_reading, key=reading_quality)
        elif detour_sampler.should_take("reread"):
            line_box = session.with_margin(lines[0].span.box_unit, 0.01)
            session.read(subject, "reread", box=list(line_box), media=media)
        return lines

    # --- describing

    def describe(self, region: OracleRegion, attribute: str, *, by_colour: bool = False) -> PropertyReading:
        """A property of a region, by its box or by its colour: a call cannot contain a mask."""
        session = self.session
        args: dict[str, Any] = {"box": list(region.box), "attributes": [attribute], **region.media_args}
        if by_colour:
            args |= {"of": f"{colour_from_phrase(region.phrase)} thing"}
            args |= {} if session.canonical_wording else {"box": list(expand_by_third(region.box))}
        plan = "measure"
        if self.detours.should_take("refused"):
            detours.call_with_wrong_arguments(session, "PROP", attribute, plan, **args)
            plan = "correct"
        outcome = session.call("PROP", plan, attribute, **args)
        if not outcome.ok:
            return PropertyReading("", 0.0, frozenset())
        value = outcome.result.output["properties"][attribute]
        return PropertyReading(str(value["value"]), float(value["confidence"]), frozenset({outcome.step, region.step}))


def reading_quality(lines: list[OracleLine]) -> float:
    return sum(line.span.score * len(line.text) for line in lines) / max(len(lines), 1)


def expand_by_third(box: UnitBox) -> UnitBox:
    """A box with a margin of a third of its size."""
    return expand_box(box, max(0.3 * (box[2] - box[0]), 0.02), max(0.3 * (box[3] - box[1]), 0.02))


def box_overlap(a: OracleRegion, b: OracleRegion) -> float:
    """IoU of the boxes of two regions on the source."""
    first, second = a.mask.box_unit, b.mask.box_unit
    return box_iou(first, second) if first and second else 0.0


def nearest_option(text: str, options: Sequence[str]) -> int:
    """The index of the option nearest in spelling."""
    return min(range(len(options)), key=lambda i: Levenshtein.normalized_distance(text.lower(), options[i].lower()))
