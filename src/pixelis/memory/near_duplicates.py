"""New items that only repeat one already in a memory (subsec:eval_setup: near-duplicate keys are suppressed)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.memory.keys import weight_query
from pixelis.memory.vector_index import rerank

NUM_CANDIDATES = 64
"""Number of rows that a search proposes for comparison with a new item."""
EQUAL_WEIGHT = 0.5
"""λ_pix of the comparison, independent of the search, so that ablations of the search have the same items."""


class AddOutcome(NamedTuple):
    """The row of an added draft, or the row that it repeats."""

    row: int | None
    repeats: int | None = None
    similarity: float = 0.0


def find_repeats(
    keys: NDArray[np.float32],
    candidate_rows: NDArray[np.int64],
    stored_keys: NDArray[np.float16],
    *,
    text_dimensions: int,
    max_similarity: float,
) -> list[AddOutcome]:
    """Find new keys, (n, D), whose similarity to a candidate row, or to an earlier new key that is kept, exceeds
    `max_similarity`. `candidate_rows` is (n, NUM_CANDIDATES), padded with −1; the new key i is reported as −1 − i."""
    query = weight_query(keys, text_dimensions, EQUAL_WEIGHT)
    pairwise = query @ keys.T  # (n, n)
    outcomes: list[AddOutcome] = []
    for number in range(len(keys)):
        rows, similarities = rerank(stored_keys, query[number], candidate_rows[number], 1)
        new_numbers = [m for m in range(number) if outcomes[m].repeats is None]
        best = max(new_numbers, key=lambda m: pairwise[number, m], default=None)
        if len(rows) and similarities[0] > max_similarity:
            outcomes.append(AddOutcome(None, int(rows[0]), float(similarities[0])))
        elif best is not None and pairwise[number, best] > max_similarity:
            outcomes.append(AddOutcome(None, -1 - best, float(pairwise[number, best])))
        else:
            outcomes.append(AddOutcome(None))
    return outcomes
