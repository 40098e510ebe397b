"""Phase 2 on nano: variants trained alike, evaluated on the same held-out questions, compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from experiments.common.paired_tests import (
    ExperimentPart,
    Floats,
    LogFn,
    RunsByVariant,
    RunScores,
    SeededVariant,
    compare_pairwise,
    compare_to_bases,
    override_config,
    read_scored_items,
    select_parts,
)
from experiments.common.result_archive import (
    FINGERPRINT,
    TABLE,
    UNKNOWN,
    ConfigFact,
    Fingerprint,
    archive_part,
    canonical_json,
    choose_table_folder,
    is_finished,
    matches_fingerprint,
    restore_part,
    write_fingerprint,
)
from experiments.rft.rescore_rft import SavedChains, rescore_layers_and_gates
from experiments.rft.rft_figures import Curve, draw_dynamics, draw_process
from pixelis.core.atomic import make_directory
from pixelis.core.config import Config, load_config
from pixelis.core.provenance import provenance, write_json
from pixelis.data.corpus.corpus import MANIFEST, Corpus
from pixelis.equations.embedding import CosineStatistics
from pixelis.equations.process import share_entropy
from pixelis.evaluation.harness import ScoredItem
from pixelis.evaluation.process_report import process_scores, task_statistics
from pixelis.evaluation.run_evaluation import evaluate_model
from pixelis.evaluation.tasks import Task, WorldTask, make_tasks
from pixelis.policy.model_names import hash_weights
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.train import train_rft
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.train import train_sft
from pixelis.world import FAMILIES

TRACES_FILE, SEARCH_FILE = "traces.jsonl", "search.json"
ARCHIVED_FILES = ("eval/items.jsonl", "eval/report.json", "train/metrics.jsonl", SEARCH_FILE)
"""Archived files of a part: scores and training curve, without trajectories and weights."""
RUNTIME_KEYS = frozenset({
    "device", "threads", "workers", "cache_path", "log_every", "save_minutes", "device_facts", "policy", "init",
    "corpus", "examples", "loggers",
})  # fmt: skip
"""Keys that do not affect the scores."""
VARIANT_RUNTIME_KEYS = frozenset({"seeds", "change"})
"""The settings hold what `change` changes."""


class RftVariant(SeededVariant):
    """A way to continue training from π_SFT."""

    learn: Literal["nothing", "sft", "rft"] = "rft"
    """`sft`: more of phase 1, for as many seconds as `ours` took with the same seed."""
    search: tuple[float, ...] = ()
    """Values of w₃ to try for a few updates; the one whose token KL is nearest to that of `ours` is used."""

    @property
    def depends_on_ours(self) -> bool:
        """Whether `ours` must run first."""
        return self.learn == "sft" or bool(self.search)


class ReproduceRftConfig(Config):
    """The variants, and the questions they answer."""

    rft: Path
    """The configuration of phase 2 that variants override."""
    sft: Path
    """The configuration of phase 1, for variants that continue it."""
    updates: int = Field(default=100, ge=1)
    items: int = Field(default=100, ge=1)
    """Held-out questions of each family."""
    skip: int = Field(default=0, ge=0)
    """Held-out questions of each family that are skipped, because settings were chosen on them."""
    statistics_items: int = Field(default=40, ge=1)
    """Dev questions of each family for the statistics of E_ext, from trajectories of π_SFT."""
    temperature: float = 0.0
    threads: int | None = Field(default=1, ge=1)
    """Threads per part: two parts in parallel are faster than one on two threads."""
    search_updates: int = Field(default=15, ge=1)
    """Updates for every value that is tried."""
    variants: tuple[RftVariant, ...]
    ours: str = Field(default="cc-rft", validate_default=True)
    """The variant that is compared with every other, and re-scored with other layers and gates."""

    @field_validator("ours")
    @classmethod
    def _check_ours(cls, name: str, info: ValidationInfo) -> str:
        variant_names = [variant.name for variant in info.data.get("variants", ())]
        if variant_names and name not in variant_names:
            raise ValueError(f"no variant {name!r}: expected one of {', '.join(sorted(variant_names))}")
        return name


def reproduce_rft(
    config: ReproduceRftConfig,
    work: Path,
    results: Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    log: LogFn = lambda words: None,
    show: Any = None,
) -> dict[str, Any]:
    """Run the unfinished parts, then write the table and the figures of all finished ones."""
    selected_parts = select_parts(config.variants, only)
    base = load_config(RftConfig, config.rft, []).model_copy(
        update={"steps": config.updates, "threads": config.threads, **(overrides or {})}
    )
    statistics = external_statistics(config, base, work, results, log)
    ours = next(variant for variant in config.variants if variant.name == config.ours)
    finished_parts = list[ExperimentPart[RftVariant]]()
    for part in select_parts(config.variants, ()):
        folder, archive, fingerprint = (
            work / part.name,
            results / "parts" / f"{part.name}.zip",
            part_fingerprint(part, config, base),
        )
        if not is_finished(folder, fingerprint) and not restore_part(folder, archive, ARCHIVED_FILES, fingerprint):
            if part not in selected_parts:
                continue
            if part.variant.depends_on_ours and ExperimentPart(ours, part.seed) not in finished_parts:
                log(f"{part.name} waits for {config.ours}-{part.seed}")
                continue
            run_part(part, config, base, work, log, show)
            archive_part(folder, archive, ARCHIVED_FILES, fingerprint)
            write_fingerprint(folder, fingerprint)
        finished_parts.append(part)
    runs_by_variant = collect_runs(finished_parts, work, statistics)
    table, pairs = build_table(finished_parts, runs_by_variant, work), compare_pairwise(runs_by_variant, config.ours)
    facts = {"config": config.model_dump(mode="json"), "rows": table, "pairs": pairs}
    table_folder = choose_table_folder(results, work, facts, log)
    if table_folder is not None:
        make_directory(table_folder)
        curves: dict[str, list[Curve]] = {}
        for part in finished_parts:
            if rows := read_curve(work / part.name / "train"):
                curves.setdefault(part.variant.name, []).append(rows)
        draw_dynamics(curves, table_folder / "dynamics.svg", target=base.kl.target)
        draw_process(table, table_folder / "process.svg")
        questions = resolve_questions_hash(finished_parts, work, base.corpus)
        write_json(
            table_folder / TABLE, provenance(settings=base.model_dump(mode="json"), questions=questions, **facts)
        )
    if any(part.variant == ours for part in selected_parts):  # takes minutes, so only if `ours` is selected
        rescore(config, base, work, results, log)
    remaining = [part.name for part in select_parts(config.variants, ()) if part not in finished_parts]
    return {"rows": table, "pairs": pairs, "left": remaining, "written": str(table_folder) if table_folder else None}


def part_fingerprint(part: ExperimentPart[RftVariant], config: ReproduceRftConfig, base: RftConfig) -> Fingerprint:
    """What a part's scores depend on."""
    dependencies: dict[str, Any] = {}
    if part.variant.learn == "rft":
        # phase 2 sums micro-batches, so their size does not matter; in phase 1 they are the batches
        dependencies["settings"] = ConfigFact(part_settings(part, base), RUNTIME_KEYS | {"batch_tokens"})
    elif part.variant.learn == "sft":
        dependencies["settings"] = ConfigFact(longer_sft_settings(part, config, base), RUNTIME_KEYS)
        dependencies["teacher"] = plan_hash(base.corpus)
    if part.variant.search:
        dependencies["search_updates"] = config.search_updates
    if dependencies:
        dependencies["questions"] = questions_hash(base.corpus)
    return {
        "weights": hash_weights(base.policy), "variant": ConfigFact(part.variant, VARIANT_RUNTIME_KEYS),
        "seed": part.seed, "items": config.items, "skip": config.skip, "temperature": config.temperature,
        **dependencies,
    }  # fmt: skip


