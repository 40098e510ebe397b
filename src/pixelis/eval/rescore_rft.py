"""Tapped layer and uncertainty gate by re-scoring saved chains (supp:layer-uncertainty).

No policy is trained again: chains that evaluations saved are read once more by π_SFT. For a layer, the same g_φ embeds
features of that layer, whose scales and cosine statistics are taken on π_SFT's dev chains by the same protocol. For a
gate, the same h_ψ says what each step would have been paid. What a policy trained with another layer or gate would have
done is not told by this: of tab:supp_layer_uncertainty, re-scoring has RaCPR and ΔLen of the layers. Accuracy and RaPR
belong to the chains, which stay what they are, and so do RaCPR and ΔLen where only the gate is another.
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

from pixelis.data.acceptance import judge
from pixelis.data.record import Record
from pixelis.equations.process import chain_cosines, racpr, rapr
from pixelis.errors import ConfigError
from pixelis.eval.tasks import Task
from pixelis.media import MediaSet
from pixelis.metrics.bootstrap import bca_interval
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.policy.model import Policy
from pixelis.trace import codec
from pixelis.train.dynamics import CorpusSteps, DynamicsHeads, Trajectory, coherence_statistics, corpus_steps
from pixelis.train.examples import Example, example_of
from pixelis.train.features import States, state_features
from pixelis.train.lessons import lessons
from pixelis.train.prepared import tool_schemas
from pixelis.train.rft_config import RewardSettings
from pixelis.train.worth import Known, known_of, step_curiosity

Floats = NDArray[np.float64]
LAYERS = (-2, -1, 0, 1, 2)
"""Blocks below and above the third from the top."""
GATES = {"off": (1, 0.0), "MC-2": (2, 2.5), "MC-4": (4, 5.0), "MC-8": (8, 10.0)}
"""S and β, as the paper pairs them."""
MC_SEEDS = 5
TOGETHER = 16


class Saved(NamedTuple):
    """Evaluations that asked the same questions, one folder a seed."""

    folders: tuple[Path, ...]
    tasks: Sequence[Task]
    limit: int
    """Items of each task."""

    def __str__(self) -> str:
        return ", ".join(str(folder) for folder in self.folders)


class Reread(NamedTuple):
    """Saved chains, seed after seed, as π_SFT reads them at several layers."""

    walked: tuple[Trajectory, ...]
    states: Mapping[int, list[States]]
    """By offset; layers that the policy does not have are left out."""
    seeds: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) calls of each chain."""
        return np.array([len(trajectory.tool) for trajectory in self.walked], dtype=np.int64)

    def steps(self, offset: int) -> CorpusSteps:
        return corpus_steps(self.walked, self.states[offset])


def rescored(policy: str, own: Saved, others: Saved, reward: RewardSettings) -> list[dict[str, Any]]:
    """One row a layer and one a gate, for the chains of `others`; `own` are dev chains of π_SFT, the policy.

    `reward` are the settings that `others` were trained with: a gate changes S and β in them.
    """
    loaded = load_checkpoint(policy)
    known = known_of(loaded, policy)
    before, after = (chains_of(loaded.policy, saved) for saved in (own, others))
    rows = relative([layer_row(known, before, after, offset) for offset in LAYERS])
    steps = after.steps(0)
    paid = {name: payments(known, steps, reward, *gate) for name, gate in GATES.items()}
    return rows + [gate_row(name, paid, steps.valid.cpu().numpy()) for name in GATES]


def examples_in(folder: Path, tasks: Sequence[Task], limit: int, policy: Policy) -> Iterator[Example]:
    """Saved traces as π_SFT reads them, each held against the item that it answers."""
    made = (item for task in tasks for item in task.items(limit))
    schemas = tool_schemas()
    for trace, rendered in zip_longest(codec.read(folder / "traces.jsonl", check_artifacts=False), made):
        # many questions share their words: what was looked at tells them apart
        if (
            trace is None
            or rendered is None
            or trace.query != rendered.item.question
            or [medium.sha256 for medium in trace.media] != [medium.sha256 for medium in rendered.media]
        ):
            raise ConfigError(f"{folder}: these are not the chains of {limit} items of each task; evaluate them again")
        checks = {"steps": [check.model_dump() for check in judge(rendered.item, trace).steps]}
        record = Record(split="test", ordinal=0, item=rendered.item, trace=trace, accepted=True, acceptance=checks)
        yield example_of(record, MediaSet(rendered.media), policy.tokens, policy.style, policy.optics, schemas)


