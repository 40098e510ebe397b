"""Phase 3: Pixel TTRL, beside the paper's pseudo-code (supp:ttrl_loss_clean).

For each query of a stream, in order:
  1. sample N rollouts                                              `roll_out`
  2. take entropies, VisFid, confidences; retrieve the neighbourhood with a key of these rollouts   `hear`
  3. calibrate, weigh, vote; abstain where the margin or the conformal set says so   `scoring.consensus.decide`
  4. give the answer: the row's answer is what the policy said before it learnt from this query
  5. returns against the exemplar, v̄, baseline, advantages          `teaching.lesson_of`
  6. one step with KL to π_EMA under a PID; a hard guard refuses a step that drifts too far from the start
  7. π_EMA, baseline and controller move; an accepted exemplar enters the memory
  8. the row is acknowledged                                        `Adaptation`

Where every query of a batch abstained, only the KL and EMA part of the step is left, without the moments of earlier
steps. Answers and references, where items have them, are written into rows for scoring and are hidden from everything
that learns (`blind`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pixelis.equations.ttrl import standardised
from pixelis.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.retrieval.keys import KeyMaker
from pixelis.retrieval.mask import EvaluationMask
from pixelis.rollout.answering import spoken
from pixelis.rollout.episode import Rollout
from pixelis.scoring.consensus import decide, labelled, record_of
from pixelis.tools.toolbox import Toolbox, ToolboxConfig, build_tools
from pixelis.train.adaptation import Adaptation
from pixelis.train.calibrating import FILE as CALIBRATION
from pixelis.train.calibrating import Calibration, calibrate
from pixelis.train.canary import Canary, told
from pixelis.train.crew import Crew
from pixelis.train.experience import lived, parts_of, read_anchor
from pixelis.train.precision import computed_in, computing, held_in
from pixelis.train.questions import Questions, ask, ask_each, blind, score_of
from pixelis.train.recollection import Recollection
from pixelis.train.run import run_folder
from pixelis.train.teaching import Heard, Standing, kl_of, lesson_of, why_not
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_export import export, start_kl
from pixelis.train.ttrl_update import Learner, Updated, begin
from pixelis.train.worth import Known, chain_penalty, chains_of, known_of, worth_of
from pixelis.world import Rendered

Show = Callable[[dict[str, Any], int], None]
"""Called with a row and how many there are."""
Asking = Callable[[str, int], None]
"""Called while questions are asked that are no queries of the stream: which, and how many have been."""


class Around(NamedTuple):
    """What a stream is answered with, besides the policy."""

    config: TtrlConfig
    toolbox: Toolbox
    known: Known
    recollection: Recollection
    calibration: Calibration
    asking: Callable[[int], None] = lambda done: None
    """Told how many canary questions have been asked."""


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
    """Percent of the given answers that are right."""
    drift: float
    """KL to the policy at the start."""
    start_kl: float | None
    """KL of that one to π_SFT: 0 where it is π_SFT itself, what phase 2 measured last where it comes from there."""
    bytes: int
    seconds: float
    resumed: bool
    alike: int = 0
    """Of the accepted ones: those whose rollouts did equally well, so that there was nothing to tell apart."""
    dropped: int = 0
    """Rows that a killed process had begun to write and never acknowledged; their queries were asked again."""
    stopped: str = ""
    """Why the run stopped before the end of the stream."""


def adapt(
    config: TtrlConfig,
    stream: Iterable[Rendered],
    out: Path,
    *,
    keys: KeyMaker | None = None,
    mask: EvaluationMask | None = None,
    canaries: Questions = tuple,
    dev_cal: Questions = tuple,
    show: Show = lambda row, total: None,
    asking: Asking = lambda which, done: None,
) -> TtrlReport:
    """Answer a stream and learn from it without labels, into a folder, or go on where that was stopped."""
    torch.set_num_threads(config.threads)
    began = time.monotonic()
    with run_folder(config, out, Crew()), Toolbox(tools_of(config)) as toolbox:
        loaded = load_checkpoint(config.policy, device=config.device, dtype=held_in(config))
        known = known_of(loaded, config.policy)
        known.heads.h_psi.requires_grad_(False)
        with closing(Recollection(config, out, keys, mask, known.summaries)) as recollection:
            told_of = partial(asking, "calibration questions")
            calibration = calibrate(config, loaded.policy.eval(), toolbox, dev_cal, out / CALIBRATION, told_of)
            home = Adaptation(out, config, begin(config, loaded))
            resumed = bool(home.rows)
            recollection.rollback(home.rows[-1]["memory"] if home.rows else recollection.start)
            around = Around(config, toolbox, known, recollection, calibration, partial(asking, "canary questions"))
            canary, state = Canary(out, config.canary), Standing(config, home.rows)
            if not canary.fell:
                canary.forget_after(len(home.rows))
            watch(around, home, canary, canaries)
            items = iter(stream)
            require_same(home.rows, items, out)
            while not canary.fell and (batch := list(islice(items, config.batch))):
                first, began_at = len(home.rows), spent()
                groups = roll_out(around, home.learner, batch, first)
                rolled_at = spent()
                heard = hear(around, home.learner, batch, groups, state, first)
                rows = settle(around, home, state, heard, first)
                cost = cost_of(began_at, rolled_at, len(batch))
                home.acknowledge(rows := [row | cost for row in rows])
                for row in rows:
                    show(row, len(home.rows))
                watch(around, home, canary, canaries)
        export(config, loaded, known, home, out / "policy")
    rows = home.rows
    given = [row["score"] for row in rows if row["answered"] and row["score"] is not None]
    return TtrlReport(
        policy=str(out / "policy"), queries=len(rows), accepted=sum(row["learnt"] for row in rows),
        updates=home.taken, refused=len({row["updates"] for row in rows if row["refused"]}),
        answered=100.0 * float(np.mean([row["answered"] for row in rows])) if rows else 0.0,
        accuracy=100.0 * float(np.mean(given)) if given else None,
        drift=next((row["drift"] for row in reversed(rows) if row["drift"] is not None), 0.0),
        start_kl=start_kl(loaded.card), bytes=home.size(), seconds=time.monotonic() - began, resumed=resumed,
        alike=sum(row["learnt"] and row.get("alike", False) for row in rows), dropped=home.dropped,
        stopped=told(canary.fell) if canary.fell else "",
    )  # fmt: skip


class Spent(NamedTuple):
    """CPU seconds so far."""

    own: float
    """Of the thread that decodes, votes and learns."""
    every: float
    """Of all threads: tools that nobody had asked before among them."""


def spent() -> Spent:
    return Spent(time.thread_time(), time.process_time())


def cost_of(before: Spent, rolled: Spent, queries: int) -> dict[str, float]:
    """What each query of a batch has cost, by row: tools apart, since who asks first pays for them; and its rollouts
    alone, which are all that a plain majority needs."""
    own, every = (now - then for now, then in zip(spent(), before, strict=True))
    cost = {"cpu_s": own, "rollout_cpu_s": rolled.own - before.own, "tool_cpu_s": max(0.0, every - own)}
    return {name: seconds / queries for name, seconds in cost.items()}


def tools_of(config: TtrlConfig) -> ToolboxConfig:
    own = ToolboxConfig(seg="classical", isolate=False, workers=config.workers, cache_path=config.cache_path)
    return own if config.tools else own.model_copy(update={"disabled": tuple(build_tools(own))})


def require_same(rows: Sequence[dict[str, Any]], items: Iterator[Rendered], out: Path) -> None:
    """Pass over the queries that rows have answered; ConfigError where they are others."""
    for row, made in zip(rows, items, strict=False):
        if made.item.id != row["item"]:
            raise ConfigError(
                f"{out} answered another stream: its query {row['query']} was {row['item']}, here it is "
                f"{made.item.id}; give the same stream, or another folder"
            )


def watch(around: Around, home: Adaptation, canary: Canary, questions: Questions) -> None:
    """Ask the canary questions where it is time; after a significant fall go back to the last good state."""
    home.good = canary.good
    if canary.fell is None and canary.due(len(home.rows)):
        config, policy = around.config, home.learner.policy
        asked = ask_each(
            config, policy, around.toolbox, questions, n=1, seed=config.seed, temperature=0.0, asking=around.asking
        )
        canary.check(len(home.rows), [score_of(item, rolled.answer) for item, (rolled,) in asked])
        home.good = canary.good
    fall = canary.fell
    if fall is not None and len(home.rows) > fall["good"]:  # also where a process was killed before it had gone back
        row = home.revert(fall["good"])
        around.recollection.rollback(row["memory"] if fall["good"] else around.recollection.start)


# --- 1 to 4: rollouts and the vote


def roll_out(around: Around, learner: Learner, batch: Sequence[Rendered], first: int) -> list[list[Rollout]]:
    """Roll the queries of a batch out together; a greedy rollout comes last where one is wanted."""
    config, seed = around.config, seed_of(around.config, first)
    return ask(
        config, learner.policy, around.toolbox, batch,
        n=config.samples, seed=seed, temperature=1.0, greedy=config.greedy,
    )  # fmt: skip


def hear(
    around: Around,
    learner: Learner,
    batch: Sequence[Rendered],
    groups: Sequence[Sequence[Rollout]],
    state: Standing,
    first: int,
) -> list[Heard]:
    """Put each query of a batch to the vote in its turn."""
    config, n = around.config, around.config.samples
    return [
        put_to_vote(around, learner, made, group[:n], group[n].answer if config.greedy else None, state, first + k)
        for k, (made, group) in enumerate(zip(batch, groups, strict=True))
    ]


def seed_of(config: TtrlConfig, number: int) -> int:
    return config.seed * 1_000_003 + number


def put_to_vote(
    around: Around,
    learner: Learner,
    made: Rendered,
    group: Sequence[Rollout],
    greedy: str | None,
    state: Standing,
    number: int,
) -> Heard:
    """What the rollouts of one query are worth, who is near, and what they agree on."""
    config, known, recollection = around.config, around.known, around.recollection
    media, seed = MediaSet(made.media), seed_of(config, number)
    hidden = blind(made.item)
    experience = [lived(rolled, hidden, media, learner.policy.tokens) for rolled in group]
    ledgers = [one.ledger for one in experience]
    with computing(learner.policy.device, computed_in(config)):
        parts = [
            (part, read_anchor(learner.start, part, experience))
            for part in parts_of(ledgers, learner.policy, config.batch_tokens)
        ]
    numbers = np.arange(len(experience))
    chains = chains_of(known, parts, experience, [media] * len(experience), numbers, config.reward, Crew())
    worth = worth_of(chains, known, config.reward, samples=config.samples, seed=seed)
    noise = np.random.default_rng([config.seed, number, 7])
    heard = flipped([spoken(rolled) for rolled in group], config.stress.flips, noise)
    near = recollection.near([rolled.trace for rolled in group], made, majority_of(heard))
    own = around.calibration
    curiosity, coherence = standardised(worth.curiosity, worth.coherence, recollection.summaries)
    leak = recollection.leak(made)
    decision = decide(
        group, config.vote if own.delta is None else config.vote.model_copy(update={"delta": own.delta}),
        calibration=own.calibrator, threshold=own.threshold, window=None if leak else state.window,
        outside=[(n.item.answer, max(n.similarity, 0.0) / len(near)) for n in near] if config.neighbour_votes else (),
        curiosity=curiosity.tolist(), coherence=coherence.tolist(), heard=heard if config.stress.flips else None,
    )  # fmt: skip
    pens = np.array([chain_penalty(one, known, config.reward) for one in experience])
    return Heard(made, experience, worth, pens, near, decision, greedy, leak)


def majority_of(answers: Sequence[str | None]) -> str | None:
    given = Counter(answer.casefold() for answer in answers if answer)
    return min(given, key=lambda a: (-given[a], a)) if given else None


def flipped(answers: Sequence[str | None], share: float, rng: np.random.Generator) -> list[str | None]:
    """Stress: some are heard to say another answer of the group (a wrong one, where the group has but one)."""
    known = {answer.casefold(): answer for answer in sorted(answer for answer in answers if answer)}
    out = list(answers)
    for k, answer in enumerate(answers):
        if share and answer and rng.random() < share:
            out[k] = str(rng.choice([other for key, other in known.items() if key != answer.casefold()] or ["unsure"]))
    return out


# --- 5 to 8: learning


def settle(
    around: Around, home: Adaptation, state: Standing, heard: Sequence[Heard], first: int
) -> list[dict[str, Any]]:
    """Learn from a batch of queries and say what came of it, a row each."""
    config, recollection = around.config, around.recollection
    reasons = [why_not(config, one) for one in heard]
    taught = lesson_of(config, recollection, state, heard, reasons)
    done = home.learn(taught.lesson) if config.learn and taught.lesson is not None else None
    rows = []
    for k, one in enumerate(heard):
        item, vote, star = one.made.item, one.decision.consensus, one.decision.exemplar.rollout
        entered = False
        if vote.accepted and star is not None and not one.leak:
            trace = one.experience[star].rolled.trace
            entered = recollection.keep(
                trace, one.made, float(one.worth.curiosity[star]), float(one.worth.coherence[star])
            )
        why = reasons[k] or (done.refused if done else "")
        traces = [each.rolled.trace for each in one.experience]
        rows.append({
            "query": first + k + 1, "item": item.id, "family": item.family, "question": item.question,
            "shift": f"{item.shift.name}:{item.shift.severity}" if item.shift else "",
            "answer": one.decision.answer, "answered": vote.accepted, "learnt": not why, "why": why,
            **scores_of(config, one, [trace.answer for trace in traces]),
            "calls": float(np.mean([len(trace.steps) for trace in traces])), "variety": variety(one),
            **taught.told[k], "neighbours": [[n.row, n.similarity] for n in one.near],
            **measured(done), "kl_query": kl_of(done, taught.owners, k), "refused": done.refused if done else "",
            "leak": one.leak,
            "memory": recollection.memory.watermark, "remembered": entered,
            "labels": labelled([(">".join(b.tools), b.answer) for b in one.decision.ballots])
            if config.vote.reliability and not one.leak else {},
            "vote": record_of(one.decision),
        })  # fmt: skip
    return rows


def scores_of(config: TtrlConfig, one: Heard, sampled: Sequence[str | None]) -> dict[str, float | None]:
    """How right the vote, a plain majority, the rollouts and the greedy answer are; None where nobody knows."""
    item = one.made.item
    if not item.answer:
        return dict.fromkeys(("score", "majority", "sampled", "greedy"))
    return {
        "score": score_of(item, one.decision.answer),
        "majority": score_of(item, spelt(one, one.decision.consensus.majority)),
        "sampled": float(np.mean([score_of(item, answer) for answer in sampled])),
        "greedy": score_of(item, one.greedy) if config.greedy else None,
    }


def measured(done: Updated | None) -> dict[str, float | None]:
    """What an update did, in numbers; None where there was none, or where the number is none."""
    names = ("kl", "drift", "beta", "entropy", "gap")
    return {name: x if done and math.isfinite(x := getattr(done, name)) else None for name in names}


def spelt(one: Heard, answer: object) -> str | None:
    return next((b.spelt for b in one.decision.ballots if b.answer is not None and b.answer == answer), None)


def variety(one: Heard) -> float:
    """Entropy of the tool sequences of a group over log N: 0 where all are one, 1 where all differ."""
    counts = np.array(list(Counter(ballot.tools for ballot in one.decision.ballots).values()), dtype=np.float64)
    p = counts / counts.sum()
    return max(0.0, float(-(p * np.log(p)).sum() / np.log(counts.sum()))) if counts.sum() > 1 else 0.0
