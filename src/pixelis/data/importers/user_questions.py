"""Importer of a user's questions: one JSON object per line with media, question, answer and optional references.

    {"media": "shop.jpg", "question": "What does the sign say?", "answer": "OPEN"}
    {"media": ["a.jpg", "b.jpg"], "question": "…", "answer": "the first", "options": ["the first", "the second"]}
    {"media": "yard.jpg", "question": "How many dogs?", "answer": 2, "references": [{"label": "dog", "box": [0.1, …]}]}

Coordinates are shares of the frame, 0 to 1, or pixels if a reference has `"pixels": true`. Such a question has no
reference program and hence no necessity label. The oracle can follow the references of a picture; any other question is
demonstrated by a VLM, or by its answer alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Box, Footprint, PixelBox, Size, Span, TextSpan, round_unit
from pixelis.data.corpus.text_lines import Problem, TextLine, parse_json, parse_lines
from pixelis.data.importers.coco import mask_from_polygons
from pixelis.data.importers.dataset_questions import estimate_difficulty
from pixelis.data.importers.import_options import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    first_line,
    require_numbers,
    stable_seed,
)
from pixelis.items import FAMILIES, Family, Item, Reference, Scoring, option_letter
from pixelis.media import MediaSet, Medium
from pixelis.trace.media_records import path_hint
from pixelis.world.generate import medium_facts

QUESTION_TEMPLATE = "own.question"
REFERENCED_TEMPLATE = "own.shown"
"""A question about pictures with references, which the oracle can follow."""
KNOWN_KEYS = frozenset({
    "id", "media", "question", "answer", "answers", "options", "scoring", "references", "family", "licence",
    "watermark",
})  # fmt: skip
MAX_MEDIA, MAX_REFERENCES, MAX_CORNERS = 16, 1000, 10_000
MAX_TEXT_LENGTH = 20_000
"""Characters of a question or an answer."""
NO_ANSWER = ("",)
FREE_TEXT_WORDS = 4
"""Answers of at least this many words are compared by ANLS."""


def user_items(source: Path, options: ImportOptions) -> Iterator[ImportOutcome]:
    """An item for each valid line, a problem with its line number for each other."""
    if source.is_dir():
        raise ConfigError(f"{source} is a folder: name a file with one JSON object per line")
    locator = MediaLocator(source, options)
    seen: dict[str, int] = {}
    for line in parse_lines(source, parse_record):
        if isinstance(line, Problem):
            yield line
            continue
        question_id = str(line.value.get("id", line.number))
        if question_id in seen:
            reason = f"id {question_id} was already on line {seen[question_id]}; the first one counts"
            yield Problem(line.where, reason)
            continue
        seen[question_id] = line.number
        if unknown_keys := sorted(line.value.keys() - KNOWN_KEYS):
            yield Problem(line.where, f"ignored: {', '.join(map(repr, unknown_keys))}", "changed")
        try:
            yield item_from_record(line.value, question_id, locator)
        except (ValueError, MediaError) as error:
            yield Problem(line.where, first_line(error))


def parse_record(line: TextLine) -> Mapping[str, Any]:
    record = parse_json(line.text)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def item_from_record(record: Mapping[str, Any], question_id: str, locator: MediaLocator) -> Item:
    """The item of one line; ValueError if it is invalid."""
    question = to_text(record.get("question"), "question")
    media = open_record_media(record.get("media"), locator)
    options = tuple(to_text(o, "option") for o in require_list(record.get("options"), "options"))
    accepted = get_answers(record, locator.options)
    scoring = get_scoring(record, accepted, options)
    if options:
        if not 2 <= len(options) <= 26 or len(set(options)) < len(options):
            raise ValueError("options: want 2 to 26 different ones")
        accepted = tuple(dict.fromkeys(to_option_letter(a, options) if a else a for a in accepted))
    if scoring == "mra" and accepted != NO_ANSWER and not all(parse_number(a) is not None for a in accepted):
        raise ValueError(f"scoring mra wants numbers, not {accepted[0]!r}")
    names = MediaSet(media).names
    reference_records = require_list(record.get("references"), "references")
    if len(reference_records) > MAX_REFERENCES:
        raise ValueError(f"over {MAX_REFERENCES} references")
    references = tuple(parse_reference(value, k, media, names) for k, value in enumerate(reference_records))
    can_look = references and all(medium.kind == "image" for medium in media)
    item = Item(
        id=f"own/{question_id}",
        family=get_family(record, scoring, media),
        template=REFERENCED_TEMPLATE if can_look else QUESTION_TEMPLATE,
        difficulty=3,
        seed=stable_seed("own", question_id),
        stem=question,
        options=options,
        answer=accepted[0],
        answers=accepted,
        scoring=scoring,
        media=tuple(medium_facts(name, medium) for name, medium in zip(names, media, strict=True)),
        references=references,
        evidence=tuple(r.name for r in references),
        parameters={
            "dataset": "own",
            "source_id": question_id,
            "licence": str(record.get("licence") or locator.options.licence or "unknown"),
            "watermark": str(record.get("watermark") or locator.options.watermark),
            "media_paths": tuple(path_hint(m.path, locator.options.items_path) for m in media if m.path),
        },
        traits=("own",),
    )
    return item.model_copy(update={"difficulty": estimate_difficulty(item)}) if references else item


def to_text(value: Any, field_name: str) -> str:
    """A text as it is; a number in digits; true and false as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = value.strip() if isinstance(value, str) else ""
    if not text or len(text) > MAX_TEXT_LENGTH:
        raise ValueError(
            f"{field_name}: want a text of 1 to {MAX_TEXT_LENGTH} characters, not {json.dumps(value)[:40]}"
        )
    return text


