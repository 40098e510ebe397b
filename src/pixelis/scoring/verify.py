"""External verifiers: what one call returned, held against exact references (sec:data, runlatency).

Each tool has its own measure: IoU of regions, HOTA of tracks, ANLS of text, temporal IoU and offset, match of
attributes. They are evaluators, never tools: nothing here is shown to a policy. A call about which the references say
nothing has no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import cv2
import numpy as np

from pixelis.equations.acceptance import operator_passes
from pixelis.geometry import Box, Footprint, Mask, Span, TextSpan, Track, UnitBox
from pixelis.metrics.overlap import box_iou
from pixelis.metrics.temporal import temporal_iou
from pixelis.metrics.text import normalised_anls
from pixelis.metrics.tracking import score_tracks
from pixelis.tools.results import ToolResult

SAME_IOU = 0.5
"""A described region is the reference that it shares this much with."""
TOUCH = 0.1
"""A line of text is held against references whose box overlaps its own by this share of the smaller."""


class Known(Protocol):
    """Something that is certainly there: the world's and the importers' references fit."""

    @property
    def footprint(self) -> Footprint:
        """Where it is."""

    @property
    def properties(self) -> Mapping[str, str | int | float]:
        """What it is like, in the words of PROP."""


class Verdict(NamedTuple):
    """The check of one call."""

    passed: bool
    score: float
    """By the tool's own measure, 0 to 1."""
    metric: str
    offset_s: float = 0.0
    """TEMP: from the middle of the segment to that of the reference."""


