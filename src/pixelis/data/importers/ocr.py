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

from pixelis.data.importers.coco import SLACK_PX, picture
from pixelis.data.importers.index import Index
from pixelis.data.importers.outcome import Outcome, Shelf, Wishes, origin, seed_of
from pixelis.data.importers.questions import asked, lettering
from pixelis.errors import ConfigError, MediaError
from pixelis.geometry import Box, PixelBox, Size, TextSpan, rounded
from pixelis.media import Medium
from pixelis.trace.foreign_files import Problem, lines, mapped
from pixelis.world.item import Reference
from pixelis.world.template import Draft

ILLEGIBLE = (".", "###", "", "*")
"""What the datasets write for a word that cannot be read."""
SCRIPTS = ("Latin", "Arabic", "Chinese", "Japanese", "Korean", "Bangla", "Hindi", "Symbols", "Mixed", "None")
"""MLT's names of scripts, which stand between the corners and the word."""
CORNERS = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[,\s]")
TALLER = 1.25
"""The largest word must be this much higher than the next one."""


class Word(NamedTuple):
    """A word as annotated, its corners in pixels."""

    where: str
    text: str
    corners: tuple[float, ...]
    legible: bool


def ocr_items(source: Path, wishes: Wishes) -> Iterator[Outcome]:
    """Items over a JSON file of pictures and words, or over a folder of word files."""
    yield from _word_files(source, wishes) if source.is_dir() else _one_json(source, wishes)


# --- TextOCR


def _one_json(source: Path, wishes: Wishes) -> Iterator[Outcome]:
    with mapped(source) as content:
        index = Index(source, content)
        yield from index.look_through()
        if not index.images:
            raise ConfigError(f"{source} lists no pictures: want TextOCR's JSON, or a folder of word files")
        shelf = Shelf(source, wishes)
        for image_id, image in index.images.items():
            where = f"{source}, image {image_id}"
            words: list[Word] = []
            for at, record in index.annotations(image_id):
                try:
                    words.append(word(at, record))
                except ValueError as error:
                    yield Problem(at, str(error))
            if not words:
                yield Problem(where, "it has no annotations")
                continue
            try:
                medium = picture(image, shelf)
            except MediaError as error:
                yield Problem(where, str(error))
                continue
            said = {
                key: str(image.get(name) or "") for key, name in (("licence", "license"), ("watermark", "watermark"))
            }
            facts = origin("textocr", image_id, medium, wishes, **said)
            yield from _picture(where, image_id, medium, words, facts)


def word(where: str, record: Mapping[str, Any]) -> Word:
    """A word of TextOCR or COCO-Text; ValueError where it has no place."""
    points = record.get("points") or record.get("mask") or record.get("polygon")
    box = record.get("bbox")
    if isinstance(points, list) and len(points) >= 6:
        corners = _finite(points)
    elif isinstance(box, list) and len(box) == 4:
        x, y, w, h = _finite(box)
        corners = (x, y, x + w, y, x + w, y + h, x, y + h)
    else:
        raise ValueError("it has neither points nor a box")
    text = record.get("utf8_string", record.get("text"))
    text = "" if text is None else str(text).strip()
    legible = record.get("legibility", "legible") == "legible" and text not in ILLEGIBLE
    return Word(where, text, corners, legible)


def _finite(values: list[Any]) -> tuple[float, ...]:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise ValueError("a corner is no finite number")
    if len(values) % 2:
        raise ValueError("a corner lacks its second number")
    return tuple(float(v) for v in values)


# --- ICDAR


def _word_files(folder: Path, wishes: Wishes) -> Iterator[Outcome]:
    files = sorted(folder.glob("gt_*.txt")) or sorted(folder.glob("*.txt"))
    if not files:
        raise ConfigError(f"{folder}: no word files: want gt_img_1.txt and the like, or TextOCR's JSON")
    shelf = Shelf(folder, wishes)
    for file in files:
        words: list[Word] = []
        for line in lines(file):
            if isinstance(line, Problem):
                yield line
                continue
            where = f"{file}:{line.number}"
            if line.encoding != "utf-8":
                yield Problem(where, "read as Latin-1: it is not UTF-8", "changed")
            try:
                words.append(from_line(where, line.text))
            except ValueError as error:
                yield Problem(where, str(error))
        stem = file.stem.removeprefix("gt_")
        if not words:
            yield Problem(str(file), "it has no annotations")
            continue
        try:
            medium = _opened(shelf, stem)
        except MediaError as error:
            yield Problem(str(file), str(error))
            continue
        yield from _picture(str(file), stem, medium, words, origin("icdar", stem, medium, wishes))


def _opened(shelf: Shelf, stem: str) -> Medium:
    """The picture of a word file: `1` or `img_1` for `gt_1.txt`."""
    try:
        return shelf.open(stem)
    except MediaError as error:
        try:
            return shelf.open(f"img_{stem}")
        except MediaError:
            raise error from None


