"""Inference: against scipy where it has the thing, else by an independent formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pixelis.metrics.statistics import (
    benjamini_hochberg,
    clopper_pearson,
    mean_of_runs,
    paired_permutation_test,
    partial_correlation,
    point_biserial,
    relative_gain,
    spearman,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_papers_table_gives_the_gains_that_its_supplement_tells():
    # tab:comprehensive_comparison_expanded, Pixelis against Pixel Reasoner: "roughly 4-5 %", "about 7 % on VSI-Bench"
    ours, theirs = [90.1, 89.5, 73.8, 87.9, 69.8, 64.4], [88.3, 86.9, 69.8, 85.8, 66.5, 60.1]
    gains = [relative_gain(a, b) for a, b in zip(ours, theirs, strict=True)]
    assert gains[0] == pytest.approx(1.8 / 88.3)
    assert np.mean(gains) == pytest.approx(0.0422, abs=5e-5)
    assert max(gains) == gains[-1] == pytest.approx(0.0715, abs=5e-5)


def test_a_baseline_of_zero_has_no_relative_gain():
    with pytest.raises(ValueError, match="relative to a baseline of 0"):
        relative_gain(1.0, 0.0)


def test_none_of_50216_has_an_upper_bound_of_seven_hundredths_of_a_permille():
    low, high = clopper_pearson(0, 50_216)
    assert low == 0.0
    assert round(100 * high, 4) == 0.0073
    assert high == pytest.approx(1 - 0.025 ** (1 / 50_216))


@pytest.mark.parametrize(("k", "n"), [(3, 10), (10, 10), (12, 50_216), (1, 2)])
def test_clopper_pearson_equals_the_beta_quantiles_of_the_paper(k, n):
    expected = (stats.beta.ppf(0.025, k, n - k + 1), stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0)
    assert clopper_pearson(k, n) == pytest.approx(expected)


def test_no_trials_say_nothing_and_more_successes_than_trials_are_refused():
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2"):
        clopper_pearson(3, 2)


def test_five_pairs_that_all_favour_one_side_have_p_one_sixteenth():
    assert paired_permutation_test([2, 3, 4, 5, 6], [1, 1, 1, 1, 1], rng=rng()).p_value == pytest.approx(2 / 32)


@pytest.mark.parametrize("n", [8, 12, 60])
def test_the_permutation_test_equals_scipy_exact_and_sampled(n):
    a, b = rng(1).normal(0.4, 1, n), rng(2).normal(0, 1, n)
    theirs = stats.permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True,
        n_resamples=10_000, rng=rng(5), batch=2_000_000 // n,
    )  # fmt: skip
    ours = paired_permutation_test(a, b, rng=rng(5))
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=1e-12)
    assert ours.difference == pytest.approx(theirs.statistic)


def test_pairs_that_are_all_equal_have_p_1():
    assert paired_permutation_test([1, 1, 1], [1, 1, 1], rng=rng()) == (0.0, 1.0)


def test_swapping_the_sides_changes_the_sign_and_not_p():
    a, b = [0.9, 0.7, 0.8, 0.4], [0.5, 0.6, 0.9, 0.1]
    one, other = paired_permutation_test(a, b, rng=rng()), paired_permutation_test(b, a, rng=rng())
    assert (one.difference, one.p_value) == (pytest.approx(-other.difference), pytest.approx(other.p_value))


def test_three_runs_are_an_interval_of_students_t():
    # mean 2, standard error √(3 / 3) = 1 of 1, 1 and 4; t(2) at 97.5 % is 4.303 (tables); p of t = 2 is 0.1835
    found = mean_of_runs([1.0, 1.0, 4.0])
    assert (found.low, found.high) == pytest.approx((2 - 4.3027, 2 + 4.3027), abs=1e-3)
    assert found.p_value == pytest.approx(0.1835, abs=1e-4)
    assert mean_of_runs([3.0]) is None
    assert mean_of_runs([3.0, 3.0]) is None
    assert mean_of_runs([0.3, 0.1 + 0.2]) is None


def test_benjamini_hochberg_by_hand():
    result = benjamini_hochberg([0.01, 0.04, 0.03, 0.005])
    assert result.adjusted == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert result.rejected.all()
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005], level=0.03).rejected.tolist() == [True, False, False, True]


@given(st.lists(st.integers(0, 997), min_size=1, max_size=20), st.sampled_from([0.01, 0.05, 0.2]))
def test_benjamini_hochberg_rejects_as_the_step_up_rule_says(counts, level):
    p = [k / 997 for k in counts]  # over a prime, so that no p lies on a bound
    # Benjamini and Hochberg (1995): with k the largest rank whose p is at most level x rank / m, reject p_(1) to p_(k)
    passing = [q for rank, q in enumerate(sorted(p), start=1) if q * len(p) / rank <= level]
    assert benjamini_hochberg(p, level=level).rejected.tolist() == [bool(passing) and q <= max(passing) for q in p]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_benjamini_hochberg_equals_scipy(p):
    assert benjamini_hochberg(p).adjusted == pytest.approx(stats.false_discovery_control(p))


def test_no_tests_have_nothing_to_adjust_and_nan_is_refused():
    assert benjamini_hochberg([]).adjusted.size == 0
    with pytest.raises(ValueError, match="outside"):
        benjamini_hochberg([0.1, float("nan")])


def test_spearman_by_hand():
    # rank differences 0, 1, -1, 0: 1 - 6 x 2 / (4 x 15)
    assert spearman([1, 2, 3, 4], [10, 30, 20, 90]).value == pytest.approx(0.8)
    # ranks 1.5, 1.5, 3 and 1, 2, 3: 1.5 / sqrt(1.5 x 2)
    assert spearman([1, 1, 2], [1, 2, 3]).value == pytest.approx(0.866025, abs=1e-6)


def test_spearman_equals_scipy_with_ties():
    x, y = [1, 2, 2, 3, 5, 4], [2, 1, 3, 3, 6, 6]
    assert spearman(x, y) == pytest.approx(tuple(stats.spearmanr(x, y)))


def test_point_biserial_by_hand():
    # (3.5 - 1.5) / sqrt(1.25) x sqrt(1/2 x 1/2)
    assert point_biserial([0, 0, 1, 1], [1, 2, 3, 4]).value == pytest.approx(0.894427, abs=1e-6)


def test_point_biserial_equals_scipy():
    y, x = [0, 1, 1, 0, 1], [0.1, 0.9, 0.6, 0.4, 0.2]
    assert point_biserial(y, x) == pytest.approx(tuple(stats.pointbiserialr(y, x)))


@pytest.mark.parametrize("correlate", [spearman, point_biserial])
def test_a_side_that_does_not_vary_correlates_with_nothing(correlate):
    assert correlate([1, 1, 1, 1], [0.2, 0.4, 0.1, 0.9]) == (0.0, 1.0)
    assert correlate([1, 0], [0.2, 0.4]) == (0.0, 1.0)


def test_an_outcome_that_is_no_outcome_is_refused():
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        point_biserial([0, 2, 1], [1, 2, 3])


def test_partial_correlation_on_one_control_equals_the_textbook_formula():
    z = rng(3).normal(size=50)
    x, y = z + rng(4).normal(size=50), -z + rng(5).normal(size=50)
    xy, xz, yz = (np.corrcoef(a, b)[0, 1] for a, b in ((x, y), (x, z), (y, z)))
    assert partial_correlation(x, y, z).value == pytest.approx((xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)))


@pytest.mark.parametrize("ranks", [False, True])
def test_partial_correlation_on_two_controls_equals_that_of_the_precision_matrix(ranks):
    z = rng(6).normal(size=(80, 2))
    x, y = z[:, 0] + rng(7).normal(size=80), z @ [0.5, -0.5] + rng(8).normal(size=80)
    columns = np.column_stack([x, y, z])
    columns = stats.rankdata(columns, axis=0) if ranks else columns
    precision = np.linalg.inv(np.corrcoef(columns.T))
    expected = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
    result = partial_correlation(x, y, z, ranks=ranks)
    t = expected * np.sqrt(76 / (1 - expected**2))
    assert result == pytest.approx((expected, 2 * stats.t.sf(abs(t), 76)))


def test_partial_correlation_does_not_depend_on_the_unit():
    z = rng(3).normal(size=50)
    x, y = z + rng(4).normal(size=50), -z + rng(5).normal(size=50)
    assert partial_correlation(1e-12 * x, 1e12 * y, z) == pytest.approx(partial_correlation(x, y, z))


def test_what_the_controls_explain_wholly_correlates_with_nothing():
    z = np.arange(10.0)
    assert partial_correlation(2 * z + 1, rng().normal(size=10), z) == (0.0, 1.0)
    assert partial_correlation([1, 2, 3], [3, 1, 2], [1, 5, 2]) == (0.0, 1.0)  # no degree of freedom is left


def test_lengths_that_differ_and_nan_are_refused():
    with pytest.raises(ValueError, match="2 and 3 values"):
        spearman([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="0 and 0 values"):
        paired_permutation_test([], [], rng=rng())
    with pytest.raises(ValueError, match="NaN"):
        spearman([1, 2, float("nan")], [1, 2, 3])
    with pytest.raises(ValueError, match="one finite row of controls"):
        partial_correlation([1, 2, 3], [1, 2, 3], [1, 2])
