"""Tracking quality as TrackEval computes it, in memory: HOTA, CLEAR-MOT and the identity scores.

Rows are MOTChallenge's: frame, id, left, top, width, height, confidence, class, in pixels or any other unit. TrackEval
does the counting; this module only arranges the rows as TrackEval's MOTChallenge reader does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.core.geometry import Track
from pixelis.metrics.overlap import box_iou_matrix

Benchmark = Literal["MOT15", "MOT16", "MOT17", "MOT20"]

PEDESTRIAN = 1
CLASSES = range(1, 14)
"""MOTChallenge's classes: only pedestrian counts; the others excuse predictions that match them."""
DISTRACTORS = (2, 7, 8, 12)
"""person on vehicle, static person, distractor, reflection: a prediction that matches one of them is not an error."""
NON_MOT_VEHICLE = 6


@dataclass(frozen=True)
class TrackScores:
    """One sequence, or several combined. Shares are in [0, 1], except MOTA, which has no lower bound."""

    hota: float
    """Mean over the 19 localisation thresholds 0.05, 0.10 ... 0.95; so are the next seven."""
    det_a: float
    ass_a: float
    det_re: float
    det_pr: float
    ass_re: float
    ass_pr: float
    loc_a: float
    hota_by_alpha: tuple[float, ...]
    mota: float
    motp: float
    recall: float
    precision: float
    true_positives: int
    false_negatives: int
    false_positives: int
    id_switches: int
    fragmentations: int
    mostly_tracked: int
    partly_tracked: int
    mostly_lost: int
    idf1: float
    idr: float
    idp: float


def score_rows(gold: ArrayLike, predicted: ArrayLike, *, benchmark: Benchmark | None = None) -> TrackScores:
    """HOTA, CLEAR-MOT and identity scores of one sequence of MOTChallenge rows, (N, 6) or wider.

    Missing confidences and classes are 1. `benchmark` chooses TrackEval's cleaning (`cleaned`); without one it is
    MOT17's where the gold classes are MOTChallenge's own, else MOT15's. No predictions: every share is 0 but `loc_a`,
    which is 1. No gold rows: the same, and all predictions are false positives. Raises ValueError on two boxes of one
    id in one frame.
    """
    return score_sequences({"sequence": (gold, predicted)}, benchmark=benchmark)[1]["sequence"]


def score_tracks(gold: Sequence[Track], predicted: Sequence[Track]) -> TrackScores:
    """The same for `Track` values: every gold track counts, whatever its label. Edge cases as in `score_rows`."""
    return score_rows(_rows_from_tracks(gold), _rows_from_tracks(predicted), benchmark="MOT15")


def score_sequences(
    sequences: Mapping[str, tuple[ArrayLike, ArrayLike]], *, benchmark: Benchmark | None = None
) -> tuple[TrackScores, dict[str, TrackScores]]:
    """TrackEval's combination of several sequences (its row COMBINED), and each sequence alone.

    Raises ValueError without sequences.
    """
    if not sequences:
        raise ValueError("no sequences to score: expected at least one")
    from trackeval.metrics import CLEAR, HOTA, Identity

    data = {name: _to_trackeval(as_rows(g), as_rows(p), benchmark) for name, (g, p) in sequences.items()}
    metrics = [HOTA(), CLEAR({"PRINT_CONFIG": False}), Identity({"PRINT_CONFIG": False})]
    results = [{name: metric.eval_sequence(d) for name, d in data.items()} for metric in metrics]
    per_sequence = {name: _scores(*(result[name] for result in results)) for name in data}
    combined_results = (metric.combine_sequences(result) for metric, result in zip(metrics, results, strict=True))
    return _scores(*combined_results), per_sequence


def as_rows(rows: ArrayLike) -> NDArray[np.float64]:
    """(N, 8) rows with confidence and class filled with ones; raises ValueError for fewer than six columns."""
    array = np.asarray(rows, dtype=np.float64)
    if array.size == 0:
        return np.empty((0, 8))
    if array.ndim != 2 or array.shape[1] < 6:
        raise ValueError(f"track rows have the shape {array.shape}: expected frame, id, left, top, width, height, ...")
    return np.hstack([array[:, :8], np.ones((len(array), max(0, 8 - array.shape[1])))])


