"""Tapped layer and uncertainty gate by re-scoring saved trajectories (supp:layer-uncertainty).

No policy is trained again: π_SFT reads the trajectories of saved evaluations. For a layer, the same g_φ embeds features
of that layer, with scales and cosine statistics from π_SFT's dev trajectories by the same protocol. For a gate, the
same h_ψ gives the reward of each step. This does not show what a policy trained with another layer or gate would do: of
tab:supp_layer_uncertainty, re-scoring yields RaCPR and ΔLen of the layers. Accuracy and RaPR belong to the
trajectories, which do not change, and neither do RaCPR and ΔLen if only the gate changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.acceptance_checks import judge_trace
from pixelis.data.corpus.record import Record
from pixelis.equations.process import chain_cosines, racpr, rapr
from pixelis.evaluation.tasks import Task
from pixelis.media import MediaSet
from pixelis.metrics.bootstrap import bca_interval
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.policy.model import Policy
from pixelis.rewards.compute import Rewarder, load_rewarder, step_curiosity
from pixelis.rewards.dynamics import CorpusSteps, DynamicsHeads, Trajectory, coherence_statistics, corpus_steps
from pixelis.rewards.features import StateFeatures, state_features
from pixelis.rewards.settings import RewardSettings
from pixelis.trace import codec
from pixelis.training.dataset.examples import Example, example_from_record
from pixelis.training.dataset.prepared_examples import tool_schemas
from pixelis.training.sft.sft_model import collate

Floats = NDArray[np.float64]
LAYERS = (-2, -1, 0, 1, 2)
"""Offsets from the third block from the top."""
GATES = {"off": (1, 0.0), "MC-2": (2, 2.5), "MC-4": (4, 5.0), "MC-8": (8, 10.0)}
"""S and β, paired as in the paper."""
MC_SEEDS = 5
CHAINS_PER_BATCH = 16


class SavedChains(NamedTuple):
    """Evaluations on the same questions, one folder per seed."""

    folders: tuple[Path, ...]
    tasks: Sequence[Task]
    limit: int
    """Items of each task."""

    def __str__(self) -> str:
        return ", ".join(str(folder) for folder in self.folders)


class RereadChains(NamedTuple):
    """Saved trajectories of all seeds, as read by π_SFT at several layers."""

    trajectories: tuple[Trajectory, ...]
    states: Mapping[int, list[StateFeatures]]
    """By offset, for the layers that the policy has."""
    seeds: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) calls per trajectory."""
        return np.array([len(trajectory.tool) for trajectory in self.trajectories], dtype=np.int64)

    def steps(self, offset: int) -> CorpusSteps:
        return corpus_steps(self.trajectories, self.states[offset])


def rescore_layers_and_gates(
    policy: str, dev_chains: SavedChains, test_chains: SavedChains, reward: RewardSettings
) -> list[dict[str, Any]]:
    """One row per layer and per gate for `test_chains`; `dev_chains` are those of π_SFT, the policy.

    `reward` are the settings of the run that made `test_chains`; a gate changes their S and β.
    """
    loaded = load_checkpoint(policy)
    rewarder = load_rewarder(loaded, policy)
    dev_reread, test_reread = (read_chains(loaded.policy, saved) for saved in (dev_chains, test_chains))
    rows = add_delta_length([layer_row(rewarder, dev_reread, test_reread, offset) for offset in LAYERS])
    steps = test_reread.steps(0)
    payments_by_gate = {name: gate_payments(rewarder, steps, reward, *gate) for name, gate in GATES.items()}
    return rows + [gate_row(name, payments_by_gate, steps.valid.cpu().numpy()) for name in GATES]


def read_examples(folder: Path, tasks: Sequence[Task], limit: int, policy: Policy) -> Iterator[Example]:
    """Saved traces as examples for π_SFT, each judged against its item."""
    rendered_items = (item for task in tasks for item in task.items(limit))
    schemas = tool_schemas()
    for trace, rendered in zip_longest(codec.read(folder / "traces.jsonl", check_artifacts=False), rendered_items):
        # questions can have equal wording, so media are compared too
        if (
            trace is None
            or rendered is None
            or trace.query != rendered.item.question
            or [medium.sha256 for medium in trace.media] != [medium.sha256 for medium in rendered.media]
        ):
            raise ConfigError(f"{folder}: these are not the trajectories of {limit} items of each task; evaluate again")
        checks = {"steps": [check.model_dump() for check in judge_trace(rendered.item, trace).steps]}
        record = Record(split="test", ordinal=0, item=rendered.item, trace=trace, accepted=True, acceptance=checks)
        yield example_from_record(
            record, MediaSet(rendered.media), policy.tokenizer, policy.style, policy.image_config, schemas
        )


