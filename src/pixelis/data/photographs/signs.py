"""Signs and pages with exact text: plates and paper in front of a blurred ground, seen a little from the side.

The lettering is the world's; the questions are people's ("What does the sign say?"). Everything follows from a number.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image as Pil

from pixelis.core.geometry import Size, TextSpan, round_unit
from pixelis.core.provenance import atomic_write
from pixelis.data.importers.dataset_questions import TEMPLATES as OF_ANNOTATIONS
from pixelis.data.importers.dataset_questions import make_question_item
from pixelis.data.importers.import_result import ImportOptions, origin_parameters, stable_seed
from pixelis.data.importers.text_questions import TEMPLATES
from pixelis.items import Item, Reference
from pixelis.media import Image
from pixelis.world.lettering import choose_font, render_text
from pixelis.world.painting import RasterCanvas
from pixelis.world.palette import PAINTS, Rgb, choose_paint
from pixelis.world.stage import load_photograph, text_tone
from pixelis.world.template import ItemDraft
from pixelis.world.textures import make_ground
from pixelis.world.vocabulary import PLACES, TOPICS, choose, choose_name, make_code, sample, sample_integer

SIGNS = (
    "NO PARKING", "EXIT", "ENTRANCE", "PRIVATE PROPERTY", "KEEP LEFT", "WET FLOOR", "SLOW DOWN", "CAUTION",
    "Please ring the bell", "Out of order", "Fresh bread daily", "Mind the step", "No smoking", "Bus stop",
    "Staff only", "Car park full", "STOP", "PUSH", "PULL", "Ticket office", "Way out", "Reception", "Please wait here",
    "Room {n}", "Platform {n}", "{Name} Street", "{Name} Road", "Hotel {Name}", "{Name} Bakery", "Welcome to {Name}",
    "{Name} {n} km", "SALE {n} %", "Open daily 9 to {n}", "Speed limit {n}", "{Name} Museum", "Gate {n}", "Bar {Name}",
    "FOR SALE", "TO LET", "One way", "Dogs on leads only", "School bus", "TAXI", "POLICE", "Fire exit",
    "Lost and found",
    "{Name} and Sons", "Free coffee", "Beware of the dog", "Thank you for visiting", "Est. {year}", "{Name} Airport",
)  # fmt: skip
TITLES = (
    "{Topic} in {Place}", "Notice to all {Topic}", "{Name} Summer Fair", "Minutes of the Meeting", "Chapter {n}",
    "A Short History of {Name}", "Annual Report {year}", "Menu of the Day", "House Rules", "How to Plant a {Place}",
    "Letter from {Name}", "Introduction", "{Topic} Report", "Concert in {Name}", "Lost Cat", "Opening Hours", "Receipt",
    "The {Place} Times", "Guide to {Name}", "Results and Discussion", "Invitation", "Member Card", "Train Tickets",
)  # fmt: skip
BODY = (
    "the", "garden", "behind", "old", "station", "opens", "early", "every", "morning", "visitors", "walk", "along",
    "river", "bring", "paper", "maps", "and", "water", "we", "found", "small", "coins", "under", "bridge", "later",
    "children", "painted", "seven", "doors", "with", "bright", "colours", "nobody", "asked", "about", "weather",
    "our", "figures", "show", "steady", "growth", "since", "last", "winter", "please", "return", "books", "before",
)  # fmt: skip
LABELS: dict[str, tuple[str, ...]] = {
    "Date": ("{d} May", "{d} October", "{d}.{m}.{year}"),
    "Phone": ("555 0{nn}", "0{nn} {nn}"),
    "Price": ("{n}.50", "{n}.90 EUR", "${n}"),
    "Room": ("{n}", "{code}"),
    "Time": ("{h}:30", "{h}:15", "{h} o'clock"),
    "Total": ("{n}.40", "{nn}.00"),
    "Name": ("{Name} {Place}",),
    "Address": ("{n} {Name} Street",),
    "Order": ("{code}", "{nn}"),
    "Place": ("{Name} Hall", "{Place} House"),
    "Code": ("{code}",),
    "Seat": ("{n}", "{code}"),
}
SURFACES = {
    "sign": ("sign", "sign", "sign", "board", "plate"),
    "notice": ("notice", "poster", "sign", "page", "label"),
    "page": ("page", "page", "page", "document", "sheet"),
}
FRAMES = (Size(640, 480), Size(640, 427), Size(512, 512), Size(480, 640), Size(720, 480))


class SignLine(NamedTuple):
    """A line to be printed, its height in pixels of the plate."""

    text: str
    px: int
    role: str


def fill_pattern(pattern: str, rng: Generator) -> str:
    """A pattern with words and numbers in its places."""
    words: dict[str, Any] = {
        "n": sample_integer(rng, 2, 60), "m": sample_integer(rng, 1, 12), "d": sample_integer(rng, 1, 28), "h": sample_integer(rng, 7, 22),
        "nn": sample_integer(rng, 100, 999),
        "year": sample_integer(rng, 1950, 2025), "Name": choose_name(rng), "Place": choose(rng, PLACES), "Topic": choose(rng, TOPICS),
        "code": make_code(rng),
    }  # fmt: skip
    return pattern.format(**words)


def sign_lines(rng: Generator) -> list[SignLine]:
    """One to three lines of large letters."""
    rows = [fill_pattern(pattern, rng) for pattern in sample(rng, SIGNS, int(rng.choice([1, 1, 1, 2, 2, 3])))]
    uppercase = rng.random() < 0.35
    px = int(rng.integers(30, 64))
    return [
        SignLine(row.upper() if uppercase else row, px if k == 0 else round(px * 0.7), "line")
        for k, row in enumerate(rows)
    ]


def notice_lines(rng: Generator) -> list[SignLine]:
    """A title and a few lines with labels."""
    px = int(rng.integers(18, 27))
    keys = sample(rng, tuple(LABELS), int(rng.integers(2, 6)))
    rows = [f"{key}: {fill_pattern(choose(rng, LABELS[key]), rng)}" for key in keys]
    return [
        SignLine(fill_pattern(choose(rng, TITLES), rng), round(px * 1.5), "title"),
        *(SignLine(r, px, "label") for r in rows),
    ]


def page_lines(rng: Generator) -> list[SignLine]:
    """A title and a paragraph."""
    px = int(rng.integers(16, 23))
    rows = []
    for _ in range(int(rng.integers(2, 9))):
        words = sample(rng, BODY, int(rng.integers(4, 8)))
        rows.append(" ".join(words))
    rows[0] = rows[0].capitalize()
    rows[-1] += "."
    return [
        SignLine(fill_pattern(choose(rng, TITLES), rng), round(px * 1.6), "title"),
        *(SignLine(r, px, "body") for r in rows),
    ]


LINE_WRITERS = {"sign": sign_lines, "notice": notice_lines, "page": page_lines}


class PrintedPlate(NamedTuple):
    """A plate with its lines in pixels of the plate."""

    pixels: np.ndarray
    boxes: list[tuple[SignLine, tuple[int, int, int, int]]]


def print_plate(kind: str, rng: Generator) -> PrintedPlate:
    """The plate, as seen from straight ahead."""
    lines = LINE_WRITERS[kind](rng)
    font = choose_font(rng)
    inks = [(line, render_text(line.text, font, line.px)) for line in lines]
    margin = int(rng.integers(14, 40))
    gap = int(rng.integers(10, 18))
    plate_width = max(glyphs.width for _, glyphs in inks) + 2 * margin
    heights = [max(glyphs.height, round(line.px * 0.75)) for line, glyphs in inks]
    plate_height = sum(heights) + gap * (len(inks) - 1) + 2 * margin
    centred = kind == "sign" or rng.random() < 0.3
    colour: Rgb = choose_paint(
        rng, choose(rng, tuple(PAINTS)) if kind == "sign" else choose(rng, ("white", "white", "beige"))
    )
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
    """The plate in front of a ground, a little from the side, with each line's corners as they then lie."""
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
    alpha = cv2.warpPerspective(np.full((plate_height, plate_width), 255, np.uint8), homography, tuple(size))[
        :, :, None
    ] / np.float32(255)
    pixels = warped * alpha + background * (1 - alpha) + rng.normal(0, 2.0, (size.height, size.width, 1))
    references = []
    for k, (line, (x0, y0, x1, y1)) in enumerate(plate.boxes):
        quad = cv2.perspectiveTransform(np.array([[[x0, y0], [x1, y0], [x1, y1], [x0, y1]]], np.float32), homography)[0]
        unit_quad = np.clip(quad / np.array([size.width, size.height]), 0, 1)
        span = TextSpan.model_validate(
            {"text": line.text, "quad": [(round_unit(x), round_unit(y)) for x, y in unit_quad]}
        )
        references.append(Reference(name=f"text_{k}", footprint=span, properties={"role": line.role}))
    return np.clip(pixels + 0.5, 0, 255).astype(np.uint8), references


