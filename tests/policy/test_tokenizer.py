"""Words to ids and back; what a person types is never control."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis.policy.tokenizer import SPECIAL_TOKENS, TAG_TOKENS, PolicyTokenizer, train_tokenizer


def pieces(tokens: PolicyTokenizer, text: str, **options: bool) -> list[str]:
    return [tokens.decode([k]) for k in tokens.encode(text, **options)]


def test_each_coordinate_from_0_to_1_is_one_token(tokens: PolicyTokenizer):
    assert all(len(tokens.encode(f"{k / 100:.2f}")) == 1 for k in range(101))
    assert pieces(tokens, "[0.31, 0.20]") == ["[", "0.31, ", "0.20]"]  # in a box it takes the sign behind it
    assert pieces(tokens, "at 0.31.")[1:] == [" 0.31", "."]


@pytest.mark.parametrize("number", ["10.31", "0.312", "3.5"])
def test_part_of_a_longer_number_is_no_coordinate(tokens: PolicyTokenizer, number: str):
    assert all(len(piece.strip(" .")) <= 1 for piece in pieces(tokens, number))


def test_the_head_of_a_call_and_its_keys_are_one_token_each(tokens: PolicyTokenizer):
    assert pieces(tokens, '{"name": "SEG", "arguments": {"target": "red panel"}}') == [
        '{"name": "SEG", "arguments": {', '"target": ', '"', "red", " panel", '"}}',
    ]  # fmt: skip


def test_an_unknown_word_has_the_same_tokens_after_a_space_a_quote_and_a_bracket(tokens: PolicyTokenizer):
    alone = pieces(tokens, "Quimblor")
    for around in ("the Quimblor", '"Quimblor"', "[Quimblor]"):
        found = pieces(tokens, around)
        assert any(found[k : k + len(alone)] == alone for k in range(len(found)))


@given(st.text(max_size=60))
def test_any_text_comes_back(tokens: PolicyTokenizer, text: str):
    text = text.encode("utf-8", "ignore").decode()
    assert tokens.decode(tokens.encode(text)) == text


@given(st.lists(st.sampled_from([*SPECIAL_TOKENS, *TAG_TOKENS, "<", "|", ">", "a", " "]), max_size=8).map("".join))
def test_tags_that_a_person_typed_are_letters_and_nothing_else(tokens: PolicyTokenizer, text: str):
    ids = tokens.encode(text)
    assert not set(ids) & set(tokens.control_ids.values())
    assert tokens.decode(ids) == text


def test_tags_of_our_own_are_one_control_token_each(tokens: PolicyTokenizer):
    assert [tokens.encode(tag, control=True) for tag in TAG_TOKENS] == [[tokens.control_ids[tag]] for tag in TAG_TOKENS]
    assert tokens.tags_are_tokens


def test_nothing_of_a_picture_or_a_turn_can_be_sampled_but_its_end(tokens: PolicyTokenizer):
    assert set(tokens.banned_ids) == {tokens.control_ids[t] for t in SPECIAL_TOKENS if t != "<|im_end|>"}


def test_a_tag_that_only_the_model_knows_is_control_too(schemas):
    known = train_tokenizer(["Read the red panel."] * 40, schemas, vocabulary=300)
    known.add_tokens(["<think>"])
    tokens = PolicyTokenizer(known)
    thinking = tokens.control_ids["<think>"]
    assert thinking not in tokens.encode("is <think> a word?")
    assert tokens.encode("<think>", control=True) == [thinking]
    assert tokens.decode(tokens.encode("is <think> a word?")) == "is <think> a word?"


def test_a_box_stands_right_behind_the_last_letters_of_its_line(tokens: PolicyTokenizer):
    line = tokens.encode('"Zorvan" at [0.10, 0.20, 0.90, 0.80]; "Zorvan"')
    between = tokens.encode('" at [')
    assert len(between) == 1
    at = line.index(between[0])
    assert tokens.decode(line[at + 1 : at + 2]) == "0.10, "
    assert len(tokens.encode('; "')) == 1
