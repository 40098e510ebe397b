"""Which rows of a memory show which media: what a search leaves out, so that no query meets its own source."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.retrieval.memory_item import MemoryItem

NEAR_HASH = 8
"""Bits of pHash up to which a medium counts as the same source (tab:supp_dedup_thresholds)."""


class Sources(NamedTuple):
    """Which rows show which media."""

    by_sha256: dict[str, list[int]]
    hashes: NDArray[np.uint64]
    owners: NDArray[np.int64]

    @classmethod
    def of(cls, items: Iterable[tuple[int, MemoryItem]]) -> Sources:
        by_sha256: dict[str, list[int]] = {}
        hashes: list[int] = []
        owners: list[int] = []
        for row, item in items:
            for medium in item.media:
                by_sha256.setdefault(medium.sha256, []).append(row)
                hashes += [int(h, 16) for h in medium.perceptual]
                owners += [row] * len(medium.perceptual)
        return cls(by_sha256, np.array(hashes, np.uint64), np.array(owners, np.int64))

    def showing(self, sha256s: Collection[str], perceptual: Collection[str]) -> set[int]:
        rows = {row for sha256 in sha256s for row in self.by_sha256.get(sha256, ())}
        for text in perceptual:
            near = np.bitwise_count(self.hashes ^ np.uint64(int(text, 16))) <= NEAR_HASH
            rows.update(int(row) for row in self.owners[near])
        return rows
