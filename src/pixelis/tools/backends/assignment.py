"""Linear assignment by shortest augmenting paths (Crouse 2016), in NumPy.

The order in which ties are broken is that of `scipy.optimize.linear_sum_assignment`, so that tracks keep their ids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def assign_rows(scores: NDArray[np.floating]) -> list[tuple[int, int]]:
    """The pairs (row, column), by row, that maximise the sum of `scores` (R, C); the smaller side is matched fully."""
    if scores.shape[1] < scores.shape[0]:
        return sorted((row, column) for column, row in assign_rows(scores.T))
    costs = -scores.astype(np.float64)
    rows, columns = costs.shape
    row_potential, column_potential = np.zeros(rows), np.zeros(columns)
    matched_row, matched_column = np.full(columns, -1), np.full(rows, -1)
    for start in range(rows):
        distance, previous = np.full(columns, np.inf), np.full(columns, -1)
        remaining = np.arange(columns)[::-1].copy()
        visited_rows, visited_columns = [], []
        row, shortest = start, 0.0
        while True:
            visited_rows.append(row)
            reduced = shortest + costs[row, remaining] - row_potential[row] - column_potential[remaining]
            closer = reduced < distance[remaining]
            distance[remaining[closer]] = reduced[closer]
            previous[remaining[closer]] = row
            shortest = float(distance[remaining].min())
            nearest = np.flatnonzero(distance[remaining] == shortest)
            free = nearest[matched_row[remaining[nearest]] == -1]
            position = free[-1] if len(free) else nearest[0]
            column = int(remaining[position])
            visited_columns.append(column)
            if matched_row[column] == -1:
                break
            row = int(matched_row[column])
            remaining[position] = remaining[-1]
            remaining = remaining[:-1]
        row_potential[start] += shortest
        others = [r for r in visited_rows if r != start]
        row_potential[others] += shortest - distance[matched_column[others]]
        column_potential[visited_columns] -= shortest - distance[visited_columns]
        while True:
            row = int(previous[column])
            matched_row[column] = row
            matched_column[row], column = column, int(matched_column[row])
            if row == start:
                break
    return list(enumerate(matched_column.tolist()))
