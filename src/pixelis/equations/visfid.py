"""VisFid: agreement of the decisive tool steps of a trajectory with those of others (subsec:ttrl).

A step is compared with another step of the same family by the field's metric for it. The paper leaves the
pseudo-reference to "simple matching rules"; ours: in every other trajectory take the step that matches best, and of
these matches the one that agrees most with the rest (the medoid), so that two lucky rollouts cannot confirm one another
against six.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import combinations
from math import fsum
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco
from scipy.optimize import linear_sum_assignment

from pixelis.core.geometry import Box, Footprint, Mask, Span, TextSpan, Track
from pixelis.metrics.overlap import box_iou_matrix, mask_iou, region_iou
from pixelis.metrics.text import anls, normalise_text

T = TypeVar("T")

FAMILY = {
    "SEG": "region",
    "ZOOM": "region",
    "CROP": "region",
    "TRK": "track",
    "OCR": "text",
    "READ": "text",
    "TEMP": "time",
    "TEMPORAL": "time",
    "PROP": "property",
}
"""Families of tools with comparable outputs; SEG and ZOOM share a row in the paper (runlatency)."""

MATCH_THRESHOLDS = {"region": 0.5, "track": 0.5, "text": 0.85, "time": 0.5, "property": 0.5}
"""Score from which two outputs count as the same evidence (runlatency); track and property are ours."""


BILLION = 1_000_000_000
"""Scores are summed exactly, as integers in billionths, so that the order of the rollouts cannot decide a tie."""


class DecisiveStep(NamedTuple):
    """What fidelity and behaviour need of one decisive tool call."""

    tool: str
    footprints: tuple[Footprint, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    """PROP's output: pairs of attribute and value."""


class StepFidelity(NamedTuple):
    """One step's score against its pseudo-reference; `reference` is (trajectory, step), or None without one."""

    score: float
    reference: tuple[int, int] | None


class Fidelity(NamedTuple):
    """VisFid of one trajectory, the mean of the scores of its steps."""

    visfid: float
    steps: tuple[StepFidelity, ...]

    @property
    def num_matched(self) -> int:
        """Number of steps with a pseudo-reference."""
        return sum(step.reference is not None for step in self.steps)


