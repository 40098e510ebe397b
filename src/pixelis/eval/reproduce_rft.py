"""The claims of phase 2 on nano: variants trained alike, asked the same held-out questions, compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from pixelis.config import Config, load_config
from pixelis.data.store import MANIFEST, Corpus
from pixelis.equations.embedding import CosineStatistics
from pixelis.equations.process import share_entropy
from pixelis.eval.comparing import Floats, Found, Part, Run, Say, Seeded, compared, merged, paired, parts_of, rows_of
from pixelis.eval.harness import Scored
from pixelis.eval.kept_parts import (
    MADE_OF,
    TABLE,
    UNKNOWN,
    has_ended,
    keep_part,
    place_of_table,
    restore_part,
    sign_part,
)
from pixelis.eval.process import process_scores, task_statistics
from pixelis.eval.rescore_rft import Saved, rescored
from pixelis.eval.rft_figures import Curve, draw_dynamics, draw_process
from pixelis.eval.running import evaluate_model
from pixelis.eval.tasks import Task, WorldTask, tasks_of
from pixelis.policy.checkpoint import weights_of
from pixelis.rundir import make_folder, provenance, write_json
from pixelis.train.rft import train_rft
from pixelis.train.rft_config import RftConfig
from pixelis.train.sft import train_sft
from pixelis.train.sft_config import SftConfig
from pixelis.world import FAMILIES

CHAINS, SEARCH = "traces.jsonl", "search.json"
KEPT = ("eval/items.jsonl", "eval/report.json", "train/metrics.jsonl", SEARCH)
"""Of a part, beside the table: its scores and its curve, not its chains and weights."""
HOW_IT_RUNS = {
    "device", "threads", "workers", "cache_path", "log_every", "save_minutes", "device_facts", "policy", "init",
    "corpus", "examples",
}  # fmt: skip
"""Keys that say where and how quickly, not what."""


class Variant(Seeded):
    """One way to go on from π_SFT."""

    learn: Literal["nothing", "sft", "rft"] = "rft"
    """`sft`: as many seconds as `ours` with the same seed took, spent on more of phase 1."""
    search: tuple[float, ...] = ()
    """Values of w₃ that are tried for a few updates: that whose token KL comes nearest to that of `ours` is taken."""

    @property
    def waits(self) -> bool:
        """Whether `ours` must have run before."""
        return self.learn == "sft" or bool(self.search)


class ReproduceConfig(Config):
    """What is compared, and on what."""

    rft: Path
    """The configuration that variants change."""
    sft: Path
    """The one of phase 1, for more of it."""
    updates: int = Field(default=100, ge=1)
    items: int = Field(default=100, ge=1)
    """Held-out questions of each family."""
    skip: int = Field(default=0, ge=0)
    """Held-out questions of each family before those: settings were chosen with them in view."""
    statistics_items: int = Field(default=40, ge=1)
    """Dev questions of each family whose π_SFT chains give E_ext's statistics."""
    temperature: float = 0.0
    threads: int | None = Field(default=1, ge=1)
    """Of every part: two parts side by side are quicker than one on two threads."""
    search_updates: int = Field(default=15, ge=1)
    """Of every value that is tried."""
    variants: tuple[Variant, ...]
    ours: str = Field(default="cc-rft", validate_default=True)
    """The variant that is held against every other, and whose chains are re-scored with other layers and gates."""

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
    wanted = parts_of(config.variants, only)
    base = load_config(RftConfig, config.rft, []).model_copy(
        update={"updates": config.updates, "threads": config.threads, **(overrides or {})}
    )
    statistics = external_statistics(config, base, work, results, say)
    ours = next(variant for variant in config.variants if variant.name == config.ours)
    done = list[Part[Variant]]()
    for part in parts_of(config.variants, ()):
        folder, archive, made_of = (
            work / part.name,
            results / "parts" / f"{part.name}.zip",
            made_of_what(part, config, base),
        )
        if not has_ended(folder, made_of) and not restore_part(folder, archive, KEPT, made_of):
            if part not in wanted:
                continue
            if part.variant.waits and Part(ours, part.seed) not in done:
                say(f"{part.name} waits for {config.ours}-{part.seed}")
                continue
            run(part, config, base, work, say, show)
            keep_part(folder, archive, KEPT, made_of)
            sign_part(folder, made_of)
        done.append(part)
    found = scores(done, work, statistics)
    table, pairs = compare(done, found, work), paired(found, config.ours)
    facts = {"config": config.model_dump(mode="json"), "rows": table, "pairs": pairs}
    place = place_of_table(results, work, facts, say)
    if place is not None:
        make_folder(place)
        curves: dict[str, list[Curve]] = {}
        for part in done:
            if rows := curve(work / part.name / "train"):
                curves.setdefault(part.variant.name, []).append(rows)
        draw_dynamics(curves, place / "dynamics.svg", target=base.kl.target)
        draw_process(table, place / "process.svg")
        asked = questions_of(done, work, base.corpus)
        write_json(place / TABLE, provenance(settings=base.model_dump(mode="json"), questions=asked, **facts))
    if any(part.variant == ours for part in wanted):  # takes minutes: not for who asked for another
        rescore(config, base, work, results, say)
    left = [part.name for part in parts_of(config.variants, ()) if part not in done]
    return {"rows": table, "pairs": pairs, "left": left, "written": str(place) if place else None}


