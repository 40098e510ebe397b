"""Acceptance of traces into the corpus: trajectory score, operator checks, decisive steps (sec:data)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.equations.zscore import zscore

THRESHOLDS: Mapping[str, float] = {"SEG": 0.5, "ZOOM": 0.5, "TRK": 0.15, "OCR": 0.85, "TEMP": 0.5, "PROP": 1.0}
"""Lowest passing score of a call by tool: IoU, IoU, HOTA, ANLS, temporal IoU, attribute match (sec:data, runlatency).

The paper's runtime table checks ZOOM together with SEG, by the IoU of its box.
"""


class TrajectoryScores(NamedTuple):
    """S(τ) of a corpus, both ways. τ₀ applies to `raw`."""

    raw: NDArray[np.float64]
    zscored: NDArray[np.float64]


def trajectory_score(
    logic: ArrayLike, struct: ArrayLike, visual: ArrayLike, *, alpha: float = 0.4, beta: float = 0.3, gamma: float = 0.3
) -> NDArray[np.float64]:
    """S(τ) = α·S_logic + β·S_struct + γ·S_visual (sec:data), one score a trace. NaN in a component gives NaN."""
    parts = [np.asarray(part, dtype=float) for part in (logic, struct, visual)]
    if len({part.shape for part in parts}) > 1:
        raise ValueError(f"score components differ in shape: {[part.shape for part in parts]}")
    return alpha * parts[0] + beta * parts[1] + gamma * parts[2]


def zscore_per_task(values: ArrayLike, tasks: Sequence[str]) -> NDArray[np.float64]:
    """Values standardised within each task (sec:data). Equal values, a task with one trace, and NaN give 0."""
    values = np.asarray(values, dtype=float)
    if values.shape != (len(tasks),):
        raise ValueError(f"{values.shape} values for {len(tasks)} tasks: expected one value a trace")
    names = np.asarray(tasks, dtype=object)
    result = np.zeros_like(values)
    for task in set(tasks):
        result[names == task] = zscore(values[names == task])
    return result


def trajectory_scores(
    logic: ArrayLike,
    struct: ArrayLike,
    visual: ArrayLike,
    tasks: Sequence[str],
    *,
    alpha: float = 0.4,
    beta: float = 0.3,
    gamma: float = 0.3,
) -> TrajectoryScores:
    """S(τ) from components in [0, 1], raw and with each component z-scored per task (sec:data).

    The threshold of 0.65 applies to the raw sum: of z-scores, which average 0, it would accept about one in eight.
    A NaN component makes the raw score NaN, which is refused, and counts as its task's mean in the z-scored one.
    """
    scaled = (zscore_per_task(part, tasks) for part in (logic, struct, visual))
    return TrajectoryScores(
        raw=trajectory_score(logic, struct, visual, alpha=alpha, beta=beta, gamma=gamma),
        zscored=trajectory_score(*scaled, alpha=alpha, beta=beta, gamma=gamma),
    )


def operator_passes(tool: str, score: float, *, offset_s: float = 0.0, max_offset_s: float = 0.5) -> bool:
    """Whether one call passes its tool's check (sec:data, runlatency); thresholds are inclusive.

    `score` is the tool's measure against the reference; PROP's is 1 if the attribute matches. TEMP must also lie
    within `max_offset_s` of the reference. A NaN score or offset does not pass; an unknown tool raises ValueError.
    """
    if tool not in THRESHOLDS:
        raise ValueError(f"no operator check for tool {tool!r}, expected one of {', '.join(THRESHOLDS)}")
    in_time = abs(offset_s) <= max_offset_s if tool == "TEMP" else True
    return bool(score >= THRESHOLDS[tool] and in_time)


def is_accepted(score: float, operators: Sequence[bool], *, tau_0: float = 0.65) -> bool:
    """τ ∈ D ⟺ (all operators pass) ∧ S(τ) ≥ τ₀ (sec:data). NaN is refused; without calls the score alone decides."""
    return bool(all(operators) and score >= tau_0)


@dataclass(frozen=True)
class StepRecord:
    """The facts about one call that the decisive-step rule uses."""

    succeeded: bool
    confidence: float
    threshold: float
    """The confidence that this call's tool must reach."""
    used_later: bool
    """A region, text, view or value of its output reaches a later call or the answer."""


def is_decisive(step: StepRecord) -> bool:
    """A call that succeeded, with the confidence that its tool requires, whose output is used later (sec:data).

    The paper calls a step decisive when it changes the state or the answer; this reading needs no second run. A NaN
    confidence never suffices.
    """
    return step.succeeded and step.confidence >= step.threshold and step.used_later


def decisive_steps(steps: Sequence[StepRecord]) -> tuple[int, ...]:
    """Positions of the decisive steps, the set 𝒟 of the paper (sec:data). An empty trace has none."""
    return tuple(position for position, step in enumerate(steps) if is_decisive(step))


def decisive_step_rate(steps: Sequence[StepRecord]) -> float:
    """Share of decisive steps among the calls that succeeded (sec:data). Without a successful call: 0."""
    succeeded = sum(step.succeeded for step in steps)
    return len(decisive_steps(steps)) / succeeded if succeeded else 0.0


def decisive_agreement(steps: Sequence[StepRecord], changes_answer: Sequence[bool]) -> float:
    """How often the rule agrees with deleting the step and re-running, over calls that succeeded (sec:data).

    `changes_answer` says for each step whether its deletion changes the state or the answer. Nothing to compare: 1.
    """
    if len(steps) != len(changes_answer):
        raise ValueError(f"{len(steps)} steps and {len(changes_answer)} deletions: expected one deletion a step")
    pairs = [(is_decisive(s), c) for s, c in zip(steps, changes_answer, strict=True) if s.succeeded]
    return sum(rule == bool(rerun) for rule, rerun in pairs) / len(pairs) if pairs else 1.0
