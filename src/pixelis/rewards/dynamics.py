"""The end of phase 1: g_φ and h_ψ are trained on corpus steps, g_φ is frozen, and its cosines are measured.

The paper gives g_φ no loss; here a linear readout of E_t must predict v_{t+1} (docs/paper_map.md). Phase 2 trains only
h_ψ further.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pixelis.equations.curiosity import dynamics_loss, prediction_error
from pixelis.equations.embedding import ACTIONS, CosineStatistics, cosine_statistics, readout_loss, require_spread
from pixelis.rewards.features import StateFeatures
from pixelis.rewards.heads import Dynamics, Standardizer, StepEmbedder, TextProjector
from pixelis.training.dataset.examples import Example

STEPS_PER_BATCH = 128
SCALER_RANGE = (0.5, 2.0)


class CorpusSteps(NamedTuple):
    """Inputs of the two heads: one row for each of n calls."""

    before: StateFeatures
    """s_{k−1}"""
    after: StateFeatures
    """s_k"""
    tool: Tensor
    """(n,) index in 𝒜."""
    valid: Tensor
    chain: NDArray[np.int64]
    """(n,) the trajectory of each step; its steps are contiguous, in order."""
    families: tuple[str, ...]
    """Of each trajectory."""


class Trajectory(NamedTuple):
    """What the two heads need of an example besides its states."""

    family: str
    tool: NDArray[np.integer]
    """(S,) index in 𝒜 of each step."""
    valid: NDArray[np.bool_]

    @classmethod
    def from_example(cls, example: Example) -> Trajectory:
        return cls(example.family, example.steps.tool, example.steps.valid)


def corpus_steps(trajectories: Sequence[Trajectory], states: Sequence[StateFeatures]) -> CorpusSteps:
    """The steps of all trajectories, from the states of their batches."""
    visual, text = torch.cat([s.visual for s in states]), torch.cat([s.text for s in states])
    before, chain, at = list[int](), list[int](), 0
    for number, trajectory in enumerate(trajectories):
        steps = len(trajectory.tool)
        before += range(at, at + steps)
        chain += [number] * steps
        at += steps + 1
    index = torch.tensor(before, dtype=torch.long, device=visual.device)
    tool = np.concatenate([trajectory.tool for trajectory in trajectories]).astype(np.int64)
    valid = np.concatenate([trajectory.valid for trajectory in trajectories])
    tools, is_valid = (torch.from_numpy(column).to(visual.device) for column in (tool, valid))
    states_before, states_after = (StateFeatures(visual[k], text[k]) for k in (index, index + 1))
    families = tuple(trajectory.family for trajectory in trajectories)
    return CorpusSteps(states_before, states_after, tools, is_valid, np.array(chain, dtype=np.int64), families)


class DynamicsHeads(nn.Module):
    """g_φ, h_ψ, their shared text projector, and the readout that only phase 1 needs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.visual = Standardizer(width)
        self.projector = TextProjector(width)
        self.g_phi = StepEmbedder(width)
        self.h_psi = Dynamics(width)
        self.readout = nn.Linear(512, width)

    def fit(self, steps: CorpusSteps) -> None:
        """Fix the standardisation of v_t and of the inputs of x_t."""
        self.visual.fit(steps.after.visual)
        self.projector.standard.fit(steps.after.text)

    def inputs(self, states: StateFeatures, tool: Tensor) -> Tensor:
        """[v ‖ x ‖ onehot(a)] (n, 2d + 6); all zeros for an unknown tool."""
        code = functional.one_hot(tool.clamp(min=0), len(ACTIONS)) * (tool >= 0)[:, None]
        visual = self.visual(states.visual)
        return torch.cat([visual, self.projector(states.text), code.to(visual.dtype)], dim=1)

    def embed(self, steps: CorpusSteps) -> Tensor:
        """(n, 512) E_k of every step."""
        return self.g_phi(self.inputs(steps.after, steps.tool))