def questions_hash(folder: Path) -> str:
    """Hash of the training questions in order, without the teacher's trajectories, which phase 2 does not use."""
    if not (folder / MANIFEST).exists():
        return UNKNOWN
    return sha256("\n".join(row.id for row in Corpus(folder).rows(split="train")).encode()).hexdigest()


def plan_hash(folder: Path) -> str:
    """Hash of the corpus plan, which determines the teacher's trajectories."""
    if not (folder / MANIFEST).exists():
        return UNKNOWN
    return sha256(json.dumps(Corpus(folder).manifest.plan, sort_keys=True).encode()).hexdigest()


def resolve_questions_hash(finished_parts: Sequence[ExperimentPart[RftVariant]], work: Path, folder: Path) -> str:
    """Hash of the questions; without the corpus, the one in the fingerprints of finished parts."""
    if (folder / MANIFEST).exists():
        return questions_hash(folder)
    stored_hashes = [
        json.loads((work / part.name / FINGERPRINT).read_text()).get("questions") for part in finished_parts
    ]
    return next((stored_hash for stored_hash in stored_hashes if stored_hash), UNKNOWN)


def rescore(config: ReproduceRftConfig, base: RftConfig, work: Path, results: Path, log: LogFn) -> None:
    """Re-score layers and gates from saved trajectories of π_SFT and of every finished seed of `ours`.

    The result is kept if it is newer than these and has the same policy, reward and numbers of items.
    """
    parts = select_parts(config.variants, [config.ours])
    finished_parts = [part for part in parts if (work / part.name / "eval" / TRACES_FILE).exists()]
    if not finished_parts or not (work / "statistics" / TRACES_FILE).exists():
        log(f"layers and gates: no saved trajectories of {config.ours} and π_SFT here")
        return
    path, reward = results / "rescored.json", part_settings(finished_parts[0], base).reward
    fingerprint = {
        "policy": base.policy, "chains": [part.name for part in finished_parts], "items": config.items,
        "skip": config.skip, "statistics_items": config.statistics_items, "reward": ConfigFact(reward, frozenset()),
    }  # fmt: skip
    eval_folders = [work / "statistics", *(work / part.name / "eval" for part in finished_parts)]
    newest = max((folder / "report.json").stat().st_mtime for folder in eval_folders)
    old = json.loads(path.read_text()).get("made_of", {}) if path.exists() else {}
    if old and matches_fingerprint(json.dumps(old).encode(), fingerprint) and path.stat().st_mtime > newest:
        return
    if len(old.get("chains", ())) > len(finished_parts):
        log(f"{path} has more seeds than are saved here; it is kept")
        return
    log(f"re-scoring layers and gates of {config.ours}: {len(finished_parts)} of {len(parts)} seeds")
    dev_chains = SavedChains((eval_folders[0],), make_tasks([], split="dev"), config.statistics_items)
    test_chains = SavedChains(tuple(eval_folders[1:]), held_out_tasks(config), config.items)
    rows = rescore_layers_and_gates(base.policy, dev_chains, test_chains, reward)
    made_of = json.loads(canonical_json(fingerprint))
    write_json(path, provenance(config=config.model_dump(mode="json"), made_of=made_of, rows=rows))


