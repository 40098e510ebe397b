import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from pixelis.equations.kl import drift_allowed, per_token_kl, sampled_kl, token_kl

EVEN = torch.tensor([[0.5, 0.5]]).log()
SURE = torch.tensor([[0.9, 0.1]]).log()
ALL = torch.ones(1, dtype=torch.bool)
INF = float("inf")

logits = arrays(float, (3, 5), elements=st.floats(-20, 20))


def test_the_kl_of_an_even_policy_to_a_sure_anchor():
    # 0.5·ln(0.5/0.9) + 0.5·ln(0.5/0.1) = 0.5·(−0.587787 + 1.609438)
    assert per_token_kl(EVEN, SURE).item() == pytest.approx(0.510826, abs=1e-6)


@given(logits, logits)
def test_the_kl_equals_that_of_torch_distributions_and_is_never_negative(p, q):
    p, q = torch.from_numpy(p), torch.from_numpy(q)
    kl = per_token_kl(p, q)
    assert torch.allclose(kl, kl_divergence(Categorical(logits=p), Categorical(logits=q)), atol=1e-9)
    assert (kl >= -1e-12).all()


def test_a_policy_has_no_kl_to_itself():
    assert per_token_kl(SURE, SURE).item() == 0.0


def test_observations_are_masked_and_may_hold_anything():
    policy = torch.cat([EVEN, torch.full((1, 2), float("nan"))])
    anchor = torch.cat([SURE, SURE])
    assert token_kl(policy, anchor, torch.tensor([True, False])).item() == pytest.approx(0.510826, abs=1e-6)


def test_the_kl_is_averaged_over_sampled_tokens():
    policy, anchor = torch.cat([EVEN, SURE, EVEN]), torch.cat([SURE, SURE, SURE])
    # (0.510826 + 0) / 2, the third is masked
    assert token_kl(policy, anchor, torch.tensor([True, True, False])).item() == pytest.approx(0.255413, abs=1e-6)


def test_no_sampled_tokens_have_no_kl():
    assert token_kl(EVEN, SURE, ~ALL).item() == 0.0
    assert sampled_kl(EVEN[:, 0], SURE[:, 0], ~ALL).item() == 0.0


def test_a_token_banned_for_both_adds_nothing_and_leaves_the_gradient_whole():
    policy = torch.tensor([[0.5, 0.5, 0.0]]).log().requires_grad_()
    anchor = torch.tensor([[0.9, 0.1, 0.0]]).log()
    kl = token_kl(policy, anchor, ALL)
    kl.backward()
    assert kl.item() == pytest.approx(0.510826, abs=1e-6)
    assert torch.isfinite(policy.grad).all()


def test_a_token_that_only_the_anchor_cannot_say_makes_the_kl_infinite():
    assert per_token_kl(EVEN, torch.tensor([[0.0, -INF]])).item() == INF


def test_the_sampled_estimators_of_a_token_twice_as_likely_as_under_the_anchor():
    # r = ln 2: k1 = 0.693147, k2 = r²/2 = 0.240227, k3 = 1/2 − 1 + r = 0.193147
    log_p, log_q = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    values = [sampled_kl(log_p, log_q, ALL, estimator=k).item() for k in ("k1", "k2", "k3")]
    assert values == pytest.approx([0.693147, 0.240227, 0.193147], abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_unbiased_estimators_average_to_the_exact_kl(estimator):
    # the even policy says each token equally often: both of them once are its exact average
    mean = sampled_kl(EVEN[0], SURE[0], torch.ones(2, dtype=torch.bool), estimator=estimator)
    assert mean.item() == pytest.approx(0.510826, abs=1e-6)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="expected k1, k2 or k3"):
        sampled_kl(EVEN[:, 0], SURE[:, 0], ALL, estimator="k4")


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="same vocabulary"):
        per_token_kl(torch.zeros(1, 2), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="one flag each"):
        token_kl(EVEN, SURE, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="expected the same shape"):
        sampled_kl(torch.zeros(2), torch.zeros(1), torch.ones(2, dtype=torch.bool))


def test_the_exact_and_the_sampled_kl_pass_gradcheck():
    generator = torch.Generator().manual_seed(0)
    policy, anchor = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.tensor([True, False, True])
    assert gradcheck(lambda x: token_kl(x, anchor, mask), policy.requires_grad_())
    flags = torch.ones(3, 4, dtype=torch.bool)
    for estimator in ("k1", "k2", "k3"):
        assert gradcheck(lambda x, k=estimator: sampled_kl(x, anchor, flags, estimator=k), policy)


def test_no_gradient_reaches_the_anchor():
    policy, anchor = EVEN.clone().requires_grad_(), SURE.clone().requires_grad_()
    (token_kl(policy, anchor, ALL) + sampled_kl(policy[:, 0], anchor[:, 0], ALL)).backward()
    assert anchor.grad is None
    assert policy.grad is not None


def test_the_guard_allows_drift_up_to_two_tenths_and_refuses_what_it_cannot_know():
    assert drift_allowed(0.2)
    assert not drift_allowed(0.2001)
    assert not drift_allowed(float("nan"))
