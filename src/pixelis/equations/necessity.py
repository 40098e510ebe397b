"""Tool necessity: the effect of removing a tool, and the task x tool matrix (supp:tool_necessity)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Effect(NamedTuple):
    """Tool necessity on the items that need the tool."""

    delta: float
    """m_full - m_without: positive if the tool helps; NaN on an empty subset, which is `not run`."""
    full: float
    without: float
    items: int


class Importance(NamedTuple):
    """I[t, u]: the effect of tool u on the items of task t."""

    tasks: tuple[str, ...]
    tools: tuple[str, ...]
    delta: Floats
    """(tasks, tools); NaN where no item of the task needs the tool."""
    items: NDArray[np.int64]
    """(tasks, tools): number of items of each cell."""


def seg_required(iou: float, *, answer_changes: bool, threshold: float = 0.5) -> bool:
    """SEG-required: localised with IoU >= 0.5, and dilating or eroding the footprint by 8 px changes the answer
    (supp:tool_necessity). NaN, here and below, is not evidence of need.
    """
    return iou >= threshold and answer_changes


def trk_required(hota: float, *, shuffling_degrades: bool, threshold: float = 0.15) -> bool:
    """TRK-required: linked with HOTA >= the protocol's 0.15 (runlatency), and shuffled identities do worse
    (supp:tool_necessity).
    """
    return hota >= threshold and shuffling_degrades


def read_required(anls: float, *, masking_changes: bool, threshold: float = 0.7) -> bool:
    """READ-required: the answer overlaps a reference span with ANLS >= 0.7, and masking its characters changes it
    (supp:tool_necessity).
    """
    return anls >= threshold and masking_changes


def temp_required(tiou: float, *, random_window_flips: bool, threshold: float = 0.5) -> bool:
    """TEMP-required: a segment with IoU >= 0.5 is selected, and a random window of its length flips the decision
    (supp:tool_necessity).
    """
    return tiou >= threshold and random_window_flips


def necessity_effect(full: ArrayLike, without: ArrayLike, needed: ArrayLike | None = None) -> Effect:
    """Delta m_u = m_full(D_u) - m_without(D_u) (supp:tool_necessity).

    `full` and `without` hold the metric of the same items with all tools and without u: (n,), or (seeds, n).
    `needed` (n,) marks D_u; without it all items count. An empty subset gives NaN with 0 items. An item of the subset
    without a score (NaN) makes the effect NaN: the two means would not be over the same items.
    """
    f, w = _check_paired(full, without)
    subset = _subset_mask(needed, f.shape[1])
    if not subset.any():
        return Effect(np.nan, np.nan, np.nan, 0)
    m_full, m_without = float(f[:, subset].mean()), float(w[:, subset].mean())
    return Effect(m_full - m_without, m_full, m_without, int(subset.sum()))


def score_change(full: ArrayLike, without: ArrayLike) -> float:
    """Absolute change on the whole split, negative if the tool helps (tab:supp_single_tool_ablation)."""
    return -necessity_effect(full, without).delta


def importance_matrix(
    full: ArrayLike,
    without: Mapping[str, ArrayLike],
    needed: Mapping[str, ArrayLike],
    tasks: Sequence[str],
) -> Importance:
    """I[t, u] = Delta m_u on the items of task t (supp:tool_necessity), tasks and tools in order of appearance.

    `without[u]` and `needed[u]` are as for `necessity_effect`; a tool that `needed` does not name counts everywhere.
    """
    names, tools = tuple(dict.fromkeys(tasks)), tuple(without)
    task = np.array(tasks, dtype=object)
    delta, items = np.full((len(names), len(tools)), np.nan), np.zeros((len(names), len(tools)), dtype=np.int64)
    for u, tool in enumerate(tools):
        subset = _subset_mask(needed.get(tool), len(task))
        for t, name in enumerate(names):
            effect = necessity_effect(full, without[tool], subset & (task == name))
            delta[t, u], items[t, u] = effect.delta, effect.items
    return Importance(names, tools, delta, items)


def _check_paired(full: ArrayLike, without: ArrayLike) -> tuple[Floats, Floats]:
    f, w = (np.atleast_2d(np.asarray(x, dtype=np.float64)) for x in (full, without))
    if f.shape != w.shape:
        raise ValueError(f"scores of all tools {f.shape}, without one {w.shape}: expected the same items and seeds")
    return f, w


def _subset_mask(needed: ArrayLike | None, n: int) -> NDArray[np.bool_]:
    mask = np.ones(n, dtype=bool) if needed is None else np.asarray(needed, dtype=bool)
    if mask.shape != (n,):
        raise ValueError(f"{n} items, but {mask.size} marks of need: expected one for each item")
    return mask
