"""The figures of phase 3: risk against coverage, KL against its corridor, accuracy over the stream and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelis.metrics.selective import risk_coverage

Rows = list[dict[str, Any]]
WINDOW = 100
"""Queries over which accuracy is drawn."""
KINDS = (("score", "voted"), ("greedy", "greedy"), ("sampled", "sampled"))


def draw_risk(streams: Mapping[str, Rows], path: Path) -> None:
    """Error among the answers that are given, over the share that is (fig:risk_coverage_supp)."""
    figure, (axis,) = panels(1)
    for name, rows in streams.items():
        curve = risk_coverage([row["vote"]["margin"] for row in rows], [1.0 - row["score"] for row in rows])
        axis.plot(100.0 * curve.coverage, 100.0 * curve.risk, label=name, linewidth=1.2)
    axis.set_xlabel("coverage, %")
    axis.set_title("error among the given answers, %", fontsize=10, loc="left")
    finish(figure, axis, path)


def draw_kl(streams: Mapping[str, Rows], path: Path, *, target: float) -> None:
    """Token KL to π_EMA and to the start, over the queries (fig:ttrl_dual)."""
    figure, axes = panels(2)
    for axis, key, title in zip(axes, ("kl", "drift"), ("token KL to π_EMA", "token KL to the start"), strict=True):
        for name, rows in streams.items():
            values = np.array([np.nan if row[key] is None else row[key] for row in rows], dtype=float)
            if not np.isnan(values).all():
                axis.plot(range(1, len(rows) + 1), values, label=name, linewidth=1.0)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("query", fontsize=8)
    axes[0].axhspan(target - 0.05, target + 0.05, color="tab:green", alpha=0.12)
    finish(figure, axes[0], path)


def draw_prequential(streams: Mapping[str, Rows], table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Voted, greedy and sampled accuracy over the stream, each query before it was learnt from; and after it."""
    figure, axes = panels(4)
    for axis, (key, title) in zip(axes, KINDS, strict=False):
        for name, rows in streams.items():
            values = 100.0 * np.array([np.nan if row[key] is None else row[key] for row in rows], dtype=float)
            if not np.isnan(values).any():
                axis.plot(range(1, len(rows) + 1), recent(values), label=name, linewidth=1.2)
        axis.set_title(f"{title}, the last {WINDOW} queries of the stream, %", fontsize=10, loc="left")
        axis.set_xlabel("query", fontsize=8)
    held = [row for row in table if row["held_out"] is not None]
    width = 0.8 / len(KINDS)
    for k, (_, title) in enumerate(KINDS):
        middle = [row["held_out"][title]["mean"] for row in held]
        spread = [[row["held_out"][title][side] for row in held] for side in ("low", "high")]
        errors = np.abs(np.array(spread) - np.array(middle)) if held else None
        axes[3].bar(np.arange(len(held)) + k * width, middle, width, label=title, yerr=errors)
    axes[3].set_xticks(np.arange(len(held)) + width, [row["variant"] for row in held], rotation=40, fontsize=7)
    axes[3].set_title("held-out, afterwards, % (95 %)", fontsize=10, loc="left")
    if held:
        axes[3].legend(fontsize=7, frameon=False)
    finish(figure, axes[0], path)


def recent(values: NDArray[np.float64], width: int = WINDOW) -> NDArray[np.float64]:
    """(n,) the mean of the last `width` values, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    rows = 2 if count > 2 else 1
    figure = Figure(figsize=(5.5 * -(-count // rows), 3.8 * rows), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(rows, -(-count // rows))).ravel())


def finish(figure: Any, legend: Any, path: Path) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    if legend.get_legend_handles_labels()[0]:
        legend.legend(fontsize=7, frameon=False)
    figure.savefig(path)
