"""One policy update on sampled rollouts, as phases 2 and 3 take it: micro-batches, gradients with KL, skip rules.

The loss of the phase is an argument; reading the rollouts, the KL to a reference, the check of sampled against
recomputed log-probabilities, the norm cap and the rules by which an update is skipped are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pixelis.core.errors import TraceError
from pixelis.equations.kl import per_token_kl
from pixelis.policy.model import Policy, TokenBatch
from pixelis.policy.prefix_tree import compute_sequence_keys, group_by_prefix
from pixelis.policy.sequence import TokenSequence
from pixelis.training.common.distributed import DistributedContext, trainable_parameters
from pixelis.training.common.precision import autocast_context, compute_dtype
from pixelis.training.common.run_config import RolloutRunConfig


class MicroBatch(NamedTuple):
    """Some rollouts in one forward pass, with shared prefixes computed once. n tokens were sampled in them."""

    rollout_indices: tuple[int, ...]
    """(b,) their positions among all rollouts of the update."""
    batch: TokenBatch
    logit_positions: Tensor
    """(u,) flat positions, row · L + column, that predict sampled tokens; one for all rollouts that share it."""
    logit_indices: Tensor
    """(n,) the entry of `logit_positions` that predicts each sampled token."""
    targets: Tensor
    """(n,) the tokens, numbered among those that may be sampled."""
    sampled_logprobs: Tensor
    """(n,) their log-probabilities when they were sampled."""
    token_counts: tuple[int, ...]
    """(b,) sampled tokens of each rollout; they are contiguous."""


def make_microbatches(sequences: Sequence[TokenSequence], policy: Policy, batch_tokens: int) -> list[MicroBatch]:
    """All rollouts in micro-batches of at most `batch_tokens`; rollouts that share the longest prefixes together."""
    groups = group_by_prefix(compute_sequence_keys(sequences)[0], batch_tokens)
    return [make_microbatch(rollout_indices, sequences, policy) for rollout_indices in groups]


def make_microbatch(rollout_indices: Sequence[int], sequences: Sequence[TokenSequence], policy: Policy) -> MicroBatch:
    batch = policy.collate([sequences[k] for k in rollout_indices], share_prefixes=True)
    length, device = batch.ids.shape[1], policy.device
    flat_positions, ids, logprobs, token_counts = list[int](), list[int](), list[float](), list[int]()
    for row, k in enumerate(rollout_indices):
        sequence = sequences[k]
        sampled = np.flatnonzero(sequence.sampled_mask).tolist()
        flat_positions += [row * length + position - 1 for position in sampled]
        ids += [sequence.ids[position] for position in sampled]
        logprobs += [sequence.logprobs[position] or 0.0 for position in sampled]
        token_counts.append(len(sampled))
    positions = torch.tensor(flat_positions, dtype=torch.long, device=device)  # (n,)
    shared = positions if batch.prefix_tree is None else batch.prefix_tree.inverse[positions]
    unique, logit_indices = torch.unique(shared, return_inverse=True)  # (u,), (n,)
    logit_positions = torch.empty_like(unique).index_copy_(0, logit_indices, positions)  # any row that has it
    targets = policy.allowed_index[torch.tensor(ids, dtype=torch.long, device=device)]
    sampled_logprobs = torch.tensor(logprobs, device=device)
    return MicroBatch(
        tuple(rollout_indices), batch, logit_positions, logit_indices, targets, sampled_logprobs, tuple(token_counts)
    )


def pad_per_sequence(flat: Tensor, counts: Sequence[int]) -> Tensor:
    """(n,) tokens of several rollouts as (b, T), filled with zeros."""
    return pad_sequence(list(flat.split(list(counts))), batch_first=True)


def forward_logits(policy: Policy, microbatch: MicroBatch) -> Tensor:
    """(u, V') logits of the tokens that may be sampled, at the positions that predict sampled tokens."""
    return policy.allowed_logits(policy(microbatch.batch).hidden.flatten(0, 1)[microbatch.logit_positions]).float()


class TokenOutputs(NamedTuple):
    """What the policy computes for the sampled tokens of a micro-batch."""

    log_probs: Tensor
    """(u, V')"""
    logprobs: Tensor
    """(n,) of the sampled tokens."""
    in_loss: Tensor
    """(n,) whether the token's rollout is trained on."""

    def entropies(self, microbatch: MicroBatch) -> Tensor:
        """(n,) entropy of the distribution that each token was sampled from."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)[microbatch.logit_indices]


class Totals(NamedTuple):
    """What an update trains on, over all processes."""

    tokens: float
    rollouts: float
    """With at least one sampled token."""


PolicyLoss = Callable[[MicroBatch, TokenOutputs, Totals], tuple[Tensor, float]]
"""The policy's part of the loss on a micro-batch, as its share of the update's, and the share of clipped tokens."""


class UpdateStats(NamedTuple):
    """What an update measured before its step."""

    kl: float
    """To the reference, nats per token."""
    entropy: float
    """Nats per token."""
    logprob_mismatch: float
    """Largest difference between a sampled and a recomputed log-probability."""
    grad_norm: float
    clip_fraction: float
    tokens: float = 0.0
    """Sampled tokens of the trained rollouts, over all processes."""
    skip_reason: str = ""
    """Why the step was skipped; empty if it was taken."""
    rollout_kls: NDArray[np.float64] = np.zeros(0)
    """(B,) KL of each rollout, summed over its sampled tokens."""
    rollout_tokens: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    """(B,) number of sampled tokens."""


def accumulate_gradients(
    config: RolloutRunConfig,
    policy: Policy,
    reference_logits: Callable[[int], Tensor],
    microbatches: Sequence[MicroBatch],
    trained: NDArray[np.bool_],
    policy_loss: PolicyLoss,
    beta: float,
    dist: DistributedContext,
) -> UpdateStats:
    """Leave the gradients of `policy_loss` + β·KL in the policy, their norm capped; KL is the mean over all tokens.

    `reference_logits(k)` gives the (u, V') logits of the reference for micro-batch k; `trained` (B,) marks the rollouts
    that enter loss and KL.
    """
    rollout_kls, rollout_tokens = np.zeros(len(trained)), np.zeros(len(trained), dtype=np.int64)
    for microbatch in microbatches:
        rollout_tokens[list(microbatch.rollout_indices)] = microbatch.token_counts
    counts = [[float(tokens), float(tokens > 0)] for tokens in rollout_tokens[trained].tolist()]
    totals = Totals(*dist.all_reduce_sum(torch.tensor(counts, dtype=torch.float64).reshape(-1, 2).sum(0)).tolist())
    sums = torch.zeros(4, dtype=torch.float64)  # KL, entropy, clipped tokens, tokens
    logprob_mismatch = 0.0
    for k, microbatch in enumerate(microbatches):
        rollout_indices = list(microbatch.rollout_indices)
        with autocast_context(policy.device, compute_dtype(config)):
            logits = forward_logits(policy, microbatch)  # (u, V')
            with torch.no_grad():
                anchor_logits = reference_logits(k)  # (u, V')
        log_probs = logits.log_softmax(-1)
        in_loss = torch.from_numpy(np.repeat(trained[rollout_indices], microbatch.token_counts)).to(logits.device)
        outputs = TokenOutputs(log_probs, log_probs[microbatch.logit_indices, microbatch.targets], in_loss)
        differences = (outputs.logprobs.detach() - microbatch.sampled_logprobs).abs()  # (n,)
        logprob_mismatch = max(logprob_mismatch, float(differences.max()) if len(differences) else 0.0)
        token_kls = per_token_kl(logits, anchor_logits)[microbatch.logit_indices]  # (n,)
        kl = token_kls[in_loss]
        loss, clipped = policy_loss(microbatch, outputs, totals)
        (loss + beta * kl.sum() / max(totals.tokens, 1)).backward()
        with torch.no_grad():
            entropy = float(outputs.entropies(microbatch)[in_loss].sum())
        sums += torch.tensor([float(kl.detach().sum()), entropy, clipped * len(kl), len(kl)], dtype=torch.float64)
        kls_by_rollout = token_kls.detach().split(list(microbatch.token_counts))
        rollout_kls[rollout_indices] = [float(kls.sum()) for kls in kls_by_rollout]
    if logprob_mismatch > config.logprob_tolerance:
        raise TraceError(
            f"a sampled log-probability differs by {logprob_mismatch:.2g} nats from the recomputed one: "
            "the update does not read what the rollout read"
        )
    kl_sum, entropy, clipped, tokens = dist.all_reduce_sum(sums).tolist()
    dist.all_reduce_gradients(policy)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(trainable_parameters(policy).values(), config.grad_norm))
    divisor = max(tokens, 1.0)
    return UpdateStats(
        kl_sum / divisor, entropy / divisor, logprob_mismatch, grad_norm, clipped / divisor, tokens,
        rollout_kls=rollout_kls, rollout_tokens=rollout_tokens,
    )  # fmt: skip


def skip_reason(stats: UpdateStats, kl_max: float, *, reference: str) -> str:
    """Why an update must not be taken; empty if it may. `reference` names what KL is measured to."""
    if not (math.isfinite(stats.grad_norm) and math.isfinite(stats.kl)):
        return "the loss is not a number"
    return f"KL to {reference} is {stats.kl:.3f}, over {kl_max:g}" if stats.kl > kl_max else ""
