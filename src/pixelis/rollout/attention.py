"""Attention of one new token a row over all that the rows hold, and over what groups of rows have in common.

Everything has the heads of keys outermost, (kv, rows, heads / kv, …), as the cache has it: where the rows of a group
lie beside each other, what is computed by group and what is computed by row are views of one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pixelis.policy.cache import RowCache

WORTH_SHARING = 16
"""Tokens of a prompt under which it is not worth reading apart."""
ALONE = 9000
"""Numbers of a matrix up to which OpenBLAS multiplies it with a vector on one thread (its limit is 9,216)."""


class Shared(NamedTuple):
    """The prompts that rows have in common, once each: most of what attention costs is reading keys and values."""

    length: int
    """Tokens from the beginning that every row shares with its group."""
    members: Tensor
    """(G, m) rows of each group, filled up with any row."""
    back: Tensor
    """(B,) where a row lies among the members, counted through."""
    in_order: bool
    """Whether rows lie as the members do, so that nothing is to be gathered: one group, or none that has forked."""
    keys: list[Tensor]
    values: list[Tensor]
    """(kv · G, length, size) of each layer."""


def shared(groups: Sequence[int], length: int, cache: RowCache) -> Shared | None:
    """What rows with these group numbers share; None where too few share anything to be worth it."""
    own: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        own.setdefault(group, []).append(row)
    if len(groups) < 2 * len(own) or length < WORTH_SHARING:
        return None
    most = max(len(rows) for rows in own.values())
    members = torch.tensor([rows + [rows[0]] * (most - len(rows)) for rows in own.values()])
    back = torch.empty(len(groups), dtype=torch.long)
    for number, rows in enumerate(own.values()):
        back[rows] = number * most + torch.arange(len(rows))
    in_order = members.numel() == len(groups) and bool((back == torch.arange(len(groups))).all())
    device = cache.lengths.device
    first = members[:, 0].to(device)
    keys, values = (
        [store[first, :, :length].transpose(0, 1).flatten(0, 1) for store in part]
        for part in (cache.keys, cache.values)
    )
    return Shared(length, members.to(device), back.to(device), in_order, keys, values)


def attended(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """(kv, B, h, size) of queries of that shape over keys and values (kv, B, reach, size); bias is (B, 1, reach)."""
    scores = scored(queries, keys)
    if bias is not None:
        scores += bias
    return weighed(scores.softmax(-1), values)


def attended_in_common(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, common: Shared, layer: int
) -> Tensor:
    """The same, reading what a group shares once for all its rows."""
    kv, _, heads, size = queries.shape
    groups, most = common.members.shape
    cut = common.length

    def together(part: Tensor) -> Tensor:  # (kv, B, h, n) to (kv · G, m · h, n), n in one piece
        gathered = part if common.in_order else part[:, common.members.flatten()]
        return gathered.view(kv * groups, most * heads, -1)

    first = torch.bmm(together(queries), common.keys[layer].transpose(1, 2)).view(kv, groups * most, heads, cut)
    if not common.in_order:
        first = first[:, common.back]
    own = scored(queries, keys[:, :, cut:])
    if bias is not None:
        own += bias[..., cut:]
    weights = torch.cat([first, own], dim=-1).softmax(-1)
    seen = weighed(weights[..., cut:], values[:, :, cut:])
    if common.in_order:
        seen.view(kv * groups, most * heads, size).baddbmm_(together(weights)[..., :cut], common.values[layer])
        return seen
    read = torch.bmm(together(weights[..., :cut]), common.values[layer]).view(kv, groups * most, heads, size)
    return seen.add_(read[:, common.back])


def scored(queries: Tensor, keys: Tensor) -> Tensor:
    """(kv, B, h, reach) of queries (kv, B, h, size) over keys (kv, B, reach, size), some rows of a larger store."""
    kv, rows, heads, size = queries.shape
    reach = keys.shape[2]
    if not_for_numpy(queries):
        return by_head(queries, keys.transpose(2, 3))
    out = np.empty((kv, rows, heads, reach), dtype=np.float32)
    asked, held = queries.numpy(), keys.numpy()[:, :, None]
    for part in pieces(reach, size):
        np.matvec(held[..., part, :], asked, out=out[..., part])
    return torch.from_numpy(out)


def weighed(weights: Tensor, values: Tensor) -> Tensor:
    """(kv, B, h, size) sums of values (kv, B, reach, size) by weights (kv, B, h, reach)."""
    if not_for_numpy(weights):
        return by_head(weights, values)
    given, held = weights.numpy(), values.numpy()[:, :, None]
    first, *others = pieces(*values.shape[2:])
    out = np.vecmat(given[..., first], held[..., first, :])
    for part in others:
        out += np.vecmat(given[..., part], held[..., part, :])
    return torch.from_numpy(out)


def not_for_numpy(part: Tensor) -> bool:
    """Products of a few queries with their row's keys are matrices times vectors, which torch has no batch of: `bmm`
    packs every matrix before it multiplies, and takes half as long again as numpy, which does not."""
    return part.device.type != "cpu" or part.dtype != torch.float32


def pieces(reach: int, size: int) -> list[slice]:
    """Cells in pieces that OpenBLAS multiplies on the thread that asks: waking others for them takes longer."""
    step = max(ALONE // size, 1)
    return [slice(start, min(start + step, reach)) for start in range(0, reach, step)] or [slice(0, 0)]


def by_head(left: Tensor, right: Tensor) -> Tensor:
    """(kv, B, h, n) products of (kv, B, h, k) and (kv, B, k, n)."""
    out = left.new_empty((*left.shape[:3], right.shape[3]))
    for head in range(len(left)):  # a slice of rows cannot be seen as one batch over all heads without a copy
        torch.bmm(left[head], right[head], out=out[head])
    return out
