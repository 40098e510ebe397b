"""Agreement of time spans: temporal IoU, NMS, and QVHighlights' moment retrieval scores.

The scores follow the official scorer (jayleicn/moment_detr, `standalone_eval`) wherever it is defined: only the first
ten windows of a query count for AP, ordered by score with ties as listed; R1 takes the window that is *listed* first,
against the gold window that it overlaps most; a length range keeps the gold windows inside it and every prediction.
Where the scorer divides by zero or stops (no predicted window, an empty range), the function's docstring has the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

IOU_THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
MAX_WINDOWS = 10
LENGTH_RANGES_S = {"short": (0.0, 10.0), "middle": (10.0, 30.0), "long": (30.0, 150.0)}
"""Gold windows of a range are longer than its first number of seconds and at most as long as its second."""

Window = Sequence[float]
"""start, end in seconds, and for predictions a score."""


class MomentScores(NamedTuple):
    """Moment retrieval over the queries of one length range, each share in [0, 1]."""

    queries: int
    map_by_iou: dict[float, float]
    """Mean average precision at each IoU threshold."""
    r1_by_iou: dict[float, float]
    """Share of queries whose first window reaches each IoU threshold."""

    @property
    def map_average(self) -> float:
        return float(np.mean(list(self.map_by_iou.values())))


def temporal_iou_matrix(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """IoU of every span of `a` with every span of `b`, in [0, 1].

    A span of no length has IoU 1 with itself and 0 with everything else; a span that ends before it starts has 0.
    """
    a, b = _spans(a), _spans(b)  # (N, 2), (M, 2)
    lengths_a, lengths_b = a[:, 1] - a[:, 0], b[:, 1] - b[:, 0]  # (N,), (M,)
    overlap = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
    intersection = np.clip(overlap, 0.0, None)  # (N, M)
    union = lengths_a[:, None] + lengths_b[None, :] - intersection
    iou = np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)
    same_instant = (lengths_a == 0)[:, None] & (lengths_b == 0)[None, :] & (a[:, None, 0] == b[None, :, 0])
    iou[same_instant] = 1.0
    return iou


def temporal_iou(a: Window, b: Window) -> float:
    """IoU of two spans `(start, end)`, in [0, 1]; see `temporal_iou_matrix` for spans of no length."""
    (a_start, a_end), (b_start, b_end) = a[:2], b[:2]
    if a_start == a_end == b_start == b_end:
        return 1.0
    intersection = max(min(a_end, b_end) - max(a_start, b_start), 0.0)
    union = (a_end - a_start) + (b_end - b_start) - intersection
    return float(intersection / union) if union > 0 else 0.0


def temporal_nms(spans: ArrayLike, scores: ArrayLike, *, threshold: float) -> NDArray[np.intp]:
    """Indices of the spans that survive, best score first: a span is suppressed if its IoU with a kept one
    is *above* `threshold`. Equal scores keep their order.
    """
    spans, scores = _spans(spans), np.asarray(scores, dtype=np.float64)  # (N, 2), (N,)
    if len(spans) != len(scores):
        raise ValueError(f"{len(spans)} spans and {len(scores)} scores: expected one score a span")
    iou = temporal_iou_matrix(spans, spans)  # (N, N)
    selected: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if not (iou[i, selected] > threshold).any():
            selected.append(int(i))
    return np.array(selected, dtype=np.intp)


def span_average_precision(
    gold: ArrayLike, predicted: Sequence[Window], *, thresholds: Sequence[float] = IOU_THRESHOLDS
) -> NDArray[np.float64]:
    """Interpolated (VOC) average precision of one query's windows at each IoU threshold, in [0, 1].

    A prediction takes the unmatched gold window that it overlaps most. Predictions without a score keep their order.
    No prediction: 0. Raises ValueError without gold windows, because recall is undefined.
    """
    gold = _gold_windows(gold)  # (G, 2)
    ranked = _rank_windows(predicted[:MAX_WINDOWS])  # (P, 2)
    if not len(ranked):
        return np.zeros(len(thresholds))
    iou = temporal_iou_matrix(ranked, gold)  # (P, G)
    best_first = np.argsort(iou, axis=1)[:, ::-1]  # (P, G)
    return np.array([_interpolated_precision(_hits(iou, best_first, t), len(gold)) for t in thresholds])


def first_window_iou(gold: ArrayLike, predicted: Sequence[Window]) -> float:
    """IoU of the window that is listed first with the gold window that it overlaps most, in [0, 1]; no prediction: 0.
    Raises ValueError without gold windows.
    """
    gold = _gold_windows(gold)  # (G, 2)
    if not predicted:
        return 0.0
    start, end = predicted[0][:2]
    g_start, g_end = gold[np.argmax(temporal_iou_matrix([(start, end)], gold)[0])]
    # the official scorer divides by the hull: equal to the union wherever there is overlap, up to the last bit
    overlap, hull = max(0.0, min(end, g_end) - max(start, g_start)), max(end, g_end) - min(start, g_start)
    return float(overlap / hull) if hull > 0 else 0.0


def moment_scores(
    gold: Mapping[Any, Sequence[Window]],
    predicted: Mapping[Any, Sequence[Window]],
    *,
    length_range_s: tuple[float, float] | None = None,
    thresholds: Sequence[float] = IOU_THRESHOLDS,
) -> MomentScores | None:
    """mAP and R1@θ over queries, as QVHighlights defines them; None if no gold window lies in the length range.

    Raises ValueError if the two sides have different queries. A query without a predicted window counts as 0 (the
    official scorer stops at it).
    """
    if gold.keys() != predicted.keys():
        mismatched = sorted(map(str, gold.keys() ^ predicted.keys()))
        raise ValueError(
            f"gold and predictions must hold the same queries, {len(mismatched)} differ: {', '.join(mismatched[:3])}"
        )
    if not gold:
        raise ValueError("no queries to score: expected at least one")
    gold_in_range = {q: _windows_in_range(windows, length_range_s) for q, windows in gold.items()}
    if length_range_s:
        gold_in_range = {q: windows for q, windows in gold_in_range.items() if windows}
    if not gold_in_range:
        return None
    precisions = np.mean(
        [span_average_precision(w, predicted[q], thresholds=thresholds) for q, w in gold_in_range.items()], axis=0
    )  # (T,)
    first_ious = np.array([first_window_iou(w, predicted[q]) for q, w in gold_in_range.items()])  # (Q,)
    return MomentScores(
        queries=len(gold_in_range),
        map_by_iou=dict(zip(thresholds, precisions.tolist(), strict=True)),
        r1_by_iou={t: float(np.mean(first_ious >= t)) for t in thresholds},
    )


def moment_scores_by_length(
    gold: Mapping[Any, Sequence[Window]], predicted: Mapping[Any, Sequence[Window]]
) -> dict[str, MomentScores | None]:
    """`moment_scores` of the ranges short, middle, long, and of everything under `full`."""
    ranges: dict[str, tuple[float, float] | None] = {**LENGTH_RANGES_S, "full": None}
    return {name: moment_scores(gold, predicted, length_range_s=r) for name, r in ranges.items()}


def _spans(spans: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(spans, dtype=np.float64)
    if array.size == 0:
        return array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(f"spans have the shape {array.shape}: expected (N, 2), one row start, end for each span")
    return array[:, :2]


def _gold_windows(gold: ArrayLike) -> NDArray[np.float64]:
    windows = _spans(gold)
    if not len(windows):
        raise ValueError("a query without gold windows cannot be scored: expected at least one")
    if not (windows[:, 0] < windows[:, 1]).all():
        raise ValueError("a gold window has no length: expected start < end")
    return windows


def _windows_in_range(windows: Sequence[Window], length_range_s: tuple[float, float] | None) -> list[Window]:
    if length_range_s is None:
        return list(windows)
    low, high = length_range_s
    return [w for w in windows if low < w[1] - w[0] <= high]


def _rank_windows(predicted: Sequence[Window]) -> NDArray[np.float64]:
    """(P, 2) windows, best score first; windows without scores stay as listed."""
    if {len(w) for w in predicted} - {2, 3} or len({len(w) for w in predicted}) > 1:
        raise ValueError("predicted windows must be all [start, end] or all [start, end, score]")
    if not predicted or len(predicted[0]) == 2:
        return _spans(predicted)
    windows = np.asarray(predicted, dtype=np.float64)  # (P, 3)
    return windows[np.argsort(-windows[:, 2], kind="stable"), :2]


def _hits(iou: NDArray[np.float64], best_first: NDArray[np.intp], threshold: float) -> NDArray[np.bool_]:
    """(P,) whether each prediction, in order, matches a gold window that is still free."""
    claimed: set[int] = set()
    hits = np.zeros(len(iou), dtype=bool)
    for p, order in enumerate(best_first):
        free = [int(g) for g in order if iou[p, g] >= threshold and int(g) not in claimed]
        if free:
            claimed.add(free[0])
            hits[p] = True
    return hits


def _interpolated_precision(hits: NDArray[np.bool_], positives: int) -> float:
    """Area under the precision envelope: every hit adds its step of recall at the best precision from there on."""
    cumulative_hits = np.cumsum(hits)  # (P,)
    precision = cumulative_hits / np.arange(1, len(hits) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(cumulative_hits / positives, prepend=0.0)
    return float(np.sum(steps[hits] * envelope[hits]))
