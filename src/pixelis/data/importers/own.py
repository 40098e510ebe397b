"""A user's own questions in: one JSON object a line, with media, question, answer, and references if there are any.

    {"media": "shop.jpg", "question": "What does the sign say?", "answer": "OPEN"}
    {"media": ["a.jpg", "b.jpg"], "question": "…", "answer": "the first", "options": ["the first", "the second"]}
    {"media": "yard.jpg", "question": "How many dogs?", "answer": 2, "references": [{"label": "dog", "box": [0.1, …]}]}

Coordinates are shares of the frame, 0 to 1; pixels where a reference says `"pixels": true`. No program stands behind
such a question, so that there is no necessity label. The oracle can look where references of a picture say; any other
is taught by a VLM, or by its answer alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pycocotools import mask as rle
from pydantic import ValidationError

from pixelis.data.importers.outcome import Outcome, Shelf, Wishes, seed_of
from pixelis.data.importers.questions import difficulty
from pixelis.errors import ConfigError, MediaError
from pixelis.geometry import Box, Footprint, Mask, PixelBox, Size, Span, TextSpan, rounded
from pixelis.media import MediaSet, Medium
from pixelis.trace.foreign_files import Line, Problem, lines, parsed
from pixelis.trace.reopening import path_hint
from pixelis.world.generate import facts_of
from pixelis.world.item import FAMILIES, Family, Item, Reference, Scoring, letter

TEMPLATE = "own.question"
SHOWN = "own.shown"
"""A question about pictures with references: the oracle can go and look there."""
KNOWN = frozenset({
    "id", "media", "question", "answer", "answers", "options", "scoring", "references", "family", "licence",
    "watermark",
})  # fmt: skip
MOST_MEDIA, MOST_REFERENCES, MOST_CORNERS = 16, 1000, 10_000
LONGEST = 20_000
"""Letters of a question or an answer."""
NOBODY_KNOWS = ("",)
FREE_TEXT = 4
"""Words from which on an answer is compared by ANLS: nobody writes a sentence twice alike."""


def own_items(source: Path, wishes: Wishes) -> Iterator[Outcome]:
    """An item for each sound line, a problem with its number for each other."""
    if source.is_dir():
        raise ConfigError(f"{source} is a folder: name a file with one JSON object a line")
    shelf = Shelf(source, wishes)
    seen: dict[str, int] = {}
    for line in lines(source):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{source}:{line.number}"
        if line.encoding != "utf-8":
            yield Problem(where, "read as Latin-1: it is not UTF-8", "changed")
        try:
            record = read(line)
            own = str(record.get("id", line.number))
            if own in seen:
                raise ValueError(f"id {own} was already on line {seen[own]}; the first one counts")
            seen[own] = line.number
            if strange := sorted(record.keys() - KNOWN):
                yield Problem(where, f"nothing is done with {', '.join(map(repr, strange))}", "changed")
            yield item_of(record, own, shelf, wishes)
        except ValidationError as error:
            yield Problem(where, error.errors(include_url=False)[0]["msg"])
        except (ValueError, MediaError) as error:
            yield Problem(where, str(error).splitlines()[0])


def read(line: Line) -> Mapping[str, Any]:
    record = parsed(line.text)
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    return record


def item_of(record: Mapping[str, Any], own: str, shelf: Shelf, wishes: Wishes) -> Item:
    """The item of one line; ValueError with what is wrong with it."""
    question = words(record.get("question"), "question")
    media = media_of(record.get("media"), shelf)
    options = tuple(words(o, "option") for o in listed(record.get("options"), "options"))
    accepted = answers_of(record, wishes)
    scoring = scoring_of(record, accepted, options)
    if options:
        if not 2 <= len(options) <= 26 or len(set(options)) < len(options):
            raise ValueError("options: want 2 to 26 different ones")
        accepted = tuple(dict.fromkeys(as_letter(a, options) if a else a for a in accepted))
    if scoring == "mra" and accepted != NOBODY_KNOWS and not all(number(a) is not None for a in accepted):
        raise ValueError(f"scoring mra wants numbers, not {accepted[0]!r}")
    names = MediaSet(media).names
    given = listed(record.get("references"), "references")
    if len(given) > MOST_REFERENCES:
        raise ValueError(f"over {MOST_REFERENCES} references")
    references = tuple(reference(one, k, media, names) for k, one in enumerate(given))
    made = Item(
        id=f"own/{own}",
        family=family_of(record, scoring, media),
        template=SHOWN if references and all(medium.kind == "image" for medium in media) else TEMPLATE,
        difficulty=3,
        seed=seed_of("own", own),
        stem=question,
        options=options,
        answer=accepted[0],
        answers=accepted,
        scoring=scoring,
        media=tuple(facts_of(name, medium) for name, medium in zip(names, media, strict=True)),
        references=references,
        evidence=tuple(r.name for r in references),
        parameters={
            "dataset": "own",
            "source_id": own,
            "licence": str(record.get("licence") or wishes.licence or "unknown"),
            "watermark": str(record.get("watermark") or wishes.watermark),
            "media_paths": tuple(path_hint(m.path, wishes.beside) for m in media if m.path),
        },
        traits=("own",),
    )
    return made.model_copy(update={"difficulty": difficulty(made)}) if references else made


def words(value: Any, what: str) -> str:
    """A text as it stands; a number in digits, true and false as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = value.strip() if isinstance(value, str) else ""
    if not text or len(text) > LONGEST:
        raise ValueError(f"{what}: want a text of 1 to {LONGEST} letters, not {json.dumps(value)[:40]}")
    return text


