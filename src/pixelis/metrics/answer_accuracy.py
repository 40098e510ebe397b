"""Answer accuracy: exact, multiple choice, relaxed numeric, and VSI-Bench's mean relative accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from pixelis.metrics.text import normalise_text

NumberReading = Literal["official", "lmms"]
"""How VSI-Bench finds the number in an answer. `official` (the benchmark's own repository, and our default, because
published figures use it): the first word must be the number. `lmms` (lmms-eval, 2026): the first number anywhere in
the text, in digits or in English words."""

ERROR_THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""VSI-Bench's thresholds θ: a relative error of at most 1 - θ passes."""

# fmt: off
UNITS = {word: value for value, word in enumerate((
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
))}
TENS = {word: 10 * tens for tens, word in enumerate((
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
), start=2)}
# fmt: on
NUMBER_WORD = re.compile(
    rf"\b(?:({'|'.join(TENS)})(?:[\s-]+({'|'.join(list(UNITS)[1:10])}))?|({'|'.join(UNITS)}))\b"
)  # "twenty", "twenty-one" | "seventeen"
DIGITS = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")

CHOICE_PHRASES = (
    re.compile(r"\b(?i:answer|choice|option)\s*(?:(?i:is)|[:=])?\s*\(?([A-Z])\)?(?![\w'])"),  # "the answer is (B)"
    re.compile(r"(?<!\w)\(([A-Za-z])\)"),  # "(B) a dog", "it must be (b)"
    re.compile(r"^([A-Za-z])\s*[.:)]"),  # "B. a dog", "b) a dog"
    re.compile(r"^([B-HJ-Z])\s"),  # "B because ...", but not "A dog" or "I think"
)


def exact_match(prediction: str, golds: Sequence[str]) -> bool:
    """Equal to one of the gold answers under `normalise_text` (case, punctuation and white space do not count).

    No gold answers: False.
    """
    return normalise_text(prediction) in {normalise_text(gold) for gold in golds}


def choice_letter(text: str, options: Sequence[str] = ()) -> str | None:
    """The letter that an answer chooses, as a capital; None if it chooses none.

    A bare letter comes first, then an answer that equals one of the options ("a dog"), then "the answer is
    B", "(B)", "B. a dog" and "B because ...". Two different letters in one of these forms are not a choice, and
    neither is a letter past the last option.
    """
    letters = [chr(ord("A") + i) for i in range(len(options) or 26)]
    stripped, normalised = text.strip(), normalise_text(text)
    if stripped.upper() in letters:
        return stripped.upper()
    bare = [normalise_text(re.sub(r"^\(?[A-Za-z][.):]\s*", "", option)) for option in options]
    matching = [letter for letter, option in zip(letters, bare, strict=False) if normalised and option == normalised]
    if len(matching) == 1:
        return matching[0]
    for phrase in CHOICE_PHRASES:
        letters_found = {letter.upper() for letter in phrase.findall(stripped)} & set(letters)
        if letters_found:
            return letters_found.pop() if len(letters_found) == 1 else None
    return None


def choice_match(prediction: str, gold: str, options: Sequence[str] = ()) -> bool:
    """Whether the answer chooses the gold letter (or, given options, the gold text). No choice made: False."""
    gold_letter = choice_letter(gold, options)
    return gold_letter is not None and choice_letter(prediction, options) == gold_letter


def relaxed_match(prediction: str, gold: str, *, tolerance: float = 0.05) -> bool:
    """ChartQA's relaxed accuracy: numbers may be off by 5 % of the gold value, anything else must match exactly.

    "12%" is 0.12 on both sides. A gold of 0 requires exactly 0.
    """
    p, g = _whole_number(prediction), _whole_number(gold)
    if p is None or g is None:
        return exact_match(prediction, [gold])
    return abs(p - g) <= tolerance * abs(g)


def parse_number(text: str, *, reading: NumberReading = "official") -> float | None:
    """The number that an answer states, by one of VSI-Bench's two readings; None without a finite one.

    "There are 3 chairs" and "twenty-one" are numbers only to `lmms`; a comma ends a number for both ("1,200" is 1 or
    nothing).
    """
    if reading == "official":
        return _finite(text.partition(" ")[0].rstrip(".").strip())
    lowered = text.lower()
    if digits := DIGITS.search(lowered):
        return _finite(digits.group())
    if words := NUMBER_WORD.search(lowered):
        ten, unit, below_twenty = words.groups()
        return float(UNITS[below_twenty]) if below_twenty else float(TENS[ten] + UNITS.get(unit or "zero", 0))
    return None


def relative_accuracy(prediction: float | None, gold: float) -> float:
    """VSI-Bench's MRA of one number: the share of the ten θ in {0.50, 0.55 ... 0.95} with |p - g| / |g| <= 1 - θ.

    In {0, 0.1 ... 1}. No number, NaN or infinity: 0. A gold of 0: 1 for exactly 0, else 0.
    """
    if prediction is None or not math.isfinite(prediction):
        return 0.0
    if gold == 0:
        return float(prediction == 0)
    return float(np.mean(abs(prediction - gold) / abs(gold) <= 1 - ERROR_THRESHOLDS))


def mean_relative_accuracy(
    predictions: Sequence[str], golds: Sequence[str | float], *, reading: NumberReading = "official"
) -> float:
    """MRA over answers as text, in [0, 1]. ValueError without answers, if lengths differ, or for a non-numeric gold."""
    if len(predictions) != len(golds) or not predictions:
        raise ValueError(f"{len(predictions)} predictions and {len(golds)} golds: expected as many, at least one")
    scores = []
    for prediction, gold in zip(predictions, golds, strict=True):
        target = _finite(str(gold))
        if target is None:
            raise ValueError(f"gold answer {gold!r} is not a number: MRA is undefined")
        scores.append(relative_accuracy(parse_number(prediction, reading=reading), target))
    return float(np.mean(scores))


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole_number(text: str) -> float | None:
    """The number if the text is nothing else; thousands separators, a currency sign and a percent sign are allowed."""
    match = re.fullmatch(r"[$€£]?\s*([-+]?[\d,]*\.?\d+)\s*(%?)", text.strip())
    value = _finite(match.group(1).replace(",", "")) if match else None
    if match is None or value is None:
        return None
    return value / 100 if match.group(2) else value
