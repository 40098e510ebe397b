import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.equations.pid import (
    DEFAULT,
    PAPER,
    Pid,
    Plant,
    corridor,
    in_corridor,
    pid_step,
    settling,
    simulate,
)

anything = st.lists(st.floats(), max_size=60)
plants = pytest.mark.parametrize(
    ("kind", "lag"), [(kind, lag) for kind in ("first_order", "dead_time") for lag in (1, 10, 30)]
)


def after(readings, pid=None, **options):
    pid = pid or Pid()
    for kl in readings:
        pid = pid_step(pid, kl, **options)
    return pid


def test_the_papers_first_two_steps():
    # KL twice its target: e = 1, I = 1, no slope: 1·(1 + 0.30 + 0.05); then I = 2: 1.35·(1 + 0.30 + 0.10)
    assert after([0.30], Pid(beta=1.0), gains=PAPER).beta == pytest.approx(1.35)
    assert after([0.30, 0.30], Pid(beta=1.0), gains=PAPER).beta == pytest.approx(1.89)


def test_the_slope_counts_after_the_warm_up_only():
    # smoothed KL 0.9·0.15 + 0.1·0.30 = 0.165, e = 0.1: 0.03 + 0.005, and 0.01 for the slope
    settled = Pid(beta=1.0, kl=0.15, error=0.0, steps=99)
    assert pid_step(settled, 0.30, gains=PAPER).beta == pytest.approx(1.035)
    assert pid_step(Pid(beta=1.0, kl=0.15, error=0.0, steps=100), 0.30, gains=PAPER).beta == pytest.approx(1.045)


def test_kl_is_smoothed_before_the_error_is_taken():
    pid = after([0.10, 0.20])
    # 0.9·0.10 + 0.1·0.20 = 0.11, (0.11 − 0.15)/0.15
    assert (pid.kl, pid.error, pid.steps) == (pytest.approx(0.11), pytest.approx(-0.266667, abs=1e-6), 2)


def test_the_error_is_measured_in_targets():
    small, large = after([0.2, 0.3, 0.1], target=0.1), after([2.0, 3.0, 1.0], target=1.0)
    assert small.beta == pytest.approx(large.beta)


def test_the_integral_stops_at_five():
    assert after([100.0] * 10, gains=PAPER).integral == 5.0
    assert after([0.0] * 10, gains=PAPER).integral == -5.0


@given(anything, st.sampled_from([PAPER, DEFAULT]), st.booleans())
def test_beta_and_the_integral_stay_in_their_bounds_whatever_comes_in(readings, gains, one_sided):
    pid = Pid()
    for kl in readings:
        pid = pid_step(pid, kl, gains=gains, one_sided=one_sided)
        assert 1e-3 <= pid.beta <= 1e2
        assert -5 <= pid.integral <= 5
        assert all(value is None or math.isfinite(value) for value in (pid.kl, pid.error))