def clean_rows(
    gold: NDArray[np.float64], predicted: NDArray[np.float64], iou: NDArray[np.float64], benchmark: Benchmark
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which gold and predicted rows of one frame count, by the rules of the benchmark.

    Gold rows with a confidence below 1 never count (TrackEval reads it as an integer). Except in MOT15, only
    pedestrians do, and a prediction that matches a distractor (IoU at least 0.5, best assignment) is removed.
    """
    gold_mask, predicted_mask = np.trunc(gold[:, 6]) != 0, np.ones(len(predicted), dtype=bool)  # (G,), (P,)
    if benchmark == "MOT15":
        return gold_mask, predicted_mask
    distractors = (*DISTRACTORS, NON_MOT_VEHICLE) if benchmark == "MOT20" else DISTRACTORS
    if len(gold) and len(predicted):
        from scipy.optimize import linear_sum_assignment

        matching = np.where(iou < 0.5 - np.finfo(float).eps, 0.0, iou)  # (G, P)
        g, p = linear_sum_assignment(-matching)
        explained = (matching[g, p] > np.finfo(float).eps) & np.isin(gold[g, 7], distractors)
        predicted_mask[p[explained]] = False
    return gold_mask & (gold[:, 7] == PEDESTRIAN), predicted_mask


def _to_trackeval(
    gold: NDArray[np.float64], predicted: NDArray[np.float64], benchmark: Benchmark | None
) -> dict[str, Any]:
    """The input of TrackEval's metrics: for each frame ids from 0 and an IoU matrix, and the totals."""
    for rows, side in ((gold, "gold"), (predicted, "predicted")):
        _one_box_for_each_id(rows, side)
    has_mot_classes = bool(np.isin(gold[:, 7], CLASSES).all())
    benchmark = benchmark or ("MOT17" if has_mot_classes else "MOT15")
    if benchmark != "MOT15" and not has_mot_classes:
        raise ValueError(f"gold rows hold classes that are not in {benchmark}'s list of 1 to 13; score them as MOT15")
    gold_id_lists, predicted_id_lists, ious = [], [], []
    for frame in np.union1d(gold[:, 0], predicted[:, 0]):
        g, p = gold[gold[:, 0] == frame], predicted[predicted[:, 0] == frame]
        iou = box_iou_matrix(_corners(g), _corners(p))  # (G, P)
        gold_mask, predicted_mask = clean_rows(g, p, iou, benchmark)
        gold_id_lists.append(g[gold_mask, 1])
        predicted_id_lists.append(p[predicted_mask, 1])
        ious.append(iou[np.ix_(gold_mask, predicted_mask)])
    gold_ids, gold_count = _relabel(gold_id_lists)
    predicted_ids, predicted_count = _relabel(predicted_id_lists)
    return {
        "gt_ids": gold_ids,
        "tracker_ids": predicted_ids,
        "similarity_scores": ious,
        "num_timesteps": len(ious),
        "num_gt_ids": gold_count,
        "num_tracker_ids": predicted_count,
        "num_gt_dets": sum(map(len, gold_ids)),
        "num_tracker_dets": sum(map(len, predicted_ids)),
    }


def _corners(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hstack([rows[:, 2:4], rows[:, 2:4] + rows[:, 4:6]])  # (N, 4) x0, y0, x1, y1


def _one_box_for_each_id(rows: NDArray[np.float64], side: str) -> None:
    pairs, counts = np.unique(rows[:, :2], axis=0, return_counts=True)
    if (counts > 1).any():
        frame, track = pairs[np.argmax(counts > 1)]
        raise ValueError(f"{side} id {track:g} has two boxes in frame {frame:g}: expected one")


def _relabel(ids: list[NDArray[np.float64]]) -> tuple[list[NDArray[np.intp]], int]:
    """The ids of each frame as 0 .. n-1 in the order of their numbers, and n."""
    names = np.unique(np.concatenate([np.empty(0), *ids]))
    return [np.searchsorted(names, frame) for frame in ids], len(names)


def _rows_from_tracks(tracks: Sequence[Track]) -> NDArray[np.float64]:
    rows = [
        (frame, track.track_id, x0, y0, x1 - x0, y1 - y0)
        for track in tracks
        for frame, (x0, y0, x1, y1) in zip(track.frames, track.boxes, strict=True)
    ]
    return as_rows(rows)


def _scores(hota: dict[str, Any], clear: dict[str, Any], identity: dict[str, Any]) -> TrackScores:
    return TrackScores(
        hota=float(np.mean(hota["HOTA"])),
        det_a=float(np.mean(hota["DetA"])),
        ass_a=float(np.mean(hota["AssA"])),
        det_re=float(np.mean(hota["DetRe"])),
        det_pr=float(np.mean(hota["DetPr"])),
        ass_re=float(np.mean(hota["AssRe"])),
        ass_pr=float(np.mean(hota["AssPr"])),
        loc_a=float(np.mean(hota["LocA"])),
        hota_by_alpha=tuple(float(v) for v in hota["HOTA"]),
        mota=float(clear["MOTA"]),
        motp=float(clear["MOTP"]),
        recall=float(clear["CLR_Re"]),
        precision=float(clear["CLR_Pr"]),
        true_positives=int(clear["CLR_TP"]),
        false_negatives=int(clear["CLR_FN"]),
        false_positives=int(clear["CLR_FP"]),
        id_switches=int(clear["IDSW"]),
        fragmentations=int(clear["Frag"]),
        mostly_tracked=int(clear["MT"]),
        partly_tracked=int(clear["PT"]),
        mostly_lost=int(clear["ML"]),
        idf1=float(identity["IDF1"]),
        idr=float(identity["IDR"]),
        idp=float(identity["IDP"]),
    )
