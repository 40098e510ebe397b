"""Compute the terms of the CC-RFT reward R(τ) for a batch of rollouts (eq:ccrft_reward, supp:et_dynamics).

Intrinsic terms are read off a frozen policy, π_SFT in phase 2 and the start policy in phase 3: v_t, x_t and the
statistics of phase 1 belong to π_SFT's features, and the policy in training could otherwise raise its coherence by
moving its features (decisions/0006 on a start that is not π_SFT). Z-scores and percentiles are over the whole batch, so
several processes gather their rollouts first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from pixelis.core.errors import ConfigError
from pixelis.equations.coherence import coherence, cpc_alignment, l2_smoothness, tv_smoothness
from pixelis.equations.curiosity import chain_curiosity, curiosity_rewards, dynamics_loss, mc_variance, prediction_error
from pixelis.equations.embedding import ACTIONS, CosineStatistics
from pixelis.equations.process import chain_cosines
from pixelis.equations.reward import Rewards, RewardWeights, ccrft_reward, final_reward, penalty, tool_use
from pixelis.equations.zscore import MeanStd
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import LoadedCheckpoint
from pixelis.rewards.dynamics import CorpusSteps, DynamicsHeads, Trajectory, corpus_steps
from pixelis.rewards.features import ReferenceOutput, StateFeatures
from pixelis.rewards.heads import ToolHeads
from pixelis.rewards.settings import RewardSettings
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.policy_update import MicroBatch
from pixelis.training.dataset.scored_rollouts import ScoredRollout, argument_vectors

if TYPE_CHECKING:
    from pixelis.equations.ttrl import SummaryStatistics

Floats = NDArray[np.float64]
NEUTRAL_COSINES = CosineStatistics(0.0, 1.0, 0)


class Rewarder(NamedTuple):
    """Heads and statistics of phase 1 that the rewards need."""

    heads: DynamicsHeads
    coherence: Mapping[str, CosineStatistics]
    """By family."""
    scalers: Mapping[str, Mapping[str, float]]
    """By tool: curiosity and penalty."""
    token_statistics: Mapping[str, MeanStd]
    """Of log-probabilities and entropies of π_SFT's tokens on its corpus."""
    summaries: SummaryStatistics | None = None
    """Of curiosity and coherence in the last rollouts of phase 2; None for a policy of phase 1."""

    def statistics_for(self, family: str) -> CosineStatistics:
        """Of a family, or the mean over families if it has none of its own."""
        if family in self.coherence or not self.coherence:
            return self.coherence.get(family, NEUTRAL_COSINES)
        means, stds, samples = np.array([(s.mean, s.std, s.samples) for s in self.coherence.values()]).T
        return CosineStatistics(float(means.mean()), float(stds.mean()), int(samples.sum()))

    def scaler(self, tool: str, kind: str) -> float:
        return float(self.scalers.get(tool, {}).get(kind, 1.0))


def load_rewarder(checkpoint: LoadedCheckpoint, name: str) -> Rewarder:
    """g_φ, h_ψ and the statistics of a checkpoint; raises ConfigError if it has none."""
    heads = DynamicsHeads(checkpoint.policy.width)
    initial = heads.state_dict()
    saved = {key: value for key, value in checkpoint.heads.items() if key in initial}
    required = {key for key in initial if not key.startswith("readout.")}  # only phase 1 needs it
    statistics = checkpoint.card.statistics
    if not required <= set(saved) or "coherence" not in statistics or "entropy" not in statistics.get("tokens", {}):
        raise ConfigError(f"{name} has no g_φ, h_ψ or statistics of phase 1: train it with `pixelis train sft` first")
    heads.load_state_dict({**initial, **saved})
    heads.eval().requires_grad_(False)
    heads.h_psi.requires_grad_(True)
    cosines = {family: CosineStatistics(**facts) for family, facts in statistics["coherence"].items()}
    tokens = {kind: MeanStd(**facts) for kind, facts in statistics["tokens"].items()}
    from pixelis.equations.ttrl import SummaryStatistics

    summaries = SummaryStatistics(**statistics["summaries"]) if "summaries" in statistics else None
    return Rewarder(heads.to(checkpoint.policy.device), cosines, statistics.get("tools", {}), tokens, summaries)


def checkpoint_heads(loaded: LoadedCheckpoint, rewarder: Rewarder, temperature: float = 1.0) -> dict[str, nn.Module]:
    """The heads that phases 2 and 3 export: the argument heads of phase 1, compensated for logits that were divided by
    `temperature` since, and the rewarder's."""
    arguments, prefix = ToolHeads(loaded.policy.width), "arguments."
    arguments.load_state_dict({k.removeprefix(prefix): v for k, v in loaded.heads.items() if k.startswith(prefix)})
    arguments.undo_division(temperature)
    names = ("visual", "projector", "g_phi", "h_psi")
    return {"arguments": arguments, **{name: getattr(rewarder.heads, name) for name in names}}


