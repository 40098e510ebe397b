import numpy as np
import pytest

from pixelis.equations.curriculum import (
    EASY,
    HARD,
    MEDIUM,
    hardness_tertiles,
    sample_medium_hard,
    should_advance,
    smoothed_losses,
)


def test_six_errors_fall_two_by_two_into_the_tertiles():
    assert hardness_tertiles([6, 1, 4, 2, 5, 3]).tolist() == [HARD, EASY, MEDIUM, EASY, HARD, MEDIUM]


def test_equal_errors_are_all_medium():
    assert hardness_tertiles([0.3] * 5).tolist() == [MEDIUM] * 5


def test_no_examples_have_no_bins():
    assert hardness_tertiles([]).shape == (0,)


def test_an_error_that_is_not_a_number_is_refused():
    for broken in ("nan", "inf"):
        with pytest.raises(ValueError, match="1 of 2 predicted errors are NaN or infinite"):
            hardness_tertiles([0.1, float(broken)])


def test_medium_examples_come_twice_as_often_as_hard_ones_and_easy_ones_never():
    bins = np.repeat([EASY, MEDIUM, HARD], [50, 10, 40])
    drawn = bins[sample_medium_hard(bins, 20_000, rng=np.random.default_rng(0))]
    assert (drawn == MEDIUM).mean() == pytest.approx(2 / 3, abs=0.014)  # four standard errors
    assert EASY not in drawn


def test_where_no_example_is_hard_the_medium_ones_serve_alone():
    assert set(sample_medium_hard([EASY, MEDIUM], 10, rng=np.random.default_rng(0))) == {1}
    assert set(sample_medium_hard([EASY, HARD], 10, rng=np.random.default_rng(0))) == {1}


def test_sampling_from_easy_examples_alone_is_refused():
    with pytest.raises(ValueError, match="none of 2 examples is medium or hard"):
        sample_medium_hard([EASY, EASY], 1, rng=np.random.default_rng(0))


def test_the_curriculum_advances_at_five_per_cent_more_loss_and_not_beyond():
    assert should_advance([1.0, 1.05], rho=0.0)
    assert not should_advance([1.0, 1.06], rho=0.0)


def test_the_dev_loss_is_smoothed_before_it_is_compared():
    # 0.9·1.0 + 0.1·1.04 = 1.004 passes, 0.9·1.0 + 0.1·2.0 = 1.1 does not
    assert smoothed_losses([1.0, 1.04]) == pytest.approx([1.0, 1.004])
    assert should_advance([1.0, 1.04])
    assert not should_advance([1.0, 2.0])


def test_one_evaluation_or_a_broken_one_does_not_advance():
    assert not should_advance([])
    assert not should_advance([1.0])
    assert not should_advance([1.0, float("nan")])


def test_a_broken_evaluation_is_held_and_not_spread():
    assert smoothed_losses([float("nan"), 1.0, float("nan"), 2.0]) == [None, 1.0, 1.0, pytest.approx(1.1)]
