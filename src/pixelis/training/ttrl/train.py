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

from pixelis.core.errors import ConfigError
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.equations.ttrl import standardise_summaries
from pixelis.media import MediaSet
from pixelis.memory.keys import KeyMaker
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.rewards.compute import Rewarder, chain_penalty, compute_rewards, gather_trajectories, load_rewarder
from pixelis.rewards.features import reference_outputs
from pixelis.rollout.answer_reading import final_answer
from pixelis.rollout.episode import Rollout
from pixelis.tools.toolbox import Toolbox, decisive_thresholds
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.item_rollouts import (
    ItemFactory,
    hide_answers,
    is_correct,
    rollout_items,
    score_answer,
    stream_item_rollouts,
)
from pixelis.training.common.precision import weights_dtype
from pixelis.training.common.run_folder import run_folder
from pixelis.training.dataset.scored_rollouts import score_rollout
from pixelis.training.ttrl.canary import Canary, describe_regression
from pixelis.training.ttrl.journal import AdaptationJournal
from pixelis.training.ttrl.stream_memory import StreamMemory
from pixelis.training.ttrl.ttrl_advantages import StreamState, VotedQuery, compute_advantages, get_skip_reason, query_kl
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_export import export_ttrl, start_kl
from pixelis.training.ttrl.ttrl_update import PolicyState, UpdateResult, build_policy_state
from pixelis.voting.fit_calibration import CALIBRATION_FILE, VoteCalibration, load_or_fit_calibration
from pixelis.voting.vote import label_tool_sequences, to_vote_record, vote
from pixelis.world import RenderedItem

Show = Callable[[dict[str, Any], int], None]
"""Called with a row and how many there are."""
OnQuestion = Callable[[str, int], None]
"""Called while questions are asked that are no queries of the stream: which, and how many have been."""


class TtrlContext(NamedTuple):
    """What a stream is answered with, besides the policy."""

    config: TtrlConfig
    toolbox: Toolbox
    rewarder: Rewarder
    stream_memory: StreamMemory
    calibration: VoteCalibration
    on_question: Callable[[int], None] = lambda done: None
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
    stream: Iterable[RenderedItem],
    out: Path,
    *,
    keys: KeyMaker | None = None,
    mask: EvaluationMask | None = None,
    canaries: ItemFactory = tuple,
    dev_cal: ItemFactory = tuple,
    show: Show = lambda row, total: None,
    on_question: OnQuestion = lambda which, done: None,
) -> TtrlReport:
    """Answer a stream and learn from it without labels, into a folder, or go on where that was stopped."""
    torch.set_num_threads(config.threads)
    started_at = time.monotonic()
    with run_folder(config, out, DistributedContext()), Toolbox(config.toolbox_config()) as toolbox:
        checkpoint = load_checkpoint(config.policy, device=config.device, dtype=weights_dtype(config))
        rewarder = load_rewarder(checkpoint, config.policy)
        rewarder.heads.h_psi.requires_grad_(False)
        with closing(StreamMemory(config, out, keys, mask, rewarder.summaries)) as stream_memory:
            sample_groups = partial(
                stream_item_rollouts, config, checkpoint.policy.eval(), toolbox, dev_cal, n=config.group_size,
                seed=query_seed(config, 0), temperature=1.0, on_question=partial(on_question, "calibration questions"),
            )  # fmt: skip
            calibration = load_or_fit_calibration(
                out / CALIBRATION_FILE, config.calibration, config.vote, sample_groups,
                thresholds=decisive_thresholds(toolbox.tools), is_correct=is_correct,
            )  # fmt: skip
            journal = AdaptationJournal(out, config, build_policy_state(config, checkpoint))
            resumed = bool(journal.rows)
            stream_memory.rollback(journal.rows[-1]["memory"] if journal.rows else stream_memory.start_watermark)
            context = TtrlContext(
                config, toolbox, rewarder, stream_memory, calibration, partial(on_question, "canary questions")
            )
            canary, state = Canary(out, config.canary), StreamState(config, journal.rows)
            if not canary.regression:
                canary.drop_checks_after(len(journal.rows))
            run_canary(context, journal, canary, canaries)
            items = iter(stream)
            require_same_stream(journal.rows, items, out)
            while not canary.regression and (batch := list(islice(items, config.batch))):
                first_index, cpu_start = len(journal.rows), read_cpu_time()
                groups = sample_rollouts(context, journal.policy_state, batch, first_index)
                cpu_after_rollouts = read_cpu_time()
                voted_queries = vote_on_batch(context, journal.policy_state, batch, groups, state, first_index)
                rows = learn_and_record(context, journal, state, voted_queries, first_index)
                cost = cost_per_query(cpu_start, cpu_after_rollouts, len(batch))
                journal.acknowledge(rows := [row | cost for row in rows])
                for row in rows:
                    show(row, len(journal.rows))
                run_canary(context, journal, canary, canaries)
        export_ttrl(config, checkpoint, rewarder, journal, out / "policy")
    rows = journal.rows
    answer_scores = [row["score"] for row in rows if row["answered"] and row["score"] is not None]
    return TtrlReport(
        policy=str(out / "policy"), queries=len(rows), accepted=sum(row["learnt"] for row in rows),
        updates=journal.update_count, refused=len({row["updates"] for row in rows if row["refused"]}),
        answered=100.0 * float(np.mean([row["answered"] for row in rows])) if rows else 0.0,
        accuracy=100.0 * float(np.mean(answer_scores)) if answer_scores else None,
        drift=next((row["drift"] for row in reversed(rows) if row["drift"] is not None), 0.0),
        start_kl=start_kl(checkpoint.card), bytes=journal.total_bytes(),
        seconds=time.monotonic() - started_at, resumed=resumed,
        alike=sum(row["learnt"] and row.get("alike", False) for row in rows), dropped=journal.dropped_rows,
        stopped=describe_regression(canary.regression) if canary.regression else "",
    )  # fmt: skip


