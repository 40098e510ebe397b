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

from pixelis.core.errors import ConfigError
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
from pixelis.equations.ttrl import SummaryStatistics
from pixelis.equations.zscore import MeanStd
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import LoadedCheckpoint
from pixelis.rewards.dynamics import CorpusSteps, DynamicsHeads, Trajectory, corpus_steps
from pixelis.rewards.features import StateFeatures
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.scored_rollouts import MicroBatch, ReferenceOutput, ScoredRollout, argument_vectors
from pixelis.training.grpo.rft_config import RewardSettings

Floats = NDArray[np.float64]
NEUTRAL_COSINES = CosineStatistics(0.0, 1.0, 0)


class Rewarder(NamedTuple):
    """What phase 1 left for the rewards."""

    heads: DynamicsHeads
    coherence: Mapping[str, CosineStatistics]
    """By family."""
    scalers: Mapping[str, Mapping[str, float]]
    """By tool: curiosity and penalty."""
    token_statistics: Mapping[str, MeanStd]
    """Of log-probabilities and entropies of π_SFT's tokens on its corpus."""
    summaries: SummaryStatistics | None = None
    """Of curiosity and coherence in the last rollouts of phase 2; None where the policy has not been through it."""

    def statistics_for(self, family: str) -> CosineStatistics:
        """Of a family, or of all of them where it has none of its own."""
        if family in self.coherence or not self.coherence:
            return self.coherence.get(family, NEUTRAL_COSINES)
        statistics = np.array([(s.mean, s.std, s.samples) for s in self.coherence.values()])
        return CosineStatistics(
            float(statistics[:, 0].mean()), float(statistics[:, 1].mean()), int(statistics[:, 2].sum())
        )

    def scaler(self, tool: str, kind: str) -> float:
        return float(self.scalers.get(tool, {}).get(kind, 1.0))


def load_rewarder(checkpoint: LoadedCheckpoint, name: str) -> Rewarder:
    """g_φ, h_ψ and the statistics of a checkpoint; ConfigError where phase 1 has not left them."""
    heads = DynamicsHeads(checkpoint.policy.width)
    initial = heads.state_dict()
    saved = {key: value for key, value in checkpoint.heads.items() if key in initial}
    required = {key for key in initial if not key.startswith("readout.")}  # the readout has done its work
    statistics = checkpoint.card.statistics
    if not required <= set(saved) or "coherence" not in statistics or "entropy" not in statistics.get("tokens", {}):
        raise ConfigError(f"{name} has no g_φ, h_ψ or statistics of phase 1: train it with `pixelis train sft` first")
    heads.load_state_dict({**initial, **saved})
    heads.eval().requires_grad_(False)
    heads.h_psi.requires_grad_(True)
    cosines = {family: CosineStatistics(**facts) for family, facts in statistics["coherence"].items()}
    tokens = {kind: MeanStd(**facts) for kind, facts in statistics["tokens"].items()}
    summaries = SummaryStatistics(**statistics["summaries"]) if "summaries" in statistics else None
    return Rewarder(heads.to(checkpoint.policy.device), cosines, statistics.get("tools", {}), tokens, summaries)


class TrajectoryBatch(NamedTuple):
    """The rollouts of a batch, of all processes, in the order of their questions: what rewards are made of."""

    scores: Floats
    """(B,) of the answers."""
    penalties: Floats
    """(B,) Pen(τ)."""
    lengths: NDArray[np.int64]
    """(B,) calls."""
    decisive: Floats
    """(B,) decisive steps."""
    cosine_mean: Floats
    """(B,) of adjacent cosines in the chain's family."""
    cosine_std: Floats
    steps: CorpusSteps
    """All steps, chain after chain."""
    arguments: Floats
    """(S, 6) where each call looks."""


def gather_trajectories(
    rewarder: Rewarder,
    microbatches: Sequence[tuple[MicroBatch, ReferenceOutput]],
    rollouts: Sequence[ScoredRollout],
    media: Sequence[MediaSet],
    batch_indices: NDArray[np.int64],
    settings: RewardSettings,
    dist: DistributedContext,
) -> TrajectoryBatch:
    """What the processes have seen, put together. `numbers` are the places of this one's rollouts in the batch."""
    order = [k for microbatch, _ in microbatches for k in microbatch.rollout_indices]
    trajectories = [Trajectory.from_example(rollouts[k].example) for k in order]
    steps = corpus_steps(trajectories, [reference_output.states for _, reference_output in microbatches])
    rollout_facts, flat_columns = list[list[float]](), list[Tensor]()
    call_arguments = [torch.from_numpy(argument_vectors(rollouts[k], media[k])) for k in order]
    for k in order:
        rollout, statistics = rollouts[k], rewarder.statistics_for(rollouts[k].item.family)
        rollout_facts.append([
            float(batch_indices[k]), rollout.score, chain_penalty(rollout, rewarder, settings), len(rollout.example.steps),
            len(rollout.judgement.decisive), statistics.mean, statistics.std,
        ])  # fmt: skip
    columns = (
        steps.before.visual, steps.before.text, steps.after.visual, steps.after.text, steps.tool[:, None],
        steps.valid[:, None], torch.cat(call_arguments),
    )  # fmt: skip
    flat_columns = [column.double().cpu() for column in columns]
    facts = dist.all_gather_rows(torch.tensor(rollout_facts, dtype=torch.float64).reshape(len(order), 7)).numpy()
    rows = dist.all_gather_rows(torch.cat(flat_columns, dim=1))
    batch_order = np.argsort(facts[:, 0], kind="stable")
    owner = np.repeat(np.arange(len(facts)), facts[:, 3].astype(np.int64))
    step_order = (
        np.concatenate([np.flatnonzero(owner == k) for k in batch_order]) if len(facts) else np.zeros(0, dtype=np.int64)
    )
    device = steps.tool.device
    widths = [column.shape[1] for column in flat_columns]
    v0, x0, v1, x1, tool, valid, arguments = rows[torch.from_numpy(step_order)].split(widths, dim=1)
    facts = facts[batch_order]
    lengths = facts[:, 3].astype(np.int64)
    return TrajectoryBatch(
        scores=facts[:, 1],
        penalties=facts[:, 2],
        lengths=lengths,
        decisive=facts[:, 4],
        cosine_mean=facts[:, 5],
        cosine_std=facts[:, 6],
        steps=CorpusSteps(
            StateFeatures(v0.float().to(device), x0.float().to(device)),
            StateFeatures(v1.float().to(device), x1.float().to(device)),
            tool[:, 0].long().to(device),
            (valid[:, 0] > 0.5).to(device),
            np.repeat(np.arange(len(facts)), lengths),
            (),
        ),
        arguments=arguments.numpy(),
    )


