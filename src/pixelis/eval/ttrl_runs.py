"""The parts of phase 3's comparison: a variant's stream, and the held-out questions after it.

Each part lies in a folder of its own and is gone on with where it was stopped; what has ended is kept as a small
archive too, so that another machine takes it from there. A stream's archive has its rows and not its weights: where a
budget is named it is written after the questions were asked, so that none is left without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from pixelis.config import Config
from pixelis.data.record import Split
from pixelis.equations.embedding import CosineStatistics
from pixelis.eval.comparing import Part, Say, Seeded, merged, rows_of
from pixelis.eval.kept_parts import MADE_OF, has_ended, keep_part, restore_part, sign_part
from pixelis.eval.process import task_statistics
from pixelis.eval.running import evaluate_model
from pixelis.eval.streams import Course, Stream, StreamTask, stream_of
from pixelis.eval.ttrl_archives import (
    OF_HELD_OUT,
    OF_HELD_OUT_GREEDILY,
    OF_MEMORY,
    OF_STATISTICS,
    OF_STREAM,
    signed,
    told_of,
)
from pixelis.eval.ttrl_risk import Rows
from pixelis.eval.ttrl_table import VOTED
from pixelis.policy.checkpoint import weights_of
from pixelis.retrieval.keys import KeyMaker
from pixelis.rundir import write_json, write_whole
from pixelis.train.adaptation import LEDGER, MEMORY, UPDATES, read_rows, until_of
from pixelis.train.calibrating import FILE as CALIBRATION
from pixelis.train.run import RESOLVED
from pixelis.train.ttrl import adapt
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_export import policy_after

WHOLE = {"canary": {"items": 0}}
"""Canary questions stop a deployment; in a comparison every variant lives its whole stream, a falling one too."""


class TtrlVariant(Seeded):
    """One way to adapt."""

    course: Course | None = None
    """Of the shifts in its stream, where that is another than the others'."""
    matched: bool = True
    """Off for stress: it has no say in the budget, and is taken at its own end where it learnt from less."""
    voted: bool = True
    """Off: the held-out questions are asked greedily alone. Stress is never asked by vote."""
    whole: bool = False
    """Taken at the end of its stream, whatever it has learnt from."""
    asked: bool = True
    """Off where the policy is that of `none`: the held-out questions would get the same answers. Its stream is told."""
    base: str | None = None
    """The variant that it is held against, where that is another than `none`."""

    @property
    def by_vote(self) -> bool:
        return self.voted and self.matched


class ReproduceTtrlConfig(Config):
    """What is compared, and on what."""

    ttrl: Path
    """The configuration that variants change."""
    families: tuple[str, ...] = ()
    """All six where none is named."""
    shifts: tuple[str, ...] = ("lighting:3", "motion_blur:3")
    course: Course = "steady"
    skip: int = Field(default=0, ge=0)
    """Items of each family, of dev and of test, before the first one here: settings were chosen with them in view."""
    stream_items: int = Field(default=60, ge=1)
    """Queries of each family in the stream."""
    held_items: int = Field(default=40, ge=1)
    """Questions of each family that are asked before and after, of other seeds, greedily."""
    voted_items: int = Field(default=40, ge=1)
    """The same by vote, which costs eight times as much: the first of them."""
    statistics_items: int = Field(default=20, ge=1)
    """The same for E_ext's statistics."""
    old_items: int = Field(default=20, ge=0)
    """Questions of each family without a shift, asked greedily: what was forgotten of the old domain."""
    memory_items: int = Field(default=20, ge=0)
    """Questions of each family without a shift that the policy at the start answers by vote: what it accepts is the
    memory of all variants, and nothing is added to it. 0: each has its own, empty at first, and adds to it."""
    budget: int | None = Field(default=None, ge=0)
    """Queries that a policy has learnt from when it is asked, at the most. Not given, it is what the variant with the
    fewest learnt from, which is known when all streams have ended: then all must end on one machine."""
    none: str = "no-adaptation"
    """The variant that the others are held against."""
    ours: str = "ours"
    """The variant that is held against every other."""
    variants: tuple[TtrlVariant, ...]


