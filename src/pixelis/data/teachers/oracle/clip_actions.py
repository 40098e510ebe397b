"""The oracle's actions on clips: find moments, look at frames, follow things; each with its detours."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from pixelis.core.geometry import Span, Track, UnitBox
from pixelis.data.teachers.oracle import detours
from pixelis.data.teachers.oracle.oracle_session import (
    OracleCallOutcome,
    OracleRegion,
    colour_from_phrase,
    largest_region,
    snap_box,
)
from pixelis.data.teachers.oracle.picture_actions import PictureActions
from pixelis.world.vocabulary import fix_articles

APPEARANCE_QUERIES = ("the {x} appears", "{x} appears", "the {x} enters", "a {x} appears")
OUT_OF_RANGE_FRAME = 10_000
MIN_TRACK_CONFIDENCE = 0.9
"""Below this confidence, SEG checks the end of a track that follows motion alone."""


class TrackStart(NamedTuple):
    """Where a track begins."""

    phrase: str
    box: UnitBox
    step: int | None
    """The step that outlined it; None if the box is a visual guess."""


class ClipActions(PictureActions):
    """Actions on a session with clips."""

    def medium(self, media: str | None) -> Any:
        return self.session.media.source(self.session.canonical_media(media))

    def last_frame(self, media: str | None = None) -> int:
        return int(self.medium(media).frame_count) - 1

    def frame_at(self, seconds: float, media: str | None = None) -> int:
        """The frame on screen at a time, clamped to the clip."""
        clip = self.medium(media)
        return int(min(clip.index_at(min(max(seconds, 0.0), clip.duration_s)), clip.frame_count - 1))

    def sample_overview(self, media: str | None = None) -> None:
        """Perhaps look at some frames of the clip first."""
        if self.detours.should_take("sample"):
            self.session.call("TEMP", "sample", frames=int(self.session.choose((2, 3, 3, 4))), media=media)

    # --- moments

    def find_spans(self, query: str, *, media: str | None = None, **args: Any) -> tuple[list[Span], OracleCallOutcome]:
        """The spans in which something happens, best first."""
        session, plan = self.session, "when"
        if self.detours.should_take("refused"):
            wrong_args: dict[str, Any] = {"query": query, "media": media, **args}
            wrong_args |= session.choose(({"frames": 4}, {"start_s": 9.0, "end_s": 2.0}, {"media": "Video_5"}))
            session.call("TEMP", plan, query, **wrong_args)
            plan = "correct"
        outcome = session.call("TEMP", plan, query, query=query, media=media, **args)
        return ([f for f in outcome.result.footprints if isinstance(f, Span)] if outcome.ok else []), outcome

    def find_appearances(self, phrase: str, *, max_spans: int = 1, media: str | None = None) -> list[Span]:
        """When something appears, noted under `… appears`; with other queries if the first finds nothing."""
        session = self.session
        wording = fix_articles(str(session.choose(APPEARANCE_QUERIES)).format(x=phrase))
        # If its appearance is not found, its presence may be, or at least its colour.
        for query in (wording, f"the {phrase}", f"something {colour_from_phrase(phrase)}"):
            spans, outcome = self.find_spans(query, media=media, top_k=max_spans)
            if spans:
                for span in spans:
                    session.note(span.model_copy(update={"label": f"{phrase} appears"}), outcome.step)
                return spans
        return []

    def time_within(self, span: Span) -> float:
        """A time at which what appeared during a span is present: just before its end, or its printed end."""
        return round(span.end_s, 2) if self.session.canonical_wording else span.end_s - 0.1

    def inspection_times(self, span: Span) -> tuple[float, float]:
        """Times at which to inspect a span: inside it, or its printed ends."""
        if self.session.canonical_wording:
            return round(span.start_s, 2), round(span.end_s, 2)
        return (span.start_s + span.end_s) / 2, span.end_s - 0.5

    def show_frame(self, seconds: float, media: str | None = None) -> OracleCallOutcome:
        """The frame at a time, as a view."""
        return self.session.call("TEMP", "show", f"{seconds:.2f} s", select_s=round(seconds, 2), media=media)

    # --- following

    def start_track(self, phrase: str, *, frame: int = 0, media: str | None = None) -> TrackStart | None:
        """Something on a frame, to follow from there: outlined by SEG, or a visual guess."""
        if self.detours.should_take("point", 0):
            for box in self.guess_boxes(phrase, media, frame, margin=0.01):
                return TrackStart(phrase, box, None)
        region = self.find_on_frame(phrase, frame=frame, media=media)
        return TrackStart(phrase, snap_box(region.source_box), region.step) if region else None

    def find_on_frame(self, phrase: str, *, frame: int, media: str | None = None) -> OracleRegion | None:
        """The largest region for a phrase on a frame."""
        return largest_region(self.find(phrase, media=media, frame=frame))

    def follow(
        self,
        track_start: TrackStart,
        *,
        media: str | None = None,
        start_frame: int = 0,
        end_frame: int | None = None,
        pieces: int = 1,
    ) -> Track | None:
        """Follow a thing through the clip, in one call or in pieces that each start where the last one ended."""
        session, box = self.session, track_start.box
        last_frame_index = self.last_frame(media) if end_frame is None else end_frame
        frames: list[int] = []
        boxes: list[UnitBox] = []
        pieces = max(min(pieces, (last_frame_index - start_frame) // 3), 1)
        borders = [round(start_frame + (last_frame_index - start_frame) * k / pieces) for k in range(pieces + 1)]
        for segment_start, segment_end in pairwise(borders):
            args: dict[str, Any] = {"box": list(box), "media": media}
            args |= {"start_frame": segment_start} if segment_start else {}
            args |= {"end_frame": segment_end} if segment_end < self.last_frame(media) else {}
            plan = "refollow" if frames else "follow"
            if not frames and self.detours.should_take("refused"):
                self._call_with_wrong_arguments(track_start.phrase, args)
                plan = "correct"
            outcome = session.call("TRK", plan, track_start.phrase, **args)
            track = next((f for f in outcome.result.footprints if isinstance(f, Track)), None) if outcome.ok else None
            if track is None:
                break
            session.cited_steps.add(outcome.step)
            new_points = [
                (f, b) for f, b in zip(track.frames, track.boxes, strict=True) if not frames or f > frames[-1]
            ]
            frames += [f for f, _ in new_points]
            boxes += [b for _, b in new_points]
            if track.frames[-1] < segment_end - 1:  # it was lost, or left the picture
                break
            box = snap_box(track.boxes[-1])
            by_motion_alone = outcome.result.output["tracks"][0]["method"] == "flow"
            if by_motion_alone and track.score < MIN_TRACK_CONFIDENCE and session.has_steps_left:
                boxes[-1], box = self._relocate(track_start.phrase, frames[-1], boxes[-1], media)
        if not frames:
            return None
        name = session.canonical_media(media)
        full_track = Track(
            media=name, label=track_start.phrase, track_id=len(session.notes), frames=tuple(frames), boxes=tuple(boxes)
        )
        session.note(full_track, outcome.step)
        session.cited_steps |= {track_start.step} if track_start.step is not None else set()
        return full_track

    def _relocate(self, phrase: str, frame: int, box: UnitBox, media: str | None) -> tuple[UnitBox, UnitBox]:
        """Find a thing that a track may have lost: the box to record, and the box to continue from."""
        best = largest_region(self.session.seg(phrase, "check", media=media, frame=frame))
        outline_box = best.mask.box_unit if best else None
        if best is None or outline_box is None:
            return box, snap_box(box)
        self.session.cited_steps.add(best.step)
        return outline_box, best.box

    def _call_with_wrong_arguments(self, phrase: str, args: dict[str, Any]) -> None:
        """A call to TRK that fails."""
        session = self.session
        kind = session.choose(("label", "swapped", "range"))
        if kind == "label":  # the detector knows no such class
            session.call("TRK", "follow", phrase, label=phrase, media=args.get("media"))
        elif kind == "swapped":
            detours.call_with_wrong_arguments(session, "TRK", phrase, "follow", **args)
        else:
            session.call("TRK", "follow", phrase, **{**args, "start_frame": OUT_OF_RANGE_FRAME})

    def sample_piece_count(self, minimum: int = 1, maximum: int = 3) -> int:
        """Draw in how many pieces to follow; more than one is a detour."""
        count = minimum
        while count < maximum and self.detours.should_take("refollow"):
            count += 1
        return count
