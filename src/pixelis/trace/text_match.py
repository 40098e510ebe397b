"""Words, numbers and boxes in free text, to see whether an answer repeats what a tool returned."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from pixelis.core.geometry import UnitBox

FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by for from has have he her his i in is it its no not of on or she that the their "
        "there they this to was we were what which who with yes you",
    )
)
NUMBER_WORDS = re.findall(r"\w+", "zero one two three four five six seven eight nine ten eleven twelve")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")
BOX = re.compile(r"[\[(]\s*" + r"\s*,\s*".join([r"([01](?:\.\d+)?|\.\d+)"] * 4) + r"\s*[\])]")


def word_set(text: str) -> frozenset[str]:
    return frozenset(word_list(text))


def word_list(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def content_words(text: str) -> frozenset[str]:
    """Words that are neither function words nor single letters."""
    return frozenset(w for w in word_list(text) if w not in FUNCTION_WORDS and (len(w) > 1 or w.isdigit()))


def mentions_line(line_text: str, answer: str) -> bool:
    """Whether an answer repeats a line of text, or is a part of that line."""
    line, answer_words = word_list(line_text), word_list(answer)
    if not line or not answer_words:
        return False
    if contains_run(line, answer_words):
        return True
    content = content_words(line_text)
    if len(content) <= 1:
        return bool(content & set(answer_words))
    # of a longer line two consecutive words, or one that is long or has a digit: short words recur by accident
    pairs = set(pairwise(line)) & set(pairwise(answer_words))
    telling = [w for w in content & set(answer_words) if len(w) >= 6 or any(c.isdigit() for c in w)]
    return bool(telling) or any(content & set(pair) for pair in pairs)


def contains_run(longer: list[str], shorter: list[str]) -> bool:
    """Whether one list of words occurs in another without gaps."""
    return any(longer[i : i + len(shorter)] == shorter for i in range(len(longer) - len(shorter) + 1))


def numbers_in(text: str) -> list[str]:
    """Numbers as written, and number words to twelve; boxes are skipped."""
    text = BOX.sub(" ", text)
    spelled = [str(NUMBER_WORDS.index(w)) for w in word_list(text) if w in NUMBER_WORDS]
    return NUMBER.findall(text) + spelled


def same_number(written: str, value: float) -> bool:
    """Whether a value rounds to the written number, at its decimals.

    A whole number matches a fraction only from ten on: 12 may be 11.8, but 1 occurs too often.
    """
    decimals = len(written.partition(".")[2])
    if decimals == 0 and float(value) != int(value) and abs(value) < 10.0:
        return False
    return abs(round(float(value), decimals) - float(written)) < 1e-9


def boxes_in(text: str) -> list[UnitBox]:
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in BOX.findall(text)]
