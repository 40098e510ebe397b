"""Keys and values of many sequences of different lengths, one row each, kept from turn to turn.

Rows that decode come first, so that a step works on a slice and copies nothing; a row that waits for a tool is swapped
below them. Cells beyond a row's length are never read. In memory the rows of one head are contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH_STEP = 128
"""Cells by which all rows grow."""


class RowCache:
    """The cache that the layers write to; transformers' attention calls `update`."""

    def __init__(self, layers: int, rows: int, heads: int, width: int, *, dtype: torch.dtype, device: torch.device):
        self._shape = (heads, rows, 0, width)
        self._options = {"dtype": dtype, "device": device}
        empty = torch.empty((2, *self._shape), **self._options)  # type: ignore[call-overload]
        self._stores = [empty] * layers
        """(2, heads, rows, capacity, width) keys and values of each layer."""
        self.keys, self.values = ([empty[part].transpose(0, 1)] * layers for part in (0, 1))
        """(rows, heads, capacity, width) of each layer, views of the stores."""
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.max_length: int | None = None
        """A known upper bound on tokens per row: no memory is reserved beyond it."""
        self._row_numbers = torch.arange(rows, device=device)
        self._rows = slice(0, rows)
        self._cells = self._order = torch.zeros(0, dtype=torch.long)
        self._reach = 0

    @classmethod
    def for_model(cls, language: object, rows: int) -> RowCache:
        """An empty cache for a language model."""
        config = language.config  # type: ignore[attr-defined]
        weight = language.embed_tokens.weight  # type: ignore[attr-defined]
        return cls(
            config.num_hidden_layers, rows, config.num_key_value_heads, config.head_dim,
            dtype=weight.dtype, device=weight.device,
        )  # fmt: skip

    @staticmethod
    def token_bytes(language: object) -> int:
        """Bytes of one token of one row."""
        config = language.config  # type: ignore[attr-defined]
        size = language.embed_tokens.weight.element_size()  # type: ignore[attr-defined]
        return 2 * int(config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size)

    @property
    def capacity(self) -> int:
        return int(self.keys[0].shape[2])

    @property
    def bytes(self) -> int:
        return 2 * len(self.keys) * self.keys[0].numel() * self.keys[0].element_size()

    def prepare(self, rows: slice, counts: Tensor, width: int) -> Tensor:
        """Prepare for `width` new tokens per row, `counts` (B,) of them real; returns the mask (B, 1, width, reach).

        A token attends to its row's cached tokens and to the new tokens up to itself.
        """
        old_lengths = self.lengths[rows]  # (B,)
        self._rows, self._reach = rows, int((old_lengths + width).max())
        self.reserve(self._reach)
        self._cells = old_lengths[:, None] + torch.arange(width, device=old_lengths.device)  # (B, width)
        self._order = torch.arange(len(old_lengths), device=old_lengths.device)[:, None]
        self.lengths[rows] = old_lengths + counts
        cells = torch.arange(self._reach, device=old_lengths.device)
        return (cells[None, None, :] <= self._cells[:, :, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object) -> tuple[Tensor, Tensor]:
        """Write the new keys and values (B, heads, width, d) of a layer; returns all cached ones of these rows."""
        cached_keys, cached_values = self.keys[layer][self._rows], self.values[layer][self._rows]
        # under autocast values are in half precision; keys, which a norm has scaled, are not
        cached_keys.transpose(1, 2)[self._order, self._cells] = keys.transpose(1, 2).to(cached_keys.dtype)
        cached_values.transpose(1, 2)[self._order, self._cells] = values.transpose(1, 2).to(cached_values.dtype)
        return cached_keys[:, :, : self._reach], cached_values[:, :, : self._reach]

    def prepare_one(self, rows: int) -> Tensor | None:
        """Prepare for one token in each of the first rows; returns the bias on their scores (rows, 1, reach), or None
        if all rows are equally long."""
        old_lengths = self.lengths[:rows]
        longest_length = int(old_lengths.max())
        self._rows, self._reach = slice(0, rows), longest_length + 1
        self.reserve(self._reach)
        heads, all_rows, _, _ = self._shape
        first = torch.arange(2 * heads, device=old_lengths.device)[:, None] * all_rows + self._row_numbers[:rows]
        self._cells = (first * self.capacity + old_lengths).flatten()  # (2 · heads · rows,) indices into a store
        bias = None
        if int(old_lengths.min()) < longest_length:
            hidden = torch.arange(self._reach, device=old_lengths.device) > old_lengths[:, None]  # (rows, reach)
            bias = torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -torch.inf)[:, None]
        self.lengths[:rows] += 1
        return bias

    def append(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write one key and value (heads · rows, d) each; returns views of all cached ones, (heads, rows, reach, d).

        `prepare_one` comes before.
        """
        store = self._stores[layer]
        store.view(-1, self._shape[-1]).index_copy_(0, self._cells, torch.cat((keys, values)))
        cached = store[:, :, self._rows, : self._reach]
        return cached[0], cached[1]

    def swap(self, a: int, b: int) -> None:
        if a == b:
            return
        reach = int(torch.maximum(self.lengths[a], self.lengths[b]))
        for store in (*self.keys, *self.values):
            saved = store[a, :, :reach].clone()
            store[a, :, :reach] = store[b, :, :reach]
            store[b, :, :reach] = saved
        self.lengths[[a, b]] = self.lengths[[b, a]]

    def copy_row(self, other: RowCache, row: int, to: int) -> None:
        """Copy a row of another cache, or of this one, to row `to`."""
        reach = int(other.lengths[row])
        self.reserve(reach)
        for target, source in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            target[to, :, :reach] = source[row, :, :reach]
        self.lengths[to] = reach

    def reserve(self, reach: int) -> None:
        """Grow to at least `reach` cells, in steps of one size: unused memory is at most one step and grows linearly
        with the trajectory. Copying all cells costs as much as decoding a few tokens, which read them all."""
        if reach <= self.capacity:
            return
        new_capacity = max(reach, min(-(-reach // GROWTH_STEP) * GROWTH_STEP, self.max_length or 2**62))
        heads, rows, _, width = self._shape
        for layer, old in enumerate(self._stores):
            new = torch.empty((2, heads, rows, new_capacity, width), **self._options)  # type: ignore[call-overload]
            new[:, :, :, : old.shape[3]] = old
            new[:, :, :, old.shape[3] :] = 0.0  # hidden cells have weight 0, but 0 times NaN is NaN
            self._stores[layer] = new
            self.keys[layer], self.values[layer] = new[0].transpose(0, 1), new[1].transpose(0, 1)
            del old, new  # free a layer's old cells before allocating the next layer's
