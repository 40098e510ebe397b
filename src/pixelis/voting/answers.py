"""One question about media: the answer with its confidence and chain of evidence, or the reason why there is none.

Several samples are decided by the vote of phase 3.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.equations.voting import Consensus
from pixelis.media import MediaSet, Medium, open_media
from pixelis.rollout.answer_reading import answer_confidence, caveat, final_answer, found_nothing, shorten
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.models import Model
from pixelis.tools.toolbox import Toolbox, decisive_thresholds
from pixelis.trace.schema import Trace
from pixelis.voting.vote import VoteSettings, to_vote_record, vote

MIN_CONFIDENCE = 0.05
"""Answers with a lower confidence are withheld."""
MARGIN = VoteSettings().delta


class AnswerShare(NamedTuple):
    """One of the sampled answers."""

    answer: str
    share: float
    """Of the weights."""
    samples: int


class VotedAnswer(NamedTuple):
    """The answer to a question, or why there is none."""

    answer: str | None
    confidence: float
    reason: str
    """Why there is no answer; empty otherwise."""
    trace: Trace
    """The chain behind the answer: the most confident of those that give it."""
    blobs: Mapping[str, bytes]
    """Bytes of the trace's artifacts, by their SHA-256."""
    votes: tuple[AnswerShare, ...]
    seconds: float
    vote: dict[str, Any] | None = None
    """For several samples, the record of the vote; its `shown` is the index of the trace's sample."""
    media: tuple[Medium, ...] = ()
    thresholds: Mapping[str, float] = {}
    """Of the tools that were used (`tools.toolbox.decisive_thresholds`)."""

    @property
    def caveat(self) -> str:
        """A warning about missing evidence; empty if something supports the answer."""
        return "" if self.answer is None else caveat(self.trace)


def ask_model(
    model: Model,
    toolbox: Toolbox,
    media: Sequence[str | Path | Medium],
    question: str,
    *,
    samples: int = 1,
    seed: int = 0,
    limits: Limits | None = None,
) -> VotedAnswer:
    """Ask a model: greedily for one sample, at temperature 1 for several."""
    start = time.monotonic()
    opened = tuple(m if isinstance(m, Medium) else open_media(Path(m)) for m in media)
    query = Query("question", question, MediaSet(opened), 0)
    temperature = 0.0 if samples == 1 else 1.0
    (group,) = model.rollout(toolbox, [query], n=samples, seed=seed, temperature=temperature, limits=limits)
    answer = answer_from_rollouts(group, time.monotonic() - start, decisive_thresholds(toolbox.tools))
    return answer._replace(media=opened)


def answer_from_rollouts(group: Sequence[Rollout], seconds: float, thresholds: Mapping[str, float]) -> VotedAnswer:
    """The answer of a group of samples, by the vote of phase 3 without earlier queries."""
    answers = [final_answer(rollout) for rollout in group]
    confidences = [answer_confidence(rollout.trace, thresholds) for rollout in group]
    result = vote(group, thresholds=thresholds)
    outcome = result.consensus
    spellings = {a.casefold(): a for a in reversed(answers) if a}
    counts = Counter(a.casefold() for a in answers if a)
    votes = tuple(AnswerShare(spellings[str(a)], share, counts[str(a)]) for a, share in outcome.scores.items())
    supporters = [k for k, a in enumerate(answers) if a and a.casefold() == outcome.answer]
    best = max(supporters or range(len(group)), key=lambda k: confidences[k])
    confidence = confidences[best] if len(group) == 1 else confidences[best] * (votes[0].share if votes else 0.0)
    reason = why_abstained(group, best, bool(supporters), confidence, outcome)
    chosen = group[best]
    answer = None if reason else answers[best]
    vote_record = {**to_vote_record(result), "shown": best} if len(group) > 1 else None
    return VotedAnswer(
        answer, confidence, reason, chosen.trace, chosen.blobs, votes, seconds, vote_record, thresholds=thresholds
    )


def why_abstained(group: Sequence[Rollout], best: int, has_answer: bool, confidence: float, outcome: Consensus) -> str:
    """Why there is no answer; empty otherwise."""
    rollout = group[best]
    if not has_answer:
        failed = [step.result for step in rollout.trace.steps if not step.result.ok or found_nothing(step.result)]
        last = f"; {failed[-1].error or f'{failed[-1].tool}: {failed[-1].text}'}" if failed else ""
        return {
            "answered": f"the policy says that it cannot be told{last}",
            "stuck": f"one invalid or repeated call after another{last}",
            "steps": f"no answer within {len(rollout.trace.steps)} calls{last}",
            "tokens": "no answer within the limit of tokens",
            "seconds": "no answer within the limit of time",
            "refused": f"the server refused to go on: {rollout.detail}",
        }.get(rollout.end_reason, f"the policy wrote neither a call nor an answer{last}")
    if confidence < MIN_CONFIDENCE:
        return f"the best guess, {shorten(final_answer(rollout) or '')!r}, has a confidence of only {confidence:.2f}"
    if len(group) > 1 and not outcome.accepted:
        return f"the samples do not agree (margin {outcome.margin:.2f}, want {MARGIN:.2f})"
    return ""
