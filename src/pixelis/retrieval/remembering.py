"""From a trajectory to a draft of the memory: first the evaluation mask, then a vector (supp:index_whitelist_dedup)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from pixelis.media import MediaSet
from pixelis.retrieval.features import FeatureCache, ImageEncoder, features_of
from pixelis.retrieval.keys import KeyMaker, signature_of, thoughts_of
from pixelis.retrieval.mask import EvaluationMask
from pixelis.retrieval.memory_item import Draft, KeptFile, MediaHashes, MemoryItem
from pixelis.trace.schema import Trace, canonical_json


class Worth(NamedTuple):
    """What a policy made of a trajectory; None where none has judged it."""

    value: float | None = None
    curiosity: float | None = None
    coherence: float | None = None


def screened(
    media: MediaSet,
    encoder: ImageEncoder,
    mask: EvaluationMask | None,
    *,
    what: str,
    cache: FeatureCache | None = None,
) -> tuple[MediaHashes, ...]:
    """The hashes of every medium; LeakageError, naming it, where one is evaluation media or a changed copy."""
    if mask is not None:  # hashes are instant: no pixel is looked at where one of them tells
        for name, medium in zip(media.names, media.given, strict=False):
            mask.refuse([medium.sha256], what=f"{what}/{name}")
    found = []
    for name, medium in zip(media.names, media.given, strict=False):
        features = cache.get(medium.sha256, encoder) if cache else None
        if features is None:
            features = features_of(medium, encoder)
            if cache:
                cache.put(features, encoder)
        if mask is not None:
            mask.refuse_medium(medium, encoder, what=f"{what}/{name}", known=features)
        found.append(MediaHashes.of(features, name=name))
    return tuple(found)


def remember(
    trace: Trace,
    media: MediaSet,
    keys: KeyMaker,
    *,
    mask: EvaluationMask | None,
    id: str | None = None,
    worth: Worth = Worth(),
    keep: Sequence[tuple[bytes, str]] = (),
    keep_trace: bool = False,
    cache: FeatureCache | None = None,
) -> Draft:
    """A trajectory as an item with its key. `keep` are media files as bytes and suffix (".png"), removed with the item.

    LeakageError before a vector is made where a medium belongs to evaluation.
    """
    name = id or trace.id
    hashes = screened(media, keys.visual, mask, what=name, cache=cache)
    files = [(KeptFile(role="media", sha256=sha256_of(c), size_bytes=len(c), suffix=s), c) for c, s in keep]
    if keep_trace:
        line = canonical_json(trace.model_dump(mode="json")) + b"\n"
        kept = KeptFile(role="trace", sha256=sha256_of(line), size_bytes=len(line), suffix=".jsonl")
        files.append((kept, line))
    item = MemoryItem(
        id=name,
        text=keys.key_text(trace.query, thoughts_of(trace)),
        media=hashes,
        answer=trace.answer or "",
        signature=signature_of(trace),
        value=worth.value,
        curiosity=worth.curiosity,
        coherence=worth.coherence,
        files=tuple(kept for kept, _ in files),
        screened=mask.digest if mask is not None else None,
    )
    return Draft(item, keys.of_trace(trace, media), {kept.sha256: content for kept, content in files})


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
