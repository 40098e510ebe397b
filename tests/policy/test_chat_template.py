"""The chat template of a checkpoint writes what `script` writes."""

from __future__ import annotations

import numpy as np

from pixelis.media import Image, MediaSet
from pixelis.nano.nano_model import NANO_STYLE
from pixelis.policy.chat_format import (
    ImagePiece,
    Piece,
    format_call_text,
    render_answer,
    render_call,
    render_observation,
    render_prompt,
)
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.tools.results import ToolCall, ToolResult

CALL = ToolCall(tool="OCR", args={"box": [0.1, 0.2, 0.5, 1.0]})


def written(pieces: list[Piece]) -> str:
    return "".join(
        "<|vision_start|><|image_pad|><|vision_end|>" if isinstance(p, ImagePiece) else p.text for p in pieces
    )


def test_a_whole_conversation_has_the_same_text_both_ways(tokens: PolicyTokenizer):
    media = MediaSet((Image.from_array(np.zeros((32, 32, 3), dtype=np.uint8)),))
    result = ToolResult(tool="OCR", status="ok", text='"EXIT" at [0.10, 0.20, 0.50, 1.00]')
    pieces = [
        *render_prompt("What does it say?", media, NANO_STYLE, []),
        *render_call("Read it.", CALL, step=1),
        *render_observation(result, None, media, NANO_STYLE, step=1),
        *render_answer("The sign says so.", "EXIT", NANO_STYLE, step=2),
    ]
    arguments = format_call_text(CALL).split('"arguments": ')[1][:-1]
    messages = [
        {"role": "system", "content": NANO_STYLE.system},
        {"role": "user", "content": [
            {"type": "text", "text": "What does it say?\nImage_0: "}, {"type": "image"},
        ]},
        {"role": "assistant", "content": "Read it.", "tool_calls": [
            {"type": "function", "function": {"name": "OCR", "arguments": arguments}},
        ]},
        {"role": "tool", "content": result.text},
        {"role": "assistant", "content": "The sign says so.\n<answer> EXIT</answer>"},
    ]  # fmt: skip
    rendered = tokens.hf_tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == written(pieces) + "\n"
    opened = tokens.hf_tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert opened == written(render_prompt("What does it say?", media, NANO_STYLE, []))
