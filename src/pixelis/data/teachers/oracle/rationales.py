"""The sentence before the answer: how it follows from what the tools' results showed.

A small policy cannot compare or compute within one token. The sentence writes that step out in the numbers and words
that the results printed, so that the answer is a copy, and a reader of the trace can check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from pixelis.data.teachers.oracle import rationales_clips, rationales_pages, rationales_photos, rationales_pictures
from pixelis.data.teachers.oracle.rationale_context import RationaleContext, Wordings
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
"""Writers of the templates whose wordings depend on the notes. The others have wordings under their own name."""


def write_rationale(
    item: Item,
    notes: Sequence[Reference],
    drafts: Sequence[StepDraft],
    answer_text: str,
    *,
    rng: Generator,
    canonical_wording: bool = False,
) -> str:
    """How an answer follows from the notes, in a short sentence; for multiple choice the answer is the option's text.

    It never contradicts the answer: if rounded numbers would, it omits them. One draw from `rng` chooses the wording;
    with canonical wording nothing is drawn, and the first is taken.
    """
    context = RationaleContext(item, notes, drafts, answer_text, canonical_wording=canonical_wording)
    writer = RATIONALE_WRITERS.get(item.template, lambda context: context.say(item.template))
    try:
        wordings = writer(context)
    except (Unanswerable, KeyError, ZeroDivisionError):
        wordings = context.say("without_numbers")
    sentence = fix_articles(wordings[0 if canonical_wording else int(rng.integers(len(wordings)))])
    return sentence[0].upper() + sentence[1:]
