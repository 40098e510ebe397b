import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.equations.reward import (
    RewardWeights,
    ccrft_reward,
    final_reward,
    penalty,
    repeated_calls,
    tool_use,
    variance_shares,
    zscore,
)

NAN = float("nan")
finite = st.floats(-1e3, 1e3)


def test_the_reward_adds_answer_curiosity_and_coherence_and_takes_the_penalty_off():
    rewards = ccrft_reward([1, -1], [0, 2], [5, 5], [0, 0.3])
    # curiosity z-scored is (−1, 1), coherence (0, 0): 1 − 0.2 and −1 + 0.2 − 0.3
    assert rewards.total == pytest.approx([0.8, -1.1])
    assert rewards.curiosity == pytest.approx([-0.2, 0.2])
    assert rewards.penalty == pytest.approx([0.0, -0.3])


def test_weights_scale_their_terms():
    rewards = ccrft_reward([1, -1], [0, 2], [2, 0], [0, 1], weights=RewardWeights(2, 0.5, 0.25, 3))
    assert rewards.total == pytest.approx([2 - 0.5 + 0.25, -2 + 0.5 - 0.25 - 3])


def test_variance_shares_are_the_covariances_of_the_terms_with_the_sum():
    shares = variance_shares(ccrft_reward([1, -1], [0, 2], [5, 5], [0, 0.3]))
    # R centred is ±0.95, ΣR² = 1.805: 1.9/1.805, −0.38/1.805, 0, 0.285/1.805
    assert shares == pytest.approx(
        {"final": 1.052632, "curiosity": -0.210526, "coherence": 0.0, "penalty": 0.157895, "tool_use": 0.0}, abs=1e-6
    )


def test_with_our_weights_the_answer_holds_nine_tenths_of_the_variance():
    rng = np.random.default_rng(0)
    rewards = ccrft_reward(rng.choice([-1, 1], 5000), rng.normal(size=5000), rng.normal(size=5000), np.zeros(5000))
    # 1 / (1 + 0.04 + 0.04) = 0.926 and 0.04 / 1.08 = 0.037
    assert variance_shares(rewards) == pytest.approx(
        {"final": 0.926, "curiosity": 0.037, "coherence": 0.037, "penalty": 0, "tool_use": 0}, abs=0.02
    )


@given(st.lists(st.tuples(finite, finite, finite, finite), min_size=2, max_size=20))
def test_variance_shares_add_up_to_one_or_are_all_zero(rows):
    shares = sum(variance_shares(ccrft_reward(*np.array(rows).T)).values())
    assert shares == pytest.approx(1.0, abs=1e-6) or shares == 0.0


def test_a_rollout_without_a_known_curiosity_gets_the_batch_mean():
    # the others are 0 and 2: z = −1, 1
    assert zscore([0, NAN, 2, float("inf")]) == pytest.approx([-1, 0, 1, 0])


def test_constant_single_and_empty_batches_standardise_to_zero():
    assert zscore([0.1] * 7).tolist() == [0.0] * 7
    assert zscore([4]).tolist() == [0.0]
    assert zscore([]).shape == (0,)
    assert ccrft_reward([], [], [], []).total.shape == (0,)
    assert set(variance_shares(ccrft_reward([], [], [], [])).values()) == {0.0}


def test_inside_groups_a_question_that_all_get_right_says_nothing_about_its_rollouts():
    """Two questions of two rollouts: all right, then all wrong. Only curiosity tells the rollouts of one apart."""
    rewards = ccrft_reward([1, 1, -1, -1], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0])
    assert variance_shares(rewards)["final"] == pytest.approx(1 / (1 + 0.2**2))
    inside = variance_shares(rewards, samples=2)
    assert (inside["final"], inside["curiosity"]) == (0.0, pytest.approx(1.0))


def test_right_is_one_wrong_is_minus_one_and_graded_answers_lie_between():
    assert final_reward([1, 0, 0.75, NAN]) == pytest.approx([1, -1, 0.5, -1])


def test_a_task_score_over_one_is_refused():
    with pytest.raises(ValueError, match="expected 0 to 1"):
        final_reward([0.5, 1.2])


def test_an_invalid_call_costs_three_tenths_and_a_repeated_one_as_much():
    # A, A again (repeated), B (invalid): 2 · 0.30
    assert penalty(["A", "A", "B"], [True, True, False]) == pytest.approx(0.6)


def test_a_call_that_is_invalid_and_repeated_is_paid_once():
    assert penalty(["A", "A"], [True, False]) == pytest.approx(0.3)


def test_calls_beyond_the_sixth_cost_two_hundredths_each():
    assert penalty(list("ABCDEF"), [True] * 6) == 0.0
    assert penalty(list("ABCDEFGH"), [True] * 8) == pytest.approx(0.04)


def test_an_empty_trace_has_no_penalty():
    assert penalty([], []) == 0.0


def test_only_a_direct_repetition_counts():
    assert repeated_calls(["A", "B", "A", "A"]) == (False, False, False, True)
    assert repeated_calls([]) == ()


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="2 calls, 1 validities"):
        penalty(["A", "B"], [True])
    with pytest.raises(ValueError, match="reward terms differ in shape"):
        ccrft_reward([1], [1, 2], [1], [1])


def test_a_final_reward_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="R_final or R_pen"):
        ccrft_reward([NAN], [0], [0], [0])


def test_scalers_weigh_the_calls_that_are_wrong():
    # two wrong calls at 0.3 each, weighed 2 and 0.5; the right one does not count
    assert penalty(["A", "B", "C"], [False, False, True], scalers=[2.0, 0.5, 9.0]) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="scalers"):
        penalty(["A"], [True], scalers=[])


def test_tools_earn_a_bonus_where_they_are_rare_and_cost_by_the_call():
    # one of four uses tools: 0.5 * (0.3 - 0.25) for it, and two calls more than one at 0.05
    rare = tool_use([[3, 0, 0, 0]])
    np.testing.assert_allclose(rare, [[0.5 * 0.05 - 0.1, 0.0, 0.0, 0.0]])
    # where half use them there is no bonus
    np.testing.assert_allclose(tool_use([[1, 2, 0, 0]]), [[0.0, -0.05, 0.0, 0.0]])


def test_a_rival_term_enters_with_its_own_weight():
    rewards = ccrft_reward([1, -1], [0, 0], [0, 0], [0, 0], [0.5, 0.0], weights=RewardWeights(1, 0, 0, 0, 2.0))
    np.testing.assert_allclose(rewards.total, [2.0, -1.0])
    assert sum(variance_shares(rewards).values()) == pytest.approx(1.0)
