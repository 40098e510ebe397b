"""The evidence page of a vote: why an answer won, term by term, and which changed weight would have flipped it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from pixelis import __version__
from pixelis.view.page import asset, content_hash, environment

TERMS = (
    ("certainty", "exp(−H)", "how certain the policy was of the tokens of its decisive steps"),
    ("calibrated", "Cal", "the calibrated probability of answer and tools"),
    ("fidelity", "VisFid", "how far its regions, tracks and texts agree with those of the others"),
    ("reliability", "r", "how often this sequence of tools agreed with the others before (Dawid–Skene)"),
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
    merged: bool
    """Another rollout of its group of near-duplicates votes for it."""


def ballots_of(row: Mapping[str, Any]) -> list[BallotView]:
    vote = row["vote"]
    total = vote["total"]
    won = str(row["answer"]).casefold()
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
                merged=answered and ballot["weight"] == 0.0,
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
            f"{row['answer']!r} has {100 * vote['share']:.0f} % of the weight, from {len(own)} of "
            f"{len(vote['ballots'])} rollouts; it leads by a margin of {vote['margin']:.2f}."
        ]
        others = [(a, s) for a, s in vote["scores"].items() if a != row["answer"].casefold()]
        listed = [f"{short(a)!r} {100 * s:.0f} %" for a, s in others[:LISTED]]
        rest = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        said += [f"Against it: {', '.join(listed)}{rest}."] if others else []
        said += [f"It was not given: {vote['reason']}."] if not row["answered"] else []
    if vote["conformal_set"] is not None:
        said.append(f"Conformal set: {', '.join(map(repr, vote['conformal_set'])) or 'empty'}.")
    if vote["majority"] is not None and row["answer"] is not None and vote["majority"] != row["answer"].casefold():
        said.append(f"A plain majority would have said {vote['majority']!r}.")
    for flip in vote["flips"]:
        way = "falling under" if flip["flips_at"] < flip["weight"] else "rising over"
        said.append(
            f"The weight of rollout {flip['rollout'] + 1} ({flip['weight']:.3f}), {way} {flip['flips_at']:.3f}, alone "
            f"would have made it {flip['answer']!r}."
        )
    if not vote["flips"] and row["answer"] is not None:
        said.append("No single weight could have changed it.")
    said.append("The policy learnt from it." if row["learnt"] else f"Nothing was learnt from it: {row['why']}.")
    return said


def short(answer: str) -> str:
    """An answer as a sentence quotes it."""
    return answer if len(answer) <= QUOTED else f"{answer[:QUOTED]}…"


def vote_page(row: Mapping[str, Any]) -> str:
    """One self-contained HTML file for a row of an adaptation's ledger."""
    style = asset("vote.css")
    policy = f"default-src 'none'; style-src '{content_hash(style)}'; base-uri 'none'; form-action 'none'"
    return (
        environment()
        .get_template("vote.html")
        .render(
            row=row,
            ballots=ballots_of(row),
            sentences=sentences(row),
            terms=TERMS,
            style=Markup(style),  # noqa: S704 - our own file
            policy=policy,
            version=__version__,
        )
    )
