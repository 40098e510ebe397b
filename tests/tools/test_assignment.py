"""The assignment of detections to tracks, beside SciPy's, which it replaces."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from pixelis.tools.backends.assignment import assign_rows


def test_the_best_pairs_are_found_where_the_greedy_choice_is_worse():
    # greedy takes 9 + 1 = 10; the other diagonal gives 8 + 7 = 15
    assert assign_rows(np.array([[9.0, 8.0], [7.0, 1.0]])) == [(0, 1), (1, 0)]


def test_ties_and_sides_of_any_length_give_the_pairs_of_scipy():
    rng = np.random.default_rng(0)
    for _ in range(500):
        shape = rng.integers(1, 12, 2)
        scores = np.round(rng.random(shape), rng.integers(0, 3)) * (rng.random(shape) < rng.choice([0.3, 1.0]))
        rows, columns = linear_sum_assignment(scores, maximize=True)
        assert assign_rows(scores) == list(zip(rows.tolist(), columns.tolist(), strict=True))
