"""Phase 1: supervised fine-tuning on the corpus (subsec:sft), from nano on two cores to a sharded 8B.

How it departs from the paper:
- Dropped feedback and dropped early actions are given to the policy as padding tokens (a dropped view is not shown);
  they stay targets. The paper does not say how it hides them.
- "SFT-predicted error" is the nats per token of an example when training last visited it, less the smoothed loss of
  that moment, so that early visits do not look hard. It costs no pass of its own.
- "Advance" means: bin the pool anew by the errors of now. Where the smoothed dev loss went up by more than 5 % the
  bins stay (smoothed at 0.9 over one evaluation an epoch, which a single rise of up to a half passes);
  a corpus without a dev split has no dev loss, and advances every epoch.
- The learning rate follows the share of examples that were visited, so that any batching has the same schedule.
- The tags around a call weigh w_act too: they are part of the action.
- A batch is a number of tokens; its examples have similar lengths, so that little of it is filling.
- The exported policy's logits are divided by a temperature that undoes label smoothing (`tempering`); dev losses are
  those of training, before it.
- A policy from random weights may begin with drills (`drills`) and learn by Muon (`optimizers`); the paper starts from
  an instruct model, and the defaults know neither.

Everything that is drawn comes from one generator, which the state of the run keeps: a killed run goes on to the same
weights, bit for bit on one thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelis.core.errors import PixelisError
from pixelis.data.corpus.corpus import Corpus
from pixelis.equations.curriculum import hardness_tertiles, sample_medium_hard, should_advance
from pixelis.equations.ema import ema
from pixelis.equations.sft import sft_total
from pixelis.nano.temperature import fit_policy_temperature
from pixelis.nano.warmup_tasks.warmup_tasks import make_warmup_batch
from pixelis.training.common.distributed import DistributedContext, init_distributed, trainable_parameters
from pixelis.training.common.precision import compute_dtype
from pixelis.training.common.run_folder import MetricsLog, RunClock, Show, run_folder
from pixelis.training.common.run_state import SftState, Sources, load_sft_state, save_sft_state
from pixelis.training.dataset.examples import Example
from pixelis.training.dataset.prepared_examples import run_sources
from pixelis.training.dataset.training_index import (
    ExampleRef,
    build_optimizer,
    build_sft_model,
    load_example,
    make_batches,
    prepare_split,
    require_pool,
    training_index,
)
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_export import export_sft
from pixelis.training.sft.sft_model import SftBatch, SftModel, collate, sample_hidden_tokens
from pixelis.training.sft.teacher_forced_eval import evaluate_dev_loss

WARMUP_TASK_RISE_STEPS = 20
"""Drills over which the learning rate rises."""
FIRST_STEPS = 20
"""After these the speed is known well enough to fit a budget of minutes for the first time."""


class SftReport(NamedTuple):
    """What a run came to."""

    policy: str
    """The folder of the exported checkpoint."""
    steps: int
    epochs: float
    examples: int
    parameters: int
    dev_loss: float | None
    """None where the corpus has no dev split."""
    dynamics: bool
    """Whether g_φ and h_ψ were trained: a corpus without calls has nothing to train them on."""
    held_out: int
    """Items of the corpus's test split, which nothing was learnt from."""
    tokens_per_s: float
    seconds: float
    resumed: bool
    ended_before: bool
    """The run in the folder had come to its end, and nothing was learnt now."""
    rank: int = 0
    """Of the process that reports; only 0 has written anything."""


