"""Features of every state of a trajectory: v_t and the inputs of x_t (supp:et_dynamics; states as in `heads`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelis.equations.embedding import ACTIONS
from pixelis.policy.model import ForwardOutput, Policy
from pixelis.rewards.heads import COORDINATES
from pixelis.training.common.policy_update import MicroBatch, make_microbatches
from pixelis.training.common.precision import autocast_context, compute_dtype
from pixelis.training.common.run_config import RolloutRunConfig
from pixelis.training.dataset.examples import PROMPT, THOUGHT, Example
from pixelis.training.dataset.scored_rollouts import ScoredRollout

LAST_THOUGHTS = 32
"""Tokens of thought that x_t averages."""


class StateFeatures(NamedTuple):
    """All states s_0 … s_S of several trajectories, concatenated, without gradient."""

    visual: Tensor
    """(N, d) v_t."""
    text: Tensor
    """(N, 2d + 10): thoughts, words of the result, its box, confidences."""


class _TokenMean:
    """Weighted sums of token features, as lists of (state, position, weight)."""

    def __init__(self) -> None:
        self.state, self.place, self.weight = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0, np.float32)]

    def add(self, state: int, places: NDArray[np.integer], weights: NDArray[np.floating] | None = None) -> None:
        if len(places):
            even = np.full(len(places), 1.0 / len(places), dtype=np.float32)
            self.state.append(np.full(len(places), state))
            self.place.append(np.asarray(places))
            self.weight.append(even if weights is None else np.asarray(weights, dtype=np.float32))

    def compute(self, tokens: Tensor, states: int) -> Tensor:
        state, place, weight = (torch.from_numpy(np.concatenate(x)) for x in (self.state, self.place, self.weight))
        device = tokens.device
        weighted = tokens[place.to(device)].float() * weight.to(device)[:, None]
        return torch.zeros(states, tokens.shape[1], device=device).index_add(0, state.to(device), weighted)


def state_features(policy: Policy, output: ForwardOutput, ids: Tensor, examples: Sequence[Example]) -> StateFeatures:
    """States of trajectories from the tapped layer's features of them, one row of `output` each."""
    longest = ids.shape[1]
    looks, thoughts, words = _TokenMean(), _TokenMean(), _TokenMean()
    count = sum(len(example.steps) + 1 for example in examples)
    extra = np.zeros((count, COORDINATES + len(ACTIONS)), dtype=np.float32)
    at = 0
    for row, example in enumerate(examples):
        base, steps = row * longest, example.steps
        prompt_spans = [span for span in example.image_spans if example.kinds[span.start] == PROMPT]
        for span in prompt_spans:
            count_here = span.image.token_count
            weights = np.full(count_here, 1.0 / (count_here * len(prompt_spans)))
            looks.add(at, base + span.start + np.arange(count_here), weights)
        thought = np.flatnonzero(example.kinds == THOUGHT)
        result_tokens = np.flatnonzero((example.output_of >= 0) & (example.ids != policy.tokenizer.image_id))
        ends = np.cumsum(steps.look_count)
        for k in range(len(steps)):
            state, look_range = at + 1 + k, slice(ends[k] - steps.look_count[k], ends[k])
            looks.add(state, base + steps.look_at[look_range], steps.look_weight[look_range])
            thoughts.add(state, base + thought[thought < steps.opens[k]][-LAST_THOUGHTS:])
            words.add(state, base + result_tokens[example.output_of[result_tokens] == k])
            extra[state, :COORDINATES] = np.nan_to_num(steps.seen[k])
            if steps.tool[k] >= 0:
                extra[state, COORDINATES + steps.tool[k]] = np.nan_to_num(steps.confidence[k])
        at += len(steps) + 1
    features = output.features.detach().flatten(0, 1)
    table = policy.language.embed_tokens.weight.detach()
    result_text = words.compute(table[ids.flatten()], count)
    numbers = torch.from_numpy(extra).to(features.device)
    text = torch.cat([thoughts.compute(features, count), result_text, numbers], dim=1)
    return StateFeatures(looks.compute(features, count), text)


class ReferenceOutput(NamedTuple):
    """What the reference policy computes for a micro-batch."""

    hidden: Tensor
    """(u, d) at the positions that predict sampled tokens, for the exact KL."""
    states: StateFeatures


@torch.no_grad()
def reference_forward(reference: Policy, microbatch: MicroBatch, rollouts: Sequence[ScoredRollout]) -> ReferenceOutput:
    """Run the reference policy. Features come from it too: the statistics of phase 1 hold for its features only."""
    output = reference(microbatch.batch)
    examples = [rollouts[k].example for k in microbatch.rollout_indices]
    states = state_features(reference, output, microbatch.batch.ids, examples)
    return ReferenceOutput(output.hidden.flatten(0, 1)[microbatch.logit_positions], states)


def reference_outputs(
    config: RolloutRunConfig, policy: Policy, reference: Policy, rollouts: Sequence[ScoredRollout]
) -> list[tuple[MicroBatch, ReferenceOutput]]:
    """The rollouts in micro-batches, each with what the reference policy computes for it."""
    sequences = [scored.sequence for scored in rollouts]
    with autocast_context(policy.device, compute_dtype(config)):
        microbatches = make_microbatches(sequences, policy, config.batch_tokens)
        return [(part, reference_forward(reference, part, rollouts)) for part in microbatches]
