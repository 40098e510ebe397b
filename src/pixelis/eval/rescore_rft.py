"""Tapped layer and uncertainty gate by re-scoring saved chains (supp:layer-uncertainty).

No policy is trained again: chains that an evaluation saved are read once more by π_SFT. For a layer, the same g_φ
embeds features of that layer, whose scales and cosine statistics are taken on π_SFT's own chains by the same protocol.
For a gate, the same h_ψ says what each step would have been paid. What a policy trained with another layer or gate
would have done is not told by this.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from pixelis.data.acceptance import judge
from pixelis.data.record import Record
from pixelis.equations.process import adjacent_cosines, racpr, rapr
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

LAYERS = (-2, -1, 0, 1, 2)
"""Blocks below and above the third from the top."""
GATES = {"off": (1, 0.0), "MC-2": (2, 2.5), "MC-4": (4, 5.0), "MC-8": (8, 10.0)}
"""S and β, as the paper pairs them."""
MC_SEEDS = 5
TOGETHER = 16


def rescored(policy: str, own: Path, others: Path, tasks: Sequence[Task], *, limit: int) -> list[dict[str, Any]]:
    """One row a layer and one a gate, for the chains in `others`; `own` are those of π_SFT, the policy.

    Both folders are evaluations of the same tasks with the same limit.
    """
    loaded = load_checkpoint(policy)
    known = known_of(loaded, policy)
    before, after = (examples_in(folder, tasks, limit, loaded.policy) for folder in (own, others))
    rows = [layer_row(loaded.policy, known, before, after, offset) for offset in LAYERS]
    steps = steps_of(loaded.policy, after)
    paid = {name: payments(known, steps, samples, beta) for name, (samples, beta) in GATES.items()}
    return rows + [gate_row(name, paid, steps.valid.cpu().numpy()) for name in GATES]


def examples_in(folder: Path, tasks: Sequence[Task], limit: int, policy: Policy) -> list[Example]:
    """Saved traces as π_SFT reads them."""
    made = (item for task in tasks for item in task.items(limit))
    schemas, out = tool_schemas(), list[Example]()
    for trace, rendered in zip_longest(codec.read(folder / "traces.jsonl", check_artifacts=False), made):
        if trace is None or rendered is None or trace.query != rendered.item.question:
            raise ConfigError(f"{folder}: these are not the chains of {limit} items of each task")
        checks = {"steps": [check.model_dump() for check in judge(rendered.item, trace).steps]}
        record = Record(split="test", ordinal=0, item=rendered.item, trace=trace, accepted=True, acceptance=checks)
        media = MediaSet(rendered.media)
        out.append(example_of(record, media, policy.tokens, policy.style, policy.optics, schemas))
    return out


@torch.no_grad()
def steps_of(policy: Policy, examples: Sequence[Example]) -> CorpusSteps:
    states = list[States]()
    for begin in range(0, len(examples), TOGETHER):
        part = examples[begin : begin + TOGETHER]
        given = lessons(part, None, policy)
        states.append(state_features(policy, policy(given.batch), given.batch.ids, part))
    return corpus_steps([Trajectory.of(example) for example in examples], states)


def layer_row(
    policy: Policy, known: Known, own: Sequence[Example], others: Sequence[Example], offset: int
) -> dict[str, Any]:
    """RaCPR by E_t of one layer."""
    usual = policy.tap
    if not 0 <= policy.tapped_layer + offset < len(policy.language.layers):
        return {"setting": f"layer {offset:+d}", "chains": 0}
    policy.tap = usual + offset
    try:
        before, after = steps_of(policy, own), steps_of(policy, others)
    finally:
        policy.tap = usual
    heads: DynamicsHeads = copy.deepcopy(known.heads)
    heads.fit(before)
    statistics = coherence_statistics(heads, before, floor=0.0)
    with torch.no_grad():
        E = heads.embed(after).double().cpu().numpy()
    lengths = np.array([len(example.steps) for example in others], dtype=np.int64)
    cosines, valid = adjacent_cosines(E, lengths), after.valid.cpu().numpy()
    kept = known._replace(coherence=statistics)
    fixed = [kept.statistics_of(example.family) for example in others]
    found = racpr(valid, cosines, lengths, mean=[s.mean for s in fixed], std=[s.std for s in fixed])
    middle = bca_interval(100.0 * found.values, rng=np.random.default_rng(0))
    return {
        "setting": f"layer {offset:+d}", "chains": len(others),
        "racpr": {"mean": middle.point, "low": middle.low, "high": middle.high},
        "rapr": 100.0 * float(rapr(valid, lengths).mean()), "qualified": 100.0 * float(found.qualified.mean()),
        "cosine": float(np.nanmean(cosines)), "cosine_std": float(np.nanstd(cosines)),
    }  # fmt: skip


def payments(known: Known, steps: CorpusSteps, samples: int, beta: float) -> NDArray[np.float64]:
    """(MC_SEEDS, S) R_cur(t) under one gate, for several draws of its dropout."""
    settings = RewardSettings(mc_samples=samples, gate=beta)
    return np.stack([step_curiosity(known, steps, settings, seed) for seed in range(MC_SEEDS)])


def gate_row(name: str, paid: dict[str, NDArray[np.float64]], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """What is paid for steps that hold and for those that do not, and how much of it is the luck of the dropout."""
    own, usual = paid[name], paid["MC-4"].mean(0)
    mean = own.mean(0)
    return {
        "setting": f"gate {name}", "S": GATES[name][0], "beta": GATES[name][1], "steps": len(mean),
        "paid": float(mean.mean()), "paid_valid": float(mean[valid].mean()) if valid.any() else None,
        "paid_invalid": float(mean[~valid].mean()) if (~valid).any() else None,
        "luck": float(own.std(0).mean() / max(float(mean.std()), 1e-12)),
        "rank_correlation": float(spearmanr(mean, usual).statistic),
    }  # fmt: skip