def mask_overlap(a: Mask, b: Mask) -> float:
    """IoU of two masks (subsec:ttrl); 1 if both are empty. Masks on different grids are compared on the finer one."""
    if (a.height, a.width) == (b.height, b.width):
        return region_iou(a, b)
    height, width = max(a.height, b.height), max(a.width, b.width)
    rows, columns = np.arange(height), np.arange(width)
    x, y = (m.array[np.ix_(rows * m.height // height, columns * m.width // width)] for m in (a, b))
    return mask_iou(x, y)


def overlap_matrix(footprints: Sequence[Footprint]) -> NDArray[np.float64]:
    """(n, n) overlap of every two footprints in [0, 1], symmetric, ones on the diagonal (subsec:ttrl).

    Boxes and masks: IoU; a mask against a box by its bounding box. Tracks: IoU averaged over the frames in which
    either is present, 0 where only one is. Spans: F1 over time. Across media, frames, or between space, tracks and
    time: 0. An empty mask overlaps an empty mask (1) and nothing else (0).
    """
    overlaps = np.eye(len(footprints))
    groups: dict[tuple[str, str | int], list[int]] = {}
    for i, f in enumerate(footprints):
        groups.setdefault((f.media, f.kind if isinstance(f, Track | Span) else f.frame), []).append(i)
    for (_, group_key), rows in groups.items():
        if len(rows) > 1:
            block = _BLOCKS.get(group_key, _region_ious)([footprints[i] for i in rows])
            overlaps[np.ix_(rows, rows)] = block
    return overlaps


def time_f1(a: Sequence[Span], b: Sequence[Span]) -> float:
    """2 x common seconds / (seconds of a + seconds of b), over the unions of spans (subsec:ttrl, F1-style).

    Instants have no length: if neither side has any length, 1 if the instants are equal, else 0.
    """
    return _interval_f1(_merge_spans(a), _merge_spans(b))


def property_f1(a: Sequence[tuple[str, str]], b: Sequence[tuple[str, str]]) -> float:
    """F1 of attribute-value pairs, normalised as text (subsec:ttrl, F1-style); 1 if both are empty."""
    return _set_f1(_pairs(a), _pairs(b))


def text_anls(a: Sequence[TextSpan], b: Sequence[TextSpan]) -> float:
    """ANLS of two readings, lines joined in reading order (subsec:ttrl).

    A similarity below 0.5 scores 0; 1 if both are empty.
    """
    return anls(_reading(a), [_reading(b)])


def match_score(a: DecisiveStep, b: DecisiveStep) -> float:
    """How well two tool outputs agree, in [0, 1], symmetric (subsec:ttrl, pixel fidelity).

    SEG and ZOOM: IoU; TRK: IoU averaged over tracklets; OCR: ANLS; TEMP: F1 over time; PROP: F1 over attributes.
    Several regions or tracklets are paired one to one with the largest sum; unpaired ones count 0.
    Steps of different families score 0; two steps that both found nothing score 1.
    """
    return float(step_scores([a, b])[0, 1])


def step_scores(steps: Sequence[DecisiveStep]) -> NDArray[np.float64]:
    """(n, n) symmetric matrix of `match_score`, ones on the diagonal (subsec:ttrl). No steps: (0, 0).

    Rollouts repeat each other's calls, so equal steps are compared once, and all regions are intersected together.
    """
    first: dict[Hashable, int] = {}
    index = [first.setdefault(_key(step), len(first)) for step in steps]
    distinct = [steps[index.index(i)] for i in range(len(first))]
    scores = np.eye(len(distinct))
    families: dict[str, list[int]] = {}
    for i, step in enumerate(distinct):
        families.setdefault(_family(step), []).append(i)
    for family, rows in families.items():
        scores[np.ix_(rows, rows)] = _family_scores(family, [distinct[i] for i in rows])
    return scores[np.ix_(index, index)]


def group_fidelity(
    trajectories: Sequence[Sequence[DecisiveStep]],
    *,
    successful: Sequence[bool] | None = None,
    neighbours: Sequence[Sequence[DecisiveStep]] = (),
    unmatched: float = 0.5,
    scores: NDArray[np.float64] | None = None,
) -> tuple[Fidelity, ...]:
    """VisFid of every trajectory of a group (subsec:ttrl, pixel fidelity and pseudo-references).

    Pseudo-references come from the other `successful` trajectories (default: all) and from retrieved `neighbours`,
    which are numbered after the group in `StepFidelity.reference`. A step without a match is neither confirmed nor
    refuted and scores `unmatched`; so does a trajectory without a decisive step. `scores` are precomputed `step_scores`
    of all steps in this order. No trajectories: ().
    """
    usable = [True] * len(trajectories) if successful is None else list(successful)
    if len(usable) != len(trajectories):
        raise ValueError(f"{len(trajectories)} trajectories, but {len(usable)} marks of success: expected one each")
    chains = [*trajectories, *neighbours]
    usable += [True] * len(neighbours)
    flat = [step for chain in chains for step in chain]
    S = step_scores(flat) if scores is None else scores
    integer_scores = np.rint(S * BILLION).astype(np.int64).tolist()
    starts = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]).astype(int).tolist()
    families = [_family(step) for step in flat]
    by_family: list[dict[str, list[int]]] = [{} for _ in chains]
    for k in range(len(chains)):
        for i in range(starts[k], starts[k + 1]):
            by_family[k].setdefault(families[i], []).append(i)
    results = []
    for j in range(len(trajectories)):
        others = [by_family[k] for k in range(len(chains)) if usable[k] and k != j]
        steps = []
        for s in range(starts[j], starts[j + 1]):
            row = integer_scores[s]
            candidate_rows = [other[families[s]] for other in others if families[s] in other]
            matches = [rows[0] if len(rows) == 1 else max(rows, key=row.__getitem__) for rows in candidate_rows]
            steps.append(
                _score_against_medoid(matches, integer_scores, row, starts)
                if matches
                else StepFidelity(unmatched, None)
            )
        mean = fsum([step.score for step in steps]) / len(steps) if steps else unmatched
        results.append(Fidelity(mean, tuple(steps)))
    return tuple(results)


def neighbour_match(
    query: Sequence[DecisiveStep],
    neighbours: Sequence[Sequence[DecisiveStep]],
    *,
    thresholds: dict[str, float] | None = None,
) -> float:
    """The retrieval reading of VisFid: share of neighbours whose evidence matches the query's footprints (subsec:rq3).

    A neighbour matches if one of its steps reaches the threshold of its family against one of the query's.
    No neighbours, or a query without steps: 0.
    """
    threshold_by_family = MATCH_THRESHOLDS if thresholds is None else thresholds
    flat = [*query, *(step for chain in neighbours for step in chain)]
    required = np.array([threshold_by_family[_family(step)] for step in flat])
    is_matched = np.any(step_scores(flat)[: len(query)] >= required, axis=0).tolist()  # (steps,)
    start, matching = len(query), 0
    for chain in neighbours:
        matching += any(is_matched[start : start + len(chain)])
        start += len(chain)
    return matching / len(neighbours) if neighbours else 0.0


def _score_against_medoid(
    matches: list[int], integer_scores: list[list[int]], row: list[int], starts: list[int]
) -> StepFidelity:
    """A step, whose scores are `row`, against the medoid of its matches; ties go to the match that agrees better."""
    medoid = matches[0]
    if len(matches) > 1:
        scores_among = itemgetter(*matches)
        medoid = max(matches, key=lambda i: (sum(scores_among(integer_scores[i])), row[i]))
    owner = bisect_right(starts, medoid) - 1
    return StepFidelity(row[medoid] / BILLION, (owner, medoid - starts[owner]))


def _family_scores(family: str, steps: Sequence[DecisiveStep]) -> NDArray[np.float64]:
    """(k, k) scores of steps of one family; what depends on one step is computed once."""
    if family == "text":
        readings = [_reading([f for f in step.footprints if isinstance(f, TextSpan)]) for step in steps]
        return _symmetric(readings, lambda a, b: anls(a, [b]))
    if family == "time":
        return _symmetric([_merge_spans([f for f in s.footprints if isinstance(f, Span)]) for s in steps], _interval_f1)
    if family == "property":
        return _symmetric([_pairs(step.properties) for step in steps], _set_f1)
    overlaps = overlap_matrix([f for step in steps for f in step.footprints])
    if all(len(step.footprints) == 1 for step in steps):
        return overlaps
    ends = np.cumsum([len(step.footprints) for step in steps]).tolist()
    slices = [slice(end - len(step.footprints), end) for step, end in zip(steps, ends, strict=True)]
    return _symmetric(slices, lambda a, b: _paired_overlap(overlaps[a, b]))


def _symmetric(items: Sequence[T], score: Callable[[T, T], float]) -> NDArray[np.float64]:
    scores = [[0.0] * len(items) for _ in items]
    for i, a in enumerate(items):
        scores[i][i] = 1.0
        for j in range(i):
            scores[i][j] = scores[j][i] = score(a, items[j])
    return np.array(scores)


def _paired_overlap(overlaps: NDArray[np.float64]) -> float:
    n, m = overlaps.shape
    if n == 0 or m == 0:
        return float(n == m)
    if n == m == 1:
        return float(overlaps[0, 0])
    return fsum(overlaps[linear_sum_assignment(overlaps, maximize=True)]) / max(n, m)


def _family(step: DecisiveStep) -> str:
    if step.tool not in FAMILY:
        raise ValueError(f"no matching rule for tool {step.tool!r}: expected one of {', '.join(FAMILY)}")
    return FAMILY[step.tool]


@lru_cache(maxsize=4096)
def _fold_text(text: str) -> str:
    return normalise_text(text)  # cached: a vote compares each reading with many others


def _reading(spans: Sequence[TextSpan]) -> str:
    return _fold_text(" ".join(span.text for span in spans))


def _pairs(properties: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(_fold_text(name), _fold_text(value)) for name, value in properties}


def _set_f1(a: set[tuple[str, str]], b: set[tuple[str, str]]) -> float:
    return 2.0 * len(a & b) / (len(a) + len(b)) if a or b else 1.0


def _interval_f1(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    total = fsum([end - start for start, end in a + b])
    if total == 0.0:
        return float(a == b)
    common = [min(p[1], q[1]) - max(p[0], q[0]) for p in a for q in b]
    return min(1.0, 2.0 * fsum([seconds for seconds in common if seconds > 0.0]) / total)


def _merge_spans(spans: Sequence[Span]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted((span.start_s, span.end_s) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _key(step: DecisiveStep) -> Hashable:
    """The step without what matching rules ignore (labels, confidences), to recognise equal steps."""
    return _family(step), tuple(_shape(f) for f in step.footprints), step.properties


def _shape(footprint: Footprint) -> tuple[object, ...]:
    match footprint:
        case Box():
            return "box", footprint.media, footprint.frame, footprint.box_unit
        case Mask():
            return "mask", footprint.media, footprint.frame, footprint.width, footprint.height, footprint.counts
        case Track():
            return "track", footprint.media, footprint.frames, footprint.boxes
        case Span():
            return "span", footprint.media, footprint.start_s, footprint.end_s
        case TextSpan():
            return "text", footprint.media, footprint.frame, footprint.text, footprint.quad


def _region_ious(regions: Sequence[Footprint]) -> NDArray[np.float64]:
    """Boxes, masks and text quads on one frame of one medium."""
    boxes = [f.box_unit or (0.0, 0.0, 0.0, 0.0) for f in regions if not isinstance(f, Track | Span)]
    ious = box_iou_matrix(boxes, boxes)
    masks = [(i, f) for i, f in enumerate(regions) if isinstance(f, Mask)]
    grids = {(mask.height, mask.width) for _, mask in masks}
    for grid in grids:
        rows = [i for i, mask in masks if (mask.height, mask.width) == grid]
        runs = [{"size": list(grid), "counts": m.counts.encode("ascii")} for i, m in masks if i in rows]
        ious[np.ix_(rows, rows)] = coco.iou(runs, runs, [0] * len(runs))
        empty = np.array(rows)[coco.area(runs) == 0]
        ious[np.ix_(empty, empty)] = 1.0
    if len(grids) > 1:
        for (i, a), (j, b) in combinations(masks, 2):
            if (a.height, a.width) != (b.height, b.width):
                ious[i, j] = ious[j, i] = mask_overlap(a, b)
    np.fill_diagonal(ious, 1.0)
    return ious


def _track_ious(tracks: Sequence[Footprint]) -> NDArray[np.float64]:
    frames = sorted({frame for t in tracks if isinstance(t, Track) for frame in t.frames})
    column = {frame: i for i, frame in enumerate(frames)}
    boxes = np.zeros((len(tracks), len(frames), 4))  # a box without area marks an absent object
    for row, t in zip(boxes, tracks, strict=True):
        if isinstance(t, Track):
            row[[column[frame] for frame in t.frames]] = t.boxes
    low = np.maximum(boxes[:, None, :, :2], boxes[None, :, :, :2])  # (K, K, F, 2)
    high = np.minimum(boxes[:, None, :, 2:], boxes[None, :, :, 2:])
    common = np.clip(high - low, 0.0, None).prod(axis=-1)  # (K, K, F)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)  # (K, F)
    union = area[:, None] + area[None] - common
    total = np.divide(common, union, out=np.zeros_like(common), where=union > 0.0).sum(axis=-1)  # (K, K)
    return total / (union > 0.0).sum(axis=-1)


def _time_f1s(spans: Sequence[Footprint]) -> NDArray[np.float64]:
    return _symmetric([_merge_spans([f]) for f in spans if isinstance(f, Span)], _interval_f1)


_BLOCKS: dict[str | int, Callable[[Sequence[Footprint]], NDArray[np.float64]]] = {
    "track": _track_ious,
    "span": _time_f1s,
}
