"""Phase 3: Pixel TTRL, beside the paper's pseudo-code (supp:ttrl_loss_clean).

For each query of a stream, in order:
  1. sample N rollouts; take entropies, VisFid, confidences         `live`
  2. calibrate, weigh, vote; abstain where the margin or the conformal set says so   `scoring.consensus.decide`
  3. give the answer: the row's answer is what the policy said before it learnt from this query
  4. retrieve the neighbourhood with a key of these rollouts, v̄ from its values      `neighbourhood`
  5. returns against the exemplar, baseline, advantages             `lesson_of`
  6. one step with KL to π_EMA under a PID; a hard guard refuses a step that drifts too far from the start
  7. π_EMA, baseline and controller move; an accepted exemplar enters the memory
  8. the row is acknowledged                                        `Adaptation`

Where every query of a batch abstained, only the KL and EMA part of the step is left. Labels, where items have them, are
written into rows for scoring and are never read by anything that learns.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pixelis.equations.calibration import Temperature
from pixelis.equations.pid import Pid
from pixelis.equations.ttrl import (
    Baseline,
    Summaries,
    advantage,
    baseline_step,
    neighbourhood_value,
    normalise_advantages,
    rollout_return,
    summary_statistics,
    trace_value,
)
from pixelis.errors import ConfigError, LeakageError
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import Loaded, load_checkpoint
from pixelis.policy.model import Policy
from pixelis.retrieval.keys import KeyMaker
from pixelis.retrieval.mask import EvaluationMask
from pixelis.retrieval.memory import Memory
from pixelis.retrieval.remembering import Worth as Remembered
from pixelis.retrieval.remembering import remember
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Query, Rollout
from pixelis.scoring.consensus import Decision, Window, decide, record_of
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.train.adaptation import Adaptation
from pixelis.train.crew import Crew, trained
from pixelis.train.experience import Lived, lived, parts_of, read_anchor
from pixelis.train.run import run_folder
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_update import Learner, Lesson
from pixelis.train.worth import Known, Worth, chain_penalty, chains_of, known_of, worth_of
from pixelis.world import Rendered

Show = Callable[[dict[str, Any], int], None]
"""Called with a row and how many there are."""


class Heard(NamedTuple):
    """One query after its rollouts."""

    made: Rendered
    experience: list[Lived]
    worth: Worth
    penalties: np.ndarray
    decision: Decision


class TtrlReport(NamedTuple):
    """What an adaptation came to."""

    policy: str
    queries: int
    accepted: int
    """Queries that something was learnt from."""
    updates: int
    refused: int
    answered: float
    """Percent of queries that were not abstained on."""
    accuracy: float | None
    """Percent of the given answers that are right, where items have answers."""
    drift: float
    bytes: int
    seconds: float
    resumed: bool


def adapt(
    config: TtrlConfig,
    stream: Iterable[Rendered],
    out: Path,
    *,
    keys: KeyMaker | None = None,
    mask: EvaluationMask | None = None,
    show: Show = lambda row, total: None,
) -> TtrlReport:
    """Answer a stream and learn from it without labels, into a folder, or go on where that was stopped."""
    torch.set_num_threads(config.threads)
    tools = ToolboxConfig(seg="classical", isolate=False, workers=config.workers, cache_path=config.cache_path)
    began = time.monotonic()
    with run_folder(config, out, Crew()), Toolbox(tools) as toolbox:
        loaded = load_checkpoint(config.policy, device=config.device, dtype=getattr(torch, config.dtype))
        known = known_of(loaded, config.policy)
        known.heads.h_psi.requires_grad_(False)
        home = Adaptation(out, config, begin(config, loaded))
        resumed = bool(home.rows)
        with closing(open_memory(config, out, keys, mask)) as memory:
            memory.rollback(home.rows[-1]["memory"] if home.rows else base_rows(home, memory))
            state = Standing(config, home.rows, memory)
            items = islice(iter(stream), len(home.rows), None)
            while batch := list(islice(items, config.batch)):
                first = len(home.rows)
                heard = [
                    hear(config, home.learner, known, toolbox, made, state, first + k) for k, made in enumerate(batch)
                ]
                rows = settle(config, home, known, state, memory, keys, mask, heard, first)
                home.acknowledge(rows)
                for row in rows:
                    show(row, len(home.rows))
        export(config, loaded, known, home, out)
    scored = [row["score"] for row in home.rows if row.get("score") is not None and row["answered"]]
    return TtrlReport(
        policy=str(out / "policy"), queries=len(home.rows), accepted=sum(row["learnt"] for row in home.rows),
        updates=home.taken, refused=sum(bool(row["refused"]) for row in home.rows),
        answered=100.0 * float(np.mean([row["answered"] for row in home.rows])) if home.rows else 0.0,
        accuracy=100.0 * float(np.mean(scored)) if scored else None,
        drift=home.rows[-1]["drift"] if home.rows and home.rows[-1]["drift"] is not None else 0.0,
        bytes=home.size(), seconds=time.monotonic() - began, resumed=resumed,
    )  # fmt: skip


def begin(config: TtrlConfig, loaded: Loaded) -> Learner:
    """The policy with what anchors it, as adaptation finds them."""
    policy = loaded.policy
    start = copy.deepcopy(policy).eval().requires_grad_(False)
    if config.lora is not None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(config.seed)
        own = config.lora
        settings = LoraConfig(
            r=own.rank, lora_alpha=own.alpha, lora_dropout=own.dropout, target_modules=list(own.targets)
        )
        policy.model = get_peft_model(policy.model, settings)
    average = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(trained(policy).values(), lr=config.lr, betas=config.betas, weight_decay=0.0)
    return Learner(policy.eval(), average, start, optimizer, Pid(beta=config.kl.beta))


class Standing:
    """What the next query depends on besides weights and memory; all of it can be read off the rows."""

    def __init__(self, config: TtrlConfig, rows: Sequence[dict[str, Any]], memory: Memory) -> None:
        self.window = Window(config.vote.window, deque(maxlen=None))
        self.baseline = Baseline(rows[-1]["baseline"] if rows else None)
        for row in rows[-config.vote.window :]:
            if row["labels"]:
                self.window.add(row["labels"])
        known = [item for _, item in memory.items() if item.curiosity is not None and item.coherence is not None]
        self.summaries: Summaries = summary_statistics(
            [item.curiosity or 0.0 for item in known], [item.coherence or 0.0 for item in known]
        )


# --- 1 to 3: rollouts and the vote


def hear(
    config: TtrlConfig, learner: Learner, known: Known, toolbox: Toolbox, made: Rendered, state: Standing, number: int
) -> Heard:
    """Roll a query out and put it to the vote."""
    media = MediaSet(made.media)
    query = Query(made.item.id, made.item.question, media, made.item.seed)
    seed = config.seed * 1_000_003 + number
    (group,) = rollout(
        learner.policy, toolbox, [query], n=config.samples, seed=seed, limits=config.limits,
        temperature=config.temperature, name=config.name,
    )  # fmt: skip
    toolbox.let_go(media)
    experience = [lived(rolled, made.item, media, learner.policy.tokens) for rolled in group]
    ledgers = [one.ledger for one in experience]
    parts = [
        (p, read_anchor(learner.start, p, experience)) for p in parts_of(ledgers, learner.policy, config.batch_tokens)
    ]
    numbers = np.arange(len(experience))
    chains = chains_of(known, parts, experience, [media] * len(experience), numbers, config.reward, Crew())
    worth = worth_of(chains, known, config.reward, samples=config.samples, seed=seed)
    flipped = with_flips(group, config.flips, np.random.default_rng([config.seed, number, 7]))
    decision = decide(
        flipped, config.vote, calibration=Temperature(config.calibration or 1.0, math.nan), threshold=config.conformal,
        window=state.window, curiosity=worth.curiosity.tolist(), coherence=worth.coherence.tolist(),
    )  # fmt: skip
    pens = np.array([chain_penalty(one, known, config.reward) for one in experience])
    return Heard(made, experience, worth, pens, decision)


def with_flips(group: Sequence[Rollout], share: float, rng: np.random.Generator) -> list[Rollout]:
    """Stress: some rollouts vote for another answer of the group (a wrong one, where the group has but one)."""
    answers = sorted({rolled.answer for rolled in group if rolled.answer})
    out = []
    for rolled in group:
        others = [a for a in answers if a != rolled.answer] or ["unsure"]
        if share and rolled.answer and rng.random() < share:
            trace = rolled.trace.model_copy(update={"answer": str(rng.choice(others))})
            rolled = rolled._replace(trace=trace)  # noqa: PLW2901
        out.append(rolled)
    return out


# --- 4 to 8: learning


def settle(
    config: TtrlConfig,
    home: Adaptation,
    known: Known,
    state: Standing,
    memory: Memory,
    keys: KeyMaker | None,
    mask: EvaluationMask | None,
    heard: Sequence[Heard],
    first: int,
) -> list[dict[str, Any]]:
    """Learn from a batch of queries and say what came of it, a row each."""
    lesson, values, baselines = lesson_of(config, state, memory, keys, heard)
    done = home.learn(lesson) if config.learn else None
    rows = []
    for k, one in enumerate(heard):
        entered, leak = remembered(config, state, memory, keys, mask, one)
        item, vote = one.made.item, one.decision.consensus
        learnt = bool(config.learn and vote.teaches and done is not None and not done.refused)
        rows.append({
            "query": first + k + 1, "item": item.id, "question": item.question,
            "answer": one.decision.answer, "answered": vote.accepted, "learnt": learnt,
            "score": score_of(one),
            "sampled": float(np.mean([each.score for each in one.experience])),
            "calls": float(np.mean([len(each.rolled.trace.steps) for each in one.experience])),
            "value": values[k], "baseline": baselines[k], "kl": done.kl if done else None,
            "drift": done.drift if done else None, "beta": done.beta if done else None,
            "entropy": done.entropy if done else None, "refused": done.refused if done else "",
            "memory": memory.watermark, "remembered": entered, "leak": leak,
            "labels": state.window.rows[-1] if state.window.rows else {}, "vote": record_of(one.decision),
        })  # fmt: skip
    return rows


def score_of(one: Heard) -> float | None:
    """How right the given answer is, where that is known: for the record, never for learning."""
    item, said = one.made.item, one.decision.answer
    return None if not item.answer else item.score(said) if said else 0.0


def lesson_of(
    config: TtrlConfig, state: Standing, memory: Memory, keys: KeyMaker | None, heard: Sequence[Heard]
) -> tuple[Lesson, list[float], list[float | None]]:
    """Returns, neighbourhood values, baselines and advantages of a batch."""
    raw, masks, ledgers = list[np.ndarray](), list[np.ndarray](), []
    values, baselines = list[float](), list[float | None]()
    for one in heard:
        decision, count = one.decision, len(one.experience)
        value = neighbourhood(config, memory, keys, one) if config.value_weighting else 1.0
        agrees = [
            ballot.answer is not None and ballot.answer == decision.consensus.answer for ballot in decision.ballots
        ]
        returns = rollout_return(
            agrees, decision.similarity, one.penalties, kappa=config.kappa, lambda_pen=config.lambda_pen
        )
        teaches = decision.consensus.teaches and np.isfinite(returns).all()
        raw.append(
            advantage(returns, baseline=state.baseline.value or 0.0, value=value) if teaches else np.zeros(count)
        )
        masks.append(np.full(count, teaches))
        if teaches:
            state.baseline = baseline_step(
                state.baseline, returns=returns, value=value, kind=config.baseline, rho=config.rho
            )
        ledgers += [each.ledger for each in one.experience]
        values.append(value)
        baselines.append(state.baseline.value)
    mask = np.concatenate(masks)
    advantages = normalise_advantages(np.concatenate(raw), mask)
    return Lesson(tuple(ledgers), advantages, mask), values, baselines


def neighbourhood(config: TtrlConfig, memory: Memory, keys: KeyMaker | None, one: Heard) -> float:
    """v̄ over the neighbours of a query; 0.5 where there are none."""
    if keys is None or not config.neighbours or not len(memory):
        return neighbourhood_value([])
    media = MediaSet(one.made.media)
    key = keys.of_rollouts([each.rolled.trace for each in one.experience], media)
    near = memory.search(key, config.neighbours)
    return neighbourhood_value([n.item.value for n in near if n.item.value is not None])


def remembered(
    config: TtrlConfig, state: Standing, memory: Memory, keys: KeyMaker | None, mask: EvaluationMask | None, one: Heard
) -> tuple[bool, str]:
    """An accepted exemplar enters the memory, after its answer was given; what is evaluation media does not."""
    star = one.decision.exemplar.rollout
    if keys is None or star is None or not one.decision.consensus.accepted:
        return False, ""
    cur, coh = float(one.worth.curiosity[star]), float(one.worth.coherence[star])
    value = float(trace_value(cur, coh, state.summaries))
    media = MediaSet(one.made.media)
    try:
        draft = remember(
            one.experience[star].rolled.trace, media, keys, mask=mask, id=one.made.item.id,
            worth=Remembered(value, cur, coh),
        )  # fmt: skip
        return memory.add([draft])[0].row is not None, ""
    except LeakageError as error:
        return False, str(error)


def open_memory(config: TtrlConfig, out: Path, keys: KeyMaker | None, mask: EvaluationMask | None) -> Memory:
    """The run's own memory: a copy of the one that is given, or an empty one."""
    folder = out / "memory"
    if folder.exists():
        return Memory.open(folder, mask=mask)
    if config.memory is not None:
        import shutil

        shutil.copytree(config.memory, folder, ignore=shutil.ignore_patterns(".lock"))
        return Memory.open(folder, mask=mask)
    text, visual = (keys.text.dimensions, keys.visual.embed([]).shape[1]) if keys else (1, 1)
    return Memory.create(
        folder, text_dimensions=text, visual_dimensions=visual, encoders=keys.fingerprint if keys else "none", mask=mask
    )


