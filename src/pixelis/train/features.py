"""v_t and what x_t is projected from, for every state of a trajectory (supp:et_dynamics; states as in `heads`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelis.equations.embedding import ACTIONS
from pixelis.policy.model import Policy, Read
from pixelis.train.examples import PROMPT, THOUGHT, Example
from pixelis.train.heads import COORDINATES

LAST_THOUGHTS = 32
"""Tokens of thought that x_t remembers."""


class States(NamedTuple):
    """All states s_0 … s_S of several trajectories, one after another; no gradient leads back to the policy."""

    visual: Tensor
    """(N, d) v_t."""
    text: Tensor
    """(N, 2d + 10): thoughts, words that came back, their box, confidences."""


class _Mean:
    """Weighted sums of tokens, gathered as lists of (state, place, weight)."""

    def __init__(self) -> None:
        self.state, self.place, self.weight = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0, np.float32)]

    def add(self, state: int, places: NDArray[np.integer], weights: NDArray[np.floating] | None = None) -> None:
        if len(places):
            even = np.full(len(places), 1.0 / len(places), dtype=np.float32)
            self.state.append(np.full(len(places), state))
            self.place.append(np.asarray(places))
            self.weight.append(even if weights is None else np.asarray(weights, dtype=np.float32))

    def of(self, tokens: Tensor, states: int) -> Tensor:
        state, place, weight = (torch.from_numpy(np.concatenate(x)) for x in (self.state, self.place, self.weight))
        device = tokens.device
        taken = tokens[place.to(device)].float() * weight.to(device)[:, None]
        return torch.zeros(states, tokens.shape[1], device=device).index_add(0, state.to(device), taken)


def state_features(policy: Policy, read: Read, ids: Tensor, examples: Sequence[Example]) -> States:
    """The states of trajectories, from what the tapped layer made of them, a row each."""
    longest = ids.shape[1]
    looks, thoughts, words = _Mean(), _Mean(), _Mean()
    count = sum(len(example.steps) + 1 for example in examples)
    extra = np.zeros((count, COORDINATES + len(ACTIONS)), dtype=np.float32)
    at = 0
    for row, example in enumerate(examples):
        base, steps = row * longest, example.steps
        given = [place for place in example.places if example.kinds[place.start] == PROMPT]
        for place in given:
            own = base + place.start + np.arange(place.picture.tokens)
            looks.add(at, own, np.full(len(own), 1.0 / (len(own) * len(given))))
        thought = np.flatnonzero(example.kinds == THOUGHT)
        said = np.flatnonzero((example.output_of >= 0) & (example.ids != policy.tokens.image))
        ends = np.cumsum(steps.look_count)
        for k in range(len(steps)):
            state, cut = at + 1 + k, slice(ends[k] - steps.look_count[k], ends[k])
            looks.add(state, base + steps.look_at[cut], steps.look_weight[cut])
            thoughts.add(state, base + thought[thought < steps.opens[k]][-LAST_THOUGHTS:])
            words.add(state, base + said[example.output_of[said] == k])
            extra[state, :COORDINATES] = np.nan_to_num(steps.seen[k])
            if steps.tool[k] >= 0:
                extra[state, COORDINATES + steps.tool[k]] = np.nan_to_num(steps.confidence[k])
        at += len(steps) + 1
    tapped = read.tapped.detach().flatten(0, 1)
    table = policy.language.embed_tokens.weight.detach()
    spelt = words.of(table[ids.flatten()], count)
    text = torch.cat([thoughts.of(tapped, count), spelt, torch.from_numpy(extra).to(tapped.device)], dim=1)
    return States(looks.of(tapped, count), text)
