"""The vote over a group of rollouts: the terms of each weight, the winner, and whether it is accepted.

    w_j ∝ exp(−H_j) · Cal_j · VisFid_j · r_j                        (sec:supp:voting-calib, supp:ttrl_loss_clean)

H_j is the mean −log p of the sampled tokens of decisive steps, an unbiased estimate of their entropy. Cal_j is the
calibrated p_raw. VisFid_j compares a rollout's decisive steps with those of the other rollouts, not with neighbours'
steps, which looked at other media. r_j is Dawid–Skene's mean diagonal for the rollout's tool sequence over a window of
queries, or its agreement with the other rollouts if the sequence is rare. Near-duplicates, by their decisive steps,
share one vote. Sim_behav compares the tools of all calls and the footprints of the decisive ones. The policy sees none
of this.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.core.config import Config
from pixelis.equations.behaviour import duplicate_groups, similarities
from pixelis.equations.calibration import Calibrator, Temperature, vote_calibration
from pixelis.equations.dawid_skene import agreement, dawid_skene
from pixelis.equations.exemplar import Exemplar, choose_exemplar
from pixelis.equations.visfid import DecisiveStep, group_fidelity, step_scores
from pixelis.equations.voting import (
    Consensus,
    Flip,
    consensus,
    decisive_entropy,
    merge_duplicate_votes,
    single_flips,
    vote_weights,
)
from pixelis.rollout.answer_reading import answer_confidence, final_answer
from pixelis.rollout.episode import Rollout
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.schema import Trace

Floats = NDArray[np.float64]
NO_CALIBRATION = Temperature(1.0, float("nan"))
MISSING = -1
PSEUDO_COUNTS = (2.0, 1.0)
"""Prior labels of every tool sequence in EM: two correct and one wrong of each class. Not in the paper."""
Source = Literal["dawid-skene", "agreement", "none"]
"""How a reliability was estimated."""


class VoteSettings(Config):
    """Settings of the vote; defaults are the paper's where it states a value."""

    delta: float = Field(default=0.08, ge=0.0, le=1.0)
    """Minimum margin (tab:risk_coverage)."""
    max_entropy: float = Field(default=0.2, ge=0.0)
    """Maximum entropy for the successful set."""
    least_agreement: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of all rollouts that must agree with the voted answer for an update. Not in the paper: an entropy under 0.5
    admits four against four, but not five against three that all differ."""
    duplicate_over: float = Field(default=0.85, gt=0.0)
    """Frame IoU from which two rollouts share one vote."""
    weighted: bool = True
    """Off: every rollout has one vote (hard majority)."""
    behaviour: bool = True
    """Off: VisFid and near-duplicates are left out, answers alone vote."""
    least_fidelity: float = Field(default=0.05, ge=0.0, le=1.0)
    """Lower bound of VisFid: two rollouts that contradict each other make a close vote, not an empty one."""
    reliability: bool = True
    """Off: r_j = 1."""
    least_reliability: float = Field(default=0.1, ge=0.0, le=1.0)
    """Lower bound of r_j: no rollout is silenced by earlier ones."""
    least_labels: int = Field(default=5, ge=2)
    """Queries of the window, with this one, that a tool sequence needs for Dawid–Skene; otherwise r_j is agreement."""
    alpha: float = 1.0
    """Exponent of Cal_j."""
    eta: float = 0.5
    """Weight of curiosity and coherence in the choice of the exemplar."""
    xi: float = 2.0
    """Weight of VisFid there."""
    window: int = Field(default=64, ge=1)
    """Queries over which reliabilities are pooled."""


class Ballot(NamedTuple):
    """The vote of one rollout."""

    answer: str | None
    """Casefolded, for comparison."""
    spelling: str | None
    tools: tuple[str, ...]
    """Its tool sequence: the annotator of Dawid–Skene."""
    entropy: float
    raw: float
    """p_raw."""
    calibrated: float
    fidelity: float
    reliability: float
    reliability_by: Source
    group: int
    """Near-duplicates share one."""
    weight: float
    """After merging near-duplicates."""


class VoteResult(NamedTuple):
    """The result of a vote, with everything behind it."""

    ballots: tuple[Ballot, ...]
    consensus: Consensus
    exemplar: Exemplar
    similarity: Floats
    """(N,) Sim_behav to the exemplar; NaN without one."""
    flips: tuple[Flip, ...]
    """Changes of one weight that would have changed the answer, smallest first."""
    reliability_source: Literal["dawid-skene", "agreement", "mixed", "none"]
    total_weight: float
    """Sum of all weights, external votes included: shares are relative to it."""
    external_votes: tuple[tuple[str, float], ...] = ()
    """Answers from outside the group, such as neighbours', with their weights."""

    @property
    def answer(self) -> str | None:
        """In the spelling of its heaviest rollout, or of its heaviest external vote."""
        winner = self.consensus.answer
        spellings = [(b.weight, b.spelling) for b in self.ballots if b.answer is not None and b.answer == winner]
        spellings = spellings or [(weight, text) for text, weight in self.external_votes if text.casefold() == winner]
        return max(spellings, key=lambda weighted: weighted[0])[1] if spellings else None

    @property
    def confidence(self) -> float:
        """The winner's share of the weights."""
        return next(iter(self.consensus.scores.values()), 0.0)