class CpuTime(NamedTuple):
    """CPU seconds so far."""

    thread_s: float
    """Of the thread that decodes, votes and learns."""
    process_s: float
    """Of all threads: tools that nobody had asked before among them."""


def read_cpu_time() -> CpuTime:
    return CpuTime(time.thread_time(), time.process_time())


def cost_per_query(start: CpuTime, after_rollouts: CpuTime, queries: int) -> dict[str, float]:
    """What each query of a batch has cost, by row: tools apart, since who asks first pays for them; and its rollouts
    alone, which are all that a plain majority needs."""
    thread_s, process_s = (end_s - start_s for end_s, start_s in zip(read_cpu_time(), start, strict=True))
    cost = {
        "cpu_s": thread_s,
        "rollout_cpu_s": after_rollouts.thread_s - start.thread_s,
        "tool_cpu_s": max(0.0, process_s - thread_s),
    }
    return {name: seconds / queries for name, seconds in cost.items()}


def require_same_stream(rows: Sequence[dict[str, Any]], items: Iterator[RenderedItem], out: Path) -> None:
    """Pass over the queries that rows have answered; ConfigError where they are others."""
    for row, rendered_item in zip(rows, items, strict=False):
        if rendered_item.item.id != row["item"]:
            raise ConfigError(
                f"{out} answered another stream: its query {row['query']} was {row['item']}, here it is "
                f"{rendered_item.item.id}; give the same stream, or another folder"
            )


def run_canary(context: TtrlContext, journal: AdaptationJournal, canary: Canary, questions: ItemFactory) -> None:
    """Ask the canary questions where it is time; after a significant fall go back to the last good state."""
    journal.last_good_row = canary.last_good_row
    if canary.regression is None and canary.is_due(len(journal.rows)):
        config, policy = context.config, journal.policy_state.policy
        answered_items = stream_item_rollouts(
            config,
            policy,
            context.toolbox,
            questions,
            n=1,
            seed=config.seed,
            temperature=0.0,
            on_question=context.on_question,
        )
        canary.record_check(
            len(journal.rows), [score_answer(item, rollout.answer) for item, (rollout,) in answered_items]
        )
        journal.last_good_row = canary.last_good_row
    regression = canary.regression
    if (
        regression is not None and len(journal.rows) > regression["good"]
    ):  # also where a process was killed before it had gone back
        row = journal.revert(regression["good"])
        context.stream_memory.rollback(row["memory"] if regression["good"] else context.stream_memory.start_watermark)


# --- 1 to 4: rollouts and the vote


