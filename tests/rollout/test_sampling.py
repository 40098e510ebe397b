"""Tokens from a distribution, worked out by hand and beside a plain running sum."""

import numpy as np
import pytest
import torch

from pixelis.rollout.sampling import AllowedMask, inverse_cdf, sample_tokens


@pytest.mark.parametrize("size", [3, 64, 130, 2017])
def test_the_inverse_by_blocks_is_that_of_the_running_sum(size):
    generator = torch.Generator().manual_seed(size)
    chances = torch.rand(200, size, generator=generator).pow(8).double().float()
    chances[:, ::3] = 0.0  # never to be chosen
    uniform = np.random.default_rng(0).random(200)
    sums = chances.double().cumsum(-1)
    plain = torch.searchsorted(sums, torch.from_numpy(uniform)[:, None] * sums[:, -1:], right=True)[:, 0]
    assert inverse_cdf(chances, uniform).tolist() == plain.tolist()


def test_the_ends_of_a_distribution_are_never_tokens_without_a_chance():
    chances = torch.zeros(2, 200)
    chances[:, [70, 130]] = torch.tensor([0.25, 0.75])
    assert inverse_cdf(chances, np.array([0.0, 1.0 - 1e-16])).tolist() == [70, 130]
    assert inverse_cdf(chances, np.array([0.24, 0.26])).tolist() == [70, 130]


def test_a_token_that_a_grammar_forces_keeps_its_probability_under_the_policy():
    logits = torch.tensor([[0.0, 0.0, -200.0, -201.0]])  # what is allowed has a chance of e^-200, which is 0 in floats
    allowed = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    low, high = (
        sample_tokens(logits, np.array([uniform]), 1.0, allowed) for uniform in (0.73, 0.74)
    )  # e / (1 + e) = 0.731
    assert (low.tokens.item(), high.tokens.item()) == (2, 3)
    assert low.logprobs.item() == pytest.approx(-200.0 - np.log(2.0))
    assert sample_tokens(logits, np.array([0.5]), 0.0, allowed).tokens.item() == 2


def test_a_row_without_a_number_takes_the_likeliest_token_that_is_allowed():
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(3, 3)
    uniform = np.array([np.nan, 0.6, np.nan])  # 0.6 lies in the second token's quarter
    assert sample_tokens(logits, uniform, 1.0).tokens.tolist() == [0, 1, 0]
    allowed = torch.tensor([[0.0, 1.0, 1.0]])
    assert sample_tokens(logits, uniform, 1.0, allowed).tokens.tolist() == [
        1,
        2,
        1,
    ]  # 0.6 of two equal halves: the second


def test_masks_become_numbers_once_and_rows_outside_a_call_are_free():
    class Odd:
        mask = torch.tensor([False, True, False])

        def allowed_tokens(self, state, remaining):
            return self.mask if state else None

    allowed = AllowedMask(Odd(), 4, torch.device("cpu"))  # the fourth row of the embedding has no token
    assert allowed([0, 0], [9, 9]) is None
    assert allowed([1, 1], [9, 9]).tolist() == [[0, 1, 0, 0]]
    assert allowed([1, 0], [9, 9]).tolist() == [[0, 1, 0, 0], [1, 1, 1, 1]]
