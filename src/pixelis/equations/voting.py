"""The vote over rollouts: weights, class scores, margin, the low-entropy gate and abstention, term by term."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.equations.conformal import prediction_set

Answer = Hashable | None
"""None is a rollout without an answer: it is kept in the record, and its part of the vote goes to nobody."""


class VoteWeights(NamedTuple):
    """w_j and the four factors that it multiplies, each (N,)."""

    certainty: NDArray[np.float64]
    """exp(-H_j), H_j the token entropy on decisive steps."""
    calibration: NDArray[np.float64]
    """Cal_j, the calibrated confidence."""
    fidelity: NDArray[np.float64]
    """VisFid of the trajectory."""
    reliability: NDArray[np.float64]
    """r_j of Dawid and Skene."""
    product: NDArray[np.float64]
    """What is voted with, in [0, 1]."""

    @property
    def share(self) -> NDArray[np.float64]:
        """The weights over their sum; all 0 where every weight is."""
        total = fsum(self.product.tolist())
        return self.product / total if total > 0.0 else np.zeros_like(self.product)


class Consensus(NamedTuple):
    """What the rollouts agreed on, and why it counts or not."""

    answer: Answer
    """The heaviest answer; None where nobody voted with weight."""
    margin: float
    """(best score - second best) / sum of scores, times the share of rollouts that gave an answer, in [0, 1]; 1 where
    all gave the same, 0 where nobody gave one."""
    accepted: bool
    """m(q) = 1: the margin reaches delta and the conformal set holds this answer alone."""
    scores: dict[Hashable, float]
    """s(a) over the sum, heaviest first; together the share of rollouts that gave an answer."""
    conformal_set: tuple[Hashable, ...] | None
    """Answers that cannot be ruled out; None where no threshold was given."""
    majority: Answer
    """The most frequent answer, weights and near-duplicates aside: the hard majority of tab:risk_coverage."""
    most_frequent: bool
    """No answer was given by more rollouts than the voted one, nor did more give none: it is a plain majority too."""
    agreement: float
    """Share of all rollouts that gave the voted answer."""
    enough_agreement: bool
    """It is as large as is wanted of what teaches."""
    entropy: float
    """Entropy of the answers' frequencies over log N, in [0, 1], N all rollouts, silence being one answer more."""
    low_entropy: bool
    """The gate of the successful set: entropy under 0.2."""
    reason: str
    """Why not accepted, in a few words; empty where it was."""

    @property
    def mask(self) -> int:
        """m(q) of (eq:ttrl_clean_loss)."""
        return int(self.accepted)

    @property
    def allows_update(self) -> bool:
        """May the policy learn from it: an accepted update passes entropy and mask both (supp:budget_fairness).

        The low entropy must be that of the voted answer: seven of eight who say something else are no agreement.
        """
        return self.accepted and self.low_entropy and self.most_frequent and self.enough_agreement


class Flip(NamedTuple):
    """The weight from which on one rollout alone would change the answer."""

    rollout: int
    weight: float
    """Its weight as it was."""
    flips_at: float
    """Past this weight (above it for a loser, below it for a winner) `answer` wins."""
    answer: Hashable

    @property
    def change(self) -> float:
        return abs(self.flips_at - self.weight)


def decisive_entropy(token_entropy: ArrayLike, decisive: ArrayLike) -> float:
    """H_j: mean entropy, in nats, of the sampled tokens that belong to decisive steps (subsec:ttrl).

    `token_entropy` and `decisive` have one entry for each sampled token. A rollout without decisive steps is judged by
    all of its tokens; one without tokens has NaN, which carries no weight in `vote_weights`.
    """
    entropy = np.atleast_1d(np.asarray(token_entropy, dtype=np.float64))
    decisive_mask = np.atleast_1d(np.asarray(decisive, dtype=bool))
    if entropy.shape != decisive_mask.shape:
        raise ValueError(
            f"{entropy.size} token entropies, but {decisive_mask.size} marks of decisive tokens: want equal"
        )
    selected = entropy[decisive_mask] if decisive_mask.any() else entropy
    return float(selected.mean()) if selected.size else float("nan")


