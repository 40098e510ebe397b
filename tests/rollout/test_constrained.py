"""Constrained decoding: whatever is sampled is valid JSON for its tool's schema."""

import json
from collections import Counter

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer, TokenizerWrapper

from pixelis.core.errors import ConfigError
from pixelis.rollout.constrained import (
    CLOSED,
    OUTSIDE,
    CallGrammar,
    find_byte_tokens,
    open_matcher,
    shortest_completion,
    to_llguidance,
)
from pixelis.rollout.schema_grammar import value_grammar
from pixelis.trace.tool_call_parser import ParsedCall, parse_call


class ByteTokenizer:
    """One token for each byte, and one for the end."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


BYTES = LLTokenizer(TokenizerWrapper(ByteTokenizer()))


def state_after(schema, text):
    """The matcher after a text; None where it is refused."""
    matcher, content = open_matcher(BYTES, value_grammar(schema)), text.encode() if isinstance(text, str) else text
    return matcher if matcher.try_consume_tokens(list(content)) == len(content) else None


def takes(schema, text):
    """Whether the whole text is accepted."""
    state = state_after(schema, text)
    return state is not None and state.is_accepting()


def begins(schema, text):
    return state_after(schema, text) is not None


def sampled_call(grammar, tokens, rng, left):
    """Tokens drawn evenly from what is allowed, until the call is closed."""
    state = grammar.advance(grammar.initial_state(), tokens.control_ids["<tool_call>"])
    ids = []
    while state is not CLOSED:
        allowed = np.flatnonzero(grammar.allowed_tokens(state, left).numpy())
        token = int(rng.choice(allowed))
        state, left = grammar.advance(state, token), left - 1
        ids.append(token)
        assert left >= 1, tokens.decode(ids)  # <|im_end|> must still fit
    return tokens.decode(ids[:-1])


@pytest.mark.parametrize("omit", [("mask", "track"), ()])
def test_two_hundred_random_calls_parse_and_fit_the_schemas_of_all_six_tools(tokens, toolbox, omit):
    grammar = CallGrammar(tokens, toolbox.schemas(), omit=omit)
    rng = np.random.default_rng(0)
    validators = {s["function"]["name"]: Draft202012Validator(s["function"]["parameters"]) for s in toolbox.schemas()}
    used: Counter[str] = Counter()
    for _ in range(100):
        text = sampled_call(grammar, tokens, rng, int(rng.integers(60, 120)))
        parsed = parse_call(text)
        assert isinstance(parsed, ParsedCall), text
        used[parsed.call.tool] += 1
        assert validators[parsed.call.tool].is_valid(parsed.call.args), text
        if omit:
            assert not {"mask", "track"} & parsed.call.args.keys()
    assert set(used) == {"SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP"}


def test_calls_as_our_teachers_and_qwen_write_them_are_accepted(grammar, tokens):
    call = '{"name": "ZOOM", "arguments": {"media": "Image_0", "box": [0.10, 0.20, 0.30, 1.00]}}'
    for text in (
        call,
        f"\n{call}\n",
        '{"name": "OCR", "arguments": {}}',
        '{"name":"SEG","arguments":{"target":"a b"}}',
    ):
        state = grammar.advance(OUTSIDE, tokens.control_ids["<tool_call>"])
        for token in [*tokens.encode(text), tokens.control_ids["</tool_call>"]]:
            assert grammar.allowed_tokens(state, 200)[token], (text, tokens.decode([token]))
            state = grammar.advance(state, token)
        assert grammar.allowed_tokens(state, 200).nonzero().tolist() == [[tokens.end_id]]


def test_outside_a_call_everything_is_free(grammar, tokens):
    state = grammar.initial_state()
    for token in tokens.encode("The sign says so <answer>7", control=True):
        assert grammar.allowed_tokens(state, 10) is None
        state = grammar.advance(state, token)


def test_no_control_token_may_stand_inside_a_call(grammar, tokens):
    state = grammar.advance(OUTSIDE, tokens.control_ids["<tool_call>"])
    for token in tokens.encode('{"name": "SEG", "arguments": {"target": "the red'):
        state = grammar.advance(state, token)
    mask = grammar.allowed_tokens(state, 200)
    assert not mask[list(tokens.control_ids.values())].any()
    assert mask.sum() > 300


def test_a_call_that_runs_out_of_room_is_brought_to_its_end(grammar, tokens):
    rng = np.random.default_rng(1)
    for left in (30, 40, 50):
        assert isinstance(parse_call(sampled_call(grammar, tokens, rng, left)), ParsedCall)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "number", "minimum": 0.0, "maximum": 1.0},
            ["0", "1", "0.55", "1.000"],
            ["1.01", "2", "-1", "1e3", "01"],
        ),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 64},
            ["0.000001", "64", "63.9"],
            ["0", "0.0", "64.1", "65"],
        ),
        ({"type": "integer", "minimum": 3, "maximum": 17}, ["3", "9", "10", "17"], ["2", "18", "1", "3.0", "170", ""]),
        ({"type": "integer", "minimum": -12, "maximum": -3}, ["-3", "-12", "-9"], ["3", "-2", "-13", "-1", "-"]),
        (
            {"type": "string", "minLength": 1, "maxLength": 2},
            ['"a"', '"é字"', r'"\u00e9\n"', r'"\""'],
            ['""', '"abc"', '"\n"'],
        ),
        ({"enum": ["colour", "count"]}, ['"colour"', '"count"'], ['"co"', '"colours"']),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, ["true", "false", "null"], ["nul", "True"]),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
            ["[1]", "[1, 2,3]"],
            ["[]", "[1,2,3,4]", "[1,]", "[1 2]"],
        ),
    ],
)
def test_what_a_schema_takes(schema, good, bad):
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


def test_a_prefix_that_cannot_be_finished_is_refused_at_once():
    number = {"type": "integer", "minimum": 3, "maximum": 17}
    assert begins(number, "1")  # 10 to 17 may follow
    assert not begins(number, "2")
    assert not begins({"type": "number", "exclusiveMinimum": 0.0, "maximum": 1}, "0.000000")


def test_a_point_and_a_box_part_where_they_must():
    unit = {"type": "number", "minimum": 0, "maximum": 1}
    both = {"anyOf": [{"type": "array", "prefixItems": [unit] * k, "minItems": k, "maxItems": k} for k in (2, 4)]}
    assert takes(both, "[0.1, 0.2]")
    assert takes(both, "[0.1, 0.2, 0.3, 0.4]")
    assert not takes(both, "[0.1, 0.2, 0.3]")
    assert shortest_completion(state_after(both, "[0.1, 0.2, 0.3"), range(256)) == b",0]"


def test_objects_want_their_required_keys_once_and_no_others():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/N"}, "b": {"const": 7}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"N": {"type": "integer"}},
    }
    assert takes(schema, '{"a": 1}')
    assert takes(schema, '{"b": 7, "a":1}')
    assert not takes(schema, '{"b": 7}')
    assert not begins(schema, '{"a": 1, "a"')
    assert not begins(schema, '{"c"')
    assert shortest_completion(state_after(schema, '{"b": '), range(256)) == b'7,"a":0}'


def test_half_a_character_never_ends_a_string():
    text = {"type": "string"}
    assert begins(text, '"é'.encode()[:-1])
    assert not begins(text, '"é'.encode()[:-1] + b'"')
    assert not begins(text, b'"\xed\xa0')  # half of a surrogate pair
    assert not begins(text, r'"\ud8')
    assert json.loads(b'"' + "é".encode() + b'"') == "é"


def test_every_token_writes_the_bytes_that_it_decodes_to(tokens):
    content = to_llguidance(tokens)
    text = 'A "sign" – 字 [0.25, 0.5]}}\n'
    assert b"".join(content.decode_bytes([token]) for token in tokens.encode(text)).decode() == text
    assert all(content.is_special_token(token) for token in tokens.control_ids.values())
    singles = {
        content.decode_bytes([token]): token for token in range(len(tokens)) if not content.is_special_token(token)
    }
    assert find_byte_tokens(content) == [singles[bytes([byte])] for byte in range(0xF8)]


def test_a_schema_beyond_the_subset_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="no grammar here can express"):
        value_grammar({"type": "object", "properties": {"a": {"pattern": "x+"}}})
    with pytest.raises(ConfigError, match="refers to itself"):
        value_grammar({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}})
