"""Whether evaluation media are in the memory: every item is checked, and random queries probe the index
(supp:index_whitelist_dedup, audit procedure: 10,000 queries, no masked hit in the top K, or the build stops).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError, LeakageError
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_collection import ProgressCallback, no_progress
from pixelis.memory.keys import Floats, normalise_halves, normalise_rows
from pixelis.memory.memory_item import MemoryItem
from pixelis.memory.memory_store import MemoryStore
from pixelis.metrics.statistics import clopper_pearson

BATCH = 64

MAX_HASH_DISTANCE = 8
"""pHash distance up to which a medium resembles one of evaluation (tab:supp_dedup_thresholds)."""


class MemoryAudit(NamedTuple):
    """What a passed audit checked."""

    items: int
    deleted: int
    masked_media: int
    screened: int
    """Items whose media were compared with this mask before they were added."""
    near_hashes: int
    """Screened items with a pHash within 8 bits of evaluation: their pixels differed when they were added."""
    queries: int
    hits: int
    """Rows that the queries returned, each of them checked."""
    masked_hits: int
    low: float
    """95 % Clopper–Pearson interval of the share of queries that return a masked item."""
    high: float
    kind: str
    """Kind of the searched index: exact, ivfpq or hnsw-text."""

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "ok": self.masked_hits == 0}


class LeakageDetector:
    """Which media of an item are evaluation media, by their hashes."""

    def __init__(self, mask: EvaluationMask) -> None:
        self._mask = mask
        features = mask.media.features
        all_hashes = [np.array([f.phash], np.uint64) for f in features] + [f.key_hashes for f in features]
        self._hashes = np.unique(np.concatenate(all_hashes)) if all_hashes else np.zeros(0, np.uint64)

    def is_near(self, item: MemoryItem) -> bool:
        hashes = [int(h, 16) for medium in item.media for h in medium.perceptual]
        return any((np.bitwise_count(self._hashes ^ np.uint64(h)) <= MAX_HASH_DISTANCE).any() for h in hashes)

    def require_clean(self, row: int, item: MemoryItem) -> bool:
        """Raise LeakageError for evaluation media, or for a near hash that no comparison of pixels cleared; else return
        whether a hash is near."""
        self._mask.check_hashes([medium.sha256 for medium in item.media], label=f"row {row}, {item.id},")
        is_near = self.is_near(item)
        if is_near and item.screened != self._mask.digest:
            raise LeakageError(
                f"row {row}, {item.id}, looks like evaluation media (pHash) and was never compared with this mask; "
                "delete it, or build the memory again under the mask"
            )
        return is_near


def require_undamaged(memory: MemoryStore) -> None:
    """Read every byte of items and keys; an error names the first damaged row."""
    damaged_row = next(memory.files.damaged_rows(), None)
    if damaged_row is not None:
        memory.files.item(damaged_row)  # says which line; else it is the key
        raise LeakageError(
            f"{memory.folder}: the key of row {damaged_row} is damaged and cannot be audited; "
            f"`pixelis index delete {memory.folder} --row {damaged_row}` takes it out"
        )


def audit_memory(
    memory: MemoryStore,
    mask: EvaluationMask,
    *,
    rng: np.random.Generator,
    queries: int = 10_000,
    k: int = 8,
    progress: ProgressCallback = no_progress,
) -> MemoryAudit:
    """Check every item, then the results of random queries. Raises LeakageError at the first masked hit."""
    if queries < 1:
        raise ConfigError("an audit without queries probes nothing; want at least 1")
    require_undamaged(memory)
    detector = LeakageDetector(mask)
    num_screened = num_near = 0
    for number, (row, item) in enumerate(memory.items(), 1):
        num_near += detector.require_clean(row, item)
        num_screened += item.screened == mask.digest
        progress("checking every item", number, len(memory))
    hits = 0
    for start in range(0, queries, BATCH):
        probes = make_probes(memory, mask, min(BATCH, queries - start), rng)
        for row in np.unique(rows := memory.search_rows(probes, k).rows):
            hit_item = memory.files.item(int(row)) if row >= 0 else None
            if hit_item is not None:
                detector.require_clean(int(row), hit_item)
        hits += int((rows >= 0).sum())
        progress("probing with random queries", min(queries, start + BATCH), queries)
    interval = clopper_pearson(0, queries)  # hits of one query, and of a small memory all hits, are the same items
    return MemoryAudit(
        items=len(memory),
        deleted=len(memory.files.deleted),
        masked_media=len(mask),
        screened=num_screened,
        near_hashes=num_near,
        queries=queries,
        hits=hits,
        masked_hits=0,
        low=interval.low,
        high=interval.high,
        kind=memory.kind,
    )


def make_probes(memory: MemoryStore, mask: EvaluationMask, count: int, rng: np.random.Generator) -> Floats:
    """A third each: random directions, perturbed keys of the memory, and embeddings of evaluation media."""
    text, size = memory.head.text_dimensions, memory.head.dimensions
    probes = normalise_halves(rng.standard_normal((count, size)).astype(np.float32), text)
    if memory.watermark:
        stored_keys = memory.files.keys[rng.integers(0, memory.watermark, len(probes[1::3]))].astype(np.float32)
        probes[1::3] = normalise_halves(stored_keys + 0.3 * probes[1::3], text)
    frame_embeddings = evaluation_embeddings(mask, memory.head.visual_dimensions)
    if len(frame_embeddings):
        sampled = frame_embeddings[rng.integers(0, len(frame_embeddings), len(probes[2::3]))]
        probes[2::3, text:] = normalise_rows(sampled)
    return probes


def evaluation_embeddings(mask: EvaluationMask, dimensions: int) -> NDArray[np.float32]:
    """Embeddings of evaluation frames, if they come from the encoder of the visual halves."""
    features = mask.media.features
    if not features or features[0].embeddings.shape[1] != dimensions:
        return np.zeros((0, dimensions), np.float32)
    return np.stack([f.embeddings[0] for f in features]).astype(np.float32)
