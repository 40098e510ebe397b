"""The claims of phase 2 on nano: variants trained alike, asked the same held-out questions, compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from pixelis.config import Config, load_config
from pixelis.equations.embedding import CosineStatistics
from pixelis.eval.comparing import Floats, Part, Say, Seeded, compared, merged, parts_of, rows_of
from pixelis.eval.harness import Scored
from pixelis.eval.kept_parts import has_ended, keep_part, restore_part, sign_part, weights_of
from pixelis.eval.process import process_scores, task_statistics
from pixelis.eval.rescore_rft import Saved, rescored
from pixelis.eval.running import evaluate_model
from pixelis.eval.tasks import tasks_of
from pixelis.rundir import provenance, write_json
from pixelis.train.rft import train_rft
from pixelis.train.rft_config import RftConfig
from pixelis.train.sft import train_sft
from pixelis.train.sft_config import SftConfig

CHAINS = "traces.jsonl"
KEPT = ("eval/items.jsonl", "eval/report.json", "train/metrics.jsonl")
"""Of a part, beside the table: its scores and its curve, not its chains and weights."""
HOW_IT_RUNS = {
    "device", "threads", "workers", "cache_path", "log_every", "save_minutes", "device_facts", "policy", "init",
    "corpus", "examples",
}  # fmt: skip
"""Keys that say where and how quickly, not what."""


class Variant(Seeded):
    """One way to go on from π_SFT."""

    learn: Literal["nothing", "sft", "rft"] = "rft"
    """`sft`: the same seconds spent on more of phase 1."""


class ReproduceConfig(Config):
    """What is compared, and on what."""

    rft: Path
    """The configuration that variants change."""
    sft: Path
    """The one of phase 1, for more of it."""
    updates: int = Field(default=100, ge=1)
    items: int = Field(default=100, ge=1)
    """Held-out questions of each family."""
    statistics_items: int = Field(default=40, ge=1)
    """Dev questions of each family whose π_SFT chains give E_ext's statistics."""
    temperature: float = 0.0
    variants: tuple[Variant, ...]
    ours: str = Field(default="cc-rft", validate_default=True)
    """The variant whose chains are re-scored with other layers and gates."""

    @field_validator("ours")
    @classmethod
    def _ours_is_compared(cls, name: str, given: ValidationInfo) -> str:
        known = [variant.name for variant in given.data.get("variants", ())]
        if known and name not in known:
            raise ValueError(f"no variant {name!r}: want one of {', '.join(sorted(known))}")
        return name


def reproduce_rft(
    config: ReproduceConfig,
    work: Path,
    results: Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    say: Say = lambda words: None,
    show: Any = None,
) -> dict[str, Any]:
    """Run what is not yet done, then write the table and the figures from everything that is."""
    base = load_config(RftConfig, config.rft, []).model_copy(update={"updates": config.updates, **(overrides or {})})
    statistics = external_statistics(config, base, work, results, say)
    done = []
    for part in parts_of(config.variants, ()):
        folder, archive, made_of = (
            work / part.name,
            results / "parts" / f"{part.name}.zip",
            made_of_what(part, config, base),
        )
        if not has_ended(folder, made_of) and not restore_part(folder, archive, KEPT, made_of):
            if only and part.variant.name not in only:
                continue
            run(part, config, base, work, say, show)
            sign_part(folder, made_of)
            keep_part(folder, archive, KEPT, made_of)
        done.append(part)
    table = compare(done, work, statistics)
    results.mkdir(parents=True, exist_ok=True)
    write_json(results / "table.json", provenance(config=config.model_dump(mode="json"), rows=table))
    draw(done, work, results / "dynamics.svg")
    rescore(config, base, work, results, say)
    return {"rows": table, "left": [p.name for p in parts_of(config.variants, ()) if p not in done]}


