"""Spans of time: values by hand, and those of a copy of the QVHighlights scorer on a made-up set."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.metrics.temporal import (
    IOU_THRESHOLDS,
    first_window_iou,
    moment_scores,
    moment_scores_by_length,
    span_average_precision,
    temporal_iou,
    temporal_iou_matrix,
    temporal_nms,
)

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)


def made_up_set(seed=7, queries=60):
    """Many windows, equal scores, more than ten predictions, the first listed not the best."""
    r, gold, predicted = Random(seed), {}, {}
    for query in range(queries):
        gold[query], predicted[query] = [], []
        for _ in range(r.randint(1, 4)):
            start = 2 * r.randint(0, 70)
            gold[query].append([start, min(150, start + 2 * r.randint(1, 25))])
        for _ in range(r.randint(1, 14)):
            if r.random() < 0.6:
                near = r.choice(gold[query])
                start = max(0, near[0] + r.randint(-4, 4))
                end = max(start + 1, near[1] + r.randint(-4, 4))
            else:
                start = r.randint(0, 140)
                end = start + r.randint(1, 30)
            predicted[query].append([start, end, r.randint(0, 9) / 10])
    return gold, predicted


# Recorded from a re-typed copy of the official scorer's code (jayleicn/moment_detr at 2fa9e32, standalone_eval) run on
# made_up_set(), not from running the official files themselves: percent at IoU 0.50, 0.55 ... 0.95
OFFICIAL_MAP = {
    "short": [21.71, 18.38, 17.67, 14.83, 10.0, 7.33, 7.33, 6.83, 6.83, 0.0],
    "middle": [52.05, 48.78, 47.89, 45.56, 43.55, 42.63, 36.53, 21.38, 12.03, 4.11],
    "long": [55.0, 54.6, 54.6, 54.6, 54.06, 54.06, 54.06, 41.43, 29.83, 10.75],
    "full": [57.44, 54.66, 53.86, 52.26, 49.23, 48.04, 43.61, 29.37, 19.38, 5.53],
}
OFFICIAL_AVERAGE = {"short": 11.09, "middle": 35.45, "long": 46.3, "full": 41.34}
OFFICIAL_R1 = {
    "short": [25.0, 15.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0, 5.0, 0.0],
    "middle": [37.78, 33.33, 33.33, 28.89, 26.67, 24.44, 24.44, 8.89, 8.89, 2.22],
    "long": [38.71, 38.71, 38.71, 38.71, 38.71, 38.71, 38.71, 29.03, 12.9, 3.23],
    "full": [56.67, 50.0, 48.33, 45.0, 41.67, 40.0, 40.0, 23.33, 15.0, 3.33],
}


@pytest.mark.parametrize("name", ["short", "middle", "long", "full"])
def test_map_and_r1_equal_the_official_scorer(name):
    scores = moment_scores_by_length(*made_up_set())[name]
    assert [round(100 * v, 2) for v in scores.map_by_iou.values()] == OFFICIAL_MAP[name]
    assert round(100 * scores.map_average, 2) == OFFICIAL_AVERAGE[name]
    assert [round(100 * v, 2) for v in scores.r1_by_iou.values()] == OFFICIAL_R1[name]


def test_spans_that_share_half_have_iou_a_third():
    assert temporal_iou((0, 10), (5, 15)) == pytest.approx(1 / 3)


def test_an_instant_equals_itself_and_nothing_else():
    assert temporal_iou((3, 3), (3, 3)) == 1.0
    assert temporal_iou((3, 3), (4, 4)) == 0.0
    assert temporal_iou((3, 3), (0, 10)) == 0.0


def test_a_span_that_ends_before_it_starts_overlaps_nothing():
    assert temporal_iou((9, 1), (0, 10)) == 0.0
    assert temporal_iou((9, 1), (9, 1)) == 0.0


@given(SPANS, SPANS)
def test_temporal_iou_is_symmetric_and_lies_between_0_and_1(a, b):
    matrix = temporal_iou_matrix(a, b)
    assert matrix.shape == (len(a), len(b))
    assert ((matrix >= 0) & (matrix <= 1)).all()
    assert matrix == pytest.approx(temporal_iou_matrix(b, a).T)
    assert matrix.tolist() == [[temporal_iou(x, y) for y in b] for x in a]


def test_nms_keeps_the_best_of_spans_that_overlap_and_all_that_do_not():
    kept = temporal_nms([(0, 10), (1, 11), (20, 30)], [0.5, 0.9, 0.1], threshold=0.7)
    assert kept.tolist() == [1, 2]


def test_nms_keeps_a_span_that_overlaps_by_exactly_the_threshold():
    assert temporal_nms([(0, 10), (0, 5)], [2, 1], threshold=0.5).tolist() == [0, 1]


def test_nms_of_nothing_is_nothing_and_scores_must_be_as_many():
    assert temporal_nms([], [], threshold=0.5).tolist() == []
    with pytest.raises(ValueError, match="1 spans and 2 scores"):
        temporal_nms([(0, 1)], [1, 2], threshold=0.5)


@given(SPANS, st.floats(0, 1))
def test_what_nms_keeps_never_overlaps_by_more_than_the_threshold(spans, threshold):
    kept = temporal_nms(spans, np.arange(len(spans)), threshold=threshold)
    iou = temporal_iou_matrix(spans, spans)[np.ix_(kept, kept)]
    assert (iou[~np.eye(len(kept), dtype=bool)] <= threshold).all()


def test_ap_of_a_hit_after_a_miss_is_a_half():
    assert span_average_precision([(0, 10)], [(50, 60, 0.9), (0, 10, 0.1)]) == pytest.approx(np.full(10, 0.5))


def test_ap_orders_by_score_and_r1_takes_the_first_that_is_listed():
    windows = [(50, 60, 0.1), (0, 10, 0.9)]
    assert span_average_precision([(0, 10)], windows) == pytest.approx(np.ones(10))
    assert first_window_iou([(0, 10)], windows) == 0.0


def test_a_second_hit_on_the_same_gold_window_is_a_miss():
    # gold A and B; A, A, B found: precisions 1, 1/2, 2/3 -> (1 + 2/3) / 2
    ap = span_average_precision([(0, 10), (20, 30)], [(0, 10, 3), (0, 10, 2), (20, 30, 1)])
    assert ap == pytest.approx(np.full(10, 5 / 6))


def test_only_the_first_ten_windows_count():
    windows = [(50, 60, 0.0)] * 10 + [(0, 10, 1.0)]
    assert span_average_precision([(0, 10)], windows) == pytest.approx(np.zeros(10))


def test_windows_without_scores_keep_their_order_and_a_mixture_is_refused():
    assert span_average_precision([(0, 10)], [(50, 60), (0, 10)]) == pytest.approx(np.full(10, 0.5))
    with pytest.raises(ValueError, match="all"):
        span_average_precision([(0, 10)], [(50, 60), (0, 10, 1.0)])


def test_r1_takes_the_gold_window_that_overlaps_most():
    assert first_window_iou([(0, 4), (10, 20), (10, 30)], [(10, 20, 0.5)]) == 1.0


def test_an_iou_that_reaches_the_threshold_exactly_counts():
    scores = moment_scores({1: [(0, 10)]}, {1: [(0, 7, 1.0)]})
    assert scores.r1_by_iou[0.7] == 1.0
    assert scores.r1_by_iou[0.75] == 0.0


def test_a_query_without_a_predicted_window_counts_as_0():
    scores = moment_scores({1: [(0, 10)], 2: [(0, 10)]}, {1: [(0, 10, 1.0)], 2: []})
    assert (scores.map_average, scores.r1_by_iou[0.5], scores.queries) == (0.5, 0.5, 2)


def test_a_length_range_without_gold_windows_has_no_score():
    scores = moment_scores_by_length({1: [(0, 10)]}, {1: [(0, 10, 1.0)]})
    assert scores["long"] is None
    assert scores["short"].queries == 1  # ten seconds are still short: the range is (0, 10]


def test_queries_must_be_the_same_on_both_sides():
    with pytest.raises(ValueError, match="1 differ: 2"):
        moment_scores({1: [(0, 10)]}, {1: [], 2: []})
    with pytest.raises(ValueError, match="no queries"):
        moment_scores({}, {})


def test_gold_without_windows_or_with_a_window_of_no_length_is_refused():
    with pytest.raises(ValueError, match="without gold windows"):
        span_average_precision([], [(0, 1)], thresholds=IOU_THRESHOLDS)
    with pytest.raises(ValueError, match="no length"):
        first_window_iou([(5, 5)], [(5, 5)])
