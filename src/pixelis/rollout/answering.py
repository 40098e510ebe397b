"""One question about some media: the answer, how sure it is, and the chain of evidence; or that it cannot be told.

Several samples are put to a vote. Chains of equal calls and answer are one vote, so that repetition does not win;
phase 3 (`scoring.consensus`) also joins those that nearly agree.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pixelis.equations.calibration import raw_confidence
from pixelis.equations.voting import consensus, one_vote_each
from pixelis.media import MediaSet, Medium, open_media
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.models import Model
from pixelis.tools.results import ToolResult
from pixelis.tools.toolbox import Toolbox
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.schema import Trace, canonical_json

UNTOLD = ("i cannot tell", "cannot tell", "unknown")
LEAST_CONFIDENCE = 0.05
"""An answer that is less sure than this is not given."""
UNSTATED = 0.5
"""How sure an answer is of which neither the tokens' probabilities are known nor the model says anything."""
UNSEEN = 0.5
"""What is left of the confidence of an answer about media for which nothing was found, or no call was made: what was
not found may still be there, and what was not looked for is a guess."""
IN_VAIN = re.compile("(SEG|PROP) found nothing|TEMP saw nothing")
"""How tools word it that there was nothing to find."""
GUESS_LETTERS = 80
MARGIN = 0.08
"""δ of the vote (tab:risk_coverage): how far the first answer must lie before the second."""


class Vote(NamedTuple):
    """One answer among the samples."""

    answer: str
    share: float
    """Of the weights."""
    samples: int


class Answer(NamedTuple):
    """What came of a question."""

    answer: str | None
    confidence: float
    reason: str
    """Why it cannot be told; empty where there is an answer."""
    trace: Trace
    """The chain behind the answer: the surest of those that give it."""
    blobs: Mapping[str, bytes]
    """Bytes of the trace's artifacts, by their SHA-256."""
    votes: tuple[Vote, ...]
    seconds: float

    @property
    def caveat(self) -> str:
        """What whoever reads the answer must know about its evidence; empty where something backs it."""
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
) -> Answer:
    """Ask once: greedily for one sample, at temperature 1 for several."""
    start = time.monotonic()
    opened = tuple(m if isinstance(m, Medium) else open_media(Path(m)) for m in media)
    query = Query("question", question, MediaSet(opened), 0)
    temperature = 0.0 if samples == 1 else 1.0
    (group,) = model.rollout(toolbox, [query], n=samples, seed=seed, temperature=temperature, limits=limits)
    return settled(group, time.monotonic() - start)


def settled(group: Sequence[Rollout], seconds: float) -> Answer:
    """The answer of a group of samples."""
    answers = [spoken(rolled) for rolled in group]
    sure = [sureness(rolled.trace) for rolled in group]
    weights = one_vote_each(np.asarray(sure), _same_looks(group))
    vote = consensus([a.casefold() if a else None for a in answers], weights, delta=MARGIN)
    spelt = {a.casefold(): a for a in reversed(answers) if a}
    said = Counter(a.casefold() for a in answers if a)
    votes = tuple(Vote(spelt[str(key)], share, said[str(key)]) for key, share in vote.scores.items())
    fits = [k for k, a in enumerate(answers) if a and vote.answer is not None and a.casefold() == vote.answer]
    best = max(fits or range(len(group)), key=lambda k: sure[k])
    confidence = sure[best] if len(group) == 1 else sure[best] * (votes[0].share if votes else 0.0)
    reason = why_not(group, best, bool(fits), confidence, vote.margin)
    chosen = group[best]
    answer = None if reason else answers[best]
    return Answer(answer, confidence, reason, chosen.trace, chosen.blobs, votes, seconds)


def sureness(trace: Trace) -> float:
    """p_raw: how likely the answer's tokens were, times how sure the tools were that it rests on.

    Those are the decisive steps; where there is none, every step that found something.
    A policy copies what it reads with a probability near 1: the tokens alone would say nothing about a misread. For a
    server that gives no log-probabilities, what the model states stands in their place, or else `UNSTATED`.
    """
    if trace.answer is None:
        return 0.0
    decided = decisive_steps(trace)
    told = [
        (decision.decisive, step.result.confidence)
        for step, decision in zip(trace.steps, decided, strict=True)
        if step.result.ok and step.result.confidence is not None
    ]
    tools = [sure for decisive, sure in told if decisive] or [sure for _, sure in told]
    stated = UNSTATED if trace.answer_confidence is None else trace.answer_confidence
    return raw_confidence(stated, tools) * (1.0 if backed(trace) else UNSEEN)


def backed(trace: Trace) -> bool:
    """Whether anything was found that could back an answer."""
    return any(step.result.ok and not in_vain(step.result) for step in trace.steps) or not (trace.steps or trace.media)


def in_vain(result: ToolResult) -> bool:
    """Whether a call looked and there was nothing: no region, no moment, no text."""
    return IN_VAIN.search(result.error or "") is not None or (result.tool == "OCR" and result.output.get("lines") == 0)


def caveat(trace: Trace) -> str:
    """What whoever reads an answer must know about its evidence; empty where something backs it."""
    if backed(trace):
        return ""
    if any(in_vain(step.result) for step in trace.steps):
        return "nothing was found, and the answer rests on that alone"
    return "no call succeeded: nothing that was looked at backs this answer"


def spoken(rolled: Rollout) -> str | None:
    """The answer of one sample, if it gives one."""
    said = (rolled.answer or "").strip()
    return said if said and said.casefold().rstrip(".") not in UNTOLD else None


def why_not(group: Sequence[Rollout], best: int, answered: bool, confidence: float, margin: float) -> str:
    """Why there is no answer, in a sentence; empty where there is one."""
    rolled = group[best]
    if not answered:
        failed = [step.result for step in rolled.trace.steps if not step.result.ok or in_vain(step.result)]
        last = f"; {failed[-1].error or f'{failed[-1].tool}: {failed[-1].text}'}" if failed else ""
        return {
            "answered": f"the policy says that it cannot be told{last}",
            "stuck": f"one invalid or repeated call after another{last}",
            "steps": f"no answer within {len(rolled.trace.steps)} calls{last}",
            "tokens": "no answer within the limit of tokens",
            "seconds": "no answer within the limit of time",
            "refused": f"the server refused to go on: {rolled.detail}",
        }.get(rolled.ended, f"the policy wrote neither a call nor an answer{last}")
    if confidence < LEAST_CONFIDENCE:
        return f"the best guess, {shortened(spoken(rolled) or '')!r}, has a confidence of only {confidence:.2f}"
    if len(group) > 1 and margin < MARGIN:
        return f"the samples do not agree (margin {margin:.2f}, want {MARGIN:.2f})"
    return ""


def shortened(text: str, most: int = GUESS_LETTERS) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}…"


def _same_looks(group: Sequence[Rollout]) -> list[int]:
    """A number for each sample, equal where the calls and the answer are equal."""
    known: dict[bytes, int] = {}
    return [
        known.setdefault(
            canonical_json([[s.call.tool, s.call.args] for s in rolled.trace.steps] + [rolled.answer]), len(known)
        )
        for rolled in group
    ]
