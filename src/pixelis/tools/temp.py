"""TEMP (also TEMPORAL): when something happens in a clip, and frames by time.

No image–text model is available from a package registry, so a query is answered by what its words name: detector
classes, colours and shapes, text on screen, light, motion, cuts, and ImageNet labels in MiniLM's space for the rest.
The answer lists the signals that were used and those that were missing.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from PIL import Image as Pil
from pydantic import Field, model_validator

from pixelis.core.errors import MediaError, ToolError
from pixelis.core.geometry import FULL_FRAME, Mask, Score, Span, UnitBox, Value, round_unit
from pixelis.media import ViewRecipe
from pixelis.media.medium import Frame, frame_size
from pixelis.media.query import resample
from pixelis.tools.backends import temporal_signals as signals
from pixelis.tools.backends import temporal_windows as windows
from pixelis.tools.backends.nanodet import COCO_NAMES, Detection
from pixelis.tools.backends.temporal_signals import MIN_SPEED, PerceptionModels, certainty, detections, is_same_object
from pixelis.tools.backends.temporal_windows import Curve, ParsedQuery, Sightings
from pixelis.tools.base import Observation, Scene, Tool, ToolArgs
from pixelis.tools.results import Blob, ToolIdentity
from pixelis.tools.vision import regions

FINE_FPS = 8.0
"""Thumbnails are sampled with at most this rate."""
COARSE_FPS = 2.0
"""Detector, OCR and ImageNet labels run at about this rate, and between two samples that differ."""
MAX_OCR_FRAMES = 8
"""Maximum number of OCR frames: one costs as much as ten detections."""
MIN_WORD_SIMILARITY = 0.6
"""A word means a class of the detector from this cosine on."""
VIEW_SIDE = 768


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


class TimeSegment(Value):
    """A stretch of the clip."""

    start_s: float
    end_s: float
    score: Score


class SignalUsed(Value):
    """One kind of evidence and its share in the decision."""

    name: str
    weight: Score


class TempOutput(Value):
    """Segments with their evidence, or the selected frames."""

    segments: tuple[TimeSegment, ...]
    signals: tuple[SignalUsed, ...] = ()
    missing: tuple[str, ...] = ()
    """Evidence that the query needs and this machine lacks, or words that no signal explains."""
    frames: tuple[int, ...] = ()
    """Frames selected by time."""
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
        self._models = PerceptionModels()

    def identity(self) -> ToolIdentity:
        backend, weights = "+".join(["opencv", *PerceptionModels.available_weights()]), PerceptionModels.fingerprints()
        return ToolIdentity(tool=self.name, version=self.version, backend=backend, weights=weights)

    def look(self, args: TempArgs, scene: Scene) -> Observation:
        scene.require_clip("TEMP")
        end_s = min(args.end_s or scene.medium.duration_s, scene.medium.duration_s)
        if args.start_s >= end_s:
            raise MediaError(f"{args.start_s:g} s lies beyond the end of {scene.medium.describe()}")
        if args.query is None:
            return select_frames(args, scene, end_s)
        search = TemporalSearch(args.query, scene, self._models, args.start_s, end_s)
        return search.observation(args.top_k)


def select_frames(args: TempArgs, scene: Scene, end_s: float) -> Observation:
    """Frames by time: one at a moment, or several spread evenly over the window."""
    if args.select_s is not None:
        indices = [scene.medium.index_at(args.select_s)]
    else:
        count = args.frames or 1
        moments = args.start_s + (np.arange(count) + 0.5) * (end_s - args.start_s) / count
        indices = sorted({scene.medium.index_at(float(t)) for t in moments})
    size = scene.medium.size.scaled(min(1.0, VIEW_SIDE / max(scene.medium.size)))
    blobs, spans = [], []
    for index in indices:
        out = io.BytesIO()
        Pil.fromarray(resample(scene.frame(index), FULL_FRAME, size)).save(out, format="PNG")
        blobs.append(Blob(f"frame_{index}.png", "image/png", out.getvalue()))
        time_s = round_unit(scene.medium.time_of(index))
        spans.append(Span(start_s=time_s, end_s=time_s, label=f"frame {index}"))
    view = ViewRecipe(media=scene.name, frame=indices[0], box=FULL_FRAME, width=size.width, height=size.height)
    segments = tuple(TimeSegment(start_s=s.start_s, end_s=s.end_s, score=1.0) for s in spans)
    return Observation(
        text="; ".join(f"frame {i} at {span.start_s:.2f} s" for i, span in zip(indices, spans, strict=True)),
        output=TempOutput(segments=segments, frames=tuple(indices)),
        footprints=tuple(spans),
        confidence=1.0,
        blobs=tuple(blobs),
        view=view if len(indices) == 1 else None,
    )


@dataclass
class SignalCurve:
    """A signal over time."""

    name: str
    weight: float
    curve: Curve


class TemporalSearch:
    """One query over one part of a clip. Frames are visited once, in order: forward decoding is cheap."""

    def __init__(self, query: str, scene: Scene, models: PerceptionModels, start_s: float, end_s: float) -> None:
        self.query, self.scene, self.models = query, scene, models
        self.start_s, self.end_s = start_s, end_s
        self.parsed: ParsedQuery = windows.parse_query(query)
        self.missing: list[str] = []
        medium, span_s = scene.medium, end_s - start_s
        sample_count = min(max(round(span_s * FINE_FPS), 1), scene.limits.temp_frames)
        moments = start_s + (np.arange(sample_count) + 0.5) * span_s / sample_count
        self.indices = sorted({medium.index_at(float(t)) for t in moments})
        self.times_s: Curve = np.array([medium.time_of(i) for i in self.indices])
        self.fps = len(self.indices) / span_s
        # a jump is over in half a second
        stride = max(round(self.fps / COARSE_FPS / (2 if self.parsed.is_jump else 1)), 1)
        self.coarse_frames = sorted({*range(0, len(self.indices), stride), len(self.indices) - 1})
        self.classes = self._named_classes()
        self.sightings: dict[str, Sightings] = {name: {} for name in self.classes or self._drawn_target()}
        self.frame_detections: dict[int, list[Detection]] = {}
        self.thumbs: list[Frame] = []
        self.frame_texts: dict[int, str] = {}
        self.last_ocr_frame: int | None = None
        self.word_scores: dict[int, float] = {}
        self._visit_frames()

    def _named_classes(self) -> tuple[str, ...]:
        """The detector's classes that the query names, or that are near one of its words in MiniLM's space."""
        named = self.parsed.phrase.classes
        if self.models.detector is None:
            if named:
                self.missing.append(f"the detector, for {' and '.join(named)} (pixelis models pull nanodet)")
            return ()
        if named or self.parsed.phrase.shape or self.parsed.quotes or self.models.text is None:
            return named
        similarity, words = self.models.text_similarity, self.parsed.unexplained_words[:6]
        nearest = [max((similarity(word, name), name) for name in COCO_NAMES) for word in words]
        return tuple(dict.fromkeys(name for score, name in nearest if score >= MIN_WORD_SIMILARITY))

    def _drawn_target(self) -> tuple[str, ...]:
        """A drawn object by its colour and shape."""
        phrase = self.parsed.phrase
        return (" ".join([*phrase.colours, phrase.shape]),) if phrase.shape else ()

    def _visit_frames(self) -> None:
        """Compute thumbnails of all sampled frames, and search the coarse ones for what the query names."""
        previous: int | None = None
        uses_reader = self.parsed.needs_text and self.models.reader is not None
        uses_word_scores = self.parsed.unexplained_words and self.models.visual and self.models.text
        for k, index in enumerate(self.indices):
            self.thumbs.append(signals.thumbnail(self.scene, index))
            if k not in self.coarse_frames:
                continue
            for name in self.sightings:
                self._certainty_at(name, k)
                if previous is not None:
                    self._refine_between(name, previous, k)
            previous = k
            if uses_reader:
                self._read_text(k)
            if uses_word_scores:
                self.word_scores[k] = self._word_score(index)

    def _certainty_at(self, name: str, k: int) -> float:
        """Certainty that the object (in the number that the query asks for) is on sampled frame `k`."""
        if k not in self.sightings[name]:
            self.sightings[name][k] = self._detect_on(name, k) if self.classes else self._find_drawn_on(k)
        candidates = self.sightings[name][k]
        required = self.parsed.min_count if name == next(iter(self.sightings)) else 1
        return candidates[required - 1][0] if len(candidates) >= required else 0.0

    def _refine_between(self, name: str, before: int, after: int) -> None:
        """Where two samples differ, bisect the interval between them down to neighbouring frames."""
        while after - before > 1 and abs(self._certainty_at(name, before) - self._certainty_at(name, after)) > 0.4:
            mid = (before + after) // 2
            first, second = (abs(self._certainty_at(name, mid) - self._certainty_at(name, k)) for k in (before, after))
            before, after = (before, mid) if first >= second else (mid, after)

    def _detect_on(self, name: str, k: int) -> list[tuple[float, UnitBox]]:
        candidates: list[tuple[float, UnitBox]] = []
        phrase = self.parsed.phrase
        if k not in self.frame_detections:
            detector = self.models.detector
            self.frame_detections[k] = detections(self.scene, self.indices[k], detector)
        for detection in (d for d in self.frame_detections[k] if d.label == name):
            box = detection.box_px.to_unit(self.scene.medium.size)
            if any(is_same_object(box, other) for _, other in candidates):
                continue
            confidence = certainty(detection.score)
            if phrase.colours and name == self.classes[0]:
                share = max(signals.colour_share(self.thumbs[k], colour, [box]) for colour in phrase.colours)
                confidence *= min(share / 0.2, 1.0)
            candidates.append((confidence, box))
        return sorted(candidates, reverse=True)

    def _find_drawn_on(self, k: int) -> list[tuple[float, UnitBox]]:
        phrase, frame = self.parsed.phrase, self.scene.frame(self.indices[k])
        size = frame_size(frame)
        small = resample(frame, FULL_FRAME, size.scaled(min(1.0, 480 / max(size))))
        matches = regions.find_regions(small, phrase.colours, phrase.shape, 8)
        return [(region.score, box) for region in matches if (box := Mask.from_array(region.mask).box_unit)]

    def _read_text(self, k: int) -> None:
        """Read the text on a frame, unless it looks like the last frame that was read."""
        last = max(self.frame_texts, default=None)
        if last is not None and np.abs(self.thumbs[k].astype(np.int16) - self.thumbs[last]).mean() < 1.5:
            self.frame_texts[k] = self.frame_texts[last]
            return
        if self.last_ocr_frame is not None and (k - self.last_ocr_frame) * MAX_OCR_FRAMES < len(self.indices):
            return
        self.last_ocr_frame = k
        from pixelis.tools.ocr import OcrArgs

        assert self.models.reader is not None  # noqa: S101 - checked by _visit_frames
        output = self.models.reader.look(OcrArgs(frame=self.indices[k]), self.scene).output
        self.frame_texts[k] = str(getattr(output, "text", ""))

    def _word_score(self, index: int) -> float:
        """Similarity of a frame's ImageNet labels to the words that no other signal explains."""
        assert self.models.visual is not None  # noqa: S101 - checked by _visit_frames
        text = " ".join(self.parsed.unexplained_words)
        class_scores = signals.imagenet_labels(self.scene, index, self.models.visual)
        return sum(p * max(self.models.text_similarity(text, name) - 0.2, 0.0) / 0.6 for name, p in class_scores)

    def collect_signals(self) -> list[SignalCurve]:
        """The signals that the query's words need, as far as they are available."""
        parsed, count, curves = self.parsed, len(self.indices), list[SignalCurve]()
        kind = "detector" if self.classes else "regions"
        for name, candidates in self.sightings.items():
            curve = windows.interpolate_curve({k: self._certainty_at(name, k) for k in candidates}, count)
            curve = windows.fill_dips(curve, round(windows.DIP_S * self.fps))
            curves.append(SignalCurve(f"{kind}: {name}", 0.5, curve))
        if parsed.phrase.colours and not self.sightings:
            names = parsed.phrase.colours
            shares = np.array([max(signals.colour_share(t, name, []) for name in names) for t in self.thumbs])
            curves.append(SignalCurve(f"colour: {' or '.join(names)}", 0.4, windows.normalise_curve(shares, 0.02)))
        if parsed.light:
            light = np.array([signals.brightness(t) for t in self.thumbs])
            depth = 0.45 - light if parsed.light == "dark" else light - 0.55
            curves.append(SignalCurve(f"light: {parsed.light}", 0.5, np.clip(depth / 0.25, 0.0, 1.0)))
        if self.frame_texts:
            text_scores = {k: signals.text_match_score(text, parsed.quotes) for k, text in self.frame_texts.items()}
            curves.append(SignalCurve("text on screen", 0.7, windows.interpolate_curve(text_scores, count)))
        elif parsed.needs_text:
            self.missing.append("the reader, for text on screen")
        if self.word_scores and max(self.word_scores.values()) > 0.1:
            similarities = windows.interpolate_curve(self.word_scores, count)
            curves.append(SignalCurve("ImageNet's words", 0.3, windows.normalise_curve(similarities, 0.3)))
        elif parsed.unexplained_words and not self.classes:
            self.missing.append(f"anything that knows {' '.join(parsed.unexplained_words)!r}")
        return curves

    def motion_signal(self) -> SignalCurve:
        """How fast the first thing that is named moves (or whatever moves most), in the asked direction if any."""
        subject = next(iter(self.sightings.values()), None)
        velocity = np.zeros((len(self.thumbs), 2))
        for k, (before, after) in enumerate(pairwise(self.thumbs)):
            boxes = windows.boxes_near(subject, k, self.parsed.min_count) if subject is not None else []
            if boxes or subject is None:
                seconds = max(self.times_s[k + 1] - self.times_s[k], 1e-3)
                velocity[k] = signals.subject_motion(signals.relative_flow(before, after), boxes) / seconds
        if len(velocity) > 1:
            velocity[-1] = velocity[-2]
        sign = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}.get(self.parsed.heading or "")
        speed = np.maximum(velocity @ sign, 0.0) if sign else np.linalg.norm(velocity, axis=1)
        speed = windows.normalise_curve(windows.median_filter(speed), 3.0 * MIN_SPEED)
        if self.parsed.is_jump and subject is not None:
            speed = windows.combine_curves([(0.7, windows.elevation_curve(subject, len(self.indices))), (0.3, speed)])
        return SignalCurve(f"motion {self.parsed.heading or ''}".strip(), 0.5, speed)

    def saliency(self) -> tuple[Curve, list[SignalCurve]]:
        """How well each sampled frame answers the query, and the signals behind it."""
        parsed = self.parsed
        if parsed.event == "cut":
            jumps = [0.0, *(signals.histogram_change(a, b) for a, b in pairwise(self.thumbs))]
            cuts = np.clip((np.array(jumps) - 0.15) / 0.35, 0.0, 1.0)
            return np.maximum(cuts, np.roll(cuts, -1)), [SignalCurve("cuts", 1.0, cuts)]
        signal_curves = self.collect_signals()
        if parsed.involves_motion or parsed.event in ("motion", "stillness"):
            motion_curve = self.motion_signal()
            if parsed.event == "stillness":
                motion_curve = SignalCurve("stillness", 0.5, 1.0 - motion_curve.curve)
            if parsed.event in ("motion", "stillness") or parsed.heading or not signal_curves:
                signal_curves.append(motion_curve)
        if not signal_curves:
            raise ToolError(f"TEMP cannot look for {self.query!r}: it lacks {'; '.join(self.missing) or 'any signal'}")
        curve = windows.combine_curves([(e.weight, e.curve) for e in signal_curves])
        if parsed.event == "absence":
            curve = 1.0 - curve
        elif parsed.event in ("onset", "offset"):
            curve = windows.edge_curve(curve, self.times_s, rising=parsed.event == "onset")
        return curve, signal_curves

    def observation(self, top_k: int) -> Observation:
        curve, signal_curves = self.saliency()
        best = windows.best_windows(curve, self.fps, max_count=top_k)
        total = sum(e.weight for e in signal_curves)
        signal_shares = tuple(SignalUsed(name=e.name, weight=round_unit(e.weight / total)) for e in signal_curves)
        summary = f"looked at {len(self.indices)} frames ({self.fps:.1f}/s) with "
        summary += ", ".join(f"{signal.name} ({signal.weight:.2f})" for signal in signal_shares)
        if self.missing:
            summary += f"; without {'; '.join(self.missing)}"
        if not best:
            raise ToolError(f"TEMP saw nothing like {self.query!r} in {self.start_s:.2f}-{self.end_s:.2f} s; {summary}")
        display_times_s = self.times_s + 0.5 * self.scene.medium.duration_s / self.scene.medium.frame_count
        # halfway between sampled frames
        borders = [self.start_s, *((display_times_s[1:] + display_times_s[:-1]) / 2.0), self.end_s]
        segments = tuple(
            TimeSegment(start_s=round_unit(borders[w.first]), end_s=round_unit(borders[w.last + 1]), score=w.score)
            for w in best
        )
        lines = "; ".join(f"{i}. {s.start_s:.2f}-{s.end_s:.2f} s ({s.score:.2f})" for i, s in enumerate(segments, 1))
        return Observation(
            text=f"{lines}; {summary}",
            output=TempOutput(
                segments=segments,
                signals=signal_shares,
                missing=tuple(self.missing),
                frames_looked_at=len(self.indices),
                sampled_fps=round_unit(self.fps),
            ),
            footprints=tuple(
                Span(start_s=s.start_s, end_s=s.end_s, score=s.score, label=self.query[:80]) for s in segments
            ),
            confidence=best[0].score * self._understood_share(),
        )

    def _understood_share(self) -> float:
        """Share of the query's words that a signal explains, from 0.4 for none to 1 for all."""
        parsed = self.parsed
        things = len(self.sightings) + len(parsed.phrase.colours) + len(parsed.quotes)
        understood = things + (parsed.event != "presence") + bool(parsed.light)
        unexplained = 0 if self.classes and not parsed.phrase.classes else len(parsed.unexplained_words)
        return 0.4 + 0.6 * understood / max(understood + unexplained, 1)
