"""What one rollout answers, how sure that is, and what backs it."""

from __future__ import annotations

import re

from pixelis.equations.calibration import raw_confidence
from pixelis.rollout.episode import Rollout
from pixelis.tools.results import ToolResult
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.schema import Trace

UNTOLD = ("i cannot tell", "cannot tell", "unknown")
UNSTATED = 0.5
"""How sure an answer is of which neither the tokens' probabilities are known nor the model says anything."""
UNSEEN = 0.5
"""What is left of the confidence of an answer about media for which nothing was found, or no call was made: what was
not found may still be there, and what was not looked for is a guess."""
IN_VAIN = re.compile("(SEG|PROP) found nothing|TEMP saw nothing")
"""How tools word it that there was nothing to find."""
GUESS_LETTERS = 80


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


def shortened(text: str, most: int = GUESS_LETTERS) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}…"
