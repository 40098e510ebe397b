"""The vote over a group of rollouts, term by term: what each weight is made of, who won, and whether it counts.

    w_j ∝ exp(−H_j) · Cal_j · VisFid_j · r_j                        (sec:supp:voting-calib, supp:ttrl_loss_clean)

H_j is read off the sampled tokens of decisive steps: −log p is an unbiased estimate of a token's entropy. Cal_j is the
calibrated p_raw. VisFid_j holds a rollout's decisive steps against those of the others, not against neighbours': those
looked at other media. r_j is Dawid–Skene's mean diagonal for the rollout's tool sequence over a window of queries; a
sequence that was seen too seldom has its agreement with the others. Near-duplicates, by their decisive steps, are one
vote. Sim_behav compares the tools of all calls and the footprints of the decisive ones. Nothing here is shown to the
policy before it has answered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.config import Config
from pixelis.equations.behaviour import duplicate_groups, similarities
from pixelis.equations.calibration import Calibrator, Temperature, vote_calibration
from pixelis.equations.dawid_skene import agreement, dawid_skene
from pixelis.equations.exemplar import Exemplar, choose_exemplar
from pixelis.equations.visfid import Step, group_fidelity, step_scores
from pixelis.equations.voting import (
    Consensus,
    Flip,
    consensus,
    decisive_entropy,
    one_vote_each,
    single_flips,
    vote_weights,
)
from pixelis.rollout.answering import spoken, sureness
from pixelis.rollout.episode import Rollout
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.schema import Trace

Floats = NDArray[np.float64]
PLAIN = Temperature(1.0, float("nan"))
MISSING = -1
PSEUDO = (2.0, 1.0)
"""Labels that EM gives every tool sequence beforehand: two right ones and a wrong one of each class. Ours."""
Source = Literal["dawid-skene", "agreement", "none"]
"""Where a reliability comes from."""


class VoteSettings(Config):
    """What the vote can be told; defaults are the paper's where it has a value."""

    delta: float = Field(default=0.08, ge=0.0, le=1.0)
    """Least margin (tab:risk_coverage)."""
    max_entropy: float = Field(default=0.2, ge=0.0)
    """The gate of the successful set."""
    least_agreement: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of all rollouts that must have given the voted answer for it to teach. Ours: entropy under 0.5 lets a tie
    of four and four pass, and not five against three that all differ."""
    duplicate_over: float = Field(default=0.85, gt=0.0)
    """Frame IoU from which two rollouts are one vote."""
    weighted: bool = True
    """Off: every rollout has one vote (hard majority)."""
    behaviour: bool = True
    """Off: VisFid and near-duplicates are left out, answers alone vote."""
    least_fidelity: float = Field(default=0.05, ge=0.0, le=1.0)
    """VisFid counts as at least this: two rollouts that refute one another leave a close vote, not none at all."""
    reliability: bool = True
    """Off: r_j = 1."""
    least_reliability: float = Field(default=0.1, ge=0.0, le=1.0)
    """r_j counts as at least this: nobody is silenced by how others fared."""
    least_labels: int = Field(default=5, ge=2)
    """Queries of the window, this one included, that a tool sequence must have answered; of fewer, r_j is agreement."""
    alpha: float = 1.0
    """Exponent of Cal_j."""
    eta: float = 0.5
    """Weight of curiosity and coherence in the choice of the exemplar."""
    xi: float = 2.0
    """Weight of VisFid there."""
    window: int = Field(default=64, ge=1)
    """Queries over which reliabilities are pooled."""


class Ballot(NamedTuple):
    """One rollout as it votes."""

    answer: str | None
    """As it is compared: without case."""
    spelt: str | None
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
    """What it votes with, after near-duplicates were merged."""


class Decision(NamedTuple):
    """What a group came to, and why."""

    ballots: tuple[Ballot, ...]
    consensus: Consensus
    exemplar: Exemplar
    similarity: Floats
    """(N,) Sim_behav to the exemplar; NaN without one."""
    flips: tuple[Flip, ...]
    """Single weights that would have changed the answer, the smallest change first."""
    pooled: Literal["dawid-skene", "agreement", "mixed", "none"]
    total: float
    """All weight that was voted with, from outside too: what shares are of."""
    outside: tuple[tuple[str, float], ...] = ()
    """Answers of others that voted beside the rollouts, each with its weight."""

    @property
    def answer(self) -> str | None:
        """As the heaviest of its rollouts spells it; where none gave it, as the heaviest of the others does."""
        own = [(b.weight, b.spelt) for b in self.ballots if b.answer is not None and b.answer == self.consensus.answer]
        own = own or [(weight, text) for text, weight in self.outside if text.casefold() == self.consensus.answer]
        return max(own, key=lambda one: one[0])[1] if own else None

    @property
    def confidence(self) -> float:
        """The winner's share of the weights."""
        return next(iter(self.consensus.scores.values()), 0.0)


