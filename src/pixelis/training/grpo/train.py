"""Phase 2: Curiosity–Coherence reinforcement fine-tuning (subsec:ccrft).

One update: prompts from the corpus, N rollouts each with real tools; R(τ) from its four terms over the batch;
advantages inside each group; one GRPO step with a KL penalty to π_SFT, whose weight a PID controller moves so that
token KL stays in its corridor; one epoch of h_ψ over the new steps.

Departures from the paper:
- g_φ is frozen (it has no loss that does not collapse it). Only h_ψ is trained further.
- v_t, x_t and E_t are read off π_SFT, not off the policy in training (`rewards.compute`).
- The logits of π_SFT may be divided by a temperature first (`temperature`; 1 by default).
- SEG is the classical one, which takes milliseconds where SAM 2's encoder takes seconds an image.
- Every batch is trained on once, under the weights that sampled it, hence ρ is 1; every update checks recomputed
  log-probabilities against sampled ones.
- KL ≤ 0.2 (supp:et_dynamics) is the controller's aim and no hard limit, and its gains are ours (decision 0005).

If a batch's mean token KL is NaN or exceeds `kl.max`, the update is skipped and counted, and the controller receives
its KL (`kl.max` for a NaN). After a KL over `kl.max` the next update uses only the KL term, beside what AdamW's moments
hold; after a NaN it is an ordinary one. All randomness depends on the seed and the number of the update: a killed run
resumes to the same curve.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import AdamW, Optimizer

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus import Corpus
from pixelis.equations.ema import ema
from pixelis.equations.grpo import group_advantage, grpo_loss, top_k
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import LoadedCheckpoint, load_checkpoint
from pixelis.policy.model import Policy
from pixelis.rewards.compute import compute_rewards, gather_trajectories, load_rewarder, train_dynamics
from pixelis.rewards.features import ReferenceOutput, reference_outputs
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Query
from pixelis.tools.toolbox import Toolbox, decisive_thresholds
from pixelis.training.common.distributed import DistributedContext, init_distributed, trainable_parameters
from pixelis.training.common.kl_controller import step_controller
from pixelis.training.common.policy_update import (
    MicroBatch,
    TokenOutputs,
    Totals,
    UpdateStats,
    accumulate_gradients,
    pad_per_sequence,
    skip_reason,
)
from pixelis.training.common.precision import autocast_context, compute_dtype, weights_dtype
from pixelis.training.common.run_folder import run_folder
from pixelis.training.dataset.scored_rollouts import ScoredRollout, score_rollout
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_metrics import measure_update
from pixelis.training.grpo.rft_run_log import RunLog, Show
from pixelis.training.grpo.rft_state import RftState, Trained

DEAD_TERM_SHARE = 0.01
"""A term with a smaller share of the reward's variance has no effect."""
SMOOTHING_RHO = 0.9
"""ρ of the metrics that are smoothed over updates."""
COLLAPSE_GRACE_STEPS = 20
"""Updates before a collapse stops the run."""
Prompts = list[tuple[int, str]]
"""Row numbers and ids of training questions."""
REWARD_TERMS = ("final", "curiosity", "coherence", "penalty", "tool_use")


class RftReport(NamedTuple):
    """The result of a run."""

    policy: str
    updates: int
    rollouts: int
    accuracy: float
    """Of the last updates' rollouts, in percent."""
    calls: float
    kl: float
    """Smoothed, nats per token."""
    beta: float
    skipped: int
    stopped: str
    dead: tuple[str, ...]
    """Terms with less than 1 % of the reward's variance."""
    seconds: float
    resumed: bool
    ended_before: bool
    """The run in the folder was complete already."""
    rank: int = 0


