"""Rollouts as phases 2 and 3 learn from them: the ledger's own tokens, and what is known about every step.

Nothing is tokenised again. Steps get the rows that g_φ and h_ψ read, as the teacher's steps do in phase 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pixelis.core.geometry import Span, Track
from pixelis.data.corpus.acceptance_checks import Judgement, judge_trace
from pixelis.equations.coherence import argument_vector
from pixelis.media import MediaSet
from pixelis.policy.model import Policy, TokenBatch
from pixelis.policy.prefix_tree import compute_sequence_keys, group_by_prefix
from pixelis.policy.sequence import KINDS, TokenSequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rewards.features import StateFeatures, state_features
from pixelis.rollout.episode import Rollout, require_sequence
from pixelis.tools.results import ToolResult
from pixelis.trace.schema import canonical_json
from pixelis.trace.tool_call_parser import CALL_OPEN
from pixelis.training.dataset.examples import Example, box_argument, output_indices, step_row, steps_from_rows
from pixelis.world import Item


class ScoredRollout(NamedTuple):
    """One rollout and how it went."""

    item: Item
    rollout: Rollout
    sequence: TokenSequence
    example: Example
    judgement: Judgement
    score: float
    """Of the answer, 0 to 1; 0 without one."""

    @property
    def calls(self) -> tuple[bytes, ...]:
        """With canonical arguments, to be compared."""
        return tuple(canonical_json([s.call.tool, s.call.args]) for s in self.rollout.trace.steps)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """(S,) r_t: the call succeeded, and its verifier did not refuse it."""
        return self.example.steps.valid


def score_rollout(rollout: Rollout, item: Item, media: MediaSet, tokens: PolicyTokenizer) -> ScoredRollout:
    """Score a rollout, verify its steps, and lay its tokens out for learning."""
    sequence = require_sequence(rollout)
    judgement = judge_trace(item, rollout.trace)
    rows = []
    for number, (step, step_verdict) in enumerate(zip(rollout.trace.steps, judgement.steps, strict=True), start=1):
        opens = call_opening_position(sequence, number, tokens)
        rows.append(
            step_row(opens, step.call, step.result, step_verdict.model_dump(), sequence.image_spans, media, tokens)
        )
        if step.result.view is not None:
            media = media.with_view(step.result.view)
    ids = np.array(sequence.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in sequence.kinds], dtype=np.uint8)
    step_of = np.array(sequence.steps, dtype=np.int16)
    example = Example(
        id=item.id, family=item.family, difficulty=item.difficulty, accepted=judgement.accepted, ids=ids, kinds=kinds,
        step_of=step_of, output_of=output_indices(ids, kinds, step_of, tokens), image_spans=tuple(sequence.image_spans),
        steps=steps_from_rows(rows),
    )  # fmt: skip
    return ScoredRollout(
        item, rollout, sequence, example, judgement, item.score(rollout.answer) if rollout.answer else 0.0
    )


def call_opening_position(sequence: TokenSequence, number: int, tokens: PolicyTokenizer) -> int:
    """The token that opens the call of a step: the last one, where calls before it could not be read."""
    action_positions = [
        k for k in range(len(sequence)) if sequence.kinds[k] == "action" and sequence.steps[k] == number
    ]
    start = next(k for k in reversed(action_positions) if k - 1 not in set(action_positions))
    return start + len(tokens.encode(CALL_OPEN, control=True)) - 1


def argument_vectors(scored_rollout: ScoredRollout, media: MediaSet) -> NDArray[np.float64]:
    """(S, 6) where each call looks, for the priors that compare arguments (supp:structure_priors)."""
    steps = scored_rollout.rollout.trace.steps
    if not steps:
        return np.zeros((0, 6))
    return np.stack([argument_vector(box_argument(s.call), covered_span(s.result, media)) for s in steps])


def covered_span(result: ToolResult, media: MediaSet) -> tuple[float, float] | None:
    """The part of its clip that a step is about, in shares of its length."""
    for footprint in result.footprints:
        clip: Any = media.source(media.canonical_name(footprint.media))
        if isinstance(footprint, Span) and clip.duration_s > 0:
            return footprint.start_s / clip.duration_s, footprint.end_s / clip.duration_s
        if isinstance(footprint, Track):
            return footprint.frames[0] / clip.frame_count, (footprint.frames[-1] + 1) / clip.frame_count
    return None


# --- reading them again


class MicroBatch(NamedTuple):
    """Some rollouts side by side. What they share is read once."""

    rollout_indices: tuple[int, ...]
    """Which of the rollouts they are."""
    batch: TokenBatch
    logit_positions: Tensor
    """(u,) the places that predict sampled tokens, flat, row · L + column: each once, whoever shares it."""
    logit_indices: Tensor
    """(n,) which of them each sampled token is predicted at."""
    targets: Tensor
    """(n,) the tokens, by their place among those that may be sampled."""
    sampled_logprobs: Tensor
    """(n,) their log-probabilities when they were sampled."""
    token_counts: tuple[int, ...]
    """Sampled tokens of each rollout; they lie together."""


def make_microbatches(sequences: Sequence[TokenSequence], policy: Policy, batch_tokens: int) -> list[MicroBatch]:
    """All rollouts in parts of at most so many tokens, those that share most together."""
    return [
        make_microbatch(rollout_indices, sequences, policy)
        for rollout_indices in group_by_prefix(compute_sequence_keys(sequences)[0], batch_tokens)
    ]


def make_microbatch(rollout_indices: Sequence[int], sequences: Sequence[TokenSequence], policy: Policy) -> MicroBatch:
    batch = policy.collate([sequences[k] for k in rollout_indices], share_prefixes=True)
    longest, flat_positions, ids, logprobs, token_counts = (
        batch.ids.shape[1],
        list[int](),
        list[int](),
        list[float](),
        list[int](),
    )
    for row, k in enumerate(rollout_indices):
        sequence = sequences[k]
        sampled_positions = np.flatnonzero(sequence.sampled_mask).tolist()
        flat_positions += [row * longest + position - 1 for position in sampled_positions]
        ids += [sequence.ids[position] for position in sampled_positions]
        logprobs += [sequence.logprobs[position] or 0.0 for position in sampled_positions]
        token_counts.append(len(sampled_positions))
    device = policy.device
    positions = torch.tensor(flat_positions, dtype=torch.long, device=device)
    shared_positions = positions if batch.prefix_tree is None else batch.prefix_tree.inverse[positions]
    unique_positions, logit_indices = torch.unique(shared_positions, return_inverse=True)
    first_positions = torch.empty_like(unique_positions).index_copy_(0, logit_indices, positions)  # any row that has it
    targets = policy.open_places[torch.tensor(ids, dtype=torch.long, device=device)]
    return MicroBatch(
        tuple(rollout_indices),
        batch,
        first_positions,
        logit_indices,
        targets,
        torch.tensor(logprobs, device=device),
        tuple(token_counts),
    )


class ReferenceOutput(NamedTuple):
    """What the anchor makes of a part: its states at the places that predict, for the exact KL, and v_t and x_t."""

    hidden: Tensor
    states: StateFeatures


def pad_per_sequence(flat: Tensor, counts: Sequence[int]) -> Tensor:
    """(n,) tokens of several rollouts as (B, T), filled with zeros."""
    return pad_sequence(list(flat.split(list(counts))), batch_first=True)


@torch.no_grad()
def reference_forward(reference: Policy, microbatch: MicroBatch, rollouts: Sequence[ScoredRollout]) -> ReferenceOutput:
    """Read a part with a frozen policy. Features come from it too: statistics of phase 1 hold for its features only."""
    output = reference(microbatch.batch)
    examples = [rollouts[k].example for k in microbatch.rollout_indices]
    states = state_features(reference, output, microbatch.batch.ids, examples)
    return ReferenceOutput(output.hidden.flatten(0, 1)[microbatch.logit_positions], states)
