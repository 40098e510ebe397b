"""Question templates: how an item is composed, worded, solved by its program, and solved with tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.random import Generator
from pydantic import Field

from pixelis.core.geometry import Size, Value
from pixelis.items import Family, Reference, Scalar, Scoring, ToolName
from pixelis.media import Medium
from pixelis.world.package_data import read_package_yaml
from pixelis.world.programs import Facts, Parameters, Program


class ChainStep(Value):
    """A suggested call: `args` are literals, parameters in braces, or `$n.…` for an earlier step's result.

    The notation is that of plans (`pixelis run`), after the item's parameters are filled in.
    """

    tool: ToolName
    args: dict[str, Any] = Field(default_factory=dict)
    note: str = ""
    """How to use the result, or how often to make the call."""


@dataclass(frozen=True)
class DifficultySettings:
    """The settings of a difficulty from 1 to 5. Lengths are in pixels of a frame 512 wide."""

    level: int

    @property
    def distractors(self) -> int:
        """Number of distractors."""
        return (3, 5, 7, 10, 13)[self.level - 1]

    @property
    def clutter(self) -> int:
        """Number of marks in the ground's colours."""
        return (4, 8, 14, 22, 32)[self.level - 1]

    @property
    def radius_range(self) -> tuple[int, int]:
        """Half size of a target, from and to."""
        return ((26, 52), (22, 40), (17, 30), (14, 24), (12, 18))[self.level - 1]

    @property
    def large_share(self) -> float:
        """The share of items whose things are large and plain to see."""
        return (0.5, 0.4, 0.3, 0.2, 0.12)[self.level - 1]

    @property
    def text_px_range(self) -> tuple[int, int]:
        """Font size, from and to."""
        return ((24, 32), (20, 28), (17, 23), (13, 17), (10, 13))[self.level - 1]

    @property
    def occlusion_probability(self) -> float:
        """The probability that a target is partly hidden."""
        return (0.0, 0.0, 0.15, 0.4, 0.65)[self.level - 1]

    @property
    def shake_px(self) -> int:
        """The amplitude of camera shake."""
        return (0, 1, 2, 4, 7)[self.level - 1]

    @property
    def contrast(self) -> int:
        """Contrast of text: how far the ink is from the plate's paint towards black or white, of 256."""
        return (256, 240, 212, 168, 120)[self.level - 1]


@dataclass
class ItemDraft:
    """What a template composes. Its program then finds the answer."""

    media: tuple[Medium, ...]
    references: list[Reference]
    evidence: list[str]
    parameters: dict[str, Scalar | tuple[Scalar, ...]]
    """Inputs of the program, and fields of the wording."""
    options: tuple[str, ...] = ()
    """For multiple choice: the correct option and the wrong ones, in any order."""
    accepted_answers: Callable[[str], tuple[str, ...]] = lambda answer: (answer,)
    """Variants of the answer that are accepted."""
    traits: set[str] = field(default_factory=set)


class Composition(Protocol):
    """A picture or clip under construction."""

    @property
    def size(self) -> Size: ...

    @property
    def traits(self) -> set[str]: ...

    def finish(self) -> tuple[Medium, list[Reference]]: ...


class Named(Protocol):
    """A thing, actor or reference, by the name of its reference."""

    @property
    def name(self) -> str: ...


Evidence = Named | str
"""What the answer depends on; events are given by the name of their reference."""


def make_draft(
    scenes: Composition | Sequence[Composition],
    evidence: Iterable[Evidence],
    parameters: Mapping[str, object],
    options: tuple[str, ...] = (),
) -> ItemDraft:
    """A draft over one scene or two."""
    scenes = scenes if isinstance(scenes, Sequence) else (scenes,)
    media, references = zip(*(scene.finish() for scene in scenes), strict=True)
    return ItemDraft(
        media,
        [reference for group in references for reference in group],
        [part if isinstance(part, str) else part.name for part in evidence],
        {**parameters, **({"options": options} if options else {})},  # type: ignore[dict-item]
        options,
        traits=set().union(*(scene.traits for scene in scenes), {"pair"} if len(scenes) > 1 else ()),
    )


def make_measured_draft(
    scenes: Composition | Sequence[Composition], evidence: Iterable[Evidence], parameters: Mapping[str, object]
) -> ItemDraft:
    """A draft with the aspect ratio of its frame, for programs that measure distances in frame widths."""
    size = scenes[0].size if isinstance(scenes, Sequence) else scenes.size
    return make_draft(scenes, evidence, {**parameters, "aspect": size.height / size.width})


@dataclass(frozen=True)
class Brief:
    """The inputs of a composer."""

    rng: Generator
    difficulty: DifficultySettings
    photographs: tuple[Path, ...] = ()
    """Grounds to use instead of procedural ones."""

    def bernoulli(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def sample_is_large(self) -> bool:
        """Draw whether this item is plain to see."""
        return self.bernoulli(self.difficulty.large_share)


@dataclass(frozen=True)
class Template:
    """A kind of question."""

    id: str
    family: Family
    wordings: tuple[str, ...]
    """Format strings over the parameters; one is drawn for each item."""
    compose: Callable[[Brief], ItemDraft]
    program: Program
    scoring: Scoring
    chain: tuple[ChainStep, ...]
    """Tool calls that lead to the answer."""
    reads_operands: bool = False
    """Whether the answer is computed from text rather than copied."""
    doc: str = ""
    """How the answer follows from the last result."""

    def solve(self, references: Sequence[Reference], parameters: Parameters) -> str:
        """The answer that follows from these references."""
        return self.program(Facts(references, parameters))


def load_templates(family: Family, **programs: tuple[Callable[[Brief], ItemDraft], Program]) -> tuple[Template, ...]:
    """The templates of a family by name: how each is composed and solved, with its sentences from `questions.yaml`."""
    questions = read_package_yaml("pixelis.world", "questions.yaml")
    return tuple(
        make_template(f"{family}.{name}", family, questions[f"{family}.{name}"], compose, program)
        for name, (compose, program) in programs.items()
    )


def make_template(
    template_id: str, family: Family, question: dict[str, Any], compose: Callable[[Brief], ItemDraft], program: Program
) -> Template:
    """A template whose sentences and calls are an entry of a `questions.yaml`."""
    return Template(
        id=template_id,
        family=family,
        wordings=tuple(question["wordings"]),
        compose=compose,
        program=program,
        scoring=question["scoring"],
        chain=tuple(ChainStep(**step) for step in question["chain"]),
        reads_operands=question.get("reads_operands", False),
        doc=question["answer"],
    )
