"""How often answers are wrong that are given, and lessons that are learnt from: risk against coverage of a stream
(tab:risk_coverage, supp:failures_risk_coverage)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelis.equations.voting import class_scores, vote_weights
from pixelis.metrics.bootstrap import clustered_interval
from pixelis.metrics.selective import aurc, error_at_coverage, error_at_margin

Rows = list[dict[str, Any]]
COVERAGE = 0.889
"""At which errors are compared (tab:risk_coverage)."""
RESAMPLES = 2000


def selective(streams: Sequence[Rows]) -> dict[str, Any]:
    """Risk and coverage by the margin of the vote, and of a hard majority by its share, on the same rollouts.

    Seeds answer the same items: intervals draw whole items, and the difference of the two areas has its own.
    """
    rows = [row for stream in streams for row in stream]
    items = np.array([k for stream in streams for k in range(len(stream))])
    margin, share, mass = (np.array([own(row) for row in rows]) for own in (margin_of, majority_share, mass_of))
    wrong, hard = (np.array([1.0 - row[key] for row in rows]) for key in ("score", "majority"))
    columns = np.column_stack([margin, wrong, share, hard, mass])

    def area(statistic: Callable[[NDArray[np.float64]], float]) -> dict[str, float]:
        own = clustered_interval(columns, items, statistic, rng=np.random.default_rng(0), resamples=RESAMPLES)
        return {"mean": own.point, "low": own.low, "high": own.high}

    def of_vote(found: NDArray[np.float64]) -> float:
        return aurc(found[:, 0], found[:, 1])

    def of_majority(found: NDArray[np.float64]) -> float:
        return aurc(found[:, 2], found[:, 3])

    def of_mass(found: NDArray[np.float64]) -> float:
        return aurc(found[:, 4], found[:, 1])

    def error(sure: NDArray[np.float64], loss: NDArray[np.float64]) -> float:
        return 100.0 * error_at_coverage(sure, loss, coverage=COVERAGE).error

    given = error_at_margin(np.array([float(row["answered"]) for row in rows]), wrong, delta=0.5)
    return {
        "vote": {"aurc": area(of_vote), "error": error(margin, wrong)},
        "majority": {"aurc": area(of_majority), "error": error(share, hard)},
        "mass": {"aurc": area(of_mass), "error": error(mass, wrong)},
        "mass_difference": area(lambda found: of_mass(found) - of_majority(found)),
        "aurc_difference": area(lambda found: of_vote(found) - of_majority(found)),
        "coverage": 100.0 * given.coverage, "error_given": 100.0 * given.error,
    }  # fmt: skip


def selective_difference(mine: Mapping[int, Rows], other: Mapping[int, Rows]) -> dict[str, Any]:
    """Risk of ours by the margin of its vote, and by its mass, less that of others by the share of their majority, on
    the same queries: AURC, and the error at equal coverage, over the seeds that both have. `by_share` is by the share
    of a plain majority on both sides: what the policies differ in, whoever votes. And the share of lessons that are
    right, less that of theirs. Streams are by seed. Whole items are drawn."""
    seeds = sorted(mine.keys() & other.keys())  # every variant has the seed 0
    columns, items = list[list[float]](), list[int]()
    for seed in seeds:
        for k, (own, their) in enumerate(zip(mine[seed], other[seed], strict=True)):
            voted = (margin_of(own), mass_of(own), 1.0 - own["score"])
            plain = (majority_share(own), 1.0 - own["majority"], majority_share(their), 1.0 - their["majority"])
            columns.append([*voted, *plain, *lesson(own), *lesson(their)])
            items.append(k)

    def area(found: NDArray[np.float64], sure: int, wrong: int) -> float:
        return aurc(found[:, sure], found[:, wrong]) - aurc(found[:, 5], found[:, 6])

    def error(found: NDArray[np.float64], sure: int, wrong: int) -> float:
        errors = [
            error_at_coverage(found[:, by], found[:, of], coverage=COVERAGE).error for by, of in ((sure, wrong), (5, 6))
        ]
        return 100.0 * (errors[0] - errors[1])

    out: dict[str, Any] = {"seeds": len(seeds)}
    measures: dict[str, Callable[[NDArray[np.float64]], float]] = {
        f"{name}{by}": partial(of, sure=sure, wrong=wrong)
        for by, sure, wrong in (("", 0, 2), ("_by_mass", 1, 2), ("_by_share", 3, 4))
        for name, of in (("aurc", area), ("error", error))
    }
    if all(any(lesson(row)[0] for seed in seeds for row in side[seed]) for side in (mine, other)):
        measures["lessons_right"] = lambda found: share_right(found[:, 7:9]) - share_right(found[:, 9:11])
    for name, statistic in measures.items():
        found = clustered_interval(
            np.array(columns), np.array(items), statistic, rng=np.random.default_rng(0), resamples=RESAMPLES
        )
        out[name] = {"difference": found.point, "low": found.low, "high": found.high}
    return out


def margin_of(row: Mapping[str, Any]) -> float:
    """By how much the vote was won."""
    return float(row["vote"]["margin"])


def mass_of(row: Mapping[str, Any]) -> float:
    """What the weights of the voted answer come to beyond those of the next one, over the number of rollouts.

    Another reading of the margin, from the same ballots: near-duplicates count, and so do rollouts without an answer
    and weights that are small throughout, which a margin over the sum of weights does not see.
    """
    vote = row["vote"]
    if "mass" in vote:
        return float(vote["mass"])
    ballots = vote["ballots"]
    terms = [[ballot[key] for ballot in ballots] for key in ("entropy", "calibrated", "fidelity", "reliability")]
    scores = class_scores([ballot["answer"] for ballot in ballots], vote_weights(*terms).product)
    own = scores.pop(max(vote["scores"], key=vote["scores"].get, default=""), 0.0)
    return (own - max(scores.values(), default=0.0)) / len(ballots)


def majority_share(row: Mapping[str, Any]) -> float:
    """Share of the rollouts that gave the most frequent answer."""
    ballots = row["vote"]["ballots"]
    return sum(b["answer"] is not None and b["answer"] == row["vote"]["majority"] for b in ballots) / len(ballots)


def lessons(streams: Sequence[Rows]) -> dict[str, Any] | None:
    """Of the queries that were learnt from, how many were taught the right answer, in percent: what Err@Sel is of an
    update (supp:failures_risk_coverage). None where no answer was taught."""
    columns = np.array([lesson(row) for rows in streams for row in rows])
    items = np.array([k for rows in streams for k in range(len(rows))])
    learnt = int(columns[:, 0].sum())
    if not learnt:
        return None
    own = clustered_interval(columns, items, share_right, rng=np.random.default_rng(0), resamples=RESAMPLES)
    wrong = learnt - float(columns[:, 1].sum())
    return {"learnt": learnt, "wrong": wrong, "mean": own.point, "low": own.low, "high": own.high}


def lesson(row: Mapping[str, Any]) -> tuple[float, float]:
    """Whether a query taught an answer, and how right that was. What only makes entropy smaller has no advantages."""
    learnt = float(row["learnt"] and row["advantage"] is not None)
    return learnt, learnt * row["score"]


def share_right(lessons: NDArray[np.float64]) -> float:
    """(n, 2) lessons to percent; without any, nothing was taught wrongly."""
    learnt, right = lessons.sum(axis=0)
    return 100.0 * float(right / learnt) if learnt else 100.0