def part_settings(part: ExperimentPart[RftVariant], base: RftConfig) -> RftConfig:
    """The variant's settings of phase 2; the base's for a variant that does not train it."""
    change = part.variant.change if part.variant.learn == "rft" else {}
    overrides = {"seed": part.seed, "name": part.name}
    return override_config(base, change, overrides)


def longer_sft_settings(part: ExperimentPart[RftVariant], config: ReproduceRftConfig, base: RftConfig) -> SftConfig:
    """Phase 1 continued from π_SFT, with the warm-up tasks among the corpus but not those before it."""
    overrides = {
        "init": base.policy, "seed": part.seed, "name": part.name, "warmup_task_steps": 0, "corpus": str(base.corpus),
        "threads": base.threads,
    }  # fmt: skip
    return override_config(load_config(SftConfig, config.sft, []), overrides, part.variant.change)


def run_part(
    part: ExperimentPart[RftVariant], config: ReproduceRftConfig, base: RftConfig, work: Path, log: LogFn, show: Any
) -> None:
    """Train and evaluate one part, or resume it."""
    folder = work / part.name
    log(part.name)
    policy = base.policy
    callbacks = {"show": show} if show else {}
    if part.variant.learn == "rft":
        settings = part_settings(part, base)
        if part.variant.search:
            settings = search_coherence_weight(part, config, settings, work, log, callbacks)
        policy = train_rft(settings, folder / "train", **callbacks).policy
    elif part.variant.learn == "sft":
        minutes = update_seconds(work / f"{config.ours}-{part.seed}" / "train") / 60.0
        longer = longer_sft_settings(part, config, base).model_copy(update={"minutes": minutes})
        log(f"{part.name}: {minutes:.0f} more minutes of phase 1")
        policy = train_sft(longer, folder / "train").policy
    log(f"{part.name}: the held-out questions")
    evaluate_model(
        policy, held_out_tasks(config), limit=config.items, temperature=config.temperature, seed=part.seed,
        composite=True, out=folder / "eval",
    )  # fmt: skip