def fit_dynamics_heads(
    steps: CorpusSteps, width: int, *, epochs: int, seed: int, lr: float = 5e-4
) -> tuple[DynamicsHeads, dict[str, float]]:
    """Train both heads on corpus steps: AdamW, decay 0.01, up to 128 steps a batch, clip 1.0 (supp:et_dynamics).

    The rate is ten times the paper's 5e-5: there the heads are trained through all of phase 2, here for minutes.
    """
    torch.manual_seed(seed)
    heads = DynamicsHeads(width).to(steps.tool.device)
    heads.fit(steps)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=lr, weight_decay=0.01)
    rng = np.random.default_rng(seed)
    has_next = torch.from_numpy(np.append(steps.chain[1:] == steps.chain[:-1], False)).to(steps.tool.device)
    visual_after = heads.visual(steps.after.visual)
    next_visual = torch.roll(visual_after, -1, dims=0)  # v_{k+1}, unless the trajectory ends
    losses = dict[str, float]()
    heads.train()
    for _ in range(epochs):
        total, batch_count = np.zeros(2), 0
        for step_indices in np.array_split(rng.permutation(len(steps.chain)), -(-len(steps.chain) // STEPS_PER_BATCH)):
            index = torch.from_numpy(step_indices).to(steps.tool.device)
            before, after = (StateFeatures(s.visual[index], s.text[index]) for s in (steps.before, steps.after))
            batch = CorpusSteps(before, after, steps.tool[index], steps.valid[index], step_indices, ())
            v_hat, r_hat = heads.h_psi(heads.inputs(batch.before, batch.tool))
            dynamics = dynamics_loss(v_hat, visual_after[index], r_hat, batch.valid)
            batch_has_next = has_next[index]
            predicted = heads.readout(heads.embed(batch)[batch_has_next])
            readout = readout_loss(predicted, next_visual[index][batch_has_next])
            optimizer.zero_grad(set_to_none=True)
            (dynamics + readout).backward()
            nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
            optimizer.step()
            total += float(dynamics.detach()), float(readout.detach())
            batch_count += 1
        losses = {"dynamics_loss": float(total[0] / batch_count), "readout_loss": float(total[1] / batch_count)}
    return heads.eval().requires_grad_(False), losses


@torch.no_grad()
def coherence_statistics(
    heads: DynamicsHeads, steps: CorpusSteps, *, floor: float = 0.02
) -> dict[str, CosineStatistics]:
    """Mean and standard deviation of cos(E_{k+1}, E_k) by task family; raises CollapseError if one is under `floor`.

    A family with fewer than two pairs of adjacent steps gets no statistics.
    """
    E = heads.embed(steps)
    cosines = (E[1:] * E[:-1]).sum(1).cpu().numpy()
    same_chain = steps.chain[1:] == steps.chain[:-1]
    family = np.array(steps.families)[steps.chain[1:]] if len(steps.chain) > 1 else np.zeros(0, dtype=str)
    names = sorted(set(family[same_chain]))
    by_family = {str(name): cosine_statistics(cosines[same_chain & (family == name)]) for name in names}
    usable = {name: statistics for name, statistics in by_family.items() if statistics.samples >= 2}
    require_spread(usable, floor=floor)
    return usable


@torch.no_grad()
def tool_scalers(heads: DynamicsHeads, steps: CorpusSteps) -> dict[str, Any]:
    """Fixed per-tool scalers for curiosity and penalty (subsec:sft names them without a formula).

    Curiosity: mean prediction error of all steps over that of the tool, so that a tool with unpredictable outcomes is
    not rewarded more than others. Penalty: mean failure rate over the tool's, for the same reason. Both are clipped to
    [0.5, 2].
    """
    v_hat, _ = heads.h_psi(heads.inputs(steps.before, steps.tool))
    error = prediction_error(v_hat.cpu().numpy(), heads.visual(steps.after.visual).cpu().numpy())
    failed = 1.0 - steps.valid.cpu().numpy()
    tool = steps.tool.cpu().numpy()
    out = {}
    for k, name in enumerate(ACTIONS):
        of_tool = tool == k
        if of_tool.any():
            curiosity = float(error.mean() / max(float(error[of_tool].mean()), 1e-9))
            penalty = float((failed.mean() + 0.01) / (failed[of_tool].mean() + 0.01))
            scalers = {"curiosity": curiosity, "penalty": penalty}
            out[name] = {key: round(float(np.clip(v, *SCALER_RANGE)), 4) for key, v in scalers.items()}
            out[name] |= {"steps": int(of_tool.sum()), "valid": round(1.0 - float(failed[of_tool].mean()), 4)}
    return out
