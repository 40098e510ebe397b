"""What a stream and the questions after it are reported with: accuracy, acceptance, drift, risk and coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.equations.embedding import CosineStatistics
from pixelis.eval.comparing import Found, Run, compared, difference, of_shared_seeds, paired, rows_of
from pixelis.eval.process import process_scores
from pixelis.eval.ttrl_risk import Rows, lessons, selective, selective_difference
from pixelis.train.adaptation import LEDGER, read_rows

VOTED = "voted"
"""Where the answers by vote lie, of those who were asked so."""


class Told(NamedTuple):
    """One stream that has ended, and where the questions after it lie."""

    seed: int
    rows: Rows
    spent: int
    """The row at which the budget was spent."""
    held: Path | None
    """None where it was not asked, or not yet."""
    asked: bool
    """Off where the held-out questions would get the answers of `none`."""
    base: str
    budget: int | None
    """Queries that it may have learnt from; None where it is not matched."""
    calibration: Any
    stress: bool
    """Its votes, neighbours or keys were disturbed on purpose."""
    statistics: Mapping[str, CosineStatistics]

    @property
    def learnt(self) -> int:
        """Queries that it had learnt from when it was asked."""
        return sum(row["learnt"] for row in self.rows[: self.spent])

    @property
    def under_budget(self) -> bool:
        """Its stream came to an end before as many queries had taught as the budget allows."""
        return self.budget is not None and sum(row["learnt"] for row in self.rows) < self.budget


def tabulated(found: Mapping[str, Sequence[Told]], none: str) -> list[dict[str, Any]]:
    """One row a variant: held-out accuracy against its base, prequential accuracy, acceptance, drift, risk."""
    bases = {name: streams[0].base for name, streams in found.items()}
    after = answers_after(found)
    held_out = {row["variant"]: row for row in compared(after, bases, "over_none")}
    answered = {row["variant"]: row for row in compared(answers_before(found), same_stream(found, bases), "over_none")}
    table = []
    for name, streams in found.items():
        rows = [stream.rows for stream in streams]
        spent = [stream.learnt for stream in streams]
        table.append({
            "variant": name, "seeds": len(streams), "queries": len(rows[0]), "spent": spent,
            "under_budget": any(stream.under_budget for stream in streams),
            "cpu_seconds_a_query": cost(rows), "base": bases[name], "asked": streams[0].asked,
            "held_out": held_out.get(name), "prequential": answered[name], **acceptance(rows),
            "drift_when_asked": drift_after([stream.rows[: stream.spent] for stream in streams]),
            "per_point": per_point(held_out.get(name), spent) if bases[name] == none != name else None,
            "selective": selective(rows), "lessons": lessons(rows),
            "families": families(rows, after.get(name), after.get(bases[name])),
            "calibration": streams[0].calibration,
        })  # fmt: skip
    return table


def same_stream(found: Mapping[str, Sequence[Told]], bases: Mapping[str, str]) -> dict[str, str]:
    """Bases that answered the same queries: of others, only those before learning can be compared that are alike."""
    items = {name: [row["item"] for row in streams[0].rows] for name, streams in found.items()}
    return {name: base for name, base in bases.items() if items.get(base) == items[name]}


def per_point(held_out: Mapping[str, Any] | None, spent: Sequence[int]) -> dict[str, float | None] | None:
    """Queries learnt from for each point of greedy accuracy that was won, with the ends of the gain's interval (no end
    where the gain may be nothing); None where nothing was won."""
    over = (held_out or {}).get("greedy", {}).get("over_none")
    if not over or over["difference"] <= 0:
        return None
    most = float(np.mean(spent))
    return {
        "mean": most / over["difference"], "low": most / over["high"],
        "high": most / over["low"] if over["low"] > 0 else None,
    }  # fmt: skip


def cost(streams: Sequence[Rows]) -> float | None:
    """CPU seconds of a query without its tools, whose results others may have asked for before: over the rows that say
    so, which older ones do not."""
    known = [row["cpu_s"] for rows in streams for row in rows if "cpu_s" in row]
    return float(np.mean(known)) if known else None


def paired_rows(found: Mapping[str, Sequence[Told]], ours: str) -> dict[str, list[dict[str, Any]]]:
    """Ours against its rivals, on the held-out questions and on the queries that both answered: those who answered the
    same stream without stress. p is adjusted among them.

    `plain_voting`: its votes in the later half of the stream against plain majorities of those who do not learn.
    `selective`: risk and coverage, every variant by the margin of its vote against another by the share of a majority.
    """
    streams = answers_before(found)
    alike = {
        name: runs
        for name, runs in streams.items()
        if ours in streams and runs[0].items == streams[ours][0].items and not found[name][0].stress
    }
    still = [name for name in alike if not any(row["learnt"] for s in found[name] for row in s.rows)]
    return {
        "held_out": paired({name: runs for name, runs in answers_after(found).items() if name in alike}, ours),
        "prequential": paired(alike, ours),
        "plain_voting": [
            {"variant": ours, "over": name, **difference(only(alike[ours], "voted_later"), only(alike[name], key), "")}
            | {"key": key}
            for name in still
            for key in ("majority_later", "voted_later")
        ],
        "selective": [
            {"variant": name, "over": base, **selective_difference(by_seed(found[name]), by_seed(found[base]))}
            for name, base in rivals(found, ours)
        ],
    }


def by_seed(streams: Sequence[Told]) -> dict[int, Rows]:
    return {stream.seed: stream.rows for stream in streams}


def only(runs: Sequence[Run], key: str) -> list[Run]:
    """One measure of some runs, without its name, so that it can be held against another."""
    return [Run(run.seed, run.items, {"": run.measures[key]}) for run in runs]


def rivals(found: Mapping[str, Sequence[Told]], ours: str) -> list[tuple[str, str]]:
    """Variants that answered the same queries under the same stress: ours against those without any, ours under flips
    against majorities under as many."""
    items = {name: [row["item"] for row in streams[0].rows] for name, streams in found.items()}
    pairs = [(ours, name) for name, streams in found.items() if name != ours and not streams[0].stress]
    pairs += [(name, name.replace(ours, "majority", 1)) for name in found if name.startswith(f"{ours}-")]
    return [(a, b) for a, b in pairs if a in found and b in found and items[a] == items[b]]


def answers_after(found: Mapping[str, Sequence[Told]]) -> Found:
    """(n,) of each measure on the held-out items, in percent, of those that were asked."""
    out: dict[str, list[Run]] = {}
    for name, streams in found.items():
        for stream in streams:
            if stream.held is not None:
                out.setdefault(name, []).append(after(stream.seed, stream.held, stream.statistics))
    return out


def after(seed: int, folder: Path, statistics: Mapping[str, CosineStatistics]) -> Run:
    """What a policy answered to the held-out questions, and to those without a shift where they were asked."""
    greedy, voted = rows_of(folder / "greedy"), read_rows(folder / VOTED / LEDGER)
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
        measures["old"] = 100.0 * np.array([row.score for row in rows_of(folder / "old")])
    return Run(seed, tuple(row.item for row in greedy), measures)


def answers_before(found: Mapping[str, Sequence[Told]]) -> Found:
    """(n,) of each measure on the stream, every query answered before it was learnt from; its later half and its last
    third alone."""
    return {name: [before_learning(stream.seed, stream.rows) for stream in streams] for name, streams in found.items()}


def before_learning(seed: int, rows: Rows) -> Run:
    whole = {
        "greedy": np.array([row["greedy"] for row in rows]), "sampled": np.array([row["sampled"] for row in rows]),
        "voted": np.array([row["score"] for row in rows]), "majority": np.array([row["majority"] for row in rows]),
    }  # fmt: skip
    later = {f"{key}_later": values[len(values) // 2 :] for key, values in whole.items()}
    last = {f"{key}_last_third": values[2 * len(values) // 3 :] for key, values in whole.items()}
    measures = {key: 100.0 * np.asarray(values, dtype=np.float64) for key, values in {**whole, **later, **last}.items()}
    return Run(seed, tuple(row["item"] for row in rows), measures)


def acceptance(streams: Sequence[Rows]) -> dict[str, Any]:
    """Acceptance and drift (tab:supp_accept_drift), over all seeds."""
    rows = [row for stream in streams for row in stream]
    kls = [row["kl"] for row in rows if row["kl"] is not None]
    learnt = float(np.mean([row["learnt"] for row in rows]))
    quarter = [max(1, len(stream) // 4) for stream in streams]
    return {
        "accepted": 100.0 * learnt, "accepted_per_1k": 1000.0 * learnt,
        "abstained": 100.0 * float(np.mean([not row["answered"] for row in rows])),
        "refused": sum(len({row["updates"] for row in stream if row["refused"]}) for stream in streams),
        "kl": {"p50": float(np.median(kls)), "p95": float(np.percentile(kls, 95))} if kls else None,
        "drift": drift_after(streams),
        "variety": {
            "first": float(np.mean([r["variety"] for s, q in zip(streams, quarter, strict=True) for r in s[:q]])),
            "last": float(np.mean([r["variety"] for s, q in zip(streams, quarter, strict=True) for r in s[-q:]])),
        },
    }  # fmt: skip


def drift_after(streams: Sequence[Rows]) -> float | None:
    """KL to the start after the last row of each stream, on the mean."""
    drifts = [stream[-1]["drift"] for stream in streams if stream and stream[-1]["drift"] is not None]
    return float(np.mean(drifts)) if drifts else None


def families(
    streams: Sequence[Rows], after: Sequence[Run] | None = None, base: Sequence[Run] | None = None
) -> dict[str, dict[str, Any]]:
    """Acceptance and drift per family (tab:supp_fairness_per_bench); held-out scores of its base and of its own, over
    the seeds that both have."""
    if after and base:
        after, base = of_shared_seeds(after, base)
    rows = [row for stream in streams for row in stream]
    out = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        kls = [row["kl_query"] for row in own if row["kl_query"] is not None]
        out[family] = {
            "queries": len(own), "accepted_per_1k": 1000.0 * float(np.mean([row["learnt"] for row in own])),
            "voted": 100.0 * float(np.mean([row["score"] for row in own])),
            "kl_p95": float(np.percentile(kls, 95)) if kls else None,
            "pre": of_family(base, family), "post": of_family(after, family),
        }  # fmt: skip
    return out


def of_family(runs: Sequence[Run] | None, family: str) -> float | None:
    """Mean greedy accuracy on the items of a family, whose names begin with it; None where none was asked."""
    scores = [
        score for run in runs or () for item, score in zip(run.items, run.measures["greedy"], strict=True)
        if item.startswith(f"{family}.")
    ]  # fmt: skip
    return float(np.mean(scores)) if scores else None
