"""A query as the policy reads and writes it: turns of a Qwen-style chat, cut into pieces whose tokens have one kind.

The question comes before the images: a small model that reads them first cannot know what to keep.
Text that a person typed or a tool read is never control: its pieces say so, and `PolicyTokenizer.encode` obeys.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pixelis.core.config import Config
from pixelis.media import Frame, MediaSet, Medium
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.tool_call_parser import CALL_CLOSE, CALL_OPEN

Kind = Literal["prompt", "thought", "action", "answer", "observation"]
"""What a token belongs to; `prompt` and `observation` are never sampled."""
SAMPLED: tuple[Kind, ...] = ("thought", "action", "answer")

SYSTEM = "You answer questions about pictures and clips. You look with tools, and answer from what they return."
TOOLS_HEAD = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FOOT = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>\n\nCoordinates run from 0 to 1 over width and height: [x0, y0, x1, y1]. Make one call at a time. "
    "When the evidence is there, write the answer as <answer>…</answer>, as short as it can be: the letter where there "
    "are options. If it cannot be told, write <answer>I cannot tell</answer>."
)
UNWRITTEN_ARGUMENTS = ("mask", "track")
"""Arguments that no policy writes: run-length masks and lists of boxes."""


class PromptStyle(Config):
    """How queries are presented to a policy; part of its checkpoint."""

    system: str = SYSTEM
    tool_schemas: bool = True
    """Whether the prompt holds the tools' schemas; nano has learnt them, which saves tokens."""
    image_pixels: int = 1_048_576
    """An image of the query is scaled to at most this many pixels."""
    view_pixels: int = 524_288
    """The same for views, the results of ZOOM and TEMP."""
    frame_pixels: int = 262_144
    """The same for the frames of a clip."""
    clip_frames: int = 16
    """Frames of a clip that are shown, evenly spaced, each after its time."""
    spaced_answers: bool = False
    """Whether an answer begins with a space: its words then have the same tokens as in a sentence, and a small policy
    can copy them."""


class TextPiece(NamedTuple):
    """A piece of text."""

    text: str
    kind: Kind
    control: bool = False
    """Whether tags and special tokens in it take effect: only in text of this module, never of a person or a tool."""
    step: int = 0
    """The step that it belongs to, from 1; 0 for the prompt."""


class ImagePiece(NamedTuple):
    """An image between texts."""

    name: str
    """Image_0, View_1, or Video_0@12 for a frame."""
    pixels: Frame
    max_pixels: int
    kind: Kind
    step: int = 0


Piece = TextPiece | ImagePiece


def render_prompt(question: str, media: MediaSet, style: PromptStyle, schemas: Sequence[dict[str, Any]]) -> list[Piece]:
    """Everything before the policy's first token."""
    system = style.system
    if style.tool_schemas:
        schema_lines = "".join("\n" + json.dumps(schema, ensure_ascii=False) for schema in schemas)
        system += f"{TOOLS_HEAD}{schema_lines}{TOOLS_FOOT}"
    names = media.names[: len(media.sources)]
    media_pieces = [piece for name in names for piece in render_media(name, media.source(name), style)]
    return render_question(system, question, media_pieces)


