"""What rollouts are worth: the terms of R(τ) over one batch (eq:ccrft_reward, supp:et_dynamics).

Intrinsic terms are read off a frozen policy, π_SFT in phase 2 and the policy at the start in phase 3: v_t, x_t and the
statistics of phase 1 belong to π_SFT's features, and a policy that moves could otherwise raise its coherence by moving
its features (decisions/0006 on a start that is not π_SFT). Z-scores and percentiles are over the
whole batch, so that several processes first put together what each has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pixelis.equations.coherence import coherence, cpc_alignment, l2_smoothness, tv_smoothness
from pixelis.equations.curiosity import (
    chain_curiosity,
    curiosity_rewards,
    dynamics_loss,
    mc_variance,
    prediction_error,
)
from pixelis.equations.embedding import ACTIONS, CosineStatistics
from pixelis.equations.process import chain_cosines
from pixelis.equations.reward import Rewards, RewardWeights, ccrft_reward, final_reward, penalty, tool_use
from pixelis.equations.ttrl import Summaries
from pixelis.equations.zscore import Spread
from pixelis.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import Loaded
from pixelis.train.crew import Crew
from pixelis.train.dynamics import CorpusSteps, DynamicsHeads, Trajectory, corpus_steps
from pixelis.train.experience import Anchored, Lived, Part, arguments_of
from pixelis.train.features import States
from pixelis.train.rft_config import RewardSettings

Floats = NDArray[np.float64]
NEUTRAL = CosineStatistics(0.0, 1.0, 0)


class Known(NamedTuple):
    """What phase 1 left for the rewards."""

    heads: DynamicsHeads
    coherence: Mapping[str, CosineStatistics]
    """By family."""
    scalers: Mapping[str, Mapping[str, float]]
    """By tool: curiosity and penalty."""
    tokens: Mapping[str, Spread]
    """Of log-probabilities and entropies of π_SFT's tokens on its corpus."""
    summaries: Summaries | None = None
    """Of curiosity and coherence in the last rollouts of phase 2; None where the policy has not been through it."""

    def statistics_of(self, family: str) -> CosineStatistics:
        """Of a family, or of all of them where it has none of its own."""
        if family in self.coherence or not self.coherence:
            return self.coherence.get(family, NEUTRAL)
        every = np.array([(s.mean, s.std, s.samples) for s in self.coherence.values()])
        return CosineStatistics(float(every[:, 0].mean()), float(every[:, 1].mean()), int(every[:, 2].sum()))

    def scaler(self, tool: str, kind: str) -> float:
        return float(self.scalers.get(tool, {}).get(kind, 1.0))


def known_of(loaded: Loaded, name: str) -> Known:
    """g_φ, h_ψ and the statistics of a checkpoint; ConfigError where phase 1 has not left them."""
    heads = DynamicsHeads(loaded.policy.width)
    own = heads.state_dict()
    found = {key: value for key, value in loaded.heads.items() if key in own}
    wanted = {key for key in own if not key.startswith("readout.")}  # the readout has done its work
    statistics = loaded.card.statistics
    if not wanted <= set(found) or "coherence" not in statistics or "entropy" not in statistics.get("tokens", {}):
        raise ConfigError(f"{name} has no g_φ, h_ψ or statistics of phase 1: train it with `pixelis train sft` first")
    heads.load_state_dict({**own, **found})
    heads.eval().requires_grad_(False)
    heads.h_psi.requires_grad_(True)
    cosines = {family: CosineStatistics(**facts) for family, facts in statistics["coherence"].items()}
    tokens = {kind: Spread(**facts) for kind, facts in statistics["tokens"].items()}
    summaries = Summaries(**statistics["summaries"]) if "summaries" in statistics else None
    return Known(heads.to(loaded.policy.device), cosines, statistics.get("tools", {}), tokens, summaries)


