"""The CC-RFT reward R(τ) and the penalty Pen(τ) (eq:ccrft_reward, eq:value_pen)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.equations.zscore import zscore


class RewardWeights(NamedTuple):
    """w_1 to w_4 of (eq:ccrft_reward). The paper tunes them on dev and does not report them: these are ours.

    R_final is ±1, so its spread is at most 1; a z-scored term has spread 1. With 0.2 each, curiosity and coherence hold
    about 4 % of the variance of R if half of the answers are right: they break ties, the answer decides.
    `variance_shares` measures it on real batches.
    """

    final: float = 1.0
    curiosity: float = 0.2
    coherence: float = 0.2
    penalty: float = 1.0
    tool_use: float = 0.0
    """Weight of `tool_use`, the reward of Pixel-Reasoner, a baseline; not in (eq:ccrft_reward)."""


class Rewards(NamedTuple):
    """R(τ) of a batch and its terms, each weighted and signed: `total` is their sum."""

    total: NDArray[np.float64]
    final: NDArray[np.float64]
    curiosity: NDArray[np.float64]
    coherence: NDArray[np.float64]
    penalty: NDArray[np.float64]
    tool_use: NDArray[np.float64]


def final_reward(score: ArrayLike) -> NDArray[np.float64]:
    """R_final from a task score in [0, 1]: 2·score − 1, so right is +1 and wrong −1 (eq:ccrft_reward).

    The paper uses only ±1; graded scores (ANLS, MRA) lie between. An answer that cannot be scored (NaN) is wrong.
    """
    scores = np.asarray(score, dtype=float)
    scores = np.where(np.isnan(scores), 0.0, scores)
    if ((scores < 0) | (scores > 1)).any():
        raise ValueError(f"task scores reach from {scores.min()} to {scores.max()}, expected 0 to 1")
    return 2.0 * scores - 1.0


def repeated_calls(calls: Sequence[Hashable]) -> tuple[bool, ...]:
    """For each call whether it equals the one before it (eq:value_pen counts it as invalid).

    A repeated view is perfectly coherent and must not be rewarded for it.
    """
    return tuple(position > 0 and call == calls[position - 1] for position, call in enumerate(calls))


def penalty(
    calls: Sequence[Hashable],
    valid: Sequence[bool],
    *,
    alpha_inv: float = 0.30,
    alpha_len: float = 0.02,
    l_0: int = 6,
    scalers: Sequence[float] | None = None,
) -> float:
    """Pen(τ) = α_inv·(invalid calls) + α_len·max(0, |τ| − L₀) (eq:value_pen, values of tab:hp-rcpr).

    `calls` are the tool calls with canonical arguments. A call equal to the one before it counts as invalid; a call
    counts once, however many errors it has. `scalers` are the per-tool scalers of phase 1 (subsec:sft), one per call.
    An empty trace has no penalty.
    """
    scale = [1.0] * len(calls) if scalers is None else scalers
    if not len(calls) == len(valid) == len(scale):
        raise ValueError(f"{len(calls)} calls, {len(valid)} validities, {len(scale)} scalers: expected one a call")
    is_invalid = [not ok or repeated for ok, repeated in zip(valid, repeated_calls(calls), strict=True)]
    invalid = sum(scaler for scaler, invalid_call in zip(scale, is_invalid, strict=True) if invalid_call)
    return alpha_inv * invalid + alpha_len * max(0, len(calls) - l_0)


def tool_use(
    calls: ArrayLike, *, target_rate: float = 0.3, bonus: float = 0.5, max_calls: int = 1, per_call: float = 0.05
) -> NDArray[np.float64]:
    """Pixel-Reasoner's process reward, from (groups, K) numbers of calls to (groups, K) (Su et al. 2025).

    A rollout that uses tools earns bonus·max(0, H − rate of its group), so that tool use does not vanish; every call
    beyond N costs `per_call`. The values are that paper's, where a right answer earns 1 and a wrong one 0: with R_final
    of +1 and −1 their weight is 2.
    """
    n = np.asarray(calls, dtype=float)
    rate = (n > 0).mean(axis=-1, keepdims=True) if n.size else n
    return bonus * np.maximum(target_rate - rate, 0.0) * (n > 0) + per_call * np.minimum(max_calls - n, 0.0)


def ccrft_reward(
    final: ArrayLike,
    curiosity: ArrayLike,
    coherence: ArrayLike,
    penalty: ArrayLike,
    tool_use: ArrayLike | None = None,
    *,
    weights: RewardWeights = RewardWeights(),
) -> Rewards:
    """R(τ) = w₁·R_final + w₂·R_cur + w₃·R_coh − w₄·R_pen of a batch of rollouts (eq:ccrft_reward).

    The intrinsic terms, curiosity and coherence, are z-scored over the batch; a NaN counts as the batch's mean. `final`
    and `penalty` must be finite. `tool_use` is a baseline's term, added with its own weight. An empty batch gives empty
    rewards.
    """
    tool_use_term = np.zeros(np.shape(final)) if tool_use is None else tool_use
    terms = [np.asarray(term, dtype=float) for term in (final, curiosity, coherence, penalty, tool_use_term)]
    if len({term.shape for term in terms}) > 1:
        raise ValueError(f"reward terms differ in shape: {[term.shape for term in terms]}")
    if not (np.isfinite(terms[0]).all() and np.isfinite(terms[3]).all()):
        raise ValueError("R_final or R_pen holds NaN or infinity: expected a finite value for every rollout")
    parts = (
        weights.final * terms[0],
        weights.curiosity * zscore(terms[1]),
        weights.coherence * zscore(terms[2]),
        -weights.penalty * terms[3],
        weights.tool_use * terms[4],
    )
    return Rewards(parts[0] + parts[1] + parts[2] + parts[3] + parts[4], *parts)


def variance_shares(rewards: Rewards, *, samples: int | None = None) -> dict[str, float]:
    """Share of Var(R) that each term accounts for, Cov(term, R) / Var(R) (eq:ccrft_reward).

    With `samples` rollouts per question the variance is that within groups, the only one from which GRPO learns.
    The shares add up to 1; a share is negative if its term is anticorrelated with R. All are zero if R does not vary.
    """
    names = [name for name in Rewards._fields if name != "total"]
    if rewards.total.size == 0:
        return dict.fromkeys(names, 0.0)
    terms = np.stack([getattr(rewards, name) for name in names])  # (5, B)
    grouped = terms.reshape(len(names), -1, samples or terms.shape[1])  # (5, G, K)
    terms = (grouped - grouped.mean(axis=2, keepdims=True)).reshape(terms.shape)
    total = terms.sum(axis=0)
    variance = float((total**2).sum())
    if variance <= 1e-12 * float((terms**2).sum()):  # equal rewards up to rounding
        return dict.fromkeys(names, 0.0)
    return {name: float(term @ total) / variance for name, term in zip(names, terms, strict=True)}
