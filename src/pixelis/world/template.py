"""What a question template is: how its picture is composed, how it is worded, solved, and reached with tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.random import Generator
from pydantic import Field

from pixelis.core.geometry import Value
from pixelis.items import Family, Reference, Scalar, Scoring, ToolName
from pixelis.media import Medium
from pixelis.world.package_data import read_package_yaml
from pixelis.world.programs import Program


class ChainStep(Value):
    """A suggested call: `args` are literals, fields of the parameters in braces, or `$n.…` of an earlier step's result.

    The way of writing is that of plans (`pixelis run`); braces are filled from the item's parameters first.
    """

    tool: ToolName
    args: dict[str, Any] = Field(default_factory=dict)
    note: str = ""
    """What to do with the result, or how often to make the call."""


@dataclass(frozen=True)
class DifficultySettings:
    """Difficulty, 1 to 5, as the things that it changes. Lengths are in pixels of a frame 512 wide."""

    level: int

    @property
    def distractors(self) -> int:
        """Other things around."""
        return (3, 5, 7, 10, 13)[self.level - 1]

    @property
    def clutter(self) -> int:
        """Marks in the ground's own colours."""
        return (4, 8, 14, 22, 32)[self.level - 1]

    @property
    def radius_range(self) -> tuple[int, int]:
        """Half size of an asked thing, from and to."""
        return ((26, 52), (22, 40), (17, 30), (14, 24), (12, 18))[self.level - 1]

    @property
    def large_share(self) -> float:
        """Share of items whose things are so large that a glance will do."""
        return (0.5, 0.4, 0.3, 0.2, 0.12)[self.level - 1]

    @property
    def text_px_range(self) -> tuple[int, int]:
        """Font size, from and to."""
        return ((24, 32), (20, 28), (17, 23), (13, 17), (10, 13))[self.level - 1]

    @property
    def occlusion_probability(self) -> float:
        """How likely a thing that is asked for is partly hidden."""
        return (0.0, 0.0, 0.15, 0.4, 0.65)[self.level - 1]

    @property
    def shake_px(self) -> int:
        """How far a camera shakes."""
        return (0, 1, 2, 4, 7)[self.level - 1]

    @property
    def contrast(self) -> int:
        """Of text against its plate: how far the ink goes from the plate's paint to black or white, of 256."""
        return (256, 240, 212, 168, 120)[self.level - 1]


@dataclass
class ItemDraft:
    """What a template composes; the answer is whatever its program then finds."""

    media: tuple[Medium, ...]
    references: list[Reference]
    evidence: list[str]
    parameters: dict[str, Scalar | tuple[Scalar, ...]]
    """For the program, and the fields of the wording."""
    options: tuple[str, ...] = ()
    """For multiple choice: the right words among wrong ones, in any order."""
    accepted_answers: Callable[[str], tuple[str, ...]] = lambda answer: (answer,)
    """Variants of the answer that count as right."""
    traits: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Brief:
    """What a template is given to compose with."""

    rng: Generator
    difficulty: DifficultySettings
    photographs: tuple[Path, ...] = ()
    """Grounds to use in place of procedural ones."""

    def bernoulli(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def sample_is_large(self) -> bool:
        """Whether this item is to be plain to see."""
        return self.bernoulli(self.difficulty.large_share)


@dataclass(frozen=True)
class Template:
    """One way to ask."""

    id: str
    family: Family
    wordings: tuple[str, ...]
    """Formats over the parameters; one is drawn for each item."""
    compose: Callable[[Brief], ItemDraft]
    solve: Program
    scoring: Scoring
    chain: tuple[ChainStep, ...]
    """Tool calls that lead to the answer, for teachers."""
    reads_operands: bool = False
    """The answer is computed from text rather than copied."""
    doc: str = ""
    """How the answer follows from the last result."""


def load_templates(family: Family, **programs: tuple[Callable[[Brief], ItemDraft], Program]) -> tuple[Template, ...]:
    """The templates of a family by name: how each is composed and solved, with its sentences from `questions.yaml`."""
    questions = read_package_yaml("pixelis.world", "questions.yaml")
    return tuple(
        make_template(f"{family}.{name}", family, questions[f"{family}.{name}"], compose, solve)
        for name, (compose, solve) in programs.items()
    )


def make_template(
    template_id: str, family: Family, question: dict[str, Any], compose: Callable[[Brief], ItemDraft], solve: Program
) -> Template:
    """A template whose sentences and calls are an entry of a `questions.yaml`."""
    return Template(
        id=template_id,
        family=family,
        wordings=tuple(question["wordings"]),
        compose=compose,
        solve=solve,
        scoring=question["scoring"],
        chain=tuple(ChainStep(**step) for step in question["chain"]),
        reads_operands=question.get("reads_operands", False),
        doc=question["answer"],
    )
