"""Phase 2: Curiosity–Coherence reinforcement fine-tuning (subsec:ccrft).

One update: questions from the corpus, K rollouts each with real tools; R(τ) from its four terms over the batch;
advantages inside each group; one GRPO step with a KL penalty to π_SFT, whose weight a PID controller moves so that
token KL stays in its corridor; one pass of h_ψ over the new steps.

How it departs from the paper:
- g_φ is frozen (it has no loss that does not collapse it). h_ψ alone goes on learning.
- v_t, x_t and E_t are read off π_SFT, not off the policy that moves (`worth`).
- The logits of π_SFT may be divided by a temperature first (`temperature`; 1 by default).
- SEG is the classical one, which takes milliseconds where SAM 2's encoder takes seconds a picture.
- Every batch is learnt from once, under the weights that sampled it, hence ρ is 1; the sanitizer holds recomputed
  log-probabilities against sampled ones in every update.

A batch that cannot be learnt from (KL out of bounds, a loss that is no number) is skipped and recorded; the controller
hears of it. After a KL out of bounds the next batch has no advantages: its KL leads back, beside what AdamW's moments
still hold. All that is drawn depends on the seed and the number of the update: a killed run goes on to the same curve.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError, TraceError
from pixelis.data.corpus.corpus import Corpus
from pixelis.equations.ema import ema
from pixelis.equations.grpo import group_advantage, grpo_loss, top_k
from pixelis.equations.kl import per_token_kl
from pixelis.equations.pid import DEFAULT, PAPER, Pid, pid_step
from pixelis.media import MediaSet
from pixelis.nano.temperature import divide_logits_by
from pixelis.policy.checkpoint import LoadedCheckpoint, load_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.model_names import hash_weights
from pixelis.rewards.compute import compute_rewards, gather_trajectories, load_rewarder, train_dynamics
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Query
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.training.common.distributed import DistributedContext, init_distributed, trainable_parameters
from pixelis.training.common.precision import autocast_context, compute_dtype, weights_dtype
from pixelis.training.common.run_folder import MetricsLog, drop_rows_after, run_folder
from pixelis.training.common.scored_rollouts import (
    MicroBatch,
    ReferenceOutput,
    ScoredRollout,
    make_microbatches,
    pad_per_sequence,
    reference_forward,
    score_rollout,
)
from pixelis.training.dataset.prepared_examples import run_sources
from pixelis.training.dataset.training_index import wrap_lora
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_export import SUMMARIES, append_summaries, export_rft
from pixelis.training.grpo.rft_metrics import UpdateStats, measure_update
from pixelis.training.grpo.rft_state import RftState, is_save_due, load_rft, save_rft

DEAD_TERM_SHARE = 0.01
"""A term with less than this share of the reward's variance does nothing."""
SMOOTHING_RHO = 0.9
"""ρ of what is smoothed over updates."""
COLLAPSE_GRACE_STEPS = 20
"""Updates before a collapse may be called one."""


class RftReport(NamedTuple):
    """What a run came to."""

    policy: str
    updates: int
    rollouts: int
    accuracy: float
    """Of the last updates, in percent, as sampled."""
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
    """The run in the folder had come to its end, and nothing was learnt now."""
    rank: int = 0


Show = Callable[[dict[str, float], int, int], None]
"""Called with what an update measured, its number, and how many there will be."""


