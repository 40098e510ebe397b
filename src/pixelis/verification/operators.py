"""External verifiers: compare the result of one call with exact references (sec:data, runlatency).

Each tool has its own measure: IoU of regions, HOTA of tracks, ANLS of text, temporal IoU and offset, match of
attributes. They are evaluators, never tools: a policy sees none of it. A call without a matching reference has no
verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import cv2
import numpy as np

from pixelis.core.geometry import Box, Footprint, Mask, Span, TextSpan, Track, UnitBox
from pixelis.equations.acceptance import operator_passes
from pixelis.metrics.overlap import box_iou
from pixelis.metrics.temporal import temporal_iou
from pixelis.metrics.text import normalised_anls
from pixelis.tools.results import ToolResult

SAME_IOU = 0.5
"""IoU from which a described region is a reference."""
MIN_TEXT_OVERLAP = 0.1
"""A line is compared with references whose box overlaps its own by this share of the smaller box."""


class VerifierReference(Protocol):
    """Something that is certainly there: a reference of the world or of an importer."""

    @property
    def footprint(self) -> Footprint:
        """Where it is."""

    @property
    def properties(self) -> Mapping[str, str | int | float]:
        """Its properties, in the words of PROP."""


class Verdict(NamedTuple):
    """The check of one call."""

    passed: bool
    score: float
    """By the tool's own measure, 0 to 1."""
    metric: str
    offset_s: float = 0.0
    """TEMP: between the centres of segment and reference."""


