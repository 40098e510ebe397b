"""The parts of phase 3's comparison: a variant's stream, and its held-out evaluation.

Each part has its own folder and can be resumed; a finished part is also archived, so that another machine can continue
from it. A stream's archive has its rows but not its weights: with a budget in the configuration, it is written after
the held-out evaluation, which needs the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from experiments.common.paired_tests import ExperimentPart, LogFn, SeededVariant, override_config, read_scored_items
from experiments.common.result_archive import (
    FINGERPRINT,
    Fingerprint,
    archive_part,
    is_finished,
    restore_part,
    write_fingerprint,
)
from experiments.ttrl.ttrl_archives import (
    GREEDY_HELD_OUT_FILES,
    HELD_OUT_FILES,
    MEMORY_FILES,
    STATISTICS_FILES,
    STREAM_FILES,
    settings_fingerprint,
    shorten_ledger,
)
from experiments.ttrl.ttrl_risk import StreamRows
from experiments.ttrl.ttrl_table import VOTED
from pixelis.core.atomic import write_atomic
from pixelis.core.config import Config
from pixelis.core.provenance import write_json
from pixelis.data.corpus.record import Split
from pixelis.equations.embedding import CosineStatistics
from pixelis.evaluation.process_report import task_statistics
from pixelis.evaluation.run_evaluation import evaluate_model
from pixelis.evaluation.streams import Course, Stream, StreamTask, make_stream
from pixelis.memory.keys import KeyMaker
from pixelis.policy.model_names import hash_weights
from pixelis.training.common.item_rollouts import ItemFactory
from pixelis.training.common.run_folder import RESOLVED
from pixelis.training.ttrl.journal import LEDGER, MEMORY, UPDATES, batch_end, read_rows
from pixelis.training.ttrl.train import adapt
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_export import export_policy_after
from pixelis.voting.fit_calibration import CALIBRATION_FILE as CALIBRATION

NO_CANARIES = {"canary": {"items_per_family": 0}}
"""Canaries stop a failing run; in a comparison every variant runs its whole stream."""


class TtrlVariant(SeededVariant):
    """One way to adapt."""

    course: Course | None = None
    """Course of the shifts in its stream, if it differs from the others'."""
    matched: bool = True
    """Off for stress tests: the variant does not count for the budget, and is evaluated at its end if it trained on
    less."""
    voted: bool = True
    """If off, the held-out evaluation is greedy only, as it is for stress tests."""
    whole: bool = False
    """Evaluated at the end of its stream, whatever it has trained on."""
    asked: bool = True
    """Off if the policy is that of `none`, whose held-out answers would be the same. Its stream is reported."""
    base: str | None = None
    """The variant that it is compared with, if not `none`."""

    @property
    def examined_by_vote(self) -> bool:
        return self.voted and self.matched


class ReproduceTtrlConfig(Config):
    """The variants, and the questions they answer."""

    ttrl: Path
    """The configuration that variants change."""
    families: tuple[str, ...] = ()
    """All six if empty."""
    shifts: tuple[str, ...] = ("lighting:3", "motion_blur:3")
    course: Course = "steady"
    skip: int = Field(default=0, ge=0)
    """Items of each family of dev and test that are skipped, because settings were chosen on them."""
    stream_items: int = Field(default=60, ge=1)
    """Queries of each family in the stream."""
    held_items: int = Field(default=40, ge=1)
    """Held-out questions of each family, answered greedily."""
    voted_items: int = Field(default=40, ge=1)
    """How many of them are also answered by vote, which costs eight times as much."""
    statistics_items: int = Field(default=20, ge=1)
    """Questions of each family for the statistics of E_ext."""
    old_items: int = Field(default=20, ge=0)
    """Questions of each family without a shift, answered greedily, to measure forgetting."""
    memory_items: int = Field(default=20, ge=0)
    """Questions of each family without a shift that the start policy answers by vote; the accepted ones are the fixed
    memory of all variants. 0: each variant has its own memory, empty at first, which grows."""
    budget: int | None = Field(default=None, ge=0)
    """Largest number of trained queries at the evaluation. By default that of the variant with the fewest, which is
    known only when all streams have finished on one machine."""
    none: str = "no-adaptation"
    """The variant that the others are compared with."""
    ours: str = "ours"
    """The variant that is compared with every other."""
    variants: tuple[TtrlVariant, ...]