@given(anything, st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_a_reading_that_is_not_a_number_is_held_and_not_spread(readings, broken):
    pid = after(readings)
    assert pid_step(pid, broken) == pid
    assert after([*readings, broken, 0.2]) == after([*readings, 0.2])


def test_a_beta_out_of_bounds_is_brought_in_even_by_a_broken_reading():
    assert pid_step(Pid(beta=1e6), float("nan")).beta == 100.0


@given(anything, st.sampled_from([PAPER, DEFAULT]))
def test_the_one_sided_controller_never_lowers_beta(readings, gains):
    pid = Pid()
    for kl in readings:
        after_it = pid_step(pid, kl, gains=gains, one_sided=True)
        assert after_it.beta >= pid.beta
        pid = after_it


def test_the_one_sided_controller_answers_at_once_after_a_long_time_under_the_target():
    assert after([0.0] * 500 + [3.0] * 20, one_sided=True).beta > 0.25
    assert after([0.0] * 500, one_sided=True, gains=PAPER) == Pid(beta=0.2, kl=0.0, error=-1.0, steps=500)


def test_beta_falls_slowly_while_the_policy_has_not_moved_yet():
    # 0.2·0.992^100 = 0.0896; the published gains are at the floor by then
    assert after([0.0] * 100).beta == pytest.approx(0.0896, abs=1e-4)
    assert after([0.0] * 100, gains=PAPER).beta == 1e-3


def test_one_broken_batch_does_not_throw_beta_away():
    settled = Pid(beta=0.2, kl=0.15, error=0.0, steps=500)
    spiked = after([1e9] + [0.15] * 30, settled)
    # the reading counts as six targets: e = 0.5, fading by 0.9 a step: 0.026·0.5·10 = 0.13
    assert spiked.beta == pytest.approx(0.2 * math.exp(0.13), rel=0.05)


@plants
@pytest.mark.parametrize("start_kl", [0.0, None])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_gains_settle_on_every_plant(kind, lag, start_kl, seed):
    response = simulate(Plant(lag, kind), rng=np.random.default_rng(seed), start_kl=start_kl)
    for stretch in (response.kl[:1000], response.kl[1000:]):  # from the start, and from the step disturbance
        found = settling(stretch)
        assert found.rise < 200
        assert found.settled < 200
        assert found.overshoot < 0.10


@plants
@pytest.mark.parametrize("beta", [0.01, 0.05, 0.5])
def test_the_default_gains_settle_from_a_bad_start_too(kind, lag, beta):
    response = simulate(Plant(lag, kind), rng=np.random.default_rng(0), beta=beta, start_kl=None, steps=1000)
    found = settling(response.kl)
    assert found.settled < 200
    assert found.overshoot < 0.10


@plants
def test_the_papers_gains_cycle_on_every_plant(kind, lag):
    kl = simulate(Plant(lag, kind), rng=np.random.default_rng(0), gains=PAPER).kl
    assert settling(kl[:1000]).settled > 900
    assert settling(kl[:1000]).overshoot > 0.9
    assert np.ptp(kl[700:1000]) > 0.15  # after 700 steps it still swings by more than the target


def test_the_default_holds_kl_at_its_target_and_not_beside_it():
    kl = simulate(Plant(10, noise=0.03), rng=np.random.default_rng(0)).kl[400:1000]
    assert kl.mean() == pytest.approx(0.15, rel=0.03)


def test_noise_does_not_ratchet_the_one_sided_controller_up():
    beta = simulate(
        Plant(10, noise=0.02, disturbed_at=8000), rng=np.random.default_rng(0), one_sided=True, steps=8000
    ).beta
    assert beta[-1] < 1.5 * beta[1000]


def test_the_one_sided_controller_never_lets_a_plant_rest_over_its_target():
    kl = simulate(Plant(10), rng=np.random.default_rng(0), one_sided=True).kl
    assert kl[900:1000].max() < 0.16
    assert kl[1800:].max() < 0.16


def test_a_first_order_plant_has_come_63_per_cent_of_the_way_after_its_lag():
    kl = simulate(Plant(10, noise=0.0), rng=np.random.default_rng(0), gains=DEFAULT, beta=0.1, one_sided=True).kl
    # at beta 0.1 it heads for 0.2 and beta cannot fall: 0.2·(1 − 1/e)
    assert kl[9] == pytest.approx(0.126424, abs=1e-6)


def test_a_plant_with_dead_time_answers_after_its_lag():
    kl = simulate(Plant(30, "dead_time", noise=0.0), rng=np.random.default_rng(0), beta=0.3).kl
    assert (kl[:30] == 0).all()
    assert kl[30] == pytest.approx(0.1)


def test_settling_of_a_curve_worked_out_by_hand():
    # target 1: two steps under the band, in it at step 2, over by 0.2 at step 3, back for good at step 4
    found = settling(np.array([0.0, 0.5, 0.95, 1.2, 1.05, 1.0]), target=1.0)
    assert found == (2, pytest.approx(0.2), 4)


def test_settling_of_a_calm_an_empty_and_a_hopeless_curve():
    assert settling(np.array([1.0, 1.04]), target=1.0) == (0, pytest.approx(0.04), 0)
    assert settling(np.array([1.06, 0.97]), target=1.0) == (0, pytest.approx(0.03), 0)
    assert settling(np.array([])) == (0, 0.0, 0)
    assert settling(np.zeros(7)) == (7, 0.0, 7)


def test_the_corridor_reaches_from_one_to_two_tenths():
    assert corridor() == pytest.approx((0.10, 0.20))
    assert corridor(0.3) == pytest.approx((0.25, 0.35))
    assert in_corridor(0.10)
    assert in_corridor(0.20)
    assert not in_corridor(0.21)
    assert not in_corridor(float("nan"))


def test_a_controller_that_cannot_work_is_refused():
    with pytest.raises(ValueError, match="the KL target is 0"):
        pid_step(Pid(), 0.1, target=0)
    with pytest.raises(ValueError, match="expected 0 < beta_min <= beta_max"):
        pid_step(Pid(), 0.1, beta_min=2.0, beta_max=1.0)
    with pytest.raises(ValueError, match="expected finite, beta > 0"):
        Pid(beta=0.0)