class Chains(NamedTuple):
    """The rollouts of a batch, of all processes, in the order of their questions: what rewards are made of."""

    scores: Floats
    """(B,) of the answers."""
    penalties: Floats
    """(B,) Pen(τ)."""
    lengths: NDArray[np.int64]
    """(B,) calls."""
    decisive: Floats
    """(B,) decisive steps."""
    mean: Floats
    """(B,) of adjacent cosines in the chain's family."""
    std: Floats
    steps: CorpusSteps
    """All steps, chain after chain."""
    arguments: Floats
    """(S, 6) where each call looks."""


def chains_of(
    known: Known,
    parts: Sequence[tuple[Part, Anchored]],
    experience: Sequence[Lived],
    media: Sequence[MediaSet],
    numbers: NDArray[np.int64],
    settings: RewardSettings,
    us: Crew,
) -> Chains:
    """What the processes have seen, put together. `numbers` are the places of this one's rollouts in the batch."""
    order = [k for part, _ in parts for k in part.numbers]
    walked = [Trajectory.of(experience[k].example) for k in order]
    steps = corpus_steps(walked, [anchored.states for _, anchored in parts])
    each, every = list[list[float]](), list[Tensor]()
    looks = [torch.from_numpy(arguments_of(experience[k], media[k])) for k in order]
    for k in order:
        one, statistics = experience[k], known.statistics_of(experience[k].item.family)
        each.append([
            float(numbers[k]), one.score, chain_penalty(one, known, settings), len(one.example.steps),
            len(one.judged.decisive), statistics.mean, statistics.std,
        ])  # fmt: skip
    columns = (
        steps.before.visual, steps.before.text, steps.after.visual, steps.after.text, steps.tool[:, None],
        steps.valid[:, None], torch.cat(looks),
    )  # fmt: skip
    every = [column.double().cpu() for column in columns]
    facts = us.gather(torch.tensor(each, dtype=torch.float64).reshape(len(order), 7)).numpy()
    rows = us.gather(torch.cat(every, dim=1))
    ranked = np.argsort(facts[:, 0], kind="stable")
    owner = np.repeat(np.arange(len(facts)), facts[:, 3].astype(np.int64))
    moved = np.concatenate([np.flatnonzero(owner == k) for k in ranked]) if len(facts) else np.zeros(0, dtype=np.int64)
    device = steps.tool.device
    cut = [column.shape[1] for column in every]
    v0, x0, v1, x1, tool, valid, look = rows[torch.from_numpy(moved)].split(cut, dim=1)
    facts = facts[ranked]
    lengths = facts[:, 3].astype(np.int64)
    return Chains(
        scores=facts[:, 1],
        penalties=facts[:, 2],
        lengths=lengths,
        decisive=facts[:, 4],
        mean=facts[:, 5],
        std=facts[:, 6],
        steps=CorpusSteps(
            States(v0.float().to(device), x0.float().to(device)),
            States(v1.float().to(device), x1.float().to(device)),
            tool[:, 0].long().to(device),
            (valid[:, 0] > 0.5).to(device),
            np.repeat(np.arange(len(facts)), lengths),
            (),
        ),
        arguments=look.numpy(),
    )


def chain_penalty(one: Lived, known: Known, settings: RewardSettings) -> float:
    """Pen(τ): calls that were refused by their tool or by their verifier, repeated ones, unreadable turns, length.

    That nothing was found is an answer, not a mistake.
    """
    steps = one.rolled.trace.steps
    valid = [
        step.result.status in ("ok", "failed") and checked.passed is not False
        for step, checked in zip(steps, one.judged.steps, strict=True)
    ]
    scalers = [known.scaler(s.call.tool, "penalty") for s in steps] if settings.tool_scalers else None
    pen = penalty(
        one.calls, valid, alpha_inv=settings.alpha_inv, alpha_len=settings.alpha_len, l_0=settings.l_0, scalers=scalers
    )
    return pen + settings.alpha_inv * one.rolled.slips


class Worth(NamedTuple):
    """R(τ) of a batch, and what its intrinsic terms were before they were z-scored."""

    rewards: Rewards
    curiosity: Floats
    coherence: Floats
    cosines: Floats
    """(S,) adjacent cosines of E_t, NaN at first steps."""


