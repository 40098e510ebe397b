"""A corpus as drafts of the retrieval memory: the accepted trajectories that a policy may lean on at test time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from pixelis.data.record import Split
from pixelis.data.store import Corpus
from pixelis.errors import LeakageError, MediaError
from pixelis.retrieval.features import FeatureCache
from pixelis.retrieval.keys import KeyMaker
from pixelis.retrieval.mask import EvaluationMask
from pixelis.retrieval.memory_item import Draft
from pixelis.retrieval.remembering import remember

EVALUATION: tuple[Split, ...] = ("dev", "dev-cal", "test")
"""Splits whose media a memory may never hold."""


class Prepared(NamedTuple):
    """What became of a record: a draft, or why there is none."""

    id: str
    draft: Draft | None
    reason: str = ""


def drafts_of(
    corpus: Corpus,
    keys: KeyMaker,
    *,
    mask: EvaluationMask | None,
    known: Collection[str] = (),
    deleted: Callable[[str], bool] = lambda item_id: False,
    keep_traces: bool = False,
    cache: FeatureCache | None = None,
) -> Iterator[Prepared]:
    """A draft for each accepted record of `train` that is not known by its id, and was not deleted; what leaks or does
    not open is named.

    Value, curiosity and coherence are a policy's to say: phase 3 writes them when it has one.
    """
    for record in corpus.records(split="train", accepted=True):
        name = record.item.id
        if name in known or deleted(name):
            yield Prepared(name, None, "known" if name in known else "deleted")
            continue
        try:
            media = corpus.media(record)
            draft = remember(record.trace, media, keys, mask=mask, id=name, keep_trace=keep_traces, cache=cache)
        except (LeakageError, MediaError) as error:
            yield Prepared(name, None, str(error))
            continue
        yield Prepared(name, draft)