def require_list(value: Any, field_name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{field_name}: want a list, not {json.dumps(value)[:40]}")
    return value


def require_one_of(value: Any, choices: Sequence[str], field_name: str) -> None:
    if value not in choices:
        raise ValueError(f"{field_name}: want one of {', '.join(choices)}, not {json.dumps(value)[:40]}")


def open_record_media(value: Any, locator: MediaLocator) -> tuple[Medium, ...]:
    """The media by name."""
    names = value if isinstance(value, list) else [value]
    if not 1 <= len(names) <= MAX_MEDIA or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"media: want a path or 1 to {MAX_MEDIA} of them, not {json.dumps(value)[:40]}")
    return tuple(locator.open(name) for name in names)


def get_answers(record: Mapping[str, Any], options: ImportOptions) -> tuple[str, ...]:
    """The accepted answers, `answer` first; an empty one if there is none and the options allow it."""
    alternatives = require_list(record.get("answers"), "answers")
    first = [record["answer"]] if record.get("answer") is not None else []
    if options.allow_unanswered:
        first, alternatives = ([a for a in values if a not in ("", None)] for values in (first, alternatives))
    answers = tuple(dict.fromkeys(to_text(a, "answer") for a in [*first, *alternatives]))
    if not answers and not options.allow_unanswered:
        raise ValueError("it has no answer; --without-answers imports it anyway, for `pixelis adapt`")
    return answers or NO_ANSWER


def parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def get_scoring(record: Mapping[str, Any], answers: Sequence[str], options: Sequence[str]) -> Scoring:
    """The declared rule, or one by the answer: letters for options, MRA for numbers, ANLS for sentences, else exact."""
    declared = record.get("scoring")
    if declared is not None:
        require_one_of(declared, get_args(Scoring), "scoring")
        if (declared == "choice") != bool(options):
            raise ValueError(f"scoring {declared} and {'' if options else 'no '}options do not go together")
        return declared  # type: ignore[no-any-return]
    if options:
        return "choice"
    if all(parse_number(a) is not None for a in answers):
        return "mra"
    return "anls" if any(len(a.split()) >= FREE_TEXT_WORDS for a in answers) else "exact"


