"""A corpus as drafts of the retrieval memory: the accepted trajectories that a policy may lean on at test time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from pixelis.core.errors import LeakageError, MediaError
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.record import Split
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_features import FeatureCache
from pixelis.memory.builder import build_draft
from pixelis.memory.keys import KeyMaker
from pixelis.memory.memory_item import MemoryDraft

EVALUATION_SPLITS: tuple[Split, ...] = ("dev", "dev-cal", "test")
"""Splits whose media a memory may never hold."""


class CorpusDraft(NamedTuple):
    """What became of a record: a draft, or why there is none."""

    id: str
    draft: MemoryDraft | None
    reason: str = ""


def prepare_drafts(
    corpus: Corpus,
    keys: KeyMaker,
    *,
    mask: EvaluationMask | None,
    known_ids: Collection[str] = (),
    is_deleted: Callable[[str], bool] = lambda item_id: False,
    keep_traces: bool = False,
    cache: FeatureCache | None = None,
) -> Iterator[CorpusDraft]:
    """A draft for each accepted record of `train` that is not known by its id, and was not deleted; what leaks or does
    not open is named.

    Value, curiosity and coherence are a policy's to say: phase 3 writes them when it has one.
    """
    for record in corpus.records(split="train", accepted=True):
        record_id = record.item.id
        if record_id in known_ids or is_deleted(record_id):
            yield CorpusDraft(record_id, None, "known" if record_id in known_ids else "deleted")
            continue
        try:
            media = corpus.media(record)
            draft = build_draft(
                record.trace, media, keys, mask=mask, item_id=record_id, attach_trace=keep_traces, cache=cache
            )
        except (LeakageError, MediaError) as error:
            yield CorpusDraft(record_id, None, str(error))
            continue
        yield CorpusDraft(record_id, draft)
