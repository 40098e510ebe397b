"""Strings: ANLS, CER and normalisation, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.metrics.text import (
    anls,
    cer,
    corpus_cer,
    mean_anls,
    nearest_gold,
    normalise_text,
    normalised_anls,
    normalised_distance,
)


def test_nfkc_makes_full_width_letters_and_ligatures_plain():
    assert normalise_text("Ｆｉｎｅ ﬁsh, №5!") == "fine fish no5"


def test_punctuation_goes_unless_it_carries_a_number():
    assert normalise_text("“Don't” — (stop).") == "dont stop"
    assert normalise_text("-3.5 at 12:30, twenty-one") == "-3.5 at 12:30 twentyone"


def test_white_space_runs_are_one_blank_and_case_may_stay():
    assert normalise_text(" A\t b\n\nC ") == "a b c"
    assert normalise_text("A b", fold_case=False) == "A b"


@given(st.text())
def test_normalised_text_has_no_runs_of_blanks_and_no_blank_ends(text):
    once = normalise_text(text)
    assert "  " not in once
    assert once == once.strip()


def test_one_wrong_letter_of_five_scores_four_fifths():
    assert anls("hallo", ["hello"]) == pytest.approx(0.8)


def test_a_similarity_of_exactly_a_half_stays_and_anything_under_it_is_0():
    assert anls("ab", ["ax"]) == 0.5
    assert anls("abc", ["axy"]) == 0.0


def test_anls_takes_the_nearest_gold_and_ignores_case_and_runs_of_blanks():
    assert anls("NEW  york", ["paris", "new york"]) == 1.0


def test_anls_counts_punctuation_and_the_normalised_one_does_not():
    assert anls("$1.50!", ["$1.50"]) == pytest.approx(1 - 1 / 6)
    assert normalised_anls("$1.50!", ["$1.50"]) == 1.0


def test_the_length_is_that_of_the_strings_as_given():
    # one edit between "a b" and "a c"; the gold as written has five characters, so 1 - 1/5
    assert anls("a b", ["a   c"]) == pytest.approx(0.8)


def test_two_empty_strings_agree_and_an_empty_answer_to_a_word_does_not():
    assert anls("", [""]) == 1.0
    assert anls("", ["word"]) == 0.0


def test_anls_without_gold_is_refused():
    with pytest.raises(ValueError, match="no gold answers"):
        anls("a", [])


def test_mean_anls_averages_and_refuses_lengths_that_differ():
    assert mean_anls(["ab", "yes"], [["ax"], ["yes"]]) == 0.75
    with pytest.raises(ValueError, match="2 predictions and 1 golds"):
        mean_anls(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="at least one"):
        mean_anls([], [])


@given(st.text(max_size=12), st.text(max_size=12))
def test_the_normalised_distance_is_symmetric_and_lies_between_0_and_1(a, b):
    assert 0 <= normalised_distance(a, b) <= 1
    assert normalised_distance(a, b) == normalised_distance(b, a)
    assert normalised_distance(a, a) == 0


def test_the_nearest_gold_is_the_one_with_the_fewest_edits_for_its_length():
    assert nearest_gold("cat", ["dog", "cart", "bat"]) == "cart"  # 1/4 beats 1/3


def test_cer_counts_edits_over_the_reference_and_may_pass_1():
    assert cer("kitten", "sitting") == pytest.approx(3 / 6)
    assert cer("a", "bcd") == 3.0


def test_cer_against_an_empty_reference_is_0_or_1():
    assert cer("", "") == 0.0
    assert cer("", "noise") == 1.0


def test_corpus_cer_weighs_long_texts_more():
    assert corpus_cer(["aaaaaaaaa", "b"], ["aaaaaaaaa", "x"]) == pytest.approx(0.1)
    assert corpus_cer([], []) == 0.0
    assert corpus_cer([""], ["x"]) == 1.0
    with pytest.raises(ValueError, match="1 references and 0 hypotheses"):
        corpus_cer(["a"], [])
