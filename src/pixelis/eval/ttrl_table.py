"""What a stream and the questions after it are reported with: accuracy, acceptance, drift, risk and coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pixelis.equations.embedding import CosineStatistics
from pixelis.eval.comparing import Floats, rows_of
from pixelis.eval.process import process_scores
from pixelis.metrics.bootstrap import bca_interval
from pixelis.metrics.selective import aurc, error_at_coverage, error_at_margin
from pixelis.train.adaptation import LEDGER, read_rows

Rows = list[dict[str, Any]]
COVERAGE = 0.889
"""At which errors are compared (tab:risk_coverage)."""
RESAMPLES = 2000


def after(folder: Path, statistics: Mapping[str, CosineStatistics]) -> dict[str, Floats]:
    """(n,) of each measure on the held-out items, in percent."""
    greedy, voted = rows_of(folder / "greedy"), read_rows(folder / "voted" / LEDGER)
    process = process_scores(greedy, statistics)
    return {
        "greedy": 100.0 * np.array([row.score for row in greedy]),
        "sampled": 100.0 * np.array([row["sampled"] for row in voted]),
        "voted": 100.0 * np.array([row["score"] for row in voted]),
        "racpr": 100.0 * process.racpr,
        "rapr": 100.0 * process.rapr,
        "calls": np.array([float(row.steps) for row in greedy]),
        "variety": np.array([row["variety"] for row in voted]),
    }


def before_learning(rows: Rows) -> dict[str, Floats]:
    """(n,) of each measure on the stream, every query answered before it was learnt from; and its later half alone."""
    whole = {
        "greedy": np.array([row["greedy"] for row in rows]), "sampled": np.array([row["sampled"] for row in rows]),
        "voted": np.array([row["score"] for row in rows]), "majority": np.array([row["majority"] for row in rows]),
    }  # fmt: skip
    later = {f"{key}_later": values[len(values) // 2 :] for key, values in whole.items()}
    return {key: 100.0 * np.asarray(values, dtype=np.float64) for key, values in {**whole, **later}.items()}


def acceptance(streams: Sequence[Rows]) -> dict[str, Any]:
    """Acceptance and drift (tab:supp_accept_drift), over all seeds."""
    rows = [row for stream in streams for row in stream]
    kls = [row["kl"] for row in rows if row["kl"] is not None]
    drifts = [stream[-1]["drift"] for stream in streams if stream[-1]["drift"] is not None]
    learnt = float(np.mean([row["learnt"] for row in rows]))
    quarter = [max(1, len(stream) // 4) for stream in streams]
    return {
        "accepted": 100.0 * learnt, "accepted_per_1k": 1000.0 * learnt,
        "abstained": 100.0 * float(np.mean([not row["answered"] for row in rows])),
        "refused": sum(len({row["updates"] for row in stream if row["refused"]}) for stream in streams),
        "kl": {"p50": float(np.median(kls)), "p95": float(np.percentile(kls, 95))} if kls else None,
        "drift": float(np.mean(drifts)) if drifts else None,
        "variety": {
            "first": float(np.mean([r["variety"] for s, q in zip(streams, quarter, strict=True) for r in s[:q]])),
            "last": float(np.mean([r["variety"] for s, q in zip(streams, quarter, strict=True) for r in s[-q:]])),
        },
    }  # fmt: skip


def selective(streams: Sequence[Rows]) -> dict[str, Any]:
    """Risk and coverage by the margin of the vote, and of a hard majority by its share, on the same rollouts."""
    rows = [row for stream in streams for row in stream]
    wrong = np.array([1.0 - row["score"] for row in rows])
    margin = np.array([row["vote"]["margin"] for row in rows])
    hard = np.array([1.0 - row["majority"] for row in rows])
    share = np.array([majority_share(row) for row in rows])
    found = {}
    for name, sure, loss in (("vote", margin, wrong), ("majority", share, hard)):
        area = bca_interval(
            np.column_stack([sure, loss]), lambda pairs: aurc(pairs[:, 0], pairs[:, 1]), rng=np.random.default_rng(0),
            resamples=RESAMPLES,
        )  # fmt: skip
        at = error_at_coverage(sure, loss, coverage=COVERAGE)
        found[name] = {"aurc": {"mean": area.point, "low": area.low, "high": area.high}, "error": 100.0 * at.error}
    given = error_at_margin(np.array([float(row["answered"]) for row in rows]), wrong, delta=0.5)
    return {**found, "coverage": 100.0 * given.coverage, "error_given": 100.0 * given.error}


def majority_share(row: Mapping[str, Any]) -> float:
    """Share of the rollouts that gave the most frequent answer."""
    ballots = row["vote"]["ballots"]
    return sum(b["answer"] is not None and b["answer"] == row["vote"]["majority"] for b in ballots) / len(ballots)


def families(streams: Sequence[Rows]) -> dict[str, dict[str, Any]]:
    """Acceptance and drift per family (tab:supp_fairness_per_bench)."""
    rows = [row for stream in streams for row in stream]
    out = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        kls = [row["kl_query"] for row in own if row["kl_query"] is not None]
        out[family] = {
            "queries": len(own), "accepted_per_1k": 1000.0 * float(np.mean([row["learnt"] for row in own])),
            "voted": 100.0 * float(np.mean([row["score"] for row in own])),
            "kl_p95": float(np.percentile(kls, 95)) if kls else None,
        }  # fmt: skip
    return out
