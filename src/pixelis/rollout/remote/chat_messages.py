"""Messages to a model behind a server and its replies: images and schemas in, parsed turns out."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image as Pil

from pixelis.media import MediaSet, Medium
from pixelis.tools.results import ToolCall
from pixelis.trace.tool_call_parser import DECODER, MAX_CALL_CHARS, ParsedCall, ParseFailure, call_from_json, parse_turn

Mode = Literal["tool_choice", "response_format", "guided_json", "none"]
MODES: tuple[Mode, ...] = ("tool_choice", "response_format", "guided_json", "none")
"""Ways to make a server keep the syntax, the strictest widely available one first."""
ANSWER_TOOL_NAME = "ANSWER"
MAX_CALLS = 8
MAX_DEPTH = 32
MAX_THOUGHT_CHARACTERS = 8000
MAX_ANSWER_CHARACTERS = 2000

SYSTEM = (
    "You answer questions about pictures and clips by looking with tools. Coordinates run from 0 to 1 over width and "
    "height: [x0, y0, x1, y1]. Make one call at a time, and say in a sentence why. Read what comes back, also how sure "
    "the tool is; where a call fails, try another way. When the evidence is there, call ANSWER with a short answer: "
    "the letter where there are options, the bare number or words where there are none."
)
CONTROL_TOKEN = re.compile(
    r"<(?=\|[^<>]{1,60}\|>|/?(?:s|bos|eos|pad|unk|think|tool_call|tool_response|start_of_turn|end_of_turn|image)>)"
    r"|\[(?=/?INST\])"
)
"""The beginning of a control token of common chat templates, which the server would obey anywhere."""
REMINDER = "That was not a call. Call one of the tools, or ANSWER."

ANSWER_ARGUMENTS = {
    "answer": {"type": "string", "description": "as short as it can be"},
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
}
ANSWER_SCHEMA = {
    "type": "object",
    "properties": ANSWER_ARGUMENTS,
    "required": ["answer"],
    "additionalProperties": False,
}
ANSWER_FUNCTION = {"name": ANSWER_TOOL_NAME, "description": "Give the final answer.", "parameters": ANSWER_SCHEMA}
ANSWER_TOOL: dict[str, Any] = {"type": "function", "function": ANSWER_FUNCTION}


class ParsedReply(NamedTuple):
    """One reply of the model."""

    thought: str
    calls: tuple[ParsedCall | ParseFailure, ...]
    answer: str | None
    """An answer in the text; an ANSWER call is in `calls`."""


def image_part(pixels: np.ndarray, side: int) -> dict[str, Any]:
    """A frame as a part of a message, at most `side` long: PNG, so that the request's hash depends on no codec."""
    image = Pil.fromarray(np.asarray(pixels))
    if max(image.size) > side:
        scale = side / max(image.size)
        size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
        image = image.resize(size, Pil.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, format="PNG", compress_level=6)
    uri = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": uri}}


def media_parts(name: str, medium: Medium, *, side: int, frames: int) -> list[dict[str, Any]]:
    """A medium as parts of a message: an image, or frames of a clip over its whole length, each with its time."""
    if medium.kind == "image":
        caption = f"{name}, {medium.size.width}x{medium.size.height} pixels:"
        return [text_part(caption), image_part(medium.frame(0), side)]
    parts = [text_part(f"{name}, {medium.duration_s:.2f} s, {medium.frame_count} frames, of which some:")]
    for index in np.unique(np.linspace(0, medium.frame_count - 1, frames).round().astype(int)).tolist():
        parts += [text_part(f"frame {index}, {medium.time_of(index):.2f} s:"), image_part(medium.frame(index), side)]
    return parts


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": escape_control_tokens(text)}


def escape_control_tokens(text: str) -> str:
    """Break control tokens by a space after their first character."""
    return CONTROL_TOKEN.sub(lambda match: f"{match[0]} ", text)


