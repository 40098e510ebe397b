"""Parse a policy's text: `<tool_call>{json}</tool_call>` and `<answer>…</answer>`.

Every text has an outcome: a call, or a failure whose reason the policy reads. Nothing is evaluated or raised.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn

from pixelis.tools.base import canonical_name
from pixelis.tools.results import ToolCall

MAX_CALL_CHARS = 200_000
"""Longer calls are refused without parsing."""

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
ANSWER_PATTERN = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
BLANKS = re.compile(r"\s*")
THINK_TAG = re.compile(r"</?think>")


class ParsedCall(NamedTuple):
    """A call, with the canonical name of its tool."""

    call: ToolCall
    source: str


class ParseFailure(NamedTuple):
    """A call that cannot be parsed, and the reason for the policy."""

    reason: str
    source: str


class Turn(NamedTuple):
    """One parsed turn of a policy."""

    thought: str
    calls: tuple[ParsedCall | ParseFailure, ...]
    answer: str | None


def format_call(call: ToolCall) -> str:
    """The call as a policy writes it."""
    body = json.dumps({"name": call.tool, "arguments": call.args}, ensure_ascii=False, allow_nan=False)
    escaped = body.replace("</", r"<\/")  # the same to JSON, and never the closing tag
    return f"{CALL_OPEN}{escaped}{CALL_CLOSE}"


def format_answer(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def parse_turn(text: str) -> Turn:
    """The thought before the first call, every call, and the last answer."""
    calls: list[ParsedCall | ParseFailure] = []
    outside: list[str] = []
    at = 0
    while (start := text.find(CALL_OPEN, at)) >= 0:
        outside.append(text[at:start])
        outcome, at = read_call(text, start + len(CALL_OPEN))
        calls.append(outcome)
    outside.append(text[at:])
    outside_text = "\n".join(outside)
    answers = ANSWER_PATTERN.findall(outside_text)
    thought_source = outside[0] if calls else outside_text
    thought = THINK_TAG.sub("", ANSWER_PATTERN.sub("", thought_source)).strip()
    return Turn(thought, tuple(calls), answers[-1].strip() if answers else None)


def read_call(text: str, start: int) -> tuple[ParsedCall | ParseFailure, int]:
    """The call whose JSON begins here, and the offset after it.

    The JSON ends the call, not the closing tag, which one of its strings may contain.
    """
    body = skip_blanks(text, start)
    try:
        value, end = (
            DECODER.raw_decode(text, body) if len(text) - body <= MAX_CALL_CHARS else decode_limited(text, body)
        )
    except (ValueError, RecursionError) as error:
        close = text.find(CALL_CLOSE, start)
        end = close if close >= 0 else len(text)
        reason = "the call is not JSON" if close >= 0 else "the call breaks off before </tool_call>"
        return ParseFailure(f"{reason} ({describe_error(error)})", text[start:end].strip()), skip_close_tag(text, end)
    rest = text[end : end + 200].lstrip()
    source = text[body:end]
    if rest and not rest.startswith(CALL_CLOSE):
        close = text.find(CALL_CLOSE, end)
        at = close + len(CALL_CLOSE) if close >= 0 else len(text)
        return ParseFailure(f"after the call's JSON comes {rest[:20]!r}; want </tool_call>", text[start:at]), at
    return call_from_json(value, source), skip_close_tag(text, end)


def skip_close_tag(text: str, end: int) -> int:
    at = skip_blanks(text, end)
    return at + len(CALL_CLOSE) if text.startswith(CALL_CLOSE, at) else end


def skip_blanks(text: str, at: int) -> int:
    match = BLANKS.match(text, at)
    return match.end() if match else at


def parse_call(text: str) -> ParsedCall | ParseFailure:
    """One call from its JSON, with or without tags."""
    text = text.strip()
    return read_call(text, len(CALL_OPEN) if text.startswith(CALL_OPEN) else 0)[0]


def call_from_json(value: Any, source: str) -> ParsedCall | ParseFailure:
    """A call from a JSON value, with the keys of OpenAI, Qwen or Pixelis."""
    if not isinstance(value, dict):
        return ParseFailure(f"a call is an object with name and arguments; this is a {type(value).__name__}", source)
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("tool"))
    if not isinstance(name, str) or not name.strip():
        return ParseFailure('the call names no tool: want {"name": "OCR", "arguments": {…}}', source)
    args = value.get("arguments", value.get("args", {}))
    if isinstance(args, str):
        try:
            args = DECODER.decode(args) if args.strip() else {}
        except (ValueError, RecursionError) as error:
            return ParseFailure(f"the arguments are a string that is not JSON ({describe_error(error)})", source)
    if args is None:
        args = {}
    if not isinstance(args, dict):
        return ParseFailure(f"the arguments are a {type(args).__name__}; want an object", source)
    return ParsedCall(ToolCall(tool=canonical_name(name), args=args), source)


def decode_limited(text: str, body: int) -> tuple[Any, int]:
    value, end = DECODER.raw_decode(text[body : body + MAX_CALL_CHARS], 0)
    return value, body + end


def reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


DECODER = json.JSONDecoder(parse_constant=reject_constant)


def describe_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error).splitlines()[0][:120]
