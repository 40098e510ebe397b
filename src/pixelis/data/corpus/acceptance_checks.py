"""Acceptance of traces into the corpus: operator checks, S(τ), decisive steps, rights (sec:data).

τ ∈ D ⟺ all operators pass ∧ S(τ) ≥ τ₀, with S from components in [0, 1]:
    S_logic   the answer is correct and follows from observations of the trace;
    S_struct  calls are valid and distinct, and the trace is not too long;
    S_visual  mean verifier score of the decisive steps.
"All operators" are the steps that support the answer: failed detours that are corrected are intended, so their checks
are reported without rejecting the trace. A lucky guess, or a wrong answer after valid calls, is rejected whatever its
S(τ). The threshold applies to the raw sum; `corpus_stats` reports the z-scored variant beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Score, Value
from pixelis.data.corpus.record import duration_stratum
from pixelis.equations.acceptance import is_accepted, trajectory_score
from pixelis.items import CORRECT_THRESHOLD, Item
from pixelis.tools.results import ToolResult
from pixelis.tools.toolbox import builtin_thresholds
from pixelis.trace.decisive import decisive_steps, extract_arguments, used_by_answer, used_by_call
from pixelis.trace.schema import Trace, canonical_json
from pixelis.trace.tool_call_parser import ParsedCall, format_call, parse_call

if TYPE_CHECKING:
    from pixelis.verification.operators import Verdict

TAU_0 = 0.65
MAX_UNPENALISED_STEPS = 16
"""Steps of the longest trace without a penalty."""
VERIFIER_FAILED = "the verifier failed"
"""Prefix of the metric of a step whose verifier raised an error on the tool's result."""
UNGROUNDED_FACTOR = 0.5
"""Factor for a correct answer that no observation of the trace supports."""


class StepCheck(Value):
    """The checks of one step."""

    tool: str
    status: str
    decisive: bool
    carries: bool
    """The step supports the answer, directly or through a later step."""
    passed: bool | None = None
    """The operator check; None if no reference applies."""
    score: Score | None = None
    metric: str = ""


class Judgement(Value):
    """The verdict on one trace."""

    accepted: bool
    reasons: tuple[str, ...] = ()
    """Reasons for rejection; empty if accepted."""
    logic: Score
    struct: Score
    visual: Score
    score: float
    """S(τ), the raw weighted sum."""
    steps: tuple[StepCheck, ...]

    @property
    def decisive(self) -> tuple[int, ...]:
        return tuple(k for k, step in enumerate(self.steps) if step.decisive)


def check_step(result: ToolResult, item: Item) -> tuple[Verdict | None, str]:
    """The verdict on a step, or None and a message if its verifier raised: one step must not stop a run."""
    from pixelis.verification.operators import verify_step

    try:
        return verify_step(result, item.references), ""
    except (ArithmeticError, LookupError, TypeError, ValueError, cv2.error) as error:
        return None, f"{VERIFIER_FAILED}: {type(error).__name__}: {error}"[:200]


def judge_trace(
    item: Item,
    trace: Trace,
    *,
    cited: Sequence[int] | None = None,
    thresholds: Mapping[str, float] | None = None,
    tau_0: float = TAU_0,
) -> Judgement:
    """Check, score and decide. `cited` are the steps, from 0, from which the teacher computed its answer, if known.

    `thresholds` are those of the tools that ran (`decisive_thresholds`); without them the built-in tools'.
    """
    from pixelis.verification.rights import rights_reasons

    checks = [check_step(step.result, item) for step in trace.steps]
    verdicts = [verdict for verdict, _ in checks]
    decisive = decisive_positions(trace, cited, thresholds or builtin_thresholds())
    supporting = supporting_steps(trace, cited, decisive)
    logic, struct = s_logic(item, trace, supporting), s_struct(trace)
    visual = s_visual(verdicts, decisive)
    score = float(trajectory_score(logic, struct, visual))
    failed = [k for k in sorted(supporting) if (v := verdicts[k]) is not None and not v.passed]
    reasons = [*rights_reasons(item), *(_failure_reason(k, trace, verdicts[k]) for k in failed)]
    if item.required_tools and not supporting:
        reasons.append("nothing that was observed leads to the answer")
    if trace.answer and item.score(trace.answer) < CORRECT_THRESHOLD:
        reasons.append("the answer is wrong")
    if score < tau_0:
        parts = f"logic {logic:.2f}, struct {struct:.2f}, visual {visual:.2f}"
        reasons.append(f"S = {score:.3f} is under {tau_0:g}: {parts}")
    steps = tuple(
        StepCheck(
            tool=step.result.tool,
            status=step.result.status,
            decisive=k in decisive,
            carries=k in supporting,
            passed=verdict.passed if verdict else None,
            score=round(verdict.score, 6) if verdict else None,
            metric=verdict.metric if verdict else message,
        )
        for k, (step, (verdict, message)) in enumerate(zip(trace.steps, checks, strict=True))
    )
    return Judgement(
        accepted=is_accepted(score, [not reasons], tau_0=tau_0),
        reasons=tuple(reasons),
        logic=round(logic, 6),
        struct=round(struct, 6),
        visual=round(visual, 6),
        score=round(score, 6),
        steps=steps,
    )


