"""The successful trajectory that the policy is pulled towards (subsec:ttrl; supp:ttrl_loss_clean, pseudo-code)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Exemplar(NamedTuple):
    """The chosen rollout, and the score of each: the lowest wins; infinity marks rollouts that are not successful."""

    rollout: int | None
    scores: NDArray[np.float64]


def choose_exemplar(
    lengths: ArrayLike,
    curiosity: ArrayLike,
    coherence: ArrayLike,
    visfid: ArrayLike,
    *,
    successful: ArrayLike | None = None,
    eta: float = 0.5,
    xi: float = 2.0,
) -> Exemplar:
    """tau* = argmin |tau| - eta (Cur + Coh) - xi VisFid over the successful set (supp:ttrl_loss_clean).

    The paper gives neither weight. Ours are in steps: a standard deviation of Cur + Coh is worth half a step, full
    fidelity two. A NaN or infinite summary counts 0; such a length raises ValueError. Ties go to the shorter chain,
    then to the first. Without successful rollouts, rollout is None.
    """
    columns = [np.atleast_1d(np.asarray(c, dtype=np.float64)) for c in (lengths, curiosity, coherence, visfid)]
    n = columns[0].size
    is_successful = np.ones(n, dtype=bool) if successful is None else np.atleast_1d(np.asarray(successful, dtype=bool))
    if any(c.shape != (n,) for c in [*columns, is_successful]):
        raise ValueError(f"{n} lengths, but other numbers of summaries or marks: expected one of each for each rollout")
    if not np.isfinite(columns[0]).all():
        raise ValueError(f"chain lengths {columns[0].tolist()}: expected a number of steps for each rollout")
    size, cur, coh, fidelity = (np.nan_to_num(c, nan=0.0, posinf=0.0, neginf=0.0) for c in columns)
    scores = np.where(is_successful, size - eta * (cur + coh) - xi * fidelity, np.inf)
    if not is_successful.any():
        return Exemplar(None, scores)
    return Exemplar(int(np.lexsort((size, np.round(scores, 9)))[0]), scores)