def chain_penalty(rollout: ScoredRollout, rewarder: Rewarder, settings: RewardSettings) -> float:
    """Pen(τ): calls that were refused by their tool or by their verifier, repeated ones, unreadable turns, length.

    That nothing was found is an answer, not a mistake.
    """
    steps = rollout.rollout.trace.steps
    valid = [
        step.result.status in ("ok", "failed") and step_verdict.passed is not False
        for step, step_verdict in zip(steps, rollout.judgement.steps, strict=True)
    ]
    scalers = [rewarder.scaler(s.call.tool, "penalty") for s in steps] if settings.tool_scalers else None
    pen = penalty(
        rollout.calls,
        valid,
        alpha_inv=settings.alpha_inv,
        alpha_len=settings.alpha_len,
        l_0=settings.l_0,
        scalers=scalers,
    )
    return pen + settings.alpha_inv * rollout.rollout.parse_error_count


class RewardBatch(NamedTuple):
    """R(τ) of a batch, and what its intrinsic terms were before they were z-scored."""

    terms: Rewards
    curiosity: Floats
    coherence: Floats
    cosines: Floats
    """(S,) adjacent cosines of E_t, NaN at first steps."""


def compute_rewards(
    trajectories: TrajectoryBatch, rewarder: Rewarder, settings: RewardSettings, *, group_size: int, seed: int
) -> RewardBatch:
    """R(τ) of every rollout; `samples` of them belong to one question, and `seed` fixes the dropout of the gate."""
    step_rewards = step_curiosity(rewarder, trajectories.steps, settings, seed)
    with torch.no_grad():
        E = rewarder.heads.embed(trajectories.steps).double().cpu().numpy()
    ends = np.cumsum(trajectories.lengths)
    curiosity_values, coherence_values = np.zeros(len(ends)), np.zeros(len(ends))
    for k, end in enumerate(ends):
        step_range = slice(end - trajectories.lengths[k], end)
        curiosity_values[k] = chain_curiosity(step_rewards[step_range], total=settings.sums)
        if trajectories.lengths[k] < 2:  # no neighbours: neither a reward nor a price, whichever the prior
            coherence_values[k] = np.nan
        elif settings.prior == "adjacency":
            statistics = CosineStatistics(float(trajectories.cosine_mean[k]), float(trajectories.cosine_std[k]), 0)
            coherence_values[k] = coherence(E[step_range], statistics, total=settings.sums)
        elif settings.prior == "cpc":
            coherence_values[k] = cpc_alignment(
                E[step_range], np.concatenate([E[: step_range.start], E[step_range.stop :]])
            )
        else:
            coherence_values[k] = (l2_smoothness if settings.prior == "l2" else tv_smoothness)(
                trajectories.arguments[step_range]
            )
    weights = RewardWeights(settings.final, settings.curiosity, settings.coherence, settings.penalty, settings.tool_use)
    tool_use_terms = tool_use(trajectories.lengths.reshape(-1, group_size)).ravel()
    terms = ccrft_reward(
        final_reward(trajectories.scores),
        curiosity_values,
        coherence_values,
        trajectories.penalties,
        tool_use_terms,
        weights=weights,
    )
    return RewardBatch(terms, curiosity_values, coherence_values, chain_cosines(E, trajectories.lengths))


@torch.no_grad()
def step_curiosity(rewarder: Rewarder, steps: CorpusSteps, settings: RewardSettings, seed: int) -> Floats:
    """(S,) R_cur(t), weighed by the tool's scaler."""
    heads = rewarder.heads
    if not len(steps.chain):
        return np.zeros(0)
    inputs, next_visual = heads.inputs(steps.before, steps.tool), heads.visual(steps.after.visual)
    v_hat, r_hat = heads.h_psi(inputs)
    variance = np.zeros(len(steps.chain))
    if settings.mc_samples > 1 and settings.gate > 0.0:
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
    return curiosity_rewards(error, variance, r_hat.cpu().numpy(), beta=settings.gate)


def train_dynamics(
    rewarder: Rewarder, steps: CorpusSteps, optimizer: torch.optim.Optimizer, *, batch: int, seed: int
) -> float:
    """One pass of h_ψ over the steps of a batch; its mean loss (supp:et_dynamics). g_φ and the projector stay."""
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