class Runs(NamedTuple):
    """Where everything lies."""

    config: ReproduceTtrlConfig
    base: TtrlConfig
    work: Path
    results: Path
    keys: Callable[[], KeyMaker] | None
    say: Say

    def stream(self, split: Split, items: int, *, course: Course | None = None, skip: int = 0) -> Stream:
        own = self.config
        return stream_of(
            own.families, split=split, limit=items, shifts=own.shifts, course=course or own.course, skip=own.skip + skip
        )

    def settings(self, part: Part[TtrlVariant]) -> TtrlConfig:
        change = {**part.variant.change, "seed": part.seed, "name": part.name, "greedy": True, **WHOLE}
        own = TtrlConfig.model_validate(merged(self.base.model_dump(mode="json"), change))
        shared = bool(own.neighbours and self.config.memory_items)
        return own.model_copy(update={"memory": self.memory, "remember": False}) if shared else own

    @property
    def memory(self) -> Path:
        """The one that all variants share."""
        return self.work / "memory" / MEMORY

    def stream_of(self, part: Part[TtrlVariant]) -> Path:
        return self.work / part.name / "stream"

    def archive(self, name: str) -> Path:
        return self.results / "parts" / f"{name}.zip"

    def made_of(self, part: Part[TtrlVariant], **more: Any) -> dict[str, Any]:
        """What the rows of a part depend on."""
        own = self.config
        return {
            "weights": weights_of(self.base.policy),
            "settings": signed(self.settings(part)),
            "families": own.families, "shifts": own.shifts, "course": part.variant.course or own.course,
            "stream_items": own.stream_items, "statistics_items": own.statistics_items,
            "memory_items": own.memory_items, "skip": own.skip, **more,
        }  # fmt: skip

    def rows(self, part: Part[TtrlVariant]) -> Rows:
        """Of a stream that has come to its end; none before."""
        rows = read_rows(self.stream_of(part) / LEDGER)
        wanted = len(self.stream("dev", self.config.stream_items, course=part.variant.course))
        return rows if len(rows) >= wanted else []


# --- a stream


def thresholds(runs: Runs, part: Part[TtrlVariant]) -> Path:
    """Of the policy at the start, whoever is asked."""
    return runs.work / f"{runs.config.none}-{part.seed}" / "stream" / CALIBRATION


def calibrates_as_none(runs: Runs, part: Part[TtrlVariant]) -> bool:
    """Whether the same policy would be asked the same dev-cal questions in the same way as by `none`."""
    none = next((v for v in runs.config.variants if v.name == runs.config.none), None)
    if none is None:
        return False
    own, other = (asking_of(runs.settings(each)) for each in (part, Part(none, part.seed)))
    return own == other


def asking_of(settings: TtrlConfig) -> tuple[object, ...]:
    """What thresholds depend on besides the policy; δ is not looked at while they are fitted."""
    vote = settings.vote.model_copy(update={"delta": 0.0})
    return settings.calibration, vote, settings.samples, settings.tools, settings.limits, settings.seed


def restore_stream(runs: Runs, part: Part[TtrlVariant]) -> bool:
    """Whether the rows of a stream that has ended are here, or could be taken from their archive."""
    folder, made_of = runs.stream_of(part), runs.made_of(part)
    if has_ended(folder, made_of) and runs.rows(part):  # signed at its beginning: another stream is not gone on with
        return True
    # what was run here has its settings; without them it was being taken from its archive when that was cut off
    return not (folder / RESOLVED).exists() and restore_part(
        folder, runs.archive(f"{part.name}-stream"), OF_STREAM, made_of
    )


def live(runs: Runs, part: Part[TtrlVariant], show: Any) -> None:
    """Answer the stream with one variant, or go on with it."""
    folder, settings = runs.stream_of(part), runs.settings(part)
    if restore_stream(runs, part):
        if not settings.learn:
            keep_missing(runs, part)
        return
    if settings.memory == runs.memory:
        remember(runs, show)
    runs.say(f"{part.name}: the stream")
    stream = runs.stream("dev", runs.config.stream_items, course=part.variant.course)
    sign_part(folder, runs.made_of(part))
    if (shared := thresholds(runs, part)).exists() and calibrates_as_none(runs, part):
        write_whole(folder / CALIBRATION, shared.read_bytes())
    adapt(
        settings, stream.items(), folder, show=show,
        keys=runs.keys() if runs.keys and settings.neighbours else None,
        dev_cal=stream_of(runs.config.families, split="dev-cal", limit=settings.calibration.items).items,
    )  # fmt: skip
    if runs.config.budget is None or not settings.learn:
        keep_stream(runs, part)