class TtrlExperiment(NamedTuple):
    """A comparison with its folders."""

    config: ReproduceTtrlConfig
    base: TtrlConfig
    work: Path
    results: Path
    keys: Callable[[], KeyMaker] | None
    log: LogFn

    def query_stream(self, split: Split, items: int, *, course: Course | None = None, skip: int = 0) -> Stream:
        config = self.config
        return make_stream(
            config.families,
            split=split,
            limit=items,
            shifts=config.shifts,
            course=course or config.course,
            skip=config.skip + skip,
        )

    def calibration_items(self, settings: TtrlConfig) -> ItemFactory:
        items = settings.calibration.items_per_family
        return make_stream(self.config.families, split="dev-cal", limit=items).items

    def settings(self, part: ExperimentPart[TtrlVariant]) -> TtrlConfig:
        fixed = {"seed": part.seed, "name": part.name, "greedy": True, **NO_CANARIES}
        settings = override_config(self.base, part.variant.change, fixed)
        shared = bool(settings.neighbours and self.config.memory_items)
        return settings.model_copy(update={"memory": self.memory, "grow_memory": False}) if shared else settings

    @property
    def memory(self) -> Path:
        """The memory that all variants share."""
        return self.work / "memory" / MEMORY

    def stream_folder(self, part: ExperimentPart[TtrlVariant]) -> Path:
        return self.work / part.name / "stream"

    def archive(self, name: str) -> Path:
        return self.results / "parts" / f"{name}.zip"

    def fingerprint(self, part: ExperimentPart[TtrlVariant], **more: Any) -> Fingerprint:
        """What the rows of a part depend on."""
        config = self.config
        return {
            "weights": hash_weights(self.base.policy),
            "settings": settings_fingerprint(self.settings(part)),
            "families": config.families, "shifts": config.shifts, "course": part.variant.course or config.course,
            "stream_items": config.stream_items, "statistics_items": config.statistics_items,
            "memory_items": config.memory_items, "skip": config.skip, **more,
        }  # fmt: skip

    def rows(self, part: ExperimentPart[TtrlVariant]) -> StreamRows:
        """The rows of a finished stream; empty before."""
        rows = read_rows(self.stream_folder(part) / LEDGER)
        expected = len(self.query_stream("dev", self.config.stream_items, course=part.variant.course))
        return rows if len(rows) >= expected else []


# --- a stream


def thresholds_path(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant]) -> Path:
    """The thresholds of the start policy, used for all variants."""
    return experiment.work / f"{experiment.config.none}-{part.seed}" / "stream" / CALIBRATION


def shares_baseline_calibration(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant]) -> bool:
    """Whether calibration would ask the same policy the same questions as for `none`."""
    baseline = next((v for v in experiment.config.variants if v.name == experiment.config.none), None)
    if baseline is None:
        return False
    part_inputs, baseline_inputs = (
        calibration_inputs(experiment.settings(candidate)) for candidate in (part, ExperimentPart(baseline, part.seed))
    )
    return part_inputs == baseline_inputs


def calibration_inputs(settings: TtrlConfig) -> tuple[object, ...]:
    """What thresholds depend on besides the policy; δ is not used in fitting."""
    vote = settings.vote.model_copy(update={"delta": 0.0})
    return settings.calibration, vote, settings.group_size, settings.tools, settings.limits, settings.seed


def restore_stream(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant]) -> bool:
    """Whether the rows of a finished stream are here or could be restored from the archive."""
    folder, fingerprint = experiment.stream_folder(part), experiment.fingerprint(part)
    if is_finished(folder, fingerprint) and experiment.rows(
        part
    ):  # written at the start: another stream is not resumed
        return True
    # a run made here has its settings; without them, restoring the archive was interrupted
    return not (folder / RESOLVED).exists() and restore_part(
        folder, experiment.archive(f"{part.name}-stream"), STREAM_FILES, fingerprint
    )


def run_stream(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], show: Any) -> None:
    """Run a variant's stream, or resume it."""
    folder, settings = experiment.stream_folder(part), experiment.settings(part)
    if restore_stream(experiment, part):
        if not settings.learn:
            archive_missing_stream(experiment, part)
        return
    if settings.memory == experiment.memory:
        build_shared_memory(experiment, show)
    experiment.log(f"{part.name}: the stream")
    stream = experiment.query_stream("dev", experiment.config.stream_items, course=part.variant.course)
    write_fingerprint(folder, experiment.fingerprint(part))
    if (shared_thresholds := thresholds_path(experiment, part)).exists() and shares_baseline_calibration(
        experiment, part
    ):
        write_atomic(folder / CALIBRATION, shared_thresholds.read_bytes())
    adapt(
        settings, stream.items(), folder, show=show,
        keys=experiment.keys() if experiment.keys and settings.neighbours else None,
        dev_cal=experiment.calibration_items(settings),
    )  # fmt: skip
    if experiment.config.budget is None or not settings.learn:
        archive_stream(experiment, part)


