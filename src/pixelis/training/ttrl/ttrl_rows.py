"""The row of a query in the ledger: its answer, its scores, what the update did and what it cost."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pixelis.training.common.item_rollouts import score_answer
from pixelis.training.ttrl.ttrl_advantages import AdvantageResult, VotedQuery, query_kl
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_update import UpdateResult
from pixelis.voting.vote import label_tool_sequences, to_vote_record


def make_row(
    config: TtrlConfig,
    query: VotedQuery,
    number: int,
    skip_reason: str,
    result: AdvantageResult,
    position: int,
    update: UpdateResult | None,
    memory: dict[str, int],
) -> dict[str, Any]:
    """The row of the query at `position` of its batch, `number` of the stream from 1; `memory` are two of its keys."""
    item, ballots = query.rendered.item, query.vote_result.ballots
    refusal = update.refusal_reason if update else ""
    reason = skip_reason or refusal
    traces = [scored.rollout.trace for scored in query.rollouts]
    uses_labels = config.vote.reliability and not query.leak_reason
    return {
        "query": number, "item": item.id, "family": item.family, "question": item.question,
        "shift": f"{item.shift.name}:{item.shift.severity}" if item.shift else "",
        "answer": query.vote_result.answer, "answered": query.vote_result.consensus.accepted,
        "learnt": not reason, "why": reason, **score_row_fields(config, query, [trace.answer for trace in traces]),
        "calls": float(np.mean([len(trace.steps) for trace in traces])), "variety": variety(query),
        **result.row_fields[position], "neighbours": [[n.row, n.similarity] for n in query.neighbours],
        **update_fields(update), "kl_query": query_kl(update, result.query_indices, position), "refused": refusal,
        "leak": query.leak_reason, **memory,
        "labels": label_tool_sequences([(">".join(b.tools), b.answer) for b in ballots]) if uses_labels else {},
        "vote": to_vote_record(query.vote_result),
    }  # fmt: skip


def score_row_fields(config: TtrlConfig, query: VotedQuery, sampled: Sequence[str | None]) -> dict[str, float | None]:
    """Scores of the vote, a plain majority, the rollouts and the greedy answer; None without a known answer."""
    item = query.rendered.item
    if not item.answer:
        return dict.fromkeys(("score", "majority", "sampled", "greedy"))
    return {
        "score": score_answer(item, query.vote_result.answer),
        "majority": score_answer(item, original_spelling(query, query.vote_result.consensus.majority)),
        "sampled": float(np.mean([score_answer(item, answer) for answer in sampled])),
        "greedy": score_answer(item, query.greedy_answer) if config.greedy else None,
    }


def update_fields(update: UpdateResult | None) -> dict[str, float | None]:
    """The measurements of an update; None without one, or if a value is not finite."""
    values = dict.fromkeys(("kl", "drift", "beta", "entropy", "gap"), math.nan)
    if update is not None:
        stats = update.stats
        values |= {
            "kl": stats.kl, "drift": update.drift, "beta": update.beta, "entropy": stats.entropy,
            "gap": stats.logprob_mismatch,
        }  # fmt: skip
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def original_spelling(query: VotedQuery, answer: object) -> str | None:
    return next((b.spelling for b in query.vote_result.ballots if b.answer is not None and b.answer == answer), None)


def variety(query: VotedQuery) -> float:
    """Entropy of a group's tool sequences over log N: 0 if all are equal, 1 if all differ."""
    counts = np.array(list(Counter(ballot.tools for ballot in query.vote_result.ballots).values()), dtype=np.float64)
    p = counts / counts.sum()
    return max(0.0, float(-(p * np.log(p)).sum() / np.log(counts.sum()))) if counts.sum() > 1 else 0.0


class CpuClock:
    """CPU seconds of a batch: of this thread, which decodes, votes and learns, and of all threads, tools included."""

    def __init__(self) -> None:
        self._thread_s, self._process_s = time.thread_time(), time.process_time()
        self._rollouts_s = 0.0

    def end_rollouts(self) -> None:
        self._rollouts_s = time.thread_time() - self._thread_s

    def cost_per_query(self, queries: int) -> dict[str, float]:
        """Tools are apart, since the first to make a call pays for it; so are rollouts, all that a majority needs."""
        thread_s, process_s = time.thread_time() - self._thread_s, time.process_time() - self._process_s
        cost = {"cpu_s": thread_s, "rollout_cpu_s": self._rollouts_s, "tool_cpu_s": max(0.0, process_s - thread_s)}
        return {name: seconds / queries for name, seconds in cost.items()}