def initial_messages(question: str, media: MediaSet, mode: Mode, tools: list[dict[str, Any]], **size: int) -> list[Any]:
    """The first messages of a conversation."""
    system = SYSTEM
    if mode in ("response_format", "guided_json"):
        functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        form = '{"thought": …, "name": …, "arguments": {…}}'
        system += f" Reply with one JSON object: {form}. The tools: {functions}"
    parts = [p for name in media.names for p in media_parts(name, media.medium(name), **size)]
    return [{"role": "system", "content": system}, {"role": "user", "content": [*parts, text_part(question)]}]


def constraint_fields(mode: Mode, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields of a request that offer the tools and constrain the reply to their syntax."""
    if mode == "tool_choice":
        return {"tools": list(tools), "tool_choice": "required"}
    if mode == "none":
        return {"tools": list(tools), "tool_choice": "auto"}
    schema = turn_schema(tools)
    if mode == "guided_json":
        return {"guided_json": schema}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "turn", "schema": schema}}}


def turn_schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The JSON Schema of one thought and one call, with the definitions of all tools at its root."""
    variants, definitions = [], {}
    for tool in tools:
        parameters = dict(tool["function"]["parameters"])
        definitions.update(parameters.pop("$defs", {}))
        fields = {"thought": {"type": "string"}, "name": {"const": tool["function"]["name"]}, "arguments": parameters}
        required = ["thought", "name", "arguments"]
        variants.append({"type": "object", "properties": fields, "required": required, "additionalProperties": False})
    return {"anyOf": variants} | ({"$defs": definitions} if definitions else {})


def parse_reply(body: dict[str, Any]) -> ParsedReply:
    """Parse an untrusted reply. Never raises."""
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict):
        return ParsedReply("", (), None)
    content = message.get("content")
    text = replace_surrogates(content) if isinstance(content, str) else ""
    requested = message.get("tool_calls")
    if isinstance(requested, list) and requested:
        calls = tuple(sanitise_call(parse_native_call(call)) for call in requested[:MAX_CALLS])
        return ParsedReply(text[:MAX_THOUGHT_CHARACTERS].strip(), calls, None)
    return parse_reply_text(text)


def parse_reply_text(text: str) -> ParsedReply:
    """Parse a reply without native calls: one JSON object, or tagged text."""
    if text.lstrip().startswith("{") and len(text) <= MAX_CALL_CHARS:
        try:
            value = DECODER.decode(text.strip())
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and ("name" in value or "tool" in value):
            thought = value.get("thought")
            thought_text = replace_surrogates(thought)[:MAX_THOUGHT_CHARACTERS] if isinstance(thought, str) else ""
            return ParsedReply(thought_text, (sanitise_call(call_from_json(value, text)),), None)
    turn = parse_turn(text)
    calls = tuple(sanitise_call(call) for call in turn.calls[:MAX_CALLS])
    return ParsedReply(turn.thought[:MAX_THOUGHT_CHARACTERS], calls, turn.answer)


def parse_native_call(call: Any) -> ParsedCall | ParseFailure:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ParseFailure("the call names no function", "")
    arguments = function.get("arguments")
    arguments_text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    if len(arguments_text) > MAX_CALL_CHARS:
        return ParseFailure(f"the arguments have over {MAX_CALL_CHARS} characters", "")
    return call_from_json(function, arguments if isinstance(arguments, str) else "")


def sanitise_call(outcome: ParsedCall | ParseFailure) -> ParsedCall | ParseFailure:
    """The call with text that can be stored; a call that is nested too deeply is a failure."""
    source = replace_surrogates(outcome.source)[:500]
    if isinstance(outcome, ParseFailure):
        return ParseFailure(replace_surrogates(outcome.reason)[:300], source)
    try:
        args = sanitise_json(outcome.call.args)
    except ValueError as error:
        return ParseFailure(str(error), source)
    return ParsedCall(ToolCall(tool=replace_surrogates(outcome.call.tool)[:64], args=args), source)


def sanitise_json(value: Any, depth: int = 0) -> Any:
    """JSON without surrogates; ValueError if it is nested too deeply or a number is not finite."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the arguments are nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(str(key)): sanitise_json(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [sanitise_json(part, depth + 1) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        raise ValueError("the arguments hold a number without bounds")
    return value


def replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
