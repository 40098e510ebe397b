"""The vote over rollouts: weights, class scores, margin, the low-entropy gate and abstention."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.equations.conformal import prediction_set

Answer = Hashable | None
"""None is a rollout without an answer: it stays in the record, and its share of the vote goes to no answer."""


class VoteWeights(NamedTuple):
    """w_j and its four factors, each (N,)."""

    certainty: NDArray[np.float64]
    """exp(-H_j), H_j the token entropy on decisive steps."""
    calibration: NDArray[np.float64]
    """Cal_j, the calibrated confidence."""
    fidelity: NDArray[np.float64]
    """VisFid of the trajectory."""
    reliability: NDArray[np.float64]
    """r_j of Dawid and Skene."""
    product: NDArray[np.float64]
    """The product of the factors, in [0, 1]."""

    @property
    def share(self) -> NDArray[np.float64]:
        """The weights over their sum; all 0 if every weight is 0."""
        total = fsum(self.product.tolist())
        return self.product / total if total > 0.0 else np.zeros_like(self.product)


class Consensus(NamedTuple):
    """The voted answer, and whether and why it is accepted."""

    answer: Answer
    """The answer with the largest weight; None if every weight is 0."""
    margin: float
    """(best score - second best) / sum of scores, times the share of rollouts that gave an answer, in [0, 1]; 1 if
    all agree, 0 if none answered."""
    accepted: bool
    """m(q) = 1: the margin reaches delta and the conformal set holds this answer alone."""
    scores: dict[Hashable, float]
    """s(a) over the sum, largest first; they add up to the share of rollouts that gave an answer."""
    conformal_set: tuple[Hashable, ...] | None
    """Answers that cannot be excluded; None without a threshold."""
    majority: Answer
    """The most frequent answer, regardless of weights and near-duplicates: the hard majority of tab:risk_coverage."""
    most_frequent: bool
    """Neither another answer nor the lack of one has more rollouts: the voted answer is also a plain majority."""
    agreement: float
    """Share of all rollouts that gave the voted answer."""
    enough_agreement: bool
    """The share is at least the one required of training targets."""
    entropy: float
    """Entropy of the answers' frequencies over log N (all rollouts), in [0, 1]; no answer counts as an answer."""
    low_entropy: bool
    """The gate of the successful set: entropy below 0.2."""
    reason: str
    """Why the answer is not accepted; empty if it is."""

    @property
    def mask(self) -> int:
        """m(q) of (eq:ttrl_clean_loss)."""
        return int(self.accepted)

    @property
    def allows_update(self) -> bool:
        """Whether the policy may learn from it: an accepted update passes both entropy and mask (supp:budget_fairness).

        The low entropy must be that of the voted answer: seven of eight with another answer are not agreement.
        """
        return self.accepted and self.low_entropy and self.most_frequent and self.enough_agreement


class Flip(NamedTuple):
    """The weight at which one rollout alone changes the answer."""

    rollout: int
    weight: float
    """Its present weight."""
    flips_at: float
    """Past this weight (above it for a loser, below it for a winner) `answer` wins."""
    answer: Hashable

    @property
    def change(self) -> float:
        return abs(self.flips_at - self.weight)


def decisive_entropy(token_entropy: ArrayLike, decisive: ArrayLike) -> float:
    """H_j: mean entropy, in nats, of the sampled tokens that belong to decisive steps (subsec:ttrl).

    `token_entropy` and `decisive` have one entry for each sampled token. Without decisive steps all tokens count;
    without tokens the result is NaN, which gets weight 0 in `vote_weights`.
    """
    entropy = np.atleast_1d(np.asarray(token_entropy, dtype=np.float64))
    decisive_mask = np.atleast_1d(np.asarray(decisive, dtype=bool))
    if entropy.shape != decisive_mask.shape:
        raise ValueError(
            f"{entropy.size} token entropies, but {decisive_mask.size} marks of decisive tokens: expected equal"
        )
    selected = entropy[decisive_mask] if decisive_mask.any() else entropy
    return float(selected.mean()) if selected.size else float("nan")