def made_of_what(part: Part[Variant], config: ReproduceConfig, base: RftConfig) -> dict[str, Any]:
    """What a part's scores depend on."""
    settings = settings_of(part, base).model_dump(mode="json", exclude=HOW_IT_RUNS)
    if part.variant.learn == "sft":
        settings = more_of_sft(part, config, base).model_dump(mode="json", exclude=HOW_IT_RUNS)
    return {
        "weights": weights_of(base.policy), "variant": part.variant.model_dump(mode="json", exclude={"seeds"}),
        "seed": part.seed, "items": config.items, "temperature": config.temperature,
        "settings": settings,
    }  # fmt: skip


def rescore(config: ReproduceConfig, base: RftConfig, work: Path, results: Path, say: Say) -> None:
    """Layer and gate, from π_SFT's dev chains and those of every seed of `ours` that is done; kept where it is newer.

    What it was made of is written beside the rows: another policy, reward or number of items makes them anew.
    """
    parts = parts_of(config.variants, [config.ours])
    done = [part for part in parts if (work / part.name / "eval" / CHAINS).exists()]
    if not done or not (work / "statistics" / CHAINS).exists():
        say(f"layer and gate: no saved chains of {config.ours} and π_SFT here")
        return
    path, reward = results / "rescored.json", settings_of(done[0], base).reward
    made_of = {
        "policy": base.policy, "chains": [part.name for part in done], "items": config.items,
        "statistics_items": config.statistics_items, "reward": reward.model_dump(mode="json"),
    }  # fmt: skip
    evaluated = [work / "statistics", *(work / part.name / "eval" for part in done)]
    newest = max((folder / "report.json").stat().st_mtime for folder in evaluated)
    if path.exists() and path.stat().st_mtime > newest and json.loads(path.read_text()).get("made_of") == made_of:
        return
    say(f"layer and gate, by re-scoring saved chains of {config.ours}: {len(done)} of {len(parts)} seeds")
    own = Saved((evaluated[0],), tasks_of([], split="dev"), config.statistics_items)
    others = Saved(tuple(evaluated[1:]), tasks_of([], split="test"), config.items)
    rows = rescored(base.policy, own, others, reward)
    write_json(path, provenance(config=config.model_dump(mode="json"), made_of=made_of, rows=rows))


def settings_of(part: Part[Variant], base: RftConfig) -> RftConfig:
    """Phase 2 as a variant has it; what learns nothing, or more of phase 1, has the base's."""
    change = part.variant.change if part.variant.learn == "rft" else {}
    own = {**change, "seed": part.seed, "name": part.name}
    return RftConfig.model_validate(merged(base.model_dump(mode="json"), own))


def more_of_sft(part: Part[Variant], config: ReproduceConfig, base: RftConfig) -> SftConfig:
    """Phase 1 gone on with from π_SFT, drills among the corpus where it has them; not the drills before it."""
    given = load_config(SftConfig, config.sft, []).model_dump(mode="json")
    own = {"init": base.policy, "seed": part.seed, "name": part.name, "drill_steps": 0, "corpus": str(base.corpus)}
    return SftConfig.model_validate(merged(given, {**own, **part.variant.change}))


def run(part: Part[Variant], config: ReproduceConfig, base: RftConfig, work: Path, say: Say, show: Any) -> None:
    """Train and evaluate one part, or go on with it."""
    folder = work / part.name
    say(part.name)
    policy = base.policy
    if part.variant.learn == "rft":
        policy = train_rft(settings_of(part, base), folder / "train", **({"show": show} if show else {})).policy
    elif part.variant.learn == "sft":
        policy = train_sft(more_of_sft(part, config, base), folder / "train").policy
    evaluate_model(
        policy, tasks_of([], split="test"), limit=config.items, temperature=config.temperature, seed=part.seed,
        composite=True, out=folder / "eval",
    )  # fmt: skip