def train_rft(config: RftConfig, out: Path, *, show: Show = lambda now, step, total: None) -> RftReport:
    """Train a policy on its own rollouts into a run folder, or resume the run in it."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    corpus, tools = Corpus(config.corpus), config.toolbox_config()
    with init_distributed(config.device) as dist, run_folder(config, out, dist), Toolbox(tools) as toolbox:
        checkpoint = load_checkpoint(config.policy, device=config.device, dtype=weights_dtype(config))
        rewarder, train_prompts = load_rewarder(checkpoint, config.policy), training_prompts(config, corpus, dist)
        policy, reference = build_policy_and_reference(config, checkpoint)
        trained = Trained(policy, *build_optimizers(config, policy, rewarder.heads.h_psi), rewarder)
        log = RunLog(config, out, trained, corpus, dist, show)
        state = log.state
        while state.step < config.steps and not state.stop_reason:
            log.start_step()
            prompts, seed = sample_prompts(config, state, train_prompts), config.seed * 1_000_003 + state.step  # G
            batch = collect_rollouts(config, policy, toolbox, corpus, prompts, seed, dist)  # G·N over all processes
            log.end_rollouts()
            with reference_policy(reference, policy) as frozen:
                microbatches = reference_outputs(config, policy, frozen, batch.rollouts)
            trajectories = gather_trajectories(
                rewarder, microbatches, batch.rollouts, batch.media, batch.positions, config.reward, dist
            )
            rewards = compute_rewards(trajectories, rewarder, config.reward, group_size=config.group_size, seed=seed)
            advantages = group_advantages(rewards.terms.total, config) * (0.0 if state.kl_exceeded else 1.0)  # (G·N,)
            trained.optimizer.param_groups[0]["lr"] = config.learning_rate_at(state.step)
            update = grpo_step(
                config, policy, reference or policy, trained.optimizer, microbatches, advantages[batch.positions],
                state.pid.beta, dist, kl_exceeded=state.kl_exceeded,
            )  # fmt: skip
            dynamics_loss = train_dynamics(
                rewarder, trajectories.steps, trained.dynamics_optimizer, batch=config.dynamics_batch, seed=seed
            )
            values = measure_update(config, state, trajectories, rewards, advantages, update, batch.rollouts, dist)
            values |= {"lr": config.learning_rate_at(state.step), "dynamics_loss": dynamics_loss}
            update_controller(config, state, values, update, rewarder.token_statistics["entropy"].mean)
            hit_rate = toolbox.cache.hit_rate if toolbox.cache else 0.0
            log.end_step(values, [item for _, item in prompts], rewards, trajectories, hit_rate)
        log.close()
        from pixelis.training.grpo.rft_export import export_rft

        final_scores = export_rft(config, checkpoint, rewarder, state, out, dist)
    enabled_terms = [name for name in state.shares if getattr(config.reward, name)]
    return RftReport(
        policy=str(out / "policy"), updates=state.step,
        rollouts=state.step * config.prompts_per_step * config.group_size,
        accuracy=final_scores["accuracy"], calls=final_scores["calls"], kl=state.pid.kl or 0.0, beta=state.pid.beta,
        skipped=state.skipped, stopped=state.stop_reason,
        dead=tuple(name for name in enabled_terms if abs(state.shares[name]) < DEAD_TERM_SHARE),
        seconds=state.seconds, resumed=log.resumed, ended_before=log.already_finished, rank=dist.rank,
    )  # fmt: skip


# --- setup


def training_prompts(config: RftConfig, corpus: Corpus, dist: DistributedContext) -> Prompts:
    """The questions of the corpus that are trained on."""
    count = config.prompts_per_step
    if count < dist.world_size:
        raise ConfigError(f"prompts_per_step is {count} for {dist.world_size} processes: want at least one for each")
    rows = [(k, row) for k, row in enumerate(corpus.rows()) if row.split == "train"]
    prompts = [(k, row.id) for k, row in rows if not config.families or row.family in config.families]
    if len(prompts) < count:
        raise ConfigError(f"{config.corpus} has {len(prompts)} training questions of these families, want {count}")
    return prompts


def build_policy_and_reference(config: RftConfig, checkpoint: LoadedCheckpoint) -> tuple[Policy, Policy | None]:
    """The policy to train and π_SFT: a frozen copy, or None with LoRA, which can be disabled instead."""
    from pixelis.nano.temperature import divide_logits_by

    policy = checkpoint.policy
    divide_logits_by(policy, config.temperature)
    if config.checkpoint_activations:
        policy.model.gradient_checkpointing_enable()
    if config.lora is not None:
        from pixelis.training.common.lora import wrap_lora

        wrap_lora(policy, config.lora, config.seed)
        return policy, None
    return policy, copy.deepcopy(policy).eval().requires_grad_(False)


def build_optimizers(config: RftConfig, policy: Policy, h_psi: torch.nn.Module) -> tuple[AdamW, AdamW]:
    """AdamW of the policy and of h_ψ."""
    optimizer = AdamW(
        trainable_parameters(policy).values(), lr=config.lr, betas=config.betas, eps=config.eps,
        weight_decay=config.weight_decay, fused=True,
    )  # fmt: skip
    return optimizer, AdamW(h_psi.parameters(), lr=config.lr_dynamics, weight_decay=0.01)


@contextmanager
def reference_policy(reference: Policy | None, policy: Policy) -> Iterator[Policy]:
    """π_SFT: the frozen copy, or the policy with its adapters disabled."""
    if reference is not None:
        yield reference
        return
    with policy.model.disable_adapter():
        yield policy


# --- one update


def sample_prompts(config: RftConfig, state: RftState, train_prompts: Prompts) -> Prompts:
    """The prompts of the next update: without replacement within an epoch, whose incomplete last batch is dropped."""
    if len(state.remaining) < config.prompts_per_step:
        rng = np.random.default_rng([config.seed, state.epochs])
        state.remaining, state.epochs = rng.permutation(len(train_prompts)).tolist(), state.epochs + 1
    indices = state.remaining[: config.prompts_per_step]
    state.remaining = state.remaining[config.prompts_per_step :]
    return [train_prompts[k] for k in indices]


class RolloutBatch(NamedTuple):
    """This process's rollouts of an update."""

    rollouts: list[ScoredRollout]
    media: list[MediaSet]
    """Of each rollout."""
    positions: NDArray[np.int64]
    """Of each rollout in the batch of all processes."""


