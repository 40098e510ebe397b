"""Keys and values of many sequences of different length, one row each, kept from turn to turn.

Rows that are being decoded lie at the top, so that a step works on a slice and copies nothing; a row that waits for a
tool is swapped below them. What a row wrote beyond its length is never looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowCache:
    """The cache that the layers write to: `update` has the form that transformers' attention calls."""

    def __init__(self, layers: int, rows: int, heads: int, width: int, *, dtype: torch.dtype, device: torch.device):
        self._shape = (rows, heads, 0, width)
        self._options = {"dtype": dtype, "device": device}
        self.keys = [torch.empty(self._shape, **self._options) for _ in range(layers)]  # type: ignore[call-overload]
        self.values = [torch.empty(self._shape, **self._options) for _ in range(layers)]  # type: ignore[call-overload]
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self._rows = slice(0, rows)
        self._at = torch.zeros(0, dtype=torch.long)
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
        self._reserve(self._reach)
        self._at = before[:, None] + torch.arange(width, device=before.device)  # (B, width)
        self.lengths[rows] = before + counts
        cells = torch.arange(self._reach, device=before.device)
        return (cells[None, None, :] <= self._at[:, :, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object) -> tuple[Tensor, Tensor]:
        """Write the new keys and values (B, heads, width, d) of a layer; all that these rows hold comes back."""
        kept_keys, kept_values = self.keys[layer][self._rows], self.values[layer][self._rows]
        rows = torch.arange(len(keys), device=keys.device)[:, None]
        kept_keys.transpose(1, 2)[rows, self._at] = keys.transpose(1, 2)
        kept_values.transpose(1, 2)[rows, self._at] = values.transpose(1, 2)
        return kept_keys[:, :, : self._reach], kept_values[:, :, : self._reach]

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

    def repeat(self, row: int, to: slice) -> None:
        """Copy one row to others: a prompt that was read once serves a whole group."""
        reach = int(self.lengths[row])
        for store in (*self.keys, *self.values):
            store[to, :, :reach] = store[row : row + 1, :, :reach]
        self.lengths[to] = reach

    def _reserve(self, reach: int) -> None:
        """Grow by half again: appending stays linear in all that is written."""
        if reach <= self.capacity:
            return
        wanted = max(reach + 64, self.capacity * 3 // 2)
        rows, heads, _, width = self._shape
        for stores in (self.keys, self.values):
            for k, old in enumerate(stores):
                new = torch.zeros((rows, heads, wanted, width), **self._options)  # type: ignore[call-overload]
                new[:, :, : old.shape[2]] = old
                stores[k] = new
