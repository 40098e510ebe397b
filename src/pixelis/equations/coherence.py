"""Adjacent-step coherence R_coh and the three baseline priors (supp:structure_priors, subsec:ccrft)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.core.geometry import UnitBox
from pixelis.equations.embedding import CosineStatistics, row_cosines
from pixelis.equations.zscore import zscore_with

WHOLE_FRAME: UnitBox = (0.0, 0.0, 1.0, 1.0)
WHOLE_CLIP: tuple[float, float] = (0.0, 1.0)


def adjacent_cosines(embeddings: ArrayLike) -> NDArray[np.float64]:
    """cos(E_{t+1}, E_t) of a chain of step embeddings (T, d), giving (T−1,) (supp:structure_priors).

    Empty for T = 0 and T = 1. An embedding of length 0 has cosine 0 with everything. `process.chain_cosines` computes
    many chains at once.
    """
    E = _chain(embeddings)
    return row_cosines(E[1:], E[:-1])


def zscore_cosines(cosines: ArrayLike, statistics: CosineStatistics) -> NDArray[np.float64]:
    """Cosines standardised with fixed statistics of their task family (supp:et_dynamics).

    The statistics come from the checkpoint, for training and test time alike. A spread of 0 gives zeros; NaN stays NaN.
    """
    return zscore_with(cosines, statistics.mean, statistics.std)


def coherence(embeddings: ArrayLike, statistics: CosineStatistics, *, total: bool = False) -> float:
    """R_coh: the mean of z(cos(E_{t+1}, E_t)) over T−1 (supp:structure_priors), or their sum (subsec:ccrft).

    The paper has both; the mean is the default because the sum rewards length. T = 0 and T = 1 give 0. A chain that
    contains NaN gives NaN, which the batch z-scoring of R(τ) turns into the batch's mean.
    """
    return _average(zscore_cosines(adjacent_cosines(embeddings), statistics), total=total)


def l2_smoothness(arguments: ArrayLike) -> float:
    """R_L2 = −mean ‖a_{t+1} − a_t‖₂² over argument vectors (T, k) (supp:structure_priors, A). T < 2 gives 0."""
    steps = np.diff(_chain(arguments), axis=0)
    return -_average((steps**2).sum(axis=1))


def tv_smoothness(arguments: ArrayLike, *, epsilon: float = 0.1) -> float:
    """R_TV = −mean(‖a_{t+1} − a_t‖₁ + ε·‖a_{t+1} − a_t‖₂) (supp:structure_priors, B). T < 2 gives 0.

    The paper names no ε; with 0.1 the second term is a small correction, as its place in the formula suggests.
    """
    steps = np.diff(_chain(arguments), axis=0)
    return -_average(np.abs(steps).sum(axis=1) + epsilon * np.linalg.norm(steps, axis=1))


def cpc_alignment(embeddings: ArrayLike, others: ArrayLike | None = None, *, temperature: float = 0.1) -> float:
    """R_CPC: mean log-probability that E_{t+1} picks E_t among the steps of the batch (supp:structure_priors, C).

    `others` (M, d) are the steps of the batch's other chains. The candidates 𝒩_t are all steps of the batch but E_{t+1}
    itself, so that E_t is one of them, as in InfoNCE, and the value is at most 0. T < 2 gives 0. The paper names no
    temperature; 0.1 is usual for unit vectors.
    """
    E = _chain(embeddings)
    if len(E) < 2:
        return 0.0
    batch = E if others is None or np.size(others) == 0 else np.concatenate([E, _chain(others)])
    logits = E[1:] @ batch.T / temperature  # (T-1, T+M)
    rows = np.arange(len(E) - 1)
    positive = logits[rows, rows]
    logits[rows, rows + 1] = -np.inf  # a step is not a candidate for itself
    peak = logits.max(axis=1)
    return _average(positive - peak - np.log(np.exp(logits - peak[:, None]).sum(axis=1)))


def argument_vector(
    box_unit: UnitBox | None = None, span_unit: tuple[float, float] | None = None
) -> NDArray[np.float64]:
    """a_t for L2 and TV: where a call looks, (x0, y0, x1, y1, start, end), all in 0 to 1 (supp:structure_priors).

    The paper says only "concat of typed tool parameters". Every tool acts on a region and a time span; a call that
    names none acts on the whole frame or clip. Text has no distance and is omitted.
    """
    return np.array([*(box_unit or WHOLE_FRAME), *(span_unit or WHOLE_CLIP)], dtype=float)


def _chain(steps: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(steps, dtype=float)
    if array.ndim == 1 and array.size == 0:
        return array.reshape(0, 1)
    if array.ndim != 2:
        raise ValueError(f"a chain is a (T, d) array, this one has shape {array.shape}")
    return array


def _average(values: NDArray[np.float64], *, total: bool = False) -> float:
    if values.size == 0:
        return 0.0
    return float(values.sum() if total else values.mean())