def collect_rollouts(
    config: RftConfig,
    policy: Policy,
    toolbox: Toolbox,
    corpus: Corpus,
    prompts: Prompts,
    seed: int,
    dist: DistributedContext,
) -> RolloutBatch:
    """Sample and score N rollouts of each prompt in this process's share."""
    shard = dist.shard(range(len(prompts)))
    records = [corpus[prompts[k][0]] for k in shard]
    media = [corpus.media(record) for record in records]
    queries = [Query(r.item.id, r.item.question, m, r.item.seed) for r, m in zip(records, media, strict=True)]
    with autocast_context(policy.device, compute_dtype(config)):  # as the update will read them
        n, limits = config.group_size, config.limits
        groups = rollout(policy, toolbox, queries, n=n, seed=seed, limits=limits, name=config.name)
    rollouts, thresholds = list[ScoredRollout](), decisive_thresholds(toolbox.tools)
    for record, media_set, group in zip(records, media, groups, strict=True):
        rollouts += [score_rollout(one, record.item, media_set, policy.tokenizer, thresholds) for one in group]
        toolbox.release(media_set)
    positions = [k * config.group_size + j for k in shard for j in range(config.group_size)]
    rollout_media = [media_set for media_set in media for _ in range(config.group_size)]
    return RolloutBatch(rollouts, rollout_media, np.array(positions, dtype=np.int64))