def made_of_what(part: Part[Variant], config: ReproduceConfig, base: RftConfig) -> dict[str, Any]:
    """What a part's scores depend on."""
    what: dict[str, Any] = {}
    if part.variant.learn == "rft":
        how = HOW_IT_RUNS | {"batch_tokens"}  # phase 2 adds its parts up; in phase 1 they are its batches
        settings = settings_of(part, base)
        how |= {"temperature"} if settings.temperature == 1.0 else set()  # parts were kept before there was one
        what = {"settings": settings.model_dump(mode="json", exclude=how)}
    elif part.variant.learn == "sft":
        what = {"settings": more_of_sft(part, config, base).model_dump(mode="json", exclude=HOW_IT_RUNS)}
        what["teacher"] = plan_hash(base.corpus)
    if part.variant.search:
        what["search_updates"] = config.search_updates
    if what:
        what["questions"] = questions_hash(base.corpus)
    return {
        "weights": weights_of(base.policy), "variant": part.variant.model_dump(mode="json", exclude={"seeds"}),
        "seed": part.seed, "items": config.items, "skip": config.skip, "temperature": config.temperature, **what,
    }  # fmt: skip


def questions_hash(folder: Path) -> str:
    """By the training questions in their order; not by the teacher's chains, which phase 2 does not see."""
    if not (folder / MANIFEST).exists():
        return UNKNOWN
    return sha256("\n".join(row.id for row in Corpus(folder).rows(split="train")).encode()).hexdigest()


def plan_hash(folder: Path) -> str:
    """By what the teacher was told and the code that it had: what its chains come from."""
    if not (folder / MANIFEST).exists():
        return UNKNOWN
    return sha256(json.dumps(Corpus(folder).manifest.plan, sort_keys=True).encode()).hexdigest()


def questions_of(done: Sequence[Part[Variant]], work: Path, folder: Path) -> str:
    """The questions by their hash; where the corpus is not here, as finished parts have signed it."""
    if (folder / MANIFEST).exists():
        return questions_hash(folder)
    signed = [json.loads((work / part.name / MADE_OF).read_text()).get("questions") for part in done]
    return next((each for each in signed if each), UNKNOWN)


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
        "skip": config.skip, "statistics_items": config.statistics_items, "reward": reward.model_dump(mode="json"),
    }  # fmt: skip
    evaluated = [work / "statistics", *(work / part.name / "eval" for part in done)]
    newest = max((folder / "report.json").stat().st_mtime for folder in evaluated)
    old = json.loads(path.read_text()).get("made_of", {}) if path.exists() else {}
    if old == made_of and path.stat().st_mtime > newest:
        return
    if len(old.get("chains", ())) > len(done):
        say(f"{path} was made of more seeds than have saved chains here: it stays")
        return
    say(f"layer and gate, by re-scoring saved chains of {config.ours}: {len(done)} of {len(parts)} seeds")
    own = Saved((evaluated[0],), tasks_of([], split="dev"), config.statistics_items)
    others = Saved(tuple(evaluated[1:]), held_out(config), config.items)
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
    own = {
        "init": base.policy, "seed": part.seed, "name": part.name, "drill_steps": 0, "corpus": str(base.corpus),
        "threads": base.threads,
    }  # fmt: skip
    return SftConfig.model_validate(merged(given, {**own, **part.variant.change}))


def run(part: Part[Variant], config: ReproduceConfig, base: RftConfig, work: Path, say: Say, show: Any) -> None:
    """Train and evaluate one part, or go on with it."""
    folder = work / part.name
    say(part.name)
    policy = base.policy
    shown = {"show": show} if show else {}
    if part.variant.learn == "rft":
        settings = settings_of(part, base)
        if part.variant.search:
            settings = searched(part, config, settings, work, say, shown)
        policy = train_rft(settings, folder / "train", **shown).policy
    elif part.variant.learn == "sft":
        minutes = spent(work / f"{config.ours}-{part.seed}" / "train") / 60.0
        longer = more_of_sft(part, config, base).model_copy(update={"minutes": minutes})
        say(f"{part.name}: phase 1 for {minutes:.0f} minutes more")
        policy = train_sft(longer, folder / "train").policy
    say(f"{part.name}: the held-out questions")
    evaluate_model(
        policy, held_out(config), limit=config.items, temperature=config.temperature, seed=part.seed, composite=True,
        out=folder / "eval",
    )  # fmt: skip


