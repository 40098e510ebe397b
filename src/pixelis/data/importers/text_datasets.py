"""Importer of text in pictures: TextOCR's and COCO-Text's JSON, and the word files of ICDAR 2013 to 2019.

Illegible words (`.` in TextOCR, `###` in ICDAR) become boxes that no question asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Box, PixelBox, Size, TextSpan, round_unit
from pixelis.data.corpus.text_lines import Problem, TextLine, parse_lines
from pixelis.data.importers.annotation_index import AnnotationIndex
from pixelis.data.importers.coco import SLACK_PX, open_picture
from pixelis.data.importers.dataset_questions import QuestionMaker, letter_height
from pixelis.data.importers.import_options import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    origin_parameters,
    require_numbers,
    stable_seed,
)
from pixelis.data.importers.traces.foreign_files import map_file
from pixelis.items import Reference
from pixelis.media import Medium

ILLEGIBLE = (".", "###", "", "*")
"""The datasets' marks for an illegible word."""
SCRIPTS = ("Latin", "Arabic", "Chinese", "Japanese", "Korean", "Bangla", "Hindi", "Symbols", "Mixed", "None")
"""MLT's names of scripts, between the corners and the word."""
CORNER_PATTERN = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[,\s]")
MIN_HEIGHT_RATIO = 1.25
"""The largest word must be this much higher than the next one."""


class AnnotatedWord(NamedTuple):
    """A word with its corners in pixels."""

    where: str
    text: str
    corners: tuple[float, ...]
    legible: bool


