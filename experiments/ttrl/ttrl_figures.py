"""Figures of phase 3: risk over coverage, KL and its corridor, accuracy during and after the stream, acceptance and
drift by family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.ttrl.ttrl_risk import StreamRows, majority_share, vote_margin, vote_mass
from pixelis.core.atomic import atomic_write
from pixelis.equations.pid import corridor
from pixelis.metrics.selective import risk_coverage

WINDOW = 100
"""Window of the moving average of accuracy, in queries."""
MIN_WINDOW = 25
"""Means over fewer queries are not drawn, unless the stream is shorter."""
BAND_RESAMPLES = 200
MIN_KL = 1e-3
"""Lower end of the KL axis."""
MAX_LINES = 5
"""Variants per panel: the first ones of the configuration."""
SMALL_CHANGE = 10.0
"""Changes of accuracy beyond this many points are drawn on a logarithmic scale."""
ANSWER_KINDS = (("score", "voted"), ("greedy", "greedy"), ("sampled", "sampled"))


def draw_risk(streams: Mapping[str, Mapping[int, StreamRows]], path: Path, *, ours: str) -> None:
    """Error of the given answers over coverage (fig:risk_coverage_supp): clean, with flipped votes and with retrieval
    shift, by margin and mass of our vote and by the share of a majority, over shared seeds, with 95 % bands over
    items."""
    figure, axes = make_panels(4)
    panel_specs = (("clean", ours, "hard-majority"), ("20 % of votes flipped", f"{ours}-flips-20", "majority-flips-20"),
             ("30 % of votes flipped", f"{ours}-flips-30", "majority-flips-30"),
             ("search keys after JPEG 20 and ±2 %", "retrieval-shift", ours))  # fmt: skip
    for axis, (title, name, other) in zip(axes, panel_specs, strict=True):
        if name in streams:
            rows = [streams[name][seed] for seed in shared_seeds(streams, name, other)]
            draw_band(axis, rows, vote_margin, "score", f"{name}, by margin")
            draw_band(axis, rows, vote_mass, "score", f"{name}, by mass")
        if other in streams and (name in streams or other != ours):
            rows = [streams[other][seed] for seed in shared_seeds(streams, other, name)]
            if other == ours:
                draw_band(axis, rows, vote_margin, "score", f"{ours} without it, by margin")
            else:
                draw_band(axis, rows, majority_share, "majority", f"{other}, by share")
        axis.set_xlabel("coverage, %", fontsize=8)
        axis.set_title(f"error among the given answers, %: {title}", fontsize=10, loc="left")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, frameon=False)
        else:
            axis.text(0.5, 0.5, "not run yet", ha="center", fontsize=9, color="0.5", transform=axis.transAxes)
    save_figure(figure, axes[0], path)


def shared_seeds(streams: Mapping[str, Mapping[int, StreamRows]], name: str, other: str) -> list[int]:
    """The seeds that two variants share; all of the first if they share none."""
    return sorted(streams[name].keys() & streams.get(other, {}).keys()) or sorted(streams[name])


def draw_band(
    axis: Any, seeds: Sequence[StreamRows], confidence: Callable[[Mapping[str, Any]], float], score_key: str, label: str
) -> None:
    """A risk-coverage curve with its bootstrap band over items, each item with all its seeds."""
    p = np.array([[confidence(row) for row in rows] for rows in seeds])  # (seeds, n)
    loss = np.array([[1.0 - row[score_key] for row in rows] for rows in seeds])
    curve = risk_coverage(p.ravel(), loss.ravel())
    (line,) = axis.plot(100.0 * curve.coverage, 100.0 * curve.risk, label=label, linewidth=1.2)
    rng, n = np.random.default_rng(0), p.shape[1]
    resamples = (rng.integers(0, n, n) for _ in range(BAND_RESAMPLES))
    risks = np.array([risk_coverage(p[:, indices].ravel(), loss[:, indices].ravel()).risk for indices in resamples])
    low, high = 100.0 * np.quantile(risks, [0.025, 0.975], axis=0)
    axis.fill_between(100.0 * curve.coverage, low, high, color=line.get_color(), alpha=0.12, linewidth=0)


def draw_kl(streams: Mapping[str, StreamRows], path: Path, *, target: float) -> None:
    """Token KL to π_EMA and to the start over the queries, on a logarithmic scale (fig:ttrl_dual)."""
    figure, axes = make_panels(2)
    for axis, key, title in zip(axes, ("kl", "drift"), ("token KL to π_EMA", "token KL to the start"), strict=True):
        for name, rows in streams.items():
            values = np.array([np.nan if row[key] is None else row[key] for row in rows], dtype=float)
            if not np.isnan(values).all():
                axis.plot(range(1, len(rows) + 1), values, label=name, linewidth=1.0)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("query", fontsize=8)
        axis.set_yscale("log")
        axis.set_ylim(bottom=MIN_KL)
    axes[0].axhspan(*corridor(target), color="tab:green", alpha=0.12)
    save_figure(figure, axes[0], path)


def draw_prequential(
    streams: Mapping[str, Sequence[StreamRows]], table: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Voted, greedy and sampled accuracy over the stream, each query before training on it, averaged over seeds; and on
    the held-out questions."""
    figure, axes = make_panels(4)
    for axis, (key, title) in zip(axes, ANSWER_KINDS, strict=False):
        for name, seeds in islice(streams.items(), MAX_LINES):
            scores = [[np.nan if row[key] is None else row[key] for row in rows] for rows in seeds]
            values = 100.0 * np.mean(np.array(scores, dtype=float), axis=0)  # (n,)
            if not np.isnan(values).any():
                start = min(MIN_WINDOW, len(values)) - 1
                label = f"{name}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
                axis.plot(range(start + 1, len(values) + 1), moving_average(values)[start:], label=label, linewidth=1.2)
        axis.set_title(f"{title}, the last {WINDOW} queries of the stream, %", fontsize=10, loc="left")
        axis.set_xlabel("query", fontsize=8)
    held_out_rows = [row for row in table if row["held_out"] is not None and "voted" in row["held_out"]]  # not stress
    width = 0.8 / len(ANSWER_KINDS)
    for k, (_, title) in enumerate(ANSWER_KINDS):
        means = [row["held_out"][title]["mean"] for row in held_out_rows]
        spread = [[row["held_out"][title][side] for row in held_out_rows] for side in ("low", "high")]
        errors = np.abs(np.array(spread) - np.array(means)) if held_out_rows else None
        axes[3].bar(np.arange(len(held_out_rows)) + k * width, means, width, label=title, yerr=errors)
    names = [row["variant"] for row in held_out_rows]
    axes[3].set_xticks(np.arange(len(names)) + width, names, rotation=40, ha="right", fontsize=7)
    axes[3].set_title("held-out, afterwards, % (95 %)", fontsize=10, loc="left")
    if held_out_rows:
        axes[3].legend(fontsize=7, frameon=False)
    save_figure(figure, axes[0], path)


