"""Questions as people put them about photographs: how many, where, what colour, is there one, which is larger.

The words of a question are what SEG is asked for (`{thing}`, `{things}`); the class that the annotations have is the
parameter `target`. Programs are as strict as the annotations; questions on which people would differ are not put.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from pixelis.data.importers.named_colours import named_colour
from pixelis.data.importers.nouns import NOT_A_NOUN, absent, drawn, understood
from pixelis.data.importers.outcome import Outcome, seed_of
from pixelis.data.importers.questions import annotated, asked, count, distinct
from pixelis.geometry import Mask
from pixelis.media import Medium
from pixelis.tools.grounding import KIN
from pixelis.world.item import MediumFacts, Reference
from pixelis.world.necessity import shorter_side_px
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    area,
    box_of,
    centre,
    field_of,
    region,
    regions,
    text_of,
)
from pixelis.world.template import ChainStep, Draft, Template

MOST_COUNTED = 9
"""More than this nobody counts at a glance, and annotators stop too."""
LEAST_PX = 24
"""Shorter side at input size from which a thing is asked about."""
FROM_A_BORDER = 0.04
"""How far the centre of a thing lies from the border between two of nine fields, in shares of the frame."""
APART = 0.15
"""How far two middles lie apart that are left and right of each other, in widths."""
STANDS_OUT = 1.7
"""How much larger the largest of several must be, and the larger of two."""

NONE = "there is none"
"""The answer to a question about something that is not there."""

# --- programs


def _count_in(references: References, parameters: Parameters) -> str:
    own = [r for r in references if r.footprint.media == text_of(parameters, "media")]
    return str(distinct(own, text_of(parameters, "target")))


def largest(references: References, name: str) -> Reference:
    """The largest thing of a class; Unanswerable where there is none."""
    region(references, name)
    return max(regions(references, name), key=area)


def _where(references: References, parameters: Parameters) -> str:
    return field_of(box_of(largest(references, text_of(parameters, "target"))))


def _colour(references: References, parameters: Parameters) -> str:
    thing = largest(references, text_of(parameters, "target"))
    if "colour" not in thing.properties:
        raise Unanswerable("its colour is not known")
    return str(thing.properties["colour"]).partition(" and ")[0]


def _there(references: References, parameters: Parameters) -> str:
    return "yes" if regions(references, text_of(parameters, "target")) else "no"


def _missing(references: References, parameters: Parameters) -> str:
    if regions(references, text_of(parameters, "target")):
        raise Unanswerable("there is one")
    return NONE


def _larger(references: References, parameters: Parameters) -> str:
    a, b = (area(largest(references, text_of(parameters, key))) for key in ("a", "b"))
    return text_of(parameters, "thing_a" if a > b else "thing_b")


def _side(references: References, parameters: Parameters) -> str:
    a, b = (centre(box_of(largest(references, text_of(parameters, key))))[0] for key in ("a", "b"))
    return "left" if a < b else "right"


def _which_picture(references: References, parameters: Parameters) -> str:
    name = text_of(parameters, "target")
    found = [bool(regions(references, name, media)) for media in ("Image_0", "Image_1")]
    if found[0] == found[1]:
        raise Unanswerable("it is in both or in neither")
    return "first" if found[0] else "second"


# --- templates

FIND = ChainStep(tool="SEG", args={"target": "{thing}"})
TEMPLATES: dict[str, Template] = {
    template.id: template
    for template in (
        Template(
            "photo.count", "space",
            (
                "How many {things} are there?", "How many {things} are in the picture?", "Count the {things}.",
                "How many {things} can you see?", "How many {things} do you see in this photo?",
                "What is the number of {things}?", "Can you count the {things}?", "How many {things}?",
                "How many {things} does the image show?", "Number of {things} in this photograph?",
                "Tell me how many {things} there are.", "How many {things} are visible here?",
            ),
            annotated, count, "mra", (ChainStep(tool="SEG", args={"target": "{things}"}),),
            doc="the number of regions; 0 where SEG finds none",
        ),
        Template(
            "photo.count_in", "space",
            (
                "How many {things} are in the {which} picture?", "Count the {things} in the {which} image.",
                "In the {which} photo, how many {things} are there?", "How many {things} does {media} show?",
            ),
            annotated, _count_in, "mra", (ChainStep(tool="SEG", args={"target": "{things}", "media": "{media}"}),),
            doc="the number of regions on that picture",
        ),
        Template(
            "photo.where", "search",
            (
                "Where is the {thing}?", "Where in the picture is the {thing}?", "Where can you see the {thing}?",
                "In which part of the image is the {thing}?", "Locate the {thing}.", "Where do you see the {thing}?",
                "Find the {thing}. Where is it?", "Which part of the photo shows the {thing}?",
                "Where is the {thing} in this photo?", "Whereabouts is the {thing}?",
            ),
            annotated, _where, "exact", (FIND, ChainStep(tool="PROP", args={"box": "$1", "attributes": ["position"]})),
            doc="the field of the box's centre",
        ),
        Template(
            "photo.colour", "search",
            (
                "What colour is the {thing}?", "What color is the {thing}?", "Which colour does the {thing} have?",
                "What is the colour of the {thing}?", "Tell me the color of the {thing}.",
                "The {thing}: what colour is it?", "What colour is the {thing} in the picture?",
                "What is the main colour of the {thing}?", "Name the colour of the {thing}.",
            ),
            annotated, _colour, "exact", (FIND, ChainStep(tool="PROP", args={"box": "$1", "attributes": ["colour"]})),
            doc="the first colour that PROP names",
        ),
        Template(
            "photo.there", "search",
            (
                "Is there a {thing}?", "Is there a {thing} in the picture?", "Can you see a {thing}?",
                "Does the photo show a {thing}?", "Are there any {things}?", "Do you see any {things} here?",
                "Is a {thing} in this image?", "Are there {things} in the picture?", "Is there any {thing} here?",
            ),
            annotated, _there, "exact", (FIND,), doc="yes where SEG finds one, else no",
        ),
        Template(
            "photo.missing", "search",
            (
                "Where is the {thing}?", "What colour is the {thing}?", "Where in the picture is the {thing}?",
                "What color is the {thing}?", "Locate the {thing}.", "In which part of the image is the {thing}?",
                "What is the colour of the {thing}?", "Where do you see the {thing}?", "Find the {thing}. Where is it?",
            ),
            annotated, _missing, "exact", (FIND,), doc="SEG finds none, so there is none",
        ),
        Template(
            "photo.larger", "choice",
            (
                "Which is larger in the picture, the {thing_a} or the {thing_b}?",
                "What takes up more of the image: the {thing_a} or the {thing_b}?",
                "Is the {thing_a} or the {thing_b} larger here?", "Which looks bigger, the {thing_a} or the {thing_b}?",
            ),
            annotated, _larger, "exact",
            (ChainStep(tool="SEG", args={"target": "{thing_a}"}), ChainStep(tool="SEG", args={"target": "{thing_b}"})),
            doc="the one whose region has the larger area",
        ),
        Template(
            "photo.side", "search",
            (
                "Is the {thing_a} to the left or to the right of the {thing_b}?",
                "Is the {thing_a} left or right of the {thing_b}?",
                "On which side of the {thing_b} is the {thing_a}, left or right?",
                "Seen from the {thing_b}, is the {thing_a} on the left or on the right?",
            ),
            annotated, _side, "exact",
            (ChainStep(tool="SEG", args={"target": "{thing_a}"}), ChainStep(tool="SEG", args={"target": "{thing_b}"})),
            doc="the order of the two boxes' centres",
        ),
        Template(
            "photo.which_picture", "search",
            (
                "Which picture shows a {thing}, the first or the second?", "In which of the two photos is a {thing}?",
                "Is the {thing} in the first or in the second image?", "Where is the {thing}: first or second picture?",
            ),
            annotated, _which_picture, "exact",
            (
                ChainStep(tool="SEG", args={"target": "{thing}", "media": "Image_0"}),
                ChainStep(tool="SEG", args={"target": "{thing}", "media": "Image_1"}),
            ),
            doc="the picture on which SEG finds one",
        ),
    )
}  # fmt: skip

WAYS = {
    "top": ("upper", "top centre", "top middle", "at the top"),
    "bottom": ("lower", "bottom centre", "bottom middle", "at the bottom"),
    "left": ("on the left", "centre left", "middle left"),
    "right": ("on the right", "centre right", "middle right"),
    "centre": ("center", "middle", "in the middle", "in the centre", "in the center"),
}


def fields_accepted(answer: str) -> tuple[str, ...]:
    """`top left` also as upper left or at the top left."""
    if answer in WAYS:
        return (answer, *WAYS[answer])
    down, _, across = answer.partition(" ")
    other = {"top": "upper", "bottom": "lower"}[down]
    return answer, f"{other} {across}", f"at the {answer}", f"in the {answer}", f"{across} {down}"


def none_accepted(answer: str) -> tuple[str, ...]:
    return answer, "none", "not there", "nowhere", "there is no such thing", "it is not there"


def colours_accepted(answer: str) -> tuple[str, ...]:
    return (answer, "gray") if answer == "grey" else (answer,)


# --- what is asked about one photograph


class Asking:
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
        """`complete`: whatever of COCO's classes is not annotated is not there."""
        self.image_id, self.medium, self.facts, self.complete = image_id, medium, dict(facts), complete
        self.references = list(references)
        self.rng: Generator = np.random.default_rng(seed_of("photo", image_id))
        size = medium.size
        self._media = {"Image_0": MediumFacts(name="Image_0", sha256="", width=size.width, height=size.height)}
        self.by_class: dict[str, list[Reference]] = {}
        for one in references:
            self.by_class.setdefault(str(one.properties["class"]), []).append(one)
        self.sound = {
            name: found
            for name, found in sorted(self.by_class.items())
            if understood(name, name) and not any(r.properties["crowd"] for r in found) and self._visible(found)
        }

    def _visible(self, found: Sequence[Reference]) -> bool:
        return all(shorter_side_px(r, self._media) >= LEAST_PX for r in found)

    def ask(
        self, kind: str, evidence: Sequence[Reference], parameters: dict[str, Any], mark: str = "", **more: Any
    ) -> Outcome:
        own = f"{self.image_id}{mark}"
        names = [r.name for r in evidence]
        draft = Draft(
            (self.medium,), self.references, names, {**self.facts, **parameters}, traits={"photograph"}, **more
        )
        return asked(kind, draft, id=f"{kind}/{own}", seed=seed_of(kind, own), templates=TEMPLATES)

    def questions(self) -> Iterator[Outcome]:
        """Whatever can be asked, a few of each kind."""
        yield from self.counts()
        yield from self.places()
        yield from self.colours()
        yield from self.presence()
        yield from self.two_things()
        yield from self.missing()

    def _some(self, names: Sequence[str], most: int = 2) -> list[str]:
        return [names[int(k)] for k in self.rng.permutation(len(names))[:most]]

    def counts(self) -> Iterator[Outcome]:
        countable = [
            name for name, found in self.sound.items()
            if distinct(found, name) == len(found) <= MOST_COUNTED
            and not any(kin in self.by_class for kin in KIN.get(name, ()))
        ]  # fmt: skip
        for name in self._some(countable):
            noun = drawn(name, self.rng)
            yield self.ask("photo.count", self.sound[name], {"target": name, "things": noun.several}, f"/{name}")
        nothing = absent(set(self.by_class), self.rng) if self.complete else None
        if nothing and self.rng.random() < 0.3:
            noun = drawn(nothing, self.rng)
            yield self.ask("photo.count", [], {"target": nothing, "things": noun.several}, f"/no {nothing}")

    def singled_out(self, name: str) -> tuple[Reference, str] | None:
        """The only thing of a class, or the one that is by far the largest, with the word that says so."""
        found = sorted(self.sound[name], key=area, reverse=True)
        if name in NOT_A_NOUN:
            return None
        if len(found) == 1:
            return found[0], ""
        return (found[0], "largest ") if area(found[0]) >= STANDS_OUT * area(found[1]) else None

    def places(self) -> Iterator[Outcome]:
        fits: dict[str, tuple[Reference, str]] = {}
        for name in self.sound:
            found = self.singled_out(name)
            if found and min(abs(v - k / 3) for v in centre(box_of(found[0])) for k in (1, 2)) >= FROM_A_BORDER:
                fits[name] = found
        for name in self._some(list(fits), 3):
            one, most = fits[name]
            thing = most + drawn(name, self.rng).one
            parameters = {"target": name, "thing": thing, "attribute": "position"}
            yield self.ask("photo.where", [one], parameters, f"/{name}", accepted=fields_accepted)

    def colours(self) -> Iterator[Outcome]:
        pixels = np.asarray(self.medium.frame(0))
        fits: dict[str, tuple[Reference, str, str]] = {}
        for name in self.sound:
            found = self.singled_out(name) if name != "person" else None
            if found is None or not isinstance(mask := found[0].footprint, Mask):
                continue
            colour = named_colour(pixels[mask.model_copy().array])  # the copy keeps the array, not the mask
            if colour:
                fits[name] = (*found, colour)
        for name in self._some(list(fits), 3):
            one, most, colour = fits[name]
            kept, known = self.references, one.model_copy(update={"properties": {**one.properties, "colour": colour}})
            self.references = [known if r.name == one.name else r for r in kept]
            parameters = {"target": name, "thing": most + drawn(name, self.rng).one, "attribute": "colour"}
            yield self.ask("photo.colour", [known], parameters, f"/{name}", accepted=colours_accepted)
            self.references = kept

    def presence(self) -> Iterator[Outcome]:
        seen = [name for name in self.sound if name not in NOT_A_NOUN]
        for name in self._some(seen, 1):
            noun = drawn(name, self.rng)
            parameters = {"target": name, "thing": noun.one, "things": noun.several}
            yield self.ask("photo.there", self.sound[name], parameters, f"/{name}")
        nothing = absent(set(self.by_class), self.rng) if self.complete else None
        if nothing and self.rng.random() < 0.5:
            noun = drawn(nothing, self.rng)
            parameters = {"target": nothing, "thing": noun.one, "things": noun.several}
            yield self.ask("photo.there", [], parameters, f"/no {nothing}")

    def missing(self) -> Iterator[Outcome]:
        """A question whose premise is wrong: nobody must make up a place."""
        nothing = absent(set(self.by_class), self.rng) if self.complete else None
        if nothing and self.rng.random() < 0.3:
            parameters = {"target": nothing, "thing": drawn(nothing, self.rng).one}
            yield self.ask("photo.missing", [], parameters, f"/no {nothing}", accepted=none_accepted)

    def two_things(self) -> Iterator[Outcome]:
        singles = [name for name, found in self.sound.items() if len(found) == 1 and name not in NOT_A_NOUN]
        pairs = [(a, b) for a in singles for b in singles if a != b and b not in KIN.get(a, ())]
        times = {(a, b): area(self.sound[a][0]) / area(self.sound[b][0]) for a, b in pairs}
        told = [both for both, ratio in times.items() if ratio >= STANDS_OUT or ratio <= 1 / STANDS_OUT]
        if told:
            a, b = told[int(self.rng.integers(len(told)))]
            first, second = drawn(a, self.rng).one, drawn(b, self.rng).one
            parameters = {"a": a, "b": b, "thing_a": first, "thing_b": second}
            yield self.ask("photo.larger", [*self.sound[a], *self.sound[b]], parameters)
        middles = {name: centre(box_of(self.sound[name][0]))[0] for name in singles}
        apart = [(a, b) for a, b in pairs if abs(middles[a] - middles[b]) >= APART]
        if apart:
            a, b = apart[int(self.rng.integers(len(apart)))]
            parameters = {"a": a, "b": b, "thing_a": drawn(a, self.rng).one, "thing_b": drawn(b, self.rng).one}
            yield self.ask("photo.side", [*self.sound[a], *self.sound[b]], parameters)
