"""The table of phase 3: accuracy, acceptance, drift, risk and coverage of streams and held-out evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.common.paired_tests import (
    RunsByVariant,
    RunScores,
    compare_pairwise,
    compare_to_bases,
    difference,
    read_scored_items,
    select_shared_seeds,
)
from experiments.ttrl.ttrl_risk import StreamRows, pseudo_label_accuracy, selective_risk, selective_risk_difference
from pixelis.equations.embedding import CosineStatistics
from pixelis.evaluation.process_report import process_scores
from pixelis.training.ttrl.journal import LEDGER, read_rows

VOTED = "voted"
"""Subfolder of the answers by vote."""


class StreamResult(NamedTuple):
    """A finished stream and its held-out evaluation."""

    seed: int
    rows: StreamRows
    budget_row: int
    """The row at which the budget was used up."""
    held_out_folder: Path | None
    """None if it was not evaluated."""
    is_examined: bool
    """Off if the held-out answers would be those of `none`."""
    base: str
    budget: int | None
    """Largest number of trained queries; None if the variant is not matched."""
    calibration: Any
    stress: bool
    """Whether its votes, neighbours or keys were perturbed on purpose."""
    statistics: Mapping[str, CosineStatistics]

    @property
    def trained_queries(self) -> int:
        """Number of trained queries at the evaluation."""
        return sum(row["learnt"] for row in self.rows[: self.budget_row])

    @property
    def under_budget(self) -> bool:
        """Whether the stream ended before the budget was used up."""
        return self.budget is not None and sum(row["learnt"] for row in self.rows) < self.budget


def build_table(stream_results: Mapping[str, Sequence[StreamResult]], baseline: str) -> list[dict[str, Any]]:
    """One row per variant: held-out accuracy and its gain over the base, prequential accuracy, acceptance, drift,
    risk."""
    bases = {name: streams[0].base for name, streams in stream_results.items()}
    after_runs = held_out_runs(stream_results)
    held_out_rows = {row["variant"]: row for row in compare_to_bases(after_runs, bases, "over_none")}
    prequential_rows = {
        row["variant"]: row
        for row in compare_to_bases(
            prequential_runs(stream_results), bases_on_same_stream(stream_results, bases), "over_none"
        )
    }
    table = []
    for name, streams in stream_results.items():
        rows = [stream.rows for stream in streams]
        trained_queries = [stream.trained_queries for stream in streams]
        is_gain = bases[name] == baseline != name
        table.append({
            "variant": name, "seeds": len(streams), "queries": len(rows[0]), "spent": trained_queries,
            "under_budget": any(stream.under_budget for stream in streams),
            "cpu_seconds_a_query": cpu_seconds_per_query(rows), "base": bases[name], "asked": streams[0].is_examined,
            "held_out": held_out_rows.get(name), "prequential": prequential_rows[name], **summarise_acceptance(rows),
            "drift_when_asked": final_drift([stream.rows[: stream.budget_row] for stream in streams]),
            "per_point": queries_per_point(held_out_rows.get(name), trained_queries) if is_gain else None,
            "selective": selective_risk(rows), "lessons": pseudo_label_accuracy(rows),
            "families": summarise_families(rows, after_runs.get(name), after_runs.get(bases[name])),
            "calibration": streams[0].calibration,
        })  # fmt: skip
    return table


def bases_on_same_stream(
    stream_results: Mapping[str, Sequence[StreamResult]], bases: Mapping[str, str]
) -> dict[str, str]:
    """Bases that answered the same queries, which a comparison of streams requires."""
    items = {name: [row["item"] for row in streams[0].rows] for name, streams in stream_results.items()}
    return {name: base for name, base in bases.items() if items.get(base) == items[name]}


def queries_per_point(
    held_out: Mapping[str, Any] | None, trained_queries: Sequence[int]
) -> dict[str, float | None] | None:
    """Trained queries per point of greedy accuracy gained, with an interval from that of the gain (open if the gain may
    be 0); None without a gain."""
    gain = (held_out or {}).get("greedy", {}).get("over_none")
    if not gain or gain["difference"] <= 0:
        return None
    mean_trained = float(np.mean(trained_queries))
    return {
        "mean": mean_trained / gain["difference"], "low": mean_trained / gain["high"],
        "high": mean_trained / gain["low"] if gain["low"] > 0 else None,
    }  # fmt: skip


def cpu_seconds_per_query(streams: Sequence[StreamRows]) -> float | None:
    """CPU seconds per query without its tools, whose results may be cached; over the rows that record them."""
    costs = [row["cpu_s"] for rows in streams for row in rows if "cpu_s" in row]
    return float(np.mean(costs)) if costs else None


def build_pairs(stream_results: Mapping[str, Sequence[StreamResult]], ours: str) -> dict[str, list[dict[str, Any]]]:
    """Ours against every variant that answered the same stream without stress, on the held-out questions and on the
    stream. p-values are adjusted among them.

    `plain_voting`: its votes in the later half of the stream against majority votes of variants without updates.
    `selective`: risk and coverage, a variant by the margin of its vote against another by the share of a majority.
    """
    streams = prequential_runs(stream_results)
    comparable = {
        name: runs
        for name, runs in streams.items()
        if ours in streams and runs[0].items == streams[ours][0].items and not stream_results[name][0].stress
    }
    frozen_variants = [
        name for name in comparable if not any(row["learnt"] for s in stream_results[name] for row in s.rows)
    ]
    return {
        "held_out": compare_pairwise(
            {name: runs for name, runs in held_out_runs(stream_results).items() if name in comparable}, ours
        ),
        "prequential": compare_pairwise(comparable, ours),
        "plain_voting": [
            {
                "variant": ours,
                "over": name,
                **difference(
                    single_measure(comparable[ours], "voted_later"), single_measure(comparable[name], key), ""
                ),
            }
            | {"key": key}
            for name in frozen_variants
            for key in ("majority_later", "voted_later")
        ],
        "selective": [
            {
                "variant": name,
                "over": base,
                **selective_risk_difference(rows_by_seed(stream_results[name]), rows_by_seed(stream_results[base])),
            }
            for name, base in rival_pairs(stream_results, ours)
        ],
    }


def rows_by_seed(streams: Sequence[StreamResult]) -> dict[int, StreamRows]:
    return {stream.seed: stream.rows for stream in streams}


def single_measure(runs: Sequence[RunScores], key: str) -> list[RunScores]:
    """One measure of some runs under an empty name, to compare it with another measure."""
    return [RunScores(run.seed, run.items, {"": run.measures[key]}) for run in runs]


def rival_pairs(stream_results: Mapping[str, Sequence[StreamResult]], ours: str) -> list[tuple[str, str]]:
    """Pairs that answered the same queries under the same stress: ours and each variant without stress, ours with flips
    and the majority with as many."""
    items = {name: [row["item"] for row in streams[0].rows] for name, streams in stream_results.items()}
    pairs = [(ours, name) for name, streams in stream_results.items() if name != ours and not streams[0].stress]
    pairs += [(name, name.replace(ours, "majority", 1)) for name in stream_results if name.startswith(f"{ours}-")]
    return [(a, b) for a, b in pairs if a in stream_results and b in stream_results and items[a] == items[b]]


def held_out_runs(stream_results: Mapping[str, Sequence[StreamResult]]) -> RunsByVariant:
    """(n,) of each measure on the held-out items, in percent, of the evaluated variants."""
    runs_by_variant: dict[str, list[RunScores]] = {}
    for name, streams in stream_results.items():
        for stream in streams:
            if stream.held_out_folder is not None:
                runs_by_variant.setdefault(name, []).append(
                    held_out_run(stream.seed, stream.held_out_folder, stream.statistics)
                )
    return runs_by_variant


def held_out_run(seed: int, folder: Path, statistics: Mapping[str, CosineStatistics]) -> RunScores:
    """Held-out scores of a policy, and those without a shift if evaluated."""
    greedy, voted = read_scored_items(folder / "greedy"), read_rows(folder / VOTED / LEDGER)
    process = process_scores(greedy, statistics)
    measures = {
        "greedy": 100.0 * np.array([row.score for row in greedy]),
        "racpr": 100.0 * process.racpr,
        "rapr": 100.0 * process.rapr,
        "calls": np.array([float(row.steps) for row in greedy]),
    }
    if voted:
        measures |= {
            "sampled": 100.0 * np.array([row["sampled"] for row in voted]),
            "voted": 100.0 * np.array([row["score"] for row in voted]),
            "variety": np.array([row["variety"] for row in voted]),
        }
    if (folder / "old" / "items.jsonl").exists():
        measures["old"] = 100.0 * np.array([row.score for row in read_scored_items(folder / "old")])
    return RunScores(seed, tuple(row.item for row in greedy), measures)


def prequential_runs(stream_results: Mapping[str, Sequence[StreamResult]]) -> RunsByVariant:
    """(n,) of each measure on the stream, each query before training on it; also for its later half and last third."""
    return {
        name: [prequential_run(stream.seed, stream.rows) for stream in streams]
        for name, streams in stream_results.items()
    }


def prequential_run(seed: int, rows: StreamRows) -> RunScores:
    full_stream = {
        "greedy": np.array([row["greedy"] for row in rows]), "sampled": np.array([row["sampled"] for row in rows]),
        "voted": np.array([row["score"] for row in rows]), "majority": np.array([row["majority"] for row in rows]),
    }  # fmt: skip
    later_half = {f"{key}_later": values[len(values) // 2 :] for key, values in full_stream.items()}
    last_third = {f"{key}_last_third": values[2 * len(values) // 3 :] for key, values in full_stream.items()}
    measures = {
        key: 100.0 * np.asarray(values, dtype=np.float64)
        for key, values in {**full_stream, **later_half, **last_third}.items()
    }
    return RunScores(seed, tuple(row["item"] for row in rows), measures)


def summarise_acceptance(streams: Sequence[StreamRows]) -> dict[str, Any]:
    """Acceptance and drift (tab:supp_accept_drift), over all seeds."""
    rows = [row for stream in streams for row in stream]
    kls = [row["kl"] for row in rows if row["kl"] is not None]
    trained_share = float(np.mean([row["learnt"] for row in rows]))
    quarter = [max(1, len(stream) // 4) for stream in streams]
    return {
        "accepted": 100.0 * trained_share, "accepted_per_1k": 1000.0 * trained_share,
        "abstained": 100.0 * float(np.mean([not row["answered"] for row in rows])),
        "refused": sum(len({row["updates"] for row in stream if row["refused"]}) for stream in streams),
        "kl": {"p50": float(np.median(kls)), "p95": float(np.percentile(kls, 95))} if kls else None,
        "drift": final_drift(streams),
        "variety": {
            "first": float(np.mean([r["variety"] for s, q in zip(streams, quarter, strict=True) for r in s[:q]])),
            "last": float(np.mean([r["variety"] for s, q in zip(streams, quarter, strict=True) for r in s[-q:]])),
        },
    }  # fmt: skip


def final_drift(streams: Sequence[StreamRows]) -> float | None:
    """Mean over streams of the KL to the start after the last row."""
    drifts = [stream[-1]["drift"] for stream in streams if stream and stream[-1]["drift"] is not None]
    return float(np.mean(drifts)) if drifts else None


def summarise_families(
    streams: Sequence[StreamRows],
    after_runs: Sequence[RunScores] | None = None,
    base_runs: Sequence[RunScores] | None = None,
) -> dict[str, dict[str, Any]]:
    """Acceptance and drift per family (tab:supp_fairness_per_bench), and held-out scores of base and variant over
    shared seeds."""
    if after_runs and base_runs:
        after_runs, base_runs = select_shared_seeds(after_runs, base_runs)
    rows = [row for stream in streams for row in stream]
    summary = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        family_rows = [row for row in rows if row["family"] == family]
        kls = [row["kl_query"] for row in family_rows if row["kl_query"] is not None]
        summary[family] = {
            "queries": len(family_rows),
            "accepted_per_1k": 1000.0 * float(np.mean([row["learnt"] for row in family_rows])),
            "voted": 100.0 * float(np.mean([row["score"] for row in family_rows])),
            "kl_p95": float(np.percentile(kls, 95)) if kls else None,
            "pre": family_accuracy(base_runs, family), "post": family_accuracy(after_runs, family),
        }  # fmt: skip
    return summary


def family_accuracy(runs: Sequence[RunScores] | None, family: str) -> float | None:
    """Mean greedy accuracy on the items of a family; None without any."""
    scores = [
        score for run in runs or () for item, score in zip(run.items, run.measures["greedy"], strict=True)
        if item.startswith(f"{family}.")
    ]  # fmt: skip
    return float(np.mean(scores)) if scores else None
