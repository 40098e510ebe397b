import numpy as np
import pytest
import torch

from pixelis.equations.ttrl import (
    Baseline,
    SummaryStatistics,
    advantage,
    baseline_step,
    neighbourhood_value,
    normalise_advantages,
    rollout_return,
    standardise_summaries,
    summary_statistics,
    trace_value,
    ttrl_loss,
)

STANDARD = SummaryStatistics(cur_mean=0.5, cur_std=0.2, coh_mean=0.0, coh_std=1.0)


def test_value_by_hand():
    # z = (0.7 - 0.5)/0.2 + 1 = 2; sigmoid(2) = 0.880797
    assert trace_value([0.7, 0.5], [1.0, 0.0], STANDARD) == pytest.approx([0.880797, 0.5], abs=1e-6)


def test_value_stays_strictly_between_zero_and_one():
    v = trace_value([1e9, -1e9, np.nan, np.inf], [0.0, 0.0, 0.0, 0.0], STANDARD)
    assert ((v > 0) & (v < 1)).all()
    assert v[2] == v[3] == 0.5


def test_constant_summaries_have_value_one_half():
    statistics = summary_statistics([0.3, 0.3], [1.0, 1.0])
    assert trace_value([0.3, 9.0], [1.0, 5.0], statistics) == pytest.approx([0.5, 0.5])
    # seven times 0.1 has a mean beside 0.1 and a spread of 1e-17, which must not become a z-score
    assert trace_value([0.1], [0.1], summary_statistics([0.1] * 7, [0.1] * 7)) == pytest.approx([0.5])
    # nothing to compare with: a raw number is no z-score
    assert summary_statistics([], []) == SummaryStatistics(0.0, 0.0, 0.0, 0.0)
    assert trace_value([3.7], [2.0], summary_statistics([], [])) == pytest.approx([0.5])


def test_curiosity_and_coherence_are_added_as_z_scores_of_the_memory():
    cur, coh = standardise_summaries([0.7, np.nan], [2.0, -1.0], STANDARD)
    assert cur == pytest.approx([1.0, 0.0])  # (0.7 - 0.5) / 0.2
    assert coh == pytest.approx([2.0, -1.0])


def test_the_neighbourhoods_value_is_a_mean_and_one_half_without_neighbours():
    assert neighbourhood_value([0.2, 0.6, np.nan]) == pytest.approx(0.4)
    assert neighbourhood_value([]) == 0.5


def test_the_baseline_follows_returns_by_default_and_the_value_when_literal():
    start = baseline_step(Baseline(), returns=[1.0, 2.0], value=0.4)
    assert start.value == pytest.approx(1.5)
    # 0.9 x 1.5 + 0.1 x 0.5 = 1.4
    assert baseline_step(start, returns=[0.5], value=0.4).value == pytest.approx(1.4)
    literal = baseline_step(Baseline(), returns=[1.0], value=0.4, kind="literal")
    assert literal.value == pytest.approx(0.4)
    assert baseline_step(literal, returns=[1.0], value=0.6, kind="literal", rho=0.5).value == pytest.approx(0.5)


def test_the_baseline_is_held_where_nothing_was_seen():
    held = Baseline(0.7)
    assert baseline_step(held, returns=[], value=0.4) == held
    assert baseline_step(held, returns=[np.nan], value=0.4) == held
    assert baseline_step(held, returns=[1.0], value=np.nan, kind="literal") == held


def test_return_by_hand():
    # 1 + 0.5 x 0.8 - 2 x 0.1 = 1.2; 0 + 0.5 x 0.2 - 0 = 0.1
    r = rollout_return([1, 0], [0.8, 0.2], [0.1, 0.0], kappa=0.5, lambda_pen=2.0)
    assert r == pytest.approx([1.2, 0.1])
    with pytest.raises(ValueError, match="2 agreements, 1 similarities"):
        rollout_return([1, 0], [0.8], [0.1, 0.0])
    with pytest.raises(ValueError, match="0 or more"):
        rollout_return([1], [1], [0], kappa=-1.0)


def test_advantage_by_hand_and_its_sign_is_the_returns():
    # 0.6 x (1.2 - 0.7) = 0.3
    assert advantage([1.2, 0.2], baseline=0.7, value=0.6) == pytest.approx([0.3, -0.3])
    # the main text's form has no baseline
    assert advantage([1.2], baseline=0.0, value=0.6) == pytest.approx([0.72])


def test_normalising_scales_by_the_root_mean_square_and_keeps_signs():
    # rms of (3, 4) is sqrt(12.5)
    assert normalise_advantages([3.0, 4.0]) == pytest.approx(np.array([3.0, 4.0]) / np.sqrt(12.5))
    # centred: -0.5, 0.5 over 0.5
    assert normalise_advantages([3.0, 4.0], centre=True) == pytest.approx([-1.0, 1.0])


def test_abstained_rollouts_do_not_count_in_the_scale():
    assert normalise_advantages([2.0, 100.0], [1, 0]) == pytest.approx([1.0, 0.0])
    assert normalise_advantages([2.0, 3.0], [0, 0]) == pytest.approx([0.0, 0.0])


