"""Pixel TTRL: neighbourhood value, baseline, return, advantage and loss (eq:value_pen, eq:ttrl_clean_loss)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from pixelis.equations.ema import ema
from pixelis.equations.zscore import mean_and_std, zscore_with

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]


class SummaryStatistics(NamedTuple):
    """Mean and spread of curiosity and coherence summaries over the memory, for z-scoring."""

    cur_mean: float
    cur_std: float
    coh_mean: float
    coh_std: float


class Baseline(NamedTuple):
    """The current b(q); None before the first query, whose value it then takes."""

    value: float | None = None


def summary_statistics(curiosity: ArrayLike, coherence: ArrayLike) -> SummaryStatistics:
    """The z-scoring statistics of a memory's summaries (eq:value_pen); NaN is ignored.

    No entries: spread 0, which makes every z-score 0. A spread of 1 would treat raw values as z-scores.
    """
    cur, coh = (mean_and_std(column) for column in (curiosity, coherence))
    return SummaryStatistics(cur.mean, cur.std, coh.mean, coh.std)


def standardise_summaries(
    curiosity: ArrayLike, coherence: ArrayLike, statistics: SummaryStatistics
) -> tuple[Floats, Floats]:
    """Both summaries as z-scores over the memory, so that Cur + Coh adds comparable values (supp:ttrl_loss_clean).

    0 if there is no spread, or a summary is NaN.
    """
    stats = statistics
    return _z(curiosity, stats.cur_mean, stats.cur_std), _z(coherence, stats.coh_mean, stats.coh_std)


def trace_value(curiosity: ArrayLike, coherence: ArrayLike, statistics: SummaryStatistics) -> Floats:
    """v(h) = sigmoid(z(cur) + z(coh)) in (0, 1), so that a value never changes the sign of an advantage.

    The paper says only that v is an EMA over curiosity and coherence (eq:value_pen); this form is ours. A spread of 0
    or a NaN summary gives z = 0.
    """
    cur, coh = standardise_summaries(curiosity, coherence, statistics)
    return np.asarray(np.clip(expit(cur + coh), 1e-9, 1.0 - 1e-9))  # the open interval for every input


def neighbourhood_value(values: ArrayLike) -> float:
    """v-bar(N(q)): mean of v(h) over the neighbourhood (eq:value_pen).

    NaN values are ignored. No neighbours: 0.5, which is sigmoid(0).
    """
    v = np.asarray(values, dtype=np.float64).ravel()
    v = v[np.isfinite(v)]
    return float(v.mean()) if v.size else 0.5


def baseline_step(
    baseline: Baseline,
    *,
    returns: ArrayLike,
    value: float,
    kind: Literal["return", "literal"] = "return",
    rho: float = 0.9,
) -> Baseline:
    """Next b(q) = rho b + (1 - rho) x (supp:ttrl_loss_clean).

    `literal` follows the paper: x is the neighbourhood's value v-bar, which does not depend on the size of returns.
    `return`, the default: x is the mean return of the query's rollouts, which centres the advantage. The first x
    becomes the baseline. If x is not finite, or there are no returns, the baseline does not change.
    """
    r = np.asarray(returns, dtype=np.float64).ravel()
    x = value if kind == "literal" else (float(r.mean()) if r.size else np.nan)
    return Baseline(ema(baseline.value, float(x), rho=rho))


def rollout_return(
    agrees: ArrayLike, similarity: ArrayLike, penalty: ArrayLike, *, kappa: float = 1.0, lambda_pen: float = 1.0
) -> Floats:
    """r(tau) = 1{ans = a-hat} + kappa Sim_behav(tau, tau*) - lambda_pen Pen(tau) (supp:ttrl_loss_clean).

    kappa and lambda_pen are ours: Pen already has its own weights, and with kappa = 1 the exemplar's behaviour counts
    as much as the answer. Without an exemplar the similarity is NaN, and so is the return.
    """
    if kappa < 0.0 or lambda_pen < 0.0:
        raise ValueError(f"kappa and lambda_pen are 0 or more, got {kappa} and {lambda_pen}")
    y, sim, pen = (np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (agrees, similarity, penalty))
    if not y.shape == sim.shape == pen.shape:
        raise ValueError(f"{y.size} agreements, {sim.size} similarities, {pen.size} penalties: expected one of each")
    return y + kappa * sim - lambda_pen * pen


def advantage(returns: ArrayLike, *, baseline: float, value: float) -> Floats:
    """A(tau, q) = v-bar (r - b) (supp:ttrl_loss_clean); with baseline 0 it is the main text's form (eq:ttrl_obj)."""
    return value * (np.asarray(returns, dtype=np.float64) - baseline)