def train_rft(config: RftConfig, out: Path, *, show: Show = lambda now, step, total: None) -> RftReport:
    """Train a policy on its own rollouts into a run folder, or go on where a run was stopped."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    corpus = Corpus(config.corpus)
    tools = ToolboxConfig(seg="classical", isolate=False, workers=config.workers, cache_path=config.cache_path)
    with init_distributed(config.device) as dist, run_folder(config, out, dist), Toolbox(tools) as toolbox:
        checkpoint = load_checkpoint(config.policy, device=config.device, dtype=weights_dtype(config))
        rewarder, train_prompts = load_rewarder(checkpoint, config.policy), training_prompts(config, corpus, dist)
        policy, reference = build_policy_and_reference(config, checkpoint)
        optimizer = torch.optim.AdamW(
            trainable_parameters(policy).values(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        dynamics_optimizer = torch.optim.AdamW(
            rewarder.heads.h_psi.parameters(), lr=config.lr_dynamics, weight_decay=0.01
        )
        sources = run_sources(corpus, policy.tokenizer)._replace(policy=hash_weights(config.policy))
        resumed_state = load_rft(out, sources, policy, optimizer, rewarder, dynamics_optimizer, dist)
        state = resumed_state or RftState(pid=Pid(beta=config.kl.beta))
        already_finished = state.step >= config.updates or bool(state.stopped)
        log, last_save, started_at = (
            MetricsLog(out, state.step, dist),
            time.monotonic(),
            time.monotonic() - state.seconds,
        )
        if dist.is_main:
            drop_rows_after(out / SUMMARIES, state.step)
        while state.step < config.updates and not state.stopped:
            step_start = time.monotonic()
            prompts = sample_prompts(config, state, train_prompts)
            seed = config.seed * 1_000_003 + state.step
            rollouts, media, batch_indices = collect_rollouts(config, policy, toolbox, corpus, prompts, seed, dist)
            rollout_end = time.monotonic()
            with (
                reference_policy(reference, policy) as frozen_reference,
                autocast_context(policy.device, compute_dtype(config)),
            ):
                microbatches = [
                    (microbatch, reference_forward(frozen_reference, microbatch, rollouts))
                    for microbatch in make_microbatches(
                        [scored_rollout.sequence for scored_rollout in rollouts], policy, config.batch_tokens
                    )
                ]
            trajectories = gather_trajectories(
                rewarder, microbatches, rollouts, media, batch_indices, config.reward, dist
            )
            rewards = compute_rewards(trajectories, rewarder, config.reward, group_size=config.samples, seed=seed)
            advantages = group_advantages(rewards.terms.total, config) * (0.0 if state.far else 1.0)
            optimizer.param_groups[0]["lr"] = config.learning_rate_at(state.step)
            update = grpo_step(
                config,
                policy,
                reference or policy,
                optimizer,
                microbatches,
                advantages[batch_indices],
                state.pid.beta,
                dist,
                kl_exceeded=state.far,
            )
            dynamics_loss = train_dynamics(
                rewarder, trajectories.steps, dynamics_optimizer, batch=config.dynamics_batch, seed=seed
            )
            values = measure_update(config, state, trajectories, rewards, advantages, update, rollouts, dist)
            values |= {
                "lr": config.learning_rate_at(state.step), "dynamics_loss": dynamics_loss, "seconds_rollout": rollout_end - step_start,
                "seconds_update": time.monotonic() - rollout_end,
                "cache_hits": toolbox.cache.hit_rate if toolbox.cache else 0.0,
            }  # fmt: skip
            update_controller(config, state, values, update, rewarder.token_statistics["entropy"].mean)
            state.step += 1
            state.seconds = time.monotonic() - started_at
            append_summaries(
                out, state.step, [item for _, item in prompts], config.samples, rewards, trajectories, dist
            )
            if state.step % config.log_every == 0:
                log.write(state.step, **values)
            show(values, state.step, config.updates)
            if state.step == config.updates or state.stopped or is_save_due(last_save, config.save_minutes, dist):
                save_rft(out, state, sources, policy, optimizer, rewarder, dynamics_optimizer, dist)
                last_save = time.monotonic()
        log.close()
        final_scores = export_rft(config, checkpoint, policy, rewarder, asdict(state), out, dist)
    return RftReport(
        policy=str(out / "policy"), updates=state.step, rollouts=state.step * config.queries * config.samples,
        accuracy=final_scores["accuracy"], calls=final_scores["calls"], kl=state.pid.kl or 0.0, beta=state.pid.beta,
        skipped=state.skipped, stopped=state.stopped,
        dead=tuple(name for name, share in state.shares.items() if term_enabled(config, name) and abs(share) < DEAD_TERM_SHARE),
        seconds=state.seconds, resumed=resumed_state is not None, ended_before=already_finished, rank=dist.rank,
    )  # fmt: skip


# --- where it begins


def training_prompts(config: RftConfig, corpus: Corpus, dist: DistributedContext) -> list[tuple[int, str]]:
    """The training questions: their numbers in the corpus, and their ids."""
    if config.queries < dist.world_size:
        raise ConfigError(
            f"{config.queries} queries an update for {dist.world_size} processes: want at least one for each"
        )
    rows = enumerate(corpus.rows())
    prompts = [
        (k, r.id) for k, r in rows if r.split == "train" and (not config.families or r.family in config.families)
    ]
    if len(prompts) < config.queries:
        raise ConfigError(
            f"{config.corpus} has {len(prompts)} training questions of these families, want {config.queries}"
        )
    return prompts


def build_policy_and_reference(config: RftConfig, checkpoint: LoadedCheckpoint) -> tuple[Policy, Policy | None]:
    """The policy that learns, and π_SFT: a frozen copy, or None where LoRA can be taken off instead."""
    policy = checkpoint.policy
    divide_logits_by(policy, config.temperature)
    if config.checkpoint_activations:
        policy.model.gradient_checkpointing_enable()
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
        return policy, None
    return policy, copy.deepcopy(policy).eval().requires_grad_(False)


@contextmanager
def reference_policy(reference: Policy | None, policy: Policy) -> Iterator[Policy]:
    """π_SFT to read with."""
    if reference is not None:
        yield reference
        return
    with policy.model.disable_adapter():
        yield policy


def sample_prompts(
    config: RftConfig, state: RftState, train_prompts: Sequence[tuple[int, str]]
) -> list[tuple[int, str]]:
    """The questions of the next update. In a pass every one comes once, but for a few that fill no whole update."""
    if len(state.left) < config.queries:
        rng = np.random.default_rng([config.seed, state.passes])
        state.left, state.passes = rng.permutation(len(train_prompts)).tolist(), state.passes + 1
    prompt_indices, state.left = state.left[: config.queries], state.left[config.queries :]
    return [train_prompts[k] for k in prompt_indices]


# --- one update


def collect_rollouts(
    config: RftConfig,
    policy: Policy,
    toolbox: Toolbox,
    corpus: Corpus,
    prompts: Sequence[tuple[int, str]],
    seed: int,
    dist: DistributedContext,
) -> tuple[list[ScoredRollout], list[MediaSet], NDArray[np.int64]]:
    """This process's rollouts, their media, and their places in the batch."""
    shard_indices = dist.shard(range(len(prompts)))
    records = [corpus[prompts[k][0]] for k in shard_indices]
    media = [corpus.media(record) for record in records]
    queries = [Query(r.item.id, r.item.question, m, r.item.seed) for r, m in zip(records, media, strict=True)]
    with autocast_context(policy.device, compute_dtype(config)):  # as the update will read them
        groups = rollout(
            policy, toolbox, queries, n=config.samples, seed=seed, limits=config.limits,
            name=config.name,
        )  # fmt: skip
    rollouts = [
        score_rollout(sample, record.item, media_set, policy.tokenizer)
        for record, media_set, group in zip(records, media, groups, strict=True)
        for sample in group
    ]
    for media_set in media:
        toolbox.release(media_set)
    batch_indices = [k * config.samples + j for k in shard_indices for j in range(config.samples)]
    return (
        rollouts,
        [media_set for media_set in media for _ in range(config.samples)],
        np.array(batch_indices, dtype=np.int64),
    )