@dataclass
class ReliabilityWindow:
    """Answers of tool sequences over the last queries, for pooled reliabilities."""

    size: int = 64
    rows: deque[dict[str, int]] = field(default_factory=deque)
    """For each query and tool sequence: 0 for the query's most frequent answer, 1 for another."""

    def labels(self, tools: Sequence[str], current: dict[str, int]) -> NDArray[np.int64]:
        """(queries, sequences) with the current query last."""
        rows = [*self.rows, current]
        return np.array([[row.get(name, MISSING) for name in tools] for row in rows], dtype=np.int64)

    def add(self, current: dict[str, int]) -> None:
        self.rows.append(current)
        while len(self.rows) > self.size:
            self.rows.popleft()


def label_tool_sequences(ballots: Sequence[tuple[str, str | None]]) -> dict[str, int]:
    """Label each tool sequence: 0 if most of its rollouts gave the most frequent answer, else 1."""
    answer_counts = Counter(answer for _, answer in ballots if answer is not None)
    if not answer_counts:
        return {}
    majority_answer = min(answer_counts, key=lambda a: (-answer_counts[a], a))
    votes: dict[str, list[int]] = {}
    for tools, answer in ballots:
        if answer is not None:
            votes.setdefault(tools, []).append(int(answer != majority_answer))
    return {tools: int(2 * sum(errors) > len(errors)) for tools, errors in votes.items()}


def decisive_evidence(trace: Trace, decisive: Sequence[bool]) -> list[DecisiveStep]:
    """The decisive steps, as VisFid and Sim_behav compare them."""
    out = []
    for step, is_decisive in zip(trace.steps, decisive, strict=True):
        if is_decisive:
            properties = step.result.output.get("properties", {}) if step.result.tool == "PROP" else {}
            pairs = tuple((str(name), str(attribute["value"])) for name, attribute in properties.items())
            out.append(DecisiveStep(step.result.tool, tuple(step.result.footprints), pairs))
    return out


def token_entropy(rollout: Rollout, decisive: Sequence[bool]) -> float:
    """H_j from the sampled tokens; 0 without log-probabilities, as from some servers."""
    sequence = rollout.sequence
    if sequence is None:
        return 0.0
    sampled = [(-p, s) for p, s in zip(sequence.logprobs, sequence.steps, strict=True) if p is not None]
    if not sampled:  # refused before its first token, hence without an answer
        return 0.0
    inside = [0 < step <= len(decisive) and decisive[step - 1] for _, step in sampled]
    return decisive_entropy([nats for nats, _ in sampled], inside)