class TrajectoryBatch(NamedTuple):
    """The inputs of the rewards: B rollouts of all processes, in the order of their questions, with S steps in all."""

    scores: Floats
    """(B,) of the answers."""
    penalties: Floats
    """(B,) Pen(τ)."""
    lengths: NDArray[np.int64]
    """(B,) calls."""
    decisive: Floats
    """(B,) decisive steps."""
    cosine_mean: Floats
    """(B,) of adjacent cosines in the rollout's task family."""
    cosine_std: Floats
    steps: CorpusSteps
    """(S,) concatenated."""
    arguments: Floats
    """(S, 6) argument vectors of the calls."""


def gather_trajectories(
    rewarder: Rewarder,
    microbatches: Sequence[tuple[MicroBatch, ReferenceOutput]],
    rollouts: Sequence[ScoredRollout],
    media: Sequence[MediaSet],
    batch_indices: NDArray[np.int64],
    settings: RewardSettings,
    dist: DistributedContext,
) -> TrajectoryBatch:
    """The inputs of the rewards, gathered from all processes. `batch_indices` (b,) are the positions of this process's
    rollouts in the batch."""
    order = [k for microbatch, _ in microbatches for k in microbatch.rollout_indices]
    chains = [Trajectory.from_example(rollouts[k].example) for k in order]
    local = corpus_steps(chains, [output.states for _, output in microbatches])
    facts_by_rollout = list[list[float]]()
    for k in order:
        scored, cosines = rollouts[k], rewarder.statistics_for(rollouts[k].item.family)
        facts_by_rollout.append([
            float(batch_indices[k]), scored.score, chain_penalty(scored, rewarder, settings), len(scored.example.steps),
            len(scored.judgement.decisive), cosines.mean, cosines.std,
        ])  # fmt: skip
    columns = [
        column.double().cpu()
        for column in (
            local.before.visual, local.before.text, local.after.visual, local.after.text, local.tool[:, None],
            local.valid[:, None], torch.cat([torch.from_numpy(argument_vectors(rollouts[k], media[k])) for k in order]),
        )
    ]  # fmt: skip
    facts = dist.all_gather_rows(torch.tensor(facts_by_rollout, dtype=torch.float64).reshape(len(order), 7)).numpy()
    rows = dist.all_gather_rows(torch.cat(columns, dim=1))  # (S, …)
    batch_order = np.argsort(facts[:, 0], kind="stable")
    owner = np.repeat(np.arange(len(facts)), facts[:, 3].astype(np.int64))  # (S,)
    step_order = np.concatenate([np.zeros(0, dtype=np.int64), *(np.flatnonzero(owner == k) for k in batch_order)])
    widths = [column.shape[1] for column in columns]
    v0, x0, v1, x1, tool, valid, arguments = rows[torch.from_numpy(step_order)].split(widths, dim=1)
    _, scores, penalties, lengths, decisive, cosine_mean, cosine_std = facts[batch_order].T  # (B,) each
    lengths, device = lengths.astype(np.int64), local.tool.device
    steps = CorpusSteps(
        StateFeatures(v0.float().to(device), x0.float().to(device)),
        StateFeatures(v1.float().to(device), x1.float().to(device)),
        tool[:, 0].long().to(device), (valid[:, 0] > 0.5).to(device), np.repeat(np.arange(len(facts)), lengths), (),
    )  # fmt: skip
    return TrajectoryBatch(scores, penalties, lengths, decisive, cosine_mean, cosine_std, steps, arguments.numpy())


def chain_penalty(rollout: ScoredRollout, rewarder: Rewarder, settings: RewardSettings) -> float:
    """Pen(τ): calls rejected by their tool or verifier, repeated calls, turns that do not parse, length.

    A tool that finds nothing is not an invalid call.
    """
    steps = rollout.rollout.trace.steps
    accepted = [verdict.passed is not False for verdict in rollout.judgement.steps]
    ran = [step.result.status in ("ok", "failed") for step in steps]
    valid = [a and b for a, b in zip(ran, accepted, strict=True)]
    scalers = [rewarder.scaler(s.call.tool, "penalty") for s in steps] if settings.tool_scalers else None
    pen = penalty(
        rollout.calls, valid, alpha_inv=settings.alpha_inv, alpha_len=settings.alpha_len, l_0=settings.l_0,
        scalers=scalers,
    )  # fmt: skip
    return pen + settings.alpha_inv * rollout.rollout.parse_error_count


