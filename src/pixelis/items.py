"""What one question is: the words, the right answer, exact pixel references, and which tools it cannot do without.

The world writes items and so do importers of real datasets, hence nothing here knows how a picture was made.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from pixelis.core.geometry import Footprint, Size, Value
from pixelis.metrics.answer_accuracy import choice_match, exact_match, parse_number, relative_accuracy
from pixelis.metrics.text import anls

Family = Literal["search", "choice", "motion", "document", "lecture", "space"]
Scoring = Literal["exact", "choice", "anls", "mra"]
ToolName = Literal["SEG", "TRK", "OCR", "TEMP", "ZOOM", "PROP"]
Scalar = str | int | float

FAMILIES: tuple[Family, ...] = ("search", "choice", "motion", "document", "lecture", "space")
TOOLS: tuple[ToolName, ...] = ("SEG", "TRK", "OCR", "TEMP", "ZOOM", "PROP")
CORRECT_THRESHOLD = 0.5
"""An answer with less than this score under its item's own rule is another answer."""


class Reference(Value):
    """Something that is certainly there: where it lies, and what it is like."""

    name: str
    """Unique within the item: `thing_3`, `text_0`, `span_1`."""
    footprint: Footprint
    """Its label is the phrase that names it: `red star`."""
    properties: dict[str, Scalar] = Field(default_factory=dict)
    """Colour, shape, texture, role, start_s, end_s …; words as PROP says them."""


class MediumFacts(Value):
    """A medium of the item, without its pixels."""

    name: str
    """As the query names it: Image_0, Video_1."""
    sha256: str
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    frames: int = Field(default=1, ge=1)
    duration_s: float = Field(default=0.0, ge=0.0)

    @property
    def size(self) -> Size:
        return Size(self.width, self.height)


class Necessity(Value):
    """One perturbation test (supp:tool_necessity): the reference program before and after it."""

    required: bool
    answer: str
    perturbed_answer: str
    """Empty where the program could not answer any more."""
    test: str
    """What was done to which references."""


class ShiftFacts(Value):
    """The shift that the media went through."""

    name: str
    severity: int = Field(ge=1, le=5)
    seed: int


class Item(Value):
    """A question with everything needed to score an answer to it and the way to that answer."""

    id: str
    family: Family
    template: str
    """Question template, e.g. `search.plate_text`; an importer's own name for real data."""
    difficulty: int = Field(ge=1, le=5)
    seed: int
    stem: str
    """The question without its options."""
    options: tuple[str, ...] = ()
    answer: str
    """As it is scored: for multiple choice the letter."""
    answers: tuple[str, ...] = Field(min_length=1)
    """Accepted variants, the answer among them."""
    scoring: Scoring
    media: tuple[MediumFacts, ...] = Field(min_length=1)
    references: tuple[Reference, ...] = ()
    evidence: tuple[str, ...] = ()
    """Names of the references that the answer depends on."""
    parameters: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """What the template's reference program is run with."""
    necessity: dict[ToolName, Necessity] = Field(default_factory=dict)
    traits: tuple[str, ...] = ()
    """What makes it look less like a toy: texture, clutter, occlusion, shake, pan, pair."""
    shift: ShiftFacts | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        names = [reference.name for reference in self.references]
        if len(set(names)) != len(names):
            raise ValueError(f"item {self.id}: two references share a name")
        if missing := set(self.evidence) - set(names):
            raise ValueError(f"item {self.id}: evidence {sorted(missing)} is not among its references")
        if (self.scoring == "choice") != bool(self.options):
            raise ValueError(f"item {self.id}: options and the scoring rule {self.scoring!r} do not go together")
        if self.answer not in self.answers:
            raise ValueError(f"item {self.id}: its answer {self.answer!r} is not among the accepted ones")
        return self

    @property
    def question(self) -> str:
        """What the policy reads, with the options where there are some."""
        if not self.options:
            return self.stem
        option_text = " ".join(f"({option_letter(i)}) {option}" for i, option in enumerate(self.options))
        return f"{self.stem} Options: {option_text}"

    @property
    def answer_text(self) -> str:
        """The answer in words, also where the answer is a letter."""
        return self.options[ord(self.answer) - ord("A")] if self.options else self.answer

    @property
    def required_tools(self) -> tuple[ToolName, ...]:
        """The tools that it cannot do without."""
        return tuple(tool for tool in TOOLS if tool in self.necessity and self.necessity[tool].required)

    def reference(self, name: str) -> Reference:
        return next(reference for reference in self.references if reference.name == name)

    def score(self, prediction: str) -> float:
        """How right an answer is, 0 to 1, by the rule of the benchmark that the family stands for."""
        return score(prediction, self.answers, self.scoring, self.options)


def option_letter(index: int) -> str:
    """The letter of an option, from A."""
    return chr(ord("A") + index)


def score(prediction: str, answers: tuple[str, ...], scoring: Scoring, options: tuple[str, ...] = ()) -> float:
    """One answer against the accepted ones: exact and choice give 0 or 1, ANLS and MRA anything between."""
    if scoring == "choice":
        return float(any(choice_match(prediction, gold, options) for gold in answers))
    if scoring == "anls":
        return anls(prediction, answers)
    if scoring == "mra":
        return max(relative_accuracy(parse_number(prediction), float(gold)) for gold in answers)
    return float(exact_match(prediction, answers))


def rotations(item: Item) -> tuple[Item, ...]:
    """Circular evaluation, as MMBench does it: the item with its options turned by 0, 1, 2 … places.

    A model is right only where it is right on all of them. An item without options comes back alone.
    """
    rotated_items = []
    for shift in range(max(len(item.options), 1)):
        options = item.options[shift:] + item.options[:shift]
        if not options or shift == 0:
            rotated_items.append(item)
            continue
        answer = option_letter(options.index(item.answer_text))
        rotated_items.append(
            item.model_copy(
                update={"id": f"{item.id}/r{shift}", "options": options, "answer": answer, "answers": (answer,)}
            )
        )
    return tuple(rotated_items)
