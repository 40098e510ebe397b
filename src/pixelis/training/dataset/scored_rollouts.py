"""Rollouts as phases 2 and 3 train on them: the sampled token sequence, verified steps, the answer's score.

Nothing is tokenised again. Steps get the rows that g_φ and h_ψ read, as the teacher's steps do in phase 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Span, Track
from pixelis.data.corpus.acceptance_checks import Judgement, judge_trace
from pixelis.equations.coherence import argument_vector
from pixelis.items import Item
from pixelis.media import MediaSet
from pixelis.policy.sequence import TokenSequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rollout.episode import Rollout, require_sequence
from pixelis.tools.results import ToolResult
from pixelis.trace.schema import canonical_json
from pixelis.trace.tool_call_parser import CALL_OPEN
from pixelis.training.dataset.examples import Example, box_argument, example_from_sequence, step_row, steps_from_rows


class ScoredRollout(NamedTuple):
    """A rollout with its tokens, verdicts and score."""

    item: Item
    rollout: Rollout
    sequence: TokenSequence
    example: Example
    judgement: Judgement
    score: float
    """Of the answer, 0 to 1; 0 if it is missing."""

    @property
    def calls(self) -> tuple[bytes, ...]:
        """Tool and canonical arguments of each call, comparable."""
        return tuple(canonical_json([s.call.tool, s.call.args]) for s in self.rollout.trace.steps)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """(S,) r_t: the call succeeded and its verifier did not reject it."""
        return self.example.steps.valid


def score_rollout(
    rollout: Rollout,
    item: Item,
    media: MediaSet,
    tokens: PolicyTokenizer,
    thresholds: Mapping[str, float] | None = None,
) -> ScoredRollout:
    """Score the answer of a rollout, verify its steps, and make a training example of its tokens."""
    sequence = require_sequence(rollout)
    judgement = judge_trace(item, rollout.trace, thresholds=thresholds)
    rows = []
    for number, (step, verdict) in enumerate(zip(rollout.trace.steps, judgement.steps, strict=True), start=1):
        opens = call_opening_position(sequence, number, tokens)
        rows.append(step_row(opens, step.call, step.result, verdict.model_dump(), sequence.image_spans, media, tokens))
        if step.result.view is not None:
            media = media.with_view(step.result.view)
    example = example_from_sequence(
        sequence, tokens, id=item.id, family=item.family, difficulty=item.difficulty, accepted=judgement.accepted,
        steps=steps_from_rows(rows),
    )  # fmt: skip
    score = item.score(rollout.answer) if rollout.answer else 0.0
    return ScoredRollout(item, rollout, sequence, example, judgement, score)


def call_opening_position(sequence: TokenSequence, number: int, tokens: PolicyTokenizer) -> int:
    """The token that opens the call of a step: the last such token, since earlier calls of the turn may have failed to
    parse."""
    actions = [k for k in range(len(sequence)) if sequence.kinds[k] == "action" and sequence.steps[k] == number]
    start = next(k for k in reversed(actions) if k - 1 not in set(actions))
    return start + len(tokens.encode(CALL_OPEN, control=True)) - 1


def argument_vectors(scored_rollout: ScoredRollout, media: MediaSet) -> NDArray[np.float64]:
    """(S, 6) the arguments of each call, for the priors that compare them (supp:structure_priors)."""
    steps = scored_rollout.rollout.trace.steps
    if not steps:
        return np.zeros((0, 6))
    return np.stack([argument_vector(box_argument(s.call), covered_span(s.result, media)) for s in steps])


def covered_span(result: ToolResult, media: MediaSet) -> tuple[float, float] | None:
    """The part of its clip that a step's result covers, as shares of the clip's length."""
    for footprint in result.footprints:
        clip: Any = media.source(media.canonical_name(footprint.media))
        if isinstance(footprint, Span) and clip.duration_s > 0:
            return footprint.start_s / clip.duration_s, footprint.end_s / clip.duration_s
        if isinstance(footprint, Track):
            return footprint.frames[0] / clip.frame_count, (footprint.frames[-1] + 1) / clip.frame_count
    return None