def group_advantages(rewards: NDArray[np.float64], config: RftConfig) -> NDArray[np.float64]:
    """(G·N,) rewards to (G·N,) advantages within the K best of each group; NaN for the other rollouts."""
    groups = rewards.reshape(-1, config.group_size)  # (G, N)
    best = np.array([top_k(group, k=config.keep_best) for group in groups])  # (G, K)
    best_rewards = np.take_along_axis(groups, best, axis=1)  # (G, K)
    out = np.full_like(groups, np.nan)
    np.put_along_axis(out, best, group_advantage(best_rewards, advantage_std=config.advantage_std), axis=1)
    return out.ravel()


def grpo_step(
    config: RftConfig,
    policy: Policy,
    reference: Policy,
    optimizer: Optimizer,
    microbatches: Sequence[tuple[MicroBatch, ReferenceOutput]],
    advantages: NDArray[np.float64],
    beta: float,
    dist: DistributedContext,
    *,
    kl_exceeded: bool = False,
) -> UpdateStats:
    """One GRPO step on the rollouts of all processes. With `kl_exceeded` the KL limit does not apply: the advantages
    are then 0, and the step reduces the KL."""
    trained = np.isfinite(advantages)  # (B,)

    def policy_loss(microbatch: MicroBatch, outputs: TokenOutputs, totals: Totals) -> tuple[Tensor, float]:
        mask = pad_per_sequence(outputs.in_loss, microbatch.token_counts)  # (b, T)
        logprobs = pad_per_sequence(outputs.logprobs, microbatch.token_counts)  # (b, T)
        A = torch.from_numpy(np.nan_to_num(advantages[list(microbatch.rollout_indices)])).to(logprobs)  # (b,)
        # the weights that sampled are these: ρ is 1 without rounding
        loss = grpo_loss(logprobs, logprobs.detach(), A, mask, clip=config.clip, loss_average=config.loss_average)
        if config.loss_average == "sequence":
            share = float(mask.any(1).sum()) / max(totals.rollouts, 1)
        else:
            share = int(outputs.in_loss.sum()) / max(totals.tokens, 1)
        return loss.policy * share, loss.clipped

    policy.train()
    optimizer.zero_grad(set_to_none=True)
    update = accumulate_gradients(
        config, policy, lambda k: reference.allowed_logits(microbatches[k][1].hidden).float(),
        [microbatch for microbatch, _ in microbatches], trained, policy_loss, beta, dist,
    )  # fmt: skip
    reason = skip_reason(update, math.inf if kl_exceeded else config.kl.max, reference="π_SFT")
    if not reason and update.tokens:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    policy.eval()
    return update._replace(skip_reason=reason or ("" if update.tokens else "no sampled tokens"))


def update_controller(
    config: RftConfig, state: RftState, values: dict[str, float], update: UpdateStats, reference_entropy: float
) -> None:
    """Pass the KL to the controller, and stop the run if tool use or entropy has collapsed.

    A NaN counts as `kl.max`, so that β rises. `reference_entropy` is the entropy of π_SFT's tokens.
    """
    state.kl_exceeded = update.kl > config.kl.max
    is_reading = math.isfinite(update.kl) or not config.kl.adaptive
    state.pid = step_controller(config.kl, state.pid, update.kl if is_reading else config.kl.max)
    state.skipped += bool(update.skip_reason)
    state.calls = ema(state.calls, values["calls"], rho=SMOOTHING_RHO)
    state.entropy = ema(state.entropy, update.entropy, rho=SMOOTHING_RHO)
    for name in REWARD_TERMS:
        state.shares[name] = ema(state.shares.get(name), values[f"share_{name}"], rho=SMOOTHING_RHO) or 0.0
    if state.step < COLLAPSE_GRACE_STEPS:
        return
    limit = config.min_tool_calls
    if state.calls is not None and state.calls < limit:
        state.stop_reason = f"tool use has collapsed: {state.calls:.2f} calls per rollout, under {limit:g}"
    min_entropy = config.min_entropy_ratio * reference_entropy
    if state.entropy is not None and state.entropy < min_entropy:
        state.stop_reason = f"entropy has collapsed: {state.entropy:.4f} nats per token, under {min_entropy:.4f}"
