"""Parse a phrase into colour and shape words, COCO classes and a choice among several; match detections to it."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import yaml

from pixelis.core.geometry import PixelBox
from pixelis.tools.backends.nanodet import COCO_NAMES, Detection
from pixelis.tools.vision.colours import parse_colour
from pixelis.tools.vision.shapes import parse_shape

Choice = Literal["leftmost", "rightmost", "topmost", "bottommost", "largest", "smallest", "central"]

_WORDS = yaml.safe_load((files("pixelis.tools.vision") / "grounding.yaml").read_bytes())
COCO_SYNONYMS: dict[str, str] = _WORDS["synonyms"]
FILLERS = frozenset(_WORDS["fillers"].split())
CHOICES: dict[str, Choice] = {word: choice for choice, words in _WORDS["choices"].items() for word in words.split()}
RELATED_CLASSES = {"car": ("truck", "bus"), "truck": ("car", "bus"), "bus": ("truck", "car"), "couch": ("chair", "bed")}
SCORE_THRESHOLD, SCORE_THRESHOLD_WITH_COLOUR = 0.35, 0.25
"""Minimum score of a detection; and the lower one if a colour must match too."""
MIN_TARGET_SCORE = 0.2
"""Minimum score of the requested class if a related class has the higher one."""


class Phrase(NamedTuple):
    """A parsed phrase."""

    text: str
    colours: tuple[str, ...]
    shape: str | None
    classes: tuple[str, ...]
    choice: Choice | None
    ignored: tuple[str, ...] = ()
    """Words without a meaning for SEG."""

    @property
    def is_empty(self) -> bool:
        return not (self.colours or self.shape or self.classes)


@cache
def _class_by_word() -> dict[str, str]:
    return {word: name for name, line in COCO_SYNONYMS.items() for word in line.split()} | {n: n for n in COCO_NAMES}


def coco_class(words: str) -> str | None:
    """The detector's class that a word or a pair of words means: `people` is person, `dogs` is dog."""
    text = words.strip().lower()
    forms = (text, text.removesuffix("'s"), text.removesuffix("s"), text.removesuffix("es"))
    return next((_class_by_word()[form] for form in forms if form in _class_by_word()), None)


def parse_phrase(text: str) -> Phrase:
    """Parse a phrase. A word with two meanings, like `orange`, is a colour if a noun follows."""
    words = re.findall(r"[a-z]+", text.lower())
    classes = tuple(dict.fromkeys(_find_classes(words)))
    shape = next((parsed_word for word in words if (parsed_word := parse_shape(word))), None)
    colours = tuple(dict.fromkeys(parsed_word for word in words if (parsed_word := parse_colour(word))))
    if "orange" in classes and (shape or len(classes) > 1):
        classes = tuple(name for name in classes if name != "orange")
    if shape and "sports ball" not in classes:
        classes = ()  # "the red square" is drawn, not photographed
    if "orange" in classes and colours == ("orange",):
        colours = ()
    choice = next((CHOICES[word] for word in words if word in CHOICES), None)
    return Phrase(text, colours, shape, classes, choice, tuple(dict.fromkeys(filter(_is_unrecognised, words))))


def _is_unrecognised(word: str) -> bool:
    recognised = word in CHOICES or word in FILLERS or parse_colour(word) or parse_shape(word) or coco_class(word)
    return not recognised and not any(word in name.split() for name in COCO_NAMES)


def match_detections(detections: list[Detection], phrase: Phrase) -> list[Detection]:
    """Detections that the phrase may mean, one for each object, under the phrase's own class.

    The detector confuses cars, trucks and buses. A detection of a related class counts if the requested class has some
    score there too; if a colour is named (checked later), lower scores are accepted.
    """
    targets, min_score = set(phrase.classes), SCORE_THRESHOLD_WITH_COLOUR if phrase.colours else SCORE_THRESHOLD
    accepted = targets | {relative for name in targets for relative in RELATED_CLASSES.get(name, ())}
    related = sorted((d for d in detections if d.label in accepted), key=lambda d: (d.label not in targets, -d.score))
    matches: list[Detection] = []
    for detection in related:
        overlapping = [d for d in related if share_of_smaller(d.box_px, detection.box_px) > 0.7]
        target_score = max((d.score for d in overlapping if d.label in targets), default=0.0)
        best_score = max(d.score for d in overlapping)
        if target_score < MIN_TARGET_SCORE or best_score < min_score:
            continue
        if all(share_of_smaller(detection.box_px, other.box_px) < 0.7 for other in matches):
            best = max(overlapping, key=lambda d: d.score)
            matches.append(best._replace(label=detection.label if detection.label in targets else phrase.classes[0]))
    return matches


def share_of_smaller(a: PixelBox, b: PixelBox) -> float:
    """Overlap of two boxes over the smaller one."""
    width = min(a.right, b.right) - max(a.left, b.left)
    height = min(a.bottom, b.bottom) - max(a.top, b.top)
    smaller = min((a.right - a.left) * (a.bottom - a.top), (b.right - b.left) * (b.bottom - b.top))
    return max(width, 0.0) * max(height, 0.0) / max(smaller, 1e-9)


def _find_classes(words: list[str]) -> list[str]:
    """COCO classes in the order of the words, pairs such as `stop sign` before their parts."""
    names, position = [], 0
    while position < len(words):
        pair = coco_class(" ".join(words[position : position + 2])) if position + 1 < len(words) else None
        name = pair or coco_class(words[position])
        names += [name] if name else []
        position += 2 if pair else 1
    return names
