"""The answer of one rollout, its confidence and its evidence."""

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
"""The confidence of an answer without token probabilities or a stated confidence."""
NO_EVIDENCE_FACTOR = 0.5
"""Multiplies the confidence of an answer about media without evidence: what was not found may still be there, and what
was not looked for is a guess."""
NOTHING_FOUND = re.compile("(SEG|PROP) found nothing|TEMP saw nothing")
"""The tools' wording when they find nothing."""
MAX_GUESS_CHARACTERS = 80


def answer_confidence(trace: Trace, thresholds: Mapping[str, float]) -> float:
    """p_raw: the probability of the answer's tokens times the confidence of the tools on which it rests.

    Those are the decisive steps, or else all steps that found something. A policy copies what it reads with a
    probability near 1: the tokens alone would say nothing about a misread. Without log-probabilities, what the model
    states takes their place, or else `DEFAULT_CONFIDENCE`.
    """
    if trace.answer is None:
        return 0.0
    decisions = decisive_steps(trace, thresholds)
    pairs = [(d.decisive, s.result) for s, d in zip(trace.steps, decisions, strict=True) if s.result.ok]
    found = [(decisive, result.confidence) for decisive, result in pairs if result.confidence is not None]
    tools = [confidence for decisive, confidence in found if decisive] or [confidence for _, confidence in found]
    stated = DEFAULT_CONFIDENCE if trace.answer_confidence is None else trace.answer_confidence
    return raw_confidence(stated, tools) * (1.0 if has_evidence(trace) else NO_EVIDENCE_FACTOR)


def has_evidence(trace: Trace) -> bool:
    """Whether anything was found that could support an answer."""
    found_something = any(step.result.ok and not found_nothing(step.result) for step in trace.steps)
    return found_something or not (trace.steps or trace.media)


def found_nothing(result: ToolResult) -> bool:
    """Whether a call ran and found nothing: no region, no moment, no text."""
    read_nothing = result.tool == "OCR" and result.output.get("lines") == 0
    return read_nothing or NOTHING_FOUND.search(result.error or "") is not None


def caveat(trace: Trace) -> str:
    """A warning to the reader of an answer without evidence; empty otherwise."""
    if has_evidence(trace):
        return ""
    if any(found_nothing(step.result) for step in trace.steps):
        return "nothing was found, and the answer rests on that alone"
    return "no call succeeded: nothing that was looked at backs this answer"


def final_answer(rollout: Rollout) -> str | None:
    """The answer of one rollout; None if it abstains."""
    answer = (rollout.answer or "").strip()
    return answer if answer and answer.casefold().rstrip(".") not in ABSTENTIONS else None


def shorten(text: str, limit: int = MAX_GUESS_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit].rstrip()}…"
