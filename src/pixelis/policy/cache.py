"""Keys and values of many sequences of different length, one row each, kept from turn to turn.

Rows that are being decoded lie at the top, so that a step works on a slice and copies nothing; a row that waits for a
tool is swapped below them. What a row wrote beyond its length is never looked at. In memory the rows of one head lie
together.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 128
"""Cells by which all rows grow."""


class RowCache:
    """The cache that the layers write to: `update` has the form that transformers' attention calls."""

    def __init__(self, layers: int, rows: int, heads: int, width: int, *, dtype: torch.dtype, device: torch.device):
        self._shape = (heads, rows, 0, width)
        self._options = {"dtype": dtype, "device": device}
        empty = torch.empty((2, *self._shape), **self._options)  # type: ignore[call-overload]
        self._stores = [empty] * layers
        """(2, heads, rows, capacity, width) keys and values of each layer."""
        self.keys, self.values = ([empty[part].transpose(0, 1)] * layers for part in (0, 1))
        """(rows, heads, capacity, width) of each layer, views of the stores."""
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.longest: int | None = None
        """Tokens that no row will pass, where that is known: nothing is set aside beyond."""
        self._numbers = torch.arange(rows, device=device)
        self._rows = slice(0, rows)
        self._at = self._order = torch.zeros(0, dtype=torch.long)
        self._reach = 0

    @classmethod
    def of(cls, language: object, rows: int) -> RowCache:
        """An empty cache for a language model."""
        config = language.config  # type: ignore[attr-defined]
        weight = language.embed_tokens.weight  # type: ignore[attr-defined]
        return cls(
            config.num_hidden_layers, rows, config.num_key_value_heads, config.head_dim,
            dtype=weight.dtype, device=weight.device,
        )  # fmt: skip

    @staticmethod
    def token_bytes(language: object) -> int:
        """What one token of one row takes."""
        config = language.config  # type: ignore[attr-defined]
        size = language.embed_tokens.weight.element_size()  # type: ignore[attr-defined]
        return 2 * int(config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size)

    @property
    def capacity(self) -> int:
        return int(self.keys[0].shape[2])

    @property
    def bytes(self) -> int:
        return 2 * len(self.keys) * self.keys[0].numel() * self.keys[0].element_size()

    def begin(self, rows: slice, counts: Tensor, width: int) -> Tensor:
        """Make ready for `width` new tokens a row, `counts` (B,) of them real; gives the mask (B, 1, width, reach).

        A token sees what its row holds and the new tokens up to itself.
        """
        before = self.lengths[rows]  # (B,)
        self._rows, self._reach = rows, int((before + width).max())
        self.reserve(self._reach)
        self._at = before[:, None] + torch.arange(width, device=before.device)  # (B, width)
        self._order = torch.arange(len(before), device=before.device)[:, None]
        self.lengths[rows] = before + counts
        cells = torch.arange(self._reach, device=before.device)
        return (cells[None, None, :] <= self._at[:, :, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object) -> tuple[Tensor, Tensor]:
        """Write the new keys and values (B, heads, width, d) of a layer; all that these rows hold comes back."""
        kept_keys, kept_values = self.keys[layer][self._rows], self.values[layer][self._rows]
        # under autocast values come in half precision, and keys, which a norm has scaled, do not
        kept_keys.transpose(1, 2)[self._order, self._at] = keys.transpose(1, 2).to(kept_keys.dtype)
        kept_values.transpose(1, 2)[self._order, self._at] = values.transpose(1, 2).to(kept_values.dtype)
        return kept_keys[:, :, : self._reach], kept_values[:, :, : self._reach]

    def begin_one(self, rows: int) -> Tensor | None:
        """Make ready for one token in each of the first rows; gives what to add to their scores (rows, 1, reach).

        None where all rows are equally long, and nothing is to be hidden.
        """
        before = self.lengths[:rows]
        longest = int(before.max())
        self._rows, self._reach = slice(0, rows), longest + 1
        self.reserve(self._reach)
        heads, all_rows, _, _ = self._shape
        first = torch.arange(2 * heads, device=before.device)[:, None] * all_rows + self._numbers[:rows]
        self._at = (first * self.capacity + before).flatten()  # (2 · heads · rows,) cells, counted over a whole store
        bias = None
        if int(before.min()) < longest:
            hidden = torch.arange(self._reach, device=before.device) > before[:, None]
            bias = torch.zeros(rows, 1, self._reach, device=before.device).masked_fill_(hidden[:, None], -torch.inf)
        self.lengths[:rows] += 1
        return bias

    def append(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write one key and value (heads · rows, d) each; what these rows hold comes back, (heads, rows, reach, d).

        After `begin_one`: whole cells are written, and views come back.
        """
        store = self._stores[layer]
        store.view(-1, self._shape[-1]).index_copy_(0, self._at, torch.cat((keys, values)))
        kept = store[:, :, self._rows, : self._reach]
        return kept[0], kept[1]

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        if a == b:
            return
        reach = int(torch.maximum(self.lengths[a], self.lengths[b]))
        for store in (*self.keys, *self.values):
            kept = store[a, :, :reach].clone()
            store[a, :, :reach] = store[b, :, :reach]
            store[b, :, :reach] = kept
        self.lengths[[a, b]] = self.lengths[[b, a]]

    def take(self, other: RowCache, row: int, to: int) -> None:
        """Copy a row of a cache to a row of this one, which may be the same cache."""
        reach = int(other.lengths[row])
        self.reserve(reach)
        for mine, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            mine[to, :, :reach] = theirs[row, :, :reach]
        self.lengths[to] = reach

    def reserve(self, reach: int) -> None:
        """Grow by steps of one size: what is held in vain is never more than one step, and memory grows with the chain
        in a line. To copy all cells once in a step costs as much as a few tokens of it, which read them all."""
        if reach <= self.capacity:
            return
        wanted = max(reach, min(-(-reach // STEP) * STEP, self.longest or 2**62))
        heads, rows, _, width = self._shape
        for layer, old in enumerate(self._stores):
            new = torch.empty((2, heads, rows, wanted, width), **self._options)  # type: ignore[call-overload]
            new[:, :, :, : old.shape[3]] = old
            new[:, :, :, old.shape[3] :] = 0.0  # hidden cells count for nothing, but nothing times NaN is NaN
            self._stores[layer] = new
            self.keys[layer], self.values[layer] = new[0].transpose(0, 1), new[1].transpose(0, 1)
            del old, new  # a layer's old cells go before the next layer's new ones come