class RewardBatch(NamedTuple):
    """R(τ) of a batch, and its intrinsic terms before z-scoring."""

    terms: Rewards
    curiosity: Floats
    coherence: Floats
    cosines: Floats
    """(S,) adjacent cosines of E_t, NaN at first steps."""


def compute_rewards(
    trajectories: TrajectoryBatch, rewarder: Rewarder, settings: RewardSettings, *, group_size: int, seed: int
) -> RewardBatch:
    """R(τ) of every rollout; `group_size` of them share a question, and `seed` fixes the dropout of the gate."""
    step_rewards = step_curiosity(rewarder, trajectories.steps, settings, seed)
    with torch.no_grad():
        E = rewarder.heads.embed(trajectories.steps).double().cpu().numpy()
    ends = np.cumsum(trajectories.lengths)
    curiosities, coherences = np.zeros(len(ends)), np.full(len(ends), np.nan)  # (B,)
    for k, (end, length) in enumerate(zip(ends, trajectories.lengths, strict=True)):
        chain, total = slice(end - length, end), settings.sum_over_steps
        curiosities[k] = chain_curiosity(step_rewards[chain], total=total)
        if length < 2:  # no adjacent steps: neutral, whatever the kind
            continue
        if settings.coherence_kind == "adjacency":
            statistics = CosineStatistics(float(trajectories.cosine_mean[k]), float(trajectories.cosine_std[k]), 0)
            coherences[k] = coherence(E[chain], statistics, total=total)
        elif settings.coherence_kind == "cpc":
            coherences[k] = cpc_alignment(E[chain], np.concatenate([E[: chain.start], E[chain.stop :]]))
        else:
            smoothness = l2_smoothness if settings.coherence_kind == "l2" else tv_smoothness
            coherences[k] = smoothness(trajectories.arguments[chain])
    weights = RewardWeights(settings.final, settings.curiosity, settings.coherence, settings.penalty, settings.tool_use)
    terms = ccrft_reward(
        final_reward(trajectories.scores), curiosities, coherences, trajectories.penalties,
        tool_use(trajectories.lengths.reshape(-1, group_size)).ravel(), weights=weights,
    )  # fmt: skip
    return RewardBatch(terms, curiosities, coherences, chain_cosines(E, trajectories.lengths))


@torch.no_grad()
def step_curiosity(rewarder: Rewarder, steps: CorpusSteps, settings: RewardSettings, seed: int) -> Floats:
    """(S,) R_cur(t), scaled by the tool's scaler."""
    heads = rewarder.heads
    if not len(steps.chain):
        return np.zeros(0)
    inputs, next_visual = heads.inputs(steps.before, steps.tool), heads.visual(steps.after.visual)
    v_hat, r_hat = heads.h_psi(inputs)
    variance = np.zeros(len(steps.chain))
    if settings.mc_samples > 1 and settings.uncertainty_gate > 0.0:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            heads.h_psi.train()
            passes = torch.stack([heads.h_psi(inputs)[0] for _ in range(settings.mc_samples)])  # (S, n, d)
            heads.h_psi.eval()
        variance = mc_variance(passes.cpu().numpy())
    error = prediction_error(v_hat.cpu().numpy(), next_visual.cpu().numpy())
    if settings.tool_scalers:
        names = [ACTIONS[k] if k >= 0 else "" for k in steps.tool.tolist()]
        error = error * np.array([rewarder.scaler(name, "curiosity") for name in names])
    return curiosity_rewards(error, variance, r_hat.cpu().numpy(), beta=settings.uncertainty_gate)


def train_dynamics(rewarder: Rewarder, steps: CorpusSteps, optimizer: Optimizer, *, batch: int, seed: int) -> float:
    """One epoch of h_ψ over the steps of a batch; its mean loss (supp:et_dynamics). g_φ and projector are frozen."""
    heads = rewarder.heads
    if not len(steps.chain):
        return float("nan")
    with torch.no_grad():
        inputs, next_visual = heads.inputs(steps.before, steps.tool), heads.visual(steps.after.visual)
    order = np.random.default_rng(seed).permutation(len(steps.chain))
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heads.h_psi.train()
        for chunk in np.array_split(order, -(-len(order) // batch)):
            index = torch.from_numpy(chunk).to(inputs.device)
            v_hat, r_hat = heads.h_psi(inputs[index])
            loss = dynamics_loss(v_hat, next_visual[index], r_hat, steps.valid[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(heads.h_psi.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        heads.h_psi.eval()
    return float(np.mean(losses))