def test_advantages_without_spread_are_zeros():
    assert normalise_advantages([0.0, 0.0]) == pytest.approx([0.0, 0.0])
    assert normalise_advantages([5.0, 5.0], centre=True) == pytest.approx([0.0, 0.0])
    assert normalise_advantages([]).shape == (0,)


def test_returns_that_hardly_differ_are_not_blown_up():
    # rms 0.01 divides as 0.1
    assert normalise_advantages([0.01, -0.01]) == pytest.approx([0.1, -0.1])
    assert normalise_advantages([0.01, -0.01], floor=0.005) == pytest.approx([1.0, -1.0])


def loss_of(logprobs, mask, advantages, m, *, kl=0.1, beta=0.5, over_tokens="sum"):
    as_tensor = [torch.tensor(x, dtype=torch.float64) for x in (logprobs, mask, advantages, m, kl)]
    return ttrl_loss(*as_tensor, beta=beta, over_tokens=over_tokens)


def test_loss_by_hand():
    # log pi = -1 and -5 (last token masked); -(0.3 x -1 + -0.2 x -5)/2 + 0.5 x 0.1 = -0.35 + 0.05
    loss = loss_of([[-0.4, -0.6], [-5.0, -9.0]], [[1, 1], [1, 0]], [0.3, -0.2], [1, 1])
    assert loss.item() == pytest.approx(-0.30)


def test_a_mean_over_tokens_lets_a_long_rollout_pull_no_harder_than_a_short_one():
    # means -0.5 and -5: -(0.3 x -0.5 + -0.2 x -5)/2 + 0.05; a rollout without tokens adds nothing
    loss = loss_of([[-0.4, -0.6], [-5.0, -9.0]], [[1, 1], [1, 0]], [0.3, -0.2], [1, 1], over_tokens="mean")
    assert loss.item() == pytest.approx(-0.375)
    assert loss_of([[-0.4, -0.6]], [[0, 0]], [0.3], [1], over_tokens="mean").item() == pytest.approx(0.05)


def test_an_abstained_query_leaves_only_the_kl_term():
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    kl = torch.tensor(0.2, requires_grad=True)
    loss = ttrl_loss(logprobs, torch.ones(1, 2), torch.tensor([3.0]), torch.tensor(0.0), kl, beta=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.1)
    assert logprobs.grad is None or (logprobs.grad == 0).all()
    assert kl.grad.item() == pytest.approx(0.5)


def test_an_abstained_rollout_may_lack_an_advantage():
    # without an exemplar its return is NaN; the other counts -(0.5 x -2) / 2
    assert np.isnan(rollout_return([0], [np.nan], [0.0])).all()
    logprobs = torch.tensor([[-2.0], [-3.0]], requires_grad=True)
    m, A = torch.tensor([1.0, 0.0]), torch.tensor([0.5, np.nan])
    loss = ttrl_loss(logprobs, torch.ones(2, 1), A, m, torch.tensor(0.0), beta=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.5)
    assert logprobs.grad.tolist() == [[-0.25], [0.0]]
    assert normalise_advantages([2.0, np.nan, -2.0]) == pytest.approx([1.0, 0.0, -1.0])


def test_one_abstained_query_of_two_still_counts_in_the_mean():
    # -(1 x 1 x -2 + 0) / 2
    assert loss_of([[-2.0], [-3.0]], [[1], [1]], [1.0, 1.0], [1, 0], kl=0.0).item() == pytest.approx(1.0)


def test_masked_infinities_do_not_spread():
    loss = loss_of([[-1.0, -np.inf]], [[1, 0]], [1.0], [1], kl=0.0)
    assert loss.item() == pytest.approx(1.0)


def test_no_rollouts_and_empty_trajectories_have_a_loss():
    none = ttrl_loss(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0), torch.tensor(0.2), beta=0.5)
    assert none.item() == pytest.approx(0.1)
    assert loss_of(np.zeros((2, 0)), np.zeros((2, 0)), [1.0, 1.0], [1, 1]).item() == pytest.approx(0.05)


def test_gradients_pass_gradcheck_and_none_reaches_the_advantages():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    tokens = torch.randint(0, 5, (3, 4, 1), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]])
    adv = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64, requires_grad=True)
    m = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)

    def f(x):
        logp = torch.log_softmax(x, dim=-1)
        kl = (logp.exp() * (logp + np.log(5.0))).sum(-1).mean()  # to a uniform anchor
        return ttrl_loss(logp.gather(-1, tokens).squeeze(-1), mask, adv, m, kl, beta=0.3)

    assert torch.autograd.gradcheck(f, (logits,))
    f(logits).backward()
    assert adv.grad is None


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="differ in shape"):
        loss_of([[-1.0]], [[1, 1]], [1.0], [1])
    with pytest.raises(ValueError, match="1 rollouts, but 2 advantages"):
        loss_of([[-1.0]], [[1]], [1.0, 2.0], [1])
    with pytest.raises(ValueError, match=r"abstention masks \(2, 1\) for 2 rollouts"):
        loss_of([[-1.0], [-1.0]], [[1], [1]], [1.0, 2.0], [[1], [0]])
