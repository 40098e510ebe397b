"""Statistics of a corpus beside those of the paper's data section (sec:data).

One pass over the records keeps the task, stratum, three scores and media hash prefixes of each; the rest is counts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from pixelis.data.corpus.acceptance_checks import TAU_0, Stratum, strata_report, trace_stratum
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.record import SPLITS, Record, Split
from pixelis.equations.acceptance import trajectory_scores
from pixelis.items import TOOLS, ToolName

PAPER_USAGE: Mapping[ToolName, tuple[float, float, float]] = {
    "SEG": (24.1, 23.8, 24.3),
    "ZOOM": (17.1, 17.8, 18.0),
    "TRK": (22.9, 22.3, 22.1),
    "OCR": (20.2, 20.0, 19.9),
    "TEMP": (10.0, 9.7, 9.9),
    "PROP": (5.9, 6.2, 5.8),
}
"""Per cent of calls in train, dev and test (sec:data)."""
PAPER_FAILURES: Mapping[ToolName, float] = {"SEG": 11.4, "TRK": 16.9, "OCR": 7.5, "TEMP": 17.3, "PROP": 9.7}
"""Per cent of calls that miss their reference in a 1,500-sample audit (sec:data)."""
PAPER_DECISIVE: Mapping[str, float] = {"train": 0.86, "dev": 0.87, "test": 0.86}
COMPONENTS = ("logic", "struct", "visual")
PAPER_STEPS = 5.8
PAPER_TRAJECTORIES = 76_000
PAPER_CLIP_S = (11.8, 6.4)
"""Mean and standard deviation."""
PAPER_TOOL_NEEDED = 84.0
"""Per cent of the evaluation set."""


class CorpusStat(NamedTuple):
    """One statistic beside the paper's."""

    name: str
    ours: float | None
    """None if there is nothing to compute it from."""
    paper: float | None
    of: int
    """The number of values that it is computed from."""


@dataclass
class CorpusCell:
    """Counts of one family or difficulty."""

    records: int = 0
    accepted: int = 0
    score_total: float = 0.0
    steps: int = 0
    tool_needed: int = 0

    def as_dict(self) -> dict[str, float]:
        n = max(self.records, 1)
        means = {"accepted": self.accepted, "right": self.score_total, "tool_needed": self.tool_needed}
        shares = {name: round(value / n, 4) for name, value in means.items()}
        return {"records": self.records, **shares, "steps": round(self.steps / n, 3)}


@dataclass
class CorpusCounts:
    """All counts of a corpus."""

    records: Counter[Split] = field(default_factory=Counter)
    accepted: Counter[Split] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)
    clip_durations: list[float] = field(default_factory=list)
    images: Counter[Split] = field(default_factory=Counter)
    videos: Counter[Split] = field(default_factory=Counter)
    calls: dict[Split, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    succeeded: Counter[Split] = field(default_factory=Counter)
    decisive: Counter[Split] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    families: dict[str, CorpusCell] = field(default_factory=lambda: defaultdict(CorpusCell))
    difficulties: dict[str, CorpusCell] = field(default_factory=lambda: defaultdict(CorpusCell))
    reasons: Counter[str] = field(default_factory=Counter)
    strata: list[Stratum] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COMPONENTS})
    tasks: list[str] = field(default_factory=list)
    media: dict[str, int] = field(default_factory=dict)
    """Splits in which a medium occurs, as bits, by the first 16 hex digits of its hash."""
    shared_media: int = 0

    def add(self, record: Record) -> None:
        """Count one record. Usage, steps and decisive steps are counted for accepted records only."""
        self.records[record.split] += 1
        self._count_media(record)
        self._count_operator_checks(record)
        self.tasks.append(record.item.family)
        for name in COMPONENTS:
            self.scores[name].append(float(record.acceptance.get(name, nan)))
        for cells, key in ((self.families, record.item.family), (self.difficulties, str(record.item.difficulty))):
            cell = cells[key]
            cell.records += 1
            cell.accepted += record.accepted
            cell.score_total += record.item.score(record.trace.answer or "")
            cell.steps += len(record.trace.steps)
            cell.tool_needed += bool(record.item.required_tools)
        if not record.accepted:
            self.reasons.update({reason_kind(str(r)) for r in record.acceptance.get("reasons", ())} or {"not said"})
            return
        self.strata.append(trace_stratum(record.item, record.trace))
        self.accepted[record.split] += 1
        self.steps.append(len(record.trace.steps))
        for check in record.acceptance.get("steps", ()):
            self.calls[record.split][check["tool"]] += 1
            self.statuses[check["status"]] += 1
            self.succeeded[record.split] += check["status"] == "ok"
            self.decisive[record.split] += bool(check["decisive"])

    def _count_media(self, record: Record) -> None:
        bit = 1 << SPLITS.index(record.split)
        for medium in record.item.media:
            previous_bits = self.media.get(medium.sha256[:16], 0)
            self.media[medium.sha256[:16]] = previous_bits | bit
            self.shared_media += bool(previous_bits & ~bit) and not previous_bits & bit
            if medium.frames > 1:
                self.videos[record.split] += 1
                self.clip_durations.append(medium.duration_s)
            else:
                self.images[record.split] += 1

    def _count_operator_checks(self, record: Record) -> None:
        """Calls against their references, for every record: rejected ones hold most failures."""
        for check in record.acceptance.get("steps", ()):
            if check.get("passed") is not None:
                self.checked[check["tool"]] += 1
                self.missed[check["tool"]] += not check["passed"]


