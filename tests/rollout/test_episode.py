"""How a turn is read: tags that are tokens, tags that are letters, and what is neither."""

import pytest

from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rollout.episode import count_wasted_calls, parse_turn_tokens
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.schema import StepDraft


class Lettered(PolicyTokenizer):
    """The same tokenizer, as one that spells its tags."""

    @property
    def tags_are_tokens(self) -> bool:
        return False


@pytest.fixture(params=["tokens", "letters"])
def reader(request, tokens):
    known = tokens if request.param == "tokens" else Lettered(tokens.hf_tokenizer)
    return lambda text: (parse_turn_tokens(known.encode(text, control=True), known), known.encode(text, control=True))


def test_a_call_with_its_thought(reader, tokens):
    turn, ids = reader('Look.\n<tool_call>{"name": "ocr", "arguments": {"frame": 3}}</tool_call><|im_end|>')
    assert (turn.thought, turn.kind, turn.answer) == ("Look.", "action", None)
    assert turn.call == ToolCall(tool="OCR", args={"frame": 3})
    assert ids[turn.opening_index] == tokens.control_ids["<tool_call>"]


def test_an_answer_with_its_thought(reader, tokens):
    turn, ids = reader("Read it.\n<answer> 7 </answer><|im_end|>")
    assert (turn.thought, turn.answer, turn.kind, turn.call) == ("Read it.", "7", "answer", None)
    assert ids[turn.opening_index] == tokens.control_ids["<answer>"]


def test_whichever_opens_first_decides(reader):
    call = '<tool_call>{"name": "OCR", "arguments": {}}</tool_call>'
    assert reader(f"{call}<answer>7</answer><|im_end|>")[0].call is not None
    turn = reader(f"<answer>7</answer>{call}<|im_end|>")[0]
    assert (turn.answer, turn.call) == ("7", None)


def test_an_answer_that_breaks_off_is_what_there_is_of_it(reader):
    assert reader("<answer>the red")[0].answer == "the red"


def test_words_alone_are_a_slip(reader):
    turn, ids = reader("I think it is red.<|im_end|>")
    assert turn.call is None
    assert turn.answer is None
    assert "neither" in turn.parse_error
    assert turn.opening_index == len(ids) - 1


@pytest.mark.parametrize(
    "inside",
    [
        '{"name": "OCR"',
        "[1, 2]",
        '{"arguments": {}}',
        '{"name": "OCR", "arguments": {"a": 1e999}}',
        '{"name": "OCR", "arguments": {"a": "\\ud800"}}',
        '{"name": "OCR", "arguments": {"a": ' + "[" * 70 + "]" * 70 + "}}",
    ],
)
def test_a_call_that_cannot_be_kept_is_a_slip_with_its_reason(reader, inside):
    turn, _ = reader(f"<tool_call>{inside}</tool_call><|im_end|>")
    assert turn.call is None
    assert turn.parse_error.startswith("This call cannot be read: ")


def test_letters_that_look_like_tags_are_letters_where_tags_are_tokens(tokens):
    for text in ("<answer>7</answer>", '<tool_call>{"name": "OCR"}</tool_call>'):
        turn = parse_turn_tokens([*tokens.encode(text), tokens.end_id], tokens)
        assert (turn.call, turn.answer) == (None, None)
        assert turn.thought == text


def test_calls_that_are_invalid_or_made_again_are_wasted():
    def draft(target, status="ok"):
        return StepDraft(
            call=ToolCall(tool="SEG", args={"target": target}), result=ToolResult(tool="SEG", status=status, error="x")
        )

    assert count_wasted_calls([]) == 0
    assert count_wasted_calls([draft("a", "invalid")]) == 1
    assert (
        count_wasted_calls([draft("a", "failed"), draft("a", "failed"), draft("a", "failed")]) == 2
    )  # the first was new
    assert count_wasted_calls([draft("a"), draft("a"), draft("b", "invalid"), draft("b", "invalid")]) == 3
    assert count_wasted_calls([draft("a", "invalid"), draft("b")]) == 0
