"""Agreement of strings: the paper's normalisation, ANLS as InfoVQA scores it, and the character error rate."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein

ANLS_THRESHOLD = 0.5


def normalise_text(text: str, *, fold_case: bool = True) -> str:
    """NFKC, no punctuation, single blanks: the form in which OCR is compared (supp:failures_risk_coverage).

    Punctuation is Unicode's category P. It stays where it is part of a number: between two digits ("3.5", "12:30")
    and as the sign before one ("-4"), so that 3.5 never equals 35. `fold_case` makes A equal a.
    """
    text = unicodedata.normalize("NFKC", text)
    characters = [
        c for i, c in enumerate(text) if not unicodedata.category(c).startswith("P") or _carries_number(text, i)
    ]
    collapsed = re.sub(r"\s+", " ", "".join(characters)).strip()
    return collapsed.casefold() if fold_case else collapsed


def normalised_distance(a: str, b: str) -> float:
    """Levenshtein distance over the longer length, in [0, 1]; two empty strings: 0."""
    return Levenshtein.normalized_distance(a, b)


def nearest_gold(prediction: str, golds: Sequence[str]) -> str:
    """The gold text nearest to the prediction by `normalised_distance`; ties go to the first."""
    return min(golds, key=lambda gold: normalised_distance(gold, prediction))


def anls(prediction: str, golds: Sequence[str], *, threshold: float = ANLS_THRESHOLD) -> float:
    """Normalised Levenshtein similarity with the nearest gold answer, 0 if it is below `threshold`; in [0, 1].

    As in the official InfoVQA scorer, case and runs of white space do not count in the distance, the length is that of
    the longer original string, and a similarity of exactly 0.5 stays 0.5. Two empty strings: 1. Raises ValueError
    without gold answers.
    """
    if not golds:
        raise ValueError("no gold answers to compare with: expected at least one")
    similarity = 1.0 - min(_infovqa_distance(prediction, gold) for gold in golds)
    return similarity if similarity >= threshold else 0.0


def normalised_anls(prediction: str, golds: Sequence[str], *, threshold: float = ANLS_THRESHOLD) -> float:
    """`anls` after `normalise_text` on both sides, in [0, 1]: the paper's verifier of READ (a pass is 0.85)."""
    return anls(normalise_text(prediction), [normalise_text(gold) for gold in golds], threshold=threshold)


def mean_anls(
    predictions: Sequence[str], golds: Sequence[Sequence[str]], *, threshold: float = ANLS_THRESHOLD
) -> float:
    """Mean `anls` over questions, in [0, 1]. Raises ValueError without questions, or if lengths differ."""
    if len(predictions) != len(golds) or not predictions:
        raise ValueError(f"{len(predictions)} predictions and {len(golds)} golds: expected as many, at least one")
    return float(np.mean([anls(p, g, threshold=threshold) for p, g in zip(predictions, golds, strict=True)]))


def cer(reference: str, hypothesis: str) -> float:
    """Character error rate: edits over the characters of the reference; 0 is perfect, above 1 is possible.

    Against an empty reference: 0 if the hypothesis is empty too, else 1. The strings are not normalised.
    """
    if not reference:
        return float(bool(hypothesis))
    return Levenshtein.distance(reference, hypothesis) / len(reference)


def corpus_cer(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """All edits over all characters of the references, so that long texts weigh more; 0 is perfect.

    If all references are empty: 0 if all hypotheses are empty too, else 1. Raises ValueError if lengths differ.
    """
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses: expected as many")
    characters = sum(map(len, references))
    if not characters:
        return float(any(hypotheses))
    return sum(map(Levenshtein.distance, references, hypotheses)) / characters


def _carries_number(text: str, i: int) -> bool:
    before, after = text[i - 1 : i], text[i + 1 : i + 2]
    between = before.isdigit() and after.isdigit()
    sign = text[i] == "-" and after.isdigit() and not before.isalnum()
    return between or sign


def _infovqa_distance(prediction: str, gold: str) -> float:
    length = max(len(gold.upper()), len(prediction.upper()))
    if not length:
        return 0.0
    return Levenshtein.distance(" ".join(gold.lower().split()), " ".join(prediction.lower().split())) / length
