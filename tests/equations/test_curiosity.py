import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from pixelis.equations.curiosity import (
    chain_curiosity,
    curiosity_rewards,
    dynamics_loss,
    feature_loss,
    mc_variance,
    prediction_error,
)

HERE, THERE = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
NAN = float("nan")


def test_the_dynamics_loss_weighs_regression_direction_and_validity():
    # 0.5·SmoothL1(0.5) + 0.5·(1 − 0) + 1.0·BCE(logit 0) = 0.25 + 0.5 + ln 2
    loss = dynamics_loss(HERE, THERE, torch.zeros(1), torch.ones(1))
    assert loss.item() == pytest.approx(0.75 + math.log(2), abs=1e-6)


def test_a_batch_without_steps_has_loss_zero():
    assert dynamics_loss(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0)).item() == 0.0


def test_the_dynamics_loss_refuses_lengths_that_differ():
    with pytest.raises(ValueError, match=r"expected the same \(n, d\)"):
        feature_loss(torch.zeros(2, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="for 1 steps"):
        dynamics_loss(HERE, THERE, torch.zeros(2), torch.zeros(2))


def test_the_dynamics_loss_passes_gradcheck():
    generator = torch.Generator().manual_seed(0)
    v_hat, v = (torch.randn(4, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    r_hat = torch.randn(4, dtype=torch.float64, generator=generator)
    valid = torch.tensor([1.0, 0.0, 1.0, 1.0])
    inputs = (v_hat.requires_grad_(), r_hat.requires_grad_())
    assert gradcheck(lambda a, b: dynamics_loss(a, v, b, valid), inputs)


def test_the_prediction_error_mixes_distance_and_direction_half_and_half():
    # 0.5·(1 + 1) + 0.5·(1 − 0)
    assert prediction_error(HERE, THERE) == pytest.approx([1.5])
    # per dimension: 0.5·2/2 + 0.5
    assert prediction_error(HERE, THERE, per_dimension=True) == pytest.approx([1.0])


def test_a_perfect_prediction_has_no_error_and_nothing_against_nothing_has_half():
    assert prediction_error([[3, 4]], [[3, 4]]) == pytest.approx([0.0])
    # a zero vector has cosine 0: 0.5·0 + 0.5·1
    assert prediction_error([[0, 0]], [[0, 0]]) == pytest.approx([0.5])


def test_tiny_and_huge_features_keep_their_direction():
    assert prediction_error([[1e-200, 0]], [[1e-200, 0]]) == pytest.approx([0.0])
    assert prediction_error([[1e200, 0]], [[1e200, 0]]) == pytest.approx([0.0])


def test_no_gradient_reaches_the_target():
    target = THERE.clone().requires_grad_()
    feature_loss(HERE.clone().requires_grad_(), target).backward()
    assert target.grad is None


def test_a_prediction_that_is_not_a_number_has_no_error():
    assert np.isnan(prediction_error([[NAN, 1.0]], [[1.0, 1.0]])).all()


def test_the_variance_over_dropout_passes_is_averaged_over_dimensions():
    # passes (0, 0) and (2, 4): variances 1 and 4
    assert mc_variance([[[0, 0]], [[2, 4]]]) == pytest.approx([2.5])


def test_a_single_pass_has_no_variance():
    assert mc_variance(np.ones((1, 3, 2))).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="S at least 1"):
        mc_variance(np.ones((0, 3, 2)))


def test_uncertain_steps_and_doubtful_tools_earn_less():
    # 1.5 / (1 + 5·0.1) = 1.0; σ(0) = 0.5
    assert curiosity_rewards([1.5], [0.1], [0.0]) == pytest.approx([0.5])


def test_rare_spikes_are_clipped_to_the_batchs_95th_percentile():
    # of 0, 1, …, 20 the 95th percentile is 19
    rewards = curiosity_rewards(np.arange(21.0), np.zeros(21), np.full(21, 1e4))
    assert rewards[-2:] == pytest.approx([19, 19])


def test_broken_steps_earn_nothing_and_do_not_move_the_percentile():
    rewards = curiosity_rewards([1.0, NAN, 1.0, 1.0], [0, 0, float("inf"), 0], [1e3, 0, 0, -1e3])
    assert rewards == pytest.approx([1, 0, 0, 0])
    assert curiosity_rewards([NAN], [0], [0]).tolist() == [0.0]


def test_a_batch_without_steps_pays_nothing():
    assert curiosity_rewards([], [], []).shape == (0,)
    assert chain_curiosity([]) == 0.0


def test_curiosity_refuses_lengths_that_differ():
    with pytest.raises(ValueError, match=r"expected the same \(n,\)"):
        curiosity_rewards([1.0, 2.0], [0.0], [0.0])
    with pytest.raises(ValueError, match=r"expected the same \(n, d\)"):
        prediction_error([[1.0]], [[1.0, 2.0]])


def test_a_chains_curiosity_is_the_mean_of_its_steps_or_their_sum():
    assert chain_curiosity([1, 2, 6]) == pytest.approx(3.0)
    assert chain_curiosity([1, 2, 6], total=True) == pytest.approx(9.0)


@given(st.lists(st.tuples(st.floats(), st.floats(0, 1e6), st.floats()), max_size=20))
def test_curiosity_is_finite_whatever_comes_in(steps):
    columns = np.array(steps, dtype=float).reshape(-1, 3).T
    assert np.isfinite(curiosity_rewards(*columns)).all()
