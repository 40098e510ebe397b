"""TEMP (also TEMPORAL): when something happens in a clip, and frames by time.

No image–text model is to be had in a package registry, so a query is answered by what its words name: the detector's
classes, colours and shapes, text on screen, light, motion, cuts, and ImageNet's words in MiniLM's space for the rest.
What was used and what was missing is part of the answer.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from PIL import Image as Pil
from pydantic import Field, model_validator

from pixelis.errors import MediaError, ToolError
from pixelis.geometry import Mask, Score, Size, Span, UnitBox, Value, rounded
from pixelis.media import ViewRecipe
from pixelis.media.medium import Frame
from pixelis.media.query import resample
from pixelis.tools.backends import regions, signals, windows
from pixelis.tools.backends.nanodet import COCO_NAMES, Detection
from pixelis.tools.backends.signals import DETECTION_FLOOR, LEAST_SPEED, Models, certainty, detections, same_thing
from pixelis.tools.backends.windows import Curve, Sights, Wish
from pixelis.tools.base import Observation, Scene, Tool, ToolArgs
from pixelis.tools.results import Blob, ToolIdentity

FINE_FPS = 8.0
"""Small pictures are looked at with at most this rate."""
COARSE_FPS = 2.0
"""Detector, reader and ImageNet look with about this rate, and between two looks that differ."""
READ_FRAMES = 8
"""Frames that are read at most: reading a frame costs as much as ten detections."""
ALIKE = 0.6
"""A word means a class of the detector from this cosine on."""
VIEW_SIDE = 768
WHOLE: UnitBox = (0.0, 0.0, 1.0, 1.0)


class TempArgs(ToolArgs):
    """When to look, and for what."""

    query: str | None = Field(
        default=None, min_length=1, max_length=400, description='what happens: "the dog enters", "a red car stops"'
    )
    start_s: float = Field(default=0.0, ge=0.0, description="look from here on, in seconds")
    end_s: float | None = Field(default=None, gt=0.0, description="look up to here; the end if left out")
    top_k: int = Field(default=3, ge=1, le=20, description="at most this many segments, best first")
    select_s: float | None = Field(default=None, ge=0.0, description="instead of a query: show the frame at this time")
    frames: int | None = Field(default=None, ge=1, le=16, description="instead of a query: this many frames, evenly")

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if sum(way is not None for way in (self.query, self.select_s, self.frames)) != 1:
            raise ValueError("give one of query, select_s and frames")
        if self.query is not None and not self.query.strip():
            raise ValueError("the query is blank")
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"the window ends ({self.end_s:g} s) before it starts ({self.start_s:g} s)")
        return self


class Segment(Value):
    """A stretch of the clip."""

    start_s: float
    end_s: float
    score: Score


class SignalUsed(Value):
    """One kind of evidence and its share in the decision."""

    name: str
    weight: Score


class TempOutput(Value):
    """Segments with what they rest on, or the frames that were selected."""

    segments: tuple[Segment, ...]
    signals: tuple[SignalUsed, ...] = ()
    missing: tuple[str, ...] = ()
    """Evidence that the query calls for and this machine cannot give, or words that nothing here understands."""
    frames: tuple[int, ...] = ()
    """Frames that were selected by time."""
    frames_looked_at: int = 0
    sampled_fps: float = 0.0


class Temp(Tool[TempArgs]):
    """Temporal grounding: curves for what the query names, windows over them, NMS."""

    name = "TEMP"
    summary = "Find when something happens in a clip (segments with scores), or show frames by time."
    Args = TempArgs
    Output = TempOutput
    version = "2"
    decisive_confidence = 0.4

    def __init__(self) -> None:
        self._models = Models()

    def identity(self) -> ToolIdentity:
        backend = "+".join(["opencv", *Models.present()])
        return ToolIdentity(tool=self.name, version=self.version, backend=backend, weights=Models.fingerprints())

    def look(self, args: TempArgs, scene: Scene) -> Observation:
        scene.require_clip("TEMP")
        end_s = min(args.end_s or scene.medium.duration_s, scene.medium.duration_s)
        if args.start_s >= end_s:
            raise MediaError(f"{args.start_s:g} s lies beyond the end of {scene.medium.describe()}")
        if args.query is None:
            return selected(args, scene, end_s)
        search = Search(args.query, scene, self._models, args.start_s, end_s)
        return search.observation(args.top_k)


def selected(args: TempArgs, scene: Scene, end_s: float) -> Observation:
    """Frames by time: one at a moment, or several evenly over the window, each in the middle of its share."""
    if args.select_s is not None:
        indices = [scene.medium.index_at(args.select_s)]
    else:
        count = args.frames or 1
        moments = args.start_s + (np.arange(count) + 0.5) * (end_s - args.start_s) / count
        indices = sorted({scene.medium.index_at(float(t)) for t in moments})
    shrink = min(1.0, VIEW_SIDE / max(scene.medium.size))
    size = Size(*(max(round(v * shrink), 1) for v in scene.medium.size))
    blobs, spans = [], []
    for index in indices:
        out = io.BytesIO()
        Pil.fromarray(resample(scene.frame(index), WHOLE, size)).save(out, format="PNG")
        blobs.append(Blob(f"frame_{index}.png", "image/png", out.getvalue()))
        time_s = rounded(scene.medium.time_of(index))
        spans.append(Span(start_s=time_s, end_s=time_s, label=f"frame {index}"))
    one = len(indices) == 1
    view = ViewRecipe(media=scene.name, frame=indices[0], box=WHOLE, width=size.width, height=size.height)
    return Observation(
        text="; ".join(f"frame {i} at {span.start_s:.2f} s" for i, span in zip(indices, spans, strict=True)),
        output=TempOutput(
            segments=tuple(Segment(start_s=s.start_s, end_s=s.end_s, score=1.0) for s in spans), frames=tuple(indices)
        ),
        footprints=tuple(spans),
        confidence=1.0,
        blobs=tuple(blobs),
        view=view if one else None,
    )


@dataclass
class Evidence:
    """A signal over time."""

    name: str
    weight: float
    curve: Curve


class Search:
    """One query over one stretch of a clip. Frames are visited once, in order: decoding forward is cheap."""

    def __init__(self, query: str, scene: Scene, models: Models, start_s: float, end_s: float) -> None:
        self.query, self.scene, self.models = query, scene, models
        self.start_s, self.end_s = start_s, end_s
        self.wish: Wish = windows.understand_wish(query)
        self.missing: list[str] = []
        medium, span_s = scene.medium, end_s - start_s
        wanted = min(max(round(span_s * FINE_FPS), 1), scene.limits.temp_frames)
        moments = start_s + (np.arange(wanted) + 0.5) * span_s / wanted
        self.indices = sorted({medium.index_at(float(t)) for t in moments})
        self.times_s: Curve = np.array([medium.time_of(i) for i in self.indices])
        self.fps = len(self.indices) / span_s
        every = max(round(self.fps / COARSE_FPS / (2 if self.wish.jump else 1)), 1)  # a jump is over in half a second
        self.coarse = sorted({*range(0, len(self.indices), every), len(self.indices) - 1})
        self.classes = self._classes()
        self.sights: dict[str, Sights] = {name: {} for name in self.classes or self._drawn()}
        self.detected: dict[int, list[Detection]] = {}
        self.thumbs: list[Frame] = []
        self.read: dict[int, str] = {}
        self.last_read: int | None = None
        self.words: dict[int, float] = {}
        self._visit()

    def _classes(self) -> tuple[str, ...]:
        """The detector's classes that the query names, or that a word of it is near to in MiniLM's space."""
        named = self.wish.phrase.classes
        if self.models.detector is None:
            if named:
                self.missing.append(f"the detector, for {' and '.join(named)} (pixelis models pull nanodet)")
            return ()
        if named or self.wish.phrase.shape or self.wish.quoted or self.models.text is None:
            return named
        near = [max((self.models.likeness(word, name), name) for name in COCO_NAMES) for word in self.wish.rest[:6]]
        return tuple(dict.fromkeys(name for likeness, name in near if likeness >= ALIKE))

    def _drawn(self) -> tuple[str, ...]:
        """A drawn thing by its colour and shape."""
        phrase = self.wish.phrase
        return (" ".join([*phrase.colours, phrase.shape]),) if phrase.shape else ()

    def _visit(self) -> None:
        """Small pictures of all sampled frames; what the query names is looked for on every few of them."""
        before: int | None = None
        reads = self.wish.reads and self.models.reader is not None
        compares = bool(self.wish.rest) and self.models.visual is not None and self.models.text is not None
        for k, index in enumerate(self.indices):
            self.thumbs.append(signals.thumbnail(self.scene, index))
            if k not in self.coarse:
                continue
            for name in self.sights:
                self._see(name, k)
                if before is not None:
                    self._between(name, before, k)
            before = k
            if reads:
                self._read(k)
            if compares:
                self.words[k] = self._likeness(index)

    def _see(self, name: str, k: int) -> float:
        """Certainty that the thing (as many of it as asked for) is on sampled frame `k`."""
        if k not in self.sights[name]:
            self.sights[name][k] = self._detected_on(name, k) if self.classes else self._drawn_on(k)
        seen = self.sights[name][k]
        least = self.wish.least if name == next(iter(self.sights)) else 1
        return seen[least - 1][0] if len(seen) >= least else 0.0

    def _between(self, name: str, before: int, after: int) -> None:
        """Where two looks differ, the time between is halved until neighbours are known; its frames are still kept."""
        while after - before > 1 and abs(self._see(name, before) - self._see(name, after)) > 0.4:
            middle = (before + after) // 2
            first, second = (abs(self._see(name, middle) - self._see(name, k)) for k in (before, after))
            before, after = (before, middle) if first >= second else (middle, after)

    def _detected_on(self, name: str, k: int) -> list[tuple[float, UnitBox]]:
        seen: list[tuple[float, UnitBox]] = []
        if k not in self.detected:
            eye = self.models.detector
            self.detected[k] = detections(self.scene, self.indices[k], eye, threshold=DETECTION_FLOOR)
        for detection in (d for d in self.detected[k] if d.label == name):
            box = detection.box_px.to_unit(self.scene.medium.size)
            if any(same_thing(box, other) for _, other in seen):
                continue
            sure = certainty(detection.score)
            if self.wish.phrase.colours and name == self.classes[0]:
                share = max(signals.colour_share(self.thumbs[k], colour, [box]) for colour in self.wish.phrase.colours)
                sure *= min(share / 0.2, 1.0)
            seen.append((sure, box))
        return sorted(seen, reverse=True)

    def _drawn_on(self, k: int) -> list[tuple[float, UnitBox]]:
        phrase, frame = self.wish.phrase, self.scene.frame(self.indices[k])
        shrink = min(1.0, 480 / max(frame.shape[:2]))
        size = Size(max(round(frame.shape[1] * shrink), 1), max(round(frame.shape[0] * shrink), 1))
        small = resample(frame, WHOLE, size)
        if phrase.colours:
            found = regions.by_colour(small, phrase.colours, phrase.shape, 8)
        else:
            found = regions.by_contrast(small, phrase.shape, 8)
        return [(region.score, box) for region in found if (box := Mask.from_array(region.mask).box_unit)]

    def _read(self, k: int) -> None:
        """Text on a frame; a frame that looks like the one read last is not read again."""
        last = max(self.read, default=None)
        if last is not None and np.abs(self.thumbs[k].astype(np.int16) - self.thumbs[last]).mean() < 1.5:
            self.read[k] = self.read[last]
            return
        if self.last_read is not None and (k - self.last_read) * READ_FRAMES < len(self.indices):
            return
        self.last_read = k
        from pixelis.tools.ocr import OcrArgs

        assert self.models.reader is not None  # noqa: S101 - `_visit` has looked
        seen = self.models.reader.look(OcrArgs(frame=self.indices[k]), self.scene).output
        self.read[k] = str(getattr(seen, "text", ""))

    def _likeness(self, index: int) -> float:
        """How near ImageNet's words for a frame are to the words that nothing else accounts for."""
        assert self.models.visual is not None  # noqa: S101 - `_visit` has looked
        text = " ".join(self.wish.rest)
        found = signals.labels(self.scene, index, self.models.visual)
        return sum(p * max(self.models.likeness(text, name) - 0.2, 0.0) / 0.6 for name, p in found)

    def evidence(self) -> list[Evidence]:
        """The signals that the query's words call for, as far as they can be had."""
        wish, count, found = self.wish, len(self.indices), list[Evidence]()
        kind = "detector" if self.classes else "regions"
        for name, seen in self.sights.items():
            curve = windows.over_time({k: self._see(name, k) for k in seen}, count)
            found.append(Evidence(f"{kind}: {name}", 0.5, windows.without_dips(curve, round(windows.DIP_S * self.fps))))
        if wish.phrase.colours and not self.sights:
            names = wish.phrase.colours
            shares = np.array([max(signals.colour_share(t, name, []) for name in names) for t in self.thumbs])
            found.append(Evidence(f"colour: {' or '.join(names)}", 0.4, windows.scaled(shares, 0.02)))
        if wish.light:
            light = np.array([signals.brightness(t) for t in self.thumbs])
            depth = 0.45 - light if wish.light == "dark" else light - 0.55
            found.append(Evidence(f"light: {wish.light}", 0.5, np.clip(depth / 0.25, 0.0, 1.0)))
        if self.read:
            said = {k: signals.says(text, wish.quoted) for k, text in self.read.items()}
            found.append(Evidence("text on screen", 0.7, windows.over_time(said, count)))
        elif wish.reads:
            self.missing.append("the reader, for text on screen")
        if self.words and max(self.words.values()) > 0.1:
            found.append(Evidence("ImageNet's words", 0.3, windows.scaled(windows.over_time(self.words, count), 0.3)))
        elif wish.rest and not self.classes:
            self.missing.append(f"anything that knows {' '.join(wish.rest)!r}")
        return found

    def motion(self) -> Evidence:
        """How fast the first thing that is named moves (or whatever moves most), in the asked direction if any."""
        subject = next(iter(self.sights.values()), None)
        velocity = np.zeros((len(self.thumbs), 2))
        for k, (before, after) in enumerate(pairwise(self.thumbs)):
            boxes = windows.boxes_near(subject, k, self.wish.least) if subject is not None else []
            if boxes or subject is None:
                seconds = max(self.times_s[k + 1] - self.times_s[k], 1e-3)
                velocity[k] = signals.moving(signals.flow(before, after), boxes) / seconds
        if len(velocity) > 1:
            velocity[-1] = velocity[-2]
        sign = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}.get(self.wish.heading or "")
        speed = np.maximum(velocity @ sign, 0.0) if sign else np.linalg.norm(velocity, axis=1)
        speed = windows.scaled(windows.steady(speed), 3.0 * LEAST_SPEED)
        if self.wish.jump and subject is not None:
            speed = windows.together([(0.7, windows.lift(subject, len(self.indices))), (0.3, speed)])
        return Evidence(f"motion {self.wish.heading or ''}".strip(), 0.5, speed)

    def saliency(self) -> tuple[Curve, list[Evidence]]:
        """How well each sampled frame answers the query, and the signals behind it."""
        wish = self.wish
        if wish.event == "cut":
            jumps = [0.0, *(signals.change(a, b) for a, b in pairwise(self.thumbs))]
            cuts = np.clip((np.array(jumps) - 0.15) / 0.35, 0.0, 1.0)
            return np.maximum(cuts, np.roll(cuts, -1)), [Evidence("cuts", 1.0, cuts)]
        used = self.evidence()
        if wish.moving or wish.event in ("motion", "stillness"):
            moved = self.motion()
            if wish.event == "stillness":
                moved = Evidence("stillness", 0.5, 1.0 - moved.curve)
            if wish.event in ("motion", "stillness") or wish.heading or not used:
                used.append(moved)
        if not used:
            raise ToolError(f"TEMP cannot look for {self.query!r}: it lacks {'; '.join(self.missing) or 'any signal'}")
        curve = windows.together([(e.weight, e.curve) for e in used])
        if wish.event == "absence":
            curve = 1.0 - curve
        elif wish.event in ("onset", "offset"):
            curve = windows.edges(curve, self.times_s, rising=wish.event == "onset")
        return curve, used

    def observation(self, top_k: int) -> Observation:
        curve, used = self.saliency()
        found = windows.best_windows(curve, self.fps, most=top_k)
        total = sum(e.weight for e in used)
        weighed = tuple(SignalUsed(name=e.name, weight=rounded(e.weight / total)) for e in used)
        looked = f"looked at {len(self.indices)} frames ({self.fps:.1f}/s) with "
        looked += ", ".join(f"{signal.name} ({signal.weight:.2f})" for signal in weighed)
        if self.missing:
            looked += f"; without {'; '.join(self.missing)}"
        if not found:
            raise ToolError(f"TEMP saw nothing like {self.query!r} in {self.start_s:.2f}-{self.end_s:.2f} s; {looked}")
        shown = self.times_s + 0.5 * self.scene.medium.duration_s / self.scene.medium.frame_count
        borders = [self.start_s, *((shown[1:] + shown[:-1]) / 2.0), self.end_s]  # half-way between sampled frames
        segments = tuple(
            Segment(start_s=rounded(borders[w.first]), end_s=rounded(borders[w.last + 1]), score=w.score) for w in found
        )
        lines = "; ".join(f"{i}. {s.start_s:.2f}-{s.end_s:.2f} s ({s.score:.2f})" for i, s in enumerate(segments, 1))
        return Observation(
            text=f"{lines}; {looked}",
            output=TempOutput(
                segments=segments,
                signals=weighed,
                missing=tuple(self.missing),
                frames_looked_at=len(self.indices),
                sampled_fps=rounded(self.fps),
            ),
            footprints=tuple(
                Span(start_s=s.start_s, end_s=s.end_s, score=s.score, label=self.query[:80]) for s in segments
            ),
            confidence=found[0].score * self._understood(),
        )

    def _understood(self) -> float:
        """Share of the query's words that a signal stands behind, from 0.4 for none to 1 for all."""
        wish = self.wish
        known = (
            len(self.sights)
            + len(wish.phrase.colours)
            + len(wish.quoted)
            + (wish.event != "presence")
            + bool(wish.light)
        )
        open_words = 0 if self.classes and not wish.phrase.classes else len(wish.rest)
        return 0.4 + 0.6 * known / max(known + open_words, 1)
