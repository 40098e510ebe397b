"""Which new items only repeat one that a memory has (subsec:eval_setup: near-duplicate keys are suppressed)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.retrieval.keys import weighted
from pixelis.retrieval.memory_index import rerank

PROPOSED = 64
"""Rows that a search proposes to be compared with a new item."""
BOTH_HALVES = 0.5
"""λ_pix of the comparison, however a memory is searched: ablations of the search must search the same items."""


class Added(NamedTuple):
    """What became of a draft: the row it got, or the row that it repeats."""

    row: int | None
    repeats: int | None = None
    similarity: float = 0.0


def repeated(
    keys: NDArray[np.float32],
    proposed: NDArray[np.int64],
    stored: NDArray[np.float16],
    *,
    text_dimensions: int,
    most: float,
) -> list[Added]:
    """Which of the new keys, (n, D), are nearer than `most` to a row that is proposed for them, (n, PROPOSED) and −1
    where there are fewer, or to an earlier new one that stays (as −1 − its number)."""
    query = weighted(keys, text_dimensions, BOTH_HALVES)
    among = query @ keys.T  # (n, n)
    outcomes: list[Added] = []
    for number in range(len(keys)):
        rows, similarities = rerank(stored, query[number], proposed[number], 1)
        kept = [m for m in range(number) if outcomes[m].repeats is None]
        best = max(kept, key=lambda m: among[number, m], default=None)
        if len(rows) and similarities[0] > most:
            outcomes.append(Added(None, int(rows[0]), float(similarities[0])))
        elif best is not None and among[number, best] > most:
            outcomes.append(Added(None, -1 - best, float(among[number, best])))
        else:
            outcomes.append(Added(None))
    return outcomes