def group_advantages(rewards: NDArray[np.float64], config: RftConfig) -> NDArray[np.float64]:
    """(B,) advantages inside each group of the K best; NaN for a rollout that is not kept."""
    groups = rewards.reshape(-1, config.samples)
    out = np.full_like(groups, np.nan)
    best_indices = np.array([top_k(group, k=config.group) for group in groups])  # (G, K)
    best_rewards = np.take_along_axis(groups, best_indices, axis=1)
    np.put_along_axis(out, best_indices, group_advantage(best_rewards, advantage_std=config.spread), axis=1)
    return out.ravel()


def grpo_step(
    config: RftConfig,
    policy: Policy,
    reference: Policy,
    optimizer: torch.optim.Optimizer,
    microbatches: Sequence[tuple[MicroBatch, ReferenceOutput]],
    advantages: NDArray[np.float64],
    beta: float,
    dist: DistributedContext,
    *,
    kl_exceeded: bool = False,
) -> UpdateStats:
    """One GRPO step on the rollouts of all processes. One that starts from `far` away may lie beyond the KL that is
    borne: it has no advantages, and leads back."""
    policy.train()
    optimizer.zero_grad(set_to_none=True)
    has_advantage = np.isfinite(advantages)
    counts = [
        [c, bool(c)]
        for microbatch, _ in microbatches
        for k, c in zip(microbatch.rollout_indices, microbatch.token_counts, strict=True)
        if has_advantage[k]
    ]
    token_count, rollout_count = dist.all_reduce_sum(
        torch.tensor(counts, dtype=torch.float64).reshape(-1, 2).sum(0)
    ).tolist()
    sums = torch.zeros(4, dtype=torch.float64)  # KL, entropy, clipped tokens, tokens
    logprob_mismatch = 0.0
    for microbatch, reference_output in microbatches:
        with autocast_context(policy.device, compute_dtype(config)):
            output = policy(microbatch.batch)
            logits = policy.allowed_logits(output.hidden.flatten(0, 1)[microbatch.logit_positions]).float()  # (u, V')
            reference_logits = reference.allowed_logits(reference_output.hidden).float()
        log_probs = logits.log_softmax(-1)
        token_logprobs = log_probs[microbatch.logit_indices, microbatch.targets]  # (n,)
        logprob_mismatch = max(
            logprob_mismatch,
            float((token_logprobs.detach() - microbatch.sampled_logprobs).abs().max()) if len(token_logprobs) else 0.0,
        )
        in_loss = torch.from_numpy(
            np.repeat(has_advantage[list(microbatch.rollout_indices)], microbatch.token_counts)
        ).to(token_logprobs.device)
        kl = per_token_kl(logits, reference_logits)[microbatch.logit_indices][in_loss]
        mask = pad_per_sequence(in_loss, microbatch.token_counts)
        rollout_advantages = torch.from_numpy(np.nan_to_num(advantages[list(microbatch.rollout_indices)])).to(
            token_logprobs
        )
        old_logprobs = pad_per_sequence(
            token_logprobs.detach(), microbatch.token_counts
        )  # the weights that sampled are these: ρ is 1 without rounding
        loss = grpo_loss(
            pad_per_sequence(token_logprobs, microbatch.token_counts),
            old_logprobs,
            rollout_advantages,
            mask,
            clip=config.clip,
            loss_average=config.per,
        )
        share = (
            float(mask.any(1).sum()) / max(rollout_count, 1)
            if config.per == "sequence"
            else len(kl) / max(token_count, 1)
        )
        (loss.policy * share + beta * kl.sum() / max(token_count, 1)).backward()
        entropies = -(log_probs.detach().exp() * log_probs.detach()).sum(-1)  # (u,)
        entropy_sum, count = float(entropies[microbatch.logit_indices][in_loss].sum()), len(kl)
        sums += torch.tensor([float(kl.detach().sum()), entropy_sum, loss.clipped * count, count], dtype=torch.float64)
    if logprob_mismatch > config.ledger_tolerance:
        raise TraceError(
            f"a sampled log-probability lies {logprob_mismatch:.2g} nats from the recomputed one: the update does not read what the "
            "rollout read"
        )
    kl_sum, entropy, clipped, count = dist.all_reduce_sum(sums).tolist()
    dist.all_reduce_gradients(policy)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(trainable_parameters(policy).values(), config.grad_norm))
    mean_kl = kl_sum / max(count, 1.0)
    within_kl_limit = math.isfinite(mean_kl) and (kl_exceeded or mean_kl <= config.kl.most)
    skipped = not (count and math.isfinite(grad_norm) and within_kl_limit)
    if not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    policy.eval()
    return UpdateStats(
        mean_kl, entropy / max(count, 1.0), logprob_mismatch, grad_norm, clipped / max(count, 1.0), skipped
    )


