"""From a trajectory to a draft of the memory: first the evaluation mask, then a vector (supp:index_whitelist_dedup)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_features import FeatureCache, ImageEncoder, compute_features
from pixelis.media import MediaSet
from pixelis.memory.keys import KeyMaker, join_thoughts, tool_signature
from pixelis.memory.memory_item import MediaHashes, MemoryDraft, MemoryItem, StoredFile
from pixelis.trace.schema import Trace, canonical_json


class PolicyScores(NamedTuple):
    """How a policy values a trajectory; None if none has scored it."""

    value: float | None = None
    curiosity: float | None = None
    coherence: float | None = None


def screen_media(
    media: MediaSet,
    encoder: ImageEncoder,
    mask: EvaluationMask | None,
    *,
    label: str,
    cache: FeatureCache | None = None,
) -> tuple[MediaHashes, ...]:
    """Hash every medium; LeakageError, with its name, if one is evaluation media or a changed copy of it."""
    if mask is not None:  # hashes are checked first: they need no pixels
        for name, medium in zip(media.names, media.sources, strict=False):
            mask.check_hashes([medium.sha256], label=f"{label}/{name}")
    hashes = []
    for name, medium in zip(media.names, media.sources, strict=False):
        features = cache.get(medium.sha256, encoder) if cache else None
        if features is None:
            features = compute_features(medium, encoder)
            if cache:
                cache.put(features, encoder)
        if mask is not None:
            mask.check_medium(medium, encoder, label=f"{label}/{name}", precomputed=features)
        hashes.append(MediaHashes.from_features(features, name=name))
    return tuple(hashes)


def build_draft(
    trace: Trace,
    media: MediaSet,
    keys: KeyMaker,
    *,
    mask: EvaluationMask | None,
    item_id: str | None = None,
    scores: PolicyScores = PolicyScores(),
    attachments: Sequence[tuple[bytes, str]] = (),
    attach_trace: bool = False,
    cache: FeatureCache | None = None,
) -> MemoryDraft:
    """Make an item with its key from a trajectory. `keep` holds media files to store, as bytes and suffix (".png").

    Raises LeakageError before a vector is computed if a medium belongs to evaluation.
    """
    name = item_id or trace.id
    hashes = screen_media(media, keys.visual, mask, label=name, cache=cache)
    files = [(StoredFile(role="media", sha256=sha256_hex(c), size_bytes=len(c), suffix=s), c) for c, s in attachments]
    if attach_trace:
        line = canonical_json(trace.model_dump(mode="json")) + b"\n"
        stored_file = StoredFile(role="trace", sha256=sha256_hex(line), size_bytes=len(line), suffix=".jsonl")
        files.append((stored_file, line))
    item = MemoryItem(
        id=name,
        text=keys.key_text(trace.query, join_thoughts(trace)),
        media=hashes,
        answer=trace.answer or "",
        signature=tool_signature(trace),
        value=scores.value,
        curiosity=scores.curiosity,
        coherence=scores.coherence,
        files=tuple(stored_file for stored_file, _ in files),
        screened=mask.digest if mask is not None else None,
    )
    return MemoryDraft(
        item, keys.key_for_trace(trace, media), {stored_file.sha256: content for stored_file, content in files}
    )


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
