"""The evidence page of a vote: the terms of each weight, and the changes of one weight that would have flipped it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pixelis.view.templating import TERMS, render_page

MAX_LISTED_ANSWERS = 4
"""Other answers in the sentences; the table has all."""
MAX_QUOTED_CHARS = 60


class BallotView(NamedTuple):
    """One rollout, as a row of the table."""

    number: int
    answer: str
    tools: str
    terms: list[tuple[str, float]]
    weight: float
    share: float
    """Share of the sum of weights, in percent; 0 for a rollout without an answer."""
    won: bool
    exemplar: bool
    on_page: bool
    """Whether the page shows its chain."""
    merged: bool
    """Whether a near-duplicate votes for it."""


class VoteView(NamedTuple):
    """A vote, as a table and sentences."""

    ballots: list[BallotView]
    sentences: list[str]


def vote_view(row: Mapping[str, Any]) -> VoteView:
    """From a row of a ledger, or an answer by several samples: `answer`, `answered` and `vote` are required."""
    return VoteView(ballot_views(row), describe_vote(row))


def ballot_views(row: Mapping[str, Any]) -> list[BallotView]:
    vote = row["vote"]
    total = vote["total"]
    winning_answer = str(row["answer"]).casefold()
    duplicates = {number for group in duplicate_groups(vote) for number in group}
    views = []
    for k, ballot in enumerate(vote["ballots"]):
        values = {**ballot, "certainty": math.exp(-ballot["entropy"])}
        terms = [(name, float(values[key])) for key, name, _ in TERMS]
        answered = ballot["answer"] is not None
        views.append(
            BallotView(
                number=k + 1,
                answer=ballot["spelt"] or "no answer",
                tools=" → ".join(ballot["tools"]) or "no call",
                terms=terms,
                weight=ballot["weight"],
                share=100.0 * ballot["weight"] / total if answered and total > 0.0 else 0.0,
                won=answered and row["answer"] is not None and ballot["answer"] == winning_answer,
                exemplar=vote["exemplar"] == k,
                on_page=vote.get("shown") == k,
                merged=k + 1 in duplicates and ballot["weight"] == 0.0,
            )
        )
    return views


def describe_vote(row: Mapping[str, Any]) -> list[str]:
    """The result of the vote in sentences."""
    vote = row["vote"]
    if row["answer"] is None:
        lines = [f"No answer: {vote['reason']}."]
    else:
        winners = [b for b in ballot_views(row) if b.won]
        lines = [
            f"{row['answer']!r} has {100 * vote['share']:.0f} % of the vote, from {len(winners)} of "
            f"{len(vote['ballots'])} rollouts; it leads by a margin of {vote['margin']:.2f}."
        ]
        silent = sum(ballot["answer"] is None for ballot in vote["ballots"])
        lines += [f"{silent} of them gave no answer: their part of the vote goes to no answer."] if silent else []
        others = [(a, s) for a, s in vote["scores"].items() if a != row["answer"].casefold()]
        top_answers = [f"{shorten(a)!r} {100 * s:.0f} %" for a, s in others[:MAX_LISTED_ANSWERS]]
        rest = f" and {len(others) - MAX_LISTED_ANSWERS} more" if len(others) > MAX_LISTED_ANSWERS else ""
        lines += [f"Against it: {', '.join(top_answers)}{rest}."] if others else []
        lines += [f"It was withheld: {vote['reason']}."] if not row["answered"] and vote["reason"] else []
    for group in duplicate_groups(vote):
        lines.append(f"Rollouts {join_numbers(group)} looked at the same regions and share one vote.")
    if vote["conformal_set"] is not None:
        lines.append(f"Conformal set: {', '.join(map(repr, vote['conformal_set'])) or 'empty'}.")
    if vote["majority"] is not None and row["answer"] is not None and vote["majority"] != row["answer"].casefold():
        lines.append(f"A plain majority would have said {vote['majority']!r}.")
    lines += [describe_flip(flip) for flip in vote["flips"]]
    if not vote["flips"] and row["answer"] is not None:
        lines.append("No single weight could have changed it.")
    if "learnt" in row:
        lines.append(describe_update(row))
    return lines


def describe_flip(flip: Mapping[str, Any]) -> str:
    """The change of one weight that would have changed the answer."""
    weight, flip_weight = f"{flip['weight']:.3f}", f"{flip['flips_at']:.3f}"
    is_lower = flip["flips_at"] < flip["weight"]
    change = f", {'falling under' if is_lower else 'rising over'} {flip_weight}, alone"
    if weight == flip_weight:
        change = f" being any {'less' if is_lower else 'more'}"
    return f"The weight of rollout {flip['rollout'] + 1} ({weight}){change} would have made it {flip['answer']!r}."


def describe_update(row: Mapping[str, Any]) -> str:
    if not row["learnt"]:
        return f"No update was made: {row['why']}."
    if row.get("alike"):
        return "It was accepted without an update: all rollouts have the expected reward."
    return "The policy was updated on it."


def row_facts(row: Mapping[str, Any]) -> list[str]:
    """Further facts of a row: its score, if known, and its neighbours."""
    lines = []
    if row.get("score") is not None and row["answer"] is not None:
        lines.append(f"Its score, computed afterwards: {row['score']:.2f} of 1.")
    if row.get("neighbours"):
        similarities = [similarity for _, similarity in row["neighbours"]]
        nearest = f"the nearest at {max(similarities):.2f}; v̄ = {row['value']:.2f}"
        lines.append(f"{len(similarities)} neighbours in the memory, {nearest}.")
    return lines


def duplicate_groups(vote: Mapping[str, Any]) -> list[list[int]]:
    """Groups of near-duplicates, as numbers of rollouts."""
    groups: dict[int, list[int]] = {}
    for number, ballot in enumerate(vote["ballots"], start=1):
        if ballot["answer"] is not None:
            groups.setdefault(ballot["group"], []).append(number)
    return [group for group in groups.values() if len(group) > 1]


def join_numbers(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def shorten(answer: str) -> str:
    """An answer, shortened for a sentence."""
    return answer if len(answer) <= MAX_QUOTED_CHARS else f"{answer[:MAX_QUOTED_CHARS]}…"


def vote_page(row: Mapping[str, Any]) -> str:
    """The page of one row of an adaptation's ledger."""
    return render_page("vote.html", row=row, view=vote_view(row), facts=row_facts(row))