def base_rows(home: Adaptation, memory: Memory) -> int:
    """Where the memory stood before the first query; a killed first query may have left more."""
    path = home.folder / "memory_before.txt"
    if not path.exists():
        path.write_text(f"{memory.watermark}\n")
    return int(path.read_text())


def export(config: TtrlConfig, loaded: Loaded, known: Known, home: Adaptation, out: Path) -> None:
    """The adapted policy as a checkpoint that other verbs open."""
    from pixelis.policy.checkpoint import save_checkpoint
    from pixelis.rundir import provenance

    policy: Policy = copy.deepcopy(home.learner.policy)
    if config.lora is not None:
        policy.model = policy.model.merge_and_unload()
    facts = provenance(
        config=config.model_dump(mode="json"), seed=config.seed, queries=len(home.rows), updates=home.taken,
        weights=home.learner.digest(),
    )  # fmt: skip
    card = loaded.card.model_copy(update={"name": config.name, "training": {**facts, "before": loaded.card.training}})
    heads = known.heads
    kept = {"visual": heads.visual, "projector": heads.projector, "g_phi": heads.g_phi, "h_psi": heads.h_psi}
    save_checkpoint(out / "policy", policy, card, kept)


def go_back(out: Path, query: int) -> dict[str, Any]:
    """Take an adaptation back to a row, with its memory and its exported policy."""
    import yaml

    from pixelis.train.run import RESOLVED

    path = out / RESOLVED
    if not path.exists():
        raise ConfigError(f"{out} is no adaptation: it has no {RESOLVED}")
    config = TtrlConfig.model_validate(yaml.safe_load(path.read_text()))
    torch.set_num_threads(config.threads)
    with run_folder(config, out, Crew()):
        loaded = load_checkpoint(config.policy, device=config.device, dtype=getattr(torch, config.dtype))
        home = Adaptation(out, config, begin(config, loaded))
        row = home.revert(query)
        with closing(Memory.open(out / "memory")) as memory:
            memory.rollback(row["memory"] if query else base_rows(home, memory))
        export(config, loaded, known_of(loaded, config.policy), home, out)
    return row
