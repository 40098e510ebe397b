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

from pixelis.data.store import Corpus
from pixelis.equations.curriculum import advances, hardness_tertiles, sample_medium_hard
from pixelis.equations.ema import ema
from pixelis.equations.sft import sft_total
from pixelis.errors import PixelisError
from pixelis.train.crew import Crew, crew, trained
from pixelis.train.drills import drill_batch
from pixelis.train.evaluating import evaluate
from pixelis.train.examples import Example
from pixelis.train.export import export
from pixelis.train.lessons import Lessons, Student, hidden_tokens, lessons
from pixelis.train.precision import computed_in
from pixelis.train.prepared import sources_of
from pixelis.train.run import Log, Show, Watch, run_folder
from pixelis.train.sft_config import SftConfig
from pixelis.train.starting import (
    Lesson,
    batches_of,
    begin_optimizer,
    begin_student,
    example,
    examples_of,
    pool_of,
    require_pool,
)
from pixelis.train.state import Sources, State, load_state, save_state
from pixelis.train.tempering import temper

DRILL_RISE = 20
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
    with crew(config.device) as us, run_folder(config, out, us):
        student, card = begin_student(config, corpus)
        train, dev = (examples_of(config, corpus, student.policy, split, us, show) for split in ("train", "dev"))
        pool, held_out = pool_of(config, train), pool_of(config, dev)
        require_pool(config, corpus, pool)
        taught = us.wrap(student, shard=config.shard, dtype=computed_in(config))
        optimizer = begin_optimizer(config, student, us)
        sources = sources_of(corpus, student.policy.tokens)
        found = load_state(out, sources, student, optimizer, us)
        state = found or State(np.random.default_rng(config.seed), np.full(len(pool), np.nan), epochs=config.epochs)
        ended = bool(state.visited) and state.visited >= round(state.epochs * len(pool))
        log, watch = Log(out, state.step or state.drilled - config.drill_steps, us), Watch(state)
        drill_first(config, taught, optimizer, state, sources, log, watch, show, out, us)
        while state.visited < round(state.epochs * len(pool)):
            watch.again()
            if not state.batches:
                next_epoch(config, state, pool)
            batch = state.batches[0]
            examples = [example(train, pool[k]) for k in batch]
            dropped = [dropouts(config, each, state.rng) for each in examples]
            now = rate(config, state.visited / (state.epochs * len(pool)))
            losses = teach(config, taught, optimizer, examples, dropped, now, us)
            remember(state, batch, losses)
            if config.drill_every and state.step % config.drill_every == 0:
                drill_once(config, taught, optimizer, state, now, us)
            watch.tick(sum(pool[k].tokens for k in batch))
            if state.step % config.log_every == 0 or not state.batches:
                report(config, state, losses, len(pool), log, watch, show)
            fit_budget(config, state, watch, len(pool), us)
            if not state.batches and held_out:  # an epoch has ended
                state.dev_losses.append(evaluate(taught, dev, held_out, config.batch_tokens, state.step, log, us))
            if not state.batches or watch.save_due(config.save_minutes, config.log_every, us):
                save_state(out, watch.stamp(), sources, student, optimizer, us)
        show(watch.now(math.nan, len(pool), "g_φ and h_ψ"))
        smoothed = held_out if config.temper and config.label_smoothing > 0.0 else []
        temperature = temper(taught, dev, smoothed, config.batch_tokens, us)
        scores = export(config, taught, card, corpus, state, train, pool, out, us, watch, temperature)
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
        tokens_per_s=watch.tokens_per_s,
        seconds=watch.seconds,
        resumed=found is not None,
        ended_before=ended,
        rank=us.rank,
    )


def drill_first(
    config: SftConfig,
    taught: Any,
    optimizer: torch.optim.Optimizer,
    state: State,
    sources: Sources,
    log: Log,
    watch: Watch,
    show: Show,
    out: Path,
    us: Crew,
) -> None:
    """Conversations without pictures, made by rule, before the first epoch."""
    student: Student = getattr(taught, "module", taught)
    while state.drilled < config.drill_steps:
        watch.again()
        risen = min(1.0, (state.drilled + 1) / DRILL_RISE)
        tokens, losses = drill_once(config, taught, optimizer, state, risen, us)
        state.drilled += 1
        watch.tick(tokens)
        state.drilled_s = watch.seconds
        if state.drilled % config.log_every == 0:
            log.write(state.drilled - config.drill_steps, drill_loss=losses.sft, drill_nats=float(losses.nats.mean()))
            show(watch.now(losses.sft, 1, "drills")._replace(share=state.drilled / config.drill_steps))
        if watch.save_due(config.save_minutes, config.log_every, us):
            save_state(out, watch.stamp(), sources, student, optimizer, us)


def drill_once(
    config: SftConfig, taught: Any, optimizer: torch.optim.Optimizer, state: State, share_of_peak: float, us: Crew
) -> tuple[int, Losses]:
    """One batch of drills: how many tokens it had, and its losses."""
    policy = getattr(taught, "module", taught).policy
    batch = drill_batch(state.rng, policy.tokens, policy.style, policy.optics, config.batch_tokens)
    nothing = [np.zeros(len(each), dtype=bool) for each in batch]
    return sum(map(len, batch)), teach(config, taught, optimizer, batch, nothing, share_of_peak, us)


class Losses(NamedTuple):
    """One step's losses over all processes."""

    sft: float
    tool: float
    nats: NDArray[np.float64]
    """(B,) nats per token of each example."""


