"""Group-relative policy optimisation: advantages inside a group, and the clipped loss (subsec:ccrft)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pixelis.equations.zscore import zscore

LossAverage = Literal["sequence", "token"]
AdvantageStd = Literal["group", "batch"]


def group_advantage(rewards: ArrayLike, *, advantage_std: AdvantageStd = "group") -> NDArray[np.float64]:
    """A = (R − mean) / std inside each group, (..., K) giving (..., K), population std (subsec:ccrft).

    With `advantage_std="batch"` the mean is the group's and the std is that of all such differences in the batch: a
    group that agrees on its answer and differs only in its intrinsic terms then has advantages as small as those terms,
    while its own std would scale them up to those of a group that is half right.

    A group of equal rewards, or of one rollout, gets zeros, not amplified rounding noise. A rollout whose reward is NaN
    or infinite gets 0 and is excluded from the statistics of its group.
    """
    R = np.asarray(rewards, dtype=float)
    if R.ndim == 0:
        raise ValueError("rewards are a single number, expected the rewards of a group")
    # a reward is a sum of terms around 1: equal sums may differ by rounding, even near 0
    if advantage_std == "group":
        return zscore(R, axis=-1, min_spread=1e-8)
    R = np.where(np.isfinite(R), R, np.nan)
    counts = np.isfinite(R).sum(-1, keepdims=True)
    centred = np.where(counts, R - np.nansum(R, axis=-1, keepdims=True) / np.maximum(counts, 1), np.nan)
    std = float(np.sqrt(np.nanmean(centred**2))) if np.isfinite(centred).any() else 0.0
    return np.nan_to_num(centred / std) if std > 1e-8 else np.zeros_like(R)


def top_k(rewards: ArrayLike, *, k: int = 8) -> tuple[int, ...]:
    """Positions of the K best rollouts of a prompt, in order (subsec:ccrft). Ties go to the earlier; NaN is last."""
    R = np.asarray(rewards, dtype=float)
    best = np.argsort(np.where(np.isnan(R), np.inf, -R), kind="stable")[:k]
    return tuple(sorted(int(position) for position in best))


class GrpoLoss(NamedTuple):
    """The loss, its two parts, and the share of clipped token ratios."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    """Unweighted."""
    clipped: float
    """Share of sampled tokens whose ratio lies outside the clip range."""


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    kl: Tensor | None = None,
    *,
    beta: float = 0.0,
    clip: float = 0.2,
    loss_average: LossAverage = "sequence",
) -> GrpoLoss:
    """−E[min(ρ·A, clip(ρ, 1−ε, 1+ε)·A)] + β·KL_tok with ρ = π_θ/π_old per token (subsec:ccrft).

    log_probs and old_log_probs (B, T) of the sampled tokens, advantages (B,), mask (B, T) True on sampled tokens; `kl`
    is a scalar such as `token_kl` gives. Length: `sequence` averages a rollout's tokens first and rollouts then, as in
    the GRPO that the paper cites, so that every rollout counts the same; `token` averages all tokens at once, so that
    every token does. ε = 0.2 is a common choice: the paper names none. Rollouts without sampled tokens are excluded
    from the averages; if no rollout has any, the policy part is 0. Masked positions may hold NaN.
    """
    if not (log_probs.shape == old_log_probs.shape == mask.shape and log_probs.shape[:1] == advantages.shape):
        raise ValueError(
            f"log-probabilities are {tuple(log_probs.shape)} and {tuple(old_log_probs.shape)}, the mask "
            f"{tuple(mask.shape)}, advantages {tuple(advantages.shape)}: expected (B, T) three times and (B,)"
        )
    kl = torch.zeros((), dtype=log_probs.dtype, device=log_probs.device) if kl is None else kl
    if not bool(mask.any()):
        policy = log_probs[:0].sum()
        return GrpoLoss(policy + beta * kl, policy, kl, 0.0)
    A = advantages.detach()[:, None].to(log_probs.dtype)
    ratio = torch.where(mask, log_probs - old_log_probs.detach(), 0.0).exp()  # (B, T)
    gain = torch.minimum(ratio * A, ratio.clamp(1.0 - clip, 1.0 + clip) * A) * mask
    if loss_average == "sequence":
        lengths = mask.sum(1)
        policy = -(gain.sum(1) / lengths.clamp(min=1)).sum() / (lengths > 0).sum()
    elif loss_average == "token":
        policy = -gain.sum() / mask.sum()
    else:
        raise ValueError(f"loss_average is {loss_average!r}, expected sequence or token")
    outside = ((ratio < 1.0 - clip) | (ratio > 1.0 + clip)) & mask
    return GrpoLoss(policy + beta * kl, policy, kl, float(outside.sum() / mask.sum()))
