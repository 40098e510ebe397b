"""Calibration: bins and errors by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.metrics.calibration_error import expected_calibration_error, maximum_calibration_error, reliability_bins

ANSWERS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def test_ece_of_four_answers_in_two_bins():
    # (0, 0.5]: confidence 0.3, accuracy 0.5; (0.5, 1]: confidence 0.8, accuracy 1 -> 0.5 * 0.2 + 0.5 * 0.2
    confidence, correct = [0.2, 0.4, 0.7, 0.9], [0, 1, 1, 1]
    assert expected_calibration_error(confidence, correct, bins=2) == pytest.approx(0.2)
    assert maximum_calibration_error(confidence, correct, bins=2) == pytest.approx(0.2)


def test_a_confidence_on_an_edge_lies_in_the_bin_below_and_0_in_the_first():
    bars = reliability_bins([0.0, 0.5, 1.0], [1, 1, 1], bins=2)
    assert [bar.size for bar in bars] == [2, 1]


def test_an_empty_bin_has_no_weight():
    bars = reliability_bins([0.9], [1], bins=15)
    assert sum(bar.size for bar in bars) == 1
    assert bars[0] == (0.0, pytest.approx(1 / 15), 0, 0.0, 0.0)
    assert expected_calibration_error([0.9], [1]) == pytest.approx(0.1)


def test_bins_of_equal_mass_hold_as_many_answers_each():
    bars = reliability_bins([0.91, 0.92, 0.93, 0.99], [1, 0, 1, 1], bins=2, binning="mass")
    assert [(bar.size, bar.confidence, bar.accuracy) for bar in bars] == [
        (2, pytest.approx(0.915), 0.5),
        (2, pytest.approx(0.96), 1.0),
    ]
    assert expected_calibration_error([0.91, 0.92, 0.93, 0.99], [1, 0, 1, 1], bins=2, binning="mass") == pytest.approx(
        0.2275
    )


def test_there_are_never_more_bins_of_equal_mass_than_answers():
    assert len(reliability_bins([0.2, 0.8], [0, 1], bins=15, binning="mass")) == 2


@given(ANSWERS, st.sampled_from(["width", "mass"]), st.integers(1, 20))
def test_ece_lies_between_0_and_the_largest_gap_and_no_answer_is_lost(answers, binning, bins):
    confidence, correct = zip(*answers, strict=True)
    ece = expected_calibration_error(confidence, correct, bins=bins, binning=binning)
    assert 0 <= ece <= maximum_calibration_error(confidence, correct, bins=bins, binning=binning) + 1e-12
    assert sum(bar.size for bar in reliability_bins(confidence, correct, bins=bins, binning=binning)) == len(answers)


def test_answers_that_are_as_right_as_they_say_have_an_ece_near_0():
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    assert expected_calibration_error(p, rng.random(200_000) < p) < 0.005


def test_bad_answers_are_refused():
    with pytest.raises(ValueError, match="2 confidences and 1 outcomes"):
        expected_calibration_error([0.1, 0.2], [1])
    with pytest.raises(ValueError, match="at least one"):
        expected_calibration_error([], [])
    with pytest.raises(ValueError, match="outside"):
        expected_calibration_error([float("nan")], [1])
    with pytest.raises(ValueError, match="0 bins"):
        reliability_bins([0.5], [1], bins=0)