def _failure_reason(k: int, trace: Trace, verdict: Verdict | None) -> str:
    assert verdict is not None  # noqa: S101 - only failed verdicts come here
    offset = f", {verdict.offset_s:.2f} s off" if verdict.offset_s else ""
    return f"step {k + 1} ({trace.steps[k].result.tool}) fails its check: {verdict.metric} {verdict.score:.2f}{offset}"


# --- which steps count


def decisive_positions(trace: Trace, cited: Sequence[int] | None, thresholds: Mapping[str, float]) -> frozenset[int]:
    """Steps that are decisive by the trace, and the confident ones among those that the teacher cites.

    The answer of a count or a comparison does not contain its operands, so the trace alone cannot show their use.
    """
    positions = {k for k, decision in enumerate(decisive_steps(trace, thresholds)) if decision.decisive}
    for k in cited or ():
        result = trace.steps[k].result
        if result.ok and (result.confidence is None or result.confidence >= thresholds.get(result.tool, 0.5)):
            positions.add(k)
    return frozenset(positions)


def supporting_steps(trace: Trace, cited: Sequence[int] | None, decisive: frozenset[int]) -> frozenset[int]:
    """Steps that support the answer: cited ones (or those it repeats), and the steps whose results they use."""
    final_steps = set(cited) if cited is not None else {
        k for k, step in enumerate(trace.steps) if used_by_answer(step, trace.answer or "") is not None
    }  # fmt: skip
    if not final_steps:
        return decisive if cited is None else frozenset()
    views = dict(zip(trace.views, (s.result.view for s in trace.steps), strict=True))
    call_arguments = [extract_arguments(step, trace.media, views) for step in trace.steps]
    supporting = {k for k in final_steps if trace.steps[k].result.ok}
    for k in reversed(range(len(trace.steps))):
        if trace.steps[k].result.ok and any(j > k and used_by_call(trace, k, call_arguments[j]) for j in supporting):
            supporting.add(k)
    return frozenset(supporting)


# --- components of S(τ), each in [0, 1]


def s_logic(item: Item, trace: Trace, supporting: frozenset[int]) -> float:
    """Score of the answer; reduced if a tool is required and no observation supports it."""
    if not trace.answer:
        return 0.0
    answer_score = item.score(trace.answer)
    return answer_score if supporting or not item.required_tools else UNGROUNDED_FACTOR * answer_score


def s_struct(trace: Trace) -> float:
    """Share of valid calls, times the share of distinct calls, times a penalty on length."""
    count = len(trace.steps)
    if not count:
        return 1.0
    valid = sum(step.result.status != "invalid" and _is_well_formed(step.call) for step in trace.steps)
    distinct = len({canonical_json([step.call.tool, step.call.args]) for step in trace.steps})
    return valid / count * distinct / count * min(1.0, MAX_UNPENALISED_STEPS / count)


def _is_well_formed(call: object) -> bool:
    """Whether the call is parsed back from its own text."""
    parsed = parse_call(format_call(call))  # type: ignore[arg-type]
    return isinstance(parsed, ParsedCall) and parsed.call == call


def s_visual(verdicts: Sequence[Verdict | None], decisive: frozenset[int]) -> float:
    """Mean verifier score of the verifiable decisive steps; 1 if there are none, so that logic alone decides."""
    scores = [verdict.score for k in decisive if (verdict := verdicts[k]) is not None]
    return float(np.mean(scores)) if scores else 1.0


# --- over a corpus


class Stratum(NamedTuple):
    """Task, tool and temporal span of a trace (sec:data)."""

    task: str
    tool: str
    """The most used tool; `none` for a trace without calls."""
    span: str


def trace_stratum(item: Item, trace: Trace) -> Stratum:
    """The stratum of one trace."""
    tool_counts = Counter(step.result.tool for step in trace.steps if step.result.ok)
    tool = min(tool_counts, key=lambda name: (-tool_counts[name], name)) if tool_counts else "none"
    return Stratum(item.family, tool, duration_stratum(item))


def strata_report(strata: Sequence[Stratum]) -> dict[str, dict[str, float]]:
    """The share of each value on each axis."""
    return {
        axis: {value: n / len(strata) for value, n in sorted(Counter(getattr(s, axis) for s in strata).items())}
        for axis in Stratum._fields
    }


def sampling_weights(strata: Sequence[Stratum], *, max_weight: float = 5.0, rounds: int = 40) -> NDArray[np.float64]:
    """A weight for each trace, with mean 1, that balances tasks, tools and spans as far as possible (sec:data).

    Raking: each axis in turn is scaled to equal shares. No weight exceeds `max_weight` times the mean, so that a small
    stratum is not memorised.
    """
    weights = np.ones(len(strata))
    axes = [np.unique([s[axis] for s in strata], return_inverse=True)[1] for axis in range(3)]
    for _ in range(rounds if len(strata) else 0):
        for members in axes:
            shares = np.bincount(members, weights)  # (V,)
            weights *= (weights.sum() / len(shares) / shares)[members]
        weights = np.minimum(weights / weights.mean(), max_weight)
    return weights / weights.mean() if len(strata) else weights