def listed(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{what}: want a list, not {json.dumps(value)[:40]}")
    return value


def media_of(value: Any, shelf: Shelf) -> tuple[Medium, ...]:
    """The media by name, which never lead out of their folder."""
    names = value if isinstance(value, list) else [value]
    if not 1 <= len(names) <= MOST_MEDIA or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"media: want a path or 1 to {MOST_MEDIA} of them, not {json.dumps(value)[:40]}")
    return tuple(shelf.open(name) for name in names)


def answers_of(record: Mapping[str, Any], wishes: Wishes) -> tuple[str, ...]:
    """Accepted answers, the given one first; an empty one where nobody knows and that is no fault."""
    several = listed(record.get("answers"), "answers")
    first = [record["answer"]] if record.get("answer") is not None else []
    if wishes.without_answers:
        first, several = ([a for a in some if a not in ("", None)] for some in (first, several))
    found = tuple(dict.fromkeys(words(a, "answer") for a in [*first, *several]))
    if not found and not wishes.without_answers:
        raise ValueError("it has no answer; --without-answers takes it all the same, for `pixelis adapt`")
    return found or NOBODY_KNOWS


def number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def scoring_of(record: Mapping[str, Any], answers: Sequence[str], options: Sequence[str]) -> Scoring:
    """What the line says; else by the answer: letters for options, MRA for numbers, ANLS for sentences, else exact."""
    said = record.get("scoring")
    if said is not None:
        if said not in get_args(Scoring):
            raise ValueError(f"scoring: want one of {', '.join(get_args(Scoring))}, not {json.dumps(said)[:40]}")
        if (said == "choice") != bool(options):
            raise ValueError(f"scoring {said} and {'' if options else 'no '}options do not go together")
        return said  # type: ignore[no-any-return]
    if options:
        return "choice"
    if all(number(a) is not None for a in answers):
        return "mra"
    return "anls" if any(len(a.split()) >= FREE_TEXT for a in answers) else "exact"


def as_letter(answer: str, options: Sequence[str]) -> str:
    """The letter of an option that is given by its words or by its letter."""
    fits = [k for k, option in enumerate(options) if option.casefold() == answer.casefold()]
    if not fits and len(answer) == 1 and 0 <= ord(answer.upper()) - ord("A") < len(options):
        fits = [ord(answer.upper()) - ord("A")]
    if len(fits) != 1:
        raise ValueError(f"the answer {answer[:40]!r} is not one of the options")
    return letter(fits[0])


