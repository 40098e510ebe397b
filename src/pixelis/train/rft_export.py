"""What phase 2 leaves behind: the policy with h_ψ as it has become, intrinsic summaries, and the curves of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pixelis.equations.pid import corridor
from pixelis.equations.ttrl import Summaries, summary_statistics
from pixelis.policy.checkpoint import Loaded, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.rundir import provenance
from pixelis.train.crew import Crew
from pixelis.train.heads import ToolHeads
from pixelis.train.precision import computed_in, round_to
from pixelis.train.rft_config import RftConfig
from pixelis.train.run import METRICS
from pixelis.train.tempering import undo_division
from pixelis.train.worth import Chains, Known, Worth

SUMMARIES = "summaries.jsonl"
LAST = 20
"""Updates over which the report of a run averages."""


def keep_summaries(
    out: Path, step: int, items: Sequence[str], samples: int, worth: Worth, chains: Chains, us: Crew
) -> None:
    """Curiosity and coherence of every rollout; what the last ones come to goes into the checkpoint, for phase 3."""
    if not us.first:
        return
    with (out / SUMMARIES).open("a") as file:
        for k, item in enumerate(item for item in items for _ in range(samples)):
            row = {
                "step": step, "item": item, "sample": k % samples, "curiosity": float(worth.curiosity[k]),
                "coherence": float(worth.coherence[k]), "score": float(chains.scores[k]),
                "calls": int(chains.lengths[k]), "reward": float(worth.rewards.total[k]),
            }  # fmt: skip
            file.write(json.dumps({key: v for key, v in row.items() if v == v}) + "\n")  # noqa: PLR0124 - NaN


def export(
    config: RftConfig, loaded: Loaded, policy: Policy, known: Known, state: dict[str, Any], out: Path, us: Crew
) -> dict[str, float]:
    """Write the checkpoint that later verbs open, and the figure."""
    if not us.first:
        us.wait()
        return {"accuracy": float("nan"), "calls": float("nan")}
    if config.lora is not None:
        policy.model = policy.model.merge_and_unload()
    round_to(policy.model, computed_in(config))
    rows = [row for row in map(json.loads, (out / METRICS).read_text().splitlines()) if "reward" in row]
    last = rows[-LAST:]
    scores = {
        name: float(np.mean([row[name] for row in last if row.get(name) is not None] or [np.nan]))
        for name in ("accuracy", "calls", "decisive", "kl", "rapr", "racpr", "entropy")
    }
    facts = provenance(
        config=config.model_dump(mode="json"), seed=config.seed, seconds=round(state["seconds"], 1),
        updates=state["step"], skipped=state["skipped"], stopped=state["stopped"], shares=state["shares"],
        beta=state["pid"]["beta"], processes=us.world, init=loaded.card.name,
    )  # fmt: skip
    card = loaded.card.model_copy(
        update={
            "name": config.name,
            "training": {**facts, "before": loaded.card.training},
            "statistics": {**loaded.card.statistics, "summaries": summarised(out / SUMMARIES, state["step"])._asdict()},
            "scores": {**loaded.card.scores, "rft": scores},
        }
    )
    save_checkpoint(out / "policy", policy, card, heads_of(loaded, known, config.temperature))
    draw_curves(rows, out / "curves.svg", target=config.kl.target)
    us.wait()
    return scores


def summarised(path: Path, step: int) -> Summaries:
    """Of the rollouts of the last updates: what phase 3 z-scores with while its memory holds little."""
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if row["step"] > step - LAST]
    return summary_statistics(*([row.get(name, np.nan) for row in rows] for name in ("curiosity", "coherence")))


def heads_of(loaded: Loaded, known: Known, temperature: float = 1.0) -> dict[str, nn.Module]:
    """The heads of a checkpoint as phases 2 and 3 hand them on: argument heads as phase 1 left them, whatever the
    logits were divided by since."""
    arguments = ToolHeads(loaded.policy.width)
    prefix = "arguments."
    arguments.load_state_dict({k.removeprefix(prefix): v for k, v in loaded.heads.items() if k.startswith(prefix)})
    undo_division(arguments, temperature)
    heads = known.heads
    return {
        "arguments": arguments, "visual": heads.visual, "projector": heads.projector, "g_phi": heads.g_phi,
        "h_psi": heads.h_psi,
    }  # fmt: skip


def draw_curves(rows: Sequence[dict[str, Any]], path: Path, *, target: float) -> None:
    """Reward, KL in its corridor, chain length, RaPR and RaCPR over the updates (the paper's figure of dynamics)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    steps = [row["step"] for row in rows]

    def lines(k: int, title: str, names: dict[str, str]) -> None:
        for name, label in names.items():
            values = np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)
            shown = axes[k].plot(steps, values, alpha=0.25, linewidth=0.8)
            axes[k].plot(steps, smoothed(values), color=shown[0].get_color(), label=label)
        axes[k].set_title(title, fontsize=10, loc="left")
        axes[k].legend(fontsize=8, frameon=False)

    lines(0, "accuracy of rollouts, %", {"accuracy": "accuracy"})
    lines(1, "token KL to π_SFT, and β", {"kl": "KL", "beta": "β"})
    axes[1].axhspan(*corridor(target), color="tab:green", alpha=0.12)
    lines(2, "calls a chain", {"calls": "all", "decisive": "decisive"})
    lines(3, "RaPR and RaCPR (by E_t), %", {"rapr": "RaPR", "racpr": "RaCPR"})
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("update", fontsize=8)
    figure.savefig(path)


def smoothed(values: np.ndarray, rho: float = 0.9) -> np.ndarray:
    """The running mean that curves are drawn with; NaN is passed over."""
    out, now = np.full(len(values), np.nan), np.nan
    for k, value in enumerate(values):
        now = value if np.isnan(now) else now if np.isnan(value) else rho * now + (1 - rho) * value
        out[k] = now
    return out