def verify_step(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """The verdict on one call; None if it failed or nothing applies."""
    if not result.ok:
        return None
    check = CHECKS.get(result.tool)
    return check(result, references) if check else None


def _verdict(tool: str, score: float, metric: str, offset_s: float = 0.0) -> Verdict:
    return Verdict(operator_passes(tool, score, offset_s=offset_s), score, metric, offset_s)


# --- regions


def _verify_seg(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """The best IoU of each region with a reference, averaged by area, so that specks weigh little."""
    things = [r.footprint for r in references if r.footprint.label != "ground"]
    masks = [f for f in result.footprints if isinstance(f, Mask)]
    scores = [(iou, mask.area) for mask in masks if (iou := _best_iou(mask, things)) is not None]
    if not sum(area for _, area in scores):
        return None
    ious, areas = zip(*scores, strict=True)
    return _verdict("SEG", float(np.average(ious, weights=areas)), "IoU")


def _best_iou(mask: Mask, things: Sequence[Footprint]) -> float | None:
    """The best IoU with a reference; None if none lies on that medium."""
    box = mask.box_unit
    best: float | None = None
    for thing in things:
        if thing.media != mask.media or isinstance(thing, Span | TextSpan):
            continue
        best = best or 0.0
        thing_box = thing.box_at(mask.frame) if isinstance(thing, Track) else thing.box_unit
        if box is None or thing_box is None or (not isinstance(thing, Track) and thing.frame != mask.frame):
            continue
        if _intersection_area(box, thing_box) > 0.0:
            best = max(best, region_overlap(mask, thing) if isinstance(thing, Mask) else box_iou(box, thing_box))
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


def _intersection_area(a: UnitBox, b: UnitBox) -> float:
    """Area that two boxes share."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)


def _area(box: UnitBox) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _verify_zoom(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """The largest share of a reference that the crop shows.

    The paper checks SEG and ZOOM by one IoU, but a crop is wider than its subject. Any reference counts, not only the
    evidence: a moment may be found by a thing that is not part of the answer.
    """
    view = result.view
    if view is None:
        return None
    things = [r.footprint for r in references if r.footprint.label != "ground"]
    boxes = [box for thing in things if (box := _box_on(thing, view.media, view.frame)) is not None]
    shares = [_intersection_area(box, view.box) / max(_area(box), 1e-12) for box in boxes]
    return _verdict("ZOOM", max(shares), "share of a thing in view") if shares else None


def _box_on(footprint: Footprint, media: str, frame: int) -> UnitBox | None:
    """The box of a footprint on a frame: text does not move, and a track has its nearest frame."""
    if footprint.media != media or isinstance(footprint, Span):
        return None
    if isinstance(footprint, Track):
        nearest = min(range(len(footprint.frames)), key=lambda k: abs(footprint.frames[k] - frame))
        return footprint.boxes[nearest]
    return footprint.box_unit


# --- tracks


def _verify_trk(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """HOTA over the frames of the call: one track against the thing it began on, several against all."""
    gold = [r.footprint for r in references if isinstance(r.footprint, Track)]
    predicted = [f for f in result.footprints if isinstance(f, Track)]
    media = {f.media for f in predicted}
    gold = [g for g in gold if g.media in media]
    if not gold or not predicted:
        return None
    if len(predicted) == 1:
        gold = [max(gold, key=lambda g: _first_overlap(g, predicted[0]))]
    frames = _sampled_frames(result)
    gold_tracks = [c for k, g in enumerate(gold) if (c := _restrict_track(g, frames, k)) is not None]
    if not gold_tracks:
        return None
    numbered = [f.model_copy(update={"track_id": k}) for k, f in enumerate(predicted)]
    from pixelis.metrics.tracking import score_tracks

    return _verdict("TRK", score_tracks(gold_tracks, numbered).hota, "HOTA")


def _first_overlap(gold: Track, predicted: Track) -> float:
    """Mean IoU on the first frames that both tracks have."""
    pairs = [(gold.box_at(frame), box) for frame, box in zip(predicted.frames, predicted.boxes, strict=True)]
    return float(np.mean([box_iou(g, p) for g, p in pairs if g is not None][:3] or [-1.0]))


def _sampled_frames(result: ToolResult) -> set[int]:
    output = result.output
    start, end, stride = int(output["start_frame"]), int(output["end_frame"]), int(output["stride"])
    return {*range(start, end + 1, stride), end}


def _restrict_track(track: Track, frames: set[int], track_id: int) -> Track | None:
    pairs = [(f, b) for f, b in zip(track.frames, track.boxes, strict=True) if f in frames]
    if not pairs:
        return None
    kept_frames, boxes = zip(*pairs, strict=True)
    return track.model_copy(update={"track_id": track_id, "frames": kept_frames, "boxes": boxes})


# --- text


def _verify_ocr(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """ANLS of each line with the text at its place, averaged by letters; 0 for a line without one."""
    texts = [r.footprint for r in references if isinstance(r.footprint, TextSpan)]
    lines = [f for f in result.footprints if isinstance(f, TextSpan)]
    if not texts or not lines or not any(t.media == lines[0].media for t in texts):
        return None
    scores, lengths = [], []
    for line in lines:
        nearby_texts = [t.text for t in texts if t.media == line.media and _boxes_touch(line.box_unit, t.box_unit)]
        scores.append(max((_text_similarity(line.text, t) for t in nearby_texts), default=0.0))
        lengths.append(max(len(line.text), 1))
    return _verdict("OCR", float(np.average(scores, weights=lengths)), "ANLS")


def _text_similarity(predicted: str, text: str) -> float:
    """ANLS; a part of a longer line is compared with that part."""
    whole_score = normalised_anls(predicted, [text])
    if whole_score >= 0.85 or len(predicted) >= len(text):
        return whole_score
    words = text.split()
    parts = [" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    return max([whole_score, *(normalised_anls(predicted, [part]) for part in parts)])


def _boxes_touch(a: UnitBox, b: UnitBox) -> bool:
    return _intersection_area(a, b) >= MIN_TEXT_OVERLAP * min(_area(a), _area(b))


# --- time


def _verify_temp(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """Temporal IoU of the best segment with the reference that it overlaps most; none for frames by time."""
    first = next((f for f in result.footprints if isinstance(f, Span)), None)
    if first is None or result.output.get("frames"):
        return None
    gold = [r.footprint for r in references if isinstance(r.footprint, Span) and r.footprint.media == first.media]
    if not gold:
        return None
    best = max(gold, key=lambda g: (_segment_iou(first, g), -_centre_offset(first, g)))
    return _verdict("TEMP", _segment_iou(first, best), "tIoU", _centre_offset(first, best))


def _segment_iou(a: Span, b: Span) -> float:
    return temporal_iou((a.start_s, a.end_s), (b.start_s, b.end_s))


def _centre_offset(a: Span, b: Span) -> float:
    return abs((a.start_s + a.end_s) - (b.start_s + b.end_s)) / 2


# --- properties


def _verify_prop(result: ToolResult, references: Sequence[VerifierReference]) -> Verdict | None:
    """Share of correct attributes, among those that the reference states in words."""
    if not result.footprints:
        return None
    thing = _find_described(result.footprints[0], references)
    if thing is None:
        return None
    predicted = {name: str(attribute["value"]) for name, attribute in result.output["properties"].items()}
    shared_names = [name for name in predicted if isinstance(thing.properties.get(name), str)]
    if not shared_names:
        return None
    correct = [str(thing.properties[name]) in predicted[name].split(" and ") for name in shared_names]
    return _verdict("PROP", float(np.mean(correct)), "attribute match")


def _find_described(footprint: Footprint, references: Sequence[VerifierReference]) -> VerifierReference | None:
    """The reference with the largest overlap of at least `SAME_IOU`."""
    overlaps = [_place_overlap(footprint, reference.footprint) for reference in references]
    best = max(overlaps, default=0.0)
    return references[overlaps.index(best)] if best >= SAME_IOU else None


def _place_overlap(a: Footprint, b: Footprint) -> float:
    if a.media != b.media or isinstance(a, Span) or isinstance(b, Span):
        return 0.0
    if isinstance(a, Track) and isinstance(b, Track):
        return _first_overlap(b, a)
    frame = a.frames[len(a.frames) // 2] if isinstance(a, Track) else a.frame
    first = a.box_at(frame) if isinstance(a, Track) else a.box_unit
    second = b.box_at(frame) if isinstance(b, Track) else b.box_unit
    if first is None or second is None or (isinstance(b, Box | Mask) and b.frame != frame):
        return 0.0
    return box_iou(first, second)


CHECKS = {
    "SEG": _verify_seg,
    "ZOOM": _verify_zoom,
    "TRK": _verify_trk,
    "OCR": _verify_ocr,
    "TEMP": _verify_temp,
    "PROP": _verify_prop,
}
