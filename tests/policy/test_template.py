"""The chat template of a checkpoint writes what `script` writes."""

from __future__ import annotations

import numpy as np

from pixelis.media import Image, MediaSet
from pixelis.policy.nano import NANO_STYLE
from pixelis.policy.script import Look, Piece, answered, call_text, called, observed, opening
from pixelis.policy.tokens import Tokens
from pixelis.tools.results import ToolCall, ToolResult

CALL = ToolCall(tool="OCR", args={"box": [0.1, 0.2, 0.5, 1.0]})


def written(pieces: list[Piece]) -> str:
    return "".join("<|vision_start|><|image_pad|><|vision_end|>" if isinstance(p, Look) else p.text for p in pieces)


def test_a_whole_conversation_has_the_same_text_both_ways(tokens: Tokens):
    media = MediaSet((Image.from_array(np.zeros((32, 32, 3), dtype=np.uint8)),))
    result = ToolResult(tool="OCR", status="ok", text='"EXIT" at [0.10, 0.20, 0.50, 1.00]')
    pieces = [
        *opening("What does it say?", media, NANO_STYLE, []),
        *called("Read it.", CALL, step=1),
        *observed(result, None, media, NANO_STYLE, step=1),
        *answered("The sign says so.", "EXIT", NANO_STYLE, step=2),
    ]
    arguments = call_text(CALL).split('"arguments": ')[1][:-1]
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
    rendered = tokens.tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == written(pieces) + "\n"
    opened = tokens.tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert opened == written(opening("What does it say?", media, NANO_STYLE, []))
