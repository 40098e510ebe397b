"""Drafts for the retrieval memory from the accepted trajectories of a corpus."""

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
"""Splits whose media a memory must not contain."""


class CorpusDraft(NamedTuple):
    """The draft of a record, or the reason why there is none."""

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
    """A draft for each accepted record of `train` whose id is neither known nor deleted, or a reason.

    Value, curiosity and coherence depend on a policy: phase 3 writes them.
    """
    for record in corpus.records(split="train", accepted=True):
        record_id = record.item.id
        draft, reason = None, "known" if record_id in known_ids else "deleted" if is_deleted(record_id) else ""
        if not reason:
            try:
                draft = build_draft(
                    record.trace, corpus.media(record), keys,
                    mask=mask, item_id=record_id, attach_trace=keep_traces, cache=cache,
                )  # fmt: skip
            except (LeakageError, MediaError) as error:
                reason = str(error)
        yield CorpusDraft(record_id, draft, reason)
