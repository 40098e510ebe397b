"""Text in pictures in: TextOCR's JSON (and COCO-Text's, which is like it), and the word files of ICDAR 2013 to 2019.

Words that nobody can read (`.` in TextOCR, `###` in ICDAR) stay as boxes: they are there, but no question asks for
them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Box, PixelBox, Size, TextSpan, round_unit
from pixelis.data.importers.annotation_index import AnnotationIndex
from pixelis.data.importers.coco import SLACK_PX, open_picture
from pixelis.data.importers.dataset_questions import letter_height, make_question_item
from pixelis.data.importers.import_result import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    origin_parameters,
    stable_seed,
)
from pixelis.data.importers.traces.foreign_files import Problem, map_file, read_lines
from pixelis.items import Reference
from pixelis.media import Medium
from pixelis.world.template import ItemDraft

ILLEGIBLE = (".", "###", "", "*")
"""What the datasets write for a word that cannot be read."""
SCRIPTS = ("Latin", "Arabic", "Chinese", "Japanese", "Korean", "Bangla", "Hindi", "Symbols", "Mixed", "None")
"""MLT's names of scripts, which stand between the corners and the word."""
CORNER_PATTERN = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[,\s]")
MIN_HEIGHT_RATIO = 1.25
"""The largest word must be this much higher than the next one."""


class AnnotatedWord(NamedTuple):
    """A word as annotated, its corners in pixels."""

    where: str
    text: str
    corners: tuple[float, ...]
    legible: bool


