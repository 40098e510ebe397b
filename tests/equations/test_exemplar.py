import numpy as np
import pytest

from pixelis.equations.exemplar import choose_exemplar


def test_the_shorter_of_two_like_chains_is_chosen():
    assert choose_exemplar([4, 3], [0, 0], [0, 0], [0.5, 0.5]).rollout == 1


def test_the_score_by_hand():
    # 4 - 0.5 (0.6 + 0.4) - 2 x 0.9 = 1.7; 3 - 0.5 (0.2 - 0.4) - 2 x 0.5 = 2.1
    chosen = choose_exemplar([4, 3], [0.6, 0.2], [0.4, -0.4], [0.9, 0.5])
    assert chosen.scores == pytest.approx([1.7, 2.1])
    assert chosen.rollout == 0


def test_the_weights_are_arguments():
    assert choose_exemplar([4, 3], [2.0, 0.0], [0, 0], [0, 0], eta=1.0).rollout == 0
    assert choose_exemplar([4, 3], [2.0, 0.0], [0, 0], [0, 0], eta=0.1).rollout == 1


def test_only_the_successful_are_considered():
    chosen = choose_exemplar([1, 5], [0, 0], [0, 0], [1, 0], successful=[False, True])
    assert chosen.rollout == 1
    assert chosen.scores[0] == np.inf


def test_nobody_successful_gives_no_exemplar():
    assert choose_exemplar([2], [0], [0], [1], successful=[False]).rollout is None
    assert choose_exemplar([], [], [], []).rollout is None


def test_a_summary_that_is_not_a_number_says_nothing():
    assert choose_exemplar([3], [np.nan], [1.0], [np.nan]).scores == pytest.approx([2.5])
    assert choose_exemplar([3, 2], [np.inf, 0.0], [0, 0], [0, 0]).rollout == 1
    with pytest.raises(ValueError, match="expected a number of steps"):
        choose_exemplar([np.nan], [0], [0], [0])


def test_a_tie_goes_to_the_shorter_chain():
    # 4 - 2 x 1.0 = 2 = 2 - 2 x 0
    assert choose_exemplar([4, 2], [0, 0], [0, 0], [1.0, 0.0]).rollout == 1


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="2 lengths"):
        choose_exemplar([1, 2], [0], [0, 0], [0, 0])
