"""What a phrase asks for: colour and shape words, a COCO class, which one of several, and how many."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.colours import parse_colour
from pixelis.tools.shapes import parse_shape

Choice = Literal["leftmost", "rightmost", "topmost", "bottommost", "largest", "smallest", "central"]

NICKNAMES = {
    "person": "people man men woman women child children boy girl kid kids pedestrian human player rider driver juggler"
    " astronaut walker someone somebody",
    "bicycle": "bike cycle",
    "motorcycle": "motorbike scooter moped",
    "airplane": "aeroplane plane aircraft jet",
    "car": "automobile vehicle sedan taxi cab",
    "truck": "lorry pickup van",
    "bus": "coach minibus",
    "boat": "ship ferry canoe kayak",
    "bird": "pigeon duck gull parrot cockatoo chicken",
    "dog": "puppy doggy hound",
    "cat": "kitten kitty",
    "cow": "bull cattle calf",
    "sheep": "lamb",
    "sports ball": "ball football basketball volleyball soccerball",
    "couch": "sofa settee",
    "potted plant": "plant houseplant flowerpot",
    "dining table": "table desk",
    "tv": "television monitor screen",
    "cell phone": "phone cellphone smartphone telephone mobile",
    "laptop": "computer notebook",
    "refrigerator": "fridge",
    "wine glass": "wineglass goblet",
    "cup": "mug",
    "donut": "doughnut",
    "hair drier": "hairdryer",
    "handbag": "bag purse",
    "backpack": "rucksack",
    "suitcase": "luggage",
    "stop sign": "sign",
    "knife": "knives",
    "teddy bear": "teddy",
}
"""Everyday words for COCO classes. `sign` is the detector's only kind of sign."""

CHOICES: dict[str, Choice] = {
    "left": "leftmost", "leftmost": "leftmost", "right": "rightmost", "rightmost": "rightmost",
    "top": "topmost", "upper": "topmost", "topmost": "topmost", "highest": "topmost",
    "bottom": "bottommost", "lower": "bottommost", "bottommost": "bottommost", "lowest": "bottommost",
    "largest": "largest", "biggest": "largest", "smallest": "smallest", "tiniest": "smallest",
    "central": "central", "middle": "central", "center": "central", "centre": "central",
}  # fmt: skip


class Phrase(NamedTuple):
    """A phrase, understood as far as it can be."""

    text: str
    colours: tuple[str, ...]
    shape: str | None
    classes: tuple[str, ...]
    choice: Choice | None

    @property
    def is_empty(self) -> bool:
        return not (self.colours or self.shape or self.classes)


@cache
def _known() -> dict[str, str]:
    return {word: name for name, line in NICKNAMES.items() for word in line.split()} | {
        name: name for name in COCO_NAMES
    }


def coco_class(words: str) -> str | None:
    """The detector's class that a word or a pair of words means: `people` is person, `dogs` is dog."""
    text = words.strip().lower()
    forms = (text, text.removesuffix("'s"), text.removesuffix("s"), text.removesuffix("es"))
    return next((_known()[form] for form in forms if form in _known()), None)


def understand(text: str) -> Phrase:
    """Words of a phrase by what they name. A word that is both, like `orange`, is a colour where a noun follows."""
    words = re.findall(r"[a-z]+", text.lower())
    classes = tuple(dict.fromkeys(_classes(words)))
    shape = next((found for word in words if (found := parse_shape(word))), None)
    colours = tuple(dict.fromkeys(found for word in words if (found := parse_colour(word))))
    if "orange" in classes and (shape or len(classes) > 1):
        classes = tuple(name for name in classes if name != "orange")
    if shape and "sports ball" not in classes:
        classes = ()  # "the red square" is drawn, not photographed
    if "orange" in classes and colours == ("orange",):
        colours = ()
    return Phrase(text, colours, shape, classes, next((CHOICES[w] for w in words if w in CHOICES), None))


def _classes(words: list[str]) -> list[str]:
    """COCO classes in the order of the words, pairs such as `stop sign` before their parts."""
    found, at = [], 0
    while at < len(words):
        pair = coco_class(" ".join(words[at : at + 2])) if at + 1 < len(words) else None
        name = pair or coco_class(words[at])
        found += [name] if name else []
        at += 2 if pair else 1
    return found