def archive_stream(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant]) -> None:
    archive, shorten = experiment.archive(f"{part.name}-stream"), {LEDGER: shorten_ledger}
    archive_part(experiment.stream_folder(part), archive, STREAM_FILES, experiment.fingerprint(part), shorten=shorten)


def archive_missing_stream(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant]) -> None:
    """Write the archive if the process was killed between the end of the stream and its archive."""
    if not experiment.archive(f"{part.name}-stream").exists():
        archive_stream(experiment, part)


def build_shared_memory(experiment: TtrlExperiment, show: Any) -> None:
    """Fill the memory that all variants share, or resume; without labels and without training."""
    folder, config = experiment.work / "memory", experiment.config
    change = {"learn": False, "name": "memory", "memory": None, **NO_CANARIES}
    settings = override_config(experiment.base, change)
    first_item = config.skip + config.stream_items + config.statistics_items
    fingerprint = {
        "weights": hash_weights(experiment.base.policy), "settings": settings_fingerprint(settings),
        "families": config.families, "items": config.memory_items, "first": first_item,
    }  # fmt: skip
    stream = make_stream(config.families, split="dev", limit=config.memory_items, skip=first_item)
    if is_finished(folder, fingerprint) and len(read_rows(folder / LEDGER)) >= len(stream):
        if not experiment.archive("memory").exists():
            archive_part(
                folder, experiment.archive("memory"), MEMORY_FILES, fingerprint, shorten={LEDGER: shorten_ledger}
            )
        return
    if not (folder / RESOLVED).exists() and restore_part(
        folder, experiment.archive("memory"), MEMORY_FILES, fingerprint
    ):
        return
    experiment.log("the shared memory")
    write_fingerprint(folder, fingerprint)
    adapt(
        settings, stream.items(), folder, show=show, keys=experiment.keys() if experiment.keys else None,
        dev_cal=experiment.calibration_items(settings),
    )  # fmt: skip
    archive_part(folder, experiment.archive("memory"), MEMORY_FILES, fingerprint, shorten={LEDGER: shorten_ledger})


# --- the held-out questions


def row_at_budget(rows: StreamRows, budget: int) -> int:
    """The first end of a batch at which the largest number of trained queries within the budget is reached.

    A batch is trained on as a whole, so one that would exceed the budget is left out. The last row if the budget is
    never reached.
    """
    trained_queries = np.cumsum([0, *(row["learnt"] for row in rows)])  # (n + 1,) before the first row, after each
    if trained_queries[-1] < budget:
        return len(rows)
    ends = [0, *(k for k, row in enumerate(rows, start=1) if batch_end(row, k) == k)]
    max_trained = max(trained_queries[end] for end in ends if trained_queries[end] <= budget)
    return next(end for end in ends if trained_queries[end] == max_trained)


def snapshot_row(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], budget: int) -> int:
    """The row after which a variant is evaluated."""
    rows = experiment.rows(part)
    return len(rows) if part.variant.whole or not experiment.settings(part).learn else row_at_budget(rows, budget)


def held_out_folder(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], budget: int) -> Path:
    """One folder per budget; a variant without updates, or one taken at its end, has only one."""
    name = "held" if not experiment.settings(part).learn else "held-whole" if part.variant.whole else f"held-{budget}"
    return experiment.work / part.name / name


def exam_finished(folder: Path, part: ExperimentPart[TtrlVariant]) -> bool:
    """Whether all held-out questions have been answered, those by vote too if required."""
    votes_finished = (folder / VOTED / "done.json").exists() or not part.variant.examined_by_vote
    return (folder / FINGERPRINT).exists() and votes_finished


def exam_fingerprint(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], budget: int) -> Fingerprint:
    """What the held-out answers depend on."""
    shared_thresholds, config = thresholds_path(experiment, part), experiment.config
    is_budgeted = experiment.settings(part).learn and not part.variant.whole
    thresholds = json.loads(shared_thresholds.read_text()) if shared_thresholds.exists() else None
    return experiment.fingerprint(
        part, budget=budget if is_budgeted else None, held_items=config.held_items, voted_items=config.voted_items,
        old_items=config.old_items, thresholds=thresholds,
    )  # fmt: skip


def restore_exam(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], budget: int) -> bool:
    """Whether the held-out answers are here or could be restored from the archive."""
    folder, fingerprint = held_out_folder(experiment, part, budget), exam_fingerprint(experiment, part, budget)
    archive_files = HELD_OUT_FILES if part.variant.examined_by_vote else GREEDY_HELD_OUT_FILES
    archive = experiment.archive(f"{part.name}-{folder.name}")
    return is_finished(folder, fingerprint) or restore_part(folder, archive, archive_files, fingerprint)


