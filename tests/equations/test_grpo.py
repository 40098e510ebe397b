import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from pixelis.equations.grpo import group_advantage, grpo_loss, top_k

NAN = float("nan")


def loss_of(ratio, advantage, **options):
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    return grpo_loss(
        log_probs, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1, dtype=torch.bool), **options
    )


def two_rollouts():
    """One token at ratio 1.1 with advantage 1, three tokens at ratio 1 with advantage −1, padding NaN."""
    log_probs = torch.tensor([[math.log(1.1), NAN, NAN], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    return log_probs, torch.zeros(2, 3, dtype=torch.float64), torch.tensor([1.0, -1.0]), mask


def test_advantages_are_standardised_inside_the_group():
    # first group: mean 0.5, spread 0.5; second: mean 4, spread sqrt(8/3)
    assert group_advantage([1, 0, 0, 1]) == pytest.approx([1, -1, -1, 1])
    assert group_advantage([[2, 4, 6]])[0] == pytest.approx([-1.224745, 0, 1.224745], abs=1e-6)


def test_a_group_of_equal_rewards_teaches_nothing():
    assert group_advantage([0.1 + 0.2, 0.3, 0.3]).tolist() == [0, 0, 0]
    assert group_advantage([0.1 + 0.2 - 0.3, 0.0, 0.0]).tolist() == [0, 0, 0]  # 5e-17, 0, 0
    assert group_advantage([5.0]).tolist() == [0]
    assert group_advantage(np.zeros((2, 0))).shape == (2, 0)


def test_a_rollout_without_a_reward_stands_aside():
    assert group_advantage([1, NAN, 0]) == pytest.approx([1, 0, -1])
    assert group_advantage([NAN, NAN]).tolist() == [0, 0]
    # each group by itself, an infinite reward like an unknown one
    assert group_advantage([[1, float("inf"), 0], [5, 5, 5]]) == pytest.approx(np.array([[1, 0, -1], [0, 0, 0]]))


def test_with_the_spread_of_the_batch_a_group_that_agrees_speaks_softly():
    # differences 0.5, −0.5, 0.1, −0.1: their mean square is 0.13
    found = group_advantage([[1, 0], [0.2, 0.0]], advantage_std="batch")
    assert found == pytest.approx(np.array([[0.5, -0.5], [0.1, -0.1]]) / 0.13**0.5)
    # an unknown reward stands aside: differences 0.5, −0.5, 0, and a mean square of 0.5 / 3
    found = group_advantage([[1, 0], [NAN, 3.0]], advantage_std="batch")
    assert found == pytest.approx(np.array([[0.5, -0.5], [0.0, 0.0]]) / (0.5 / 3) ** 0.5)
    assert group_advantage([[3, 3], [0.1 + 0.2, 0.3]], advantage_std="batch").tolist() == [[0, 0], [0, 0]]
    assert group_advantage([[NAN, NAN]], advantage_std="batch").tolist() == [[0, 0]]


def test_a_single_number_is_no_group():
    with pytest.raises(ValueError, match="expected the rewards of a group"):
        group_advantage(1.0)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=10), st.floats(-100, 100), st.floats(0.1, 10))
def test_advantages_do_not_depend_on_the_offset_and_the_scale_of_rewards(rewards, offset, scale):
    rewards = np.round(rewards, 3)
    assert group_advantage(scale * rewards + offset) == pytest.approx(group_advantage(rewards), abs=1e-6)
    assert group_advantage(rewards).sum() == pytest.approx(0.0, abs=1e-9)


def test_the_best_k_rollouts_keep_their_order():
    assert top_k([0.1, 0.9, NAN, 0.5, 0.9], k=3) == (1, 3, 4)
    assert top_k([0.1, 0.2]) == (0, 1)
    assert top_k([]) == ()


def test_a_ratio_of_one_gives_the_advantage_back():
    assert loss_of(1.0, 2.0).total.item() == pytest.approx(-2.0)


def test_a_gain_is_clipped_and_a_loss_is_not():
    # A = 1: −min(1.5, 1.2); A = −1: −min(−1.5, −1.2)
    assert loss_of(1.5, 1.0).policy.item() == pytest.approx(-1.2)
    assert loss_of(1.5, -1.0).policy.item() == pytest.approx(1.5)
    assert loss_of(1.5, 1.0).clipped == 1.0
    assert loss_of(1.1, 1.0).clipped == 0.0


def test_the_kl_term_is_weighed_by_beta():
    loss = loss_of(1.0, 2.0, kl=torch.tensor(0.2), beta=0.5)
    assert loss.total.item() == pytest.approx(-1.9)
    assert loss.kl.item() == pytest.approx(0.2)


def test_every_rollout_counts_the_same_by_default():
    # −(1.1 − 1) / 2
    assert grpo_loss(*two_rollouts()).policy.item() == pytest.approx(-0.05)


def test_every_token_counts_the_same_when_asked():
    # −(1.1 − 3) / 4
    assert grpo_loss(*two_rollouts(), loss_average="token").policy.item() == pytest.approx(0.475)


def test_padding_leaves_the_gradient_whole():
    log_probs, *rest = two_rollouts()
    grpo_loss(log_probs, *rest).total.backward()
    # −ratio·A / tokens / rollouts: −1.1/2, then 1/3/2 for each token of the second
    assert log_probs.grad[0].tolist() == pytest.approx([-0.55, 0, 0])
    assert log_probs.grad[1].tolist() == pytest.approx([1 / 6] * 3)


def test_no_gradient_reaches_the_advantages_or_the_old_policy():
    log_probs, old, advantages, mask = two_rollouts()
    old.requires_grad_()
    advantages.requires_grad_()
    grpo_loss(log_probs, old, advantages, mask).total.backward()
    assert old.grad is None
    assert advantages.grad is None


def test_a_rollout_without_sampled_tokens_counts_in_no_average():
    log_probs, old, advantages, mask = two_rollouts()
    mask[1] = False
    assert grpo_loss(log_probs, old, advantages, mask).policy.item() == pytest.approx(-1.1)
    mask[0] = False
    empty = grpo_loss(log_probs, old, advantages, mask, torch.tensor(0.3), beta=1.0)
    assert (empty.policy.item(), empty.total.item(), empty.clipped) == (0.0, pytest.approx(0.3), 0.0)


def test_a_batch_without_rollouts_has_loss_zero():
    none = torch.zeros(0, 4)
    assert grpo_loss(none, none, torch.zeros(0), none.bool()).total.item() == 0.0


def test_shapes_that_differ_and_unknown_averages_are_refused():
    log_probs, old, advantages, mask = two_rollouts()
    with pytest.raises(ValueError, match=r"expected \(B, T\) three times and \(B,\)"):
        grpo_loss(log_probs, old, advantages[:1], mask)
    with pytest.raises(ValueError, match="expected sequence or token"):
        grpo_loss(log_probs, old, advantages, mask, loss_average="batch")


@pytest.mark.parametrize("per", ["sequence", "token"])
def test_the_grpo_loss_passes_gradcheck(per):
    generator = torch.Generator().manual_seed(0)
    # ratios stay clear of 0.8 and 1.2, where the loss has its kinks
    log_probs = torch.tensor([[0.0, 0.1, 0.5], [-0.1, -0.6, 0.05]], dtype=torch.float64, requires_grad=True)
    old, advantages = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([1.0, -0.7], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    kl = torch.rand((), dtype=torch.float64, generator=generator).requires_grad_()
    assert gradcheck(
        lambda x, k: grpo_loss(x, old, advantages, mask, k, beta=0.3, loss_average=per).total, (log_probs, kl)
    )