def vote_weights(
    entropy: ArrayLike, calibration: ArrayLike, fidelity: ArrayLike, reliability: ArrayLike | None = None
) -> VoteWeights:
    """w_j proportional to exp(-H_j) Cal_j VisFid_j r_j (sec:supp:voting-calib, supp:ttrl_loss_clean).

    A NaN factor counts as 0: what is not known carries no weight. Without `reliability`, r_j = 1.
    Raises ValueError if lengths differ or a factor is negative.
    """
    H = np.atleast_1d(np.asarray(entropy, dtype=np.float64))
    ones = np.ones_like(H) if reliability is None else reliability
    rest = {"calibration": calibration, "fidelity": fidelity, "reliability": ones}
    factors = {"certainty": np.exp(-np.maximum(H, 0.0))}  # rounding may make an entropy slightly negative
    factors |= {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in rest.items()}
    for name, value in factors.items():
        if value.shape != H.shape:
            raise ValueError(f"{H.size} entropies, but {value.size} values of {name}: expected one for each rollout")
        if np.any(value < 0.0):
            raise ValueError(f"{name} of rollout {int(np.argmax(value < 0.0))} is negative: expected 0 or more")
    finite_factors = {name: np.where(np.isnan(value), 0.0, value) for name, value in factors.items()}
    return VoteWeights(**finite_factors, product=np.prod(list(finite_factors.values()), axis=0))


def merge_duplicate_votes(weights: NDArray[np.float64], groups: Sequence[int]) -> NDArray[np.float64]:
    """Weights with near-duplicates merged: a group votes once, with its best weight (supp:ttrl_loss_clean)."""
    if len(groups) != len(weights):
        raise ValueError(f"{len(weights)} weights, but {len(groups)} groups: expected one for each rollout")
    best: dict[int, int] = {}
    for j, group in enumerate(groups):
        if group not in best or weights[j] > weights[best[group]]:
            best[group] = j
    merged = np.zeros_like(weights)
    merged[list(best.values())] = weights[list(best.values())]
    return merged