def vote(
    group: Sequence[Rollout],
    settings: VoteSettings = VoteSettings(),
    *,
    thresholds: Mapping[str, float],
    calibration: Calibrator = NO_CALIBRATION,
    threshold: float | None = None,
    window: ReliabilityWindow | None = None,
    external_votes: Sequence[tuple[str, float]] = (),
    curiosity: Sequence[float] | None = None,
    coherence: Sequence[float] | None = None,
    answer_overrides: Sequence[str | None] | None = None,
) -> VoteResult:
    """Vote over a group of rollouts. `thresholds` are the tools' (`tools.toolbox.decisive_thresholds`), `threshold` is
    the conformal one; `window` is read and updated.

    `external_votes` are answers with weights from outside the group; they never become exemplars. `answer_overrides`
    replace the rollouts' answers (stress test): near-duplicates are then found by what they looked at alone, and vote
    for the most frequent override among them.
    """
    decisive_flags = [[d.decisive for d in decisive_steps(rollout.trace, thresholds)] for rollout in group]
    chains = [decisive_evidence(rollout.trace, flags) for rollout, flags in zip(group, decisive_flags, strict=True)]
    spellings = [final_answer(rollout) for rollout in group]
    answers = [a.casefold() if a else None for a in spellings]
    tool_names = [[step.result.tool for step in rollout.trace.steps] for rollout in group]
    tools = [">".join(names) for names in tool_names]
    scores = step_scores([step for chain in chains for step in chain])
    fidelity, groups = np.ones(len(group)), list(range(len(group)))
    if settings.behaviour:
        comparable = answers if answer_overrides is None else [a is not None for a in answers]
        groups = list(duplicate_groups(chains, comparable, min_overlap=settings.duplicate_over, scores=scores))
        fidelity = np.maximum(compute_fidelities(chains, answers, groups), settings.least_fidelity)
    if answer_overrides is not None:
        spellings = [a or None for a in answer_overrides]
        answers = [a.casefold() if a else None for a in spellings]
    reliability, reliability_by = np.ones(len(group)), list[Source](["none"] * len(group))
    if settings.reliability:
        reliability, reliability_by = compute_reliabilities(tools, answers, window, least_labels=settings.least_labels)
        reliability = np.maximum(reliability, settings.least_reliability)
    entropy = [token_entropy(rollout, flags) for rollout, flags in zip(group, decisive_flags, strict=True)]
    raw = [answer_confidence(rollout.trace, thresholds) for rollout in group]
    calibrated = calibration.confidence(raw) if len(group) else np.zeros(0)
    weights = vote_weights(entropy, vote_calibration(calibrated, alpha=settings.alpha), fidelity, reliability).product
    if not settings.weighted:
        weights = np.ones(len(group))
    merged_weights = merge_duplicate_votes(weights, groups)
    all_votes = [*group_answer(answers, groups), *(answer.casefold() for answer, _ in external_votes)]
    all_weights = np.append(merged_weights, [weight for _, weight in external_votes])
    outcome = consensus(
        all_votes, all_weights, delta=settings.delta, conformal_threshold=threshold, max_entropy=settings.max_entropy,
        min_agreement=settings.least_agreement, rollout_answers=answers,
    )  # fmt: skip
    successful = [a is not None and a == outcome.answer for a in answers]
    zeros = np.zeros(len(group))
    exemplar = choose_exemplar(
        [len(rollout.trace.steps) for rollout in group],
        zeros if curiosity is None else curiosity,
        zeros if coherence is None else coherence,
        fidelity, successful=successful, eta=settings.eta, xi=settings.xi,
    )  # fmt: skip
    similarity = np.full(len(group), np.nan)
    if exemplar.rollout is not None:
        compared = similarities(chains, exemplar.rollout, scores=scores, names=tool_names)
        similarity = np.array([s.similarity for s in compared])
    columns = (
        answers, spellings, map(tuple, tool_names), map(float, entropy), map(float, raw), map(float, calibrated),
        fidelity.tolist(), reliability.tolist(), reliability_by, map(int, groups), map(float, merged_weights),
    )  # fmt: skip
    ballots = tuple(Ballot(*row) for row in zip(*columns, strict=True))
    flips = tuple(flip for flip in single_flips(all_votes, all_weights) if flip.rollout < len(group))
    sources = sorted(set(reliability_by)) or ["none"]
    total = fsum(weight for answer, weight in zip(all_votes, all_weights.tolist(), strict=True) if answer is not None)
    reliability_source = sources[0] if len(sources) == 1 else "mixed"
    return VoteResult(ballots, outcome, exemplar, similarity, flips, reliability_source, total, tuple(external_votes))


