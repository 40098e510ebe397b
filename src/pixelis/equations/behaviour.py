"""Behavioural similarity of two trajectories: the order of their tools, and where they looked (subsec:ttrl)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from pixelis.equations.softdtw import soft_dtw
from pixelis.equations.visfid import DecisiveStep, step_scores


class Similarity(NamedTuple):
    """Sim_behav and its two terms, each in [0, 1]."""

    similarity: float
    names: float
    footprints: float


def name_similarity(a: Sequence[str], b: Sequence[str]) -> float:
    """1 - edit distance between the action names / the longer length (subsec:ttrl); two empty chains give 1."""
    return float(Levenshtein.normalized_similarity(a, b))


def aligned_overlap(overlaps: NDArray[np.float64], *, gamma: float = 0.20) -> float:
    """Mean overlap over softly aligned steps: the (n, m) overlaps weighted by the expected alignment of soft-DTW
    (subsec:ttrl, tab:hp-rcpr).

    The cost of aligning two steps is 1 - overlap. Two empty chains give 1, an empty one against another 0.
    """
    n, m = overlaps.shape
    if n == 0 or m == 0:
        return float(n == m)
    alignment = soft_dtw(1.0 - overlaps, gamma=gamma).alignment
    # exact sums, because similarity(a, b) and similarity(b, a) add the same numbers in another order
    return fsum((alignment * overlaps).ravel().tolist()) / fsum(alignment.ravel().tolist())


def similarity(
    a: Sequence[DecisiveStep], b: Sequence[DecisiveStep], *, weight_names: float = 0.5, gamma: float = 0.20
) -> Similarity:
    """Sim_behav(a, b): symmetric, in [0, 1], 1 on itself (subsec:ttrl, supp:ttrl_loss_clean).

    weight_names x name similarity + (1 - weight_names) x footprint similarity. A soft alignment of a chain with itself
    is not quite 1, so the aligned overlap is divided by the geometric mean of both chains' overlaps with themselves and
    clipped at 1. The paper's weights are missing (its appendix S6.1 does not exist): half and half.
    Two empty chains give 1, an empty chain and another 0.
    """
    return similarities([a, b], 1, weight_names=weight_names, gamma=gamma)[0]


def similarities(
    chains: Sequence[Sequence[DecisiveStep]],
    exemplar: int,
    *,
    weight_names: float = 0.5,
    gamma: float = 0.20,
    scores: NDArray[np.float64] | None = None,
    names: Sequence[Sequence[str]] | None = None,
) -> tuple[Similarity, ...]:
    """Sim_behav of every chain to the exemplar, by its position (subsec:ttrl).

    `scores` are precomputed `step_scores` of all steps. `names` are the tools of all calls, if the chains hold only the
    decisive ones: a chain with detours differs from the exemplar even if it looks at the same places. No chains: ().
    """
    if not 0.0 <= weight_names <= 1.0:
        raise ValueError(f"the weight of the names must lie in [0, 1], got {weight_names}")
    if not chains:
        return ()
    if not 0 <= exemplar < len(chains):
        raise ValueError(f"the exemplar is rollout {exemplar} of {len(chains)}: expected 0 to {len(chains) - 1}")
    tool_names = [[step.tool for step in chain] for chain in chains] if names is None else names
    if len(tool_names) != len(chains):
        raise ValueError(f"{len(chains)} chains, but names of {len(tool_names)}: expected one each")
    S = step_scores([step for chain in chains for step in chain]) if scores is None else scores
    slices = _slices(chains)
    self_overlaps = [aligned_overlap(S[rows, rows], gamma=gamma) for rows in slices]
    results = []
    for j, (rows, self_overlap) in enumerate(zip(slices, self_overlaps, strict=True)):
        overlap = self_overlap if j == exemplar else aligned_overlap(S[rows, slices[exemplar]], gamma=gamma)
        footprints = min(1.0, overlap / sqrt(self_overlap * self_overlaps[exemplar]))
        name_score = name_similarity(tool_names[j], tool_names[exemplar])
        results.append(
            Similarity(weight_names * name_score + (1.0 - weight_names) * footprints, name_score, footprints)
        )
    return tuple(results)


def duplicate_groups(
    chains: Sequence[Sequence[DecisiveStep]],
    answers: Sequence[Hashable],
    *,
    min_overlap: float = 0.85,
    scores: NDArray[np.float64] | None = None,
) -> tuple[int, ...]:
    """Group number of every rollout: near-duplicates share a group, and a group has one vote (supp:ttrl_loss_clean).

    Two rollouts are near-duplicates when answer and tool sequence are equal and every step overlaps its counterpart
    by more than 0.85 ("frame-IoU > 0.85"). Groups are closed under this relation, so the order does not matter.
    A chain without steps has no evidence that could be duplicated: it keeps its vote.
    """
    if len(answers) != len(chains):
        raise ValueError(f"{len(chains)} chains, but {len(answers)} answers: expected one each")
    S = step_scores([step for chain in chains for step in chain]) if scores is None else scores
    slices = _slices(chains)
    group = list(range(len(chains)))
    for j, chain in enumerate(chains):
        for k in range(j):
            same_tools = chain and answers[j] == answers[k] and [s.tool for s in chain] == [s.tool for s in chains[k]]
            if same_tools and group[j] != group[k] and bool((S[slices[j], slices[k]].diagonal() > min_overlap).all()):
                group = [group[k] if g == group[j] else g for g in group]
    return tuple(group)


def _slices(chains: Sequence[Sequence[DecisiveStep]]) -> list[slice]:
    ends = np.cumsum([len(chain) for chain in chains]).tolist()
    return [slice(end - len(chain), end) for chain, end in zip(chains, ends, strict=True)]
