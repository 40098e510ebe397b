"""One update of phase 3 as a function of the state before it, rollouts and advantages (eq:ttrl_clean_loss).

An update's tokens, images and advantages are written to disk before it is applied. Replayed on one thread it gives the
same weights bit for bit: adaptation can be reverted without a copy of the weights for every query.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pixelis.core.atomic import atomic_write
from pixelis.equations.ema import ema_parameters
from pixelis.equations.kl import drift_allowed, per_token_kl
from pixelis.equations.pid import Pid
from pixelis.equations.ttrl import ttrl_loss
from pixelis.policy.checkpoint import LoadedCheckpoint
from pixelis.policy.images import ProcessedImage
from pixelis.policy.model import Policy
from pixelis.policy.sequence import ImageSpan, TokenSequence
from pixelis.training.common.distributed import DistributedContext, trainable_parameters
from pixelis.training.common.kl_controller import step_controller
from pixelis.training.common.lora import wrap_lora
from pixelis.training.common.policy_update import (
    MicroBatch,
    TokenOutputs,
    Totals,
    UpdateStats,
    accumulate_gradients,
    forward_logits,
    make_microbatches,
    pad_per_sequence,
    skip_reason,
)
from pixelis.training.common.precision import autocast_context, compute_dtype
from pixelis.training.common.run_state import OPTIMIZER_KEYS
from pixelis.training.ttrl.ttrl_config import TtrlConfig


class UpdateBatch(NamedTuple):
    """What one update is trained on."""

    sequences: tuple[TokenSequence, ...]
    advantages: np.ndarray
    """(n,) normalised; 0 if the query is not trained on."""
    masks: np.ndarray
    """(n,) m(q) of each rollout's query."""
    rollout_count: int
    """Rollouts that the objective is a mean over, with those of abstained queries that are not read."""


