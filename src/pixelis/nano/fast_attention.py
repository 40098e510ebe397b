"""Attention of one new token per row over the row's cached tokens, with prompts that groups of rows share read once.

Tensors have kv heads outermost, (kv, rows, heads / kv, …), like the cache: if the rows of a group are adjacent, tensors
by group and tensors by row are views of one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pixelis.policy.kv_cache import RowCache

MIN_SHARED_TOKENS = 16
"""A shorter shared prompt is not read separately."""
SINGLE_THREAD_SIZE = 9000
"""Matrix elements up to which OpenBLAS multiplies with a vector on one thread (its limit is 9,216)."""


class SharedPrefix(NamedTuple):
    """The prompts that rows share, once each: reading keys and values is most of the cost of attention."""

    length: int
    """Leading tokens that every row shares with its group."""
    members: Tensor
    """(G, m) rows of each group, padded with its first row."""
    inverse: Tensor
    """(B,) index of each row in the flattened members."""
    in_order: bool
    """Whether the members are the rows in order, so that no gathering is needed."""
    keys: list[Tensor]
    values: list[Tensor]
    """(kv · G, length, size) of each layer."""


def find_shared_prefix(groups: Sequence[int], length: int, cache: RowCache) -> SharedPrefix | None:
    """The prompts that rows with these group numbers share; None if too few rows share one."""
    rows_by_group: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        rows_by_group.setdefault(group, []).append(row)
    if len(groups) < 2 * len(rows_by_group) or length < MIN_SHARED_TOKENS:
        return None
    group_size = max(len(rows) for rows in rows_by_group.values())
    members = torch.tensor([rows + [rows[0]] * (group_size - len(rows)) for rows in rows_by_group.values()])
    inverse = torch.empty(len(groups), dtype=torch.long)
    for number, rows in enumerate(rows_by_group.values()):
        inverse[rows] = number * group_size + torch.arange(len(rows))
    in_order = members.numel() == len(groups) and bool((inverse == torch.arange(len(groups))).all())
    device = cache.lengths.device
    first = members[:, 0].to(device)
    members, inverse = members.to(device), inverse.to(device)
    keys = [store[first, :, :length].transpose(0, 1).flatten(0, 1) for store in cache.keys]
    values = [store[first, :, :length].transpose(0, 1).flatten(0, 1) for store in cache.values]
    return SharedPrefix(length, members, inverse, in_order, keys, values)


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """(kv, B, h, size) of queries of that shape over keys and values (kv, B, reach, size); bias is (B, 1, reach)."""
    scores = compute_scores(queries, keys)
    if bias is not None:
        scores += bias
    return weighted_sum(scores.softmax(-1), values)


def attend_shared(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, prefix: SharedPrefix, layer: int
) -> Tensor:
    """`attend`, reading shared prompts once per group."""
    kv, _, heads, size = queries.shape
    groups, group_size = prefix.members.shape
    prefix_length = prefix.length

    def by_group(part: Tensor) -> Tensor:  # (kv, B, h, n) to (kv · G, m · h, n), n in one piece
        gathered = part if prefix.in_order else part[:, prefix.members.flatten()]
        return gathered.view(kv * groups, group_size * heads, -1)

    prefix_scores = torch.bmm(by_group(queries), prefix.keys[layer].transpose(1, 2))
    prefix_scores = prefix_scores.view(kv, groups * group_size, heads, prefix_length)
    if not prefix.in_order:
        prefix_scores = prefix_scores[:, prefix.inverse]
    suffix_scores = compute_scores(queries, keys[:, :, prefix_length:])
    if bias is not None:
        suffix_scores += bias[..., prefix_length:]
    weights = torch.cat([prefix_scores, suffix_scores], dim=-1).softmax(-1)
    output = weighted_sum(weights[..., prefix_length:], values[:, :, prefix_length:])
    if prefix.in_order:
        grouped = output.view(kv * groups, group_size * heads, size)
        grouped.baddbmm_(by_group(weights)[..., :prefix_length], prefix.values[layer])
        return output
    prefix_output = torch.bmm(by_group(weights[..., :prefix_length]), prefix.values[layer])
    return output.add_(prefix_output.view(kv, groups * group_size, heads, size)[:, prefix.inverse])


def compute_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """(kv, B, h, reach) of queries (kv, B, h, size) over keys (kv, B, reach, size), a slice of a larger store."""
    kv, rows, heads, size = queries.shape
    reach = keys.shape[2]
    if needs_torch(queries):
        return matmul_by_head(queries, keys.transpose(2, 3))
    out = np.empty((kv, rows, heads, reach), dtype=np.float32)
    query_array, key_array = queries.numpy(), keys.numpy()[:, :, None]
    for part in split_cells(reach, size):
        np.matvec(key_array[..., part, :], query_array, out=out[..., part])
    return torch.from_numpy(out)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """(kv, B, h, size) sums of values (kv, B, reach, size) by weights (kv, B, h, reach)."""
    if needs_torch(weights):
        return matmul_by_head(weights, values)
    weight_array, value_array = weights.numpy(), values.numpy()[:, :, None]
    first, *others = split_cells(*values.shape[2:])
    out = np.vecmat(weight_array[..., first], value_array[..., first, :])
    for part in others:
        out += np.vecmat(weight_array[..., part], value_array[..., part, :])
    return torch.from_numpy(out)


def needs_torch(part: Tensor) -> bool:
    """Whether numpy cannot be used. It multiplies batches of matrices with vectors; torch has only `bmm`, which packs
    every matrix first and takes half as long again."""
    return part.device.type != "cpu" or part.dtype != torch.float32


def split_cells(reach: int, size: int) -> list[slice]:
    """Parts that OpenBLAS multiplies on the calling thread: waking other threads takes longer."""
    step = max(SINGLE_THREAD_SIZE // size, 1)
    return [slice(start, min(start + step, reach)) for start in range(0, reach, step)] or [slice(0, 0)]


def matmul_by_head(left: Tensor, right: Tensor) -> Tensor:
    """(kv, B, h, n) products of (kv, B, h, k) and (kv, B, k, n)."""
    out = left.new_empty((*left.shape[:3], right.shape[3]))
    for head in range(len(left)):  # a slice of rows is no view of one batch over all heads
        torch.bmm(left[head], right[head], out=out[head])
    return out
