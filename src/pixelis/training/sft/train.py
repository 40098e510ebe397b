"""Phase 1: supervised fine-tuning on the corpus (subsec:sft), from nano on two cores to a sharded 8B.

How it departs from the paper:
- Dropped feedback and dropped early actions reach the policy as padding tokens (a dropped view is not shown); they
  remain targets. The paper does not say how it hides them.
- "SFT-predicted error" is the nats per token of an example when training last visited it, less the smoothed loss of
  that moment, so that early visits do not look hard. It needs no pass of its own.
- "Advance" means: recompute the bins from the current errors. If the smoothed dev loss rose by more than 5 %, the bins
  stay (smoothed at 0.9 over one evaluation per epoch, which lets a single rise of up to a half pass). Without a dev
  split there is no dev loss, and the curriculum advances every epoch.
- The learning rate depends on the share of examples visited, so that any batching has the same schedule.
- The tags around a call have weight w_act too: they are part of the action.
- A batch is a number of tokens; its examples have similar lengths, so that little of it is padding.
- The exported policy's logits are divided by a temperature that undoes label smoothing (`nano.temperature`); dev losses
  are those of training, before it.
- A policy with random weights may start on synthetic warm-up tasks (`nano.warmup_tasks`) and train with Muon
  (`optimizers`); the paper starts from an instruct model, and the defaults use neither.

All random draws come from one generator, which is part of the saved state: a killed run resumes to the same weights,
bit for bit on one thread.
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
from torch.optim import Optimizer

from pixelis.core.errors import PixelisError
from pixelis.data.corpus.corpus import Corpus
from pixelis.equations.curriculum import hardness_tertiles, sample_medium_hard, should_advance
from pixelis.equations.ema import ema
from pixelis.equations.sft import sft_total
from pixelis.nano.warmup_tasks.warmup_tasks import make_warmup_batch
from pixelis.training.common.distributed import DistributedContext, init_distributed, trainable_parameters
from pixelis.training.common.precision import compute_dtype
from pixelis.training.common.run_folder import Show, run_folder
from pixelis.training.dataset.examples import Example
from pixelis.training.sft.build_sft import build_optimizer, build_sft_model
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_export import export_sft
from pixelis.training.sft.sft_model import SftBatch, collate, sample_hidden_tokens, unwrap
from pixelis.training.sft.sft_state import RunClock, SftRun, SftState, open_run
from pixelis.training.sft.teacher_forced_eval import evaluate_dev_loss
from pixelis.training.sft.training_index import (
    ExampleRef,
    load_example,
    make_batches,
    prepare_split,
    require_examples,
    training_index,
)

WARMUP_TASK_RISE_STEPS = 20
"""Warm-up task steps over which the learning rate rises."""
FIRST_STEPS = 20
"""Steps after which the speed is known well enough to fit a budget of minutes for the first time."""


class SftReport(NamedTuple):
    """The result of a run."""

    policy: str
    """The folder of the exported checkpoint."""
    steps: int
    epochs: float
    examples: int
    parameters: int
    dev_loss: float | None
    """None if the corpus has no dev split."""
    dynamics: bool
    """Whether g_φ and h_ψ were trained: a corpus without calls has nothing to train them on."""
    held_out: int
    """Items of the corpus's test split, which is not used."""
    tokens_per_s: float
    seconds: float
    resumed: bool
    ended_before: bool
    """The run in the folder had already finished; it was only exported again."""
    rank: int = 0
    """Of the process that reports; only 0 writes files."""