def external_statistics(
    config: ReproduceConfig, base: RftConfig, work: Path, results: Path, say: Say
) -> dict[str, CosineStatistics]:
    """E_ext's statistics, from dev chains of π_SFT."""
    folder, archive, files = work / "statistics", results / "parts" / "statistics.zip", ("items.jsonl", "report.json")
    made_of = {"weights": weights_of(base.policy), "items": config.statistics_items}
    if not has_ended(folder, made_of) and not restore_part(folder, archive, files, made_of):
        say("statistics of E_ext on dev chains of π_SFT")
        evaluate_model(
            base.policy, tasks_of([], split="dev"), limit=config.statistics_items, composite=True, out=folder
        )
        sign_part(folder, made_of)
        keep_part(folder, archive, files, made_of)
    return task_statistics(rows_of(folder))


# --- the table


def measures(rows: Sequence[Scored], statistics: Mapping[str, CosineStatistics]) -> dict[str, Floats]:
    """(n,) of each measure, item by item."""
    process = process_scores(rows, statistics)
    return {
        "accuracy": 100.0 * np.array([row.score for row in rows]),
        "calls": np.array([float(row.steps) for row in rows]),
        "decisive": np.array([float(row.process.decisive) for row in rows]),
        "rapr": 100.0 * process.rapr,
        "racpr": 100.0 * process.racpr,
        "qualified": 100.0 * process.qualified,
    }


def compare(
    done: Sequence[Part[Variant]], work: Path, statistics: Mapping[str, CosineStatistics]
) -> list[dict[str, Any]]:
    """One row a variant, tested against π_SFT, with the drift of its runs."""
    found: dict[str, list[dict[str, Floats]]] = {}
    for part in done:
        found.setdefault(part.variant.name, []).append(measures(rows_of(work / part.name / "eval"), statistics))
    base = next((part.variant.name for part in done if part.variant.learn == "nothing"), None)
    return [
        row | drift([part for part in done if part.variant.name == row["variant"]], work)
        for row in compared(found, base, "over_sft")
    ]


def drift(parts: Sequence[Part[Variant]], work: Path) -> dict[str, Any]:
    """Token KL over the updates after the first quarter, and how many updates were skipped."""
    kls: list[float] = []
    skipped = seconds = 0.0
    for part in parts:
        rows = curve(work / part.name / "train")
        kls += [row["kl"] for row in rows[len(rows) // 4 :] if row.get("kl") is not None]
        skipped += sum(row.get("skipped", 0.0) for row in rows)
        seconds += sum(row.get("seconds_rollout", 0.0) + row.get("seconds_update", 0.0) for row in rows)
    if not kls:
        return {}
    low, median, high = np.percentile(kls, [5, 50, 95]).tolist()
    return {"kl": {"p5": low, "p50": median, "p95": high}, "skipped": skipped, "seconds": seconds}


def curve(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if "reward" in row]


# --- the figure


def draw(done: Sequence[Part[Variant]], work: Path, path: Path) -> None:
    """RaPR and RaCPR, KL and chain length over the updates, one line a variant (the paper's figure of dynamics)."""
    from matplotlib.figure import Figure

    from pixelis.train.rft_export import smoothed

    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    names = [name for name in dict.fromkeys(p.variant.name for p in done) if curve(work / f"{name}-0" / "train")]
    for k, (key, title) in enumerate(
        (("rapr", "RaPR, %"), ("racpr", "RaCPR by E_t, %"), ("kl", "token KL to π_SFT"), ("calls", "calls a chain"))
    ):
        for name in names:
            runs = [curve(work / p.name / "train") for p in done if p.variant.name == name]
            length = min(len(run) for run in runs)
            values = np.array([[np.nan if row[key] is None else row[key] for row in run[:length]] for run in runs])
            axes[k].plot(range(1, length + 1), smoothed(np.nanmean(values, axis=0)), label=name, linewidth=1.2)
        axes[k].set_title(title, fontsize=10, loc="left")
        axes[k].set_xlabel("update", fontsize=8)
        axes[k].spines[["top", "right"]].set_visible(False)
    axes[2].axhspan(0.10, 0.20, color="tab:green", alpha=0.12)
    if names:
        axes[0].legend(fontsize=7, frameon=False, ncols=2)
    figure.savefig(path)