def group_answer(answers: Sequence[str | None], groups: Sequence[int]) -> list[str | None]:
    """The most frequent answer of each group of near-duplicates; they differ only under overrides."""
    group_counts: dict[int, Counter[str | None]] = {}
    for answer, group in zip(answers, groups, strict=True):
        group_counts.setdefault(group, Counter())[answer] += 1
    return [group_counts[group].most_common(1)[0][0] for group in groups]


def compute_fidelities(
    chains: Sequence[Sequence[DecisiveStep]], answers: Sequence[str | None], groups: Sequence[int]
) -> Floats:
    """(N,) VisFid, near-duplicates counted once: copies of a chain do not support each other."""
    first = {group: j for j, group in reversed(list(enumerate(groups)))}
    representatives = sorted(first.values())
    has_answer = [answers[j] is not None for j in representatives]
    results = group_fidelity([chains[j] for j in representatives], successful=has_answer)
    visfid_by_group = {groups[j]: result.visfid for j, result in zip(representatives, results, strict=True)}
    return np.array([visfid_by_group[group] for group in groups])


def compute_reliabilities(
    tools: Sequence[str], answers: Sequence[str | None], window: ReliabilityWindow | None, *, least_labels: int
) -> tuple[Floats, list[Source]]:
    """r_j of every rollout by its tool sequence, pooled over the window, with its source.

    Class 0 of a label is the query's most frequent answer, from which EM starts. A sequence with fewer labels than
    `least_labels` has its agreement instead.
    """
    numbers = {a: k for k, a in enumerate(dict.fromkeys(a for a in answers if a is not None))}
    answer_labels = [[numbers.get(a, MISSING) if a is not None else MISSING for a in answers]]
    values, sources = agreement(answer_labels, n_classes=max(len(numbers), 1)), list[Source](["agreement"] * len(tools))
    current = label_tool_sequences(list(zip(tools, answers, strict=True)))
    if window is None or not current:
        return values, sources
    names = list(dict.fromkeys([*tools, *(name for row in window.rows for name in row)]))
    labels = window.labels(names, current)
    window.add(current)
    enough = dict(zip(names, ((labels != MISSING).sum(axis=0) >= least_labels).tolist(), strict=True))
    if not any(enough[name] for name in tools):
        return values, sources
    fitted = dawid_skene(labels, n_classes=2, pseudo=PSEUDO_COUNTS, majority=np.zeros(len(labels), dtype=np.int64))
    by_sequence = dict(zip(names, fitted.reliability.tolist(), strict=True))
    has_enough = [enough[name] for name in tools]
    sources = ["dawid-skene" if k else "agreement" for k in has_enough]
    return np.where(has_enough, [by_sequence[name] for name in tools], values), sources


def to_ballot_record(ballot: Ballot) -> dict[str, Any]:
    """A ballot under the keys of the ledger, in their order."""
    return {"spelt" if key == "spelling" else key: value for key, value in ballot._asdict().items()}


def to_vote_record(result: VoteResult) -> dict[str, Any]:
    """The result as plain values, for traces and ledgers."""
    outcome = result.consensus
    return {
        "answer": result.answer,
        "share": result.confidence,
        "total": result.total_weight,
        "margin": outcome.margin,
        "accepted": outcome.accepted,
        "teaches": outcome.allows_update,
        "reason": outcome.reason,
        "majority": outcome.majority,
        "entropy": outcome.entropy,
        "agreement": outcome.agreement,
        "scores": {str(answer): share for answer, share in outcome.scores.items()},
        "conformal_set": None if outcome.conformal_set is None else [str(a) for a in outcome.conformal_set],
        "exemplar": result.exemplar.rollout,
        "reliability_by": result.reliability_source,
        "ballots": [to_ballot_record(ballot) for ballot in result.ballots],
        "flips": [{**flip._asdict(), "answer": str(flip.answer)} for flip in result.flips[:3]],
    }
