import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pixelis.equations.zscore import mean_and_std, zscore, zscore_with

NAN = float("nan")


def test_a_batch_is_standardised_as_a_whole_or_along_an_axis():
    # 0, 2 | 4, 10: mean 4, spread sqrt((16 + 4 + 0 + 36) / 4) = sqrt(14)
    assert zscore([[0, 2], [4, 10]]) == pytest.approx(np.array([[-4, -2], [0, 6]]) / math.sqrt(14))
    assert zscore([[0, 2], [4, 10]], axis=-1) == pytest.approx(np.array([[-1, 1], [-1, 1]]))


def test_a_spread_that_is_not_over_the_least_one_gives_zeros():
    assert zscore([0.0, 2e-9], min_spread=1e-9).tolist() == [0.0, 0.0]
    assert zscore([0.0, 2.1e-9], min_spread=1e-9) == pytest.approx([-1.0, 1.0])


def test_nothing_and_nothing_known_give_zeros():
    assert zscore([]).shape == (0,)
    assert zscore(np.zeros((2, 0)), axis=-1).shape == (2, 0)
    assert zscore([NAN, float("inf")]).tolist() == [0.0, 0.0]
    assert zscore([[NAN, NAN], [0, 2]], axis=-1).tolist() == [[0.0, 0.0], [-1.0, 1.0]]


@given(arrays(float, st.integers(1, 9), elements=st.floats(-1e6, 1e6)))
def test_z_scores_have_mean_zero_and_spread_one_or_are_all_zero(values):
    z = zscore(values)
    assert z.mean() == pytest.approx(0.0, abs=1e-3)
    assert z.std() == pytest.approx(1.0) or not z.any()


def test_fixed_statistics_are_one_pair_or_one_for_each_value():
    assert zscore_with([0.5, 1.0], 0.5, 0.25) == pytest.approx([0.0, 2.0])
    assert zscore_with([0.5, 1.0], [0.0, 1.5], [0.5, 0.25]) == pytest.approx([1.0, -2.0])


def test_without_spread_everything_is_zero_and_nan_stays():
    assert zscore_with([1.0, 2.0], 0.0, 0.0).tolist() == [0.0, 0.0]
    assert zscore_with([1.0], 0.0, NAN).tolist() == [0.0]
    assert np.isnan(zscore_with([NAN], 0.0, 0.0)).all()


def test_statistics_of_finite_values_and_of_equal_ones():
    assert mean_and_std([1, 3, NAN, float("inf")]) == (2.0, 1.0, 2)
    assert mean_and_std([0.1] * 7) == (pytest.approx(0.1), 0.0, 7)
    assert mean_and_std([]) == (0.0, 0.0, 0)


def test_the_smallest_and_the_largest_floats_have_a_spread_too():
    assert zscore([6.27e-162, 0.0]) == pytest.approx([1.0, -1.0])
    assert zscore([1e200, -1e200, 0.0]) == pytest.approx([1.5**0.5, -(1.5**0.5), 0.0])
