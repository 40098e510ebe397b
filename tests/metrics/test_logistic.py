"""Logistic regression, AUC and AP: equal to scikit-learn's recorded values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.metrics.logistic import (
    average_precision,
    fit_logistic,
    held_out_probabilities,
    predictive_power,
    roc_auc,
)

I = np.arange(40)  # noqa: E741
X = np.column_stack([np.sin(I), (I % 7) / 7.0])
Y = (np.sin(I) + ((I * I) % 5) / 5 > 0.5).astype(int)

SCORED = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("C", "weights", "auc", "ap"),  # scikit-learn 1.9.1: LogisticRegression(C=C, tol=1e-12), roc_auc_score, ap_score
    [
        (1.0, [-0.03766543553, 2.79680820178, -0.17025941380], 0.995, 0.9954545454545454),
        (0.1, [-0.01686662774, 0.84785534602, -0.02080614952], 0.9925, 0.9929545454545454),
        (100.0, [0.27729286538, 10.59987490147, -2.68993699319], 0.995, 0.9954545454545454),
    ],
)
def test_the_fit_equals_scikit_learn(C, weights, auc, ap):
    model = fit_logistic(X, Y, C=C)
    assert [model.intercept, *model.coefficients] == pytest.approx(weights, abs=2e-7)
    assert roc_auc(Y, model.probabilities(X)) == pytest.approx(auc)
    assert average_precision(Y, model.probabilities(X)) == pytest.approx(ap)


def test_auc_and_ap_with_ties_equal_scikit_learn():
    score = ((I * 3) % 10) / 10  # scikit-learn 1.9.1
    assert roc_auc(Y, score) == pytest.approx(0.56)
    assert average_precision(Y, score) == pytest.approx(0.5625992063492063)


def test_at_the_optimum_the_gradient_vanishes():
    model = fit_logistic(X, Y, C=3.0)
    residual = model.probabilities(X) - Y
    assert residual.sum() == pytest.approx(0.0, abs=1e-9)
    assert model.coefficients + 3.0 * X.T @ residual == pytest.approx(np.zeros(2), abs=1e-9)


def test_separable_data_stay_finite_under_the_ridge():
    model = fit_logistic([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1], C=1e6)
    assert np.isfinite([model.intercept, *model.coefficients]).all()
    assert roc_auc([0, 0, 1, 1], model.probabilities([-2.0, -1.0, 1.0, 2.0])) == 1.0


def test_one_class_only_has_no_slope_and_the_smoothed_log_odds():
    model = fit_logistic(X[:9], np.ones(9))
    assert model.intercept == pytest.approx(np.log(9.5 / 0.5))
    assert not model.coefficients.any()


def test_auc_by_hand_counts_ties_half():
    assert roc_auc([1, 0, 1, 0], [0.9, 0.5, 0.5, 0.1]) == pytest.approx((1 + 1 + 0.5 + 1) / 4)


def test_ap_by_hand():
    assert average_precision([1, 0, 1], [0.9, 0.8, 0.7]) == pytest.approx((1 + 2 / 3) / 2)


def test_one_class_only_has_an_auc_of_a_half_and_no_success_an_ap_of_0():
    assert roc_auc([1, 1], [0.1, 0.2]) == 0.5
    assert average_precision([0, 0], [0.1, 0.2]) == 0.0
    assert average_precision([1, 1], [0.1, 0.2]) == 1.0


@given(SCORED)
def test_turning_the_scores_round_turns_auc_round(rows):
    y, s = (np.array(column) for column in zip(*rows, strict=True))
    assert roc_auc(y, s) == pytest.approx(1 - roc_auc(y, -s))


def test_held_out_probabilities_never_saw_their_own_row():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(60, 30))  # thirty features of noise fit sixty rows well, and predict nothing
    outcome = rng.integers(0, 2, 60)
    seen = fit_logistic(noise, outcome, C=10).probabilities(noise)
    held = held_out_probabilities(noise, outcome, rng=np.random.default_rng(1), C=10)
    assert roc_auc(outcome, seen) > 0.9
    assert roc_auc(outcome, held) < 0.7


def test_predictive_power_of_a_real_signal_is_high_held_out_too():
    power = predictive_power(X, Y, rng=np.random.default_rng(0))
    assert power.auc > 0.95
    assert power.average_precision > 0.95


def test_a_single_row_is_predicted_by_itself():
    assert held_out_probabilities([[1.0]], [1], rng=np.random.default_rng(0)) == pytest.approx(
        [0.75]
    )  # (1 + ½) / (1 + 1)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        fit_logistic([], [])
    with pytest.raises(ValueError, match="2 rows, 1 outcomes"):
        fit_logistic([[1], [2]], [1])
    with pytest.raises(ValueError, match="3 rows and 2 outcomes"):
        held_out_probabilities([[1], [2], [3]], [1, 0], rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="0 or 1"):
        roc_auc([0.5], [1])
    with pytest.raises(ValueError, match="not NaN"):
        average_precision([1, 0], [1, float("nan")])
