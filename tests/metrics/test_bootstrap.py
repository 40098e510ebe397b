"""Bootstrap intervals: equal to scipy from the same generator, and defined where scipy gives NaN."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from pixelis.metrics import bootstrap
from pixelis.metrics.bootstrap import bca_interval, clustered_interval, stratified_interval
from pixelis.metrics.statistics import spearman


def rng(seed=0):
    return np.random.default_rng(seed)


def theirs(*samples, statistic=np.mean, seed=1, resamples=2000, **options):
    return stats.bootstrap(
        samples, statistic, method="BCa", n_resamples=resamples, rng=rng(seed), **options
    ).confidence_interval


@pytest.mark.parametrize("statistic", [np.mean, np.median, np.std])
def test_bca_equals_scipy_from_the_same_generator(statistic):
    x = rng(3).exponential(size=37)
    ours = bca_interval(x, statistic, rng=rng(1), resamples=2000)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs(x, statistic=statistic)), abs=1e-12)
    assert ours.point == pytest.approx(statistic(x))


def test_bca_of_a_correlation_keeps_its_pairs():
    x = rng(4).normal(size=30)
    y = x + rng(5).normal(size=30)
    ours = bca_interval(
        np.column_stack([x, y]), lambda xy: spearman(xy[:, 0], xy[:, 1]).value, rng=rng(1), resamples=300
    )
    expected = theirs(x, y, statistic=lambda a, b: stats.spearmanr(a, b).statistic, paired=True, vectorized=False,
                      resamples=300)  # fmt: skip
    assert (ours.low, ours.high) == pytest.approx(tuple(expected), abs=1e-12)


def test_drawing_in_chunks_changes_nothing(monkeypatch):
    x = rng(3).random(50)
    whole = bca_interval(x, rng=rng(1), resamples=500)
    monkeypatch.setattr(bootstrap, "CHUNK_CELLS", 50 * 7)
    assert bca_interval(x, rng=rng(1), resamples=500) == pytest.approx((*whole[:3], whole.method))


def test_stratified_bca_equals_scipy_on_as_many_samples():
    a, b = rng(6).random(20), 3 + rng(7).random(12)
    expected = theirs(a, b, statistic=lambda x, y, axis: (20 * x.mean(axis) + 12 * y.mean(axis)) / 32)
    ours = stratified_interval(np.r_[a, b], ["image"] * 20 + ["video"] * 12, rng=rng(1), resamples=2000)
    assert (ours.low, ours.high) == pytest.approx(tuple(expected), abs=1e-12)
    assert ours.high - ours.low < np.ptp(bca_interval(np.r_[a, b], rng=rng(1), resamples=2000)[1:3])


def test_clusters_of_equal_size_are_scipy_on_their_means():
    means = rng(8).random(15)
    rows = np.repeat(means, 4) + np.tile([-0.1, 0.1, -0.2, 0.2], 15)
    ours = clustered_interval(rows, np.repeat(np.arange(15), 4), rng=rng(1), resamples=2000)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs(means)), abs=1e-9)


def test_rows_that_resemble_each_other_widen_the_clustered_interval():
    rows = np.repeat([0.0, 1.0, 0.0, 1.0, 1.0, 0.0], 20)
    plain, clustered = (
        bca_interval(rows, rng=rng(1), resamples=1000),
        clustered_interval(rows, np.repeat(np.arange(6), 20), rng=rng(1), resamples=1000),
    )
    assert clustered.high - clustered.low > 3 * (plain.high - plain.low)


def test_a_constant_sample_has_its_own_value_as_interval():
    assert bca_interval([0.7] * 10, rng=rng()) == (
        pytest.approx(0.7),
        pytest.approx(0.7),
        pytest.approx(0.7),
        "constant",
    )
    assert bca_interval([0.7], rng=rng()).method == "constant"


def test_twenty_right_answers_of_twenty_have_clopper_pearsons_interval():
    # 0.025 ** (1 / 20) = 0.8316
    assert bca_interval(np.ones(20), rng=rng()) == (1.0, pytest.approx(0.8316, abs=1e-4), 1.0, "exact")
    assert bca_interval(np.zeros(20), rng=rng()) == (0.0, 0.0, pytest.approx(0.1684, abs=1e-4), "exact")


def test_a_constant_cluster_is_one_trial():
    assert clustered_interval(np.ones(20), [1] * 10 + [2] * 10, rng=rng()).low == pytest.approx(0.025 ** (1 / 2))


def test_strata_that_are_constant_in_themselves_do_not_vary():
    assert stratified_interval([1, 1, 5, 5], ["a", "a", "b", "b"], rng=rng(), resamples=50) == (3, 3, 3, "constant")
    assert clustered_interval([1, 2, 3], ["a", "a", "a"], rng=rng(), resamples=50) == (2, 2, 2, "constant")


def test_a_stratum_of_one_row_has_no_influence_and_no_nan():
    interval = stratified_interval([1, 2, 4, 9], ["a", "a", "a", "b"], rng=rng(), resamples=500)
    assert interval.low <= interval.point <= interval.high


@settings(max_examples=60)
@given(
    hnp.arrays(float, st.integers(1, 8), elements=st.sampled_from([0.0, 1.0, 0.5, 100.0, -3.0])),
    st.sampled_from([np.mean, np.median, np.max]),
)
def test_an_interval_is_never_nan_and_stays_among_the_data(sample, statistic):
    interval = bca_interval(sample, statistic, rng=rng(), resamples=60)
    assert not any(math.isnan(v) for v in interval[:3])
    assert interval.low <= interval.high
    if interval.method != "exact":
        assert sample.min() - 1e-9 <= interval.low <= interval.high <= sample.max() + 1e-9


def test_ninety_five_percent_intervals_hold_the_truth_about_that_often():
    draw = rng(9)
    hits = [
        low <= 1 <= high
        for _, low, high, _ in (bca_interval(draw.exponential(size=40), rng=draw, resamples=400) for _ in range(400))
    ]
    assert 0.89 < np.mean(hits) < 0.98  # binomial sd 0.011; BCa is a little short of 0.95 on skewed samples of 40


def test_bad_rows_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        bca_interval([], rng=rng())
    with pytest.raises(ValueError, match="NaN"):
        bca_interval([1, float("nan")], rng=rng())
    with pytest.raises(ValueError, match="one name a row"):
        stratified_interval([1, 2], ["a"], rng=rng())
    with pytest.raises(ValueError, match="level 1"):
        bca_interval([1, 2], rng=rng(), level=1)
