"""Everyday questions about photographs: how many, where, what colour, is there one, which is larger.

The words of a question are the target of SEG (`{thing}`, `{things}`); the annotated class is the parameter `target`.
Programs are as strict as the annotations; questions on which people would disagree are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from pixelis.core.geometry import Mask
from pixelis.data.importers.dataset_questions import (
    QuestionMaker,
    count_distinct,
    count_target,
    load_question_templates,
)
from pixelis.data.importers.import_options import ImportOutcome, stable_seed
from pixelis.data.importers.named_colours import name_colour
from pixelis.data.importers.nouns import EXCLUDED_CLASSES, Noun, draw_absent_class, draw_noun, is_understood
from pixelis.items import MediumFacts, Reference
from pixelis.media import Medium
from pixelis.tools.vision.grounding import RELATED_CLASSES
from pixelis.world.programs import Facts, Unanswerable, area, get_box, get_centre, locate_field
from pixelis.world.tool_necessity import shorter_side_px

MAX_COUNT = 9
"""People do not count more than this at a glance, and annotators stop too."""
MIN_SIDE_PX = 24
"""Minimum shorter side, at input size, of a thing in a question."""
MIN_BORDER_DISTANCE = 0.04
"""Minimum distance of a centre from the border between two of nine fields, in shares of the frame."""
MIN_CENTRE_DISTANCE = 0.15
"""Minimum distance of two centres that are left and right of each other, in frame widths."""
MIN_AREA_RATIO = 1.7
"""Minimum area ratio of the largest thing, or the larger of two, to the next."""

NONE_ANSWER = "there is none"
"""The answer to a question about something absent."""

# --- programs


def _count_in(facts: Facts) -> str:
    picture_references = [r for r in facts.references if r.footprint.media == facts.text("media")]
    return str(count_distinct(picture_references, facts.text("target")))


def largest_region(facts: Facts, name: str) -> Reference:
    """The largest thing of a class; raises Unanswerable if there is none."""
    facts.region(name)
    return max(facts.regions(name), key=area)


def _where(facts: Facts) -> str:
    return locate_field(get_box(largest_region(facts, facts.text("target"))))


def _colour(facts: Facts) -> str:
    thing = largest_region(facts, facts.text("target"))
    if "colour" not in thing.properties:
        raise Unanswerable("its colour is not known")
    return str(thing.properties["colour"]).partition(" and ")[0]


def _is_present(facts: Facts) -> str:
    return "yes" if facts.regions(facts.text("target")) else "no"


def _missing(facts: Facts) -> str:
    if facts.regions(facts.text("target")):
        raise Unanswerable("there is one")
    return NONE_ANSWER


def _larger(facts: Facts) -> str:
    a, b = (area(largest_region(facts, facts.text(key))) for key in ("a", "b"))
    return facts.text("thing_a" if a > b else "thing_b")


def _side(facts: Facts) -> str:
    a, b = (get_centre(largest_region(facts, facts.text(key)))[0] for key in ("a", "b"))
    return "left" if a < b else "right"


def _which_picture(facts: Facts) -> str:
    name = facts.text("target")
    present = [bool(facts.regions(name, media)) for media in ("Image_0", "Image_1")]
    if present[0] == present[1]:
        raise Unanswerable("it is in both or in neither")
    return "first" if present[0] else "second"


TEMPLATES = load_question_templates(
    {
        "photo.count": count_target,
        "photo.count_in": _count_in,
        "photo.where": _where,
        "photo.colour": _colour,
        "photo.there": _is_present,
        "photo.missing": _missing,
        "photo.larger": _larger,
        "photo.side": _side,
        "photo.which_picture": _which_picture,
    }
)

POSITION_SYNONYMS = {
    "top": ("upper", "top centre", "top middle", "at the top"),
    "bottom": ("lower", "bottom centre", "bottom middle", "at the bottom"),
    "left": ("on the left", "centre left", "middle left"),
    "right": ("on the right", "centre right", "middle right"),
    "centre": ("center", "middle", "in the middle", "in the centre", "in the center"),
}


def accepted_positions(answer: str) -> tuple[str, ...]:
    """`top left` also as `upper left` or `at the top left`."""
    if answer in POSITION_SYNONYMS:
        return (answer, *POSITION_SYNONYMS[answer])
    down, _, across = answer.partition(" ")
    synonym = {"top": "upper", "bottom": "lower"}[down]
    return answer, f"{synonym} {across}", f"at the {answer}", f"in the {answer}", f"{across} {down}"


def accepted_none(answer: str) -> tuple[str, ...]:
    return answer, "none", "not there", "nowhere", "there is no such thing", "it is not there"


def accepted_colours(answer: str) -> tuple[str, ...]:
    return (answer, "gray") if answer == "grey" else (answer,)


# --- the questions about one photograph


class PhotoQuestions:
    """Questions about one photograph and its references."""

    def __init__(
        self,
        image_id: str,
        medium: Medium,
        references: Sequence[Reference],
        facts: Mapping[str, Any],
        *,
        complete: bool = True,
    ) -> None:
        """`complete`: every thing of COCO's classes is annotated."""
        self.image_id, self.complete = image_id, complete
        self.maker = QuestionMaker(medium, list(references), facts, (image_id,), templates=TEMPLATES)
        self.rng: Generator = np.random.default_rng(stable_seed("photo", image_id))
        size = medium.size
        self._media = {"Image_0": MediumFacts(name="Image_0", sha256="", width=size.width, height=size.height)}
        self.by_class: dict[str, list[Reference]] = {}
        for reference in references:
            self.by_class.setdefault(str(reference.properties["class"]), []).append(reference)
        self.usable = {
            name: members
            for name, members in sorted(self.by_class.items())
            if is_understood(name, name)
            and not any(r.properties["crowd"] for r in members)
            and all(shorter_side_px(r, self._media) >= MIN_SIDE_PX for r in members)
        }

    def ask(
        self, kind: str, evidence: Sequence[Reference], parameters: dict[str, Any], suffix: str = "", **fields: Any
    ) -> ImportOutcome:
        return self.maker.ask(kind, evidence, parameters, key=(f"{self.image_id}{suffix}",), **fields)

    def questions(self) -> Iterator[ImportOutcome]:
        """A few questions of each kind that the annotations allow."""
        yield from self.counts()
        yield from self.positions()
        yield from self.colours()
        yield from self.presence()
        yield from self.two_things()
        yield from self.missing()

    def _sample(self, names: Sequence[str], limit: int = 2) -> list[str]:
        return [names[int(k)] for k in self.rng.permutation(len(names))[:limit]]

    def _draw_absent(self, probability: float) -> tuple[str, Noun] | None:
        """A class that is certainly absent, with this probability, and a noun for it."""
        name = draw_absent_class(set(self.by_class), self.rng) if self.complete else None
        return (name, draw_noun(name, self.rng)) if name and self.rng.random() < probability else None

    def counts(self) -> Iterator[ImportOutcome]:
        countable = [
            name for name, members in self.usable.items()
            if count_distinct(members, name) == len(members) <= MAX_COUNT
            and not any(kin in self.by_class for kin in RELATED_CLASSES.get(name, ()))
        ]  # fmt: skip
        for name in self._sample(countable):
            noun = draw_noun(name, self.rng)
            yield self.ask("photo.count", self.usable[name], {"target": name, "things": noun.plural}, f"/{name}")
        if absent := self._draw_absent(0.3):
            name, noun = absent
            yield self.ask("photo.count", [], {"target": name, "things": noun.plural}, f"/no {name}")

    def find_distinctive(self, name: str) -> tuple[Reference, str] | None:
        """The only thing of a class, or by far the largest one, with the word that says so."""
        by_area = sorted(self.usable[name], key=area, reverse=True)
        if name in EXCLUDED_CLASSES:
            return None
        if len(by_area) == 1:
            return by_area[0], ""
        return (by_area[0], "largest ") if area(by_area[0]) >= MIN_AREA_RATIO * area(by_area[1]) else None

    def positions(self) -> Iterator[ImportOutcome]:
        candidates: dict[str, tuple[Reference, str]] = {}
        for name in self.usable:
            if distinctive := self.find_distinctive(name):
                centre_unit = get_centre(distinctive[0])
                if min(abs(v - k / 3) for v in centre_unit for k in (1, 2)) >= MIN_BORDER_DISTANCE:
                    candidates[name] = distinctive
        for name in self._sample(list(candidates), 3):
            reference, qualifier = candidates[name]
            thing = qualifier + draw_noun(name, self.rng).singular
            parameters = {"target": name, "thing": thing, "attribute": "position"}
            yield self.ask("photo.where", [reference], parameters, f"/{name}", accepted_answers=accepted_positions)

    def colours(self) -> Iterator[ImportOutcome]:
        pixels = np.asarray(self.maker.medium.frame(0))
        candidates: dict[str, tuple[Reference, str]] = {}
        for name in self.usable:
            distinctive = self.find_distinctive(name) if name != "person" else None
            if distinctive is None or not isinstance(mask := distinctive[0].footprint, Mask):
                continue
            colour = name_colour(pixels[mask.model_copy().array])  # the copy keeps the array, not the mask
            if colour:
                thing, qualifier = distinctive
                candidates[name] = (
                    thing.model_copy(update={"properties": {**thing.properties, "colour": colour}}),
                    qualifier,
                )
        for name in self._sample(list(candidates), 3):
            coloured, qualifier = candidates[name]
            references = [coloured if r.name == coloured.name else r for r in self.maker.references]
            thing_name = qualifier + draw_noun(name, self.rng).singular
            parameters = {"target": name, "thing": thing_name, "attribute": "colour"}
            yield self.ask(
                "photo.colour", [coloured], parameters, f"/{name}",
                references=references, accepted_answers=accepted_colours,
            )  # fmt: skip

    def presence(self) -> Iterator[ImportOutcome]:
        present = [name for name in self.usable if name not in EXCLUDED_CLASSES]
        for name in self._sample(present, 1):
            noun = draw_noun(name, self.rng)
            parameters = {"target": name, "thing": noun.singular, "things": noun.plural}
            yield self.ask("photo.there", self.usable[name], parameters, f"/{name}")
        if absent := self._draw_absent(0.5):
            name, noun = absent
            parameters = {"target": name, "thing": noun.singular, "things": noun.plural}
            yield self.ask("photo.there", [], parameters, f"/no {name}")

    def missing(self) -> Iterator[ImportOutcome]:
        """Questions with a wrong premise, which nobody should answer with a position or colour."""
        if absent := self._draw_absent(0.3):
            name, noun = absent
            parameters = {"target": name, "thing": noun.singular}
            yield self.ask("photo.missing", [], parameters, f"/no {name}", accepted_answers=accepted_none)

    def two_things(self) -> Iterator[ImportOutcome]:
        singles = [name for name, members in self.usable.items() if len(members) == 1 and name not in EXCLUDED_CLASSES]
        pairs = [(a, b) for a in singles for b in singles if a != b and b not in RELATED_CLASSES.get(a, ())]
        ratios = {(a, b): area(self.usable[a][0]) / area(self.usable[b][0]) for a, b in pairs}
        distinguishable = [pair for pair, r in ratios.items() if r >= MIN_AREA_RATIO or r <= 1 / MIN_AREA_RATIO]
        if distinguishable:
            a, b = distinguishable[int(self.rng.integers(len(distinguishable)))]
            first, second = draw_noun(a, self.rng).singular, draw_noun(b, self.rng).singular
            parameters = {"a": a, "b": b, "thing_a": first, "thing_b": second}
            yield self.ask("photo.larger", [*self.usable[a], *self.usable[b]], parameters)
        centres = {name: get_centre(self.usable[name][0])[0] for name in singles}
        apart = [(a, b) for a, b in pairs if abs(centres[a] - centres[b]) >= MIN_CENTRE_DISTANCE]
        if apart:
            a, b = apart[int(self.rng.integers(len(apart)))]
            first, second = draw_noun(a, self.rng).singular, draw_noun(b, self.rng).singular
            parameters = {"a": a, "b": b, "thing_a": first, "thing_b": second}
            yield self.ask("photo.side", [*self.usable[a], *self.usable[b]], parameters)