def sample_rollouts(
    context: TtrlContext, policy_state: PolicyState, batch: Sequence[RenderedItem], first: int
) -> list[list[Rollout]]:
    """Roll the queries of a batch out together; a greedy rollout comes last where one is wanted."""
    config, seed = context.config, query_seed(context.config, first)
    return rollout_items(
        config, policy_state.policy, context.toolbox, batch,
        n=config.group_size, seed=seed, temperature=1.0, greedy=config.greedy,
    )  # fmt: skip


def vote_on_batch(
    context: TtrlContext,
    policy_state: PolicyState,
    batch: Sequence[RenderedItem],
    groups: Sequence[Sequence[Rollout]],
    state: StreamState,
    first: int,
) -> list[VotedQuery]:
    """Put each query of a batch to the vote in its turn."""
    config, n = context.config, context.config.group_size
    return [
        vote_on_query(
            context,
            policy_state,
            rendered_item,
            group[:n],
            group[n].answer if config.greedy else None,
            state,
            first + k,
        )
        for k, (rendered_item, group) in enumerate(zip(batch, groups, strict=True))
    ]


def query_seed(config: TtrlConfig, number: int) -> int:
    return config.seed * 1_000_003 + number


def vote_on_query(
    context: TtrlContext,
    policy_state: PolicyState,
    rendered_item: RenderedItem,
    group: Sequence[Rollout],
    greedy: str | None,
    state: StreamState,
    number: int,
) -> VotedQuery:
    """Rewards, neighbours and vote of the rollouts of one query."""
    config, rewarder, stream_memory = context.config, context.rewarder, context.stream_memory
    media, seed = MediaSet(rendered_item.media), query_seed(config, number)
    blind_item = hide_answers(rendered_item.item)
    rollouts = [score_rollout(rollout, blind_item, media, policy_state.policy.tokenizer) for rollout in group]
    trajectories = gather_trajectories(
        rewarder, reference_outputs(config, policy_state.policy, policy_state.start_policy, rollouts), rollouts,
        [media] * len(rollouts), np.arange(len(rollouts)), config.reward, DistributedContext(),
    )  # fmt: skip
    rewards = compute_rewards(trajectories, rewarder, config.reward, group_size=config.group_size, seed=seed)
    noise = np.random.default_rng([config.seed, number, 7])
    answers = flip_answers([final_answer(rollout) for rollout in group], config.stress.flip_share, noise)
    neighbours = stream_memory.nearest([rollout.trace for rollout in group], rendered_item, majority_answer(answers))
    calibration, delta = context.calibration, context.calibration.delta
    curiosity, coherence = standardise_summaries(rewards.curiosity, rewards.coherence, stream_memory.summaries)
    leak_reason = stream_memory.leak_reason(rendered_item)
    neighbour_votes = [(n.item.answer, max(n.similarity, 0.0) / len(neighbours)) for n in neighbours]
    vote_result = vote(
        group, config.vote if delta is None else config.vote.model_copy(update={"delta": delta}),
        thresholds=decisive_thresholds(context.toolbox.tools), calibration=calibration.calibrator,
        threshold=calibration.threshold, window=None if leak_reason else state.window,
        external_votes=neighbour_votes if config.neighbour_votes else (),
        curiosity=curiosity.tolist(), coherence=coherence.tolist(),
        answer_overrides=answers if config.stress.flip_share else None,
    )  # fmt: skip
    penalties = np.array([chain_penalty(scored_rollout, rewarder, config.reward) for scored_rollout in rollouts])
    return VotedQuery(rendered_item, rollouts, rewards, penalties, neighbours, vote_result, greedy, leak_reason)


def majority_answer(answers: Sequence[str | None]) -> str | None:
    counts = Counter(answer.casefold() for answer in answers if answer)
    return min(counts, key=lambda a: (-counts[a], a)) if counts else None


def flip_answers(answers: Sequence[str | None], share: float, rng: np.random.Generator) -> list[str | None]:
    """Stress: some are heard to say another answer of the group (a wrong one, where the group has but one)."""
    spellings = {answer.casefold(): answer for answer in sorted(answer for answer in answers if answer)}
    out = list(answers)
    for k, answer in enumerate(answers):
        if share and answer and rng.random() < share:
            out[k] = str(
                rng.choice([other for key, other in spellings.items() if key != answer.casefold()] or ["unsure"])
            )
    return out


