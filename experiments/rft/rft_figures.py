"""Figures of phase 2's comparison: training curves, and RaPR and RaCPR of every variant (fig:rft_dual)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pixelis.core.atomic import atomic_write
from pixelis.equations.pid import corridor
from pixelis.training.grpo.rft_export import running_mean

Curve = Sequence[Mapping[str, Any]]
"""The updates of one run."""


def draw_dynamics(curves: Mapping[str, Sequence[Curve]], path: Path, *, target: float) -> None:
    """RaPR, RaCPR, KL and trajectory length over the updates, one line per variant, shaded over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    for k, (key, title) in enumerate(
        (("rapr", "RaPR, %"), ("racpr", "RaCPR by E_t, %"), ("kl", "token KL to π_SFT"), ("calls", "calls a chain"))
    ):
        for number, (name, runs) in enumerate(curves.items()):
            length = min(len(run) for run in runs)
            values = np.array([[np.nan if row[key] is None else row[key] for row in run[:length]] for run in runs])
            lines = np.array([running_mean(series) for series in values])  # (seeds, updates)
            style = ("-", "--", ":")[number // 10 % 3]  # ten colours repeat
            (line,) = axes[k].plot(range(1, length + 1), np.nanmean(lines, axis=0), style, label=name, linewidth=1.2)
            if len(lines) > 1:
                axes[k].fill_between(
                    range(1, length + 1), np.nanmin(lines, axis=0), np.nanmax(lines, axis=0), color=line.get_color(),
                    alpha=0.15, linewidth=0,
                )  # fmt: skip
        axes[k].set_title(title, fontsize=10, loc="left")
        axes[k].set_xlabel("update", fontsize=8)
        axes[k].spines[["top", "right"]].set_visible(False)
    axes[2].axhspan(*corridor(target), color="tab:green", alpha=0.12)
    if curves:
        axes[0].legend(fontsize=7, frameon=False, ncols=2)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))


def draw_process(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Held-out RaPR and RaCPR of every variant with their intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.2 + 0.3 * len(table)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    positions = np.arange(len(table))[::-1]
    for axis, key, title in zip(axes, ("rapr", "racpr"), ("RaPR, %", "RaCPR, %"), strict=True):
        mean, low, high = (np.array([row[key][name] for row in table]) for name in ("mean", "low", "high"))
        axis.barh(positions, mean, color="tab:blue", alpha=0.6, xerr=np.clip([mean - low, high - mean], 0.0, None))
        axis.set_yticks(positions, [row["variant"] for row in table], fontsize=8)
        axis.set_title(f"{title}, held-out, 95 % over items", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_xlim(left=max(0.0, min((row["rapr"]["low"] for row in table), default=0.0) - 10.0))
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