def normalise_advantages(
    advantages: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    centre: bool = False,
    floor: float = 0.1,
) -> Floats:
    """Advantages over their root mean square within the batch (supp:ttrl_loss_clean, practical notes).

    Callers pass r - b and multiply by v-bar afterwards: in a batch with one query v-bar would otherwise be part of the
    scale and cancel. r is already centred by b: subtracting the batch mean as well would punish the weaker of two good
    rollouts, so it is optional. The divisor is at least `floor`, so that advantages stay small if returns hardly
    differ. `weights` weight each rollout in these means (default 1). Rollouts of abstained queries (`mask` 0), and
    those whose advantage is NaN or infinite, get 0 and do not count in the scale.
    """
    A = np.asarray(advantages, dtype=np.float64)
    m = np.isfinite(A) if mask is None else np.asarray(mask, dtype=bool) & np.isfinite(A)
    if not m.any():
        return np.zeros_like(A)
    w = np.ones_like(A) if weights is None else np.asarray(weights, dtype=np.float64)
    centred = A - (np.average(A[m], weights=w[m]) if centre else 0.0)
    scale = float(np.sqrt(np.average(centred[m] ** 2, weights=w[m])))
    return np.where(m, centred / max(scale, floor), 0.0)


def ttrl_loss(
    token_logprobs: Tensor,
    token_mask: Tensor,
    advantages: Tensor,
    m: Tensor,
    kl_tok: Tensor,
    *,
    beta: float | Tensor,
    over_tokens: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """-m(q) mean over rollouts of A log pi(tau), plus beta KL_tok(pi || pi_EMA) (eq:ttrl_clean_loss).

    `token_logprobs` (N, L) of the sampled tokens, `token_mask` (N, L) is 0 on prompts, observations and padding;
    log pi(tau) is their sum. With their mean a long rollout weighs no more than a short one, and beta weighs nats per
    token against nats per token. `advantages` (N,) and the abstention masks `m`, (N,) or one number, pass no gradient.
    With m = 0 everywhere, or without rollouts, only the KL term is left: an abstained rollout's advantage may be NaN,
    as it is without an exemplar. `kl_tok` is in nats per token.
    """
    if token_logprobs.shape != token_mask.shape:
        raise ValueError(
            f"log-probabilities {tuple(token_logprobs.shape)} and their mask {tuple(token_mask.shape)} differ in shape"
        )
    if advantages.shape != token_logprobs.shape[:1]:
        raise ValueError(f"{token_logprobs.shape[0]} rollouts, but {advantages.numel()} advantages: expected one each")
    if m.ndim and m.shape != advantages.shape:
        raise ValueError(
            f"abstention masks {tuple(m.shape)} for {advantages.numel()} rollouts: expected one or one each"
        )
    # masked_fill, not a product: a masked position may hold -inf or NaN, and 0 times that is NaN
    log_pi = token_logprobs.masked_fill(token_mask == 0, 0.0).sum(dim=1)  # (N,)
    if over_tokens == "mean":
        log_pi = log_pi / (token_mask != 0).sum(dim=1).clamp(min=1)
    weight = (m * advantages.masked_fill(m == 0, 0.0)).detach()
    # the mean is over all N, abstained ones included, as the pseudo-code has it
    policy = -(weight * log_pi.masked_fill(weight == 0, 0.0)).sum() / max(1, log_pi.shape[0])
    return policy + beta * kl_tok


def _z(x: ArrayLike, mean: float, std: float) -> Floats:
    return np.nan_to_num(zscore_with(x, mean, std), nan=0.0, posinf=0.0, neginf=0.0)
