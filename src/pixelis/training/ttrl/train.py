"""Phase 3: Pixel TTRL, beside the paper's pseudo-code (supp:ttrl_loss_clean).

For each batch of queries of a stream, in order:
  1. sample N rollouts of each query                                             `rollout_items`
  2. compute rewards, entropies, VisFid; retrieve neighbours with a key of these rollouts   `vote_on_query`
  3. calibrate, weight, vote; abstain if the margin or the conformal set says so            `voting.vote.vote`
  4. the row's answer is the vote's, from the policy before it is trained on this query
  5. returns against the exemplar, v̄, baseline, advantages                       `compute_advantages`
  6. one step with KL to π_EMA under a PID; a drift limit refuses steps too far from the start   `apply_update`
  7. π_EMA, baseline and controller are updated; accepted exemplars enter the memory
  8. the rows are acknowledged                                                   `AdaptationJournal`

If every query of a batch abstained, only the KL and EMA part of the step is left, without the moments of earlier
steps. Known answers and references are written into rows for scoring, and hidden from everything that learns
(`hide_answers`).
"""

from __future__ import annotations

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
from pixelis.training.common.run_folder import MetricsLog, run_folder
from pixelis.training.dataset.scored_rollouts import score_rollout
from pixelis.training.ttrl.canary import Canary, describe_regression
from pixelis.training.ttrl.journal import AdaptationJournal
from pixelis.training.ttrl.stream_memory import StreamMemory
from pixelis.training.ttrl.ttrl_advantages import StreamState, VotedQuery, compute_advantages, get_skip_reason
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_export import export_ttrl, start_kl
from pixelis.training.ttrl.ttrl_rows import CpuClock, make_row
from pixelis.training.ttrl.ttrl_update import PolicyState, build_policy_state
from pixelis.voting.fit_calibration import CALIBRATION_FILE, VoteCalibration, load_or_fit_calibration
from pixelis.voting.vote import vote
from pixelis.world import RenderedItem

Show = Callable[[dict[str, Any], int], None]
"""Called with a row and the number of rows."""
OnQuestion = Callable[[str, int], None]
"""Called for questions outside the stream, with their kind and how many have been asked."""


class TtrlContext(NamedTuple):
    """What queries are answered with, besides the policy."""

    config: TtrlConfig
    toolbox: Toolbox
    rewarder: Rewarder
    stream_memory: StreamMemory
    calibration: VoteCalibration
    on_question: Callable[[int], None] = lambda done: None
    """Called with the number of canary questions asked."""


class TtrlReport(NamedTuple):
    """The result of an adaptation."""

    policy: str
    queries: int
    accepted: int
    """Queries that were trained on."""
    updates: int
    refused: int
    answered: float
    """Percent of queries that were not abstained on."""
    accuracy: float | None
    """Percent of the given answers that are correct."""
    drift: float
    """KL to the start policy."""
    start_kl: float | None
    """KL of the start policy to π_SFT: 0 for π_SFT itself, the last measurement of phase 2 for its policies."""
    bytes: int
    seconds: float
    resumed: bool
    alike: int = 0
    """Accepted queries whose rollouts all had the same return, hence no advantages."""
    dropped: int = 0
    """Rows that a killed process did not acknowledge; their queries were asked again."""
    stopped: str = ""
    """Why the run stopped early."""


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
    """Answer a stream of unlabelled queries and adapt on it, into a run folder, or resume the run in it."""
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
            on_canary = partial(on_question, "canary questions")
            context = TtrlContext(config, toolbox, rewarder, stream_memory, calibration, on_canary)
            canary, state = Canary(out, config.canary), StreamState(config, journal.rows)
            if not canary.regression:
                canary.drop_checks_after(len(journal.rows))
            run_canary(context, journal, canary, canaries)
            items = iter(stream)
            require_same_stream(journal.rows, items, out)
            log = MetricsLog(out, len(journal.rows), DistributedContext(), config)
            while not canary.regression and (batch := list(islice(items, config.batch))):
                clock, first = CpuClock(), len(journal.rows)
                groups = rollout_items(
                    config, journal.policy_state.policy, toolbox, batch, n=config.group_size,
                    seed=query_seed(config, first), temperature=1.0, greedy=config.greedy,
                )  # fmt: skip
                clock.end_rollouts()
                queries = list[VotedQuery]()
                for number, (item, group) in enumerate(zip(batch, groups, strict=True), start=first):
                    queries.append(vote_on_query(context, journal.policy_state, item, group, state, number))
                reasons = [get_skip_reason(config, query) for query in queries]
                result = compute_advantages(config, stream_memory, state, queries, reasons)
                update_batch = result.update_batch if config.learn else None
                update = journal.apply(update_batch) if update_batch is not None else None
                rows = []
                for k, query in enumerate(queries):
                    remembered = remember_exemplar(stream_memory, query)
                    memory = {"memory": stream_memory.memory.watermark, "remembered": remembered}
                    rows.append(make_row(config, query, first + k + 1, reasons[k], result, k, update, memory))
                cost = clock.cost_per_query(len(batch))
                journal.acknowledge([row | cost for row in rows])
                for row in journal.rows[first:]:
                    log.write(row["query"], **{k: v for k, v in row.items() if isinstance(v, int | float)})
                    show(row, len(journal.rows))
                run_canary(context, journal, canary, canaries)
            log.close()
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


