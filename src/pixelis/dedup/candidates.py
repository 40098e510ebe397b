"""Stages 1 and 2: which pairs of media may be duplicates (supp:index_whitelist_dedup).

Two images are compared by the hash of the whole picture, a clip with a clip or an image by the hashes of its frames'
centres, and any two media by embedding. The nearest candidates of each item are kept; dropped ones are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.dedup.hashing import RADIUS, Hashes, HashTable, hamming_pairs
from pixelis.dedup.media_features import Features

BLOCK = 2048
"""Rows of embeddings multiplied at a time: 2048 x 8192 products are 64 MB."""
MAX_BUFFERED_PAIRS = 4_000_000
"""Number of pairs in memory at which the more distant ones are dropped."""
UNFLAGGED_DISTANCE = 65
"""Greater than any Hamming distance: stage 1 did not flag the pair."""


class Candidate(NamedTuple):
    """A pair that a stage flagged: `left` is the one that may be removed."""

    left: int
    right: int
    distance: int
    """Least Hamming distance over frames; UNFLAGGED_DISTANCE if stage 1 did not flag the pair."""
    mirror_distance: int
    """The same with one picture mirrored."""
    cosine: float
    """Greatest cosine over frames; -1 if stage 2 did not flag the pair."""


@dataclass(frozen=True)
class Candidates:
    """Pairs by their left item, nearest first."""

    pairs: list[Candidate]
    by_hash: int
    """How many pairs stage 1 flagged."""
    by_embedding: int
    """How many pairs stage 2 flagged."""
    num_dropped: int
    """How many were dropped because an item had more than `per_item`."""


class ScoredPairs(NamedTuple):
    """Pairs with a score; lower is nearer."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    score: NDArray[np.float64]

    def take(self, rows: NDArray[Any]) -> ScoredPairs:
        """The pairs of these indices, or of this mask."""
        return ScoredPairs(*(values[rows] for values in self))


OwnedHashes = tuple[Hashes, NDArray[np.int64]]
"""Hashes, and the index of the item that each belongs to."""


class HashLookup(NamedTuple):
    """A searchable table of hashes, and the item of each."""

    table: HashTable
    owner: NDArray[np.int64]


class SearchTables:
    """Hashes and embeddings of all items of a collection, for searching; each table is built on first use."""

    def __init__(self, features: Sequence[Features], *, radius: int = RADIUS) -> None:
        self.features, self.radius = features, radius

    @cached_property
    def image_hashes(self) -> HashLookup:
        return self._make_lookup(image_hashes(self.features, indices_of_kind(self.features, "image")))

    @cached_property
    def keyframe_hashes(self) -> HashLookup:
        return self._make_lookup(keyframe_hashes(self.features))

    @cached_property
    def frame_hashes(self) -> HashLookup:
        return self._make_lookup(frame_hashes(self.features))

    @cached_property
    def embeddings(self) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
        return embedding_rows(self.features)

    def _make_lookup(self, rows: OwnedHashes) -> HashLookup:
        return HashLookup(HashTable(rows[0], radius=self.radius), rows[1])


def find_candidates(
    left: Sequence[Features],
    right: Sequence[Features] | SearchTables | None,
    *,
    threshold: float,
    radius: int = RADIUS,
    flips: bool = True,
    per_item: int = 24,
) -> Candidates:
    """Pairs (left item, right item); without `right`, (later item, earlier item) of one collection.

    Pass a `right` that is searched often as `SearchTables`; their radius then applies.
    """
    self_join = right is None
    tables = right if isinstance(right, SearchTables) else SearchTables(left if right is None else right, radius=radius)
    by_hash, hash_count, hash_dropped = keep_nearest(hash_pairs(left, tables, self_join=self_join), per_item)
    by_mirror, _, _ = keep_nearest(mirror_pairs(left, tables, self_join=self_join) if flips else [], per_item)
    by_embedding, embedding_count, embedding_dropped = keep_nearest(
        embedding_pairs(left, tables, threshold, self_join=self_join), per_item
    )
    scores_by_pair: dict[tuple[int, int], list[float]] = {}
    for slot, pairs in enumerate((by_hash, by_mirror, by_embedding)):
        for i, j, score in zip(pairs.left.tolist(), pairs.right.tolist(), pairs.score.tolist(), strict=True):
            scores_by_pair.setdefault((i, j), [UNFLAGGED_DISTANCE, UNFLAGGED_DISTANCE, 2.0])[slot] = score
    candidates = [
        Candidate(i, j, int(distance), int(mirror), 1.0 - score)
        for (i, j), (distance, mirror, score) in scores_by_pair.items()
    ]
    candidates.sort(key=lambda c: (c.left, -max(c.cosine, 1.0 - min(c.distance, c.mirror_distance) / 16), c.right))
    return Candidates(candidates, hash_count, embedding_count, hash_dropped + embedding_dropped)


def hash_pairs(left: Sequence[Features], right: SearchTables, *, self_join: bool) -> Iterator[ScoredPairs]:
    """Images by their whole; if one of the two is a clip, by the centres of frames, dense on the clip's side."""
    yield from join_near(image_hashes(left, indices_of_kind(left, "image")), right.image_hashes, self_join=self_join)
    yield from join_near(keyframe_hashes(left), right.frame_hashes, self_join=self_join)
    yield from join_near(frame_hashes(left), right.keyframe_hashes, self_join=self_join)


