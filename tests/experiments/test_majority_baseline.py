"""Plain majorities of any number of rollouts: pools and expectations by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.common.paired_tests import RunScores
from experiments.ttrl.majority_baseline import compare_to_majority, majority_scores, pool_answers, score_answers


def rows(*queries):
    return [{"vote": {"ballots": [{"answer": answer} for answer in answers]}} for answers in queries]


def test_of_each_seed_the_longest_group_stands_for_those_that_drew_the_same_numbers():
    eight, sixteen = rows("ab", "cc"), rows("aba", "ccd")  # the first two of three are the same rollouts
    found = pool_answers({0: [eight, sixteen], 1: [rows(["b", None], "dd")]})
    assert found == [["a", "b", "a", "b", None], ["c", "c", "d", "d", "d"]]
    assert pool_answers({}) == []


def test_answers_are_judged_by_their_own_item():
    items = [
        SimpleNamespace(item=SimpleNamespace(score=lambda said, right=right: float(said == right))) for right in "ab"
    ]
    assert score_answers([["a", "b", None], ["b", "b", "b"]], items) == [{"a": 1.0, "b": 0.0}, {"b": 1.0}]


def test_a_majority_of_three_among_three_wrong_ones_and_a_right_one_is_always_wrong_and_one_voice_right_in_a_quarter():
    pool, scores = [["a", "a", "a", "b"]], [{"a": 0.0, "b": 1.0}]
    assert majority_scores(pool, scores, 3).tolist() == [0.0]
    # 400 draws of a quarter: a standard error of 0.022
    assert majority_scores(pool, scores, 1)[0] == pytest.approx(0.25, abs=0.07)


def test_who_says_nothing_wins_nothing_and_a_tie_goes_to_the_first_in_the_alphabet():
    pool = [[None, None], ["b", "a"], ["b", None]]
    scores = [{}, {"a": 0.5, "b": 1.0}, {"b": 1.0}]
    assert majority_scores(pool, scores, 2) == pytest.approx([0.0, 0.5, 1.0])


def test_ours_is_held_against_the_later_half_alone():
    later = {f"{key}_later": np.array([100.0, 100.0]) for key in ("voted", "majority", "greedy")}
    mine = [RunScores(seed, ("w", "x", "y", "z"), later) for seed in (0, 1)]
    pool, scores = [["a", "a"]] * 4, [{"a": 1.0}, {"a": 1.0}, {"a": 0.5}, {"a": 0.0}]
    (found,) = compare_to_majority(mine, pool, scores, [2])
    assert (found["rollouts"], found["of"], found["mean"]) == (2, 2, 25.0)
    assert found["voted_later"]["difference"] == 75.0
    assert found["majority_later"]["by_seed"] == [75.0, 75.0]
