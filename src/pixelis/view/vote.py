"""The evidence page of a vote: why an answer won, term by term, and which changed weight would have flipped it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from pixelis import __version__
from pixelis.view.templating import asset, content_hash, environment

TERMS = (
    ("certainty", "exp(−H)", "how certain the policy was of the tokens of its decisive steps"),
    ("calibrated", "Cal", "the calibrated probability of answer and tools"),
    (
        "fidelity",
        "VisFid",
        "how far its decisive regions, tracks and texts agree with the like of other rollouts, whatever they answered; "
        "0.5 where nobody else looked, and near-duplicates do not vouch for one another",
    ),
    (
        "reliability",
        "r",
        "how often this sequence of tools was with the majority in queries before (Dawid–Skene); of one that was seen "
        "too seldom, how many of the other rollouts agree with it here",
    ),
)


LISTED = 4
"""Other answers that are told in words; the table has them all."""
QUOTED = 60


class BallotView(NamedTuple):
    """One rollout as its line shows it."""

    number: int
    answer: str
    tools: str
    terms: list[tuple[str, float]]
    weight: float
    share: float
    """Of all weight that was voted with, in percent; 0 for a rollout without an answer, which casts no vote."""
    won: bool
    exemplar: bool
    shown: bool
    """Its chain is the one on the page."""
    merged: bool
    """Another rollout of its group of near-duplicates votes for it."""


class VoteView(NamedTuple):
    """A vote as a page shows it."""

    ballots: list[BallotView]
    sentences: list[str]


def vote_view(row: Mapping[str, Any]) -> VoteView:
    """Of a row of a ledger, or of an answer by several samples: `answer`, `answered` and `vote` are needed."""
    return VoteView(ballots_of(row), sentences(row))


def ballots_of(row: Mapping[str, Any]) -> list[BallotView]:
    vote = row["vote"]
    total = vote["total"]
    won = str(row["answer"]).casefold()
    twice = {number for same in one_vote(vote) for number in same}
    out = []
    for k, ballot in enumerate(vote["ballots"]):
        known = {**ballot, "certainty": math.exp(-ballot["entropy"])}
        terms = [(name, float(known[key])) for key, name, _ in TERMS]
        answered = ballot["answer"] is not None
        out.append(
            BallotView(
                number=k + 1,
                answer=ballot["spelt"] or "no answer",
                tools=" → ".join(ballot["tools"]) or "no call",
                terms=terms,
                weight=ballot["weight"],
                share=100.0 * ballot["weight"] / total if answered and total > 0.0 else 0.0,
                won=answered and row["answer"] is not None and ballot["answer"] == won,
                exemplar=vote["exemplar"] == k,
                shown=vote.get("shown") == k,
                merged=k + 1 in twice and ballot["weight"] == 0.0,
            )
        )
    return out


def sentences(row: Mapping[str, Any]) -> list[str]:
    """What the vote came to, in words."""
    vote = row["vote"]
    if row["answer"] is None:
        said = [f"No answer: {vote['reason']}."]
    else:
        own = [b for b in ballots_of(row) if b.won]
        said = [
            f"{row['answer']!r} has {100 * vote['share']:.0f} % of the vote, from {len(own)} of "
            f"{len(vote['ballots'])} rollouts; it leads by a margin of {vote['margin']:.2f}."
        ]
        silent = sum(ballot["answer"] is None for ballot in vote["ballots"])
        said += [f"{silent} of them gave no answer: that part of the vote is nobody's."] if silent else []
        others = [(a, s) for a, s in vote["scores"].items() if a != row["answer"].casefold()]
        listed = [f"{short(a)!r} {100 * s:.0f} %" for a, s in others[:LISTED]]
        rest = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        said += [f"Against it: {', '.join(listed)}{rest}."] if others else []
        said += [f"It was not given: {vote['reason']}."] if not row["answered"] and vote["reason"] else []
    said += [f"Rollouts {listed_in_words(same)} looked at the same, and are one vote." for same in one_vote(vote)]
    if vote["conformal_set"] is not None:
        said.append(f"Conformal set: {', '.join(map(repr, vote['conformal_set'])) or 'empty'}.")
    if vote["majority"] is not None and row["answer"] is not None and vote["majority"] != row["answer"].casefold():
        said.append(f"A plain majority would have said {vote['majority']!r}.")
    said += [flipped_by(flip) for flip in vote["flips"]]
    if not vote["flips"] and row["answer"] is not None:
        said.append("No single weight could have changed it.")
    if "learnt" in row:
        said.append(learnt_from(row))
    return said


def flipped_by(flip: Mapping[str, Any]) -> str:
    """Which change of one weight would have made it another answer."""
    now, then, falls = f"{flip['weight']:.3f}", f"{flip['flips_at']:.3f}", flip["flips_at"] < flip["weight"]
    how = f", {'falling under' if falls else 'rising over'} {then}, alone"
    if now == then:
        how = f" being any {'less' if falls else 'more'}"
    return f"The weight of rollout {flip['rollout'] + 1} ({now}){how} would have made it {flip['answer']!r}."


def learnt_from(row: Mapping[str, Any]) -> str:
    if not row["learnt"]:
        return f"Nothing was learnt from it: {row['why']}."
    if row.get("alike"):
        return "It was accepted, and had nothing to teach: every rollout did as well as was expected."
    return "The policy learnt from it."


def facts_of(row: Mapping[str, Any]) -> list[str]:
    """What a row knows besides its vote: whether it was right, where anybody knows, and who was near."""
    said = []
    if row.get("score") is not None and row["answer"] is not None:
        said.append(f"Scored afterwards: {row['score']:.2f} of 1.")
    if row.get("neighbours"):
        near = [similarity for _, similarity in row["neighbours"]]
        said.append(f"{len(near)} neighbours in the memory, the nearest at {max(near):.2f}; v̄ = {row['value']:.2f}.")
    return said


def one_vote(vote: Mapping[str, Any]) -> list[list[int]]:
    """Groups of near-duplicates, by the numbers of their rollouts."""
    found: dict[int, list[int]] = {}
    for number, ballot in enumerate(vote["ballots"], start=1):
        if ballot["answer"] is not None:
            found.setdefault(ballot["group"], []).append(number)
    return [same for same in found.values() if len(same) > 1]


def listed_in_words(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def short(answer: str) -> str:
    """An answer as a sentence quotes it."""
    return answer if len(answer) <= QUOTED else f"{answer[:QUOTED]}…"


def vote_page(row: Mapping[str, Any]) -> str:
    """One self-contained HTML file for a row of an adaptation's ledger."""
    style = asset("page.css")
    policy = f"default-src 'none'; style-src '{content_hash(style)}'; base-uri 'none'; form-action 'none'"
    return (
        environment()
        .get_template("vote.html")
        .render(
            row=row,
            view=vote_view(row),
            facts=facts_of(row),
            terms=TERMS,
            style=Markup(style),  # noqa: S704 - our own file
            policy=policy,
            version=__version__,
        )
    )
