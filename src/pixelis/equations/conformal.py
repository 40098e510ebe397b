"""Split conformal sets over answers, with the finite-sample quantile (subsec:ttrl, consensus and abstention)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import ceil, inf

import numpy as np
from numpy.typing import ArrayLike, NDArray


def nonconformity(share: ArrayLike) -> NDArray[np.float64]:
    """1 - calibrated vote share of an answer: 0 unanimous, 1 for an answer that no rollout gave (subsec:ttrl)."""
    return 1.0 - np.asarray(share, dtype=np.float64)


def conformal_quantile(scores: ArrayLike, *, alpha: float = 0.1) -> float:
    """The ceil((n+1)(1-alpha))-th smallest calibration score: its sets contain the truth with probability 1 - alpha.

    The paper does not say how the conformal set is built (subsec:ttrl, supp:ttrl_loss_clean). `scores` are the
    nonconformities of the true answers on dev-cal. With too few of them for the level
    (n + 1 < 1/alpha) the threshold is infinite: no answer can be excluded yet. NaN scores count as infinite.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"the conformal level alpha lies between 0 and 1, got {alpha}")
    sorted_scores = np.sort(np.where(np.isnan(s := np.asarray(scores, dtype=np.float64).ravel()), inf, s))
    rank = max(
        1, ceil(round((sorted_scores.size + 1) * (1.0 - alpha), 9))
    )  # 10 x 0.9 must not become 9.000000000000002
    return float(sorted_scores[rank - 1]) if rank <= sorted_scores.size else inf


def prediction_set(shares: Mapping[Hashable, float], threshold: float) -> tuple[Hashable, ...]:
    """The set C: answers whose nonconformity is at most the threshold, in the order given (supp:ttrl_loss_clean).

    No answers: ().
    """
    return tuple(answer for answer, share in shares.items() if 1.0 - share <= threshold + 1e-12)
