"""The sentence before the answer: how it follows from what the tools' results showed.

A small policy cannot compare or compute within one token. The sentence writes that step out in the numbers and words
that the results printed, so that the answer is a copy, and a reader of the chain can check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from pixelis.data.teachers.oracle import rationales_clips, rationales_pages, rationales_photos, rationales_pictures
from pixelis.data.teachers.oracle.rationale_context import RationaleContext
from pixelis.data.teachers.oracle.rationales_pictures import Wordings, explain_without_numbers
from pixelis.trace.schema import StepDraft
from pixelis.world import Item, Reference
from pixelis.world.programs import Unanswerable
from pixelis.world.vocabulary import fix_articles

RATIONALE_WRITERS: Mapping[str, Callable[[RationaleContext], Wordings]] = {
    **rationales_pictures.RATIONALE_WRITERS,
    **rationales_pages.RATIONALE_WRITERS,
    **rationales_clips.RATIONALE_WRITERS,
    **rationales_photos.RATIONALE_WRITERS,
}
"""For each template the wordings of its conclusion, all of one meaning."""


def write_rationale(
    item: Item,
    notes: Sequence[Reference],
    drafts: Sequence[StepDraft],
    answer_text: str,
    *,
    rng: Generator,
    canonical_wording: bool = False,
) -> str:
    """How an answer follows from the notes, in a short sentence; `words` are the answer, or the option that it names.

    It never contradicts the answer: where rounded numbers would, it goes without them. One draw from `rng`; a plain
    teacher draws nothing and says the first wording.
    """
    context = RationaleContext(item, notes, drafts, answer_text, canonical_wording=canonical_wording)
    try:
        wordings = RATIONALE_WRITERS.get(item.template, explain_without_numbers)(context)
    except (Unanswerable, KeyError, ZeroDivisionError):
        wordings = explain_without_numbers(context)
    sentence = fix_articles(wordings[0 if canonical_wording else int(rng.integers(len(wordings)))])
    return sentence[0].upper() + sentence[1:]