@dataclass
class PolicyState:
    """What an update changes: policy, EMA, optimizer and controller; and the start policy."""

    policy: Policy
    ema_policy: Policy
    """π_EMA"""
    start_policy: Policy
    """Never changes."""
    optimizer: torch.optim.Optimizer
    pid: Pid

    def digest(self) -> str:
        """SHA-256 of everything that an update changes."""
        digest = hashlib.sha256()
        for name, value in sorted(collect_tensors(self).items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        digest.update(repr(self.pid).encode())
        return digest.hexdigest()


def build_policy_state(config: TtrlConfig, checkpoint: LoadedCheckpoint) -> PolicyState:
    """The initial state. With LoRA all three policies share the frozen weights."""
    policy = checkpoint.policy
    shared_weights = {id(value): value for value in policy.parameters()} if config.lora is not None else {}
    start_policy = copy.deepcopy(policy, dict(shared_weights)).eval().requires_grad_(False)
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
    ema_policy = copy.deepcopy(policy, dict(shared_weights)).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        trainable_parameters(policy).values(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0
    )
    return PolicyState(policy.eval(), ema_policy, start_policy, optimizer, Pid(beta=config.kl.beta))


def collect_tensors(state: PolicyState) -> dict[str, Tensor]:
    """Weights, their EMA and AdamW's moments by name."""
    out: dict[str, Tensor] = {}
    averages = dict(state.ema_policy.named_parameters())
    for name, value in trainable_parameters(state.policy).items():
        out[f"policy.{name}"], out[f"average.{name}"] = value.detach(), averages[name].detach()
        for key, moment in state.optimizer.state[value].items():
            out[f"{key}.{name}"] = moment
    return out


def load_tensors(state: PolicyState, tensors: dict[str, Tensor]) -> None:
    """Inverse of `collect_tensors`."""
    averages = dict(state.ema_policy.named_parameters())
    state.optimizer.state.clear()
    with torch.no_grad():
        for name, value in trainable_parameters(state.policy).items():
            value.copy_(tensors[f"policy.{name}"])
            averages[name].copy_(tensors[f"average.{name}"])
            moments = {key: tensors[f"{key}.{name}"].clone() for key in OPTIMIZER_KEYS if f"{key}.{name}" in tensors}
            if moments:
                state.optimizer.state[value] = moments


class UpdateResult(NamedTuple):
    """What an update did."""

    stats: UpdateStats
    """Its KL is to π_EMA, or to the start policy without `kl_to_ema`."""
    drift: float
    """KL to the start policy after the step, nats per token."""
    beta: float
    """Weight of the KL term."""
    refusal_reason: str
    """Why the weights did not change; empty if the step was taken."""


def apply_update(config: TtrlConfig, state: PolicyState, batch: UpdateBatch) -> UpdateResult:
    """One step on some rollouts; EMA and controller are updated too, even if every query abstained.

    Then only the KL term is followed, by a plain gradient step: AdamW's moments hold the gradients of accepted queries
    and would go on moving the policy in their direction, though m(q) = 0.
    """
    policy, optimizer, beta = state.policy, state.optimizer, state.pid.beta
    anchor = state.ema_policy if config.kl_to_ema else state.start_policy
    microbatches = make_microbatches(batch.sequences, policy, config.batch_tokens)
    before = {name: value.clone() for name, value in collect_tensors(state).items()}
    optimizer.zero_grad(set_to_none=True)
    stats = accumulate_gradients(
        config, policy, lambda k: forward_logits(anchor, microbatches[k]), microbatches,
        np.ones(len(batch.sequences), dtype=bool), partial(policy_loss, config, batch), beta, DistributedContext(),
    )  # fmt: skip
    tokens = max(1, int(stats.rollout_tokens.sum()))
    # the sum over rollouts, not over micro-batches: updates of earlier runs are replayed bit for bit
    stats = stats._replace(kl=float(stats.rollout_kls.sum()) / tokens)
    abstained = not batch.masks.any()  # the step reduces the KL, however large it is
    reference = "its average" if config.kl_to_ema else "the start"
    reason = skip_reason(stats, math.inf if abstained else config.kl.max, reference=reference)
    if not reason:
        sgd_step(policy, config.lr) if abstained else optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    measure_drift = partial(compute_drift, config, state, microbatches, tokens)
    drift = measure_drift()
    limit = math.inf if config.max_drift is None else config.max_drift
    if not reason and not drift_allowed(drift, limit=limit):
        reason, drift = enforce_drift_guard(state, before, drift, limit, measure_drift)
    update_ema(state, config.rho)
    state.pid = step_controller(config.kl, state.pid, stats.kl)
    return UpdateResult(stats, drift, beta, reason)


def policy_loss(
    config: TtrlConfig, batch: UpdateBatch, microbatch: MicroBatch, outputs: TokenOutputs, totals: Totals
) -> tuple[Tensor, float]:
    """The share of a micro-batch in the objective; the KL term is taken over all tokens and added elsewhere."""
    rollout_indices = list(microbatch.rollout_indices)
    advantages = torch.from_numpy(batch.advantages[rollout_indices]).to(outputs.logprobs)  # (b,)
    accepted = torch.from_numpy(batch.masks[rollout_indices].astype(np.float32)).to(outputs.logprobs)  # (b,)
    if config.objective == "entropy":
        entropies = pad_per_sequence(outputs.entropies(microbatch), microbatch.token_counts).sum(1)  # (b,)
        return (entropies * accepted).sum() / max(totals.tokens, 1), 0.0
    mask = pad_per_sequence(torch.ones_like(outputs.logprobs), microbatch.token_counts)  # (b, T)
    logprobs = pad_per_sequence(outputs.logprobs, microbatch.token_counts)  # (b, T)
    over_tokens, no_kl = config.logprob_reduction, logprobs.new_zeros(())
    loss = ttrl_loss(logprobs, mask, advantages, accepted, no_kl, beta=0.0, over_tokens=over_tokens)
    # a mean over these rollouts
    return loss * len(rollout_indices) / batch.rollout_count, 0.0


def enforce_drift_guard(
    state: PolicyState, before: dict[str, Tensor], drift: float, limit: float, measure_drift: Callable[[], float]
) -> tuple[str, float]:
    """Revert a step beyond the drift limit, unless it reduced the drift. The reason of the refusal, and the drift."""
    after = {name: value.clone() for name, value in collect_tensors(state).items()}
    load_tensors(state, before)
    drift_before = measure_drift()
    if drift < drift_before:
        load_tensors(state, after)
        return "", drift
    return f"KL to the start would be {drift:.3f}, over {limit:g}", drift_before


@torch.no_grad()
def sgd_step(policy: Policy, lr: float) -> None:
    """θ ← θ − lr·∇, which leaves the optimizer's moments as they are."""
    for value in trainable_parameters(policy).values():
        if value.grad is not None:
            value.sub_(value.grad, alpha=lr)


@torch.no_grad()
def compute_drift(config: TtrlConfig, state: PolicyState, microbatches: Sequence[MicroBatch], tokens: int) -> float:
    """KL(π_θ ‖ π_start), nats per token."""
    kl_sum = 0.0
    for microbatch in microbatches:
        with autocast_context(state.policy.device, compute_dtype(config)):
            logits, start_logits = (forward_logits(p, microbatch) for p in (state.policy, state.start_policy))
        kl_sum += float(per_token_kl(logits, start_logits)[microbatch.logit_indices].sum())
    return kl_sum / tokens


@torch.no_grad()
def update_ema(state: PolicyState, rho: float) -> None:
    """π_EMA ← ρ·π_EMA + (1−ρ)·π_θ, in place."""
    theta, averages = trainable_parameters(state.policy), dict(state.ema_policy.named_parameters())
    for name, value in ema_parameters({name: averages[name] for name in theta}, theta, rho=rho).items():
        averages[name].copy_(value)


# --- on disk


def write_update(path: Path, batch: UpdateBatch) -> None:
    """Write a batch to one safetensors file, atomically."""
    from safetensors.numpy import save

    spans = [(row, span) for row, sequence in enumerate(batch.sequences) for span in sequence.image_spans]
    first_seen = dict[int, ProcessedImage]()
    for _, span in spans:  # a group shares its prompt's pictures, and the update reads them once
        first_seen.setdefault(id(span.image.pixels), span.image)
    pictures, order = list(first_seen.values()), list(first_seen)
    span_rows = [(row, span.start, order.index(id(span.image.pixels))) for row, span in spans]
    logprobs = [np.nan if p is None else p for sequence in batch.sequences for p in sequence.logprobs]
    tensors: dict[str, Any] = {
        "ids": np.array([k for sequence in batch.sequences for k in sequence.ids], dtype=np.int32),
        "lengths": np.array([len(sequence) for sequence in batch.sequences], dtype=np.int32),
        "logprobs": np.array(logprobs, dtype=np.float64),
        "places": np.array(span_rows, dtype=np.int32).reshape(-1, 3),
        "grids": np.array([(p.rows, p.columns) for p in pictures], dtype=np.int32).reshape(-1, 2),
        "advantages": batch.advantages.astype(np.float64),
        "masks": batch.masks.astype(np.uint8),
        "asked": np.array(batch.rollout_count, dtype=np.int64),
    }
    tensors |= {f"picture.{k}": np.ascontiguousarray(p.pixels) for k, p in enumerate(pictures)}
    with atomic_write(path) as file:
        file.write(save(tensors))


def read_update(path: Path) -> UpdateBatch:
    """Inverse of `write_update`."""
    from safetensors.numpy import load_file

    tensors = load_file(path)
    names = [f"picture.{k}" for k in range(len(tensors["grids"]))]
    pictures = [ProcessedImage(n, tensors[n], *grid.tolist()) for n, grid in zip(names, tensors["grids"], strict=True)]
    ends = np.cumsum(tensors["lengths"])
    sequences = []
    for row, end in enumerate(ends):
        token_range, count = slice(int(end - tensors["lengths"][row]), int(end)), int(tensors["lengths"][row])
        logprobs = [None if np.isnan(p) else float(p) for p in tensors["logprobs"][token_range]]
        image_spans = [ImageSpan(int(start), pictures[k]) for r, start, k in tensors["places"] if r == row]
        ids = tensors["ids"][token_range].tolist()
        sequences.append(TokenSequence(ids, ["thought"] * count, [0] * count, logprobs, image_spans))
    return UpdateBatch(tuple(sequences), tensors["advantages"], tensors["masks"].astype(bool), int(tensors["asked"]))