def held_out(config: ReproduceConfig) -> list[Task]:
    """What every part is asked."""
    return [WorldTask(family, "test", skip=config.skip) for family in FAMILIES]


def searched(
    part: Part[Variant], config: ReproduceConfig, settings: RftConfig, work: Path, say: Say, shown: Mapping[str, Any]
) -> RftConfig:
    """The variant with the w₃ whose token KL comes nearest to that of `ours` over as many updates."""
    folder, first = work / part.name, config.search_updates
    wanted = latest_kl(curve(work / f"{config.ours}-{part.seed}" / "train")[:first])
    tried: dict[float, float] = {}
    for value in part.variant.search:
        say(f"{part.name}: w₃ {value:g} for {first} updates")
        reward = settings.reward.model_copy(update={"coherence": value})
        floor = settings.rate(first - 1) / settings.lr  # at the rates that these updates have in the whole run
        own = settings.model_copy(update={"updates": first, "lr_floor": floor, "reward": reward})
        train_rft(own, folder / "search" / f"{value:g}", **shown)
        tried[value] = latest_kl(curve(folder / "search" / f"{value:g}"))
    best = min(tried, key=lambda value: abs(np.log(max(tried[value], 1e-9) / max(wanted, 1e-9))))
    write_json(folder / SEARCH, {"wanted_kl": wanted, "kl": {f"{v:g}": kl for v, kl in tried.items()}, "w3": best})
    return settings.model_copy(update={"reward": settings.reward.model_copy(update={"coherence": best})})


def latest_kl(rows: Sequence[Mapping[str, Any]]) -> float:
    """Mean token KL over the last third of some updates, and over three at the least: one alone is mostly noise."""
    return float(np.mean([row["kl"] for row in rows[-max(3, len(rows) // 3) :]]))


def spent(folder: Path) -> float:
    """Seconds of a run's updates."""
    return float(sum(row.get("seconds_rollout", 0.0) + row.get("seconds_update", 0.0) for row in curve(folder)))


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


def scores(done: Sequence[Part[Variant]], work: Path, statistics: Mapping[str, CosineStatistics]) -> Found:
    """What every finished part scored, by variant."""
    found: dict[str, list[Run]] = {}
    for part in done:
        rows = rows_of(work / part.name / "eval")
        seed = None if part.variant.learn == "nothing" else part.seed
        items = tuple(f"{row.task}/{row.item}" for row in rows)
        found.setdefault(part.variant.name, []).append(Run(seed, items, measures(rows, statistics)))
    return found


def compare(done: Sequence[Part[Variant]], found: Found, work: Path) -> list[dict[str, Any]]:
    """One row a variant, tested against π_SFT, with the drift of its runs."""
    base = next((part.variant.name for part in done if part.variant.learn == "nothing"), None)
    return [
        row | drift([part for part in done if part.variant.name == row["variant"]], work)
        for row in compared(found, dict.fromkeys(found, base) if base else {}, "over_sft")
    ]


def drift(parts: Sequence[Part[Variant]], work: Path) -> dict[str, Any]:
    """Token KL over the updates after the first quarter, how many were taken and skipped, and what they cost; over the
    same updates the share of the reward's variance that each term had, and the entropy of the tools called (AE).

    A run that collapsed has fewer updates than the others.
    """
    kls: list[float] = []
    later: list[dict[str, Any]] = []
    out: dict[str, Any] = {"updates": [], "seconds": []}
    skipped = 0.0
    for part in parts:
        folder = work / part.name / "train"
        rows = curve(folder)
        later += rows[len(rows) // 4 :]
        kls += [row["kl"] for row in rows[len(rows) // 4 :] if row.get("kl") is not None]
        skipped += sum(row.get("skipped", 0.0) for row in rows)
        out["updates"].append(len(rows))
        out["seconds"].append(spent(folder) if rows else teaching_seconds(folder))
    searches = [path for part in parts if (path := work / part.name / SEARCH).exists()]
    if searches:
        out["search"] = json.loads(searches[0].read_text())
    if not kls:
        return out
    low, median, high = np.percentile(kls, [5, 50, 95]).tolist()
    means = {
        kind: {
            key[len(kind) + 1 :]: float(np.mean([row[key] for row in later]))
            for key in later[0]
            if key.startswith(f"{kind}_")
        }
        for kind in ("share", "mix")
    }
    out |= {"shares": means["share"], "action_entropy": share_entropy(means["mix"].values())}
    return {**out, "kl": {"p5": low, "p50": median, "p95": high}, "skipped": skipped}


def teaching_seconds(folder: Path) -> float:
    """Seconds of a run of phase 1, by its last row; 0 where nothing was trained."""
    return float(max((row.get("seconds") or 0.0 for row in metrics(folder)), default=0.0))


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def curve(folder: Path) -> list[dict[str, Any]]:
    """The updates of phase 2."""
    return [row for row in metrics(folder) if "reward" in row]