def draw_families(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """By family: trained queries per thousand, P95 of the KL on a query's own rollouts, and the change of held-out
    greedy accuracy (tab:supp_fairness_per_bench)."""
    figure, axes = make_panels(3)
    shown_rows = [row for row in table if row["kl"] is not None][:MAX_LINES]
    measures: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None]], ...] = (
        ("queries trained on, of 1,000", lambda family_row: family_row["accepted_per_1k"]),
        ("KL to π_EMA, P95, nats a token", lambda family_row: family_row["kl_p95"]),
        ("held-out greedy accuracy, points over its base", accuracy_change),
    )  # fmt: skip
    families = list(dict.fromkeys(family for row in shown_rows for family in row["families"]))
    width = 0.8 / max(len(shown_rows), 1)
    for axis, (title, measure) in zip(axes, measures, strict=False):
        for k, row in enumerate(shown_rows):
            values = [measure(row["families"][name]) if name in row["families"] else None for name in families]
            heights = [np.nan if value is None else value for value in values]
            axis.bar(np.arange(len(families)) + k * width, heights, width, label=row["variant"])
        axis.axhline(0.0, color="0.5", linewidth=0.6)
        axis.set_xticks(np.arange(len(families)) + (0.8 - width) / 2, families, fontsize=8)
        axis.set_title(title, fontsize=10, loc="left")
    if any((family_row["kl_p95"] or 0.0) > 0.0 for row in shown_rows for family_row in row["families"].values()):
        axes[1].set_yscale("log")
    axes[2].set_yscale("symlog", linthresh=SMALL_CHANGE)  # a collapsed policy would hide the others
    axes[2].set_yticks([-60, -30, -10, -5, 0, 5, 10], ["−60", "−30", "−10", "−5", "0", "+5", "+10"])
    axes[3].set_visible(False)
    save_figure(figure, axes[0], path)


def accuracy_change(family_row: Mapping[str, Any]) -> float | None:
    before, after = family_row["pre"], family_row["post"]
    return None if before is None or after is None else after - before


def moving_average(values: NDArray[np.float64], width: int = WINDOW) -> NDArray[np.float64]:
    """(n,) mean of the last `width` values, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def make_panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    rows = 2 if count > 2 else 1
    figure = Figure(figsize=(5.5 * -(-count // rows), 3.8 * rows), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(rows, -(-count // rows))).ravel())


def save_figure(figure: Any, legend: Any, path: Path) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    if legend.get_legend_handles_labels()[0]:
        legend.legend(fontsize=7, frameon=False)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
