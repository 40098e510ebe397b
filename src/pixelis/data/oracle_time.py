"""What the oracle can do about clips: find moments, look at frames, follow things; with their ways round."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from pixelis.data import detours
from pixelis.data.oracle_acts import Hands
from pixelis.data.oracle_session import Found, Seen, as_read, colour_of
from pixelis.geometry import Span, Track, UnitBox
from pixelis.world.vocabulary import with_article

APPEARS = ("the {x} appears", "{x} appears", "the {x} enters", "a {x} appears")
ENDLESS = 10_000
SURE_TRACK = 0.9
"""Where a track by motion alone is less certain, SEG looks whether the thing is really at its end."""


class Start(NamedTuple):
    """What to follow."""

    phrase: str
    box: UnitBox
    step: int | None
    """The step that outlined it; None where it was pointed at."""


class Watch(Hands):
    """Acts on a session about clips."""

    def medium(self, media: str | None) -> Any:
        return self.s.media.source(self.s.name(media))

    def last_frame(self, media: str | None = None) -> int:
        return int(self.medium(media).frame_count) - 1

    def frame_at(self, seconds: float, media: str | None = None) -> int:
        """The frame on screen at a moment, within the clip."""
        clip = self.medium(media)
        return int(min(clip.index_at(min(max(seconds, 0.0), clip.duration_s)), clip.frame_count - 1))

    def overview(self, media: str | None = None) -> None:
        """Some frames of the clip before anything else."""
        if self.detours.take("sample"):
            self.s.call("TEMP", "sample", frames=int(self.s.choose((2, 3, 3, 4))), media=media)

    # --- moments

    def when(self, query: str, *, media: str | None = None, **more: Any) -> tuple[list[Span], Seen]:
        """The stretches of time in which something happens, best first."""
        s, plan = self.s, "when"
        if self.detours.take("refused"):
            wrong: dict[str, Any] = {"query": query, "media": media, **more}
            wrong |= s.choose(({"frames": 4}, {"start_s": 9.0, "end_s": 2.0}, {"media": "Video_5"}))
            s.call("TEMP", plan, query, **wrong)
            plan = "correct"
        seen = s.call("TEMP", plan, query, query=query, media=media, **more)
        return ([f for f in seen.result.footprints if isinstance(f, Span)] if seen.ok else []), seen

    def appears(self, phrase: str, *, most: int = 1, media: str | None = None) -> list[Span]:
        """When something comes into the picture, noted under `… appears`; in other words where the first fail."""
        s = self.s
        wording = with_article(str(s.choose(APPEARS)).format(x=phrase))
        # What cannot be seen to come may be seen to be there, or at least its colour.
        for query in (wording, f"the {phrase}", f"something {colour_of(phrase)}"):
            spans, seen = self.when(query, media=media, top_k=most)
            if spans:
                for span in spans:
                    s.note(span.model_copy(update={"label": f"{phrase} appears"}), seen.step)
                return spans
        return []

    def shown(self, span: Span) -> float:
        """A moment in which what came during a span is there: just before its end, or the end that was printed."""
        return round(span.end_s, 2) if self.s.plain else span.end_s - 0.1

    def moments(self, span: Span) -> tuple[float, float]:
        """Moments of a span at which to look: inside it, or at the ends that were printed."""
        if self.s.plain:
            return round(span.start_s, 2), round(span.end_s, 2)
        return (span.start_s + span.end_s) / 2, span.end_s - 0.5

    def show(self, seconds: float, media: str | None = None) -> Seen:
        """The frame at a moment, as a view."""
        return self.s.call("TEMP", "show", f"{seconds:.2f} s", select_s=round(seconds, 2), media=media)

    # --- following

    def start(self, phrase: str, *, frame: int = 0, media: str | None = None) -> Start | None:
        """Something on a frame, to follow it from there: outlined by SEG, or pointed at by eye."""
        if self.detours.take("point", 0):
            for box in self.glimpses(phrase, media, frame, loose=0.01):
                return Start(phrase, box, None)
        found = self.at(phrase, frame=frame, media=media)
        return Start(phrase, as_read(found.mask.box_unit or found.box), found.step) if found else None

    def at(self, phrase: str, *, frame: int, media: str | None = None) -> Found | None:
        """The largest region of a phrase on a frame."""
        return max(self.find(phrase, media=media, frame=frame), key=lambda f: f.mask.area, default=None)

    def follow(
        self, begin: Start, *, media: str | None = None, start: int = 0, end: int | None = None, pieces: int = 1
    ) -> Track | None:
        """A thing through the clip, in one go or piece by piece, each from where the one before ended."""
        s, box = self.s, begin.box
        last = self.last_frame(media) if end is None else end
        frames: list[int] = []
        boxes: list[UnitBox] = []
        pieces = max(min(pieces, (last - start) // 3), 1)
        borders = [round(start + (last - start) * k / pieces) for k in range(pieces + 1)]
        for first, to in pairwise(borders):
            args: dict[str, Any] = {"box": list(box), "media": media}
            args |= {"start_frame": first} if first else {}
            args |= {"end_frame": to} if to < self.last_frame(media) else {}
            plan = "refollow" if frames else "follow"
            if not frames and self.detours.take("refused"):
                self._refused(begin.phrase, args)
                plan = "correct"
            seen = s.call("TRK", plan, begin.phrase, **args)
            track = next((f for f in seen.result.footprints if isinstance(f, Track)), None) if seen.ok else None
            if track is None:
                break
            s.cited.add(seen.step)
            new = [(f, b) for f, b in zip(track.frames, track.boxes, strict=True) if not frames or f > frames[-1]]
            frames += [f for f, _ in new]
            boxes += [b for _, b in new]
            if track.frames[-1] < to - 1:  # it was lost, or has left
                break
            box = as_read(track.boxes[-1])
            by_motion_alone = seen.result.output["tracks"][0]["method"] == "flow"
            if by_motion_alone and track.score < SURE_TRACK and s.has_room:
                boxes[-1], box = self._found_again(begin.phrase, frames[-1], boxes[-1], media)
        if not frames:
            return None
        name = s.name(media)
        whole = Track(media=name, label=begin.phrase, track_id=len(s.notes), frames=tuple(frames), boxes=tuple(boxes))
        s.note(whole, seen.step)
        s.cited |= {begin.step} if begin.step is not None else set()
        return whole

    def _found_again(self, phrase: str, frame: int, box: UnitBox, media: str | None) -> tuple[UnitBox, UnitBox]:
        """Where a thing is that may have been lost on the way: the box to keep, and the one to go on from."""
        found = self.s.seg(phrase, "check", media=media, frame=frame)
        best = max(found, key=lambda f: f.mask.area, default=None)
        outlined = best.mask.box_unit if best else None
        if best is None or outlined is None:
            return box, as_read(box)
        self.s.cited.add(best.step)
        return outlined, best.box

    def _refused(self, phrase: str, args: dict[str, Any]) -> None:
        """A call to TRK that cannot work."""
        s = self.s
        way = s.choose(("label", "swapped", "range"))
        if way == "label":  # the detector knows no such class
            s.call("TRK", "follow", phrase, label=phrase, media=args.get("media"))
        elif way == "swapped":
            detours.refused(s, "TRK", phrase, "follow", **args)
        else:
            s.call("TRK", "follow", phrase, **{**args, "start_frame": ENDLESS})

    def pieces(self, least: int = 1, most: int = 3) -> int:
        """In how many pieces to follow: more than one is a detour."""
        count = least
        while count < most and self.detours.take("refollow"):
            count += 1
        return count
