"""From a seed to an item: choose a template, compose, solve, test which tools it needs."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError
from pixelis.items import FAMILIES, Family, Item, MediumFacts, option_letter, score
from pixelis.media import MediaSet, Medium
from pixelis.world.template import Brief, DifficultySettings, ItemDraft, Template
from pixelis.world.tool_necessity import NecessityCase, compute_necessities
from pixelis.world.vocabulary import fix_articles

DIFFICULTY_LEVELS = (1, 2, 3, 4, 5)
"""Drawn evenly if no difficulty is given."""


class RenderedItem(NamedTuple):
    """An item with its pixels."""

    item: Item
    media: tuple[Medium, ...]


@cache
def templates(family: Family | None = None) -> tuple[Template, ...]:
    """Every question template, or those of one family."""
    from pixelis.world.tasks import charts, choice, document, lecture, moments, motion, search, space

    modules = (search, choice, motion, moments, document, charts, lecture, space)
    all_templates = tuple(template for module in modules for template in module.TEMPLATES)
    return tuple(t for t in all_templates if family in (None, t.family))


def template(name: str) -> Template:
    """A template by its id. Raises ConfigError if the world has none of that name."""
    match = next((t for t in templates() if t.id == name), None)
    if match is None:
        raise ConfigError(f"there is no question template {name!r}")
    return match


def generate(
    family: Family,
    *,
    seed: int,
    difficulty: int | None = None,
    template_id: str | None = None,
    photographs: Path | None = None,
) -> RenderedItem:
    """Generate the item of a seed: the same bytes on every machine and with any number of threads.

    Without `difficulty` the seed chooses one of five, without `template_id` the template. `photographs` is a folder of
    pictures to use as grounds.
    """
    if family not in FAMILIES:
        raise ConfigError(f"there is no family {family!r}: the families are {', '.join(FAMILIES)}")
    if difficulty is not None and not 1 <= difficulty <= 5:
        raise ConfigError(f"difficulty {difficulty} is not one of 1 to 5")
    if seed < 0:
        raise ConfigError(f"seed {seed} is negative: want 0 or more")
    rng = np.random.default_rng(np.random.SeedSequence([seed, FAMILIES.index(family)]))
    candidates = templates(family)
    template_index, level = int(rng.integers(len(candidates))), int(rng.integers(1, 6))
    question_template = (
        next((t for t in candidates if t.id == template_id), None) if template_id else candidates[template_index]
    )
    if question_template is None:
        raise ConfigError(f"{family} has no template {template_id!r}: it has {', '.join(t.id for t in candidates)}")
    settings = DifficultySettings(difficulty or level)
    draft = question_template.compose(Brief(rng, settings, list_photographs(photographs) if photographs else ()))
    wording = question_template.wordings[int(rng.integers(len(question_template.wordings)))]
    return RenderedItem(build_item(question_template, draft, wording, seed=seed, settings=settings), draft.media)


def build_item(
    question_template: Template, draft: ItemDraft, wording: str, *, seed: int, settings: DifficultySettings
) -> Item:
    """Build the item: its program answers it, and the necessity tests label it."""
    answer = question_template.solve(draft.references, draft.parameters)
    accepted_answers = draft.accepted_answers(answer)
    options = draft.options
    final_answer = option_letter(options.index(answer)) if options else answer
    names = MediaSet(draft.media).names
    facts = tuple(medium_facts(name, medium) for name, medium in zip(names, draft.media, strict=True))
    item = Item(
        id=f"{question_template.id}/{settings.level}/{seed}",
        family=question_template.family,
        template=question_template.id,
        difficulty=settings.level,
        seed=seed,
        stem=format_question(wording, draft),
        options=options,
        answer=final_answer,
        answers=(final_answer,) if options else accepted_answers,
        scoring=question_template.scoring,
        media=facts,
        references=tuple(draft.references),
        evidence=tuple(draft.evidence),
        parameters=draft.parameters,
        traits=tuple(sorted(draft.traits)),
    )
    return item.model_copy(update={"necessity": compute_necessities(necessity_case(item, question_template))})


def _word_score(text: str, *, answers: tuple[str, ...], scoring: str) -> float:
    return score(text, answers, scoring) if text else 0.0  # type: ignore[arg-type]


def format_question(wording: str, draft: ItemDraft) -> str:
    fields = {k: ", ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in draft.parameters.items()}
    text = fix_articles(wording.format(**fields))
    return text[0].upper() + text[1:]


def necessity_case(item: Item, question_template: Template | None = None) -> NecessityCase:
    """The item's reference program and its inputs, to compute its labels again from the item alone.

    `question_template` is its template if that is not one of the world's.
    """
    question_template = question_template or template(item.template)
    accepted_answers = (item.answer_text,) if item.options else item.answers
    return NecessityCase(
        program=question_template.program,
        score=partial(_word_score, answers=accepted_answers, scoring="exact" if item.options else item.scoring),
        references=item.references,
        evidence=frozenset(item.evidence),
        parameters=item.parameters,
        media=item.media,
        reads_operands=question_template.reads_operands,
        seed=item.seed,
    )


def medium_facts(name: str, medium: Medium) -> MediumFacts:
    return MediumFacts(
        name=name,
        sha256=medium.sha256,
        width=medium.size.width,
        height=medium.size.height,
        frames=medium.frame_count,
        duration_s=medium.duration_s,
    )


def list_photographs(folder: Path) -> tuple[Path, ...]:
    """The photographs of a folder, sorted by name. Raises ConfigError if there are none."""
    suffixes = {".jpg", ".jpeg", ".png", ".webp"}
    try:
        paths = tuple(sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read as a folder of photographs ({error.strerror})") from error
    if not paths:
        raise ConfigError(f"{folder} holds no photographs: want {', '.join(sorted(suffixes))}")
    return paths