# --- 5 to 8: learning


def learn_and_record(
    context: TtrlContext,
    journal: AdaptationJournal,
    state: StreamState,
    voted_queries: Sequence[VotedQuery],
    first: int,
) -> list[dict[str, Any]]:
    """Learn from a batch of queries and say what came of it, a row each."""
    config, stream_memory = context.config, context.stream_memory
    reasons = [get_skip_reason(config, query) for query in voted_queries]
    advantage_result = compute_advantages(config, stream_memory, state, voted_queries, reasons)
    update = (
        journal.apply(advantage_result.update_batch)
        if config.learn and advantage_result.update_batch is not None
        else None
    )
    rows = []
    for k, query in enumerate(voted_queries):
        item, vote, exemplar_index = (
            query.rendered_item.item,
            query.vote_result.consensus,
            query.vote_result.exemplar.rollout,
        )
        is_remembered = False
        if vote.accepted and exemplar_index is not None and not query.leak_reason:
            trace = query.rollouts[exemplar_index].rollout.trace
            is_remembered = stream_memory.add_exemplar(
                trace,
                query.rendered_item,
                float(query.rewards.curiosity[exemplar_index]),
                float(query.rewards.coherence[exemplar_index]),
            )
        reason = reasons[k] or (update.refusal_reason if update else "")
        traces = [scored_rollout.rollout.trace for scored_rollout in query.rollouts]
        rows.append({
            "query": first + k + 1, "item": item.id, "family": item.family, "question": item.question,
            "shift": f"{item.shift.name}:{item.shift.severity}" if item.shift else "",
            "answer": query.vote_result.answer, "answered": vote.accepted, "learnt": not reason, "why": reason,
            **score_row_fields(config, query, [trace.answer for trace in traces]),
            "calls": float(np.mean([len(trace.steps) for trace in traces])), "variety": variety(query),
            **advantage_result.row_fields[k], "neighbours": [[n.row, n.similarity] for n in query.neighbours],
            **update_fields(update), "kl_query": query_kl(update, advantage_result.query_indices, k),
            "refused": update.refusal_reason if update else "",
            "leak": query.leak_reason,
            "memory": stream_memory.memory.watermark, "remembered": is_remembered,
            "labels": label_tool_sequences([(">".join(b.tools), b.answer) for b in query.vote_result.ballots])
            if config.vote.reliability and not query.leak_reason else {},
            "vote": to_vote_record(query.vote_result),
        })  # fmt: skip
    return rows


def score_row_fields(config: TtrlConfig, query: VotedQuery, sampled: Sequence[str | None]) -> dict[str, float | None]:
    """How right the vote, a plain majority, the rollouts and the greedy answer are; None where nobody knows."""
    item = query.rendered_item.item
    if not item.answer:
        return dict.fromkeys(("score", "majority", "sampled", "greedy"))
    return {
        "score": score_answer(item, query.vote_result.answer),
        "majority": score_answer(item, original_spelling(query, query.vote_result.consensus.majority)),
        "sampled": float(np.mean([score_answer(item, answer) for answer in sampled])),
        "greedy": score_answer(item, query.greedy_answer) if config.greedy else None,
    }


def update_fields(update: UpdateResult | None) -> dict[str, float | None]:
    """What an update did, in numbers; None where there was none, or where the number is none."""
    values = dict.fromkeys(("kl", "drift", "beta", "entropy", "gap"), math.nan)
    if update is not None:
        stats = update.stats
        values |= {
            "kl": stats.kl, "drift": update.drift, "beta": update.beta, "entropy": stats.entropy,
            "gap": stats.logprob_mismatch,
        }  # fmt: skip
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def original_spelling(query: VotedQuery, answer: object) -> str | None:
    return next((b.spelt for b in query.vote_result.ballots if b.answer is not None and b.answer == answer), None)


def variety(query: VotedQuery) -> float:
    """Entropy of the tool sequences of a group over log N: 0 where all are one, 1 where all differ."""
    counts = np.array(list(Counter(ballot.tools for ballot in query.vote_result.ballots).values()), dtype=np.float64)
    p = counts / counts.sum()
    return max(0.0, float(-(p * np.log(p)).sum() / np.log(counts.sum()))) if counts.sum() > 1 else 0.0
