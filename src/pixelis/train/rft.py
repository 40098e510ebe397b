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

from pixelis.data.store import Corpus
from pixelis.equations.ema import ema
from pixelis.equations.grpo import group_advantage, grpo_loss, top_k
from pixelis.equations.kl import per_token_kl
from pixelis.equations.pid import DEFAULT, PAPER, Pid, pid_step
from pixelis.errors import ConfigError, TraceError
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import Loaded, load_checkpoint, weights_of
from pixelis.policy.model import Policy
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Query
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.train.crew import Crew, crew, trained
from pixelis.train.experience import Anchored, Lived, Part, lived, parts_of, read_anchor, rows_of
from pixelis.train.precision import computed_in, computing, held_in
from pixelis.train.prepared import sources_of
from pixelis.train.rft_config import RftConfig
from pixelis.train.rft_export import SUMMARIES, export, keep_summaries
from pixelis.train.rft_measuring import Improved, measured
from pixelis.train.rft_state import RftState, due, load_rft, save_rft
from pixelis.train.run import Log, drop_rows_after, run_folder
from pixelis.train.starting import wrap_lora
from pixelis.train.tempering import divide_logits
from pixelis.train.worth import chains_of, known_of, learn_dynamics, worth_of

DEAD = 0.01
"""A term with less than this share of the reward's variance does nothing."""
SMOOTH = 0.9
"""ρ of what is smoothed over updates."""
SETTLED = 20
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
    with crew(config.device) as us, run_folder(config, out, us), Toolbox(tools) as toolbox:
        loaded = load_checkpoint(config.policy, device=config.device, dtype=held_in(config))
        known, pool = known_of(loaded, config.policy), pool_of(config, corpus, us)
        policy, anchor = begin(config, loaded)
        optimizer = torch.optim.AdamW(
            trained(policy).values(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        dynamics = torch.optim.AdamW(known.heads.h_psi.parameters(), lr=config.lr_dynamics, weight_decay=0.01)
        sources = sources_of(corpus, policy.tokens)._replace(policy=weights_of(config.policy))
        found = load_rft(out, sources, policy, optimizer, known, dynamics, us)
        state = found or RftState(pid=Pid(beta=config.kl.beta))
        ended = state.step >= config.updates or bool(state.stopped)
        log, saved, began = Log(out, state.step, us), time.monotonic(), time.monotonic() - state.seconds
        if us.first:
            drop_rows_after(out / SUMMARIES, state.step)
        while state.step < config.updates and not state.stopped:
            start = time.monotonic()
            asked = draw(config, state, pool)
            seed = config.seed * 1_000_003 + state.step
            experience, media, own = live(config, policy, toolbox, corpus, asked, seed, us)
            rolled = time.monotonic()
            with frozen(anchor, policy) as fixed, computing(policy.device, computed_in(config)):
                parts = [
                    (part, read_anchor(fixed, part, experience))
                    for part in parts_of([one.ledger for one in experience], policy, config.batch_tokens)
                ]
            chains = chains_of(known, parts, experience, media, own, config.reward, us)
            worth = worth_of(chains, known, config.reward, samples=config.samples, seed=seed)
            advantages = advantages_of(worth.rewards.total, config) * (0.0 if state.far else 1.0)
            optimizer.param_groups[0]["lr"] = config.rate(state.step)
            done = improve(
                config, policy, anchor or policy, optimizer, parts, advantages[own], state.pid.beta, us, far=state.far
            )
            surprise = learn_dynamics(known, chains.steps, dynamics, batch=config.dynamics_batch, seed=seed)
            values = measured(config, state, chains, worth, advantages, done, experience, us)
            values |= {
                "lr": config.rate(state.step), "dynamics_loss": surprise, "seconds_rollout": rolled - start,
                "seconds_update": time.monotonic() - rolled,
                "cache_hits": toolbox.cache.hit_rate if toolbox.cache else 0.0,
            }  # fmt: skip
            react(config, state, values, done, known.tokens["entropy"].mean)
            state.step += 1
            state.seconds = time.monotonic() - began
            keep_summaries(out, state.step, [item for _, item in asked], config.samples, worth, chains, us)
            if state.step % config.log_every == 0:
                log.write(state.step, **values)
            show(values, state.step, config.updates)
            if state.step == config.updates or state.stopped or due(saved, config.save_minutes, us):
                save_rft(out, state, sources, policy, optimizer, known, dynamics, us)
                saved = time.monotonic()
        log.close()
        last = export(config, loaded, policy, known, asdict(state), out, us)
    return RftReport(
        policy=str(out / "policy"), updates=state.step, rollouts=state.step * config.queries * config.samples,
        accuracy=last["accuracy"], calls=last["calls"], kl=state.pid.kl or 0.0, beta=state.pid.beta,
        skipped=state.skipped, stopped=state.stopped,
        dead=tuple(name for name, share in state.shares.items() if wanted(config, name) and abs(share) < DEAD),
        seconds=state.seconds, resumed=found is not None, ended_before=ended, rank=us.rank,
    )  # fmt: skip


# --- where it begins


def pool_of(config: RftConfig, corpus: Corpus, us: Crew) -> list[tuple[int, str]]:
    """The training questions: their numbers in the corpus, and their ids."""
    if config.queries < us.world:
        raise ConfigError(f"{config.queries} queries an update for {us.world} processes: want at least one for each")
    rows = enumerate(corpus.rows())
    pool = [(k, r.id) for k, r in rows if r.split == "train" and (not config.families or r.family in config.families)]
    if len(pool) < config.queries:
        raise ConfigError(
            f"{config.corpus} has {len(pool)} training questions of these families, want {config.queries}"
        )
    return pool


def begin(config: RftConfig, loaded: Loaded) -> tuple[Policy, Policy | None]:
    """The policy that learns, and π_SFT: a frozen copy, or None where LoRA can be taken off instead."""
    policy = loaded.policy
    divide_logits(policy, config.temperature)
    if config.checkpoint_activations:
        policy.model.gradient_checkpointing_enable()
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
        return policy, None
    return policy, copy.deepcopy(policy).eval().requires_grad_(False)


@contextmanager
def frozen(anchor: Policy | None, policy: Policy) -> Iterator[Policy]:
    """π_SFT to read with."""
    if anchor is not None:
        yield anchor
        return
    with policy.model.disable_adapter():
        yield policy


def draw(config: RftConfig, state: RftState, pool: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The questions of the next update. In a pass every one comes once, but for a few that fill no whole update."""
    if len(state.left) < config.queries:
        rng = np.random.default_rng([config.seed, state.passes])
        state.left, state.passes = rng.permutation(len(pool)).tolist(), state.passes + 1
    drawn, state.left = state.left[: config.queries], state.left[config.queries :]
    return [pool[k] for k in drawn]


# --- one update


def live(
    config: RftConfig,
    policy: Policy,
    toolbox: Toolbox,
    corpus: Corpus,
    asked: Sequence[tuple[int, str]],
    seed: int,
    us: Crew,
) -> tuple[list[Lived], list[MediaSet], NDArray[np.int64]]:
    """This process's rollouts, their media, and their places in the batch."""
    mine = us.share(range(len(asked)))
    records = [corpus[asked[k][0]] for k in mine]
    media = [corpus.media(record) for record in records]
    queries = [Query(r.item.id, r.item.question, m, r.item.seed) for r, m in zip(records, media, strict=True)]
    with computing(policy.device, computed_in(config)):  # as the update will read them
        groups = rollout(
            policy, toolbox, queries, n=config.samples, seed=seed, limits=config.limits,
            name=config.name,
        )  # fmt: skip
    experience = [
        lived(rolled, record.item, own, policy.tokens)
        for record, own, group in zip(records, media, groups, strict=True)
        for rolled in group
    ]
    for own in media:
        toolbox.let_go(own)
    places = [k * config.samples + j for k in mine for j in range(config.samples)]
    return experience, [own for own in media for _ in range(config.samples)], np.array(places, dtype=np.int64)


def advantages_of(rewards: NDArray[np.float64], config: RftConfig) -> NDArray[np.float64]:
    """(B,) advantages inside each group of the K best; NaN for a rollout that is not kept."""
    groups = rewards.reshape(-1, config.samples)
    out = np.full_like(groups, np.nan)
    kept = np.array([top_k(own, k=config.group) for own in groups])  # (G, K)
    best = np.take_along_axis(groups, kept, axis=1)
    np.put_along_axis(out, kept, group_advantage(best, spread=config.spread), axis=1)
    return out.ravel()


def improve(
    config: RftConfig,
    policy: Policy,
    anchor: Policy,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[tuple[Part, Anchored]],
    advantages: NDArray[np.float64],
    beta: float,
    us: Crew,
    *,
    far: bool = False,
) -> Improved:
    """One GRPO step on the rollouts of all processes. One that starts from `far` away may lie beyond the KL that is
    borne: it has no advantages, and leads back."""
    policy.train()
    optimizer.zero_grad(set_to_none=True)
    kept = np.isfinite(advantages)
    told = [[c, bool(c)] for part, _ in parts for k, c in zip(part.numbers, part.counts, strict=True) if kept[k]]
    tokens, chains = us.add(torch.tensor(told, dtype=torch.float64).reshape(-1, 2).sum(0)).tolist()
    sums = torch.zeros(4, dtype=torch.float64)  # KL, entropy, clipped tokens, tokens
    gap = 0.0
    for part, anchored in parts:
        with computing(policy.device, computed_in(config)):
            read = policy(part.batch)
            logits = policy.open_logits(read.hidden.flatten(0, 1)[part.at]).float()  # (u, V')
            by_anchor = anchor.open_logits(anchored.hidden).float()
        logs = logits.log_softmax(-1)
        own = logs[part.which, part.targets]  # (n,)
        gap = max(gap, float((own.detach() - part.sampled).abs().max()) if len(own) else 0.0)
        learnt = torch.from_numpy(np.repeat(kept[list(part.numbers)], part.counts)).to(own.device)
        kl = per_token_kl(logits, by_anchor)[part.which][learnt]
        mask = rows_of(learnt, part.counts)
        given = torch.from_numpy(np.nan_to_num(advantages[list(part.numbers)])).to(own)
        before = rows_of(own.detach(), part.counts)  # the weights that sampled are these: ρ is 1 without rounding
        loss = grpo_loss(rows_of(own, part.counts), before, given, mask, clip=config.clip, per=config.per)
        share = float(mask.any(1).sum()) / max(chains, 1) if config.per == "sequence" else len(kl) / max(tokens, 1)
        (loss.policy * share + beta * kl.sum() / max(tokens, 1)).backward()
        nats = -(logs.detach().exp() * logs.detach()).sum(-1)  # (u,)
        spread, count = float(nats[part.which][learnt].sum()), len(kl)
        sums += torch.tensor([float(kl.detach().sum()), spread, loss.clipped * count, count], dtype=torch.float64)
    if gap > config.ledger_tolerance:
        raise TraceError(
            f"a sampled log-probability lies {gap:.2g} nats from the recomputed one: the update does not read what the "
            "rollout read"
        )
    kl_sum, entropy, clipped, count = us.add(sums).tolist()
    us.add_gradients(policy)
    norm = float(torch.nn.utils.clip_grad_norm_(trained(policy).values(), config.grad_norm))
    mean_kl = kl_sum / max(count, 1.0)
    borne = math.isfinite(mean_kl) and (far or mean_kl <= config.kl.most)
    skipped = not (count and math.isfinite(norm) and borne)
    if not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    policy.eval()
    return Improved(mean_kl, entropy / max(count, 1.0), gap, norm, clipped / max(count, 1.0), skipped)


def react(config: RftConfig, state: RftState, values: dict[str, float], done: Improved, usual: float) -> None:
    """The controller hears of the KL; a collapse stops the run. `usual` is the entropy of π_SFT's tokens.

    A KL that is no number counts as the most that is borne: β rises.
    """
    state.far = done.kl > config.kl.most
    if config.kl.control:
        gains = PAPER if config.kl.gains == "paper" else DEFAULT
        heard = done.kl if math.isfinite(done.kl) else config.kl.most
        state.pid = pid_step(state.pid, heard, target=config.kl.target, gains=gains, one_sided=config.kl.one_sided)
    elif math.isfinite(done.kl):
        state.pid = replace(state.pid, kl=ema(state.pid.kl, done.kl, rho=SMOOTH))
    state.skipped += done.skipped
    state.calls = ema(state.calls, values["calls"], rho=SMOOTH)
    state.entropy = ema(state.entropy, done.entropy, rho=SMOOTH)
    for name in ("final", "curiosity", "coherence", "penalty", "tool_use"):
        state.shares[name] = ema(state.shares.get(name), values[f"share_{name}"], rho=SMOOTH) or 0.0
    if state.step >= SETTLED and state.calls is not None and state.calls < config.least_calls:
        state.stopped = f"tool use has collapsed: {state.calls:.2f} calls a chain, under {config.least_calls:g}"
    floor = config.least_entropy * usual
    if state.step >= SETTLED and state.entropy is not None and state.entropy < floor:
        state.stopped = f"variety has collapsed: {state.entropy:.4f} nats a token, under {floor:.4f}"


def wanted(config: RftConfig, term: str) -> bool:
    return bool(getattr(config.reward, term))
