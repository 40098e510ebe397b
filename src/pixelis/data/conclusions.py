"""The sentence before the answer: how it follows from what the tools' results showed.

A small policy cannot compare or compute within one token. The sentence writes that step out in the numbers and words
that the results printed, so that the answer is a copy, and a reader of the chain can check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from pixelis.data import conclusions_clips, conclusions_pages, conclusions_photos, conclusions_pictures
from pixelis.data.conclusions_pictures import Wordings, unexplained
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
    item: Item, notes: Sequence[Reference], drafts: Sequence[Draft], words: str, *, rng: Generator, plain: bool = False
) -> str:
    """How an answer follows from the notes, in a short sentence; `words` are the answer, or the option that it names.

    It never contradicts the answer: where rounded numbers would, it goes without them. One draw from `rng`; a plain
    teacher draws nothing and says the first wording.
    """
    chain = Chain(item, notes, drafts, words, plain=plain)
    try:
        wordings = SAYINGS.get(item.template, unexplained)(chain)
    except (Unanswerable, KeyError, ZeroDivisionError):
        wordings = unexplained(chain)
    said = with_article(wordings[0 if plain else int(rng.integers(len(wordings)))])
    return said[0].upper() + said[1:]
