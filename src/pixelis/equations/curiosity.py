"""Curiosity: the dynamics loss that trains h_ψ, and the gated prediction error as reward (supp:et_dynamics)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from pixelis.equations.embedding import row_cosines


def feature_loss(
    predicted: Tensor, target: Tensor, *, lambda_1: float = 0.5, lambda_2: float = 0.5, huber_delta: float = 1.0
) -> Tensor:
    """λ₁·SmoothL1 + λ₂·(1 − cos) of (n, d) features, averaged over steps (supp:et_dynamics). No steps give 0.

    The target passes no gradient: its features come from the backbone, which this loss must not train.
    """
    if predicted.shape != target.shape or predicted.ndim != 2:
        raise ValueError(f"features are {tuple(predicted.shape)} and {tuple(target.shape)}: expected the same (n, d)")
    if len(predicted) == 0:
        return predicted.sum()
    target = target.detach()
    regression = functional.smooth_l1_loss(predicted, target, beta=huber_delta)
    return lambda_1 * regression + lambda_2 * (1.0 - functional.cosine_similarity(predicted, target, dim=1)).mean()


def dynamics_loss(
    v_hat: Tensor,
    v_next: Tensor,
    r_hat: Tensor,
    valid: Tensor,
    *,
    lambda_1: float = 0.5,
    lambda_2: float = 0.5,
    lambda_3: float = 1.0,
) -> Tensor:
    """ℒ_dyn = λ₁·SmoothL1 + λ₂·(1 − cos) + λ₃·BCEWithLogits, averaged over steps (supp:et_dynamics).

    v̂_{t+1} and v_{t+1} are (n, d); the validity logit r̂_t and the verifier's verdicts are (n,). No steps give 0.
    """
    features = feature_loss(v_hat, v_next, lambda_1=lambda_1, lambda_2=lambda_2)
    if r_hat.shape != valid.shape or r_hat.shape != v_hat.shape[:1]:
        raise ValueError(f"{tuple(r_hat.shape)} logits and {tuple(valid.shape)} labels for {len(v_hat)} steps")
    if len(v_hat) == 0:
        return features + r_hat.sum()
    return features + lambda_3 * functional.binary_cross_entropy_with_logits(r_hat, valid.to(r_hat.dtype))


def prediction_error(
    v_hat: ArrayLike, v_next: ArrayLike, *, alpha: float = 0.5, per_dimension: bool = False
) -> NDArray[np.float64]:
    """e_t = α·‖v̂_{t+1} − v_{t+1}‖₁ + (1 − α)·(1 − cos), (n, d) giving (n,) (supp:et_dynamics).

    As printed, the first part grows with d and dominates at d = 1024; `per_dimension` divides it by d. A zero vector
    has cosine 0 with everything. NaN stays NaN, and `curiosity_rewards` gives it reward 0.
    """
    a, b = np.asarray(v_hat, dtype=float), np.asarray(v_next, dtype=float)
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"features are {a.shape} and {b.shape}: expected the same (n, d)")
    distance = np.abs(a - b).sum(axis=1) / (max(1, a.shape[1]) if per_dimension else 1)
    return alpha * distance + (1.0 - alpha) * (1.0 - row_cosines(a, b))


def mc_variance(samples: ArrayLike) -> NDArray[np.float64]:
    """σ_t² from S dropout passes (S, n, d): variance over the passes, averaged over dimensions (supp:et_dynamics).

    The paper does not say how d variances are combined; the mean keeps the gate's β = 5 meaningful for any d. One pass
    has variance 0, which is the paper's "gate off".
    """
    passes = np.asarray(samples, dtype=float)
    if passes.ndim != 3 or len(passes) == 0:
        raise ValueError(f"dropout passes have shape {passes.shape}: expected (S, n, d) with S at least 1")
    return passes.var(axis=0).mean(axis=1) if passes.shape[2] else np.zeros(passes.shape[1])


def curiosity_rewards(
    error: ArrayLike,
    variance: ArrayLike,
    validity_logit: ArrayLike,
    *,
    beta: float = 5.0,
    percentile: float = 95.0,
) -> NDArray[np.float64]:
    """R_cur(t) = e_t / (1 + β·σ_t²), clipped to the batch's 95th percentile, times σ(r̂_t) (supp:et_dynamics).

    All (n,) over the steps of one batch. A step with a NaN or infinite value gets 0 and is excluded from the
    percentile.
    """
    e, variances, r_hat = (np.asarray(part, dtype=float) for part in (error, variance, validity_logit))
    if not e.shape == variances.shape == r_hat.shape or e.ndim != 1:
        raise ValueError(f"errors {e.shape}, variances {variances.shape}, logits {r_hat.shape}: expected the same (n,)")
    is_finite = np.isfinite(e) & np.isfinite(variances) & np.isfinite(r_hat)
    rewards = np.zeros_like(e)
    if is_finite.any():
        gated = e[is_finite] / (1.0 + beta * variances[is_finite])
        valid = 0.5 * (1.0 + np.tanh(0.5 * r_hat[is_finite]))  # the logistic function, without overflow
        rewards[is_finite] = np.minimum(gated, np.percentile(gated, percentile)) * valid
    return rewards


def chain_curiosity(step_rewards: ArrayLike, *, total: bool = False) -> float:
    """R_cur(τ): the mean of R_cur(t) over a chain, or the sum (eq:ccrft_reward). An empty chain gives 0.

    The paper defines only the step's reward. The mean matches R_coh, and a sum would reward every further call.
    """
    rewards = np.asarray(step_rewards, dtype=float)
    if rewards.size == 0:
        return 0.0
    return float(rewards.sum() if total else rewards.mean())