def keep_stream(runs: Runs, part: Part[TtrlVariant]) -> None:
    archive, shorten = runs.archive(f"{part.name}-stream"), {LEDGER: told_of}
    keep_part(runs.stream_of(part), archive, OF_STREAM, runs.made_of(part), shorten=shorten)


def keep_missing(runs: Runs, part: Part[TtrlVariant]) -> None:
    """A process may have been killed when a stream had ended, before its archive was written."""
    if not runs.archive(f"{part.name}-stream").exists():
        keep_stream(runs, part)


def remember(runs: Runs, show: Any) -> None:
    """Fill the memory that all variants share, or go on with it: no label is seen, and nothing is learnt."""
    folder, own = runs.work / "memory", runs.config
    change = {"learn": False, "name": "memory", "memory": None, **WHOLE}
    settings = TtrlConfig.model_validate(merged(runs.base.model_dump(mode="json"), change))
    first = own.skip + own.stream_items + own.statistics_items
    made_of = {
        "weights": weights_of(runs.base.policy), "settings": signed(settings),
        "families": own.families, "items": own.memory_items, "first": first,
    }  # fmt: skip
    stream = stream_of(own.families, split="dev", limit=own.memory_items, skip=first)
    if has_ended(folder, made_of) and len(read_rows(folder / LEDGER)) >= len(stream):
        if not runs.archive("memory").exists():
            keep_part(folder, runs.archive("memory"), OF_MEMORY, made_of, shorten={LEDGER: told_of})
        return
    if not (folder / RESOLVED).exists() and restore_part(folder, runs.archive("memory"), OF_MEMORY, made_of):
        return
    runs.say("the memory of all variants")
    sign_part(folder, made_of)
    adapt(
        settings, stream.items(), folder, show=show, keys=runs.keys() if runs.keys else None,
        dev_cal=stream_of(own.families, split="dev-cal", limit=settings.calibration.items).items,
    )  # fmt: skip
    keep_part(folder, runs.archive("memory"), OF_MEMORY, made_of, shorten={LEDGER: told_of})


# --- the held-out questions


def row_at(rows: Rows, budget: int) -> int:
    """The first end of a batch at which as many queries as the budget allows had been learnt from.

    A batch is learnt from as a whole: one that would overshoot is not taken. The last row where the budget was never
    reached.
    """
    learnt = np.cumsum([0, *(row["learnt"] for row in rows)])  # (n + 1,) before the first row, after each
    if learnt[-1] < budget:
        return len(rows)
    ends = [0, *(k for k, row in enumerate(rows, start=1) if until_of(row, k) == k)]
    most = max(learnt[end] for end in ends if learnt[end] <= budget)
    return next(end for end in ends if learnt[end] == most)


def taken_at(runs: Runs, part: Part[TtrlVariant], budget: int) -> int:
    """The row after which a variant is asked."""
    rows = runs.rows(part)
    return len(rows) if part.variant.whole or not runs.settings(part).learn else row_at(rows, budget)


def held(runs: Runs, part: Part[TtrlVariant], budget: int) -> Path:
    """Another budget is another policy, and has its own folder; who learns nothing, or all, has one."""
    name = "held" if not runs.settings(part).learn else "held-whole" if part.variant.whole else f"held-{budget}"
    return runs.work / part.name / name


def finished(folder: Path, part: Part[TtrlVariant]) -> bool:
    """An exam is signed when all its questions have been asked; those by vote may be wanted since."""
    by_vote = (folder / VOTED / "done.json").exists() or not part.variant.by_vote
    return (folder / MADE_OF).exists() and by_vote


def exam_of(runs: Runs, part: Part[TtrlVariant], budget: int) -> dict[str, Any]:
    """What the answers to the held-out questions depend on."""
    shared, own = thresholds(runs, part), runs.config
    counts = runs.settings(part).learn and not part.variant.whole
    return runs.made_of(
        part, budget=budget if counts else None, held_items=own.held_items, voted_items=own.voted_items,
        old_items=own.old_items, thresholds=json.loads(shared.read_text()) if shared.exists() else None,
    )  # fmt: skip


def restore_exam(runs: Runs, part: Part[TtrlVariant], budget: int) -> bool:
    """Whether the held-out answers are here, or could be taken from their archive."""
    folder, made_of = held(runs, part, budget), exam_of(runs, part, budget)
    wanted = OF_HELD_OUT if part.variant.by_vote else OF_HELD_OUT_GREEDILY
    archive = runs.archive(f"{part.name}-{folder.name}")
    return has_ended(folder, made_of) or restore_part(folder, archive, wanted, made_of)