def teach(
    config: SftConfig,
    taught: Any,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    dropped: Sequence[NDArray[np.bool_]],
    share_of_peak: float,
    us: Crew,
) -> Losses:
    """One step of the optimizer on a batch (eq:sft_total_obj_compact), at a share of the peak learning rate."""
    student: Student = getattr(taught, "module", taught)
    taught.train()
    mine = us.share(range(len(examples)))
    given = lessons([examples[k] for k in mine or [0]], [dropped[k] for k in mine or [0]], student.policy)
    said = taught(given)
    weight = torch.where(given.actions, config.w_act, 1.0).sum()
    own = torch.stack([weight, torch.full_like(weight, len(given.opens))])
    own = own * bool(mine)  # more processes than examples: an idle one goes along with weight 0
    share = own / us.add(own.clone()).clamp(min=1.0)
    sft, tool = said.sft * share[0], said.tool.total * share[1]
    optimizer.zero_grad(set_to_none=True)
    # gradients are averaged over processes, while the loss is a sum over them
    (sft_total(sft, tool, alpha_tool=config.alpha_tool) * us.world).backward()
    torch.nn.utils.clip_grad_norm_(trained(student).values(), config.grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share_of_peak
    optimizer.step()
    return gathered(sft, tool, said.nats, given, mine, len(examples), us)


def gathered(
    sft: Tensor, tool: Tensor, nats: Tensor, given: Lessons, mine: Sequence[int], examples: int, us: Crew
) -> Losses:
    """Losses of the whole batch, from all processes in one message."""
    counts = torch.bincount(given.row, minlength=len(given.batch.lengths)).clamp(min=1)
    means = torch.zeros(len(counts), dtype=nats.dtype, device=nats.device).index_add(0, given.row, nats) / counts
    sent = torch.zeros(2 + examples, dtype=torch.float64, device=nats.device)
    sent[0], sent[1] = sft.detach(), tool.detach()
    if mine:
        sent[2 + torch.tensor(list(mine), device=nats.device)] = means.double()
    heard = us.add(sent).cpu().numpy()
    if not np.isfinite(heard[:2]).all():
        told = " and ".join(f"{loss:g}" for loss in heard[:2])
        raise PixelisError(f"the losses are {told}: lower `lr`, or look at the corpus; the state before it is kept")
    return Losses(float(heard[0]), float(heard[1]), heard[2:])


def rate(config: SftConfig, share: float) -> float:
    """The learning rate over its peak after a share of the run: a rise, then a cosine down to the floor."""
    if share < config.lr_warmup:
        return (share + 1e-3) / (config.lr_warmup + 1e-3)
    done = (share - config.lr_warmup) / (1.0 - config.lr_warmup)
    return config.lr_floor + (1.0 - config.lr_floor) * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))


def dropouts(config: SftConfig, example: Example, rng: np.random.Generator) -> NDArray[np.bool_]:
    return hidden_tokens(example, rng, feedback=config.feedback_dropout, early_action=config.early_action_dropout)


def next_epoch(config: SftConfig, state: State, pool: Sequence[Lesson]) -> None:
    """Plan an epoch: the full pool to warm up, then medium and hard examples at 2:1 (subsec:sft)."""
    count = min(len(pool), round(state.epochs * len(pool)) - state.visited)
    if not config.curriculum or state.epoch < config.warmup_epochs:
        order = state.rng.permutation(len(pool))[:count]
    else:
        # without a dev split nothing speaks against going on
        if not state.bins or not state.dev_losses or advances(state.dev_losses, tolerance=config.advance_tolerance):
            known = np.nan_to_num(state.errors, nan=float(np.nanmedian(state.errors)))
            state.bins = hardness_tertiles(known).tolist()
            state.stage += 1
        order = sample_medium_hard(state.bins, count, rng=state.rng, medium_to_hard=config.medium_to_hard)
    state.batches = batches_of(order, pool, config.batch_tokens, state.rng)
    state.epoch += 1


def remember(state: State, batch: Sequence[int], losses: Losses) -> None:
    """Predicted error of the examples: how much worse than usual at this moment they were."""
    state.trend = ema(None if math.isnan(state.trend) else state.trend, float(losses.nats.mean()), rho=0.98) or 0.0
    state.errors[batch] = losses.nats - state.trend
    state.batches.pop(0)
    state.visited += len(batch)
    state.step += 1


def report(config: SftConfig, state: State, losses: Losses, pool: int, log: Log, watch: Watch, show: Show) -> None:
    share = state.visited / (state.epochs * pool)
    log.write(
        state.step,
        loss=losses.sft,
        tool_loss=losses.tool,
        nats=float(losses.nats.mean()),
        lr=config.lr * rate(config, share),
        epoch=state.visited / pool,
        stage=state.stage,
        tokens_per_s=watch.tokens_per_s,
        seconds=watch.seconds,
    )
    show(watch.now(losses.sft, pool))


def fit_budget(config: SftConfig, state: State, watch: Watch, pool: int, us: Crew) -> None:
    """Set the number of epochs to what the budget of minutes allows; the state keeps it from then on.

    After the first steps, and where there is time for more than an epoch again after the first one: what else the
    machine had to do in twenty steps says little about the next hour.
    """
    first_epoch = state.epoch == 1 and not state.batches and state.visited >= pool
    if config.minutes is None or not (state.step == FIRST_STEPS or first_epoch):
        return
    pace_s = max(watch.seconds - state.drilled_s, 1e-9) / state.visited
    fits = (state.visited + (config.minutes * 60 - watch.seconds) / pace_s) / pool
    agreed = us.add(torch.tensor(fits if us.first else 0.0, dtype=torch.float64))
    state.epochs = min(config.epochs, max(float(agreed), state.visited / pool))
    left = max(0, round(state.epochs * pool) - state.visited)
    kept = list[list[int]]()
    for batch in state.batches:
        if sum(map(len, kept)) >= left:
            break
        kept.append(batch)
    state.batches = kept