def candidate_questions(lines: Sequence[SignLine], rng: Generator) -> list[tuple[str, dict[str, Any]]]:
    """Templates with parameters that fit what is written, each once: of several labels one is asked about."""
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
    """Sign, notice or page `number`: its picture is written into `folder`."""
    rng = np.random.default_rng(stable_seed("sign", number))
    kind = ("sign", "sign", "notice", "page", "sign", "notice")[number % 6]
    plate = print_plate(kind, rng)
    pixels, references = render_plate(plate, rng, background_paths)
    buffer = io.BytesIO()
    Pil.fromarray(pixels).save(buffer, format="JPEG", quality=int(rng.integers(80, 95)))
    path = folder / f"{kind}-{number:05d}.jpg"
    with atomic_write(path) as file:
        file.write(buffer.getvalue())
    medium = Image.from_bytes(buffer.getvalue(), path=path)
    template, parameters = choose(rng, candidate_questions([line for line, _ in plate.boxes], rng))
    surface = choose(rng, SURFACES[kind])
    facts = origin_parameters(
        "signs", str(number), medium, ImportOptions(licence="made here", watermark="none", items_path=items_path)
    )
    evidence = [r.name for r in references]
    if template != "text.all":
        line = parameters.get("label", "")
        evidence = [r.name for r in references if line and reference_text(r).startswith(f"{line}:")] or ["text_0"]
    draft = ItemDraft(
        (medium,), references, evidence,
        {**facts, **parameters, "surface": surface, "aspect": medium.size.height / medium.size.width},
        traits={"photograph"},
    )  # fmt: skip
    templates = {**OF_ANNOTATIONS, **TEMPLATES}
    return make_question_item(
        template, draft, id=f"{template}/sign-{number}", seed=stable_seed("asked", number), templates=templates
    )


def reference_text(reference: Reference) -> str:
    return reference.footprint.text if isinstance(reference.footprint, TextSpan) else ""
