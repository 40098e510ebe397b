"""Text to calls and back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis.tools.base import canonical_name
from pixelis.tools.results import ToolCall
from pixelis.trace.tool_call_parser import ParsedCall, ParseFailure, format_answer, format_call, parse_call, parse_turn

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(name=texts.filter(str.strip), args=st.dictionaries(texts, values, max_size=3))
def test_a_call_survives_its_text(name, args):
    outcome = parse_call(format_call(ToolCall(tool=canonical_name(name), args=args)))
    assert isinstance(outcome, ParsedCall)
    assert outcome.call == ToolCall(tool=canonical_name(canonical_name(name)), args=args)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<answer>", "{", "}", '"', "[", "name", ":", "1"]) | texts)
)
def test_whatever_a_policy_writes_has_an_outcome(parts):
    turn = parse_turn("".join(parts))
    assert all(isinstance(call, ParsedCall | ParseFailure) for call in turn.calls)
    assert "".join(parts).count("<tool_call>") >= len(turn.calls)


def test_a_turn_has_its_thought_its_calls_and_its_answer():
    call = ToolCall(tool="OCR", args={"box": [0.1, 0.2, 0.3, 0.4]})
    turn = parse_turn(f"<think>I read the sign.</think>\n{format_call(call)} then {format_call(call)}")
    assert turn.thought == "I read the sign."
    assert [c.call for c in turn.calls] == [call, call]
    assert turn.answer is None
    assert parse_turn("So. " + format_answer(" EXIT ")).answer == "EXIT"
    assert parse_turn("So. <answer>EXIT").answer == "EXIT"
    assert parse_turn("<answer>A</answer> no, <answer>B</answer>").answer == "B"


@pytest.mark.parametrize(("alias", "tool"), [("READ", "OCR"), ("temporal", "TEMP"), (" Crop ", "ZOOM"), ("seg", "SEG")])
def test_the_papers_other_names_mean_the_same_tools(alias, tool):
    assert parse_call(json.dumps({"name": alias, "arguments": {}})).call.tool == tool


def test_a_closing_tag_inside_a_string_does_not_end_the_call():
    text = '<tool_call>{"name":"SEG","arguments":{"target":"</tool_call><answer>no</answer>"}}</tool_call>'
    turn = parse_turn(text)
    assert turn.calls[0].call.args == {"target": "</tool_call><answer>no</answer>"}
    assert turn.answer is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "OCR", "arguments": {"box": [0.1,]}}</tool_call>', "not JSON"),
        ('<tool_call>{"name": "OCR", "argum', "breaks off"),
        ("<tool_call>", "breaks off"),
        ("<tool_call></tool_call>", "not JSON"),
        ("<tool_call>[]</tool_call>", "object with name and arguments"),
        ('<tool_call>{"arguments": {}}</tool_call>', "names no tool"),
        ('<tool_call>{"name": 3}</tool_call>', "names no tool"),
        ('<tool_call>{"name": "OCR", "arguments": [1]}</tool_call>', "want an object"),
        ('<tool_call>{"name": "OCR", "arguments": "box"}</tool_call>', "a string that is not JSON"),
        ('<tool_call>{"name": "OCR", "arguments": {"box": [NaN]}}</tool_call>', "NaN is not a number"),
        ('<tool_call>{"name": "OCR"} and more</tool_call>', "want </tool_call>"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "too deeply"),
        ('<tool_call>{"name": "' + "x" * 300_000 + '"}</tool_call>', "not JSON"),
        ("<tool_call>__import__('os').system('true')</tool_call>", "not JSON"),
    ],
)
def test_a_malformed_call_is_a_failure_with_a_reason(text, reason):
    (outcome,) = parse_turn(text).calls
    assert isinstance(outcome, ParseFailure)
    assert reason in outcome.reason
    assert "\n" not in outcome.reason


def test_after_a_malformed_call_the_next_one_is_read():
    turn = parse_turn('<tool_call>{oops}</tool_call><tool_call>{"name": "OCR", "arguments": {}}</tool_call>')
    assert [type(call) for call in turn.calls] == [ParseFailure, ParsedCall]


def test_openai_spelling_and_arguments_as_a_string_are_read():
    call = {"type": "function", "function": {"name": "READ", "arguments": '{"frame": 3}'}}
    assert parse_call(json.dumps(call)).call == ToolCall(tool="OCR", args={"frame": 3})
    assert parse_call('{"tool": "SEG", "args": {"target": "bus"}}').call.args == {"target": "bus"}


def test_real_texts_of_other_agents_are_read(realdata):
    samples = json.loads((realdata / "traces" / "foreign_samples.json").read_text())
    pixel_reasoner = parse_turn(samples["pixel_reasoner_chatml_sample"])
    *templates, real = pixel_reasoner.calls  # its prompt shows `{"name": <function-name>, …}` between the same tags
    assert all(isinstance(template, ParseFailure) for template in templates)
    assert real.call.args == {"bbox_2d": [0.1, 0.2, 0.3, 0.4], "target_image": 1}
    deepeyes = parse_turn(samples["deepeyes_v2_action_text"])
    assert deepeyes.thought.startswith("The image shows a building")
    assert deepeyes.calls[0].call.args == {"region": '{"bbox_2d": [587, 1764, 629, 1860]}'}
    labels = [parse_call(text).call.args["label"] for text in samples["deepeyes_prompt_examples"]]
    assert labels == ["the apple on the desk", "the apple on the desk", "the person under the tree"]
