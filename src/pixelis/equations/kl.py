"""Token KL between a policy and its reference, exact from logits and sampled (subsec:ccrft, supp:ttrl_loss_clean)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def per_token_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """KL(π_θ ‖ π_ref) in nats at each position, exact: (..., V) and (..., V) give (...) (supp:ttrl_loss_clean).

    A token that the policy cannot sample (logit −∞) adds nothing; one that only the reference cannot sample makes the
    KL infinite, which the controller ignores. The reference passes no gradient.
    """
    if logits.shape != reference_logits.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)} and {tuple(reference_logits.shape)}: expected the same vocabulary"
        )
    log_p, log_q = logits.log_softmax(-1), reference_logits.detach().log_softmax(-1)
    is_banned = torch.isneginf(log_p)
    # filled before the product: 0 · (−∞ + ∞) is NaN, and so would be its gradient
    return (log_p.exp() * (log_p.masked_fill(is_banned, 0.0) - log_q.masked_fill(is_banned, 0.0))).sum(-1)


def token_kl(logits: Tensor, reference_logits: Tensor, mask: Tensor) -> Tensor:
    """KL_tok: exact KL averaged over the sampled positions (supp:ttrl_loss_clean), in nats per token.

    `mask` (...) is True on thought, action and answer tokens and False on observations and padding, which may hold
    NaN. An all-zero mask gives 0.
    """
    if logits.shape[:-1] != mask.shape:
        raise ValueError(f"logits are {tuple(logits.shape)} and the mask {tuple(mask.shape)}: expected one flag each")
    if not bool(mask.any()):
        return logits[:0].sum()
    return per_token_kl(logits[mask], reference_logits[mask]).mean()


def sampled_kl(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor, *, estimator: Estimator = "k3") -> Tensor:
    """KL(π_θ ‖ π_ref) from the log-probabilities of tokens that π_θ sampled, averaged over the mask (subsec:ccrft).

    With r = log π_θ − log π_ref: k1 = r is unbiased and may be negative; k2 = r²/2 is biased and low in variance;
    k3 = e^{−r} − 1 + r is unbiased and never negative, the form that GRPO uses. For cases without logits, such
    as a rollout server. An all-zero mask gives 0.
    """
    if not log_probs.shape == reference_log_probs.shape == mask.shape:
        raise ValueError(
            f"log-probabilities are {tuple(log_probs.shape)} and {tuple(reference_log_probs.shape)}, "
            f"the mask {tuple(mask.shape)}: expected the same shape"
        )
    if not bool(mask.any()):
        return log_probs[:0].sum()
    r = log_probs[mask] - reference_log_probs[mask].detach()
    if estimator == "k1":
        return r.mean()
    if estimator == "k2":
        return (0.5 * r**2).mean()
    if estimator == "k3":
        return (torch.expm1(-r) + r).mean()
    raise ValueError(f"estimator is {estimator!r}, expected k1, k2 or k3")


def drift_allowed(kl: float, *, limit: float = 0.2) -> bool:
    """The hard guard: an update is refused if the KL to the start policy exceeds 0.2 (supp:et_dynamics), or is NaN."""
    return math.isfinite(kl) and kl <= limit