@dataclass
class Window:
    """Answers of tool sequences over the last queries, for pooled reliabilities. Plain numbers: it can be stored."""

    size: int = 64
    rows: deque[dict[str, int]] = field(default_factory=deque)
    """For each query and tool sequence: 0 where it gave the query's most frequent answer, 1 where another."""

    def labels(self, tools: Sequence[str], now: dict[str, int]) -> NDArray[np.int64]:
        """(queries, sequences) with the present query last."""
        rows = [*self.rows, now]
        return np.array([[row.get(name, MISSING) for name in tools] for row in rows], dtype=np.int64)

    def add(self, now: dict[str, int]) -> None:
        self.rows.append(now)
        while len(self.rows) > self.size:
            self.rows.popleft()


def labelled(ballots: Sequence[tuple[str, str | None]]) -> dict[str, int]:
    """Of (tool sequence, answer) pairs: whether each sequence mostly gave the most frequent answer."""
    given = Counter(answer for _, answer in ballots if answer is not None)
    if not given:
        return {}
    top = min(given, key=lambda a: (-given[a], a))
    votes: dict[str, list[int]] = {}
    for tools, answer in ballots:
        if answer is not None:
            votes.setdefault(tools, []).append(int(answer != top))
    return {tools: int(2 * sum(own) > len(own)) for tools, own in votes.items()}


def evidence(trace: Trace, decisive: Sequence[bool]) -> list[Step]:
    """The decisive steps as fidelity and behaviour see them."""
    out = []
    for step, counts in zip(trace.steps, decisive, strict=True):
        if counts:
            said = step.result.output.get("properties", {}) if step.result.tool == "PROP" else {}
            pairs = tuple((str(name), str(found["value"])) for name, found in said.items())
            out.append(Step(step.result.tool, tuple(step.result.footprints), pairs))
    return out


def token_entropy(rolled: Rollout, decisive: Sequence[bool]) -> float:
    """H_j from the sampled tokens; 0 where a server gives none, so that nobody is heavier for it."""
    ledger = rolled.ledger
    if ledger is None:
        return 0.0
    sampled = [(-p, s) for p, s in zip(ledger.logprobs, ledger.steps, strict=True) if p is not None]
    if not sampled:  # refused before its first token: it has no answer to weigh either
        return 0.0
    inside = [0 < step <= len(decisive) and decisive[step - 1] for _, step in sampled]
    return decisive_entropy([nats for nats, _ in sampled], inside)


def decide(
    group: Sequence[Rollout],
    settings: VoteSettings = VoteSettings(),
    *,
    calibration: Calibrator = PLAIN,
    threshold: float | None = None,
    window: Window | None = None,
    outside: Sequence[tuple[str, float]] = (),
    curiosity: Sequence[float] | None = None,
    coherence: Sequence[float] | None = None,
    heard: Sequence[str | None] | None = None,
) -> Decision:
    """Put a group of rollouts to the vote. `threshold` is the conformal one; `window` is read and then told of this.

    `outside` are answers of others that vote beside the rollouts, each with its weight; they never become exemplars.
    `heard` are the answers as they are counted, where that is not what was said (stress). What the rollouts looked at
    is as it was; what they said nobody knows any more. Near-duplicates are then those that looked at the same, and vote
    for what most of them are heard to say.
    """
    marks = [[d.decisive for d in decisive_steps(rolled.trace)] for rolled in group]
    chains = [evidence(rolled.trace, own) for rolled, own in zip(group, marks, strict=True)]
    spelt = [spoken(rolled) for rolled in group]
    answers = [a.casefold() if a else None for a in spelt]
    names = [[step.result.tool for step in rolled.trace.steps] for rolled in group]
    tools = [">".join(own) for own in names]
    scores = step_scores([step for chain in chains for step in chain])
    fidelity, groups = np.ones(len(group)), list(range(len(group)))
    if settings.behaviour:
        alike = answers if heard is None else [a is not None for a in answers]
        groups = list(duplicate_groups(chains, alike, overlap_over=settings.duplicate_over, scores=scores))
        fidelity = np.maximum(fidelities(chains, answers, groups), settings.least_fidelity)
    if heard is not None:
        spelt = [a or None for a in heard]
        answers = [a.casefold() if a else None for a in spelt]
    reliability, by = np.ones(len(group)), list[Source](["none"] * len(group))
    if settings.reliability:
        reliability, by = reliabilities(tools, answers, window, least_labels=settings.least_labels)
        reliability = np.maximum(reliability, settings.least_reliability)
    entropy = [token_entropy(rolled, own) for rolled, own in zip(group, marks, strict=True)]
    raw = [sureness(rolled.trace) for rolled in group]
    calibrated = calibration.confidence(raw) if len(group) else np.zeros(0)
    weights = vote_weights(entropy, vote_calibration(calibrated, alpha=settings.alpha), fidelity, reliability).product
    if not settings.weighted:
        weights = np.ones(len(group))
    kept = one_vote_each(weights, groups)
    said = [*one_voice(answers, groups), *(answer.casefold() for answer, _ in outside)]
    weighed = np.append(kept, [weight for _, weight in outside])
    voted = consensus(
        said, weighed, delta=settings.delta, conformal_threshold=threshold, max_entropy=settings.max_entropy,
        least_agreement=settings.least_agreement, own=answers,
    )  # fmt: skip
    successful = [a is not None and a == voted.answer for a in answers]
    nothing = np.zeros(len(group))
    star = choose_exemplar(
        [len(rolled.trace.steps) for rolled in group],
        nothing if curiosity is None else curiosity,
        nothing if coherence is None else coherence,
        fidelity, successful=successful, eta=settings.eta, xi=settings.xi,
    )  # fmt: skip
    similarity = np.full(len(group), np.nan)
    if star.rollout is not None:
        similarity = np.array([s.similarity for s in similarities(chains, star.rollout, scores=scores, names=names)])
    ballots = tuple(
        Ballot(
            answers[j], spelt[j], tuple(tools[j].split(">")) if tools[j] else (), float(entropy[j]), float(raw[j]),
            float(calibrated[j]), float(fidelity[j]), float(reliability[j]), by[j], int(groups[j]), float(kept[j]),
        )
        for j in range(len(group))
    )  # fmt: skip
    flips = tuple(flip for flip in single_flips(said, weighed) if flip.rollout < len(group))
    sources = sorted(set(by)) or ["none"]
    total = fsum(weight for answer, weight in zip(said, weighed.tolist(), strict=True) if answer is not None)
    pooled = sources[0] if len(sources) == 1 else "mixed"
    return Decision(ballots, voted, star, similarity, flips, pooled, total, tuple(outside))


