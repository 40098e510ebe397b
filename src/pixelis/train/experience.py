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

from pixelis.data.acceptance import Judgement, judge
from pixelis.equations.coherence import argument_vector
from pixelis.geometry import Span, Track
from pixelis.media import MediaSet
from pixelis.policy.branches import grouped, keys_of
from pixelis.policy.ledger import KINDS, Ledger
from pixelis.policy.model import Batch, Policy
from pixelis.policy.tokens import Tokens
from pixelis.rollout.episode import Rollout, require_trainable
from pixelis.tools.results import ToolResult
from pixelis.trace.grammar import OPEN
from pixelis.trace.schema import canonical_json
from pixelis.train.examples import Example, called_box, outputs, step_row, steps_from
from pixelis.train.features import States, state_features
from pixelis.world import Item


class Lived(NamedTuple):
    """One rollout and how it went."""

    item: Item
    rolled: Rollout
    ledger: Ledger
    example: Example
    judged: Judgement
    score: float
    """Of the answer, 0 to 1; 0 without one."""

    @property
    def calls(self) -> tuple[bytes, ...]:
        """With canonical arguments, to be compared."""
        return tuple(canonical_json([s.call.tool, s.call.args]) for s in self.rolled.trace.steps)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """(S,) r_t: the call succeeded, and its verifier did not refuse it."""
        return self.example.steps.valid


def lived(rolled: Rollout, item: Item, media: MediaSet, tokens: Tokens) -> Lived:
    """Score a rollout, verify its steps, and lay its tokens out for learning."""
    ledger = require_trainable(rolled)
    judged = judge(item, rolled.trace)
    rows = []
    for number, (step, checked) in enumerate(zip(rolled.trace.steps, judged.steps, strict=True), start=1):
        opens = opening_of(ledger, number, tokens)
        rows.append(step_row(opens, step.call, step.result, checked.model_dump(), ledger.places, media, tokens))
        if step.result.view is not None:
            media = media.with_view(step.result.view)
    ids = np.array(ledger.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in ledger.kinds], dtype=np.uint8)
    step_of = np.array(ledger.steps, dtype=np.int16)
    example = Example(
        id=item.id, family=item.family, difficulty=item.difficulty, accepted=judged.accepted, ids=ids, kinds=kinds,
        step_of=step_of, output_of=outputs(ids, kinds, step_of, tokens), places=tuple(ledger.places),
        steps=steps_from(rows),
    )  # fmt: skip
    return Lived(item, rolled, ledger, example, judged, item.score(rolled.answer) if rolled.answer else 0.0)


def opening_of(ledger: Ledger, number: int, tokens: Tokens) -> int:
    """The token that opens the call of a step: the last one, where calls before it could not be read."""
    own = [k for k in range(len(ledger)) if ledger.kinds[k] == "action" and ledger.steps[k] == number]
    start = next(k for k in reversed(own) if k - 1 not in set(own))
    return start + len(tokens.encode(OPEN, control=True)) - 1


def arguments_of(lived: Lived, media: MediaSet) -> NDArray[np.float64]:
    """(S, 6) where each call looks, for the priors that compare arguments (supp:structure_priors)."""
    steps = lived.rolled.trace.steps
    if not steps:
        return np.zeros((0, 6))
    return np.stack([argument_vector(called_box(s.call), span_in(s.result, media)) for s in steps])


def span_in(result: ToolResult, media: MediaSet) -> tuple[float, float] | None:
    """The part of its clip that a step is about, in shares of its length."""
    for print_ in result.footprints:
        clip: Any = media.source(media.canonical(print_.media))
        if isinstance(print_, Span) and clip.duration_s > 0:
            return print_.start_s / clip.duration_s, print_.end_s / clip.duration_s
        if isinstance(print_, Track):
            return print_.frames[0] / clip.frame_count, (print_.frames[-1] + 1) / clip.frame_count
    return None


# --- reading them again


class Part(NamedTuple):
    """Some rollouts side by side. What they share is read once."""

    numbers: tuple[int, ...]
    """Which of the rollouts they are."""
    batch: Batch
    at: Tensor
    """(u,) the places that predict sampled tokens, flat, row · L + column: each once, whoever shares it."""
    which: Tensor
    """(n,) which of them each sampled token is predicted at."""
    targets: Tensor
    """(n,) the tokens, by their place among those that may be sampled."""
    sampled: Tensor
    """(n,) their log-probabilities when they were sampled."""
    counts: tuple[int, ...]
    """Sampled tokens of each rollout; they lie together."""


def parts_of(ledgers: Sequence[Ledger], policy: Policy, batch_tokens: int) -> list[Part]:
    """All rollouts in parts of at most so many tokens, those that share most together."""
    return [part_of(own, ledgers, policy) for own in grouped(keys_of(ledgers)[0], batch_tokens)]


def part_of(numbers: Sequence[int], ledgers: Sequence[Ledger], policy: Policy) -> Part:
    batch = policy.batch([ledgers[k] for k in numbers], once=True)
    longest, at, ids, logprobs, counts = batch.ids.shape[1], list[int](), list[int](), list[float](), list[int]()
    for row, k in enumerate(numbers):
        ledger = ledgers[k]
        own = np.flatnonzero(ledger.sampled).tolist()
        at += [row * longest + place - 1 for place in own]
        ids += [ledger.ids[place] for place in own]
        logprobs += [ledger.logprobs[place] or 0.0 for place in own]
        counts.append(len(own))
    device = policy.device
    places = torch.tensor(at, dtype=torch.long, device=device)
    read = places if batch.branches is None else batch.branches.back[places]
    once, which = torch.unique(read, return_inverse=True)
    first = torch.empty_like(once).index_copy_(0, which, places)  # any row that has it
    targets = policy.open_places[torch.tensor(ids, dtype=torch.long, device=device)]
    return Part(tuple(numbers), batch, first, which, targets, torch.tensor(logprobs, device=device), tuple(counts))


class Anchored(NamedTuple):
    """What the anchor makes of a part: its states at the places that predict, for the exact KL, and v_t and x_t."""

    hidden: Tensor
    states: States


def rows_of(flat: Tensor, counts: Sequence[int]) -> Tensor:
    """(n,) tokens of several rollouts as (B, T), filled with zeros."""
    return pad_sequence(list(flat.split(list(counts))), batch_first=True)


@torch.no_grad()
def read_anchor(anchor: Policy, part: Part, experience: Sequence[Lived]) -> Anchored:
    """Read a part with a frozen policy. Features come from it too: statistics of phase 1 hold for its features only."""
    read = anchor(part.batch)
    examples = [experience[k].example for k in part.numbers]
    states = state_features(anchor, read, part.batch.ids, examples)
    return Anchored(read.hidden.flatten(0, 1)[part.at], states)
