"""What the comparisons of phases 2 and 3 share, by hand."""

import numpy as np
import pytest

from experiments.common.paired_tests import RunScores, compare_pairwise, compare_to_bases, mean_interval
from pixelis.core.errors import ConfigError

FOUR = ("a", "b", "c", "d")


def run(key, values, seed=0, items=FOUR):
    return RunScores(seed, items, {key: np.array(values, dtype=float)})


def test_answers_that_are_all_wrong_have_the_exact_interval_in_percent():
    # Clopper–Pearson for 0 of 8: 1 − 0.025^(1/8) = 0.3694
    found = mean_interval(np.zeros(8), "greedy")
    assert (found.point, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(36.94, abs=0.01)
    assert mean_interval(np.full(8, 100.0), "accuracy").low == pytest.approx(100 - 36.94, abs=0.01)


@pytest.mark.parametrize(("key", "value"), [("calls", 1.0), ("calls", 0.0), ("racpr", 0.0)])
def test_what_is_no_share_of_answers_and_does_not_vary_is_its_own_interval(key, value):
    found = mean_interval(np.full(8, value), key)
    assert (found.low, found.point, found.high) == (value, value, value)


def test_seeds_are_averaged_item_by_item_and_held_against_the_base():
    base = [run("greedy", [0, 100, 0, 0], seed=None)]
    ours = [run("greedy", [100, 100, 100, 100], seed=0), run("greedy", [100, 100, 0, 0], seed=1)]
    none, row = compare_to_bases({"none": base, "ours": ours}, {"ours": "none"}, "over_none")
    assert "over_none" not in none["greedy"]
    assert none["greedy"]["over_seeds"] is None  # one seed says nothing about others
    assert (row["seeds"], row["items"]) == (2, 4)
    assert row["greedy"]["mean"] == 75.0
    assert row["greedy"]["over_seeds"] == pytest.approx(50 / 2**0.5)  # 100 and 50, by n − 1
    over = row["greedy"]["over_none"]
    assert (over["difference"], over["base"]) == (50.0, "none")
    assert over["by_seed"] == [75.0, 25.0]  # 100 and 50, each less the one base of 25
    # differences 100, 0, 50, 50: of 16 swaps four (the pair of zeros counts twice) leave all or none turned
    assert over["p"] == over["p_adjusted"] == pytest.approx(4 / 16)


def test_a_variant_of_one_seed_is_held_against_the_same_seed():
    base = [run("greedy", [0, 0, 0, 0], seed=0), run("greedy", [100, 100, 100, 100], seed=1)]
    _, row = compare_to_bases(
        {"none": base, "one": [run("greedy", [100, 0, 0, 0], seed=0)]}, {"one": "none"}, "over_none"
    )
    assert row["greedy"]["over_none"]["difference"] == 25.0
    assert row["greedy"]["over_none"]["by_seed"] == [25.0]


def test_ours_is_held_against_every_other_and_fewer_calls_are_told_as_a_share():
    found = {
        "sft": [run("calls", [6, 6, 4, 4], seed=None)], "ours": [run("calls", [3, 3, 2, 2])],
        "third": [run("calls", [3, 3, 2, 2])],
    }  # fmt: skip
    over_sft, over_third = compare_pairwise(found, "ours")
    assert over_sft["over"] == "sft"
    own = over_sft["calls"]["over"]
    assert (own["difference"], own["less"], own["less_low"], own["less_high"]) == (-2.5, 50.0, 50.0, 50.0)
    # two of 16 swaps are as extreme; of two tests the smaller p counts twice (Benjamini and Hochberg)
    assert (own["p"], own["p_adjusted"]) == (pytest.approx(0.125), pytest.approx(0.25))
    assert over_third["calls"]["over"]["p"] == 1.0
    assert compare_pairwise(found, "nobody") == []


def test_other_questions_cannot_be_compared():
    found = {"a": [run("greedy", [1, 1, 1, 1])], "b": [run("greedy", [1, 1, 1, 1], items=("a", "b", "c", "z"))]}
    with pytest.raises(ConfigError, match="different questions"):
        compare_to_bases(found, {"a": "b"}, "over")