def held_out_tasks(config: ReproduceRftConfig) -> list[Task]:
    return [WorldTask(family, "test", skip=config.skip) for family in FAMILIES]


def search_coherence_weight(
    part: ExperimentPart[RftVariant],
    config: ReproduceRftConfig,
    settings: RftConfig,
    work: Path,
    log: LogFn,
    callbacks: Mapping[str, Any],
) -> RftConfig:
    """The variant's settings with the w₃ whose token KL is nearest to that of `ours` over as many updates."""
    folder, updates = work / part.name, config.search_updates
    target_kl = latest_kl(read_curve(work / f"{config.ours}-{part.seed}" / "train")[:updates])
    kl_by_weight: dict[float, float] = {}
    for value in part.variant.search:
        log(f"{part.name}: w₃ {value:g} for {updates} updates")
        reward = settings.reward.model_copy(update={"coherence": value})
        floor = settings.learning_rate_at(updates - 1) / settings.lr  # the learning rates of the whole run
        trial_settings = settings.model_copy(update={"steps": updates, "lr_floor": floor, "reward": reward})
        train_rft(trial_settings, folder / "search" / f"{value:g}", **callbacks)
        kl_by_weight[value] = latest_kl(read_curve(folder / "search" / f"{value:g}"))
    best = min(kl_by_weight, key=lambda value: abs(np.log(max(kl_by_weight[value], 1e-9) / max(target_kl, 1e-9))))
    write_json(
        folder / SEARCH_FILE,
        {"wanted_kl": target_kl, "kl": {f"{v:g}": kl for v, kl in kl_by_weight.items()}, "w3": best},
    )
    return settings.model_copy(update={"reward": settings.reward.model_copy(update={"coherence": best})})