@torch.no_grad()
def read_chains(policy: Policy, saved: SavedChains) -> RereadChains:
    """Read the trajectories at every layer, in small batches to bound memory. ConfigError if there are no calls."""
    original_tap, depth = policy.tap, len(policy.language.layers)
    trajectories = list[Trajectory]()
    states = {offset: list[StateFeatures]() for offset in LAYERS if 0 <= policy.feature_layer + offset < depth}
    examples = (e for folder in saved.folders for e in read_examples(folder, saved.tasks, saved.limit, policy))
    try:
        while chunk := list(islice(examples, CHAINS_PER_BATCH)):
            sft_batch = collate(chunk, None, policy)
            trajectories += [Trajectory.from_example(example) for example in chunk]
            for offset, layer_states in states.items():
                policy.tap = original_tap + offset
                layer_states.append(state_features(policy, policy(sft_batch.inputs), sft_batch.inputs.ids, chunk))
    finally:
        policy.tap = original_tap
    reread = RereadChains(tuple(trajectories), states, len(saved.folders))
    if not reread.lengths.any():
        raise ConfigError(f"no calls in {saved}: layers and gates differ only in calls")
    return reread


def layer_row(rewarder: Rewarder, dev_reread: RereadChains, test_reread: RereadChains, offset: int) -> dict[str, Any]:
    """RaCPR by E_t of one layer, its interval over items, and |C| of qualified trajectories; null if undefined."""
    lengths, seeds = test_reread.lengths, test_reread.seeds
    row: dict[str, Any] = {
        "setting": f"layer {offset:+d}", "chains": len(lengths), "seeds": seeds, "racpr": None, "rapr": None,
        "qualified": None, "length": None, "cosine": None, "cosine_std": None,
    }  # fmt: skip
    if offset not in test_reread.states:
        return row | {"reason": "the policy has no such layer"}
    dev_steps, test_steps = dev_reread.steps(offset), test_reread.steps(offset)
    valid = test_steps.valid.cpu().numpy()
    row["rapr"] = 100.0 * float(rapr(valid, lengths).mean())
    heads: DynamicsHeads = copy.deepcopy(rewarder.heads)
    heads.fit(dev_steps)
    layer_rewarder = rewarder._replace(coherence=coherence_statistics(heads, dev_steps, floor=0.0))
    if not layer_rewarder.coherence:
        return row | {"reason": "no family of π_SFT's dev trajectories has two pairs of neighbouring calls"}
    with torch.no_grad():
        E = heads.embed(test_steps).double().cpu().numpy()
    cosines = chain_cosines(E, lengths)
    chain_statistics = [layer_rewarder.statistics_for(trajectory.family) for trajectory in test_reread.trajectories]
    composed = racpr(
        valid, cosines, lengths, mean=[s.mean for s in chain_statistics], std=[s.std for s in chain_statistics]
    )
    by_seed: Floats = 100.0 * composed.values.reshape(seeds, -1)  # (seeds, items)
    estimate = bca_interval(by_seed.mean(0), rng=np.random.default_rng(0))
    row["racpr"] = {
        "mean": estimate.point, "low": estimate.low, "high": estimate.high, "over_seeds": float(by_seed.mean(1).std())
    }  # fmt: skip
    row["qualified"] = 100.0 * float(composed.qualified.mean())
    if composed.qualified.any():
        row["length"] = float(composed.chain_length[composed.qualified].mean())
    if np.isfinite(cosines).any():
        row |= {"cosine": float(np.nanmean(cosines)), "cosine_std": float(np.nanstd(cosines))}
    return row


def add_delta_length(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """ΔLen: the mean |C| of qualified trajectories minus that of the default layer; null if either is undefined."""
    usual_length = next(row["length"] for row in rows if row["setting"] == "layer +0")
    is_defined = [None not in (row["length"], usual_length) for row in rows]
    return [
        row | {"delta_length": row["length"] - usual_length if k else None}
        for row, k in zip(rows, is_defined, strict=True)
    ]


def gate_payments(rewarder: Rewarder, steps: CorpusSteps, reward: RewardSettings, samples: int, beta: float) -> Floats:
    """(MC_SEEDS, S) R_cur(t) under one gate, for several dropout seeds."""
    settings = reward.model_copy(update={"mc_samples": samples, "uncertainty_gate": beta})
    return np.stack([step_curiosity(rewarder, steps, settings, seed) for seed in range(MC_SEEDS)])


def gate_row(name: str, payments_by_gate: Mapping[str, Floats], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """Mean reward of valid and invalid steps, and how much of its variation is due to dropout.

    Ranks are compared with those of the paper's gate; they are undefined if all rewards are equal.
    """
    payments, usual_mean = payments_by_gate[name], payments_by_gate["MC-4"].mean(0)
    mean = payments.mean(0)
    has_ranks = np.ptp(mean) > 0.0 and np.ptp(usual_mean) > 0.0
    return {
        "setting": f"gate {name}", "S": GATES[name][0], "beta": GATES[name][1], "steps": len(mean),
        "paid": float(mean.mean()), "paid_valid": float(mean[valid].mean()) if valid.any() else None,
        "paid_invalid": float(mean[~valid].mean()) if (~valid).any() else None,
        "luck": float(payments.std(0).mean() / mean.std()) if np.ptp(mean) > 0.0 else None,
        "rank_correlation": float(spearmanr(mean, usual_mean).statistic) if has_ranks else None,
    }  # fmt: skip
