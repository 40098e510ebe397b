"""Stage 1: perceptual hashes, and every pair of them within a Hamming distance (supp:index_whitelist_dedup).

The join is exact. Two 64-bit hashes at distance 8 or less differ by at most one bit in one of five bands (five bands
with two bits each would make ten), so that it is enough to search the buckets of each band's key and of the keys one
bit away from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pixelis.media import Frame

Hashes = NDArray[np.uint64]
"""(N,) 64-bit hashes."""

RADIUS = 8
"""Hamming distance up to which two hashes are near (tab:supp_dedup_thresholds)."""
MAX_PAIRS_PER_CHUNK = 4_000_000
"""Pairs compared at a time: 100 MB of working memory."""


class HashPairs(NamedTuple):
    """A chunk of the pairs within the radius."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    distance: NDArray[np.int64]


def perceptual_hash(frame: Frame) -> int:
    """`imagehash.phash` of a frame as a 64-bit number, most significant bit first."""
    bits = imagehash.phash(Image.fromarray(frame)).hash.ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def centre_square(frame: Frame) -> Frame:
    """The largest centred square, which is what is hashed of a clip's frame."""
    height, width = frame.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(frame[top : top + side, left : left + side])


def hamming_pairs(a: Hashes, b: Hashes | HashTable | None = None, *, radius: int = RADIUS) -> Iterator[HashPairs]:
    """Every pair (i, j) with a Hamming distance of at most `radius`, once, in chunks.

    Without `b` the pairs are those of `a` with itself, i < j. Equal hashes are compared once: the work grows with the
    number of distinct hashes, the output with the number of pairs. Pass a `b` that is searched often as a `HashTable`;
    its radius then applies.
    """
    left, left_items = group_hashes(a)
    table = b if isinstance(b, HashTable) else HashTable(a if b is None else b, radius=radius)
    for pairs in distinct_pairs(left, table, self_join=b is None):
        yield from expand_pairs(pairs, left_items, table.items, self_join=b is None)


class HashGroups(NamedTuple):
    """Which items have each distinct hash."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


def group_hashes(hashes: Hashes) -> tuple[Hashes, HashGroups]:
    distinct, group, counts = np.unique(np.asarray(hashes, np.uint64), return_inverse=True, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    return distinct, HashGroups(np.argsort(group, kind="stable").astype(np.int64), starts, counts.astype(np.int64))


class Buckets(NamedTuple):
    """Hashes by the key of one band: those of key k are `order[starts[k] : ends[k]]`."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class HashTable:
    """Searchable hashes, grouped, and sorted once into the buckets of every band."""

    def __init__(self, hashes: Hashes, *, radius: int = RADIUS) -> None:
        if not 0 <= radius <= 64:
            raise ValueError(f"radius {radius}: a 64-bit hash has distances from 0 to 64")
        self.radius, self.bands = radius, band_shifts(radius)
        self.distinct, self.items = group_hashes(hashes)

    @cached_property
    def buckets(self) -> list[Buckets]:
        return [make_buckets(self.distinct, shift, width) for shift, width in self.bands]


def band_keys(hashes: Hashes, shift: int, width: int) -> NDArray[np.int64]:
    return ((hashes >> np.uint64(shift)) & np.uint64((1 << width) - 1)).astype(np.int64)


def make_buckets(hashes: Hashes, shift: int, width: int) -> Buckets:
    keys = band_keys(hashes, shift, width)
    ends = np.cumsum(np.bincount(keys, minlength=1 << width))
    return Buckets(np.argsort(keys, kind="stable"), np.concatenate([[0], ends[:-1]]), ends)


def distinct_pairs(left: Hashes, table: HashTable, *, self_join: bool) -> Iterator[HashPairs]:
    """Pairs of distinct hashes; with `self_join`, i <= j (a hash pairs with itself)."""
    right, radius, bands = table.distinct, table.radius, table.bands
    for number, (shift, width) in enumerate(bands):
        keys_left = band_keys(left, shift, width)
        order, starts, ends = table.buckets[number]
        for flip_bits in (0, *(1 << bit for bit in range(width))):
            bucket = keys_left ^ flip_bits
            for row, position in iter_ranges(starts[bucket], ends[bucket]):
                i, j = row, order[position]
                if self_join:
                    i, j = i[i <= j], j[i <= j]
                difference = left[i] ^ right[j]
                distance = np.bitwise_count(difference)
                keep_mask = distance <= radius
                keep_mask[keep_mask] = is_first_band(difference[keep_mask], bands, number)
                yield HashPairs(i[keep_mask], j[keep_mask], distance[keep_mask].astype(np.int64))


def band_shifts(radius: int) -> list[tuple[int, int]]:
    """(shift, width) of the fewest bands such that one must differ by at most one bit: radius < 2 * bands.

    At least five, so that the table of a band's keys stays small.
    """
    bands = max(5, radius // 2 + 1)
    bounds = [64 * k // bands for k in range(bands + 1)]
    return [(low, high - low) for low, high in pairwise(bounds)]


def iter_ranges(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(row, position) for every position in each row's range, in chunks of bounded length."""
    lengths = ends - starts
    rows = np.flatnonzero(lengths)
    totals = np.cumsum(lengths[rows])
    begin = 0
    while begin < len(rows):
        previous_total = totals[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(totals, previous_total + MAX_PAIRS_PER_CHUNK, side="right")))
        chunk = rows[begin:end]
        counts = lengths[chunk]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        yield np.repeat(chunk, counts), np.repeat(starts[chunk], counts) + offsets
        begin = end


def is_first_band(difference: Hashes, bands: list[tuple[int, int]], number: int) -> NDArray[np.bool_]:
    """Whether no earlier band finds this pair."""
    is_first = np.ones(len(difference), bool)
    for shift, width in bands[:number]:
        is_first &= np.bitwise_count((difference >> np.uint64(shift)) & np.uint64((1 << width) - 1)) > 1
    return is_first


def expand_pairs(pairs: HashPairs, left: HashGroups, right: HashGroups, *, self_join: bool) -> Iterator[HashPairs]:
    """Pairs of items from pairs of their distinct hashes."""
    firsts = np.repeat(np.arange(len(pairs.left)), left.counts[pairs.left])  # a row for each left item of each pair
    base = np.repeat(np.cumsum(left.counts[pairs.left]) - left.counts[pairs.left], left.counts[pairs.left])
    items = left.order[left.starts[pairs.left][firsts] + np.arange(len(firsts)) - base]
    starts = right.starts[pairs.right][firsts]
    for row, position in iter_ranges(starts, starts + right.counts[pairs.right][firsts]):
        i, j, distance = items[row], right.order[position], pairs.distance[firsts[row]]
        if self_join:  # a hash pairs with itself in both orders, two different hashes in one order
            keep_mask = (i < j) | ((distance > 0) & (i > j))
            i, j, distance = np.minimum(i, j)[keep_mask], np.maximum(i, j)[keep_mask], distance[keep_mask]
        if len(i):
            yield HashPairs(i, j, distance)
