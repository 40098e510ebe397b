"""Signs and pages with exact text: plates and paper in front of a blurred background, slightly from the side.

The lettering is the world's; the questions are everyday ones ("What does the sign say?"). A number determines an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator

from pixelis.core.atomic import atomic_write
from pixelis.core.geometry import Size, TextSpan, round_unit
from pixelis.data.importers.dataset_questions import TEMPLATES as ANNOTATION_TEMPLATES
from pixelis.data.importers.dataset_questions import make_question_item
from pixelis.data.importers.import_options import ImportOptions, origin_parameters, stable_seed
from pixelis.data.importers.text_questions import TEMPLATES
from pixelis.data.photographs.photo_sources import encode_jpeg
from pixelis.items import Item, Reference
from pixelis.media import Image
from pixelis.world.lettering import choose_font, render_text
from pixelis.world.package_data import read_package_yaml
from pixelis.world.painting import RasterCanvas
from pixelis.world.palette import PAINTS, Rgb, choose_paint
from pixelis.world.stage import load_photograph, text_tone
from pixelis.world.template import ItemDraft
from pixelis.world.textures import make_ground
from pixelis.world.vocabulary import PLACES, TOPICS, choose, choose_name, make_code, sample, sample_int

WORDS: dict[str, Any] = read_package_yaml("pixelis.data.photographs", "sign_words.yaml")
SURFACES: dict[str, list[str]] = WORDS["surfaces"]
"""What each kind of plate is called in questions."""
FRAMES = (Size(640, 480), Size(640, 427), Size(512, 512), Size(480, 640), Size(720, 480))


class SignLine(NamedTuple):
    """A line of text; its height is in pixels of the plate."""

    text: str
    px: int
    role: str


def fill_pattern(pattern: str, rng: Generator) -> str:
    """The pattern with words and numbers filled in."""
    return pattern.format(
        n=sample_int(rng, 2, 60),
        m=sample_int(rng, 1, 12),
        d=sample_int(rng, 1, 28),
        h=sample_int(rng, 7, 22),
        nn=sample_int(rng, 100, 999),
        year=sample_int(rng, 1950, 2025),
        Name=choose_name(rng),
        Place=choose(rng, PLACES),
        Topic=choose(rng, TOPICS),
        code=make_code(rng),
    )


def sign_lines(rng: Generator) -> list[SignLine]:
    """One to three lines of large letters."""
    rows = [fill_pattern(pattern, rng) for pattern in sample(rng, WORDS["signs"], int(rng.choice([1, 1, 1, 2, 2, 3])))]
    rows = [row.upper() for row in rows] if rng.random() < 0.35 else rows
    px = int(rng.integers(30, 64))
    return [SignLine(row, px if k == 0 else round(px * 0.7), "line") for k, row in enumerate(rows)]


def titled_lines(rng: Generator, rows: list[str], role: str, px: int, title_scale: float) -> list[SignLine]:
    title = SignLine(fill_pattern(choose(rng, WORDS["titles"]), rng), round(px * title_scale), "title")
    return [title, *(SignLine(row, px, role) for row in rows)]


def notice_lines(rng: Generator) -> list[SignLine]:
    """A title and a few lines with labels."""
    px = int(rng.integers(18, 27))
    labels: dict[str, list[str]] = WORDS["labels"]
    keys = sample(rng, tuple(labels), int(rng.integers(2, 6)))
    rows = [f"{key}: {fill_pattern(choose(rng, labels[key]), rng)}" for key in keys]
    return titled_lines(rng, rows, "label", px, 1.5)


def page_lines(rng: Generator) -> list[SignLine]:
    """A title and a paragraph."""
    px = int(rng.integers(16, 23))
    rows = [" ".join(sample(rng, WORDS["body"], int(rng.integers(4, 8)))) for _ in range(int(rng.integers(2, 9)))]
    rows[0] = rows[0].capitalize()
    rows[-1] += "."
    return titled_lines(rng, rows, "body", px, 1.6)


LINE_WRITERS = {"sign": sign_lines, "notice": notice_lines, "page": page_lines}


class PrintedPlate(NamedTuple):
    """A plate and the boxes of its lines, in pixels of the plate."""

    pixels: np.ndarray
    boxes: list[tuple[SignLine, tuple[int, int, int, int]]]


def print_plate(kind: str, rng: Generator) -> PrintedPlate:
    """Print a plate, seen from the front."""
    lines = LINE_WRITERS[kind](rng)
    font = choose_font(rng)
    inks = [(line, render_text(line.text, font, line.px)) for line in lines]
    margin = int(rng.integers(14, 40))
    gap = int(rng.integers(10, 18))
    plate_width = max(glyphs.width for _, glyphs in inks) + 2 * margin
    heights = [max(glyphs.height, round(line.px * 0.75)) for line, glyphs in inks]
    plate_height = sum(heights) + gap * (len(inks) - 1) + 2 * margin
    centred = kind == "sign" or rng.random() < 0.3
    colour: Rgb = choose_paint(rng, choose(rng, tuple(PAINTS) if kind == "sign" else ("white", "white", "beige")))
    canvas = RasterCanvas(np.full((plate_height, plate_width, 3), colour, np.uint8))
    if kind == "sign" and rng.random() < 0.5:
        cv2.rectangle(canvas.pixels, (5, 5), (plate_width - 6, plate_height - 6), text_tone(colour, 256), 2)
    top, boxes = margin, []
    for (line, glyphs), height in zip(inks, heights, strict=True):
        left = (plate_width - glyphs.width) // 2 if centred else margin
        line_top = top + (height - glyphs.height) // 2
        canvas.draw_ink(glyphs, line.text, text_tone(colour, 256), left, line_top)
        boxes.append((line, (left, line_top, left + glyphs.width, line_top + glyphs.height)))
        top += height + gap
    return PrintedPlate(canvas.pixels, boxes)


def render_plate(
    plate: PrintedPlate, rng: Generator, background_paths: Sequence[Path]
) -> tuple[np.ndarray, list[Reference]]:
    """The plate in front of a background in perspective, with the corners of each line."""
    size = choose(rng, FRAMES)
    if background_paths and rng.random() < 0.6:
        background = cv2.GaussianBlur(load_photograph(choose(rng, background_paths), size), (0, 0), 9)
    else:
        background = make_ground(rng, size).pixels
    plate_height, plate_width = plate.pixels.shape[:2]
    scale = min(size.width * float(rng.uniform(0.62, 0.94)) / plate_width, size.height * 0.94 / plate_height, 1.7)
    width, height = plate_width * scale, plate_height * scale
    left, top = rng.uniform(0, size.width - width), rng.uniform(0, size.height - height)
    plate_corners = np.array([[0, 0], [plate_width, 0], [plate_width, plate_height], [0, plate_height]], np.float32)
    corners: np.ndarray = (plate_corners * scale + np.array([left, top])).astype(np.float32)
    if rng.random() < 0.6:
        corners += (rng.uniform(-0.03, 0.03, (4, 2)) * np.array([width, height])).astype(np.float32)
    homography = cv2.getPerspectiveTransform(plate_corners, corners.astype(np.float32))
    warped = cv2.warpPerspective(plate.pixels, homography, tuple(size), flags=cv2.INTER_AREA)
    opaque = np.full((plate_height, plate_width), 255, np.uint8)
    alpha = cv2.warpPerspective(opaque, homography, tuple(size))[:, :, None] / np.float32(255)
    pixels = warped * alpha + background * (1 - alpha) + rng.normal(0, 2.0, (size.height, size.width, 1))
    references = []
    for k, (line, (x0, y0, x1, y1)) in enumerate(plate.boxes):
        quad = cv2.perspectiveTransform(np.array([[[x0, y0], [x1, y0], [x1, y1], [x0, y1]]], np.float32), homography)[0]
        unit_quad = np.clip(quad / np.array([size.width, size.height]), 0, 1)
        rounded = [(round_unit(x), round_unit(y)) for x, y in unit_quad]
        span = TextSpan.model_validate({"text": line.text, "quad": rounded})
        references.append(Reference(name=f"text_{k}", footprint=span, properties={"role": line.role}))
    return np.clip(pixels + 0.5, 0, 255).astype(np.uint8), references


def candidate_questions(lines: Sequence[SignLine], rng: Generator) -> list[tuple[str, dict[str, Any]]]:
    """Templates with parameters that fit the text, each once; of several labels, one is drawn."""
    candidates: list[tuple[str, dict[str, Any]]] = [("text.all", {})]
    if lines[0].role == "title":
        candidates.append(("text.title", {}))
    if len(lines) > 1 and lines[0].px >= 1.4 * lines[1].px:
        candidates.append(("ocr.largest", {}))
    labels = [line.text.partition(":")[0] for line in lines if line.role == "label"]
    if labels:
        label = choose(rng, labels)
        candidates.append(("text.after", {"label": label, "name": label.lower()}))
    return candidates


def sign_item(number: int, folder: Path, items_path: Path, background_paths: Sequence[Path] = ()) -> Item:
    """Sign, notice or page `number`, whose picture is written into `folder`."""
    rng = np.random.default_rng(stable_seed("sign", number))
    kind = ("sign", "sign", "notice", "page", "sign", "notice")[number % 6]
    plate = print_plate(kind, rng)
    pixels, references = render_plate(plate, rng, background_paths)
    content = encode_jpeg(pixels, quality=int(rng.integers(80, 95)))
    path = folder / f"{kind}-{number:05d}.jpg"
    with atomic_write(path) as file:
        file.write(content)
    medium = Image.from_bytes(content, path=path)
    template, parameters = choose(rng, candidate_questions([line for line, _ in plate.boxes], rng))
    surface = choose(rng, SURFACES[kind])
    options = ImportOptions(licence="made here", watermark="none", items_path=items_path)
    facts = origin_parameters("signs", str(number), medium, options)
    evidence = [r.name for r in references]
    if template != "text.all":
        label = parameters.get("label", "")
        evidence = [r.name for r in references if label and reference_text(r).startswith(f"{label}:")] or ["text_0"]
    parameters = {**facts, **parameters, "surface": surface, "aspect": medium.size.height / medium.size.width}
    draft = ItemDraft((medium,), references, evidence, parameters, traits={"photograph"})
    return make_question_item(
        template, draft, id=f"{template}/sign-{number}", seed=stable_seed("asked", number),
        templates={**ANNOTATION_TEMPLATES, **TEMPLATES},
    )  # fmt: skip


def reference_text(reference: Reference) -> str:
    return reference.footprint.text if isinstance(reference.footprint, TextSpan) else ""