def vote_weights(
    entropy: ArrayLike, calibration: ArrayLike, fidelity: ArrayLike, reliability: ArrayLike | None = None
) -> VoteWeights:
    """w_j proportional to exp(-H_j) Cal_j VisFid_j r_j (sec:supp:voting-calib, supp:ttrl_loss_clean).

    A NaN in any factor makes that factor 0: what is not known carries no weight. Without `reliability`, r_j = 1.
    Raises ValueError on lengths that differ and on a factor under 0.
    """
    H = np.atleast_1d(np.asarray(entropy, dtype=np.float64))
    ones = np.ones_like(H) if reliability is None else reliability
    rest = {"calibration": calibration, "fidelity": fidelity, "reliability": ones}
    factors = {"certainty": np.exp(-np.maximum(H, 0.0))}  # rounding may put an entropy just under 0
    factors |= {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in rest.items()}
    for name, value in factors.items():
        if value.shape != H.shape:
            raise ValueError(f"{H.size} entropies, but {value.size} values of {name}: want one for each rollout")
        if np.any(value < 0.0):
            raise ValueError(f"{name} of rollout {int(np.argmax(value < 0.0))} is negative: want 0 or more")
    finite_factors = {name: np.where(np.isnan(value), 0.0, value) for name, value in factors.items()}
    return VoteWeights(**finite_factors, product=np.prod(list(finite_factors.values()), axis=0))


def merge_duplicate_votes(weights: NDArray[np.float64], groups: Sequence[int]) -> NDArray[np.float64]:
    """Weights after near-duplicates were merged: a group votes once, with its best weight (supp:ttrl_loss_clean)."""
    if len(groups) != len(weights):
        raise ValueError(f"{len(weights)} weights, but {len(groups)} groups: want one for each rollout")
    best: dict[int, int] = {}
    for j, group in enumerate(groups):
        if group not in best or weights[j] > weights[best[group]]:
            best[group] = j
    merged = np.zeros_like(weights)
    merged[list(best.values())] = weights[list(best.values())]
    return merged


def class_scores(answers: Sequence[Answer], weights: ArrayLike) -> dict[Hashable, float]:
    """s(a) = sum of w_j over the rollouts that answered a, heaviest first (supp:ttrl_loss_clean, pseudo-code).

    Summed exactly, and ties ordered by how many rollouts gave the answer, then by its text, so that the order of the
    rollouts decides nothing.
    """
    w = _check_weights(answers, weights)
    votes: dict[Hashable, list[float]] = {}
    for answer, weight in zip(answers, w, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(weight)
    ordered = sorted(votes, key=lambda a: (-fsum(votes[a]), -len(votes[a]), repr(a)))
    return {answer: fsum(votes[answer]) for answer in ordered}


def normalised_margin(scores: ArrayLike) -> float:
    """(largest - second largest) / sum (sec:supp:voting-calib); 1 for a single answer, 0 where nothing has weight."""
    ranked = sorted(np.asarray(scores, dtype=np.float64).tolist(), reverse=True)
    total = fsum(ranked)
    if total <= 0.0:
        return 0.0
    return (ranked[0] - (ranked[1] if len(ranked) > 1 else 0.0)) / total


def answer_entropy(answers: Sequence[Answer]) -> float:
    """Entropy of the answers' frequencies over log N, N rollouts: 0 unanimous, 1 all different (subsec:ttrl).

    Over log N, 7 of 8 gives 0.18 and passes the paper's 0.2, 6 of 8 gives 0.27 and does not; in nats only unanimity
    would ever pass. To give no answer counts as one answer more. Fewer than two rollouts: 0.
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

    m(q) = 1 iff the margin is at least `delta` and the conformal set holds one answer: an answer is in it when
    1 - its vote share is at most `conformal_threshold`. Without a threshold the margin alone decides. Majority and
    entropy are taken over the answers of all rollouts, whatever they weigh: equal chains are one vote where an answer
    is chosen, but seven of eight that came to the same answer do agree. `own` are those answers (the ones that are
    voted with, unless told): others may vote from outside. A rollout without an answer takes its part of the vote with
    it: one voice among seven that say nothing has a share and a margin of an eighth.
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

    For the record of a vote, so that a reader sees what it hung on (sec:supp:voting-calib, sensitivity).

    A rollout of the winning answer flips it by falling under `flips_at`, another by rising over it. Every factor of
    w_j is at most 1, and so is the ceiling. Nobody voted with weight, or nothing flips it: ().
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
        raise ValueError(f"{len(answers)} answers, but {w.size} weights: want one for each rollout")
    if np.any(w < 0.0) or np.any(np.isinf(w)):
        raise ValueError("vote weights must be finite and 0 or more")
    return np.where(np.isnan(w), 0.0, w).tolist()
