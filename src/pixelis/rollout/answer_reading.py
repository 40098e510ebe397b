"""What one rollout answers, how sure that is, and what backs it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pixelis.equations.calibration import raw_confidence
from pixelis.rollout.episode import Rollout
from pixelis.tools.results import ToolResult
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.schema import Trace

ABSTENTIONS = ("i cannot tell", "cannot tell", "unknown")
DEFAULT_CONFIDENCE = 0.5
"""How sure an answer is of which neither the tokens' probabilities are known nor the model says anything."""
NO_EVIDENCE_FACTOR = 0.5
"""What is left of the confidence of an answer about media for which nothing was found, or no call was made: what was
not found may still be there, and what was not looked for is a guess."""
NOTHING_FOUND = re.compile("(SEG|PROP) found nothing|TEMP saw nothing")
"""How tools word it that there was nothing to find."""
MAX_GUESS_CHARACTERS = 80


def answer_confidence(trace: Trace, thresholds: Mapping[str, float]) -> float:
    """p_raw: how likely the answer's tokens were, times how sure the tools were that it rests on.

    Those are the decisive steps; where there is none, every step that found something.
    A policy copies what it reads with a probability near 1: the tokens alone would say nothing about a misread. For a
    server that gives no log-probabilities, what the model states stands in their place, or else `UNSTATED`.
    """
    if trace.answer is None:
        return 0.0
    decisions = decisive_steps(trace, thresholds)
    confidences = [
        (decision.decisive, step.result.confidence)
        for step, decision in zip(trace.steps, decisions, strict=True)
        if step.result.ok and step.result.confidence is not None
    ]
    tools = [confidence for decisive, confidence in confidences if decisive] or [
        confidence for _, confidence in confidences
    ]
    stated = DEFAULT_CONFIDENCE if trace.answer_confidence is None else trace.answer_confidence
    return raw_confidence(stated, tools) * (1.0 if has_evidence(trace) else NO_EVIDENCE_FACTOR)


def has_evidence(trace: Trace) -> bool:
    """Whether anything was found that could back an answer."""
    return any(step.result.ok and not found_nothing(step.result) for step in trace.steps) or not (
        trace.steps or trace.media
    )


def found_nothing(result: ToolResult) -> bool:
    """Whether a call looked and there was nothing: no region, no moment, no text."""
    return NOTHING_FOUND.search(result.error or "") is not None or (
        result.tool == "OCR" and result.output.get("lines") == 0
    )


def caveat(trace: Trace) -> str:
    """What whoever reads an answer must know about its evidence; empty where something backs it."""
    if has_evidence(trace):
        return ""
    if any(found_nothing(step.result) for step in trace.steps):
        return "nothing was found, and the answer rests on that alone"
    return "no call succeeded: nothing that was looked at backs this answer"


def final_answer(rollout: Rollout) -> str | None:
    """The answer of one sample, if it gives one."""
    answer = (rollout.answer or "").strip()
    return answer if answer and answer.casefold().rstrip(".") not in ABSTENTIONS else None


def shorten(text: str, limit: int = MAX_GUESS_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit].rstrip()}…"
