"""The page of a vote: a row written by hand, and what a reader is told."""

import pytest

from pixelis.view.vote_page import ballot_views, describe_vote, vote_page
from tests.view.conftest import ballot


def test_every_term_of_every_rollout_is_there(row):
    first, second, third, merged = ballot_views(row)
    assert first.terms == [("exp(−H)", 1.0), ("Cal", 0.8), ("VisFid", 0.5), ("r", 1.0)]
    assert second.terms[0] == ("exp(−H)", pytest.approx(0.5))
    assert first.share == pytest.approx(100 * 0.4 / 0.9)
    row["vote"] |= {"total": 1.6, "ballots": [*row["vote"]["ballots"], ballot(None, 0.5)]}
    # neighbours voted with 0.7; a rollout without an answer casts no vote, whatever it weighs
    assert [b.share for b in ballot_views(row)] == pytest.approx([25.0, 12.5, 18.75, 0.0, 0.0])
    assert [b.won for b in (first, second, third)] == [True, True, False]
    assert merged.merged
    assert not first.merged


def test_why_it_won_and_what_would_have_flipped_it_is_said(row):
    told = " ".join(describe_vote(row))
    assert "'Red' has 67 % of the vote, from 3 of 4 rollouts; it leads by a margin of 0.33." in told
    assert "Against it: 'blue' 33 %." in told
    assert "The weight of rollout 1 (0.400), falling under 0.100, alone would have made it 'blue'." in told
    assert "The weight of rollout 3 (0.300), rising over 0.600, alone would have made it 'blue'." in told
    assert "Rollouts 1 and 4 looked at the same regions and share one vote." in told
    assert told.endswith("The policy was updated on it.")
    row["alike"] = True
    row["vote"]["flips"] = [{"rollout": 1, "weight": 0.2, "flips_at": 0.2001, "answer": "blue"}]
    told = " ".join(describe_vote(row))
    assert "The weight of rollout 2 (0.200) being any more would have made it 'blue'." in told
    assert told.endswith("It was accepted without an update: all rollouts have the expected reward.")
    row["vote"]["ballots"][3] |= {"group": 3}
    told = " ".join(describe_vote(row))
    assert "one vote" not in told
    assert "gave no answer" not in told
    row["vote"]["ballots"].append(ballot(None, 0.0))
    assert "1 of them gave no answer: their part of the vote goes to no answer." in " ".join(describe_vote(row))


def test_an_abstention_says_why(row):
    row |= {"answered": False, "learnt": False, "why": "margin 0.333 under 0.5"}
    row["vote"] |= {"reason": "margin 0.333 under 0.5", "majority": "blue", "flips": []}
    told = " ".join(describe_vote(row))
    assert "It was withheld: margin 0.333 under 0.5." in told
    assert "A plain majority would have said 'blue'." in told
    assert "No single weight could have changed it." in told
    assert told.endswith("No update was made: margin 0.333 under 0.5.")


def test_many_and_long_answers_are_cut_short_in_words(row):
    row["vote"]["scores"] = {"red": 0.5, "x" * 99: 0.1} | {f"other {k}": 0.1 for k in range(4)}
    told = describe_vote(row)[1]
    assert told.startswith(
        f"Against it: '{'x' * 60}…' 10 %, 'other 0' 10 %, 'other 1' 10 %, 'other 2' 10 % and 1 more."
    )
    assert "(withheld)" not in vote_page(row)
    assert "<bdi>Red</bdi> (withheld)" in vote_page(row | {"answered": False})


def test_a_vote_without_an_answer_has_a_page(row):
    row |= {"answer": None, "answered": False, "learnt": False, "why": "no rollout voted with weight"}
    row["vote"] |= {
        "reason": "no rollout voted with weight", "ballots": [ballot(None, 0.0)], "flips": [], "scores": {},
        "majority": None, "conformal_set": [],
    }  # fmt: skip
    assert "No answer: no rollout voted with weight." in vote_page(row)


def test_what_a_question_says_is_text_and_the_page_asks_nobody(row):
    row["question"] = "<script>alert(1)</script>"
    page = vote_page(row)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<tr") == 5
