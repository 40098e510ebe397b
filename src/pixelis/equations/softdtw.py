"""Soft-DTW between two short chains: its value and the expected alignment, which is its gradient.

Tool chains have two to ten steps, so the recursion runs over plain floats: on 8x8 that is faster than numpy along
anti-diagonals, without a compiler. Cuturi and Blondel (2017) give both recursions.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Shares = tuple[float, float, float]
"""Shares of the pair above, the pair to the left, and the one on the diagonal."""


class SoftDtw(NamedTuple):
    """The soft minimum of the cost over all alignments, and the alignment weight of each pair of steps."""

    value: float
    alignment: NDArray[np.float64]
    """(n, m): probability that an alignment drawn with weight exp(-cost/gamma) passes through the pair."""


def soft_dtw(costs: ArrayLike, *, gamma: float = 0.20) -> SoftDtw:
    """Soft-DTW of an (n, m) cost matrix with temperature gamma (tab:hp-rcpr, subsec:ttrl).

    R[i,j] = D[i,j] + softmin(R[i-1,j], R[i,j-1], R[i-1,j-1]), softmin(x) = -gamma log sum exp(-x/gamma); the
    expected alignment is dR[n,m]/dD. Transposing the costs transposes the alignment, to the last bit.
    Two empty chains cost 0; an empty chain against another costs infinity, and nothing is aligned.
    """
    D = np.asarray(costs, dtype=np.float64)
    if D.ndim != 2:
        raise ValueError(f"soft-DTW expects an (n, m) matrix of costs, got {D.ndim} dimensions")
    if not gamma > 0.0:
        raise ValueError(f"soft-DTW expects gamma > 0, got {gamma}")
    if not np.isfinite(D).all():
        raise ValueError("soft-DTW expects finite costs, got NaN or infinity")
    n, m = D.shape
    if n == 0 or m == 0:
        return SoftDtw(0.0 if n == m else inf, np.zeros((n, m)))
    value, shares = _forward(D.tolist(), gamma)
    return SoftDtw(value, np.array(_expected_alignment(shares)))


def _forward(costs: list[list[float]], gamma: float) -> tuple[float, list[list[Shares]]]:
    """R[n,m], and for every pair the shares of the three pairs before it in its soft minimum."""
    m = len(costs[0])
    sharpness = 1.0 / gamma
    above = [0.0] + [inf] * m
    shares = []
    for cost_row in costs:
        left, diagonal = inf, above[0]
        row, row_shares = [inf], []
        for cost, up in zip(cost_row, above[1:], strict=True):
            smallest = up if up < left else left
            smallest = diagonal if diagonal < smallest else smallest
            a, b = exp((smallest - up) * sharpness), exp((smallest - left) * sharpness)
            c = exp((smallest - diagonal) * sharpness)
            weight = a + b + c  # up and left first: a transposed matrix adds the same numbers in the same order
            left = cost + smallest - gamma * log(weight)
            diagonal = up
            row.append(left)
            row_shares.append((a / weight, b / weight, c / weight))
        above = row
        shares.append(row_shares)
    return above[m], shares


def _expected_alignment(shares: list[list[Shares]]) -> list[list[float]]:
    """E[n,m] = 1, and each earlier E[i,j] is the sum of what the three pairs after it pass back."""
    n, m = len(shares), len(shares[0])
    # a pair past the end that passes everything to the last pair along the diagonal, and nothing to any other
    sentinel: list[Shares] = [(0.0, 0.0, 0.0)] * m + [(0.0, 0.0, 1.0)]
    below, below_shares = [0.0] * m + [1.0], sentinel
    rows = []
    for i in range(n - 1, -1, -1):
        current, current_shares = [0.0] * (m + 1), [*shares[i], sentinel[0]]
        for j in range(m - 1, -1, -1):
            up, left = below[j] * below_shares[j][0], current[j + 1] * current_shares[j + 1][1]
            current[j] = up + left + below[j + 1] * below_shares[j + 1][2]
        rows.append(current[:m])
        below, below_shares = current, current_shares
    rows.reverse()
    return rows