def count_corpus(corpus: Corpus) -> CorpusCounts:
    """Count all records."""
    counts = CorpusCounts()
    for record in corpus.records():
        counts.add(record)
    return counts


def compute_stats(counts: CorpusCounts) -> list[CorpusStat]:
    """The statistics of the paper's data section, in its order."""
    total, accepted = counts.records.total(), counts.accepted.total()
    rows = [
        CorpusStat("trajectories", float(accepted), float(PAPER_TRAJECTORIES), total),
        CorpusStat("accepted, %", percent(accepted, total), None, total),
        CorpusStat("S(τ) over τ₀ if z-scored per task, %", percent_over_threshold(counts), None, total),
        CorpusStat("steps a trajectory", mean(counts.steps), PAPER_STEPS, len(counts.steps)),
    ]
    for split in SPLITS:
        rate = percent(counts.decisive[split], counts.succeeded[split])
        ours = None if rate is None else rate / 100
        name = f"decisive-step rate, {split}"
        rows.append(CorpusStat(name, ours, PAPER_DECISIVE.get(split), counts.succeeded[split]))
    clips = counts.clip_durations
    rows.append(CorpusStat("clip duration, s, mean", mean(clips), PAPER_CLIP_S[0], len(clips)))
    rows.append(CorpusStat("clip duration, s, spread", pstdev(clips) if clips else None, PAPER_CLIP_S[1], len(clips)))
    reported: tuple[Split, ...] = ("train", "dev", "test")
    for column, split in enumerate(reported):
        calls, n = counts.calls[split], counts.calls[split].total()
        for tool in TOOLS:
            paper = PAPER_USAGE[tool][column]
            rows.append(CorpusStat(f"usage of {tool}, {split}, %", percent(calls[tool], n), paper, n))
    for tool in TOOLS:
        ours = percent(counts.missed[tool], counts.checked[tool])
        rows.append(CorpusStat(f"calls of {tool} that miss, %", ours, PAPER_FAILURES.get(tool), counts.checked[tool]))
    needed = sum(cell.tool_needed for cell in counts.families.values())
    rows.append(CorpusStat("items that need a tool, %", percent(needed, total), PAPER_TOOL_NEEDED, total))
    rows.append(CorpusStat("media in two splits", float(counts.shared_media), None, len(counts.media)))
    return rows


def percent_over_threshold(counts: CorpusCounts) -> float | None:
    """Per cent of traces whose z-scored S(τ) reaches τ₀: the paper's criterion taken literally."""
    logic, struct, visual = (counts.scores[name] for name in COMPONENTS)
    zscored = trajectory_scores(logic, struct, visual, counts.tasks).zscored
    return 100.0 * float((zscored >= TAU_0).mean()) if len(zscored) else None


def reason_kind(reason: str) -> str:
    """A reason for rejection without its numbers."""
    if reason.startswith("S = "):
        return "the answer is wrong" if reason.endswith("the answer is wrong") else "S(τ) is under τ₀"
    return re.sub(r"^step \d+ \((\w+)\) fails its check.*", r"a step of \1 that carries the answer fails", reason)


def percent(count: int, total: int) -> float | None:
    return 100.0 * count / total if total else None


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def max_usage_gap(rows: list[CorpusStat]) -> float | None:
    """The largest difference of a tool's share in train from the paper's, in percentage points."""
    gaps = [
        abs(row.ours - row.paper)
        for row in rows
        if row.name.startswith("usage of") and ", train" in row.name and row.ours is not None and row.paper is not None
    ]
    return max(gaps, default=None)


def stats_to_json(corpus: Corpus, counts: CorpusCounts) -> dict[str, Any]:
    """All statistics for a JSON file."""
    rows = compute_stats(counts)
    return {
        "corpus": corpus.manifest.corpus,
        "records": dict(counts.records),
        "accepted": dict(counts.accepted),
        "images": dict(counts.images),
        "videos": dict(counts.videos),
        "rows": [row._asdict() for row in rows],
        "usage_gap": max_usage_gap(rows),
        "families": {name: cell.as_dict() for name, cell in sorted(counts.families.items())},
        "difficulties": {name: cell.as_dict() for name, cell in sorted(counts.difficulties.items())},
        "strata": strata_report(counts.strata) if counts.strata else {},
        "statuses": dict(counts.statuses),
        "reasons": dict(counts.reasons.most_common()),
    }
