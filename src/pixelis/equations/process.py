"""Process metrics: RaPR, RaCPR, run-to-run stability, action entropy, re-execution (subsec:eval_setup).

Many traces are scored at once from flat arrays: the concatenated steps of all traces, and the number of steps of each
in `lengths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.equations.embedding import ACTIONS, row_cosines
from pixelis.equations.zscore import zscore_with

Floats = NDArray[np.float64]


class Racpr(NamedTuple):
    """RaCPR of n traces."""

    values: Floats
    """(n,) the best q(C); 0 without a qualified chain."""
    qualified: NDArray[np.bool_]
    """(n,) whether there is a qualified chain; short traces cannot have one."""
    chain_length: NDArray[np.int64]
    """(n,) |C| of the best chain in gates; |C| gates connect |C| + 1 steps."""


class ProcessSummary(NamedTuple):
    """Means over traces, times 100, as the paper prints them."""

    rapr: float
    racpr: float
    qualified: float
    """Share of traces with a qualified chain."""
    traces: int


class ActionEntropy(NamedTuple):
    """AE in nats, and divided by the log of the number of tools: 0 for one tool only, 1 for equal shares."""

    nats: float
    normalised: float


def chain_cosines(embeddings: ArrayLike, lengths: ArrayLike) -> Floats:
    """c_t = cos(E_ext(t), E_ext(t-1)) for every step; NaN at the first of each trace (subsec:eval_setup).

    `embeddings` (S, d) in any float type. A vector of length 0 has cosine 0 with everything; NaN or infinity gives NaN,
    which closes the gate.
    """
    E = np.asarray(embeddings)
    first = _first_steps(lengths, len(E))
    if E.ndim != 2:
        raise ValueError(f"embeddings must be (steps, dimensions), got shape {E.shape}")
    cosines = np.full(len(E), np.nan)
    compute_dtype = np.float32 if E.dtype.itemsize <= 4 else np.float64
    block = 4096  # the converted copy of half-precision embeddings fits the processor's cache
    for start in range(1, len(E), block):
        rows: NDArray[Any] = E[start - 1 : start + block].astype(compute_dtype)  # block + 1 rows
        cosines[start : start + block] = row_cosines(rows[1:], rows[:-1])
    cosines[first] = np.nan
    return cosines


def rapr(valid: ArrayLike, lengths: ArrayLike | None = None) -> Floats:
    """RaPR(h) = (1/T) sum u_t of each trace, in [0, 1] (subsec:eval_setup).

    `valid` (S,) holds u_t of all steps, 0 or 1; without `lengths` they are one trace. A step whose validity is NaN
    (not verified) is not valid. A trace without steps: 0.
    """
    u = _is_valid(valid)
    T = np.array([u.size]) if lengths is None else np.asarray(lengths, dtype=np.int64)
    _first_steps(T, u.size)
    owner = np.repeat(np.arange(T.size), T)
    return np.bincount(owner, weights=u, minlength=T.size) / np.maximum(T, 1)


def racpr(
    valid: ArrayLike,
    cosines: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    mean: ArrayLike,
    std: ArrayLike,
    tau: float = 0.30,
    l_min: int = 3,
    l_0: int = 6,
    alpha_len: float = 0.02,
    alpha_inv: float = 0.30,
) -> Racpr:
    """RaCPR(h) = max over qualified chains of q(C) (subsec:eval_setup, tab:hp-rcpr).

    `cosines` (S,) as `chain_cosines` gives them; `mean` and `std` are the task's, one number or one for each trace.
    g_t = 1 where u_{t-1} = u_t = 1 and z(c_t) >= tau; runs of g_t = 1 with |C| >= l_min are the chains C;
    q(C) = mean [z - tau]+ - alpha_len (|C| - L_0)+ / |C| - alpha_inv (invalid in C) / |C|. The gate excludes
    invalid steps from chains, so the last term is 0 wherever the formula is followed.
    Without a qualified chain (always for T = 0 and T = 1): 0. A spread of 0 gives z = 0; a NaN or infinite cosine
    closes the gate, and so does a NaN validity.
    """
    u = _is_valid(valid)
    c = np.asarray(cosines, dtype=np.float64).ravel()
    T = np.array([u.size]) if lengths is None else np.asarray(lengths, dtype=np.int64)
    if c.size != u.size:
        raise ValueError(f"{u.size} validity marks, but {c.size} cosines: expected one of each for each step")
    first = _first_steps(T, u.size)
    owner = np.repeat(np.arange(T.size), T)  # (S,) trace of each step
    z = zscore_with(c, np.broadcast_to(mean, T.shape)[owner], np.broadcast_to(std, T.shape)[owner])
    previous_valid = np.concatenate([[False], u[:-1]])[: u.size]
    gate = u & previous_valid & np.isfinite(z) & (z >= tau)
    gate[first] = False
    starts = np.flatnonzero(gate & ~np.concatenate([[False], gate[:-1]])[: gate.size])
    ends = np.flatnonzero(gate & ~np.concatenate([gate[1:], [False]])) + 1
    size = ends - starts  # |C_k|
    long_enough = size >= l_min
    starts, ends, size = starts[long_enough], ends[long_enough], size[long_enough]
    values, chain_length = np.zeros(T.size), np.zeros(T.size, dtype=np.int64)
    if size.size:
        q = _chain_sums(np.where(gate, z - tau, 0.0), starts, ends) / size
        q -= alpha_len * np.maximum(size - l_0, 0) / size + alpha_inv * _chain_sums(~u, starts, ends) / size
        order = np.lexsort((q, owner[starts]))  # the best of each trace comes last
        best = order[np.append(np.diff(owner[starts][order]) > 0, True)]
        values[owner[starts[best]]], chain_length[owner[starts[best]]] = q[best], size[best]
    return Racpr(values, chain_length > 0, chain_length)


def process_summary(rapr_values: ArrayLike, racpr_values: Racpr) -> ProcessSummary:
    """Means over traces x 100, and the share with a qualified chain (subsec:eval_setup); no traces: zeros."""
    p = np.asarray(rapr_values, dtype=np.float64)
    if p.size != racpr_values.values.size:
        raise ValueError(f"RaPR of {p.size} traces, but RaCPR of {racpr_values.values.size}: expected the same traces")
    if not p.size:
        return ProcessSummary(0.0, 0.0, 0.0, 0)
    rapr_mean, racpr_mean, share = (100.0 * float(np.mean(x)) for x in (p, racpr_values.values, racpr_values.qualified))
    return ProcessSummary(rapr=rapr_mean, racpr=racpr_mean, qualified=share, traces=p.size)


def run_to_run_stability(
    queries: Sequence[Sequence[Any]], *, similarity: Callable[[Any, Any], float] | None = None
) -> float:
    """RCS: similarity of the chains of several runs on one query, averaged over pairs, then over queries (subsec:rq1).

    The paper gives no formula; ours is the similarity of action names (1 - edit distance / longer length), or any
    `similarity` in [0, 1], such as Sim_behav. Queries with fewer than two runs are skipped; raises ValueError if none
    is left.
    """
    from pixelis.equations.behaviour import name_similarity

    compare = similarity or name_similarity
    means = [float(np.mean([compare(a, b) for a, b in combinations(runs, 2)])) for runs in queries if len(runs) > 1]
    if not means:
        raise ValueError("run-to-run stability needs a query with at least two runs")
    return float(np.mean(means))


def action_entropy(actions: Sequence[str], *, tools: Sequence[str] = ACTIONS) -> ActionEntropy:
    """AE: entropy of the tools called (subsec:rq1). No actions: 0. A name outside `tools` counts as a further tool."""
    counts = Counter(actions)
    nats = share_entropy(counts.values())
    kinds = len(set(tools) | set(counts))
    return ActionEntropy(nats, nats / log(kinds) if kinds > 1 else 0.0)


def share_entropy(shares: Iterable[float]) -> float:
    """Entropy in nats of numbers or shares of calls by tool (subsec:rq1); 0 where there are none."""
    p = np.array([share for share in shares if share > 0.0], dtype=np.float64)
    return max(0.0, float(-(p / p.sum() * np.log(p / p.sum())).sum())) if p.size else 0.0


def plan_reexecution(correct: ArrayLike) -> Floats:
    """PRC: share of perturbations under which the replayed plan still gives the right answer, per trace (subsec:rq2).

    `correct` (n, P): 1, 0, or NaN if a perturbation does not apply (frame jitter on a still image). A trace to which
    none applies gets NaN: it was not run.
    """
    hits = np.atleast_2d(np.asarray(correct, dtype=np.float64))
    num_applicable = np.isfinite(hits).sum(axis=1)
    return np.where(num_applicable > 0, np.nansum(hits, axis=1) / np.maximum(num_applicable, 1), np.nan)


def _is_valid(valid: ArrayLike) -> NDArray[np.bool_]:
    return np.asarray(valid, dtype=np.float64).ravel() > 0.5  # NaN compares False


def _chain_sums(values: NDArray[Any], starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Floats:
    """The sum from each start up to its end."""
    # not as differences of one cumulative sum: huge z-scores would ruin the precision of every later trace
    bounds = np.column_stack([starts, ends]).ravel()  # chains and the gaps between them, in turn
    return np.add.reduceat(np.append(values, 0.0), bounds)[::2]


def _first_steps(lengths: ArrayLike, steps: int) -> NDArray[np.int64]:
    """Index of the first step of every trace that has one; ValueError if the lengths do not add up."""
    T = np.asarray(lengths, dtype=np.int64)
    if T.ndim != 1 or np.any(T < 0) or int(T.sum()) != steps:
        raise ValueError(f"trace lengths sum to {int(T.sum())}, but there are {steps} steps")
    return (np.cumsum(T) - T)[T > 0]