def latest_kl(rows: Sequence[Mapping[str, Any]]) -> float:
    """Mean token KL over the last third of the updates, at least three, because one is mostly noise."""
    return float(np.mean([row["kl"] for row in rows[-max(3, len(rows) // 3) :]]))


def update_seconds(folder: Path) -> float:
    return float(sum(row.get("seconds_rollout", 0.0) + row.get("seconds_update", 0.0) for row in read_curve(folder)))


def external_statistics(
    config: ReproduceRftConfig, base: RftConfig, work: Path, results: Path, log: LogFn
) -> dict[str, CosineStatistics]:
    """The statistics of E_ext, from dev trajectories of π_SFT."""
    folder, archive, files = work / "statistics", results / "parts" / "statistics.zip", ("items.jsonl", "report.json")
    fingerprint = {"weights": hash_weights(base.policy), "items": config.statistics_items}
    if not is_finished(folder, fingerprint) and not restore_part(folder, archive, files, fingerprint):
        log("statistics of E_ext on dev trajectories of π_SFT")
        evaluate_model(
            base.policy, make_tasks([], split="dev"), limit=config.statistics_items, composite=True, out=folder
        )
        write_fingerprint(folder, fingerprint)
        archive_part(folder, archive, files, fingerprint)
    return task_statistics(read_scored_items(folder))


# --- the table


def compute_measures(rows: Sequence[ScoredItem], statistics: Mapping[str, CosineStatistics]) -> dict[str, Floats]:
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


def collect_runs(
    finished_parts: Sequence[ExperimentPart[RftVariant]], work: Path, statistics: Mapping[str, CosineStatistics]
) -> RunsByVariant:
    """Scores of every finished part, by variant."""
    runs_by_variant: dict[str, list[RunScores]] = {}
    for part in finished_parts:
        rows = read_scored_items(work / part.name / "eval")
        seed = None if part.variant.learn == "nothing" else part.seed
        items = tuple(f"{row.task}/{row.item}" for row in rows)
        runs_by_variant.setdefault(part.variant.name, []).append(
            RunScores(seed, items, compute_measures(rows, statistics))
        )
    return runs_by_variant


def build_table(
    finished_parts: Sequence[ExperimentPart[RftVariant]], runs_by_variant: RunsByVariant, work: Path
) -> list[dict[str, Any]]:
    """One row per variant, tested against π_SFT, with the drift of its runs."""
    base = next((part.variant.name for part in finished_parts if part.variant.learn == "nothing"), None)
    return [
        row | summarise_drift([part for part in finished_parts if part.variant.name == row["variant"]], work)
        for row in compare_to_bases(runs_by_variant, dict.fromkeys(runs_by_variant, base) if base else {}, "over_sft")
    ]


def summarise_drift(parts: Sequence[ExperimentPart[RftVariant]], work: Path) -> dict[str, Any]:
    """Token KL after the first quarter of the updates, numbers of updates taken and skipped, and their cost; over the
    same updates each term's share of the reward's variance, and the entropy of the tools called (AE).

    A collapsed run has fewer updates than the others.
    """
    kls: list[float] = []
    later_rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {"updates": [], "seconds": []}
    skipped = 0.0
    for part in parts:
        folder = work / part.name / "train"
        rows = read_curve(folder)
        later_rows += rows[len(rows) // 4 :]
        kls += [row["kl"] for row in rows[len(rows) // 4 :] if row.get("kl") is not None]
        skipped += sum(row.get("skipped", 0.0) for row in rows)
        summary["updates"].append(len(rows))
        summary["seconds"].append(update_seconds(folder) if rows else sft_seconds(folder))
    searches = [path for part in parts if (path := work / part.name / SEARCH_FILE).exists()]
    if searches:
        summary["search"] = json.loads(searches[0].read_text())
    if not kls:
        return summary
    low, median, high = np.percentile(kls, [5, 50, 95]).tolist()
    means = {
        kind: {
            key[len(kind) + 1 :]: float(np.mean([row[key] for row in later_rows]))
            for key in later_rows[0]
            if key.startswith(f"{kind}_")
        }
        for kind in ("share", "mix")
    }
    summary |= {"shares": means["share"], "action_entropy": share_entropy(means["mix"].values())}
    return {**summary, "kl": {"p5": low, "p50": median, "p95": high}, "skipped": skipped}


def sft_seconds(folder: Path) -> float:
    """Seconds of a run of phase 1; 0 if nothing was trained."""
    return float(max((row.get("seconds") or 0.0 for row in read_metrics(folder)), default=0.0))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """The updates of phase 2."""
    return [row for row in read_metrics(folder) if "reward" in row]
