"""Words and numbers of the world: invented names, everyday nouns, codes, integers.

Invented words avoid letters that look alike (l and I, O and 0, rn and m), so that a misreading is the tool's fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from numpy.random import Generator

from pixelis.world.package_data import read_package_yaml

T = TypeVar("T")

ONSETS, VOWELS, CODAS, PLACES, TOPICS, MEASURES, MONTHS = (
    tuple(read_package_yaml("pixelis.world", "words.yaml")[kind])
    for kind in ("onsets", "vowels", "codas", "places", "topics", "measures", "months")
)


def choose(rng: Generator, options: Sequence[T]) -> T:
    """One option, uniformly."""
    return options[int(rng.integers(len(options)))]


def sample(rng: Generator, options: Sequence[T], count: int) -> list[T]:
    """Several different options, in random order."""
    return [options[int(i)] for i in rng.permutation(len(options))[:count]]


def invent_word(rng: Generator) -> str:
    """A pronounceable word, one of over ten million."""
    while True:
        parts = [choose(rng, ONSETS) + choose(rng, VOWELS) for _ in range(int(rng.integers(2, 4)))]
        word = "".join(parts) + choose(rng, CODAS)
        if 5 <= len(word) <= 8 and "rn" not in word and "ii" not in word:
            return word.capitalize()


def choose_name(rng: Generator) -> str:
    """A name: invented in three of four cases, else an everyday word."""
    return invent_word(rng) if rng.random() < 0.75 else choose(rng, PLACES)


def choose_names(rng: Generator, count: int) -> list[str]:
    """Different names, no two of which begin with the same three letters."""
    words: list[str] = []
    while len(words) < count:
        word = choose_name(rng)
        if all(word[:3].lower() != other[:3].lower() for other in words):
            words.append(word)
    return words


def make_code(rng: Generator) -> str:
    """A short code of letters and digits: K7-42."""
    letters = "ACEFHJKMNPRTVXY"
    prefix = choose(rng, letters) + choose(rng, letters)
    return f"{prefix}-{int(rng.integers(23, 99))}"


def sample_int(rng: Generator, low: int, high: int) -> int:
    """An integer, both ends included."""
    return int(rng.integers(low, high + 1))


def sample_spaced_integers(rng: Generator, count: int, low: int, high: int, min_gap: int) -> list[int]:
    """Different integers, every two at least `min_gap` apart, in random order."""
    while True:
        values = sorted(int(v) for v in rng.integers(low, high + 1, count))
        if all(b - a >= min_gap for a, b in pairwise(values)):
            return [values[int(i)] for i in rng.permutation(count)]


def join_words(words: Sequence[str], last: str = "or") -> str:
    """A, B or C."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def fix_articles(text: str) -> str:
    """Replace `a` by `an` before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
