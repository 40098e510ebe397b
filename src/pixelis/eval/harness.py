"""Evaluation: a policy answers the items of tasks with real tool calls, and every answer is scored by its task's rule.

Running is apart from scoring: what a run leaves is a file of traces and one of scores, and each can be read alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pixelis.errors import ConfigError
from pixelis.eval.process import Embeds, Process, process_of, process_scores
from pixelis.eval.tasks import Task
from pixelis.media import MediaSet
from pixelis.metrics.statistics import clopper_pearson
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.models import Model
from pixelis.tools.toolbox import Toolbox
from pixelis.world import Rendered

AT_ONCE = 48
"""Items whose media are held and whose rollouts run together."""


class Scored(NamedTuple):
    """One item and what became of it."""

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
    process: Process


class TaskScore(NamedTuple):
    """One task, or all of them."""

    name: str
    items: int
    score: float
    """Mean, in percent."""
    interval: tuple[float, float]
    """95 %: exact where scores are 0 or 1, else by the bootstrap."""
    valid_calls: float | None
    """Percent of calls that their tool could read; None where no call was made."""
    answered: float
    """Percent of items that got an answer."""
    steps: float
    """Calls in a chain, on the mean."""
    decisive: float
    """Decisive ones among them."""
    rapr: float
    """RaPR, in percent."""
    tokens: float


class Evaluation(NamedTuple):
    """What a policy scored."""

    model: str
    tasks: tuple[TaskScore, ...]
    overall: TaskScore
    """Every item counts once."""
    scored: tuple[Scored, ...]
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
    encoder: Embeds | None = None,
    keep: Callable[[Rollout], None] = lambda rolled: None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Scored]:
    """Roll out and score, task by task; `keep` is given every rollout before it is let go. `encoder` is E_ext."""
    done = 0
    for task in tasks:
        items = task.items(limit)
        while chunk := list(islice(items, AT_ONCE)):
            if unknown := next((made.item.id for made in chunk if not made.item.answer), None):
                raise ConfigError(f"{unknown} has no answer: it can be asked and adapted to, but not scored")
            queries = [Query(made.item.id, made.item.question, MediaSet(made.media), made.item.seed) for made in chunk]
            groups = model.rollout(toolbox, queries, n=1, seed=seed, temperature=temperature, limits=limits)
            for made, (rolled,) in zip(chunk, groups, strict=True):
                keep(rolled)
                yield scored(task.name, made, rolled, encoder)
            done += len(chunk)
            on_progress(done)


def scored(task: str, made: Rendered, rolled: Rollout, encoder: Embeds | None = None) -> Scored:
    item, steps = made.item, rolled.trace.steps
    return Scored(
        task=task,
        item=item.id,
        template=item.template,
        difficulty=item.difficulty,
        answer=rolled.answer,
        right=item.answer,
        score=item.score(rolled.answer) if rolled.answer else 0.0,
        steps=len(steps),
        valid_steps=sum(step.result.status != "invalid" for step in steps),
        ended=rolled.ended,
        tokens=rolled.tokens,
        process=process_of(made, rolled, encoder),
    )


def as_row(scored: Scored) -> dict[str, Any]:
    """A line of items.jsonl."""
    return {**scored._asdict(), "process": scored.process._asdict()}


def from_row(row: dict[str, Any]) -> Scored:
    """The opposite of `as_row`."""
    own = row["process"]
    process = Process(tuple(own["valid"]), int(own["decisive"]), tuple(own["cosines"]))
    return Scored(**{**row, "process": process})


def summed_up(name: str, rows: Sequence[Scored]) -> TaskScore:
    """The figures of some items."""
    scores = np.array([row.score for row in rows])
    calls = sum(row.steps for row in rows)
    return TaskScore(
        name=name,
        items=len(rows),
        score=100.0 * float(scores.mean()) if len(rows) else 0.0,
        interval=interval(scores),
        valid_calls=100.0 * sum(row.valid_steps for row in rows) / calls if calls else None,
        answered=100.0 * sum(row.answer is not None for row in rows) / max(len(rows), 1),
        steps=calls / max(len(rows), 1),
        decisive=sum(row.process.decisive for row in rows) / max(len(rows), 1),
        rapr=process_scores(rows, {}).summary.rapr,
        tokens=sum(row.tokens for row in rows) / max(len(rows), 1),
    )


def interval(scores: np.ndarray) -> tuple[float, float]:
    """95 % of the mean, in percent."""
    if not len(scores):
        return 0.0, 100.0
    if np.isin(scores, (0.0, 1.0)).all():
        low, high = clopper_pearson(int(scores.sum()), len(scores))
        return 100.0 * low, 100.0 * high
    rng = np.random.default_rng(0)
    means = rng.choice(scores, size=(2000, len(scores))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return 100.0 * float(low), 100.0 * float(high)


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The report without the single items, which go to a file of their own."""
    return {
        "model": evaluation.model,
        "overall": evaluation.overall._asdict(),
        "tasks": [task._asdict() for task in evaluation.tasks],
        "seconds": round(evaluation.seconds, 2),
        "cpu_seconds": round(evaluation.cpu_seconds, 2),
    }