def from_line(where: str, line: str) -> Word:
    """A line of ICDAR: eight numbers (or four, a box) and the word, in quotes or not, after its script or not."""
    found: list[float] = []
    at = 0
    while len(found) < 8 and (match := CORNERS.match(line, at)):
        found.append(float(match.group(1)))
        at = match.end()
    if len(found) not in (4, 8):
        raise ValueError(f"{len(found)} numbers before the word: want 8 (four corners) or 4 (a box)")
    text = line[at:].strip()
    script, _, rest = text.partition(",")
    text = rest if script in SCRIPTS and rest else text
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if len(found) == 4:
        x0, y0, x1, y1 = found
        found = [x0, y0, x1, y0, x1, y1, x0, y1]
    return Word(where, text.strip(), tuple(found), text.strip() not in ILLEGIBLE)


# --- items


def _picture(where: str, image_id: str, medium: Medium, words: list[Word], facts: dict[str, Any]) -> Iterator[Outcome]:
    references: list[Reference] = []
    illegible = 0
    for one in words:
        try:
            kept, cut = reference(one, medium.size, len(references))
        except ValueError as error:
            yield Problem(one.where, str(error))
            continue
        if cut:
            yield Problem(one.where, "the word goes beyond the picture and was clipped", "changed")
        references.append(kept)
        illegible += not one.legible
    if illegible:
        yield Problem(where, f"{illegible} words are marked as illegible", "unasked")
    yield from questions(where, image_id, medium, references, facts)


def reference(one: Word, size: Size, place: int) -> tuple[Reference, bool]:
    """A word as a reference, and whether it was cut to the picture; ValueError where nothing of it is inside."""
    xs, ys = np.array(one.corners[::2]), np.array(one.corners[1::2])
    bounds = PixelBox(float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max()))
    x0, y0, x1, y1 = bounds.to_unit(size)
    cut = max(-bounds.left, -bounds.top, bounds.right - size.width, bounds.bottom - size.height) > SLACK_PX
    if not one.legible:
        box = Box(x0=x0, y0=y0, x1=x1, y1=y1, label="illegible text")
        return Reference(name=f"text_{place}", footprint=box), cut
    if len(xs) != 4:  # a curved word: the smallest turned rectangle around it
        corners = cv2.boxPoints(cv2.minAreaRect(np.stack([xs, ys], axis=1).astype(np.float32)))
        xs, ys = corners[:, 0], corners[:, 1]
    quad = tuple(
        (rounded(np.clip(x / size.width, 0, 1)), rounded(np.clip(y / size.height, 0, 1)))
        for x, y in zip(xs, ys, strict=True)
    )
    span = TextSpan.model_validate({"text": one.text, "quad": quad})
    return Reference(name=f"text_{place}", footprint=span, properties={"role": "word"}), cut


def questions(
    where: str, image_id: str, medium: Medium, references: list[Reference], facts: dict[str, Any]
) -> Iterator[Outcome]:
    """One word by its place, and the largest one where it stands out."""
    readable = [r for r in references if isinstance(r.footprint, TextSpan)]
    rng = np.random.default_rng(seed_of("ocr", image_id))
    facts = {**facts, "aspect": medium.size.height / medium.size.width}

    def ask(kind: str, evidence: Reference, parameters: dict[str, Any]) -> Outcome:
        draft = Draft((medium,), references, [evidence.name], {**facts, **parameters}, traits={"photograph"})
        return asked(kind, draft, id=f"{kind}/{image_id}", seed=seed_of(kind, image_id))

    alone = [r for r in readable if not any(_over(r, other) for other in references if other is not r)]
    if alone:
        chosen = alone[int(rng.integers(len(alone)))]
        x0, y0, x1, y1 = chosen.footprint.box_unit  # type: ignore[union-attr, misc]
        point = (round((x0 + x1) / 2, 3), round((y0 + y1) / 2, 3))
        margin_x, margin_y = (x1 - x0) / 2, (y1 - y0) / 2
        around = (max(x0 - margin_x, 0.0), max(y0 - margin_y, 0.0), min(x1 + margin_x, 1.0), min(y1 + margin_y, 1.0))
        yield ask("ocr.at", chosen, {"point": point, "box": tuple(round(v, 3) for v in around)})
    heights = sorted(((lettering(r, facts["aspect"]), r.name) for r in readable), reverse=True)
    if len(heights) > 1 and heights[0][0] >= TALLER * heights[1][0]:
        tallest = next(r for r in readable if r.name == heights[0][1])
        yield ask("ocr.largest", tallest, {})
    elif not alone:
        yield Problem(where, "no question can be put: no legible word stands by itself", "unasked")


def _over(a: Reference, b: Reference) -> bool:
    """Whether b covers the centre of a, so that a point there could mean either."""
    x0, y0, x1, y1 = a.footprint.box_unit  # type: ignore[union-attr, misc]
    bx0, by0, bx1, by1 = b.footprint.box_unit  # type: ignore[union-attr, misc]
    return bool(bx0 <= (x0 + x1) / 2 <= bx1 and by0 <= (y0 + y1) / 2 <= by1)
