"""From voted queries to an update: which are trained on, returns, baseline and advantages (eq:ttrl_obj)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pixelis.equations.ttrl import Baseline, advantage, baseline_step, normalise_advantages, rollout_return
from pixelis.memory.memory_store import Neighbour
from pixelis.rewards.compute import RewardBatch
from pixelis.training.dataset.scored_rollouts import ScoredRollout
from pixelis.training.ttrl.stream_memory import StreamMemory
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_update import UpdateBatch, UpdateResult
from pixelis.voting.vote import ReliabilityWindow, VoteResult
from pixelis.world import RenderedItem


class VotedQuery(NamedTuple):
    """A query with its rollouts and its vote."""

    rendered: RenderedItem
    rollouts: list[ScoredRollout]
    """Of the item without answers: their scores are meaningless."""
    rewards: RewardBatch
    penalties: np.ndarray
    neighbours: list[Neighbour]
    vote_result: VoteResult
    greedy_answer: str | None
    leak_reason: str
    """Why the query must not be trained on: it shows evaluation media."""


class StreamState:
    """What the next query depends on besides weights and memory; all of it follows from the rows."""

    def __init__(self, config: TtrlConfig, rows: Sequence[dict[str, Any]]) -> None:
        self.window = ReliabilityWindow(config.vote.window)
        self.baseline = Baseline(rows[-1]["baseline"] if rows else None)
        for row in rows:
            if row["labels"]:
                self.window.add(row["labels"])


class AdvantageResult(NamedTuple):
    """The update of a batch, and what its rows record."""

    update_batch: UpdateBatch | None
    """None if every query shows evaluation media: these do not even enter the KL."""
    query_indices: np.ndarray
    """(n,) the query of each rollout in the update."""
    row_fields: list[dict[str, float | None]]
    """For each query: v̄, the baseline after it, the mean of its advantages and the share of positive ones."""


def compute_advantages(
    config: TtrlConfig, memory: StreamMemory, state: StreamState, queries: Sequence[VotedQuery], reasons: Sequence[str]
) -> AdvantageResult:
    """Returns, neighbourhood values, baselines and advantages of a batch.

    r − b is normalised over the batch before v̄ multiplies it: a query whose neighbours have little value moves the
    policy less, even if it is the only accepted one.
    """
    values = np.array([memory.neighbourhood_value(query.neighbours) for query in queries])
    centred_parts, weight_parts, sequences = list[np.ndarray](), list[np.ndarray](), []
    query_indices, baselines = list[int](), list[float | None]()
    for k, (query, reason) in enumerate(zip(queries, reasons, strict=True)):
        centred_returns = np.zeros(len(query.rollouts))
        if not reason and config.objective == "reinforce":
            centred_returns = subtract_baseline(config, state, query, float(values[k]))
        if not query.leak_reason:
            used_count = len(centred_returns) if not reason else config.kl_rollouts or len(centred_returns)
            centred_parts.append(centred_returns[:used_count])
            weight_parts.append(duplicate_weights(config, query)[:used_count])
            sequences += [scored_rollout.sequence for scored_rollout in query.rollouts[:used_count]]
            query_indices += [k] * len(centred_parts[-1])
        baselines.append(state.baseline.value)
    owner = np.array(query_indices, dtype=np.int64)  # (n,)
    mask = np.array([not reasons[k] for k in query_indices], dtype=bool)
    weights = np.concatenate([np.zeros(0), *weight_parts])
    centred = np.concatenate([np.zeros(0), *centred_parts])
    normalised = normalise_advantages(centred, mask, weights=weights, floor=config.min_advantage_scale)
    advantages = values[owner] * normalised * weights
    row_fields = []
    for k, reason in enumerate(reasons):
        query_advantages = advantages[owner == k]
        has_advantages = not reason and config.objective == "reinforce"
        row_fields.append({
            "value": float(values[k]), "baseline": baselines[k],
            "advantage": float(query_advantages.mean()) if has_advantages else None,
            "positive": float((query_advantages > 0.0).mean()) if has_advantages else None,
            "alike": bool(has_advantages and not query_advantages.any()),
        })  # fmt: skip
    rollout_count = sum(len(query.rollouts) for query in queries if not query.leak_reason)
    batch = UpdateBatch(tuple(sequences), advantages, mask, rollout_count) if sequences else None
    return AdvantageResult(batch, owner, row_fields)


def subtract_baseline(config: TtrlConfig, state: StreamState, query: VotedQuery, value: float) -> np.ndarray:
    """(N,) r − b of a query's rollouts; the baseline is then updated. The first query is its own baseline."""
    vote_result = query.vote_result
    agrees = [b.answer is not None and b.answer == vote_result.consensus.answer for b in vote_result.ballots]
    kappa, lambda_pen = config.kappa, config.lambda_pen
    returns = rollout_return(agrees, vote_result.similarity, query.penalties, kappa=kappa, lambda_pen=lambda_pen)
    mean = float((returns * duplicate_weights(config, query)).mean())
    if config.baseline == "own":
        return advantage(returns, baseline=mean, value=1.0)
    before = state.baseline
    state.baseline = baseline_step(before, returns=mean, value=value, kind=config.baseline, rho=config.rho_baseline)
    used = state.baseline if before.value is None else before
    return advantage(returns, baseline=used.value or 0.0, value=1.0)


def duplicate_weights(config: TtrlConfig, query: VotedQuery) -> np.ndarray:
    """(N,) weight of each rollout in means over rollouts: 1, or N over (groups · size of its group)."""
    groups = np.array([ballot.group for ballot in query.vote_result.ballots], dtype=np.int64)
    if not config.merge_duplicate_rollouts:
        return np.ones(len(groups))
    _, group_index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(len(groups) / (len(sizes) * sizes[group_index]))


def query_kl(update: UpdateResult | None, query_indices: np.ndarray, query: int) -> float | None:
    """KL over the sampled tokens of one query's rollouts, nats per token."""
    if update is None or not (in_query := query_indices == query).any():
        return None
    kl = float(update.stats.rollout_kls[in_query].sum() / max(1, update.stats.rollout_tokens[in_query].sum()))
    return kl if np.isfinite(kl) else None


def get_skip_reason(config: TtrlConfig, query: VotedQuery) -> str:
    """Why a query is not trained on; empty if it is."""
    vote = query.vote_result.consensus
    if not config.learn or query.leak_reason:
        return query.leak_reason or "learning is off"
    if config.objective == "entropy":
        return ""
    if config.group_size == 1:
        return "one rollout is no vote"
    if not vote.allows_update:
        if vote.reason or not vote.low_entropy:
            mixed_reason = f"answers too mixed: entropy {vote.entropy:.2f}, want under {config.vote.max_entropy:g}"
            return vote.reason or mixed_reason
        few_reason = f"{100 * vote.agreement:.0f} % of the rollouts agree, want {100 * config.vote.least_agreement:g}"
        return few_reason if not vote.enough_agreement else f"more rollouts say {vote.majority!r}, or nothing"
    return "" if query.vote_result.exemplar.rollout is not None else "no rollout gave the answer"
