"""Plain voting at any cost: what a majority of n rollouts is right in, expected over all rollouts that are kept of the
policy that does not learn, beside the later queries of one that does (supp:budget_fairness).

One draw of n rollouts a query is a noisy rival. Seeds of a policy that stays as it is are draws of the same thing, so
that majorities of n of all of them, over many choices, have its expectation.
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
"""Choices of n rollouts for each query."""
Answers = list[str | None]


def pool_answers(streams: Mapping[int, Sequence[StreamRows]]) -> list[Answers]:
    """Of each query all rollouts of a policy that stays as it is. Variants of one seed draw the same numbers, so that
    of each seed the one with most rollouts has (but for a bit that rounding turns) those of the others too."""
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
    """How right each answer to each query is, by its item's own rule."""
    return [
        {answer: score_answer(rendered.item, answer) for answer in sorted({a for a in answers if a})}
        for answers, rendered in zip(pool, items, strict=True)
    ]


def majority_scores(pool: Sequence[Answers], scores: Sequence[Mapping[str, float]], n: int) -> np.ndarray:
    """(queries,) how right a plain majority of n rollouts is, on the mean over draws of them."""
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
    """Of the later half of a stream: plain majorities of so many who do not learn, and how much more ours is right in,
    by its vote, by a plain majority of its own rollouts, and greedily. `of` are the rollouts of a query that they are
    drawn from: of no more than n it is one draw. p-values are not adjusted."""
    rows = []
    for n in counts:
        majority_values = 100.0 * majority_scores(pool, scores, n)[len(pool) // 2 :]
        row: dict[str, Any] = {"rollouts": n, "of": min(map(len, pool)), "mean": float(majority_values.mean())}
        for key in ("voted_later", "majority_later", "greedy_later"):
            baseline_runs = [RunScores(None, our_runs[0].items, {key: majority_values})]
            row[key] = difference(our_runs, baseline_runs, key)
        rows.append(row)
    return rows