def family_of(record: Mapping[str, Any], scoring: Scoring, media: Sequence[Medium]) -> Family:
    said = record.get("family")
    if said is not None:
        if said not in FAMILIES:
            raise ValueError(f"family: want one of {', '.join(FAMILIES)}, not {json.dumps(said)[:40]}")
        return said  # type: ignore[no-any-return]
    if any(medium.kind == "clip" for medium in media):
        return "motion"
    by_scoring: dict[Scoring, Family] = {"choice": "choice", "mra": "space", "anls": "document", "exact": "search"}
    return by_scoring[scoring]


# --- references


def reference(one: Any, place: int, media: Sequence[Medium], names: Sequence[str]) -> Reference:
    """A box, a polygon, a text with its box, or a stretch of time; ValueError where it is none of them."""
    at = f"reference {place + 1}"
    if not isinstance(one, dict):
        raise ValueError(f"{at} is no JSON object")
    which = one.get("media", 0)
    if not isinstance(which, int) or isinstance(which, bool) or not 0 <= which < len(media):
        raise ValueError(f"{at}: media is the number of a medium of its line, from 0")
    name, size, label = names[which], media[which].size, str(one.get("label", ""))
    scale = size if one.get("pixels") is True else Size(1, 1)
    try:
        footprint = footprint_of(one, name, size, scale, label)
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from None
    return Reference(name=f"own_{place}", footprint=footprint, properties={"label": label} if label else {})


def footprint_of(one: Mapping[str, Any], name: str, size: Size, scale: Size, label: str) -> Footprint:
    if "span" in one:
        start, end = finite(one["span"], 2)
        return Span(media=name, label=label, start_s=rounded(start), end_s=rounded(end))
    frame = {"frame": one["frame"]} if isinstance(one.get("frame"), int) else {}
    if "polygon" in one or "polygons" in one:
        shapes = one["polygons"] if "polygons" in one else [one["polygon"]]
        if not isinstance(shapes, list) or not shapes:
            raise ValueError("polygons: want a list of lists of numbers")
        parts = [corners(shape, size, scale) for shape in shapes]
        merged = rle.merge(rle.frPyObjects(parts, size.height, size.width))
        mask = Mask(
            media=name, label=label, width=size.width, height=size.height, counts=merged["counts"].decode(), **frame
        )
        if mask.box_unit is None:
            raise ValueError("nothing of its outline lies in the picture")
        return mask
    x0, y0, x1, y1 = finite(one.get("box"), 4)
    box = PixelBox(x0 / scale.width, y0 / scale.height, x1 / scale.width, y1 / scale.height)
    if not (0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1):
        raise ValueError("the box is empty or leaves the picture (shares of the frame, or `pixels`: true)")
    if "text" in one:
        quad = ((box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom))
        text = words(one["text"], "text")
        return TextSpan.model_validate({"media": name, "text": text, "quad": quad, "label": label, **frame})
    return Box(media=name, label=label, x0=box.left, y0=box.top, x1=box.right, y1=box.bottom, **frame)


def corners(shape: Any, size: Size, scale: Size) -> list[float]:
    """A polygon in pixels, cut to the picture."""
    values = finite(shape, None)
    if len(values) < 6 or len(values) % 2 or len(values) > 2 * MOST_CORNERS:
        raise ValueError("a polygon has three corners or more, x and y for each")
    return [float(np.clip(v / scale[k % 2] * size[k % 2], 0, size[k % 2])) for k, v in enumerate(values)]


def finite(values: Any, count: int | None) -> list[float]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ValueError(f"{json.dumps(values)[:40]} is no list of {count or 'several'} numbers")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise ValueError("it holds something that is no finite number")
    return [float(v) for v in values]