def mirror_pairs(left: Sequence[Features], right: SearchTables, *, self_join: bool) -> Iterator[ScoredPairs]:
    """Images against mirror images."""
    images_left = indices_of_kind(left, "image")
    mirrors = np.array([left[k].mirror_phash for k in images_left], np.uint64), images_left
    yield from join_near(mirrors, right.image_hashes, self_join=self_join)


def indices_of_kind(items: Sequence[Features], kind: str) -> NDArray[np.int64]:
    return np.array([k for k, features in enumerate(items) if features.kind == kind], np.int64)


def image_hashes(items: Sequence[Features], indices: NDArray[np.int64]) -> OwnedHashes:
    return np.array([items[k].phash for k in indices], np.uint64), indices


def keyframe_hashes(items: Sequence[Features]) -> OwnedHashes:
    """Hashes of the centres of images and of clips' keyframes."""
    return stack_hashes([(k, features.key_hashes) for k, features in enumerate(items)])


def frame_hashes(items: Sequence[Features]) -> OwnedHashes:
    """Distinct hashes of the centres of clips' frames."""
    return stack_hashes([(k, np.unique(f.dense_hashes)) for k, f in enumerate(items) if f.kind == "clip"])


def stack_hashes(parts: list[tuple[int, Hashes]]) -> OwnedHashes:
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    return np.concatenate([h for _, h in parts]), np.concatenate([np.full(len(h), k, np.int64) for k, h in parts])


def join_near(left: OwnedHashes, right: HashLookup, *, self_join: bool) -> Iterator[ScoredPairs]:
    """Items with near hashes; with `self_join`, the later item is on the left."""
    for near in hamming_pairs(left[0], right.table):
        pairs = ScoredPairs(left[1][near.left], right.owner[near.right], near.distance.astype(np.float64))
        yield pairs.take(pairs.left > pairs.right) if self_join else pairs


def embedding_pairs(
    left: Sequence[Features], right: SearchTables, threshold: float, *, self_join: bool
) -> Iterator[ScoredPairs]:
    """Every pair of items with two frames whose cosine reaches the threshold; exact, block by block."""
    b, owner_b = right.embeddings
    a, owner_a = (b, owner_b) if self_join else embedding_rows(left)
    for start in range(0, len(a), BLOCK):
        rows = a[start : start + BLOCK].astype(np.float32)
        stop = min(len(b), start + BLOCK) if self_join else len(b)
        for column in range(0, stop, 4 * BLOCK):
            cosines = rows @ b[column : min(stop, column + 4 * BLOCK)].astype(np.float32).T
            r, c = np.nonzero(cosines >= threshold)
            pairs = ScoredPairs(owner_a[start + r], owner_b[column + c], 1.0 - cosines[r, c].astype(np.float64))
            yield pairs.take(pairs.left > pairs.right) if self_join else pairs


def embedding_rows(items: Sequence[Features]) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    if not items:
        return np.zeros((0, 1), np.float16), np.zeros(0, np.int64)
    owner = np.repeat(np.arange(len(items)), [len(features.embeddings) for features in items])
    return np.concatenate([features.embeddings for features in items]), owner


def keep_nearest(chunks: Iterable[ScoredPairs], per_item: int) -> tuple[ScoredPairs, int, int]:
    """The `per_item` best distinct pairs of each left item, how many there were, and how many were dropped.

    The last two are lower bounds if the buffer overflowed: a pair may come again after it was dropped.
    """
    no_pairs = ScoredPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    buffer, num_buffered, total_dropped = [no_pairs], 0, 0
    for chunk in chunks:
        buffer.append(chunk)
        num_buffered += len(chunk.left)
        if num_buffered > MAX_BUFFERED_PAIRS:
            pairs, num_dropped = select_best(buffer, per_item)
            buffer, num_buffered, total_dropped = [pairs], len(pairs.left), total_dropped + num_dropped
    pairs, num_dropped = select_best(buffer, per_item)
    return pairs, len(pairs.left) + total_dropped + num_dropped, total_dropped + num_dropped


def select_best(chunks: list[ScoredPairs], per_item: int) -> tuple[ScoredPairs, int]:
    pairs = ScoredPairs(*(np.concatenate(parts) for parts in zip(*chunks, strict=True)))
    pairs = pairs.take(np.lexsort((pairs.score, pairs.right, pairs.left)))
    is_first = np.ones(len(pairs.left), bool)  # the best score of each pair
    is_first[1:] = (pairs.left[1:] != pairs.left[:-1]) | (pairs.right[1:] != pairs.right[:-1])
    pairs = pairs.take(is_first)
    pairs = pairs.take(np.lexsort((pairs.right, pairs.score, pairs.left)))
    starts = np.searchsorted(pairs.left, pairs.left)  # where the pairs of each left item begin
    within_limit = np.arange(len(pairs.left)) - starts < per_item
    return pairs.take(within_limit), int((~within_limit).sum())
