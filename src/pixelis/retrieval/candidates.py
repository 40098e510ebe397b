"""Stages 1 and 2: which pairs of media are worth a look (supp:index_whitelist_dedup).

Images meet images by the hash of the whole, clips meet clips and images by the hashes of their frames' centres, and
everything meets everything by embedding. Of each item the nearest candidates are kept; what is left off is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.retrieval.features import Features
from pixelis.retrieval.hashing import RADIUS, Hashes, HashPairs, HashTable, hamming_pairs

BLOCK = 2048
"""Rows of embeddings multiplied at a time: 2048 x 8192 products are 64 MB."""
MOST_KEPT = 4_000_000
"""Pairs held before the far ones are dropped."""
FAR = 65
"""A distance that no pair of hashes has: the signal did not fire."""


class Candidate(NamedTuple):
    """A pair that a stage flagged: `left` is the one that may be removed."""

    left: int
    right: int
    distance: int
    """Hamming, the least over frames; FAR where stage 1 did not flag it."""
    mirror_distance: int
    """The same with one of them mirrored."""
    cosine: float
    """The greatest over frames; -1 where stage 2 did not flag it."""


@dataclass(frozen=True)
class Candidates:
    """Pairs by their left item, nearest first."""

    pairs: list[Candidate]
    by_hash: int
    """How many pairs stage 1 flagged."""
    by_embedding: int
    """How many pairs stage 2 flagged."""
    left_off: int
    """How many were dropped because an item had more than its share."""


class Scored(NamedTuple):
    """Pairs with a score, the lower the nearer."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    score: NDArray[np.float64]


Rows = tuple[Hashes, NDArray[np.int64]]
"""Hashes, and the item that each belongs to."""


class Searched(NamedTuple):
    """Rows that are looked for in a table of theirs."""

    table: HashTable
    owner: NDArray[np.int64]


class Tables:
    """What a collection is searched by: hashes and embeddings of all its items, each table made once, when wanted."""

    def __init__(self, features: Sequence[Features], *, radius: int = RADIUS) -> None:
        self.features, self.radius = features, radius

    @cached_property
    def whole(self) -> Searched:
        return self._searched(whole(self.features, of_kind(self.features, "image")))

    @cached_property
    def keys(self) -> Searched:
        return self._searched(keys(self.features))

    @cached_property
    def dense(self) -> Searched:
        return self._searched(dense(self.features))

    @cached_property
    def embeddings(self) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
        return embedding_rows(self.features)

    def _searched(self, rows: Rows) -> Searched:
        return Searched(HashTable(rows[0], radius=self.radius), rows[1])


def find_candidates(
    left: Sequence[Features],
    right: Sequence[Features] | Tables | None,
    *,
    threshold: float,
    radius: int = RADIUS,
    flips: bool = True,
    per_item: int = 24,
) -> Candidates:
    """Pairs (left item, right item); without `right`, (later item, earlier item) of one collection.

    A `right` that is searched often is handed over as `Tables`, whose radius holds.
    """
    alone = right is None
    other = right if isinstance(right, Tables) else Tables(left if right is None else right, radius=radius)
    hashed, hash_count, hash_off = nearest(hash_pairs(left, other, alone=alone), per_item)
    flipped, _, _ = nearest(mirror_pairs(left, other, alone=alone) if flips else [], per_item)
    embedded, embedding_count, embedding_off = nearest(embedding_pairs(left, other, threshold, alone=alone), per_item)
    found: dict[tuple[int, int], list[float]] = {}
    for slot, pairs in enumerate((hashed, flipped, embedded)):
        for i, j, score in zip(pairs.left.tolist(), pairs.right.tolist(), pairs.score.tolist(), strict=True):
            found.setdefault((i, j), [FAR, FAR, 2.0])[slot] = score
    pairs_found = [
        Candidate(i, j, int(distance), int(mirror), 1.0 - score) for (i, j), (distance, mirror, score) in found.items()
    ]
    pairs_found.sort(key=lambda c: (c.left, -max(c.cosine, 1.0 - min(c.distance, c.mirror_distance) / 16), c.right))
    return Candidates(pairs_found, hash_count, embedding_count, hash_off + embedding_off)


def hash_pairs(left: Sequence[Features], right: Tables, *, alone: bool) -> Iterator[Scored]:
    """Images by their whole; where a clip is one of the two, by the centres of frames, dense on the clip's side."""
    yield from joined(whole(left, of_kind(left, "image")), right.whole, alone=alone)
    yield from joined(keys(left), right.dense, alone=alone)
    if not alone:
        yield from joined(dense(left), right.keys, alone=False)
        return
    for pairs in joined(dense(left), right.keys, alone=False):
        later = pairs.left > pairs.right
        yield Scored(pairs.left[later], pairs.right[later], pairs.score[later])