def train_sft(config: SftConfig, out: Path, *, show: Show = lambda now: None) -> SftReport:
    """Train a policy on a corpus into a run folder, or go on where a run was stopped."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    corpus = Corpus(config.corpus)
    with init_distributed(config.device) as dist, run_folder(config, out, dist):
        sft_model, card = build_sft_model(config, corpus)
        train, dev = (prepare_split(config, corpus, sft_model.policy, split, dist, show) for split in ("train", "dev"))
        pool, held_out = training_index(config, train), training_index(config, dev)
        require_pool(config, corpus, pool)
        model = dist.wrap(sft_model, shard=config.shard, dtype=compute_dtype(config))
        optimizer = build_optimizer(config, sft_model, dist)
        sources = run_sources(corpus, sft_model.policy.tokenizer)
        resumed_state = load_sft_state(out, sources, sft_model, optimizer, dist)
        state = resumed_state or SftState(
            np.random.default_rng(config.seed), np.full(len(pool), np.nan), epochs=config.epochs
        )
        already_finished = bool(state.visited) and state.visited >= round(state.epochs * len(pool))
        log, clock = MetricsLog(out, state.step or state.drilled - config.drill_steps, dist), RunClock(state)
        run_warmup_tasks(config, model, optimizer, state, sources, log, clock, show, out, dist)
        while state.visited < round(state.epochs * len(pool)):
            clock.start_step()
            if not state.batches:
                plan_epoch(config, state, pool)
            batch = state.batches[0]
            examples = [load_example(train, pool[k]) for k in batch]
            dropout_masks = [sample_dropout_mask(config, item, state.rng) for item in examples]
            lr_scale = learning_rate_scale(config, state.visited / (state.epochs * len(pool)))
            losses = train_step(config, model, optimizer, examples, dropout_masks, lr_scale, dist)
            record_errors(state, batch, losses)
            if config.drill_every and state.step % config.drill_every == 0:
                warmup_step(config, model, optimizer, state, lr_scale, dist)
            clock.end_step(sum(pool[k].tokens for k in batch))
            if state.step % config.log_every == 0 or not state.batches:
                report_progress(config, state, losses, len(pool), log, clock, show)
            fit_budget(config, state, clock, len(pool), dist)
            if not state.batches and held_out:  # an epoch has ended
                state.dev_losses.append(
                    evaluate_dev_loss(model, dev, held_out, config.batch_tokens, state.step, log, dist)
                )
            if not state.batches or clock.is_save_due(config.save_minutes, config.log_every, dist):
                save_sft_state(out, clock.update_state(), sources, sft_model, optimizer, dist)
        show(clock.progress(math.nan, len(pool), "g_φ and h_ψ"))
        temperature_pool = held_out if config.temper and config.label_smoothing > 0.0 else []
        temperature = fit_policy_temperature(model, dev, temperature_pool, config.batch_tokens, dist)
        scores = export_sft(config, model, card, corpus, state, train, pool, out, dist, clock, temperature)
        log.close()
    return SftReport(
        policy=str(out / "policy"),
        steps=state.step,
        epochs=state.epochs,
        examples=len(pool),
        parameters=scores["parameters"],
        dev_loss=scores["dev_loss"],
        dynamics="dynamics_loss" in scores,
        held_out=sum(1 for _ in corpus.rows(split="test")),
        tokens_per_s=clock.tokens_per_s,
        seconds=clock.seconds,
        resumed=resumed_state is not None,
        ended_before=already_finished,
        rank=dist.rank,
    )


def run_warmup_tasks(
    config: SftConfig,
    model: Any,
    optimizer: torch.optim.Optimizer,
    state: SftState,
    sources: Sources,
    log: MetricsLog,
    clock: RunClock,
    show: Show,
    out: Path,
    dist: DistributedContext,
) -> None:
    """Conversations without pictures, made by rule, before the first epoch."""
    sft_model: SftModel = getattr(model, "module", model)
    while state.drilled < config.drill_steps:
        clock.start_step()
        lr_scale = min(1.0, (state.drilled + 1) / WARMUP_TASK_RISE_STEPS)
        tokens, losses = warmup_step(config, model, optimizer, state, lr_scale, dist)
        state.drilled += 1
        clock.end_step(tokens)
        state.drilled_s = clock.seconds
        if state.drilled % config.log_every == 0:
            log.write(state.drilled - config.drill_steps, drill_loss=losses.sft, drill_nats=float(losses.nats.mean()))
            show(clock.progress(losses.sft, 1, "drills")._replace(share=state.drilled / config.drill_steps))
        if clock.is_save_due(config.save_minutes, config.log_every, dist):
            save_sft_state(out, clock.update_state(), sources, sft_model, optimizer, dist)


def warmup_step(
    config: SftConfig,
    model: Any,
    optimizer: torch.optim.Optimizer,
    state: SftState,
    lr_scale: float,
    dist: DistributedContext,
) -> tuple[int, Losses]:
    """One batch of drills: how many tokens it had, and its losses."""
    policy = getattr(model, "module", model).policy
    batch = make_warmup_batch(state.rng, policy.tokenizer, policy.style, policy.image_config, config.batch_tokens)
    no_dropout = [np.zeros(len(item), dtype=bool) for item in batch]
    return sum(map(len, batch)), train_step(config, model, optimizer, batch, no_dropout, lr_scale, dist)


class Losses(NamedTuple):
    """One step's losses over all processes."""

    sft: float
    tool: float
    nats: NDArray[np.float64]
    """(B,) nats per token of each example."""


