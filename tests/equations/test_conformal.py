import numpy as np
import pytest

from pixelis.equations.conformal import conformal_quantile, nonconformity, prediction_set


def test_the_quantile_of_nineteen_scores_is_the_eighteenth():
    # ceil(20 x 0.9) = 18
    assert conformal_quantile(np.arange(1, 20) / 100) == pytest.approx(0.18)


def test_nine_scores_are_just_enough_for_level_one_tenth():
    # ceil(10 x 0.9) = 9: rounding must not make it 10
    assert conformal_quantile(np.arange(1, 10) / 10) == pytest.approx(0.9)
    assert conformal_quantile(np.arange(1, 9) / 10) == np.inf


def test_a_level_near_one_takes_the_smallest_score():
    assert conformal_quantile([0.3, 0.2, 0.9], alpha=1 - 1e-12) == pytest.approx(0.2)


def test_without_scores_nothing_can_be_ruled_out():
    assert conformal_quantile([]) == np.inf
    assert prediction_set({"A": 0.9, "B": 0.1}, np.inf) == ("A", "B")


def test_a_nan_score_is_infinitely_strange():
    assert conformal_quantile([0.1] * 17 + [0.2, np.nan]) == pytest.approx(0.2)
    assert conformal_quantile([0.1] * 17 + [np.nan, np.nan]) == np.inf


def test_the_set_holds_the_answers_up_to_the_threshold():
    shares = {"A": 0.6, "B": 0.3, "C": 0.1}
    assert prediction_set(shares, 0.4) == ("A",)  # 1 - 0.6 = 0.4 lies on it
    assert prediction_set(shares, 0.7) == ("A", "B")
    assert prediction_set(shares, 0.1) == ()
    assert prediction_set({}, 0.5) == ()
    assert nonconformity([1.0, 0.0]) == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_coverage_over_a_thousand_calibrations_is_within_binomial_error(alpha):
    rng = np.random.default_rng(17)
    hits = 0
    for _ in range(1000):
        shares = rng.beta(5, 2, 61)  # share of the true answer: 60 for dev-cal, one to come
        threshold = conformal_quantile(nonconformity(shares[:60]), alpha=alpha)
        hits += "truth" in prediction_set({"truth": shares[60]}, threshold)
    expected = np.ceil(61 * (1 - alpha)) / 61  # exact for continuous scores
    assert hits / 1000 == pytest.approx(expected, abs=3 * np.sqrt(expected * (1 - expected) / 1000))
    assert expected >= 1 - alpha


def test_a_level_outside_zero_and_one_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        conformal_quantile([0.1], alpha=1.0)