def mirror_pairs(left: Sequence[Features], right: Tables, *, alone: bool) -> Iterator[Scored]:
    """Images against mirror images."""
    images_left = of_kind(left, "image")
    mirrors = np.array([left[k].mirror for k in images_left], np.uint64), images_left
    yield from joined(mirrors, right.whole, alone=alone)


def of_kind(items: Sequence[Features], kind: str) -> NDArray[np.int64]:
    return np.array([k for k, features in enumerate(items) if features.kind == kind], np.int64)


def whole(items: Sequence[Features], which: NDArray[np.int64]) -> Rows:
    return np.array([items[k].whole for k in which], np.uint64), which


def keys(items: Sequence[Features]) -> Rows:
    """Centres of an image and of a clip's keyframes."""
    return stacked([(k, features.key_hashes) for k, features in enumerate(items)])


def dense(items: Sequence[Features]) -> Rows:
    """Centres of a clip's frames, each distinct one once."""
    return stacked([(k, np.unique(f.dense_hashes)) for k, f in enumerate(items) if f.kind == "clip"])


def stacked(parts: list[tuple[int, Hashes]]) -> Rows:
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    return np.concatenate([h for _, h in parts]), np.concatenate([np.full(len(h), k, np.int64) for k, h in parts])


def joined(left: Rows, right: Searched, *, alone: bool) -> Iterator[Scored]:
    """Items whose rows are near; with `alone`, the later one on the left."""
    for pairs in hamming_pairs(left[0], right.table):
        yield from owners(pairs, left[1], right.owner, alone=alone)


def owners(pairs: HashPairs, left: NDArray[np.int64], right: NDArray[np.int64], *, alone: bool) -> Iterator[Scored]:
    i, j = left[pairs.left], right[pairs.right]
    keep = i > j if alone else np.ones(len(i), bool)
    if keep.any():
        yield Scored(i[keep], j[keep], pairs.distance[keep].astype(np.float64))


def embedding_pairs(left: Sequence[Features], right: Tables, threshold: float, *, alone: bool) -> Iterator[Scored]:
    """Every pair of items with two frames whose cosine reaches the threshold; exact, block by block."""
    b, owner_b = right.embeddings
    a, owner_a = (b, owner_b) if alone else embedding_rows(left)
    for start in range(0, len(a), BLOCK):
        rows = a[start : start + BLOCK].astype(np.float32)
        stop = min(len(b), start + BLOCK) if alone else len(b)
        for other in range(0, stop, 4 * BLOCK):
            cosines = rows @ b[other : min(stop, other + 4 * BLOCK)].astype(np.float32).T
            r, c = np.nonzero(cosines >= threshold)
            i, j = owner_a[start + r], owner_b[other + c]
            keep = i > j if alone else np.ones(len(i), bool)
            yield Scored(i[keep], j[keep], 1.0 - cosines[r[keep], c[keep]].astype(np.float64))


def embedding_rows(items: Sequence[Features]) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    if not items:
        return np.zeros((0, 1), np.float16), np.zeros(0, np.int64)
    owner = np.repeat(np.arange(len(items)), [len(features.embeddings) for features in items])
    return np.concatenate([features.embeddings for features in items]), owner


def nearest(chunks: Iterable[Scored], per_item: int) -> tuple[Scored, int, int]:
    """Each pair once with its best score, the `per_item` best of each left item; how many there were and were dropped.

    The count of what was dropped is a lower bound where pairs had to be dropped on the way.
    """
    kept, held, dropped = [empty()], 0, 0
    for chunk in chunks:
        kept.append(chunk)
        held += len(chunk.left)
        if held > MOST_KEPT:
            pairs, off = best_of(kept, per_item)
            kept, held, dropped = [pairs], len(pairs.left), dropped + off
    pairs, off = best_of(kept, per_item)
    return pairs, len(pairs.left) + dropped + off, dropped + off


def empty() -> Scored:
    return Scored(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def best_of(chunks: list[Scored], per_item: int) -> tuple[Scored, int]:
    left, right, score = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    order = np.lexsort((score, right, left))
    left, right, score = left[order], right[order], score[order]
    first = np.ones(len(left), bool)
    first[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    order = np.lexsort((right[first], score[first], left[first]))
    left, right, score = left[first][order], right[first][order], score[first][order]
    starts = np.searchsorted(left, left)  # where each item's own pairs begin
    near = np.arange(len(left)) - starts < per_item
    return Scored(left[near], right[near], score[near]), int((~near).sum())
