"""Small memories for tests: keys drawn at random, items without pixels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from pixelis.memory.keys import Key, normalise_rows
from pixelis.memory.memory_item import MediaHashes, MemoryDraft, MemoryItem, StoredFile
from pixelis.memory.memory_store import MemoryConfig, MemoryStore
from pixelis.memory.vector_index import IndexConfig

TEXT, VISUAL = 24, 40
SMALL = MemoryConfig(
    index=IndexConfig(exact_below=600, m=8, opq_dimensions=32, n_list=8, n_probe=8, opq_keys=600, rerank=64),
    near_duplicate=None,
)
"""An IVF-PQ index from 600 rows on, so that a test can wait for it."""


def keys(count: int, seed: int = 0) -> np.ndarray:
    """(count, 64): 20 topics in each half, and something of one's own."""
    rng = np.random.default_rng(seed)
    parts = []
    for size in (TEXT, VISUAL):
        topics = np.random.default_rng(99).standard_normal((20, size))
        parts.append(normalise_rows(topics[rng.integers(0, 20, count)] + 0.7 * rng.standard_normal((count, size))))
    return np.concatenate(parts, axis=1)


def key(row: np.ndarray) -> Key:
    return Key(row[:TEXT].astype(np.float32), row[TEXT:].astype(np.float32))


def sha(word: object) -> str:
    return hashlib.sha256(str(word).encode()).hexdigest()


def draft(number: int, row: np.ndarray, *, kept: bytes | None = None, medium: str | None = None) -> MemoryDraft:
    files: tuple[StoredFile, ...] = ()
    blobs = {}
    if kept is not None:
        digest = hashlib.sha256(kept).hexdigest()
        files = (StoredFile(role="media", sha256=digest, size_bytes=len(kept), suffix=".png"),)
        blobs = {digest: kept}
    media = MediaHashes(name="Image_0", sha256=sha(medium or number), perceptual=(f"{number * 2654435761:016x}"[-16:],))
    item = MemoryItem(
        id=f"item-{number}", text=f"question {number}", media=(media,), answer=str(number % 7),
        signature=("SEG", "OCR"), value=0.5, curiosity=0.1 * number, coherence=-0.1 * number, files=files,
    )  # fmt: skip
    return MemoryDraft(item, key(row), blobs)


def drafts(rows: np.ndarray, first: int = 0) -> list[MemoryDraft]:
    return [draft(first + k, row) for k, row in enumerate(rows)]


def new_memory(folder: Path, config: MemoryConfig = SMALL, **given: object) -> MemoryStore:
    return MemoryStore.create(
        folder, text_dimensions=TEXT, visual_dimensions=VISUAL, encoders="test", config=config, **given
    )


def exact_mix(stored: np.ndarray, query: np.ndarray, weight: float = 0.5) -> np.ndarray:
    """The convex mix by numpy alone, from the keys in half precision."""
    half = stored.astype(np.float16).astype(np.float64)
    return (1 - weight) * half[:, :TEXT] @ query[:TEXT] + weight * half[:, TEXT:] @ query[TEXT:]
