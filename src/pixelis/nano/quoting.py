"""Quote tokens: a policy may answer with a token for lines that OCR read instead of spelling them.

A small policy finds the right line and then misspells it. If its tokenizer has the tokens below, the teacher's answer
is one of them wherever the last OCR call read it, also in the thought; the policy's quotes are expanded before anything
else reads them. Policies with other tokenizers spell their answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pixelis.core.geometry import TextSpan
from pixelis.tools.results import ToolResult

ALL, FIRST, LAST = QUOTES = ("<all-read>", "<first-read>", "<last-read>")
"""All lines, the first line and the last line of the last OCR call that read any."""
QUOTE = re.compile("|".join(QUOTES))


def last_ocr_lines(results: Iterable[ToolResult]) -> tuple[str, ...]:
    """The lines of the last OCR call that read any."""
    lines: tuple[str, ...] = ()
    for result in results:
        if result.tool == "OCR" and result.ok:
            lines = tuple(span.text for span in result.footprints if isinstance(span, TextSpan)) or lines
    return lines


def expand_quote(quote: str, lines: Sequence[str]) -> str:
    """The text that a quote stands for."""
    return " ".join(lines) if quote == ALL else lines[0 if quote == FIRST else -1]


def find_quote(answer: str, lines: Sequence[str]) -> str | None:
    """The widest quote that stands for an answer; None if there is none."""
    return next((quote for quote in QUOTES if lines and answer == expand_quote(quote, lines)), None)


def expand_quotes(text: str, lines: Sequence[str]) -> str:
    """A text with its quotes expanded; unchanged if nothing was read."""
    return QUOTE.sub(lambda match: expand_quote(match[0], lines), text) if lines else text
