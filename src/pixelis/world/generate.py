"""From a seed to an item: choose a template, compose, solve, test which tools it needs."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pixelis.errors import ConfigError
from pixelis.media import MediaSet, Medium
from pixelis.world.item import FAMILIES, Family, Item, MediumFacts, letter, score
from pixelis.world.necessity import Case, necessities
from pixelis.world.template import Brief, Dial, Draft, Template
from pixelis.world.vocabulary import with_article

MIX = (1, 2, 3, 4, 5)
"""Without a difficulty all five come up alike."""


class Rendered(NamedTuple):
    """An item with its pixels."""

    item: Item
    media: tuple[Medium, ...]


@cache
def templates(family: Family | None = None) -> tuple[Template, ...]:
    """Every question template, or those of one family."""
    from pixelis.world.tasks import charts, choice, document, lecture, moments, motion, search, space

    modules = (search, choice, motion, moments, document, charts, lecture, space)
    found = tuple(template for module in modules for template in module.TEMPLATES)
    return tuple(t for t in found if family in (None, t.family))


def template(name: str) -> Template:
    """A template by its id; ConfigError where the world has none of that name."""
    found = next((t for t in templates() if t.id == name), None)
    if found is None:
        raise ConfigError(f"there is no question template {name!r}")
    return found


def generate(
    family: Family,
    *,
    seed: int,
    difficulty: int | None = None,
    template_id: str | None = None,
    photographs: Path | None = None,
) -> Rendered:
    """The item of a seed: the same bytes on every machine and under any number of threads.

    Without `difficulty` the seed chooses one of five; `template_id` asks for one template; `photographs` is a folder of
    pictures that serve as grounds.
    """
    if family not in FAMILIES:
        raise ConfigError(f"there is no family {family!r}: the families are {', '.join(FAMILIES)}")
    if difficulty is not None and not 1 <= difficulty <= 5:
        raise ConfigError(f"difficulty {difficulty} is not one of 1 to 5")
    if seed < 0:
        raise ConfigError(f"seed {seed} is negative: want 0 or more")
    rng = np.random.default_rng(np.random.SeedSequence([seed, FAMILIES.index(family)]))
    own = templates(family)
    drawn, level = int(rng.integers(len(own))), int(rng.integers(1, 6))
    chosen = next((t for t in own if t.id == template_id), None) if template_id else own[drawn]
    if chosen is None:
        raise ConfigError(f"{family} has no template {template_id!r}: it has {', '.join(t.id for t in own)}")
    dial = Dial(difficulty or level)
    draft = chosen.compose(Brief(rng, dial, pictures_in(photographs) if photographs else ()))
    wording = chosen.wordings[int(rng.integers(len(chosen.wordings)))]
    return Rendered(finished(chosen, draft, wording, seed=seed, dial=dial), draft.media)


def finished(chosen: Template, draft: Draft, wording: str, *, seed: int, dial: Dial) -> Item:
    """The draft as an item: answered by its program, with necessity labels."""
    answer = chosen.solve(draft.references, draft.parameters)
    accepted = draft.accepted(answer)
    options = draft.options
    final = letter(options.index(answer)) if options else answer
    names = MediaSet(draft.media).names
    facts = tuple(facts_of(name, medium) for name, medium in zip(names, draft.media, strict=True))
    case = Case(
        solve=chosen.solve,
        score=partial(_word_score, answers=accepted, scoring="exact" if options else chosen.scoring),
        references=tuple(draft.references),
        evidence=frozenset(draft.evidence),
        parameters=draft.parameters,
        media=facts,
        reads_operands=chosen.reads_operands,
        seed=seed,
    )
    return Item(
        id=f"{chosen.id}/{dial.level}/{seed}",
        family=chosen.family,
        template=chosen.id,
        difficulty=dial.level,
        seed=seed,
        stem=worded(wording, draft),
        options=options,
        answer=final,
        answers=(final,) if options else accepted,
        scoring=chosen.scoring,
        media=facts,
        references=case.references,
        evidence=tuple(draft.evidence),
        parameters=draft.parameters,
        necessity=necessities(case),
        traits=tuple(sorted(draft.traits)),
    )


def _word_score(text: str, *, answers: tuple[str, ...], scoring: str) -> float:
    return score(text, answers, scoring) if text else 0.0  # type: ignore[arg-type]


def worded(wording: str, draft: Draft) -> str:
    fields = {
        key: ", ".join(map(str, value)) if isinstance(value, tuple) else value
        for key, value in draft.parameters.items()
    }
    text = with_article(wording.format(**fields))
    return text[0].upper() + text[1:]


def case_of(item: Item, chosen: Template | None = None) -> Case:
    """The item's reference program again, so that its labels can be computed anew from the item alone.

    `chosen` is its template where that is none of the world's.
    """
    chosen = chosen or template(item.template)
    accepted = (item.answer_text,) if item.options else item.answers
    return Case(
        solve=chosen.solve,
        score=partial(_word_score, answers=accepted, scoring="exact" if item.options else item.scoring),
        references=item.references,
        evidence=frozenset(item.evidence),
        parameters=item.parameters,
        media=item.media,
        reads_operands=chosen.reads_operands,
        seed=item.seed,
    )


def facts_of(name: str, medium: Medium) -> MediumFacts:
    return MediumFacts(
        name=name,
        sha256=medium.sha256,
        width=medium.size.width,
        height=medium.size.height,
        frames=medium.frame_count,
        duration_s=medium.duration_s,
    )


def pictures_in(folder: Path) -> tuple[Path, ...]:
    """The photographs of a folder, by name; ConfigError where there are none."""
    kinds = {".jpg", ".jpeg", ".png", ".webp"}
    try:
        found = tuple(sorted(path for path in folder.iterdir() if path.suffix.lower() in kinds))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read as a folder of photographs ({error.strerror})") from error
    if not found:
        raise ConfigError(f"{folder} holds no photographs: want {', '.join(sorted(kinds))}")
    return found