def require_same_stream(rows: Sequence[dict[str, Any]], items: Iterator[RenderedItem], out: Path) -> None:
    """Skip the queries that were answered before; raises ConfigError if they differ."""
    for row, rendered in zip(rows, items, strict=False):
        if rendered.item.id != row["item"]:
            raise ConfigError(
                f"{out} answered another stream: its query {row['query']} was {row['item']}, here it is "
                f"{rendered.item.id}; give the same stream, or another folder"
            )


def run_canary(context: TtrlContext, journal: AdaptationJournal, canary: Canary, questions: ItemFactory) -> None:
    """Ask the canary questions if that is due; after a significant fall revert to the last good row."""
    journal.last_good_row = canary.last_good_row
    if canary.regression is None and canary.is_due(len(journal.rows)):
        config, policy = context.config, journal.policy_state.policy
        groups = stream_item_rollouts(
            config, policy, context.toolbox, questions, n=1, seed=config.seed, temperature=0.0,
            on_question=context.on_question,
        )  # fmt: skip
        canary.record_check(len(journal.rows), [score_answer(item, rollout.answer) for item, (rollout,) in groups])
        journal.last_good_row = canary.last_good_row
    regression = canary.regression
    # also if a process was killed before it had reverted
    if regression is not None and len(journal.rows) > regression["good"]:
        row = journal.revert(regression["good"])
        context.stream_memory.rollback(row["memory"] if regression["good"] else context.stream_memory.start_watermark)


def remember_exemplar(stream_memory: StreamMemory, query: VotedQuery) -> bool:
    """Add the exemplar of an accepted query to the memory, unless it shows evaluation media; whether it was added."""
    k = query.vote_result.exemplar.rollout
    if not query.vote_result.consensus.accepted or k is None or query.leak_reason:
        return False
    curiosity, coherence = (float(values[k]) for values in (query.rewards.curiosity, query.rewards.coherence))
    return stream_memory.add_exemplar(query.rollouts[k].rollout.trace, query.rendered, curiosity, coherence)


# --- one query


def query_seed(config: TtrlConfig, number: int) -> int:
    return config.seed * 1_000_003 + number


def vote_on_query(
    context: TtrlContext, state: PolicyState, item: RenderedItem, group: list[Rollout], stream: StreamState, number: int
) -> VotedQuery:
    """Rewards, neighbours and vote of the rollouts of one query; a greedy rollout comes last if there is one."""
    greedy, group = group[-1].answer if context.config.greedy else None, group[: context.config.group_size]
    config, rewarder, stream_memory = context.config, context.rewarder, context.stream_memory
    media, seed, blind_item = MediaSet(item.media), query_seed(config, number), hide_answers(item.item)
    thresholds, tokenizer = decisive_thresholds(context.toolbox.tools), state.policy.tokenizer
    rollouts = [score_rollout(rollout, blind_item, media, tokenizer, thresholds) for rollout in group]
    trajectories = gather_trajectories(
        rewarder, reference_outputs(config, state.policy, state.start_policy, rollouts), rollouts,
        [media] * len(rollouts), np.arange(len(rollouts)), config.reward, DistributedContext(),
    )  # fmt: skip
    rewards = compute_rewards(trajectories, rewarder, config.reward, group_size=config.group_size, seed=seed)
    noise = np.random.default_rng([config.seed, number, 7])
    answers = flip_answers([final_answer(rollout) for rollout in group], config.stress.flip_share, noise)
    neighbours = stream_memory.nearest([rollout.trace for rollout in group], item, majority_answer(answers))
    calibration, delta = context.calibration, context.calibration.delta
    curiosity, coherence = standardise_summaries(rewards.curiosity, rewards.coherence, stream_memory.summaries)
    leak_reason = stream_memory.leak_reason(item)
    neighbour_votes = [(n.item.answer, max(n.similarity, 0.0) / len(neighbours)) for n in neighbours]
    vote_result = vote(
        group, config.vote if delta is None else config.vote.model_copy(update={"delta": delta}),
        thresholds=thresholds, calibration=calibration.calibrator,
        threshold=calibration.threshold, window=None if leak_reason else stream.window,
        external_votes=neighbour_votes if config.neighbour_votes else (),
        curiosity=curiosity.tolist(), coherence=coherence.tolist(),
        answer_overrides=answers if config.stress.flip_share else None,
    )  # fmt: skip
    penalties = np.array([chain_penalty(scored, rewarder, config.reward) for scored in rollouts])
    return VotedQuery(item, rollouts, rewards, penalties, neighbours, vote_result, greedy, leak_reason)


def majority_answer(answers: Sequence[str | None]) -> str | None:
    counts = Counter(answer.casefold() for answer in answers if answer)
    return min(counts, key=lambda a: (-counts[a], a)) if counts else None


def flip_answers(answers: Sequence[str | None], share: float, rng: np.random.Generator) -> list[str | None]:
    """Stress: change a share of the answers to another answer of the group (`unsure` if it has only one)."""
    spellings = {answer.casefold(): answer for answer in sorted(answer for answer in answers if answer)}
    out = list(answers)
    for k, answer in enumerate(answers):
        if share and answer and rng.random() < share:
            others = [other for key, other in spellings.items() if key != answer.casefold()]
            out[k] = str(rng.choice(others or ["unsure"]))
    return out
