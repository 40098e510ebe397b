"""Answers that were read need not be spelt again: a policy may say which of the read lines it means.

A small policy finds the right line and then misspells it. Where its tokenizer has the tokens below, the teacher's
answer is one of them wherever OCR read it last, in the sentence before it too; what the policy says so is put in words
before anybody else sees it. Other tokenizers have no such tokens, and their policies spell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pixelis.core.geometry import TextSpan
from pixelis.tools.results import ToolResult

ALL, FIRST, LAST = QUOTES = ("<all-read>", "<first-read>", "<last-read>")
"""All lines of the last OCR call that read any, its first line, its last one."""
QUOTE = re.compile("|".join(QUOTES))


def last_ocr_lines(results: Iterable[ToolResult]) -> tuple[str, ...]:
    """The lines of the last OCR call that read any."""
    lines: tuple[str, ...] = ()
    for result in results:
        if result.tool == "OCR" and result.ok:
            lines = tuple(span.text for span in result.footprints if isinstance(span, TextSpan)) or lines
    return lines


def expand_quote(quote: str, lines: Sequence[str]) -> str:
    """A quote in words."""
    return " ".join(lines) if quote == ALL else lines[0 if quote == FIRST else -1]


def find_quote(answer: str, lines: Sequence[str]) -> str | None:
    """The quote that means an answer, the widest first; None where it was not read so."""
    return next((quote for quote in QUOTES if lines and answer == expand_quote(quote, lines)), None)


def expand_quotes(text: str, lines: Sequence[str]) -> str:
    """A text with its quotes put in words; as it is where nothing was read."""
    return QUOTE.sub(lambda match: expand_quote(match[0], lines), text) if lines else text