def one_voice(answers: Sequence[str | None], groups: Sequence[int]) -> list[str | None]:
    """What most of each group are heard to say; the first of those who are as many. Without stress all say the same."""
    said: dict[int, Counter[str | None]] = {}
    for answer, group in zip(answers, groups, strict=True):
        said.setdefault(group, Counter())[answer] += 1
    return [said[group].most_common(1)[0][0] for group in groups]


def fidelities(chains: Sequence[Sequence[Step]], answers: Sequence[str | None], groups: Sequence[int]) -> Floats:
    """(N,) VisFid, near-duplicates counted once: five copies of a chain must not vouch for one another."""
    first = {group: j for j, group in reversed(list(enumerate(groups)))}
    kept = sorted(first.values())
    good = [answers[j] is not None for j in kept]
    found = group_fidelity([chains[j] for j in kept], successful=good)
    own = {groups[j]: fidelity.visfid for j, fidelity in zip(kept, found, strict=True)}
    return np.array([own[group] for group in groups])


def reliabilities(
    tools: Sequence[str], answers: Sequence[str | None], window: Window | None, *, least_labels: int
) -> tuple[Floats, list[Source]]:
    """r_j of every rollout by its tool sequence, pooled over the window, and where each comes from.

    A label says whether a sequence gave its query's most frequent answer, so that class 0 is the majority label of
    every query, and EM starts there. A sequence with fewer labels than `least_labels` has its agreement instead.
    """
    numbers = {a: k for k, a in enumerate(dict.fromkeys(a for a in answers if a is not None))}
    given = [[numbers.get(a, MISSING) if a is not None else MISSING for a in answers]]
    values, by = agreement(given, n_classes=max(len(numbers), 1)), list[Source](["agreement"] * len(tools))
    now = labelled(list(zip(tools, answers, strict=True)))
    if window is None or not now:
        return values, by
    names = list(dict.fromkeys([*tools, *(name for row in window.rows for name in row)]))
    labels = window.labels(names, now)
    window.add(now)
    enough = dict(zip(names, ((labels != MISSING).sum(axis=0) >= least_labels).tolist(), strict=True))
    if not any(enough[name] for name in tools):
        return values, by
    fitted = dawid_skene(labels, n_classes=2, pseudo=PSEUDO, majority=np.zeros(len(labels), dtype=np.int64))
    own = dict(zip(names, fitted.reliability.tolist(), strict=True))
    known = [enough[name] for name in tools]
    return np.where(known, [own[name] for name in tools], values), ["dawid-skene" if k else "agreement" for k in known]


def record_of(decision: Decision) -> dict[str, Any]:
    """A decision as plain values: every term of every weight, the margin, the set, and what would have flipped it."""
    vote = decision.consensus
    return {
        "answer": decision.answer,
        "share": decision.confidence,
        "total": decision.total,
        "margin": vote.margin,
        "accepted": vote.accepted,
        "teaches": vote.teaches,
        "reason": vote.reason,
        "majority": vote.majority,
        "entropy": vote.entropy,
        "agreement": vote.agreement,
        "scores": {str(answer): share for answer, share in vote.scores.items()},
        "conformal_set": None if vote.conformal_set is None else [str(a) for a in vote.conformal_set],
        "exemplar": decision.exemplar.rollout,
        "reliability_by": decision.pooled,
        "ballots": [ballot._asdict() for ballot in decision.ballots],
        "flips": [{**flip._asdict(), "answer": str(flip.answer)} for flip in decision.flips[:3]],
    }