@torch.no_grad()
def chains_of(policy: Policy, saved: Saved) -> Reread:
    """Read the chains at every layer, a few at a time: their pictures are not kept. ConfigError without any call."""
    usual, depth = policy.tap, len(policy.language.layers)
    walked = list[Trajectory]()
    states = {offset: list[States]() for offset in LAYERS if 0 <= policy.tapped_layer + offset < depth}
    examples = (e for folder in saved.folders for e in examples_in(folder, saved.tasks, saved.limit, policy))
    try:
        while part := list(islice(examples, TOGETHER)):
            given = lessons(part, None, policy)
            walked += [Trajectory.of(example) for example in part]
            for offset, read in states.items():
                policy.tap = usual + offset
                read.append(state_features(policy, policy(given.batch), given.batch.ids, part))
    finally:
        policy.tap = usual
    found = Reread(tuple(walked), states, len(saved.folders))
    if not found.lengths.any():
        raise ConfigError(f"no calls in {saved}: layers and gates are told apart by calls alone")
    return found


def layer_row(known: Known, own: Reread, others: Reread, offset: int) -> dict[str, Any]:
    """RaCPR by E_t of one layer, its interval over items, and |C| of qualified chains; nulls where there is none."""
    lengths, seeds = others.lengths, others.seeds
    row: dict[str, Any] = {
        "setting": f"layer {offset:+d}", "chains": len(lengths), "seeds": seeds, "racpr": None, "rapr": None,
        "qualified": None, "length": None, "cosine": None, "cosine_std": None,
    }  # fmt: skip
    if offset not in others.states:
        return row | {"reason": "the policy has no such layer"}
    before, after = own.steps(offset), others.steps(offset)
    valid = after.valid.cpu().numpy()
    row["rapr"] = 100.0 * float(rapr(valid, lengths).mean())
    heads: DynamicsHeads = copy.deepcopy(known.heads)
    heads.fit(before)
    kept = known._replace(coherence=coherence_statistics(heads, before, floor=0.0))
    if not kept.coherence:
        return row | {"reason": "no family of π_SFT's dev chains has two pairs of neighbouring calls"}
    with torch.no_grad():
        E = heads.embed(after).double().cpu().numpy()
    cosines = chain_cosines(E, lengths)
    fixed = [kept.statistics_of(trajectory.family) for trajectory in others.walked]
    found = racpr(valid, cosines, lengths, mean=[s.mean for s in fixed], std=[s.std for s in fixed])
    by_seed: Floats = 100.0 * found.values.reshape(seeds, -1)  # (seeds, items)
    middle = bca_interval(by_seed.mean(0), rng=np.random.default_rng(0))
    row["racpr"] = {
        "mean": middle.point, "low": middle.low, "high": middle.high, "over_seeds": float(by_seed.mean(1).std())
    }  # fmt: skip
    row["qualified"] = 100.0 * float(found.qualified.mean())
    if found.qualified.any():
        row["length"] = float(found.chain_length[found.qualified].mean())
    if np.isfinite(cosines).any():
        row |= {"cosine": float(np.nanmean(cosines)), "cosine_std": float(np.nanstd(cosines))}
    return row


def relative(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """ΔLen: the mean |C| of qualified chains less that of the usual layer; null where either has none."""
    usual = next(row["length"] for row in rows if row["setting"] == "layer +0")
    known = [None not in (row["length"], usual) for row in rows]
    return [row | {"delta_length": row["length"] - usual if k else None} for row, k in zip(rows, known, strict=True)]


def payments(known: Known, steps: CorpusSteps, reward: RewardSettings, samples: int, beta: float) -> Floats:
    """(MC_SEEDS, S) R_cur(t) under one gate, for several draws of its dropout."""
    settings = reward.model_copy(update={"mc_samples": samples, "gate": beta})
    return np.stack([step_curiosity(known, steps, settings, seed) for seed in range(MC_SEEDS)])


def gate_row(name: str, paid: Mapping[str, Floats], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """What is paid for steps that hold and for those that do not, and how much of it is the luck of the dropout.

    Ranks are held against those of the paper's gate; there are none where all steps are paid alike.
    """
    own, usual = paid[name], paid["MC-4"].mean(0)
    mean = own.mean(0)
    ranked = np.ptp(mean) > 0.0 and np.ptp(usual) > 0.0
    return {
        "setting": f"gate {name}", "S": GATES[name][0], "beta": GATES[name][1], "steps": len(mean),
        "paid": float(mean.mean()), "paid_valid": float(mean[valid].mean()) if valid.any() else None,
        "paid_invalid": float(mean[~valid].mean()) if (~valid).any() else None,
        "luck": float(own.std(0).mean() / mean.std()) if np.ptp(mean) > 0.0 else None,
        "rank_correlation": float(spearmanr(mean, usual).statistic) if ranked else None,
    }  # fmt: skip