def train_sft(config: SftConfig, out: Path, *, show: Show = lambda progress: None) -> SftReport:
    """Train a policy on a corpus into a run folder, or resume the run in it."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    corpus = Corpus(config.corpus)
    with init_distributed(config.device) as dist, run_folder(config, out, dist):
        sft_model, card = build_sft_model(config, corpus)
        train, dev = (prepare_split(config, corpus, sft_model.policy, split, dist, show) for split in ("train", "dev"))
        train_index, dev_index = training_index(config, train), training_index(config, dev)
        require_examples(config, corpus, train_index)
        model = dist.wrap(sft_model, shard=config.fsdp, dtype=compute_dtype(config))
        optimizer = build_optimizer(config, sft_model, dist)
        run = open_run(config, out, corpus, model, optimizer, len(train_index), dist, show)
        state, clock = run.state, run.clock
        already_finished = 0 < state.total_visits() <= state.visited
        run_warmup_tasks(run)
        while state.visited < state.total_visits():
            clock.start_step()
            if not state.batches:
                plan_epoch(config, state, train_index)
            batch = state.batches[0]  # (B,) numbers in the index
            examples = [load_example(train, train_index[k]) for k in batch]
            hidden = [sample_hidden_tokens(config, example, state.rng) for example in examples]  # (n,) each
            lr_scale = learning_rate_scale(config, state.share_done())
            losses = train_step(config, model, optimizer, examples, hidden, lr_scale, dist)
            record_errors(state, batch, losses)
            if config.warmup_task_interval and state.step % config.warmup_task_interval == 0:
                warmup_step(run, lr_scale)
            clock.end_step(sum(train_index[k].tokens for k in batch))
            log_step(run, losses)
            fit_budget(config, state, clock, dist)
            if not state.batches and dev_index:  # the epoch has ended
                state.dev_losses.append(evaluate_dev_loss(run, dev, dev_index))
            if not state.batches or clock.is_save_due(config.save_minutes, config.log_every, dist):
                run.save()
        show(clock.progress(math.nan, "g_φ and h_ψ"))
        scores = export_sft(run, card, corpus, train, train_index, dev, dev_index)
        run.log.close()
    return SftReport(
        policy=str(out / "policy"),
        steps=state.step,
        epochs=state.epochs,
        examples=len(train_index),
        parameters=scores["parameters"],
        dev_loss=scores["dev_loss"],
        dynamics="dynamics_loss" in scores,
        held_out=sum(1 for _ in corpus.rows(split="test")),
        tokens_per_s=clock.tokens_per_s,
        seconds=clock.seconds,
        resumed=run.resumed,
        ended_before=already_finished,
        rank=dist.rank,
    )


# --- one step


class Losses(NamedTuple):
    """The losses of one step, over all processes."""

    sft: float
    tool: float
    nats: NDArray[np.float64]
    """(B,) nats per token of each example."""


def train_step(
    config: SftConfig,
    model: Any,
    optimizer: Optimizer,
    examples: Sequence[Example],
    hidden: Sequence[NDArray[np.bool_]],
    lr_scale: float,
    dist: DistributedContext,
) -> Losses:
    """One optimizer step on a batch (eq:sft_total_obj_compact), at a share of the peak learning rate."""
    sft_model = unwrap(model)
    model.train()
    shard_indices = dist.shard(range(len(examples)))
    chosen = shard_indices or [0]  # with more processes than examples, an idle one joins in with weight 0
    batch = collate([examples[k] for k in chosen], [hidden[k] for k in chosen], sft_model.policy)
    output = model(batch)
    weight = torch.where(batch.actions, config.w_act, 1.0).sum()
    normalisers = torch.stack([weight, torch.full_like(weight, len(batch.call_positions))]) * bool(shard_indices)
    share = normalisers / dist.all_reduce_sum(normalisers.clone()).clamp(min=1.0)
    sft, tool = output.sft * share[0], output.tool.total * share[1]
    optimizer.zero_grad(set_to_none=True)
    # gradients are averaged over processes, but the loss is a sum over them
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
    shard: Sequence[int],
    examples: int,
    dist: DistributedContext,
) -> Losses:
    """The losses of the whole batch, from all processes in one message."""
    counts = torch.bincount(batch.row, minlength=len(batch.inputs.lengths)).clamp(min=1)
    means = torch.zeros(len(counts), dtype=nats.dtype, device=nats.device).index_add(0, batch.row, nats) / counts
    payload = torch.zeros(2 + examples, dtype=torch.float64, device=nats.device)
    payload[0], payload[1] = sft.detach(), tool.detach()
    if shard:
        payload[2 + torch.tensor(list(shard), device=nats.device)] = means.double()
    totals = dist.all_reduce_sum(payload).cpu().numpy()
    if not np.isfinite(totals[:2]).all():
        raise PixelisError(
            f"loss is not finite (sft={totals[0]:g}, tool={totals[1]:g}). Lower `lr` or check the corpus. "
            "The last saved state was kept."
        )
    return Losses(float(totals[0]), float(totals[1]), totals[2:])


def learning_rate_scale(config: SftConfig, share: float) -> float:
    """The learning rate over its peak after a share of the run: a linear rise, then a cosine down to the floor."""
    if share < config.lr_warmup:
        return (share + 1e-3) / (config.lr_warmup + 1e-3)
    progress = (share - config.lr_warmup) / (1.0 - config.lr_warmup)
    return config.lr_floor + (1.0 - config.lr_floor) * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


# --- synthetic warm-up tasks


def run_warmup_tasks(run: SftRun) -> None:
    """Train on synthetic warm-up tasks before the first epoch."""
    config, state, total = run.config, run.state, run.config.warmup_task_steps
    while state.warmup_task_steps < total:
        run.clock.start_step()
        tokens, losses = warmup_step(run, min(1.0, (state.warmup_task_steps + 1) / WARMUP_TASK_RISE_STEPS))
        state.warmup_task_steps += 1
        run.clock.end_step(tokens)
        state.warmup_task_s = run.clock.seconds
        if state.warmup_task_steps % config.log_every == 0:
            step = state.warmup_task_steps - total
            run.log.write(step, drill_loss=losses.sft, drill_nats=float(losses.nats.mean()))
            run.show(run.clock.progress(losses.sft, "warm-up tasks")._replace(share=state.warmup_task_steps / total))
        if run.clock.is_save_due(config.save_minutes, config.log_every, run.dist):
            run.save()


def warmup_step(run: SftRun, lr_scale: float) -> tuple[int, Losses]:
    """One step on a batch of warm-up tasks: its number of tokens, and its losses."""
    config, policy = run.config, unwrap(run.model).policy
    batch = make_warmup_batch(run.state.rng, policy.tokenizer, policy.style, policy.image_config, config.batch_tokens)
    hidden = [np.zeros(len(example), dtype=bool) for example in batch]
    losses = train_step(config, run.model, run.optimizer, batch, hidden, lr_scale, run.dist)
    return sum(map(len, batch)), losses


# --- epochs, log and budget


def plan_epoch(config: SftConfig, state: SftState, index: Sequence[ExampleRef]) -> None:
    """Plan an epoch: all examples to warm up, then medium and hard ones at 2:1 (subsec:sft)."""
    count = min(len(index), state.total_visits() - state.visited)
    if not config.curriculum or state.epoch < config.warmup_epochs:
        order = state.rng.permutation(len(index))[:count]
    else:
        dev_losses = state.dev_losses  # without a dev split nothing holds the curriculum back
        if not state.bins or not dev_losses or should_advance(dev_losses, tolerance=config.advance_tolerance):
            errors = np.nan_to_num(state.errors, nan=float(np.nanmedian(state.errors)))
            state.bins = hardness_tertiles(errors).tolist()
            state.stage += 1
        order = sample_medium_hard(state.bins, count, rng=state.rng, medium_to_hard=config.medium_to_hard)
    state.batches = make_batches(order, index, config.batch_tokens, state.rng)
    state.epoch += 1


def record_errors(state: SftState, batch: Sequence[int], losses: Losses) -> None:
    """Record the predicted error of a batch: its nats less their smoothed mean. The batch is then done."""
    previous = None if math.isnan(state.smoothed_nats) else state.smoothed_nats
    state.smoothed_nats = ema(previous, float(losses.nats.mean()), rho=0.98) or 0.0
    state.errors[batch] = losses.nats - state.smoothed_nats
    state.batches.pop(0)
    state.visited += len(batch)
    state.step += 1


def log_step(run: SftRun, losses: Losses) -> None:
    """Write a row of metrics and move the progress bar, every `log_every` steps and at the end of an epoch."""
    config, state = run.config, run.state
    if state.step % config.log_every and state.batches:
        return
    means = {"loss": losses.sft, "tool_loss": losses.tool, "nats": float(losses.nats.mean())}
    lr, epoch = config.lr * learning_rate_scale(config, state.share_done()), state.visited / len(state.errors)
    speed = {"tokens_per_s": run.clock.tokens_per_s, "seconds": run.clock.seconds}
    run.log.write(state.step, **means, lr=lr, epoch=epoch, stage=state.stage, **speed)
    run.show(run.clock.progress(losses.sft))


def fit_budget(config: SftConfig, state: SftState, clock: RunClock, dist: DistributedContext) -> None:
    """Set the number of epochs to what the budget of minutes allows; the state keeps it from then on.

    It is fitted after the first steps, and again after the first epoch: other load on the machine during twenty steps
    says little about the next hour.
    """
    examples = len(state.errors)
    first_epoch_ended = state.epoch == 1 and not state.batches and state.visited >= examples
    if config.minutes is None or not (state.step == FIRST_STEPS or first_epoch_ended):
        return
    pace_s = max(clock.seconds - state.warmup_task_s, 1e-9) / state.visited
    fits = (state.visited + (config.minutes * 60 - clock.seconds) / pace_s) / examples
    agreed_epochs = dist.all_reduce_sum(torch.tensor(fits if dist.is_main else 0.0, dtype=torch.float64))
    state.epochs = min(config.epochs, max(float(agreed_epochs), state.visited / examples))
    remaining = max(0, state.total_visits() - state.visited)
    starts = np.cumsum([0, *map(len, state.batches)])
    state.batches = [batch for batch, start in zip(state.batches, starts, strict=False) if start < remaining]
