import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pixelis.equations.ema import ema, ema_parameters


def test_the_anchor_moves_one_per_cent_of_the_way():
    # 0.99·1 + 0.01·2
    assert ema(1.0, 2.0) == pytest.approx(1.01)
    moved = ema_parameters({"w": np.array([1.0, 0.0])}, {"w": np.array([2.0, 1.0])})
    assert moved["w"] == pytest.approx([1.01, 0.01])


def test_the_first_value_starts_the_average():
    assert ema(None, 3.0) == 3.0


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_value_leaves_the_average_where_it_was(broken):
    assert ema(1.5, broken) == 1.5
    assert ema(None, broken) is None


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 0.999))
def test_the_average_stays_between_what_it_averages(before, value, rho):
    after = ema(before, value, rho=rho)
    assert min(before, value) - 1e-6 <= after <= max(before, value) + 1e-6


def test_torch_weights_follow_the_same_rule_and_the_old_anchor_is_untouched():
    anchor = {"w": torch.tensor([1.0])}
    assert ema_parameters(anchor, {"w": torch.tensor([2.0])}, rho=0.5)["w"].tolist() == [1.5]
    assert anchor["w"].tolist() == [1.0]


def test_no_parameters_give_an_empty_anchor():
    assert ema_parameters({}, {}) == {}


def test_a_policy_with_a_broken_weight_never_reaches_its_anchor():
    with pytest.raises(ValueError, match="'w' of the policy contains NaN or infinity"):
        ema_parameters({"w": np.zeros(2)}, {"w": np.array([0.0, np.inf])})


def test_weights_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="1 parameter names, the first is 'b'"):
        ema_parameters({"w": np.zeros(1)}, {"w": np.zeros(1), "b": np.zeros(1)})
    with pytest.raises(ValueError, match=r"'w' is \(1,\) in the anchor, \(2,\) in the policy"):
        ema_parameters({"w": np.zeros(1)}, {"w": np.zeros(2)})


def test_rho_of_one_would_never_move_and_is_refused():
    with pytest.raises(ValueError, match="expected 0 <= rho < 1"):
        ema(0.0, 1.0, rho=1.0)
