"""Abstention: curves and areas by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.metrics.selective import aurc, error_at_coverage, error_at_margin, excess_aurc, risk_coverage

QUERIES = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=20)


def test_the_curve_answers_the_most_confident_first():
    curve = risk_coverage([0.1, 0.9, 0.5, 0.7], [1, 0, 1, 0])
    assert curve.coverage == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert curve.risk == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert curve.threshold == pytest.approx([0.9, 0.7, 0.5, 0.1])
    assert aurc([0.1, 0.9, 0.5, 0.7], [1, 0, 1, 0]) == pytest.approx((1 / 3 + 1 / 2) / 4)


def test_the_best_order_has_no_excess():
    assert excess_aurc([4, 3, 2, 1], [0, 0, 1, 1]) == pytest.approx(0.0)
    # worst order: risks 1, 1, 2/3, 1/2; best: 0, 0, 1/3, 1/2
    assert excess_aurc([1, 2, 3, 4], [0, 0, 1, 1]) == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4 - (1 / 3 + 1 / 2) / 4)


def test_equal_confidences_share_their_errors():
    assert risk_coverage([1, 1, 1, 1], [0, 0, 1, 1]).risk == pytest.approx([0.5] * 4)


@given(QUERIES, st.randoms(use_true_random=False))
def test_the_curve_does_not_depend_on_the_order_of_queries(queries, random):
    shuffled = random.sample(queries, len(queries))
    curves = [risk_coverage(*zip(*q, strict=True)) for q in (queries, shuffled)]
    assert curves[0].risk == pytest.approx(curves[1].risk)
    assert curves[0].risk[-1] == pytest.approx(np.mean([wrong for _, wrong in queries]))
    assert excess_aurc(*zip(*queries, strict=True)) >= -1e-12


def test_err_at_sel_at_a_coverage():
    confidence, wrong = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1], [0, 0, 1, 0, 0, 0, 0, 0, 1, 1]
    assert error_at_coverage(confidence, wrong, coverage=0.3) == (pytest.approx(0.3), pytest.approx(1 / 3))
    assert error_at_coverage(confidence, wrong, coverage=0.21) == (pytest.approx(0.3), pytest.approx(1 / 3))
    assert error_at_coverage(confidence, wrong, coverage=1) == (1.0, pytest.approx(0.3))


def test_answering_nothing_has_no_error():
    assert error_at_coverage([0.5], [1], coverage=0) == (0.0, 0.0)
    assert error_at_margin([0.5], [1], delta=0.6) == (0.0, 0.0)


def test_a_margin_of_exactly_delta_is_answered_and_nan_abstains():
    assert error_at_margin([0.08, 0.079, 0.5, float("nan")], [1, 1, 0, 1], delta=0.08) == (0.5, 0.5)
    assert error_at_margin([0.58 - 0.5], [1], delta=0.08) == (1.0, 1.0)  # 0.07999999999999996, as the vote has it


def test_bad_queries_are_refused():
    with pytest.raises(ValueError, match="1 confidences and 2 outcomes"):
        risk_coverage([0.5], [0, 1])
    with pytest.raises(ValueError, match="at least one"):
        aurc([], [])
    with pytest.raises(ValueError, match="NaN"):
        risk_coverage([float("nan")], [1])
    with pytest.raises(ValueError, match="outside"):
        error_at_coverage([0.5], [1], coverage=1.5)
