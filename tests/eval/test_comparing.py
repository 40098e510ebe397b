"""What the comparisons of phases 2 and 3 share, by hand."""

import numpy as np
import pytest

from pixelis.eval.comparing import compared, interval


def test_answers_that_are_all_wrong_have_the_exact_interval_in_percent():
    # Clopper–Pearson for 0 of 8: 1 − 0.025^(1/8) = 0.3694
    found = interval(np.zeros(8))
    assert (found.point, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(36.94, abs=0.01)
    assert interval(np.full(8, 100.0)).low == pytest.approx(100 - 36.94, abs=0.01)


def test_counts_are_no_percentages():
    (row,) = compared({"a": [{"calls": np.zeros(8)}]}, None, "over")
    assert row["calls"]["high"] == pytest.approx(0.3694, abs=1e-4)


def test_seeds_are_averaged_item_by_item_and_held_against_the_base():
    base = [{"greedy": np.array([0.0, 100.0, 0.0, 0.0])}]
    ours = [{"greedy": np.array([100.0, 100.0, 100.0, 100.0])}, {"greedy": np.array([100.0, 100.0, 0.0, 0.0])}]
    none, row = compared({"none": base, "ours": ours}, "none", "over_none")
    assert "p" not in none["greedy"]
    assert (row["seeds"], row["items"]) == (2, 4)
    assert row["greedy"]["mean"] == 75.0
    assert row["greedy"]["over_seeds"] == 25.0
    assert row["greedy"]["over_none"] == 50.0
    # differences 100, 0, 50, 50: of 16 swaps four (the pair of zeros counts twice) leave all or none turned
    assert row["greedy"]["p"] == pytest.approx(4 / 16)