def render_question(system: str, question: str, media_pieces: Sequence[Piece] = ()) -> list[Piece]:
    """A system turn, a question with its media, and the beginning of the policy's first turn."""
    return [
        TextPiece(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n", "prompt", control=True),
        TextPiece(question, "prompt"),
        *media_pieces,
        TextPiece("<|im_end|>\n<|im_start|>assistant\n", "prompt", control=True),
    ]


def render_media(name: str, medium: Medium, style: PromptStyle) -> list[Piece]:
    """A medium of the query: an image, or frames of a clip over its whole length, each after its time."""
    if medium.kind == "image":
        return [TextPiece(f"\n{name}: ", "prompt"), ImagePiece(name, medium.frame(0), style.image_pixels, "prompt")]
    pieces: list[Piece] = [TextPiece(f"\n{name}, {medium.frame_count} frames, {medium.duration_s:.2f} s: ", "prompt")]
    for index in spaced_indices(medium.frame_count, style.clip_frames):
        pieces.append(TextPiece(f"<{medium.time_of(index):.1f} seconds>", "prompt"))  # Qwen3-VL's wording
        pieces.append(ImagePiece(f"{name}@{index}", medium.frame(index), style.frame_pixels, "prompt"))
    return pieces


def spaced_indices(frame_count: int, count: int) -> list[int]:
    """Frame numbers at the middles of equal parts of a clip."""
    count = min(count, frame_count)
    return [int((2 * k + 1) * frame_count // (2 * count)) for k in range(count)]


def render_call(thought: str, call: ToolCall, *, step: int) -> list[Piece]:
    """A turn that calls a tool, as in a teacher's trace."""
    thought_text = f"{thought}\n" if thought else ""
    return [
        TextPiece(thought_text, "thought", step=step),
        TextPiece(CALL_OPEN, "action", control=True, step=step),
        TextPiece(format_call_text(call), "action", step=step),
        TextPiece(f"{CALL_CLOSE}<|im_end|>", "action", control=True, step=step),
    ]


def render_answer(thought: str, answer: str, style: PromptStyle, *, step: int, quote: str | None = None) -> list[Piece]:
    """The last turn; `quote` replaces the answer (`quoting`), and the thought's last mention of it."""
    answer_text = f" {answer}" if style.spaced_answers else answer
    thought_text = f"{thought}\n" if thought else ""
    before, mention, after = split_at_last_mention(thought_text, answer) if quote else ("", "", thought_text)
    return [
        TextPiece(before, "thought", step=step),
        *([TextPiece(str(quote), "thought", control=True, step=step)] if mention else []),
        TextPiece(after, "thought", step=step),
        TextPiece("<answer>", "answer", control=True, step=step),
        TextPiece(quote or answer_text, "answer", control=quote is not None, step=step),
        TextPiece("</answer><|im_end|>", "answer", control=True, step=step),
    ]


def split_at_last_mention(text: str, name: str) -> tuple[str, str, str]:
    """The text before, at and after the last separate mention of a name; without one, all text is after.

    `str.rpartition` would find "12" in "312" and in "1.12".
    """
    matches = list(re.finditer(rf"(?<!\w)(?<!\d[.,]){re.escape(name)}(?!\w)(?![.,]\d)", text))
    return (text[: matches[-1].start()], name, text[matches[-1].end() :]) if matches else ("", "", text)


def render_observation(
    result: ToolResult, view: str | None, media: MediaSet, style: PromptStyle, *, step: int
) -> list[Piece]:
    """The result of a call: its text, its view, and the beginning of the policy's next turn."""
    if view is None:
        return render_result(result, step=step)
    label = TextPiece(f"\n{view}: ", "observation", step=step)
    picture = ImagePiece(view, media.medium(view).frame(0), style.view_pixels, "observation", step)
    *text_pieces, tail = render_result(result, step=step)
    return [*text_pieces, label, picture, tail]


def render_result(result: ToolResult, *, step: int) -> list[Piece]:
    """The text of a result, and the beginning of the policy's next turn."""
    return render_reminder(result.text or result.error or result.status, step=step)


def render_reminder(reason: str, *, step: int) -> list[Piece]:
    """A text in place of a result, such as why a turn was neither a call nor an answer."""
    return [
        TextPiece("\n<|im_start|>user\n<tool_response>\n", "observation", control=True, step=step),
        TextPiece(reason, "observation", step=step),
        TextPiece("\n</tool_response><|im_end|>\n<|im_start|>assistant\n", "observation", control=True, step=step),
    ]


def format_call_text(call: ToolCall) -> str:
    """A call as the policy writes it: coordinates and seconds with two decimals, as in results."""
    arguments = ", ".join(f"{json.dumps(key)}: {format_value_text(key, value)}" for key, value in call.args.items())
    return f'{{"name": {json.dumps(call.tool)}, "arguments": {{{arguments}}}}}'


def format_value_text(key: str, value: Any) -> str:
    if key in ("box", "target") and isinstance(value, list | tuple) and all(isinstance(v, float | int) for v in value):
        numbers = [f"{v:.2f}" if 0.0 <= v <= 1.0 else json.dumps(v) for v in value]
        return f"[{', '.join(numbers)}]"
    if key.endswith("_s") and isinstance(value, float | int) and math.isfinite(value):
        return f"{value:.2f}"
    return json.dumps(value, ensure_ascii=False).replace("</", "<\\/")
