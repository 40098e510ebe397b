"""An item: a question with its answer, exact pixel references and required tools.

Items come from the world and from importers of real datasets, so nothing here depends on how a picture was made.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from pixelis.core.geometry import Footprint, Size, Value

Family = Literal["search", "choice", "motion", "document", "lecture", "space"]
Scoring = Literal["exact", "choice", "anls", "mra"]
ToolName = Literal["SEG", "TRK", "OCR", "TEMP", "ZOOM", "PROP"]
Scalar = str | int | float

FAMILIES: tuple[Family, ...] = ("search", "choice", "motion", "document", "lecture", "space")
TOOLS: tuple[ToolName, ...] = ("SEG", "TRK", "OCR", "TEMP", "ZOOM", "PROP")
CORRECT_THRESHOLD = 0.5
"""An answer is correct if its score under the item's rule reaches this value."""


class Reference(Value):
    """A thing in the media, with its exact position and properties."""

    name: str
    """Unique within the item: `thing_3`, `text_0`, `span_1`."""
    footprint: Footprint
    """Its label is a phrase for the thing: `red star`."""
    properties: dict[str, Scalar] = Field(default_factory=dict)
    """Colour, shape, texture, role, start_s, end_s …, in the words of PROP."""


class MediumFacts(Value):
    """The facts of a medium, without its pixels."""

    name: str
    """Its name in the query: Image_0, Video_1."""
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
    """Empty if the program could not answer."""
    test: str
    """The perturbation and its references."""


class ShiftFacts(Value):
    """The shift that was applied to the media."""

    name: str
    severity: int = Field(ge=1, le=5)
    seed: int


class Item(Value):
    """A question with everything that scoring an answer and a trace needs."""

    id: str
    family: Family
    template: str
    """Question template, e.g. `search.plate_text`."""
    difficulty: int = Field(ge=1, le=5)
    seed: int
    stem: str
    """The question without its options."""
    options: tuple[str, ...] = ()
    answer: str
    """The scored answer; for multiple choice the letter."""
    answers: tuple[str, ...] = Field(min_length=1)
    """All accepted answers, including `answer`."""
    scoring: Scoring
    media: tuple[MediumFacts, ...] = Field(min_length=1)
    references: tuple[Reference, ...] = ()
    evidence: tuple[str, ...] = ()
    """Names of the references that the answer depends on."""
    parameters: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Arguments of the template's reference program."""
    necessity: dict[ToolName, Necessity] = Field(default_factory=dict)
    traits: tuple[str, ...] = ()
    """Visual complications: texture, clutter, occlusion, shake, pan, pair."""
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
        """The question for the policy, including options."""
        if not self.options:
            return self.stem
        option_text = " ".join(f"({option_letter(i)}) {option}" for i, option in enumerate(self.options))
        return f"{self.stem} Options: {option_text}"

    @property
    def answer_text(self) -> str:
        """The answer in words, even if it is a letter."""
        return self.options[ord(self.answer) - ord("A")] if self.options else self.answer

    @property
    def required_tools(self) -> tuple[ToolName, ...]:
        """The tools without which the answer changes (supp:tool_necessity)."""
        return tuple(tool for tool in TOOLS if tool in self.necessity and self.necessity[tool].required)

    def reference(self, name: str) -> Reference:
        return next(reference for reference in self.references if reference.name == name)

    def score(self, prediction: str) -> float:
        """Score of an answer, 0 to 1, by the rule of the family's benchmark."""
        return score(prediction, self.answers, self.scoring, self.options)


def option_letter(index: int) -> str:
    """The letter of an option, starting at A."""
    return chr(ord("A") + index)


def score(prediction: str, answers: tuple[str, ...], scoring: Scoring, options: tuple[str, ...] = ()) -> float:
    """Score of an answer: 0 or 1 for exact and choice, 0 to 1 for ANLS and MRA."""
    from pixelis.metrics.answer_accuracy import choice_match, exact_match, parse_number, relative_accuracy
    from pixelis.metrics.text import anls

    if scoring == "choice":
        return float(any(choice_match(prediction, gold, options) for gold in answers))
    if scoring == "anls":
        return anls(prediction, answers)
    if scoring == "mra":
        return max(relative_accuracy(parse_number(prediction), float(gold)) for gold in answers)
    return float(exact_match(prediction, answers))


def rotations(item: Item) -> tuple[Item, ...]:
    """Circular evaluation as in MMBench: the item with its options rotated by 0, 1, 2 … positions.

    A model is correct only if it is correct on all of them. An item without options is returned alone.
    """
    rotated_items = [item]
    for shift in range(1, len(item.options)):
        options = item.options[shift:] + item.options[:shift]
        answer = option_letter(options.index(item.answer_text))
        changes = {"id": f"{item.id}/r{shift}", "options": options, "answer": answer, "answers": (answer,)}
        rotated_items.append(item.model_copy(update=changes))
    return tuple(rotated_items)
