"""The outputs of phase 2: the policy with the trained h_ψ, intrinsic summaries, and the curves of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pixelis.core.provenance import provenance
from pixelis.equations.pid import corridor
from pixelis.equations.ttrl import SummaryStatistics, summary_statistics
from pixelis.policy.checkpoint import LoadedCheckpoint, save_checkpoint
from pixelis.rewards.compute import Rewarder, checkpoint_heads
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.loggers import METRICS
from pixelis.training.common.precision import cast_parameters, compute_dtype
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_metrics import SUMMARIES
from pixelis.training.grpo.rft_state import RftState

LAST_UPDATES = 20
"""Updates that the scores of a run average over."""


def export_rft(
    config: RftConfig,
    checkpoint: LoadedCheckpoint,
    rewarder: Rewarder,
    state: RftState,
    out: Path,
    dist: DistributedContext,
) -> dict[str, float]:
    """Write the trained checkpoint and the figure; returns its scores."""
    if not dist.is_main:
        dist.barrier()
        return {"accuracy": float("nan"), "calls": float("nan")}
    policy = checkpoint.policy
    if config.lora is not None:
        policy.model = policy.model.merge_and_unload()
    cast_parameters(policy.model, compute_dtype(config))
    rows = [row for row in map(json.loads, (out / METRICS).read_text().splitlines()) if "reward" in row]
    last = rows[-LAST_UPDATES:]
    scores = {
        name: float(np.mean([row[name] for row in last if row.get(name) is not None] or [np.nan]))
        for name in ("accuracy", "calls", "decisive", "kl", "rapr", "racpr", "entropy")
    }
    facts = provenance(
        config=config.model_dump(mode="json"), seed=config.seed, seconds=round(state.seconds, 1),
        updates=state.step, skipped=state.skipped, stopped=state.stop_reason, shares=state.shares,
        beta=state.pid.beta, processes=dist.world_size, init=checkpoint.card.name,
    )  # fmt: skip
    card, summaries = checkpoint.card, summarise_last_updates(out / SUMMARIES, state.step)._asdict()
    training, all_scores = {**facts, "before": card.training}, {**card.scores, "rft": scores}
    statistics = {**card.statistics, "summaries": summaries}
    update = {"name": config.name, "training": training, "statistics": statistics, "scores": all_scores}
    heads = checkpoint_heads(checkpoint, rewarder, config.temperature)
    save_checkpoint(out / "policy", policy, card.model_copy(update=update), heads)
    draw_curves(rows, out / "curves.svg", target=config.kl.target)
    dist.barrier()
    return scores


def summarise_last_updates(path: Path, step: int) -> SummaryStatistics:
    """Statistics of the last updates' rollouts, which phase 3 z-scores with while its memory is small."""
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if row["step"] > step - LAST_UPDATES]
    return summary_statistics(*([row.get(name, np.nan) for row in rows] for name in ("curiosity", "coherence")))


def draw_curves(rows: Sequence[dict[str, Any]], path: Path, *, target: float) -> None:
    """Accuracy, KL in its corridor, calls, RaPR and RaCPR over the updates (the paper's figure of dynamics)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    steps = [row["step"] for row in rows]

    def plot_lines(k: int, title: str, names: dict[str, str]) -> None:
        for name, label in names.items():
            values = np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)
            curve = axes[k].plot(steps, values, alpha=0.25, linewidth=0.8)
            axes[k].plot(steps, running_mean(values), color=curve[0].get_color(), label=label)
        axes[k].set_title(title, fontsize=10, loc="left")
        axes[k].legend(fontsize=8, frameon=False)

    plot_lines(0, "accuracy of rollouts, %", {"accuracy": "accuracy"})
    plot_lines(1, "token KL to π_SFT, and β", {"kl": "KL", "beta": "β"})
    axes[1].axhspan(*corridor(target), color="tab:green", alpha=0.12)
    plot_lines(2, "calls per rollout", {"calls": "all", "decisive": "decisive"})
    plot_lines(3, "RaPR and RaCPR (by E_t), %", {"rapr": "RaPR", "racpr": "RaCPR"})
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("update", fontsize=8)
    figure.savefig(path)


def running_mean(values: np.ndarray, rho: float = 0.9) -> np.ndarray:
    """Exponential running mean that skips NaN."""
    out, average = np.full(len(values), np.nan), np.nan
    for k, value in enumerate(values):
        average = value if np.isnan(average) else average if np.isnan(value) else rho * average + (1 - rho) * value
        out[k] = average
    return out
