"""One update of phase 3 as a function of what lies on disk: state before, rollouts, advantages (eq:ttrl_clean_loss).

An update is written down before it is taken, tokens and pictures and all. The same update taken again on one thread
gives the same weights bit for bit: that is how adaptation is reverted without a copy of the weights for every query.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pixelis.core.errors import TraceError
from pixelis.core.provenance import atomic_write
from pixelis.equations.ema import ema, ema_parameters
from pixelis.equations.kl import drift_allowed, per_token_kl
from pixelis.equations.pid import DEFAULT, PAPER, Pid, pid_step
from pixelis.equations.ttrl import ttrl_loss
from pixelis.policy.checkpoint import LoadedCheckpoint
from pixelis.policy.images import ProcessedImage
from pixelis.policy.model import Policy
from pixelis.policy.sequence import ImageSpan, TokenSequence
from pixelis.training.common.distributed import trainable_parameters
from pixelis.training.common.precision import autocast_context, compute_dtype
from pixelis.training.common.scored_rollouts import MicroBatch, make_microbatches, pad_per_sequence
from pixelis.training.dataset.training_index import wrap_lora
from pixelis.training.ttrl.ttrl_config import TtrlConfig


class UpdateBatch(NamedTuple):
    """What one update learns from."""

    sequences: tuple[TokenSequence, ...]
    advantages: np.ndarray
    """(n,) normalised; 0 where nothing is learnt."""
    masks: np.ndarray
    """(n,) m(q) of each rollout's query."""
    rollout_count: int
    """Rollouts that the objective is a mean over: those of abstained queries that are not read count too."""


