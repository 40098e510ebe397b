import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pixelis.equations.coherence import (
    adjacent_cosines,
    argument_vector,
    coherence,
    cpc_alignment,
    l2_smoothness,
    tv_smoothness,
    zscore_cosines,
)
from pixelis.equations.embedding import CosineStatistics

STATISTICS = CosineStatistics(mean=0.6, std=0.2, samples=100)
TURN = [[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
"""A right angle, then the same direction again."""

chains = arrays(float, st.tuples(st.integers(2, 6), st.just(3)), elements=st.floats(-10, 10))


def test_adjacent_cosines_of_a_right_angle_and_a_repetition():
    assert adjacent_cosines(TURN) == pytest.approx([0.0, 1.0])


def test_coherence_is_the_mean_of_standardised_cosines():
    # z = (0 − 0.6)/0.2 = −3 and (1 − 0.6)/0.2 = 2
    assert coherence(TURN, STATISTICS) == pytest.approx(-0.5)


def test_the_flag_gives_the_sum_of_the_main_text():
    assert coherence(TURN, STATISTICS, total=True) == pytest.approx(-1.0)


@pytest.mark.parametrize("chain", [[], np.zeros((0, 512)), [[1.0, 0.0]]])
def test_chains_of_no_and_of_one_step_score_zero(chain):
    assert adjacent_cosines(chain).shape == (0,)
    assert coherence(chain, STATISTICS) == coherence(chain, STATISTICS, total=True) == 0.0
    assert l2_smoothness(chain) == tv_smoothness(chain) == cpc_alignment(chain) == 0.0


def test_an_embedding_of_length_zero_has_cosine_zero():
    assert adjacent_cosines([[0.0, 0.0], [1.0, 0.0]]) == pytest.approx([0.0])
    # but a tiny or a huge one keeps its direction
    assert adjacent_cosines([[3e-200, 4e-200], [3e200, 4e200]]) == pytest.approx([1.0])


def test_statistics_without_spread_standardise_to_zero():
    assert zscore_cosines([0.3, 0.9], CosineStatistics(0.5, 0.0, 2)).tolist() == [0.0, 0.0]
    assert math.isnan(zscore_cosines([math.nan], CosineStatistics(0.5, 0.0, 2))[0])


def test_a_chain_with_nan_scores_nan():
    assert math.isnan(coherence([[1.0, 0.0], [math.nan, 0.0]], STATISTICS))


def test_something_that_is_no_chain_is_refused():
    with pytest.raises(ValueError, match=r"a chain is a \(T, d\) array"):
        adjacent_cosines([1.0, 2.0])


@given(chains)
def test_cosines_lie_between_minus_one_and_one(chain):
    assert (np.abs(adjacent_cosines(chain)) <= 1 + 1e-9).all()


def test_l2_smoothness_is_the_mean_squared_step():
    # steps (3, 4) and (0, 0): −(25 + 0)/2
    assert l2_smoothness([[0, 0], [3, 4], [3, 4]]) == pytest.approx(-12.5)


def test_tv_smoothness_adds_a_tenth_of_the_euclidean_step():
    # −(7 + 0.1·5)
    assert tv_smoothness([[0, 0], [3, 4]]) == pytest.approx(-7.5)


def test_cpc_is_the_log_share_of_the_step_before():
    # E_1 = (0, 1) meets E_0 (0) and another chain's step (1), not itself: 0 − ln(e⁰ + e¹)
    assert cpc_alignment([[1, 0], [0, 1]], [[0, 1]], temperature=1.0) == pytest.approx(-1.313262, abs=1e-6)


def test_cpc_without_anything_to_confuse_a_step_with_is_zero():
    assert cpc_alignment([[1, 0], [0, 1]], []) == pytest.approx(0.0)


@given(chains, chains)
def test_the_rivals_never_pass_zero(chain, others):
    assert l2_smoothness(chain) <= 0
    assert tv_smoothness(chain) <= 0
    assert cpc_alignment(chain, others) <= 1e-9


def test_the_argument_vector_is_where_a_call_looks():
    assert argument_vector((0.1, 0.2, 0.3, 0.4), (0.5, 0.6)).tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert argument_vector().tolist() == [0, 0, 1, 1, 0, 1]
