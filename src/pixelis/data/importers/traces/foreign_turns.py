"""Reads foreign traces of any known format: turns, pictures, the question and the answer.

Formats of the projects' files: ChatML text and bare calls (Pixel-Reasoner, DeepEyes), `message_list` and
`messages` (Pixel-Reasoner), `pred_output` (DeepEyes' evaluation), `conversations` of `from` and `value` and lists of
`steps` (TACO's CoTA, OpenThinkIMG's training set), `model_response` with `tool_response` and `response_list`
(OpenThinkIMG's logs).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pixelis.trace.tool_call_parser import CALL_CLOSE, CALL_OPEN

Source = Literal["pixel-reasoner", "deepeyes", "taco", "openthinkimg"]
SOURCES: tuple[Source, ...] = ("pixel-reasoner", "deepeyes", "taco", "openthinkimg")
Role = Literal["system", "user", "assistant"]

ROLES: dict[str, Role] = {
    "system": "system", "user": "user", "human": "user", "tool": "user", "observation": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant",
}  # fmt: skip
MESSAGE_KEYS = ("pred_output", "message_list", "messages", "conversations", "conversation")
CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_end\|>|<\|im_start\|>|\Z)", re.DOTALL)
MARKERS = re.compile(r"<\|vision_start\|>.*?<\|vision_end\|>|<image>|<video>|<\|(?:image|video)_pad\|>", re.DOTALL)
SOURCE_PATTERNS: tuple[tuple[Source, re.Pattern[str]], ...] = (
    ("deepeyes", re.compile(r"image_zoom_in_tool|\"zoom_in\"\s*,\s*\"arguments\"\s*:\s*\{\s*\"region\"")),
    ("pixel-reasoner", re.compile(r"crop_image|\"select_frames\"|\"target_image\"|\"target_frames\"")),
    ("openthinkimg", re.compile(r"\bimg_\d|API_name|ZoomInSubfigure|SegmentRegionAroundPoint|Draw\w+LineBy[XY]")),
    ("taco", re.compile(r"\bimage-\d|\"Terminate\"|LocalizeObjects|GetObjects|\"thought\"\s*:")),
)
"""Patterns that identify a project, tried in this order."""


class ForeignTurn(NamedTuple):
    """One turn."""

    role: Role
    text: str
    media: tuple[str, ...] = ()
    """Names of its pictures and clips; empty for one without a name."""
    videos: int = 0
    """The number of clips among them."""


@dataclass
class ForeignConversation:
    """A foreign record in one common form."""

    turns: list[ForeignTurn]
    source: Source
    question: str = ""
    answer: str | None = None
    """As the record states it; the last turn takes precedence."""
    media: list[str] = field(default_factory=list)
    """Names of the media of the question."""
    media_count: int = 1
    """The number of these media."""
    clip: bool = False


class UnreadableError(ValueError):
    """The record has none of the known formats."""


def parse_conversation(value: Any, source: Source | None = None) -> ForeignConversation:
    """A record as turns; UnreadableError, with the reason, if it is not a trace."""
    turns, facts = parse_record(value)
    if not any(turn.role == "assistant" and turn.text.strip() for turn in turns):
        raise UnreadableError("it has no turn of the assistant")
    source = source or detect_source(turns)
    if source is None:
        raise UnreadableError(f"the project cannot be detected; name one of {', '.join(SOURCES)}")
    question_turn = next((turn for turn in turns if turn.role == "user"), ForeignTurn("user", ""))
    prompt_turns = turns[: next(i for i, turn in enumerate(turns) if turn.role == "assistant")]
    shown_media = [name for turn in prompt_turns for name in turn.media]
    named_media = media_names(facts)
    media_count = len(shown_media) or len(re.findall("<image>|<video>", "".join(t.text for t in prompt_turns))) or 1
    return ForeignConversation(
        turns=turns,
        source=source,
        question=first_text(facts, "question", "query", "user_request") or strip_markers(question_turn.text),
        answer=first_text(facts, "pred_ans", "prediction"),
        media=[name for name in shown_media if name] or named_media[:media_count],
        media_count=media_count,
        clip=any(turn.videos for turn in prompt_turns) or "<video>" in question_turn.text,
    )


def first_text(record: Mapping[str, Any], *keys: str) -> str | None:
    return next((record[key] for key in keys if isinstance(record.get(key), str)), None)


def detect_source(turns: Sequence[ForeignTurn]) -> Source | None:
    """The project of a trace, from the assistant's turns or else from the prompt."""
    for roles in (("assistant",), ("system", "user", "assistant")):
        text = "\n".join(turn.text for turn in turns if turn.role in roles)
        for source, pattern in SOURCE_PATTERNS:
            if pattern.search(text):
                return source
    return None


def parse_record(value: Any) -> tuple[list[ForeignTurn], Mapping[str, Any]]:
    """The turns of a record, and the record's other fields."""
    if isinstance(value, str):
        return from_text(value), {}
    if not isinstance(value, dict):
        raise UnreadableError(f"a {type(value).__name__}, not a record")
    if isinstance(value.get("name"), str) and "arguments" in value:
        return from_text(json.dumps(value)), {}
    inner = value
    while isinstance(inner.get("results"), dict):  # OpenThinkIMG nests its log twice
        inner = inner["results"]
    return record_turns(inner), {**value, **record_fields(inner)}