def class_scores(answers: Sequence[Answer], weights: ArrayLike) -> dict[Hashable, float]:
    """s(a) = sum of w_j over the rollouts that answered a, largest first (supp:ttrl_loss_clean, pseudo-code).

    Sums are exact, and ties are ordered by the number of rollouts with the answer, then by its text, so that the order
    of the rollouts decides nothing.
    """
    w = _check_weights(answers, weights)
    votes: dict[Hashable, list[float]] = {}
    for answer, weight in zip(answers, w, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(weight)
    ordered = sorted(votes, key=lambda a: (-fsum(votes[a]), -len(votes[a]), repr(a)))
    return {answer: fsum(votes[answer]) for answer in ordered}


def normalised_margin(scores: ArrayLike) -> float:
    """(largest - second largest) / sum (sec:supp:voting-calib); 1 for a single answer, 0 if all weights are 0."""
    ranked = sorted(np.asarray(scores, dtype=np.float64).tolist(), reverse=True)
    total = fsum(ranked)
    if total <= 0.0:
        return 0.0
    return (ranked[0] - (ranked[1] if len(ranked) > 1 else 0.0)) / total


def answer_entropy(answers: Sequence[Answer]) -> float:
    """Entropy of the answers' frequencies over log N, N rollouts: 0 unanimous, 1 all different (subsec:ttrl).

    Over log N, 7 of 8 gives 0.18 and passes the paper's 0.2, 6 of 8 gives 0.27 and does not; in nats only unanimity
    would pass. No answer counts as a further answer. Fewer than two rollouts: 0.
    """
    if len(answers) < 2:
        return 0.0
    counts = np.array(sorted(answers.count(answer) for answer in dict.fromkeys(answers)), dtype=np.float64)
    p = counts / len(answers)
    return max(0.0, float(-(p * np.log(p)).sum()) / log(len(answers)))


def consensus(
    answers: Sequence[Answer],
    weights: ArrayLike,
    *,
    delta: float = 0.08,
    conformal_threshold: float | None = None,
    max_entropy: float = 0.2,
    min_agreement: float = 0.0,
    rollout_answers: Sequence[Answer] | None = None,
) -> Consensus:
    """The weighted vote with abstention (sec:supp:voting-calib, supp:ttrl_loss_clean; delta from tab:risk_coverage).

    m(q) = 1 iff the margin is at least `delta` and the conformal set holds one answer: an answer is in it if 1 - its
    vote share is at most `conformal_threshold`. Without a threshold the margin alone decides. Majority and entropy
    count the answers of all rollouts regardless of weight: equal chains have one vote when an answer is chosen, but
    seven of eight with the same answer do agree. `rollout_answers` are those answers (default: `answers`, which may
    also hold external votes). A rollout without an answer keeps its share of the vote: one answer beside seven
    rollouts without any has a share and a margin of an eighth.
    No rollouts, none with an answer, or all weights 0: no answer, margin 0, not accepted. One rollout with weight:
    its answer, margin 1. All answers different with equal weights: margin 0, not accepted.
    """
    rollout_answers = answers if rollout_answers is None else rollout_answers
    answered = [a for a in rollout_answers if a is not None]
    answer_rate = len(answered) / len(rollout_answers) if rollout_answers else 0.0
    raw_scores = class_scores(answers, weights)
    total = fsum(raw_scores.values())
    scores = (
        {a: answer_rate * score / total for a, score in raw_scores.items()}
        if total > 0.0
        else dict.fromkeys(raw_scores, 0.0)
    )
    answer = next(iter(scores), None) if total > 0.0 else None
    margin = answer_rate * normalised_margin(list(raw_scores.values()))
    conformal_answers = None if conformal_threshold is None else prediction_set(scores, conformal_threshold)
    if answer is None:
        reason = "no rollout voted with weight"
    elif margin < delta - 1e-12:  # a margin of delta itself passes, however its sum was rounded
        reason = f"margin {margin:.3f} under {delta:g}"
    elif conformal_answers is not None and len(conformal_answers) != 1:
        reason = f"conformal set of {len(conformal_answers)} answers"
    else:
        reason = ""
    entropy, agreement = (
        answer_entropy(rollout_answers),
        answered.count(answer) / len(rollout_answers) if rollout_answers else 0.0,
    )
    return Consensus(
        answer=answer,
        margin=margin,
        accepted=not reason,
        scores=scores,
        conformal_set=conformal_answers,
        majority=min(answered, key=lambda a: (-answered.count(a), repr(a)), default=None),
        most_frequent=answer is not None
        and all(answered.count(answer) >= rollout_answers.count(a) for a in set(rollout_answers)),
        agreement=agreement,
        enough_agreement=agreement >= min_agreement - 1e-12,
        entropy=entropy,
        low_entropy=answer is not None and entropy < max_entropy,
        reason=reason,
    )


def single_flips(answers: Sequence[Answer], weights: ArrayLike, *, ceiling: float = 1.0) -> tuple[Flip, ...]:
    """Which rollout's weight, changed alone within [0, ceiling], would change the answer; smallest change first.

    For the record of a vote, which shows on what it depended (sec:supp:voting-calib, sensitivity).

    A rollout of the winning answer flips it by falling below `flips_at`, another by rising above it. Every factor of
    w_j is at most 1, and so is the ceiling. All weights 0, or no such rollout: ().
    """
    w = _check_weights(answers, weights)
    scores = class_scores(answers, w)
    ranked = list(scores)
    if not ranked or scores[ranked[0]] <= 0.0:
        return ()
    winner, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    flips = []
    for j, (answer, weight) in enumerate(zip(answers, w, strict=True)):
        if answer is None:
            continue
        if answer == winner:
            if runner_up is None:
                continue
            threshold, new_answer = weight - (scores[winner] - scores[runner_up]), runner_up
        else:
            threshold, new_answer = weight + (scores[winner] - scores[answer]), answer
        if 0.0 < threshold < ceiling:  # at 0 or at the ceiling itself there is no weight left that is past it
            flips.append(Flip(j, weight, threshold, new_answer))
    return tuple(sorted(flips, key=lambda flip: (flip.change, flip.rollout)))


def _check_weights(answers: Sequence[Answer], weights: ArrayLike) -> list[float]:
    w = np.atleast_1d(np.asarray(weights, dtype=np.float64))
    if w.shape != (len(answers),):
        raise ValueError(f"{len(answers)} answers, but {w.size} weights: expected one for each rollout")
    if np.any(w < 0.0) or np.any(np.isinf(w)):
        raise ValueError("vote weights must be finite and 0 or more")
    return np.where(np.isnan(w), 0.0, w).tolist()