def update_controller(
    config: RftConfig, state: RftState, values: dict[str, float], update: UpdateStats, reference_entropy: float
) -> None:
    """The controller hears of the KL; a collapse stops the run. `usual` is the entropy of π_SFT's tokens.

    A KL that is no number counts as the most that is borne: β rises.
    """
    state.far = update.kl > config.kl.most
    if config.kl.control:
        gains = PAPER if config.kl.gains == "paper" else DEFAULT
        observed_kl = update.kl if math.isfinite(update.kl) else config.kl.most
        state.pid = pid_step(
            state.pid, observed_kl, target=config.kl.target, gains=gains, one_sided=config.kl.one_sided
        )
    elif math.isfinite(update.kl):
        state.pid = replace(state.pid, kl=ema(state.pid.kl, update.kl, rho=SMOOTHING_RHO))
    state.skipped += update.skipped
    state.calls = ema(state.calls, values["calls"], rho=SMOOTHING_RHO)
    state.entropy = ema(state.entropy, update.entropy, rho=SMOOTHING_RHO)
    for name in ("final", "curiosity", "coherence", "penalty", "tool_use"):
        state.shares[name] = ema(state.shares.get(name), values[f"share_{name}"], rho=SMOOTHING_RHO) or 0.0
    if state.step >= COLLAPSE_GRACE_STEPS and state.calls is not None and state.calls < config.least_calls:
        state.stopped = f"tool use has collapsed: {state.calls:.2f} calls a chain, under {config.least_calls:g}"
    floor = config.least_entropy * reference_entropy
    if state.step >= COLLAPSE_GRACE_STEPS and state.entropy is not None and state.entropy < floor:
        state.stopped = f"variety has collapsed: {state.entropy:.4f} nats a token, under {floor:.4f}"


def term_enabled(config: RftConfig, term: str) -> bool:
    return bool(getattr(config.reward, term))