def worth_of(chains: Chains, known: Known, settings: RewardSettings, *, samples: int, seed: int) -> Worth:
    """R(τ) of every rollout; `samples` of them belong to one question, and `seed` fixes the dropout of the gate."""
    paid = step_curiosity(known, chains.steps, settings, seed)
    with torch.no_grad():
        E = known.heads.embed(chains.steps).double().cpu().numpy()
    ends = np.cumsum(chains.lengths)
    curious, coherent = np.zeros(len(ends)), np.zeros(len(ends))
    for k, end in enumerate(ends):
        own = slice(end - chains.lengths[k], end)
        curious[k] = chain_curiosity(paid[own], total=settings.sums)
        if chains.lengths[k] < 2:  # no neighbours: neither a reward nor a price, whichever the prior
            coherent[k] = np.nan
        elif settings.prior == "adjacency":
            statistics = CosineStatistics(float(chains.mean[k]), float(chains.std[k]), 0)
            coherent[k] = coherence(E[own], statistics, total=settings.sums)
        elif settings.prior == "cpc":
            coherent[k] = cpc_alignment(E[own], np.concatenate([E[: own.start], E[own.stop :]]))
        else:
            coherent[k] = (l2_smoothness if settings.prior == "l2" else tv_smoothness)(chains.arguments[own])
    weights = RewardWeights(settings.final, settings.curiosity, settings.coherence, settings.penalty, settings.tool_use)
    used = tool_use(chains.lengths.reshape(-1, samples)).ravel()
    rewards = ccrft_reward(final_reward(chains.scores), curious, coherent, chains.penalties, used, weights=weights)
    return Worth(rewards, curious, coherent, chain_cosines(E, chains.lengths))


@torch.no_grad()
def step_curiosity(known: Known, steps: CorpusSteps, settings: RewardSettings, seed: int) -> Floats:
    """(S,) R_cur(t), weighed by the tool's scaler."""
    heads = known.heads
    if not len(steps.chain):
        return np.zeros(0)
    given, reached = heads.inputs(steps.before, steps.tool), heads.visual(steps.after.visual)
    v_hat, r_hat = heads.h_psi(given)
    variance = np.zeros(len(steps.chain))
    if settings.mc_samples > 1 and settings.gate > 0.0:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            heads.h_psi.train()
            passes = torch.stack([heads.h_psi(given)[0] for _ in range(settings.mc_samples)])  # (S, n, d)
            heads.h_psi.eval()
        variance = mc_variance(passes.cpu().numpy())
    error = prediction_error(v_hat.cpu().numpy(), reached.cpu().numpy())
    if settings.tool_scalers:
        names = [ACTIONS[k] if k >= 0 else "" for k in steps.tool.tolist()]
        error = error * np.array([known.scaler(name, "curiosity") for name in names])
    return curiosity_rewards(error, variance, r_hat.cpu().numpy(), beta=settings.gate)


def learn_dynamics(
    known: Known, steps: CorpusSteps, optimizer: torch.optim.Optimizer, *, batch: int, seed: int
) -> float:
    """One pass of h_ψ over the steps of a batch; its mean loss (supp:et_dynamics). g_φ and the projector stay."""
    heads = known.heads
    if not len(steps.chain):
        return float("nan")
    with torch.no_grad():
        given, reached = heads.inputs(steps.before, steps.tool), heads.visual(steps.after.visual)
    order = np.random.default_rng(seed).permutation(len(steps.chain))
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heads.h_psi.train()
        for own in np.array_split(order, -(-len(order) // batch)):
            at = torch.from_numpy(own).to(given.device)
            v_hat, r_hat = heads.h_psi(given[at])
            loss = dynamics_loss(v_hat, reached[at], r_hat, steps.valid[at])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(heads.h_psi.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        heads.h_psi.eval()
    return float(np.mean(losses))
