"""What a batch of queries teaches: which of them may, their returns, the baseline and the advantages (eq:ttrl_obj)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pixelis.equations.ttrl import Baseline, advantage, baseline_step, normalise_advantages, rollout_return
from pixelis.retrieval.memory import Neighbour
from pixelis.scoring.consensus import Decision, Window
from pixelis.train.experience import Lived
from pixelis.train.recollection import Recollection
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_update import Lesson, Updated
from pixelis.train.worth import Worth
from pixelis.world import Rendered


class Heard(NamedTuple):
    """One query after its rollouts and its vote."""

    made: Rendered
    experience: list[Lived]
    """Of the blind item: its scores say nothing."""
    worth: Worth
    penalties: np.ndarray
    near: list[Neighbour]
    decision: Decision
    greedy: str | None
    leak: str
    """Why nothing may be learnt from it: it shows evaluation media."""


class Standing:
    """What the next query depends on besides weights and memory; all of it can be read off the rows."""

    def __init__(self, config: TtrlConfig, rows: Sequence[dict[str, Any]]) -> None:
        self.window = Window(config.vote.window)
        self.baseline = Baseline(rows[-1]["baseline"] if rows else None)
        for row in rows:
            if row["labels"]:
                self.window.add(row["labels"])


class Taught(NamedTuple):
    """What a batch came to."""

    lesson: Lesson | None
    """None where every query shows evaluation media: not even the KL is taken on those."""
    owners: np.ndarray
    """(n,) the query of each rollout in the lesson."""
    told: list[dict[str, float | None]]
    """For each query's row: v̄, the baseline after it, the mean of its advantages and the share that is over 0."""


def lesson_of(
    config: TtrlConfig, recollection: Recollection, state: Standing, heard: Sequence[Heard], reasons: Sequence[str]
) -> Taught:
    """Returns, neighbourhood values, baselines and advantages of a batch.

    r − b is normalised over the batch before v̄ multiplies it: a query whose neighbours are worth little moves the
    policy less, also where it is the only one that teaches.
    """
    values = np.array([recollection.value(one.near) for one in heard])
    centred, counted, ledgers = list[np.ndarray](), list[np.ndarray](), []
    owners, baselines = list[int](), list[float | None]()
    for k, (one, why) in enumerate(zip(heard, reasons, strict=True)):
        off = np.zeros(len(one.experience))
        if not why and config.objective == "reinforce":
            off = over_baseline(config, state, one, float(values[k]))
        if not one.leak:
            heeded = len(off) if not why else config.kl_samples or len(off)
            centred.append(off[:heeded])
            counted.append(counts_as(config, one)[:heeded])
            ledgers += [each.ledger for each in one.experience[:heeded]]
            owners += [k] * len(centred[-1])
        baselines.append(state.baseline.value)
    whose = np.array(owners, dtype=np.int64)
    mask = np.array([not reasons[k] for k in owners], dtype=bool)
    weights = np.concatenate([np.zeros(0), *counted])
    off_baseline = np.concatenate([np.zeros(0), *centred])
    scaled = normalise_advantages(off_baseline, mask, weights=weights, floor=config.least_spread)
    advantages = values[whose] * scaled * weights
    told = []
    for k, why in enumerate(reasons):
        own = advantages[whose == k]
        taught = not why and config.objective == "reinforce"
        told.append({
            "value": float(values[k]), "baseline": baselines[k],
            "advantage": float(own.mean()) if taught else None,
            "positive": float((own > 0.0).mean()) if taught else None,
            "alike": bool(taught and not own.any()),
        })  # fmt: skip
    asked = sum(len(one.experience) for one in heard if not one.leak)
    return Taught(Lesson(tuple(ledgers), advantages, mask, asked) if ledgers else None, whose, told)


def over_baseline(config: TtrlConfig, state: Standing, one: Heard, value: float) -> np.ndarray:
    """r − b of one query's rollouts; the baseline then moves. The first query is its own baseline."""
    decision = one.decision
    agrees = [b.answer is not None and b.answer == decision.consensus.answer for b in decision.ballots]
    returns = rollout_return(
        agrees, decision.similarity, one.penalties, kappa=config.kappa, lambda_pen=config.lambda_pen
    )
    mean = float((returns * counts_as(config, one)).mean())
    if config.baseline == "own":
        return advantage(returns, baseline=mean, value=1.0)
    moved = baseline_step(state.baseline, returns=mean, value=value, kind=config.baseline, rho=config.rho_baseline)
    before = moved if state.baseline.value is None else state.baseline
    state.baseline = moved
    return advantage(returns, baseline=before.value or 0.0, value=1.0)


def counts_as(config: TtrlConfig, one: Heard) -> np.ndarray:
    """(N,) what each rollout counts in the means over rollouts: 1, or N over (groups x its group's size)."""
    groups = np.array([ballot.group for ballot in one.decision.ballots], dtype=np.int64)
    if not config.one_lesson_each:
        return np.ones(len(groups))
    _, own, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(len(groups) / (len(sizes) * sizes[own]))


def kl_of(done: Updated | None, owners: np.ndarray, query: int) -> float | None:
    """KL to π_EMA over the sampled tokens of one query's rollouts, nats per token."""
    if done is None or not (own := owners == query).any():
        return None
    found = float(done.kls[own].sum() / max(1, done.tokens[own].sum()))
    return found if np.isfinite(found) else None


def why_not(config: TtrlConfig, one: Heard) -> str:
    """Why nothing is learnt from a query; empty where something is."""
    vote = one.decision.consensus
    if not config.learn or one.leak:
        return one.leak or "learning is off"
    if config.objective == "entropy":
        return ""
    if config.samples == 1:
        return "one rollout is no vote"
    if not vote.teaches:
        if vote.reason or not vote.low_entropy:
            mixed = f"answers too mixed: entropy {vote.entropy:.2f}, want under {config.vote.max_entropy:g}"
            return vote.reason or mixed
        few = f"{100 * vote.agreement:.0f} % of the rollouts agree, want {100 * config.vote.least_agreement:g}"
        return few if not vote.agreed else f"more rollouts say {vote.majority!r}, or nothing"
    return "" if one.decision.exemplar.rollout is not None else "no rollout gave the answer"