def verify_step(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """The verdict on one call; None where it did not succeed or nothing applies."""
    if not result.ok:
        return None
    check = CHECKS.get(result.tool)
    return check(result, references) if check else None


def _verdict(tool: str, score: float, metric: str, offset_s: float = 0.0) -> Verdict:
    return Verdict(operator_passes(tool, score, offset_s=offset_s), score, metric, offset_s)


# --- regions


def _seg(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """The best IoU with something that is there, of each returned region, averaged by area: specks weigh little."""
    things = [r.footprint for r in references if r.footprint.label != "ground"]
    found = [
        (iou, f.area) for f in result.footprints if isinstance(f, Mask) if (iou := _best_iou(f, things)) is not None
    ]
    if not sum(area for _, area in found):
        return None
    return _verdict("SEG", float(np.average([iou for iou, _ in found], weights=[area for _, area in found])), "IoU")


def _best_iou(mask: Mask, things: Sequence[Footprint]) -> float | None:
    """None where the references name no region on that medium at all."""
    box = mask.box_unit
    best: float | None = None
    for thing in things:
        if thing.media != mask.media or isinstance(thing, Span | TextSpan):
            continue
        best = best or 0.0
        other = thing.at(mask.frame) if isinstance(thing, Track) else thing.box_unit
        if box is None or other is None or (not isinstance(thing, Track) and thing.frame != mask.frame):
            continue
        if _shared(box, other) > 0.0:
            best = max(best, region_overlap(mask, thing) if isinstance(thing, Mask) else box_iou(box, other))
    return best


def region_overlap(a: Mask, b: Mask) -> float:
    """IoU of two masks of one frame, on the coarser of their grids."""
    if a.width * a.height < b.width * b.height:
        a, b = b, a
    first, second = a.array, b.array
    if first.shape != second.shape:
        size = (second.shape[1], second.shape[0])
        first = cv2.resize(a.array.astype(np.float32), size, interpolation=cv2.INTER_AREA) >= 0.5
    union = int(np.count_nonzero(first | second))
    return float(np.count_nonzero(first & second) / union) if union else 1.0


def _shared(a: UnitBox, b: UnitBox) -> float:
    """Area that two boxes share."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)


def _area(box: UnitBox) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _zoom(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """The largest share of something that is there which the crop shows.

    The paper checks SEG and ZOOM by one IoU; a crop is wider than what it is for, so that a share takes its place.
    It may hold anything known, not the evidence alone: a moment is found by a thing that is no part of the answer.
    """
    view = result.view
    if view is None:
        return None
    held: list[float] = []
    for known in references:
        box = _box_on(known.footprint, view.media, view.frame)
        if box is not None and known.footprint.label != "ground":
            held.append(_shared(box, view.box) / max(_area(box), 1e-12))
    return _verdict("ZOOM", max(held), "share of a thing in view") if held else None


def _box_on(footprint: Footprint, media: str, frame: int) -> UnitBox | None:
    """Where a footprint lies on a frame; text stays where it stands, a track is taken on its nearest frame."""
    if footprint.media != media or isinstance(footprint, Span):
        return None
    if isinstance(footprint, Track):
        nearest = min(range(len(footprint.frames)), key=lambda k: abs(footprint.frames[k] - frame))
        return footprint.boxes[nearest]
    return footprint.box_unit


# --- tracks


def _trk(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """HOTA over the frames that the call looked at: one track against the thing it began on, several against all."""
    gold = [r.footprint for r in references if isinstance(r.footprint, Track)]
    found = [f for f in result.footprints if isinstance(f, Track)]
    media = {f.media for f in found}
    gold = [g for g in gold if g.media in media]
    if not gold or not found:
        return None
    if len(found) == 1:
        gold = [max(gold, key=lambda g: _first_overlap(g, found[0]))]
    looked = _frames_of(result)
    cut = [c for k, g in enumerate(gold) if (c := _on_frames(g, looked, k)) is not None]
    if not cut:
        return None
    seen = [f.model_copy(update={"track_id": k}) for k, f in enumerate(found)]
    return _verdict("TRK", score_tracks(cut, seen).hota, "HOTA")


def _first_overlap(gold: Track, found: Track) -> float:
    """IoU on the first frames of a track on which both were seen."""
    common = [k for k, frame in enumerate(found.frames) if gold.at(frame) is not None][:3]
    return float(np.mean([box_iou(gold.at(found.frames[k]) or (0, 0, 0, 0), found.boxes[k]) for k in common] or [-1.0]))


def _frames_of(result: ToolResult) -> set[int]:
    output = result.output
    start, end, stride = int(output["start_frame"]), int(output["end_frame"]), int(output["stride"])
    return {*range(start, end + 1, stride), end}


def _on_frames(track: Track, frames: set[int], track_id: int) -> Track | None:
    kept = [(f, b) for f, b in zip(track.frames, track.boxes, strict=True) if f in frames]
    if not kept:
        return None
    return track.model_copy(
        update={"track_id": track_id, "frames": tuple(f for f, _ in kept), "boxes": tuple(b for _, b in kept)}
    )


# --- text


def _ocr(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """ANLS of each line with the text that stands there, averaged by letters; what stands nowhere counts 0."""
    texts = [r.footprint for r in references if isinstance(r.footprint, TextSpan)]
    lines = [f for f in result.footprints if isinstance(f, TextSpan)]
    if not texts or not lines or not any(t.media == lines[0].media for t in texts):
        return None
    scores, letters = [], []
    for line in lines:
        there = [t.text for t in texts if t.media == line.media and _touch(line.box_unit, t.box_unit)]
        scores.append(max((_similar(line.text, t) for t in there), default=0.0))
        letters.append(max(len(line.text), 1))
    return _verdict("OCR", float(np.average(scores, weights=letters)), "ANLS")


def _similar(read: str, text: str) -> float:
    """ANLS; a line of several that were written apart is compared with the part it holds."""
    whole = normalised_anls(read, [text])
    if whole >= 0.85 or len(read) >= len(text):
        return whole
    words = text.split()
    parts = [" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    return max([whole, *(normalised_anls(read, [part]) for part in parts)])


def _touch(a: UnitBox, b: UnitBox) -> bool:
    return _shared(a, b) >= TOUCH * min(_area(a), _area(b))


# --- time


def _temp(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """Temporal IoU of the best segment with the reference that it overlaps most; frames by time have no verdict."""
    first = next((f for f in result.footprints if isinstance(f, Span)), None)
    if first is None or result.output.get("frames"):
        return None
    gold = [r.footprint for r in references if isinstance(r.footprint, Span) and r.footprint.media == first.media]
    if not gold:
        return None
    best = max(gold, key=lambda g: (_tiou(first, g), -_offset(first, g)))
    return _verdict("TEMP", _tiou(first, best), "tIoU", _offset(first, best))


def _tiou(a: Span, b: Span) -> float:
    return temporal_iou((a.start_s, a.end_s), (b.start_s, b.end_s))


def _offset(a: Span, b: Span) -> float:
    return abs((a.start_s + a.end_s) - (b.start_s + b.end_s)) / 2


# --- properties


def _prop(result: ToolResult, references: Sequence[Known]) -> Verdict | None:
    """Share of the attributes, among those that the reference states in words, that PROP named as it does."""
    if not result.footprints:
        return None
    thing = _described(result.footprints[0], references)
    if thing is None:
        return None
    said = {name: str(found["value"]) for name, found in result.output["properties"].items()}
    both = [name for name in said if isinstance(thing.properties.get(name), str)]
    if not both:
        return None
    right = [str(thing.properties[name]) in said[name].split(" and ") for name in both]
    return _verdict("PROP", float(np.mean(right)), "attribute match")


def _described(footprint: Footprint, references: Sequence[Known]) -> Known | None:
    """The reference that a described region is."""
    best: tuple[float, Known] | None = None
    for known in references:
        overlap = _same_place(footprint, known.footprint)
        if overlap >= SAME_IOU and (best is None or overlap > best[0]):
            best = (overlap, known)
    return best[1] if best else None


def _same_place(a: Footprint, b: Footprint) -> float:
    if a.media != b.media or isinstance(a, Span) or isinstance(b, Span):
        return 0.0
    if isinstance(a, Track) and isinstance(b, Track):
        return _first_overlap(b, a)
    frame = a.frames[len(a.frames) // 2] if isinstance(a, Track) else a.frame
    first = a.at(frame) if isinstance(a, Track) else a.box_unit
    second = b.at(frame) if isinstance(b, Track) else b.box_unit
    if first is None or second is None or (isinstance(b, Box | Mask) and b.frame != frame):
        return 0.0
    return box_iou(first, second)


CHECKS = {"SEG": _seg, "ZOOM": _zoom, "TRK": _trk, "OCR": _ocr, "TEMP": _temp, "PROP": _prop}