def train_step(
    config: SftConfig,
    model: Any,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    dropout_masks: Sequence[NDArray[np.bool_]],
    lr_scale: float,
    dist: DistributedContext,
) -> Losses:
    """One step of the optimizer on a batch (eq:sft_total_obj_compact), at a share of the peak learning rate."""
    sft_model: SftModel = getattr(model, "module", model)
    model.train()
    shard_indices = dist.shard(range(len(examples)))
    batch = collate(
        [examples[k] for k in shard_indices or [0]], [dropout_masks[k] for k in shard_indices or [0]], sft_model.policy
    )
    output = model(batch)
    weight = torch.where(batch.actions, config.w_act, 1.0).sum()
    normalisers = torch.stack([weight, torch.full_like(weight, len(batch.opens))])
    normalisers = normalisers * bool(
        shard_indices
    )  # more processes than examples: an idle one goes along with weight 0
    share = normalisers / dist.all_reduce_sum(normalisers.clone()).clamp(min=1.0)
    sft, tool = output.sft * share[0], output.tool.total * share[1]
    optimizer.zero_grad(set_to_none=True)
    # gradients are averaged over processes, while the loss is a sum over them
    (sft_total(sft, tool, alpha_tool=config.alpha_tool) * dist.world_size).backward()
    torch.nn.utils.clip_grad_norm_(trainable_parameters(sft_model).values(), config.grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * lr_scale
    optimizer.step()
    return reduce_losses(sft, tool, output.nats, batch, shard_indices, len(examples), dist)


def reduce_losses(
    sft: Tensor,
    tool: Tensor,
    nats: Tensor,
    batch: SftBatch,
    shard_indices: Sequence[int],
    examples: int,
    dist: DistributedContext,
) -> Losses:
    """Losses of the whole batch, from all processes in one message."""
    counts = torch.bincount(batch.row, minlength=len(batch.inputs.lengths)).clamp(min=1)
    means = torch.zeros(len(counts), dtype=nats.dtype, device=nats.device).index_add(0, batch.row, nats) / counts
    payload = torch.zeros(2 + examples, dtype=torch.float64, device=nats.device)
    payload[0], payload[1] = sft.detach(), tool.detach()
    if shard_indices:
        payload[2 + torch.tensor(list(shard_indices), device=nats.device)] = means.double()
    totals = dist.all_reduce_sum(payload).cpu().numpy()
    if not np.isfinite(totals[:2]).all():
        listed = " and ".join(f"{loss:g}" for loss in totals[:2])
        raise PixelisError(f"the losses are {listed}: lower `lr`, or look at the corpus; the state before it is kept")
    return Losses(float(totals[0]), float(totals[1]), totals[2:])


def learning_rate_scale(config: SftConfig, share: float) -> float:
    """The learning rate over its peak after a share of the run: a rise, then a cosine down to the floor."""
    if share < config.lr_warmup:
        return (share + 1e-3) / (config.lr_warmup + 1e-3)
    progress = (share - config.lr_warmup) / (1.0 - config.lr_warmup)
    return config.lr_floor + (1.0 - config.lr_floor) * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def sample_dropout_mask(config: SftConfig, example: Example, rng: np.random.Generator) -> NDArray[np.bool_]:
    return sample_hidden_tokens(
        example, rng, feedback=config.feedback_dropout, early_action=config.early_action_dropout
    )


def plan_epoch(config: SftConfig, state: SftState, pool: Sequence[ExampleRef]) -> None:
    """Plan an epoch: the full pool to warm up, then medium and hard examples at 2:1 (subsec:sft)."""
    count = min(len(pool), round(state.epochs * len(pool)) - state.visited)
    if not config.curriculum or state.epoch < config.warmup_epochs:
        order = state.rng.permutation(len(pool))[:count]
    else:
        # without a dev split nothing speaks against going on
        if (
            not state.bins
            or not state.dev_losses
            or should_advance(state.dev_losses, tolerance=config.advance_tolerance)
        ):
            errors = np.nan_to_num(state.errors, nan=float(np.nanmedian(state.errors)))
            state.bins = hardness_tertiles(errors).tolist()
            state.stage += 1
        order = sample_medium_hard(state.bins, count, rng=state.rng, medium_to_hard=config.medium_to_hard)
    state.batches = make_batches(order, pool, config.batch_tokens, state.rng)
    state.epoch += 1


def record_errors(state: SftState, batch: Sequence[int], losses: Losses) -> None:
    """Predicted error of the examples: how much worse than usual at this moment they were."""
    state.trend = ema(None if math.isnan(state.trend) else state.trend, float(losses.nats.mean()), rho=0.98) or 0.0
    state.errors[batch] = losses.nats - state.trend
    state.batches.pop(0)
    state.visited += len(batch)
    state.step += 1


def report_progress(
    config: SftConfig, state: SftState, losses: Losses, pool: int, log: MetricsLog, clock: RunClock, show: Show
) -> None:
    share = state.visited / (state.epochs * pool)
    log.write(
        state.step,
        loss=losses.sft,
        tool_loss=losses.tool,
        nats=float(losses.nats.mean()),
        lr=config.lr * learning_rate_scale(config, share),
        epoch=state.visited / pool,
        stage=state.stage,
        tokens_per_s=clock.tokens_per_s,
        seconds=clock.seconds,
    )
    show(clock.progress(losses.sft, pool))


def fit_budget(config: SftConfig, state: SftState, clock: RunClock, pool: int, dist: DistributedContext) -> None:
    """Set the number of epochs to what the budget of minutes allows; the state keeps it from then on.

    After the first steps, and where there is time for more than an epoch again after the first one: what else the
    machine had to do in twenty steps says little about the next hour.
    """
    first_epoch = state.epoch == 1 and not state.batches and state.visited >= pool
    if config.minutes is None or not (state.step == FIRST_STEPS or first_epoch):
        return
    pace_s = max(clock.seconds - state.drilled_s, 1e-9) / state.visited
    fits = (state.visited + (config.minutes * 60 - clock.seconds) / pace_s) / pool
    agreed_epochs = dist.all_reduce_sum(torch.tensor(fits if dist.is_main else 0.0, dtype=torch.float64))
    state.epochs = min(config.epochs, max(float(agreed_epochs), state.visited / pool))
    remaining = max(0, round(state.epochs * pool) - state.visited)
    remaining_batches = list[list[int]]()
    for batch in state.batches:
        if sum(map(len, remaining_batches)) >= remaining:
            break
        remaining_batches.append(batch)
    state.batches = remaining_batches