def examine(runs: Runs, part: Part[TtrlVariant], budget: int, show: Any) -> None:
    """Ask the held-out questions greedily, and some also by vote."""
    folder, settings = held(runs, part, budget), runs.settings(part)
    if not part.variant.asked:
        return
    if restore_exam(runs, part, budget):
        keep_missing(runs, part)
        return
    policy = settings.policy
    if settings.learn and not (runs.stream_of(part) / UPDATES).exists():
        runs.say(
            f"{part.name}: its rows came from {runs.archive(f'{part.name}-stream')}, without weights, and nobody has "
            f"asked it after {budget} queries: delete that file and {runs.work / part.name} to run it again"
        )
        return
    if settings.learn:
        policy = str(folder / "policy")
        if not (folder / "policy" / "model.safetensors").exists():
            policy_after(runs.stream_of(part), taken_at(runs, part, budget), folder / "policy")
    stream = runs.stream("test", runs.config.held_items, course="steady")
    if not (folder / "greedy" / "report.json").exists():
        runs.say(f"{part.name}: held-out, greedily")
        evaluate_model(
            policy, [StreamTask(stream)], limit=len(stream), seed=part.seed, composite=True, out=folder / "greedy",
            without_tools=not settings.tools,
        )  # fmt: skip
    if runs.config.old_items and not (folder / "old" / "report.json").exists():
        runs.say(f"{part.name}: without a shift, greedily")
        old = stream_of(runs.config.families, split="test", limit=runs.config.old_items, skip=runs.config.skip)
        evaluate_model(
            policy, [StreamTask(old)], limit=len(old), seed=part.seed, out=folder / "old",
            without_tools=not settings.tools,
        )  # fmt: skip
    if part.variant.by_vote:
        ask_by_vote(runs, part, folder, policy, show)
    made_of = exam_of(runs, part, budget)
    wanted = OF_HELD_OUT if part.variant.by_vote else OF_HELD_OUT_GREEDILY
    shorten = {f"{VOTED}/{LEDGER}": told_of}
    keep_part(folder, runs.archive(f"{part.name}-{folder.name}"), wanted, made_of, shorten=shorten)
    sign_part(folder, made_of)
    keep_stream(runs, part)


def ask_by_vote(runs: Runs, part: Part[TtrlVariant], folder: Path, policy: str, show: Any) -> None:
    """The held-out questions with N rollouts each, under the vote and the thresholds that all variants share."""
    settings, shared_calibration = runs.settings(part), thresholds(runs, part)
    runs.say(f"{part.name}: held-out, by vote")
    shared = {
        "policy": policy, "learn": False, "seed": part.seed, "neighbours": 0, "tools": settings.tools,
        "name": part.name, **WHOLE,
    }  # fmt: skip
    voting = TtrlConfig.model_validate(merged(runs.base.model_dump(mode="json"), shared))
    if shared_calibration.exists():
        write_whole(folder / VOTED / CALIBRATION, shared_calibration.read_bytes())
    stream = runs.stream("test", runs.config.voted_items, course="steady")
    report = adapt(voting, stream.items(), folder / VOTED, show=show)
    write_json(folder / VOTED / "done.json", {"queries": report.queries})


def external_statistics(runs: Runs) -> dict[str, CosineStatistics]:
    """E_ext's statistics, from chains of the policy at the start on dev items that no stream has."""
    folder, archive, own = runs.work / "statistics", runs.archive("statistics"), runs.config
    made_of = {
        "weights": weights_of(runs.base.policy), "families": own.families, "shifts": own.shifts,
        "items": own.statistics_items, "skip": own.skip + own.stream_items,
    }  # fmt: skip
    if not has_ended(folder, made_of) and not restore_part(folder, archive, OF_STATISTICS, made_of):
        runs.say("statistics of E_ext")
        stream = runs.stream("dev", own.statistics_items, course="steady", skip=own.stream_items)
        evaluate_model(runs.base.policy, [StreamTask(stream)], limit=len(stream), composite=True, out=folder)
        keep_part(folder, archive, OF_STATISTICS, made_of)
        sign_part(folder, made_of)
    return task_statistics(rows_of(folder))
