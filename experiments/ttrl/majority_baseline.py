"""Majority voting at any cost: expected accuracy of a majority of n rollouts of the frozen policy, compared with the
later queries of an adapted one (supp:budget_fairness).

One draw of n rollouts per query is noisy. The seeds of a frozen policy are samples of the same distribution, so
majorities over many subsets of all their rollouts estimate the expectation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.common.paired_tests import RunScores, difference
from experiments.ttrl.ttrl_risk import StreamRows
from pixelis.training.common.item_rollouts import score_answer
from pixelis.training.ttrl.train import majority_answer
from pixelis.world import RenderedItem

DRAWS = 400
"""Subsets of n rollouts per query."""
Answers = list[str | None]


def pool_answers(streams: Mapping[int, Sequence[StreamRows]]) -> list[Answers]:
    """All rollouts of the frozen policy for each query. Variants with the same seed draw the same numbers, so the one
    with the most rollouts contains those of the others, apart from rounding."""
    longest = [
        max(seed_streams, key=lambda rows: len(rows[0]["vote"]["ballots"]))
        for seed_streams in streams.values()
        if seed_streams
    ]
    queries: list[Answers] = [[] for _ in longest[0]] if longest else []
    for rows in longest:
        for answers, row in zip(queries, rows, strict=True):
            answers += [ballot["answer"] for ballot in row["vote"]["ballots"]]
    return queries


def score_answers(pool: Sequence[Answers], items: Iterable[RenderedItem]) -> list[dict[str, float]]:
    """The score of each answer to each query, by the rule of its item."""
    return [
        {answer: score_answer(rendered.item, answer) for answer in sorted({a for a in answers if a})}
        for answers, rendered in zip(pool, items, strict=True)
    ]


def majority_scores(pool: Sequence[Answers], scores: Sequence[Mapping[str, float]], n: int) -> np.ndarray:
    """(queries,) mean score of a majority of n rollouts over random subsets."""
    rng, totals = np.random.default_rng(0), np.zeros(len(pool))
    for k, (answers, answer_scores) in enumerate(zip(pool, scores, strict=True)):
        for _ in range(DRAWS):
            sampled_answers = [answers[j] for j in rng.choice(len(answers), n, replace=False)]
            majority = majority_answer(sampled_answers)
            totals[k] += answer_scores[majority] if majority else 0.0
    return totals / DRAWS


def compare_to_majority(
    our_runs: Sequence[RunScores], pool: Sequence[Answers], scores: Sequence[Mapping[str, float]], counts: Sequence[int]
) -> list[dict[str, Any]]:
    """On the later half of a stream: majority votes of n rollouts of the frozen policy, and the gain of ours by its
    vote, by a majority of its own rollouts, and greedily. `of` is the number of rollouts they are drawn from; if it
    equals n there is one draw. p-values are not adjusted."""
    rows = []
    for n in counts:
        majority_values = 100.0 * majority_scores(pool, scores, n)[len(pool) // 2 :]
        row: dict[str, Any] = {"rollouts": n, "of": min(map(len, pool)), "mean": float(majority_values.mean())}
        for key in ("voted_later", "majority_later", "greedy_later"):
            baseline_runs = [RunScores(None, our_runs[0].items, {key: majority_values})]
            row[key] = difference(our_runs, baseline_runs, key)
        rows.append(row)
    return rows