def ocr_items(source: Path, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items about a JSON file of pictures and words, or about a folder of word files."""
    read = _items_from_word_files if source.is_dir() else _items_from_json
    yield from read(source, MediaLocator(source, options))


# --- TextOCR


def _items_from_json(source: Path, locator: MediaLocator) -> Iterator[ImportOutcome]:
    with map_file(source) as content:
        index = AnnotationIndex(source, content)
        yield from index.scan()
        if not index.images:
            raise ConfigError(f"{source} lists no pictures: want TextOCR's JSON, or a folder of word files")
        for image_id, image in index.images.items():
            where = f"{source}, image {image_id}"
            words: list[AnnotatedWord] = []
            for location, record in index.annotations(image_id):
                try:
                    words.append(word_from_record(location, record))
                except ValueError as error:
                    yield Problem(location, str(error))
            yield from _picture_outcomes(
                where, "textocr", image_id, words, locator.options, partial(open_picture, image, locator),
                licence=str(image.get("license") or ""), watermark=str(image.get("watermark") or ""),
            )  # fmt: skip


def word_from_record(where: str, record: Mapping[str, Any]) -> AnnotatedWord:
    """A word of TextOCR or COCO-Text; ValueError if it has no position."""
    points = record.get("points") or record.get("mask") or record.get("polygon")
    box = record.get("bbox")
    if isinstance(points, list) and len(points) >= 6:
        corners = require_numbers(points)
        if len(corners) % 2:
            raise ValueError("a corner lacks its second number")
    elif isinstance(box, list) and len(box) == 4:
        x, y, w, h = require_numbers(box)
        corners = [x, y, x + w, y, x + w, y + h, x, y + h]
    else:
        raise ValueError("it has neither points nor a box")
    text = record.get("utf8_string", record.get("text"))
    text = "" if text is None else str(text).strip()
    legible = record.get("legibility", "legible") == "legible" and text not in ILLEGIBLE
    return AnnotatedWord(where, text, tuple(corners), legible)


# --- ICDAR


def _items_from_word_files(folder: Path, locator: MediaLocator) -> Iterator[ImportOutcome]:
    files = sorted(folder.glob("gt_*.txt")) or sorted(folder.glob("*.txt"))
    if not files:
        raise ConfigError(f"{folder}: no word files: want gt_img_1.txt and the like, or TextOCR's JSON")
    for file in files:
        words: list[AnnotatedWord] = []
        for line in parse_lines(file, word_from_line):
            if isinstance(line, Problem):
                yield line
            else:
                words.append(line.value._replace(where=line.where))
        stem = file.stem.removeprefix("gt_")
        open_medium = partial(_open_picture, locator, stem)
        yield from _picture_outcomes(str(file), "icdar", stem, words, locator.options, open_medium)


def _open_picture(locator: MediaLocator, stem: str) -> Medium:
    """The picture of a word file: `1` or `img_1` for `gt_1.txt`."""
    try:
        return locator.open(stem)
    except MediaError as error:
        try:
            return locator.open(f"img_{stem}")
        except MediaError:
            raise error from None


def word_from_line(line: TextLine) -> AnnotatedWord:
    """A line of ICDAR: eight numbers (or four, a box), optionally a script, and the word, optionally in quotes."""
    numbers: list[float] = []
    position = 0
    while len(numbers) < 8 and (match := CORNER_PATTERN.match(line.text, position)):
        numbers.append(float(match.group(1)))
        position = match.end()
    if len(numbers) not in (4, 8):
        raise ValueError(f"{len(numbers)} numbers before the word: want 8 (four corners) or 4 (a box)")
    text = line.text[position:].strip()
    script, _, rest = text.partition(",")
    text = rest if script in SCRIPTS and rest else text
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if len(numbers) == 4:
        x0, y0, x1, y1 = numbers
        numbers = [x0, y0, x1, y0, x1, y1, x0, y1]
    return AnnotatedWord("", text.strip(), tuple(numbers), text.strip() not in ILLEGIBLE)


# --- items


def _picture_outcomes(
    where: str,
    dataset: str,
    image_id: str,
    words: list[AnnotatedWord],
    options: ImportOptions,
    open_medium: Callable[[], Medium],
    **rights: str,
) -> Iterator[ImportOutcome]:
    if not words:
        yield Problem(where, "it has no annotations")
        return
    try:
        medium = open_medium()
    except MediaError as error:
        yield Problem(where, str(error))
        return
    references: list[Reference] = []
    illegible = 0
    for word in words:
        try:
            reference, was_clipped = word_reference(word, medium.size, len(references))
        except ValueError as error:
            yield Problem(word.where, str(error))
            continue
        if was_clipped:
            yield Problem(word.where, "the word goes beyond the picture and was clipped", "changed")
        references.append(reference)
        illegible += not word.legible
    if illegible:
        yield Problem(where, f"{illegible} words are marked as illegible", "unasked")
    facts = origin_parameters(dataset, image_id, medium, options, **rights)
    yield from questions(where, image_id, medium, references, facts)


def word_reference(word: AnnotatedWord, size: Size, index: int) -> tuple[Reference, bool]:
    """A word as a reference, and whether it was clipped; ValueError if it lies outside the picture."""
    xs, ys = np.array(word.corners[::2]), np.array(word.corners[1::2])
    bounds = PixelBox(float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max()))
    x0, y0, x1, y1 = bounds.to_unit(size)
    was_clipped = max(-bounds.left, -bounds.top, bounds.right - size.width, bounds.bottom - size.height) > SLACK_PX
    if not word.legible:
        box = Box(x0=x0, y0=y0, x1=x1, y1=y1, label="illegible text")
        return Reference(name=f"text_{index}", footprint=box), was_clipped
    if len(xs) != 4:  # a curved word: the smallest rotated rectangle around it
        corners = cv2.boxPoints(cv2.minAreaRect(np.stack([xs, ys], axis=1).astype(np.float32)))
        xs, ys = corners[:, 0], corners[:, 1]
    quad = tuple(
        (round_unit(np.clip(x / size.width, 0, 1)), round_unit(np.clip(y / size.height, 0, 1)))
        for x, y in zip(xs, ys, strict=True)
    )
    span = TextSpan.model_validate({"text": word.text, "quad": quad})
    return Reference(name=f"text_{index}", footprint=span, properties={"role": "word"}), was_clipped


def questions(
    where: str, image_id: str, medium: Medium, references: list[Reference], facts: dict[str, Any]
) -> Iterator[ImportOutcome]:
    """One word by its position, and the largest one if it stands out."""
    readable = [r for r in references if isinstance(r.footprint, TextSpan)]
    rng = np.random.default_rng(stable_seed("ocr", image_id))
    facts = {**facts, "aspect": medium.size.height / medium.size.width}

    maker = QuestionMaker(medium, references, facts, (image_id,))
    isolated = [r for r in readable if not any(_covers_centre(r, other) for other in references if other is not r)]
    if isolated:
        target = isolated[int(rng.integers(len(isolated)))]
        x0, y0, x1, y1 = target.footprint.box_unit  # type: ignore[union-attr, misc]
        point = (round((x0 + x1) / 2, 3), round((y0 + y1) / 2, 3))
        margin_x, margin_y = (x1 - x0) / 2, (y1 - y0) / 2
        zoom_box = (max(x0 - margin_x, 0.0), max(y0 - margin_y, 0.0), min(x1 + margin_x, 1.0), min(y1 + margin_y, 1.0))
        yield maker.ask("ocr.at", [target], {"point": point, "box": tuple(round(v, 3) for v in zoom_box)})
    heights = sorted(((letter_height(r, facts["aspect"]), r.name) for r in readable), reverse=True)
    if len(heights) > 1 and heights[0][0] >= MIN_HEIGHT_RATIO * heights[1][0]:
        yield maker.ask("ocr.largest", [r for r in readable if r.name == heights[0][1]], {})
    elif not isolated:
        yield Problem(where, "no question can be asked: no legible word stands by itself", "unasked")


def _covers_centre(a: Reference, b: Reference) -> bool:
    """Whether b covers the centre of a, so that a point there could mean either."""
    x0, y0, x1, y1 = a.footprint.box_unit  # type: ignore[union-attr, misc]
    bx0, by0, bx1, by1 = b.footprint.box_unit  # type: ignore[union-attr, misc]
    return bool(bx0 <= (x0 + x1) / 2 <= bx1 and by0 <= (y0 + y1) / 2 <= by1)
