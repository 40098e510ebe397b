import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from pixelis.equations.calibration import (
    fit_affine,
    fit_confidence_temperature,
    fit_isotonic,
    fit_platt,
    fit_temperature,
    raw_confidence,
    vote_calibration,
)


def overconfident(seed=0, n=4000, temperature=2.0, classes=4):
    """Logits whose true distribution is softmax(s / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (n, classes))
    p = softmax(logits / temperature, axis=1)
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return logits, labels


def test_two_answers_of_which_three_quarters_are_right_have_a_temperature_by_hand():
    # logits (0, ln 9) say 0.9; the best T has sigmoid(ln 9 / T) = 3/4, so T = ln 9 / ln 3 = 2
    fitted = fit_temperature([[0.0, np.log(9.0)]] * 4, [1, 1, 1, 0])
    assert fitted.temperature == pytest.approx(2.0, abs=1e-6)
    assert fitted([[0.0, np.log(9.0)]])[0] == pytest.approx([0.25, 0.75], abs=1e-6)


def test_temperature_finds_the_one_that_made_the_labels():
    logits, labels = overconfident()
    assert fit_temperature(logits, labels).temperature == pytest.approx(2.0, abs=0.1)


def test_temperature_is_the_minimum_of_a_fine_grid():
    logits, labels = overconfident(seed=3, n=200)
    grid = np.linspace(0.5, 5, 4501)
    nll = [-log_softmax(logits / t, axis=1)[np.arange(200), labels].mean() for t in grid]
    fitted = fit_temperature(logits, labels)
    assert fitted.temperature == pytest.approx(grid[np.argmin(nll)], abs=1e-3)
    assert fitted.nll <= min(nll) + 1e-12


def test_a_single_confidence_is_tempered_through_its_logit():
    fitted = fit_confidence_temperature([0.9] * 4, [1, 1, 1, 0])
    assert fitted.temperature == pytest.approx(2.0, abs=1e-6)
    assert fitted.confidence([0.9, 0.5]) == pytest.approx([0.75, 0.5], abs=1e-6)
    assert np.isfinite(fitted.confidence([0.0, 1.0])).all()


def test_temperature_without_data_or_without_differences_is_one():
    assert fit_temperature(np.zeros((0, 3)), []).temperature == 1.0
    assert fit_temperature(np.ones((5, 3)), [0, 1, 2, 0, 1]).temperature == 1.0


def test_answers_that_are_all_right_stop_at_the_lowest_temperature():
    assert fit_temperature([[0.0, 1.0]] * 5, [1] * 5).temperature == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize(
    ("logits", "labels", "says"),
    [([[0.0, 1.0]], [0, 1], "one row of logits for each label"), ([[0.0, 1.0]], [2], "2 classes")],
)
def test_logits_and_labels_must_fit(logits, labels, says):
    with pytest.raises(ValueError, match=says):
        fit_temperature(logits, labels)


def test_platt_equals_scikit_learn():
    scores = np.array([-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    fitted = fit_platt(scores, [0, 0, 1, 0, 0, 1, 0, 1, 1, 1])
    # scikit-learn 1.9.1, sklearn.calibration._SigmoidCalibration on the same numbers (its a and b have minus signs)
    assert fitted.slope == pytest.approx(0.6640431491369831, abs=1e-6)
    assert fitted.intercept == pytest.approx(-0.1660107758213118, abs=1e-6)


def test_platt_stays_finite_on_separable_data_and_is_the_sigmoid_without_any():
    assert np.isfinite(fit_platt([-1.0, 1.0], [0, 1]).slope)
    assert fit_platt([], [])([0.3]) == pytest.approx(expit([0.3]))


def test_platt_one_against_the_rest_sums_to_one():
    logits, labels = overconfident(n=500)
    p = fit_platt(logits, labels)(logits)
    assert p.sum(axis=1) == pytest.approx(np.ones(500))
    before = -log_softmax(logits, axis=1)[np.arange(500), labels].mean()
    assert -np.log(p[np.arange(500), labels]).mean() < before


@pytest.mark.parametrize("kind", ["vector", "matrix"])
def test_scaling_recovers_a_known_map(kind):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (20_000, 3))
    weight, bias = np.diag([0.5, 0.8, 0.3]), np.array([0.4, 0.0, -0.4])
    p = softmax(logits @ weight.T + bias, axis=1)
    labels = (p.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    fitted = fit_affine(logits, labels, kind=kind, ridge=1e-6)
    np.testing.assert_allclose(fitted(logits), p, atol=0.03)


def test_vector_scaling_has_a_diagonal_weight_and_never_does_worse_than_temperature():
    logits, labels = overconfident(n=800)
    fitted = fit_affine(logits, labels, ridge=0.0)
    assert fitted.weight == pytest.approx(np.diag(np.diag(fitted.weight)))
    nll = -np.log(fitted(logits)[np.arange(800), labels]).mean()
    assert nll <= fit_temperature(logits, labels).nll + 1e-9


def test_scaling_without_data_is_the_identity():
    fitted = fit_affine(np.zeros((0, 2)), [], kind="matrix")
    assert fitted.weight == pytest.approx(np.eye(2))


def test_isotonic_by_hand_and_as_scikit_learn():
    # means 0 | 1, 0, 0.5 (two) pool to 2/4 | 1, 0 pool to 1/2 | 1
    fitted = fit_isotonic([0.1, 0.2, 0.3, 0.4, 0.4, 0.6, 0.7, 0.9], [0, 1, 0, 0, 1, 1, 0, 1])
    # scikit-learn 1.9.1, IsotonicRegression(out_of_bounds="clip").predict
    expected = [0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
    assert fitted([0, 0.1, 0.25, 0.4, 0.5, 0.65, 0.9, 1]) == pytest.approx(expected)


def test_isotonic_without_data_is_the_identity_and_lengths_must_fit():
    assert fit_isotonic([], [])([0.3, 0.7]) == pytest.approx([0.3, 0.7])
    with pytest.raises(ValueError, match="2 confidences, but 1 outcomes"):
        fit_isotonic([0.1, 0.2], [1])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_no_calibrator_is_fitted_on_broken_scores(broken):
    for fit in (fit_platt, fit_isotonic):
        with pytest.raises(ValueError, match="1 scores to calibrate on are NaN or infinite"):
            fit([broken, 0.5], [0, 1])
    for fit in (fit_temperature, fit_affine):
        with pytest.raises(ValueError, match="NaN or infinite"):
            fit([[0.0, broken], [0.0, 1.0]], [0, 1])
    with pytest.raises(ValueError, match="NaN or infinite"):
        fit_confidence_temperature([np.nan, 0.5], [0, 1])


def test_raw_confidence_takes_the_geometric_mean_of_the_tools():
    # 0.9 x sqrt(0.8 x 0.2) = 0.9 x 0.4
    assert raw_confidence(0.9, [0.8, 0.2]) == pytest.approx(0.36)
    assert raw_confidence(0.9) == pytest.approx(0.9)
    for broken in (1.2, np.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            raw_confidence(broken)


def test_the_votes_calibration_is_a_power():
    assert vote_calibration([0.25, 1.0], alpha=0.5) == pytest.approx([0.5, 1.0])
    assert vote_calibration([0.25]) == pytest.approx([0.25])
    assert 0.0 < vote_calibration([0.0])[0] < 1e-9
    assert np.isnan(vote_calibration([np.nan])).all()
