"""Evaluation: a policy answers the items of tasks with real tool calls; each item's rule scores its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError
from pixelis.evaluation.process_report import ImageEmbedder, ProcessMeasures, measure_process, process_scores
from pixelis.evaluation.tasks import Task
from pixelis.media import MediaSet
from pixelis.metrics.bootstrap import bca_interval
from pixelis.metrics.statistics import clopper_pearson
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.models import Model
from pixelis.tools.toolbox import Toolbox
from pixelis.world import RenderedItem

ITEMS_PER_BATCH = 48
"""Items whose rollouts run together."""


class ScoredItem(NamedTuple):
    """One item with the scores of its rollout."""

    task: str
    item: str
    template: str
    difficulty: int
    answer: str | None
    right: str
    score: float
    steps: int
    valid_steps: int
    ended: str
    tokens: int
    process: ProcessMeasures


class TaskScore(NamedTuple):
    """The scores of one task, or of all."""

    name: str
    items: int
    score: float
    """Mean, in percent."""
    interval: tuple[float, float]
    """95 %: exact (Clopper-Pearson) for scores of 0 and 1, else the BCa bootstrap."""
    valid_calls: float | None
    """Percent of valid calls; None without a call."""
    answered: float
    """Percent of items with an answer."""
    steps: float
    """Mean number of calls."""
    decisive: float
    """Mean number of decisive calls."""
    rapr: float
    """RaPR, in percent."""
    tokens: float


class Evaluation(NamedTuple):
    """The scores of one evaluation run."""

    model: str
    tasks: tuple[TaskScore, ...]
    overall: TaskScore
    """Over all items."""
    scored_items: tuple[ScoredItem, ...]
    seconds: float
    cpu_seconds: float


def evaluate(
    model: Model,
    toolbox: Toolbox,
    tasks: Sequence[Task],
    *,
    limit: int,
    seed: int = 0,
    temperature: float = 0.0,
    limits: Limits | None = None,
    encoder: ImageEmbedder | None = None,
    on_rollout: Callable[[Rollout], None] = lambda rolled: None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Iterator[ScoredItem]:
    """Roll out and score, task by task. `on_rollout` receives every rollout; `encoder` is E_ext."""
    completed = 0
    for task in tasks:
        items = task.items(limit)
        while chunk := list(islice(items, ITEMS_PER_BATCH)):
            if unknown := next((r.item.id for r in chunk if not r.item.answer), None):
                raise ConfigError(f"{unknown} has no answer, so that it cannot be scored, only asked and adapted to")
            queries = [Query(r.item.id, r.item.question, MediaSet(r.media), r.item.seed) for r in chunk]
            groups = model.rollout(toolbox, queries, n=1, seed=seed, temperature=temperature, limits=limits)
            for rendered, (rollout,) in zip(chunk, groups, strict=True):
                on_rollout(rollout)
                yield score_item(task.name, rendered, rollout, encoder)
            completed += len(chunk)
            on_progress(completed)


def score_item(task: str, rendered: RenderedItem, rollout: Rollout, encoder: ImageEmbedder | None = None) -> ScoredItem:
    item, steps = rendered.item, rollout.trace.steps
    return ScoredItem(
        task=task,
        item=item.id,
        template=item.template,
        difficulty=item.difficulty,
        answer=rollout.answer,
        right=item.answer,
        score=item.score(rollout.answer) if rollout.answer else 0.0,
        steps=len(steps),
        valid_steps=sum(step.result.status != "invalid" for step in steps),
        ended=rollout.end_reason,
        tokens=rollout.completion_tokens,
        process=measure_process(rendered, rollout, encoder),
    )


def to_row(scored_item: ScoredItem) -> dict[str, Any]:
    """A line of items.jsonl."""
    return {**scored_item._asdict(), "process": scored_item.process._asdict()}


def from_row(row: dict[str, Any]) -> ScoredItem:
    """The inverse of `to_row`."""
    process_row = row["process"]
    process = ProcessMeasures(tuple(process_row["valid"]), int(process_row["decisive"]), tuple(process_row["cosines"]))
    return ScoredItem(**{**row, "process": process})


def summarise_scores(name: str, rows: Sequence[ScoredItem]) -> TaskScore:
    """The scores of a list of items."""
    scores = np.array([row.score for row in rows])
    calls = sum(row.steps for row in rows)
    return TaskScore(
        name=name,
        items=len(rows),
        score=100.0 * float(scores.mean()) if len(rows) else 0.0,
        interval=score_interval(scores),
        valid_calls=100.0 * sum(row.valid_steps for row in rows) / calls if calls else None,
        answered=100.0 * sum(row.answer is not None for row in rows) / max(len(rows), 1),
        steps=calls / max(len(rows), 1),
        decisive=sum(row.process.decisive for row in rows) / max(len(rows), 1),
        rapr=process_scores(rows, {}).summary.rapr,
        tokens=sum(row.tokens for row in rows) / max(len(rows), 1),
    )


def score_interval(scores: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean, in percent."""
    if not len(scores):
        return 0.0, 100.0
    if np.isin(scores, (0.0, 1.0)).all():
        low, high = clopper_pearson(int(scores.sum()), len(scores))
        return 100.0 * low, 100.0 * high
    interval = bca_interval(scores, rng=np.random.default_rng(0))
    return 100.0 * interval.low, 100.0 * interval.high


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """The report, without the rows of single items."""
    return {
        "model": evaluation.model,
        "overall": evaluation.overall._asdict(),
        "tasks": [task._asdict() for task in evaluation.tasks],
        "seconds": round(evaluation.seconds, 2),
        "cpu_seconds": round(evaluation.cpu_seconds, 2),
    }