def ocr_items(source: Path, import_options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items over a JSON file of pictures and words, or over a folder of word files."""
    yield from (
        _items_from_word_files(source, import_options) if source.is_dir() else _items_from_json(source, import_options)
    )


# --- TextOCR


def _items_from_json(source: Path, import_options: ImportOptions) -> Iterator[ImportOutcome]:
    with map_file(source) as content:
        index = AnnotationIndex(source, content)
        yield from index.scan()
        if not index.images:
            raise ConfigError(f"{source} lists no pictures: want TextOCR's JSON, or a folder of word files")
        locator = MediaLocator(source, import_options)
        for image_id, image in index.images.items():
            where = f"{source}, image {image_id}"
            words: list[AnnotatedWord] = []
            for location, record in index.annotations(image_id):
                try:
                    words.append(word_from_record(location, record))
                except ValueError as error:
                    yield Problem(location, str(error))
            if not words:
                yield Problem(where, "it has no annotations")
                continue
            try:
                medium = open_picture(image, locator)
            except MediaError as error:
                yield Problem(where, str(error))
                continue
            rights = {
                key: str(image.get(name) or "") for key, name in (("licence", "license"), ("watermark", "watermark"))
            }
            facts = origin_parameters("textocr", image_id, medium, import_options, **rights)
            yield from _picture_outcomes(where, image_id, medium, words, facts)


def word_from_record(where: str, record: Mapping[str, Any]) -> AnnotatedWord:
    """A word of TextOCR or COCO-Text; ValueError where it has no place."""
    points = record.get("points") or record.get("mask") or record.get("polygon")
    box = record.get("bbox")
    if isinstance(points, list) and len(points) >= 6:
        corners = _require_finite(points)
    elif isinstance(box, list) and len(box) == 4:
        x, y, w, h = _require_finite(box)
        corners = (x, y, x + w, y, x + w, y + h, x, y + h)
    else:
        raise ValueError("it has neither points nor a box")
    text = record.get("utf8_string", record.get("text"))
    text = "" if text is None else str(text).strip()
    legible = record.get("legibility", "legible") == "legible" and text not in ILLEGIBLE
    return AnnotatedWord(where, text, corners, legible)


def _require_finite(values: list[Any]) -> tuple[float, ...]:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise ValueError("a corner is no finite number")
    if len(values) % 2:
        raise ValueError("a corner lacks its second number")
    return tuple(float(v) for v in values)


# --- ICDAR


def _items_from_word_files(folder: Path, import_options: ImportOptions) -> Iterator[ImportOutcome]:
    files = sorted(folder.glob("gt_*.txt")) or sorted(folder.glob("*.txt"))
    if not files:
        raise ConfigError(f"{folder}: no word files: want gt_img_1.txt and the like, or TextOCR's JSON")
    locator = MediaLocator(folder, import_options)
    for file in files:
        words: list[AnnotatedWord] = []
        for line in read_lines(file):
            if isinstance(line, Problem):
                yield line
                continue
            where = f"{file}:{line.number}"
            if line.encoding != "utf-8":
                yield Problem(where, "read as Latin-1: it is not UTF-8", "changed")
            try:
                words.append(word_from_line(where, line.text))
            except ValueError as error:
                yield Problem(where, str(error))
        stem = file.stem.removeprefix("gt_")
        if not words:
            yield Problem(str(file), "it has no annotations")
            continue
        try:
            medium = _open_picture(locator, stem)
        except MediaError as error:
            yield Problem(str(file), str(error))
            continue
        yield from _picture_outcomes(
            str(file), stem, medium, words, origin_parameters("icdar", stem, medium, import_options)
        )


def _open_picture(locator: MediaLocator, stem: str) -> Medium:
    """The picture of a word file: `1` or `img_1` for `gt_1.txt`."""
    try:
        return locator.open(stem)
    except MediaError as error:
        try:
            return locator.open(f"img_{stem}")
        except MediaError:
            raise error from None


def word_from_line(where: str, line: str) -> AnnotatedWord:
    """A line of ICDAR: eight numbers (or four, a box) and the word, in quotes or not, after its script or not."""
    numbers: list[float] = []
    position = 0
    while len(numbers) < 8 and (match := CORNER_PATTERN.match(line, position)):
        numbers.append(float(match.group(1)))
        position = match.end()
    if len(numbers) not in (4, 8):
        raise ValueError(f"{len(numbers)} numbers before the word: want 8 (four corners) or 4 (a box)")
    text = line[position:].strip()
    script, _, rest = text.partition(",")
    text = rest if script in SCRIPTS and rest else text
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if len(numbers) == 4:
        x0, y0, x1, y1 = numbers
        numbers = [x0, y0, x1, y0, x1, y1, x0, y1]
    return AnnotatedWord(where, text.strip(), tuple(numbers), text.strip() not in ILLEGIBLE)


# --- items


def _picture_outcomes(
    where: str, image_id: str, medium: Medium, words: list[AnnotatedWord], facts: dict[str, Any]
) -> Iterator[ImportOutcome]:
    references: list[Reference] = []
    illegible = 0
    for annotated_word in words:
        try:
            word_ref, was_clipped = word_reference(annotated_word, medium.size, len(references))
        except ValueError as error:
            yield Problem(annotated_word.where, str(error))
            continue
        if was_clipped:
            yield Problem(annotated_word.where, "the word goes beyond the picture and was clipped", "changed")
        references.append(word_ref)
        illegible += not annotated_word.legible
    if illegible:
        yield Problem(where, f"{illegible} words are marked as illegible", "unasked")
    yield from questions(where, image_id, medium, references, facts)


def word_reference(annotated_word: AnnotatedWord, size: Size, index: int) -> tuple[Reference, bool]:
    """A word as a reference, and whether it was cut to the picture; ValueError where nothing of it is inside."""
    xs, ys = np.array(annotated_word.corners[::2]), np.array(annotated_word.corners[1::2])
    bounds = PixelBox(float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max()))
    x0, y0, x1, y1 = bounds.to_unit(size)
    was_clipped = max(-bounds.left, -bounds.top, bounds.right - size.width, bounds.bottom - size.height) > SLACK_PX
    if not annotated_word.legible:
        box = Box(x0=x0, y0=y0, x1=x1, y1=y1, label="illegible text")
        return Reference(name=f"text_{index}", footprint=box), was_clipped
    if len(xs) != 4:  # a curved word: the smallest turned rectangle around it
        corners = cv2.boxPoints(cv2.minAreaRect(np.stack([xs, ys], axis=1).astype(np.float32)))
        xs, ys = corners[:, 0], corners[:, 1]
    quad = tuple(
        (round_unit(np.clip(x / size.width, 0, 1)), round_unit(np.clip(y / size.height, 0, 1)))
        for x, y in zip(xs, ys, strict=True)
    )
    span = TextSpan.model_validate({"text": annotated_word.text, "quad": quad})
    return Reference(name=f"text_{index}", footprint=span, properties={"role": "word"}), was_clipped


def questions(
    where: str, image_id: str, medium: Medium, references: list[Reference], facts: dict[str, Any]
) -> Iterator[ImportOutcome]:
    """One word by its place, and the largest one where it stands out."""
    readable = [r for r in references if isinstance(r.footprint, TextSpan)]
    rng = np.random.default_rng(stable_seed("ocr", image_id))
    facts = {**facts, "aspect": medium.size.height / medium.size.width}

    def ask(kind: str, evidence: Reference, parameters: dict[str, Any]) -> ImportOutcome:
        draft = ItemDraft((medium,), references, [evidence.name], {**facts, **parameters}, traits={"photograph"})
        return make_question_item(kind, draft, id=f"{kind}/{image_id}", seed=stable_seed(kind, image_id))

    isolated = [r for r in readable if not any(_covers_centre(r, other) for other in references if other is not r)]
    if isolated:
        target_word = isolated[int(rng.integers(len(isolated)))]
        x0, y0, x1, y1 = target_word.footprint.box_unit  # type: ignore[union-attr, misc]
        point = (round((x0 + x1) / 2, 3), round((y0 + y1) / 2, 3))
        margin_x, margin_y = (x1 - x0) / 2, (y1 - y0) / 2
        zoom_box = (max(x0 - margin_x, 0.0), max(y0 - margin_y, 0.0), min(x1 + margin_x, 1.0), min(y1 + margin_y, 1.0))
        yield ask("ocr.at", target_word, {"point": point, "box": tuple(round(v, 3) for v in zoom_box)})
    heights = sorted(((letter_height(r, facts["aspect"]), r.name) for r in readable), reverse=True)
    if len(heights) > 1 and heights[0][0] >= MIN_HEIGHT_RATIO * heights[1][0]:
        tallest = next(r for r in readable if r.name == heights[0][1])
        yield ask("ocr.largest", tallest, {})
    elif not isolated:
        yield Problem(where, "no question can be put: no legible word stands by itself", "unasked")


def _covers_centre(a: Reference, b: Reference) -> bool:
    """Whether b covers the centre of a, so that a point there could mean either."""
    x0, y0, x1, y1 = a.footprint.box_unit  # type: ignore[union-attr, misc]
    bx0, by0, bx1, by1 = b.footprint.box_unit  # type: ignore[union-attr, misc]
    return bool(bx0 <= (x0 + x1) / 2 <= bx1 and by0 <= (y0 + y1) / 2 <= by1)