def record_turns(record: Mapping[str, Any]) -> list[ForeignTurn]:
    lists = {key: items for key, items in record.items() if isinstance(items, list)}
    if log := lists.get("model_response", lists.get("response_list")):
        return from_log(log, record.get("tool_response"))
    if "steps" in lists:
        return from_steps(lists["steps"])
    if messages := next((lists[key] for key in MESSAGE_KEYS if key in lists), None):
        return from_messages(messages)
    all_messages = record.get("all_messages")
    if isinstance(all_messages, dict):
        return from_messages(max((m for m in all_messages.values() if isinstance(m, list)), key=len, default=[]))
    if isinstance(all_messages, str):
        raise UnreadableError("its messages are a pickle, which is never opened; save them as JSON")
    if text := first_text(record, "text", "response", "output"):
        return from_text(text)
    raise UnreadableError(f"no messages: want one of {', '.join(MESSAGE_KEYS)}, steps, model_response")


def record_fields(inner: Mapping[str, Any]) -> dict[str, Any]:
    meta = inner.get("meta_data")
    if not isinstance(meta, dict):
        return dict(inner)
    return {**inner, **({"question": meta["text"]} if isinstance(meta.get("text"), str) else {}), **meta}


def from_text(text: str) -> list[ForeignTurn]:
    """ChatML, a bare call as JSON, or the text of an assistant."""
    matches = CHATML.findall(text)
    if matches:
        return [ForeignTurn(ROLES.get(role, "user"), turn_text) for role, turn_text in matches]
    bare = text.strip()
    return [ForeignTurn("assistant", f"{CALL_OPEN}{bare}{CALL_CLOSE}" if bare.startswith('{"name"') else text)]


def from_messages(messages: Sequence[Any]) -> list[ForeignTurn]:
    turns = []
    for index, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise UnreadableError(f"message {index} is a {type(message).__name__}, not an object")
        name = str(message.get("role", message.get("from", "")))
        content = next((message[k] for k in ("content", "value", "text") if message.get(k) is not None), "")
        if name not in ROLES:
            raise UnreadableError(f"message {index} is from {name!r}: want one of {', '.join(ROLES)}")
        turns.append(make_turn(ROLES[name], content))
    return turns


def make_turn(role: Role, content: Any) -> ForeignTurn:
    """A turn whose content is a text or a list of texts, pictures and clips."""
    if isinstance(content, str):
        return ForeignTurn(role, content)
    texts, media, videos = [], [], 0
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
            for key in ("image", "image_url", "video"):
                if key in part or part.get("type") == key:
                    media.append(media_name(part.get(key)))
                    videos += key == "video"
                    break
    return ForeignTurn(role, "\n".join(texts), tuple(media), videos)


def media_name(value: Any) -> str:
    """The file of a picture in a message; empty for embedded pixels."""
    if isinstance(value, dict):
        value = value.get("url", value.get("path"))
    if isinstance(value, list):  # a clip as frames: named by their folder
        return str(value[0]).rpartition("/")[0] if value and isinstance(value[0], str) else ""
    return value if isinstance(value, str) and not value.startswith(("data:", "http")) else ""


def media_names(facts: Mapping[str, Any]) -> list[str]:
    """Files that a record names outside its messages."""
    for key in ("images", "image", "image_path", "video", "video_path"):
        value = facts.get(key)
        names = [media_name(v) for v in value] if isinstance(value, list) else [media_name(value)]
        if any(names):
            return [name for name in names if name]
    return []


def from_log(responses: Sequence[Any], observations: Any) -> list[ForeignTurn]:
    """OpenThinkIMG's rounds: replies of the model and results of its tools."""
    turns: list[ForeignTurn] = []
    for index, response in enumerate(responses):
        if isinstance(response, str):
            turns.append(ForeignTurn("assistant", response))
        observation = observations[index] if isinstance(observations, list) and index < len(observations) else None
        if isinstance(observation, dict) and isinstance(observation.get("text"), str):
            turns.append(ForeignTurn("user", observation["text"]))
    return turns


def from_steps(steps: Sequence[Any]) -> list[ForeignTurn]:
    """CoTA as a list of steps: thought, actions, observation."""
    turns: list[ForeignTurn] = []
    for index, step in enumerate(steps, start=1):
        if not isinstance(step, dict):
            raise UnreadableError(f"step {index} is a {type(step).__name__}, not an object")
        reply = {"thought": step.get("thought", ""), "actions": step.get("actions", [])}
        turns.append(ForeignTurn("assistant", json.dumps(reply)))
        if observation := step.get("observation"):
            turns.append(ForeignTurn("user", observation if isinstance(observation, str) else json.dumps(observation)))
    return turns


def strip_markers(text: str) -> str:
    """A question without picture markers and without the prompt before it."""
    text = text.rsplit("# USER REQUEST #:", 1)[-1]
    text = text.rsplit("\n\nQuestion: ", 1)[-1]
    return MARKERS.sub("", text).strip().removeprefix("Question: ")