@dataclass
class PolicyState:
    """What changes: the policy, its EMA, its optimizer and the controller."""

    policy: Policy
    ema_policy: Policy
    """π_EMA"""
    start_policy: Policy
    """The policy as adaptation found it; never changes."""
    optimizer: torch.optim.Optimizer
    pid: Pid

    def digest(self) -> str:
        """One hash over everything that an update changes."""
        digest = hashlib.sha256()
        for name, value in sorted(collect_tensors(self).items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        digest.update(repr(self.pid).encode())
        return digest.hexdigest()


def build_policy_state(config: TtrlConfig, checkpoint: LoadedCheckpoint) -> PolicyState:
    """The policy with what anchors it, as adaptation finds them. Beside LoRA all three share the weights that stay."""
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


def collect_tensors(policy_state: PolicyState) -> dict[str, Tensor]:
    """Weights, averages and moments by name."""
    out: dict[str, Tensor] = {}
    ema_parameters_by_name = dict(policy_state.ema_policy.named_parameters())
    for name, value in trainable_parameters(policy_state.policy).items():
        out[f"policy.{name}"], out[f"average.{name}"] = value.detach(), ema_parameters_by_name[name].detach()
        for key, moment in policy_state.optimizer.state[value].items():
            out[f"{key}.{name}"] = moment
    return out


def load_tensors(policy_state: PolicyState, tensors: dict[str, Tensor]) -> None:
    """The opposite of `tensors_of`."""
    ema_parameters_by_name = dict(policy_state.ema_policy.named_parameters())
    policy_state.optimizer.state.clear()
    with torch.no_grad():
        for name, value in trainable_parameters(policy_state.policy).items():
            value.copy_(tensors[f"policy.{name}"])
            ema_parameters_by_name[name].copy_(tensors[f"average.{name}"])
            moments = {key: tensors[f"{key}.{name}"].clone() for key in OPTIMIZER_KEYS if f"{key}.{name}" in tensors}
            if moments:
                policy_state.optimizer.state[value] = moments


OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq")


class UpdateResult(NamedTuple):
    """What an update did."""

    kl: float
    """To π_EMA, nats per token, before the step."""
    drift: float
    """To the policy at the start, after it."""
    entropy: float
    beta: float
    """The weight that the KL term had."""
    refusal_reason: str
    """Why the weights are as they were; empty where the step was taken."""
    gap: float
    """The largest distance between a sampled and a recomputed log-probability."""
    kls: np.ndarray
    """(n,) KL to π_EMA of each rollout, summed over its sampled tokens."""
    tokens: np.ndarray
    """(n,) how many those are."""


def apply_update(config: TtrlConfig, policy_state: PolicyState, batch: UpdateBatch) -> UpdateResult:
    """One step on some rollouts; the EMA and the controller move too, also where every query abstained.

    Then the KL alone is followed, by a plain gradient step: AdamW's moments hold what accepted queries taught and would
    go on moving the policy in their direction, though m(q) = 0.
    """
    policy, optimizer, beta = policy_state.policy, policy_state.optimizer, policy_state.pid.beta
    microbatches = make_microbatches(batch.sequences, policy, config.batch_tokens)
    tensors_before = {name: value.clone() for name, value in collect_tensors(policy_state).items()}
    optimizer.zero_grad(set_to_none=True)
    stats = accumulate_gradients(config, policy_state, batch, microbatches)
    if stats.logprob_mismatch > config.ledger_tolerance:
        optimizer.zero_grad(set_to_none=True)
        raise TraceError(
            f"a sampled log-probability lies {stats.logprob_mismatch:.2g} nats from the recomputed one: the update does not read "
            "what the rollout read"
        )
    grad_norm = float(torch.nn.utils.clip_grad_norm_(trainable_parameters(policy).values(), config.grad_norm))
    tokens = max(1, int(stats.tokens.sum()))
    kl = float(stats.kls.sum()) / tokens
    refusal_reason = ""
    if not (math.isfinite(grad_norm) and math.isfinite(kl)):
        refusal_reason = "the loss is not a number"
    elif not batch.masks.any():  # leads back, however far the policy is
        sgd_step(policy, config.lr)
    elif kl > config.kl.most:
        refusal_reason = (
            f"KL to {'its average' if config.anchored else 'the start'} is {kl:.3f}, over {config.kl.most:g}"
        )
    else:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    drift = compute_drift(config, policy, policy_state.start_policy, microbatches, tokens)
    limit = math.inf if config.guard is None else config.guard
    if not refusal_reason and not drift_allowed(drift, limit=limit):
        refusal_reason, drift = enforce_drift_guard(
            config, policy_state, tensors_before, microbatches, drift=drift, limit=limit
        )
    update_ema(policy_state, config.rho)
    policy_state.pid = step_controller(config, policy_state.pid, kl)
    return UpdateResult(
        kl, drift, stats.entropy / tokens, beta, refusal_reason, stats.logprob_mismatch, stats.kls, stats.tokens
    )


class LossStats(NamedTuple):
    """What the policy makes of the rollouts before the step; `Updated` says what its fields are."""

    kls: np.ndarray
    tokens: np.ndarray
    entropy: float
    """Summed over the tokens."""
    logprob_mismatch: float


def accumulate_gradients(
    config: TtrlConfig, policy_state: PolicyState, batch: UpdateBatch, microbatches: Sequence[MicroBatch]
) -> LossStats:
    """Read the rollouts part by part, and leave the gradients of the loss in the policy."""
    tokens = max(1, sum(len(microbatch.logit_indices) for microbatch in microbatches))
    anchor = policy_state.ema_policy if config.anchored else policy_state.start_policy
    kls, counts = np.zeros(len(batch.sequences)), np.zeros(len(batch.sequences), dtype=np.int64)
    entropy = logprob_mismatch = 0.0
    for microbatch in microbatches:
        logits = forward_allowed_logits(config, policy_state.policy, microbatch)
        log_probs = logits.log_softmax(-1)
        token_logprobs = log_probs[microbatch.logit_indices, microbatch.targets]  # (n,)
        logprob_mismatch = max(
            logprob_mismatch,
            float((token_logprobs.detach() - microbatch.sampled_logprobs).abs().max()) if len(token_logprobs) else 0.0,
        )
        with torch.no_grad():
            anchor_logits = forward_allowed_logits(config, anchor, microbatch)
        kl = per_token_kl(logits, anchor_logits)[microbatch.logit_indices]
        rollout_indices = list(microbatch.rollout_indices)
        weights = torch.from_numpy(batch.advantages[rollout_indices]).to(token_logprobs)
        masks = torch.from_numpy(batch.masks[rollout_indices].astype(np.float32)).to(token_logprobs)
        mask = pad_per_sequence(torch.ones_like(token_logprobs), microbatch.token_counts)
        entropies = -(log_probs.exp() * log_probs).sum(-1)[microbatch.logit_indices]  # (n,)
        if config.objective == "entropy":
            entropy_sums = pad_per_sequence(entropies, microbatch.token_counts).sum(1) * masks
            loss = entropy_sums.sum() / tokens
        else:
            no_kl = token_logprobs.new_zeros(())  # the KL is over all tokens of the batch, and not of a part
            padded_logprobs = pad_per_sequence(token_logprobs, microbatch.token_counts)
            loss = ttrl_loss(padded_logprobs, mask, weights, masks, no_kl, beta=0.0, over_tokens=config.over_tokens)
            loss = loss * len(rollout_indices) / batch.rollout_count
        (loss + policy_state.pid.beta * kl.sum() / tokens).backward()
        entropy += float(entropies.detach().sum())
        kls[rollout_indices] = [
            float(rollout_kl.sum()) for rollout_kl in kl.detach().split(list(microbatch.token_counts))
        ]
        counts[rollout_indices] = microbatch.token_counts
    return LossStats(kls, counts, entropy, logprob_mismatch)


def enforce_drift_guard(
    config: TtrlConfig,
    policy_state: PolicyState,
    tensors_before: dict[str, Tensor],
    microbatches: Sequence[MicroBatch],
    *,
    drift: float,
    limit: float,
) -> tuple[str, float]:
    """A step beyond the guard is taken back, unless the policy was farther away before it. Why not, and the drift."""
    tokens = max(1, sum(len(microbatch.logit_indices) for microbatch in microbatches))
    tensors_after = {name: value.clone() for name, value in collect_tensors(policy_state).items()}
    load_tensors(policy_state, tensors_before)
    drift_before = compute_drift(config, policy_state.policy, policy_state.start_policy, microbatches, tokens)
    if drift < drift_before:  # what the guard is for is the way out, not the way back
        load_tensors(policy_state, tensors_after)
        return "", drift
    return f"KL to the start would be {drift:.3f}, over {limit:g}", drift_before


@torch.no_grad()
def sgd_step(policy: Policy, lr: float) -> None:
    """θ ← θ − lr·∇: a step that leaves the optimizer's moments as they are."""
    for value in trainable_parameters(policy).values():
        if value.grad is not None:
            value.sub_(value.grad, alpha=lr)


def forward_allowed_logits(config: TtrlConfig, policy: Policy, microbatch: MicroBatch) -> Tensor:
    """(u, V') at the places of a part that predict sampled tokens."""
    with autocast_context(policy.device, compute_dtype(config)):
        return policy.allowed_logits(policy(microbatch.batch).hidden.flatten(0, 1)[microbatch.logit_positions]).float()


@torch.no_grad()
def compute_drift(
    config: TtrlConfig, policy: Policy, start_policy: Policy, microbatches: Sequence[MicroBatch], tokens: int
) -> float:
    """KL(π_θ ‖ π_start), nats per token."""
    kls = [
        per_token_kl(
            forward_allowed_logits(config, policy, microbatch), forward_allowed_logits(config, start_policy, microbatch)
        )
        for microbatch in microbatches
    ]
    return (
        sum(float(kl[microbatch.logit_indices].sum()) for microbatch, kl in zip(microbatches, kls, strict=True))
        / tokens
    )


@torch.no_grad()
def update_ema(policy_state: PolicyState, rho: float) -> None:
    """π_EMA ← ρ·π_EMA + (1−ρ)·π_θ, in place."""
    theta, ema_parameters_by_name = (
        trainable_parameters(policy_state.policy),
        dict(policy_state.ema_policy.named_parameters()),
    )
    for name, value in ema_parameters({name: ema_parameters_by_name[name] for name in theta}, theta, rho=rho).items():
        ema_parameters_by_name[name].copy_(value)


def step_controller(config: TtrlConfig, pid: Pid, kl: float) -> Pid:
    """The controller after a reading; without control β stays."""
    if not config.kl.control:
        return replace(pid, kl=ema(pid.kl, kl, rho=0.9)) if math.isfinite(kl) else pid
    gains = PAPER if config.kl.gains == "paper" else DEFAULT
    return pid_step(pid, kl, target=config.kl.target, gains=gains, one_sided=config.kl.one_sided)


# --- on disk


def write_update_batch(path: Path, batch: UpdateBatch) -> None:
    """Everything that `update` needs, in one safetensors file, whole or not at all."""
    from safetensors.numpy import save

    pictures: list[ProcessedImage] = []
    picture_index: dict[int, int] = {}
    span_rows = []
    for row, sequence in enumerate(batch.sequences):
        for image_span in sequence.image_spans:
            key = id(image_span.image.pixels)  # a group shares its prompt's pictures, and the update reads them once
            if key not in picture_index:
                picture_index[key] = len(pictures)
                pictures.append(image_span.image)
            span_rows.append((row, image_span.start, picture_index[key]))
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


def read_update_batch(path: Path) -> UpdateBatch:
    """The opposite of `write_lesson`."""
    from safetensors.numpy import load_file

    tensors = load_file(path)
    pictures = [
        ProcessedImage(f"picture.{k}", tensors[f"picture.{k}"], int(rows), int(columns))
        for k, (rows, columns) in enumerate(tensors["grids"])
    ]
    ends = np.cumsum(tensors["lengths"])
    sequences = []
    for row, end in enumerate(ends):
        token_range = slice(int(end - tensors["lengths"][row]), int(end))
        logprobs = [None if np.isnan(p) else float(p) for p in tensors["logprobs"][token_range]]
        image_spans = [ImageSpan(int(start), pictures[k]) for r, start, k in tensors["places"] if r == row]
        count = token_range.stop - token_range.start
        sequences.append(
            TokenSequence(tensors["ids"][token_range].tolist(), ["thought"] * count, [0] * count, logprobs, image_spans)
        )
    return UpdateBatch(tuple(sequences), tensors["advantages"], tensors["masks"].astype(bool), int(tensors["asked"]))
