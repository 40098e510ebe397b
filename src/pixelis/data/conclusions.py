"""The sentence before the answer: how it follows from what the tools' results showed.

A small policy cannot compare or compute within one token. The sentence writes that step out in the numbers and words
that the results printed, so that the answer is a copy, and a reader of the chain can check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from pixelis.data import conclusions_clips, conclusions_pages, conclusions_photos, conclusions_pictures
from pixelis.data.conclusions_pictures import Wordings, plain
from pixelis.data.conclusions_seen import Chain
from pixelis.trace.schema import Draft
from pixelis.world import Item, Reference
from pixelis.world.programs import Unanswerable
from pixelis.world.vocabulary import with_article

SAYINGS: Mapping[str, Callable[[Chain], Wordings]] = {
    **conclusions_pictures.SAYINGS,
    **conclusions_pages.SAYINGS,
    **conclusions_clips.SAYINGS,
    **conclusions_photos.SAYINGS,
}
"""For each template the wordings of its conclusion, all of one meaning."""


def conclude(
    item: Item, notes: Sequence[Reference], drafts: Sequence[Draft], words: str, *, rng: Generator | None
) -> str:
    """How an answer follows from the notes, in a short sentence; `words` are the answer, or the option that it names.

    It never contradicts the answer: where rounded numbers would, it goes without them. One draw from `rng`;
    without it the first wording.
    """
    chain = Chain(item, notes, drafts, words, plain=rng is None)
    try:
        wordings = SAYINGS.get(item.template, plain)(chain)
    except (Unanswerable, KeyError, ZeroDivisionError):
        wordings = plain(chain)
    said = with_article(wordings[0 if rng is None else int(rng.integers(len(wordings)))])
    return said[0].upper() + said[1:]