def run_exam(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], budget: int, show: Any) -> None:
    """Evaluate the held-out questions greedily, and some also by vote."""
    folder, settings = held_out_folder(experiment, part, budget), experiment.settings(part)
    if not part.variant.asked:
        return
    if restore_exam(experiment, part, budget):
        archive_missing_stream(experiment, part)
        return
    policy = settings.policy
    if settings.learn and not (experiment.stream_folder(part) / UPDATES).exists():
        experiment.log(
            f"{part.name}: its rows are from {experiment.archive(f'{part.name}-stream')}, which has no weights, and it "
            f"was not evaluated after {budget} queries; to run it again, delete that file and "
            f"{experiment.work / part.name}"
        )
        return
    if settings.learn:
        policy = str(folder / "policy")
        if not (folder / "policy" / "model.safetensors").exists():
            export_policy_after(
                experiment.stream_folder(part), snapshot_row(experiment, part, budget), folder / "policy"
            )
    stream = experiment.query_stream("test", experiment.config.held_items, course="steady")
    if not (folder / "greedy" / "report.json").exists():
        experiment.log(f"{part.name}: held-out, greedily")
        evaluate_model(
            policy, [StreamTask(stream)], limit=len(stream), seed=part.seed, composite=True, out=folder / "greedy",
            without_tools=not settings.tools,
        )  # fmt: skip
    if experiment.config.old_items and not (folder / "old" / "report.json").exists():
        experiment.log(f"{part.name}: without a shift, greedily")
        unshifted = make_stream(
            experiment.config.families, split="test", limit=experiment.config.old_items, skip=experiment.config.skip
        )
        evaluate_model(
            policy, [StreamTask(unshifted)], limit=len(unshifted), seed=part.seed, out=folder / "old",
            without_tools=not settings.tools,
        )  # fmt: skip
    if part.variant.examined_by_vote:
        run_voted_exam(experiment, part, folder, policy, show)
    fingerprint = exam_fingerprint(experiment, part, budget)
    archive_files = HELD_OUT_FILES if part.variant.examined_by_vote else GREEDY_HELD_OUT_FILES
    shorten = {f"{VOTED}/{LEDGER}": shorten_ledger}
    archive_part(folder, experiment.archive(f"{part.name}-{folder.name}"), archive_files, fingerprint, shorten=shorten)
    write_fingerprint(folder, fingerprint)
    archive_stream(experiment, part)


def run_voted_exam(
    experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant], folder: Path, policy: str, show: Any
) -> None:
    """Evaluate held-out questions with N rollouts each, with the vote and the thresholds that all variants share."""
    settings, shared_thresholds = experiment.settings(part), thresholds_path(experiment, part)
    experiment.log(f"{part.name}: held-out, by vote")
    changes = {
        "policy": policy, "learn": False, "seed": part.seed, "neighbours": 0, "tools": settings.tools,
        "name": part.name, **NO_CANARIES,
    }  # fmt: skip
    voting = override_config(experiment.base, changes)
    if shared_thresholds.exists():
        write_atomic(folder / VOTED / CALIBRATION, shared_thresholds.read_bytes())
    stream = experiment.query_stream("test", experiment.config.voted_items, course="steady")
    report = adapt(voting, stream.items(), folder / VOTED, show=show)
    write_json(folder / VOTED / "done.json", {"queries": report.queries})


def external_statistics(experiment: TtrlExperiment) -> dict[str, CosineStatistics]:
    """The statistics of E_ext, from trajectories of the start policy on dev items that no stream has."""
    folder, archive, config = experiment.work / "statistics", experiment.archive("statistics"), experiment.config
    fingerprint = {
        "weights": hash_weights(experiment.base.policy), "families": config.families, "shifts": config.shifts,
        "items": config.statistics_items, "skip": config.skip + config.stream_items,
    }  # fmt: skip
    if not is_finished(folder, fingerprint) and not restore_part(folder, archive, STATISTICS_FILES, fingerprint):
        experiment.log("statistics of E_ext")
        stream = experiment.query_stream("dev", config.statistics_items, course="steady", skip=config.stream_items)
        evaluate_model(experiment.base.policy, [StreamTask(stream)], limit=len(stream), composite=True, out=folder)
        archive_part(folder, archive, STATISTICS_FILES, fingerprint)
        write_fingerprint(folder, fingerprint)
    return task_statistics(read_scored_items(folder))