def to_option_letter(answer: str, options: Sequence[str]) -> str:
    """The letter of an option, from its words or its letter."""
    matches = [k for k, option in enumerate(options) if option.casefold() == answer.casefold()]
    if not matches and len(answer) == 1 and 0 <= ord(answer.upper()) - ord("A") < len(options):
        matches = [ord(answer.upper()) - ord("A")]
    if len(matches) != 1:
        raise ValueError(f"the answer {answer[:40]!r} is not one of the options")
    return option_letter(matches[0])


def get_family(record: Mapping[str, Any], scoring: Scoring, media: Sequence[Medium]) -> Family:
    declared = record.get("family")
    if declared is not None:
        require_one_of(declared, FAMILIES, "family")
        return declared  # type: ignore[no-any-return]
    if any(medium.kind == "clip" for medium in media):
        return "motion"
    by_scoring: dict[Scoring, Family] = {"choice": "choice", "mra": "space", "anls": "document", "exact": "search"}
    return by_scoring[scoring]


# --- references


def parse_reference(record: Any, index: int, media: Sequence[Medium], names: Sequence[str]) -> Reference:
    """A box, a polygon, a text with its box, or a time span; ValueError for anything else."""
    location = f"reference {index + 1}"
    if not isinstance(record, dict):
        raise ValueError(f"{location} is not a JSON object")
    medium_index = record.get("media", 0)
    if not isinstance(medium_index, int) or isinstance(medium_index, bool) or not 0 <= medium_index < len(media):
        raise ValueError(f"{location}: media must be the index of a medium of its line, from 0")
    name, size, label = names[medium_index], media[medium_index].size, str(record.get("label", ""))
    scale = size if record.get("pixels") is True else Size(1, 1)
    try:
        footprint = parse_footprint(record, name, size, scale, label)
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from None
    return Reference(name=f"own_{index}", footprint=footprint, properties={"label": label} if label else {})


def parse_footprint(record: Mapping[str, Any], name: str, size: Size, scale: Size, label: str) -> Footprint:
    if "span" in record:
        start, end = require_numbers(record["span"], 2)
        return Span(media=name, label=label, start_s=round_unit(start), end_s=round_unit(end))
    frame = {"frame": record["frame"]} if isinstance(record.get("frame"), int) else {}
    if "polygon" in record or "polygons" in record:
        shapes = record["polygons"] if "polygons" in record else [record["polygon"]]
        if not isinstance(shapes, list) or not shapes:
            raise ValueError("polygons: want a list of lists of numbers")
        parts = [polygon_corners(shape, size, scale) for shape in shapes]
        return mask_from_polygons(parts, size, media=name, label=label, **frame)
    x0, y0, x1, y1 = require_numbers(record.get("box"), 4)
    box = PixelBox(x0 / scale.width, y0 / scale.height, x1 / scale.width, y1 / scale.height)
    if not (0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1):
        raise ValueError("the box is empty or leaves the picture (shares of the frame, or `pixels`: true)")
    if "text" in record:
        quad = ((box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom))
        text = to_text(record["text"], "text")
        return TextSpan.model_validate({"media": name, "text": text, "quad": quad, "label": label, **frame})
    return Box(media=name, label=label, x0=box.left, y0=box.top, x1=box.right, y1=box.bottom, **frame)


def polygon_corners(shape: Any, size: Size, scale: Size) -> list[float]:
    """A polygon in pixels, clipped to the picture."""
    values = require_numbers(shape)
    if len(values) < 6 or len(values) % 2 or len(values) > 2 * MAX_CORNERS:
        raise ValueError("a polygon needs three corners or more, x and y for each")
    return [float(np.clip(v / scale[k % 2] * size[k % 2], 0, size[k % 2])) for k, v in enumerate(values)]
