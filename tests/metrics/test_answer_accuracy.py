"""Answers: matching rules by example, and VSI-Bench's MRA against two recorded scorers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.metrics.answer_accuracy import (
    choice_letter,
    choice_match,
    exact_match,
    mean_relative_accuracy,
    parse_number,
    relative_accuracy,
    relaxed_match,
)

ANIMALS = ["A. a cat", "B. a dog", "C. an owl"]


def test_exact_match_ignores_case_punctuation_and_blanks():
    assert exact_match(" The  Dog. ", ["a cat", "the dog"])
    assert not exact_match("3.5", ["35"])


def test_nothing_matches_no_gold():
    assert not exact_match("anything", [])


@pytest.mark.parametrize(
    "text",
    ["B", "b", " (B) ", "B.", "B) a dog", "b: a dog", "The answer is B.", "Answer: (B)", "I choose option B", "a dog",
     "A DOG!", "It must be (b), clearly", "B because it barks", "answer=B"],
)  # fmt: skip
def test_these_all_choose_b(text):
    assert choice_letter(text, ANIMALS) == "B"


@pytest.mark.parametrize("text", ["", "D", "I think so", "A dog or a cat", "(A) or (B)", "none of them", "Because"])
def test_these_choose_nothing(text):
    assert choice_letter(text, ANIMALS) is None


def test_a_bare_letter_is_a_letter_even_where_an_option_reads_like_it():
    assert choice_letter("A", ["B", "A"]) == "A"


def test_a_choice_matches_by_letter_or_by_the_gold_text():
    assert choice_match("The answer is C", "C", ANIMALS)
    assert choice_match("(C)", "an owl", ANIMALS)
    assert not choice_match("no idea", "C", ANIMALS)
    assert choice_match("E", "E")


def test_numbers_may_be_off_by_five_percent_and_words_may_not():
    assert relaxed_match("105", "100")
    assert not relaxed_match("105.1", "100")
    assert relaxed_match("$1,200", "1200")
    assert relaxed_match("12%", "0.12")
    assert relaxed_match("Blue.", "blue")
    assert not relaxed_match("blue", "12")


def test_a_gold_of_zero_wants_zero():
    assert relaxed_match("0.0", "0")
    assert not relaxed_match("0.001", "0")


def test_the_official_reading_takes_the_first_word_and_the_other_the_first_number():
    assert parse_number("4 chairs") == 4
    assert parse_number("There are 4 chairs") is None
    assert parse_number("There are 4 chairs", reading="lmms") == 4
    assert parse_number("about seventy two of them", reading="lmms") == 72
    assert parse_number("seventeen", reading="lmms") == 17
    assert parse_number("nan") is None
    assert parse_number("no idea", reading="lmms") is None


def test_relative_accuracy_counts_the_thresholds_that_the_error_passes():
    assert relative_accuracy(3, 4) == pytest.approx(0.6)  # error 0.25: θ = 0.50 ... 0.75
    assert relative_accuracy(4, 4) == 1.0
    assert relative_accuracy(9, 4) == 0.0
    assert relative_accuracy(-3, -4) == pytest.approx(0.6)


def test_relative_accuracy_of_no_number_is_0_and_a_gold_of_0_wants_0():
    assert relative_accuracy(None, 4) == relative_accuracy(float("nan"), 4) == relative_accuracy(float("inf"), 4) == 0
    assert relative_accuracy(0, 0) == 1.0
    assert relative_accuracy(0.1, 0) == 0.0


@given(st.floats(0.1, 100), st.floats(-1, 1), st.floats(0, 1))
def test_a_smaller_error_never_scores_less(gold, error, shrink):
    assert relative_accuracy(gold + gold * error * shrink, gold) >= relative_accuracy(gold + gold * error, gold) - 1e-12


def test_mra_averages_and_refuses_what_it_cannot_score():
    assert mean_relative_accuracy(["3", "4"], ["4", 4]) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="1 predictions and 2 golds"):
        mean_relative_accuracy(["3"], ["4", "4"])
    with pytest.raises(ValueError, match="at least one"):
        mean_relative_accuracy([], [])
    with pytest.raises(ValueError, match="'many' is not a number"):
        mean_relative_accuracy(["3"], ["many"])


@pytest.mark.parametrize(("reading", "key"), [("official", "mra_official_repo"), ("lmms", "mra_lmms_2026")])
def test_mra_equals_both_recorded_scorers(realdata, reading, key):
    rows = json.loads((realdata / "benchmarks" / "golden_vsi_mra.json").read_text(encoding="utf-8"))
    ours = [mean_relative_accuracy([row["pred"]], [row["gt"]], reading=reading) for row in rows]
    assert ours == pytest.approx([row[key] for row in rows])
