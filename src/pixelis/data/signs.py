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

from pixelis.data.importers.outcome import Wishes, origin, seed_of
from pixelis.data.importers.questions import TEMPLATES as OF_ANNOTATIONS
from pixelis.data.importers.questions import asked
from pixelis.data.importers.text_questions import TEMPLATES
from pixelis.geometry import Size, TextSpan, rounded
from pixelis.media import Image
from pixelis.rundir import replacing
from pixelis.world.item import Item, Reference
from pixelis.world.lettering import any_font, ink
from pixelis.world.painting import Canvas
from pixelis.world.palette import PAINTS, Rgb, paint
from pixelis.world.stage import photograph, text_tone
from pixelis.world.template import Draft
from pixelis.world.textures import ground
from pixelis.world.vocabulary import PLACES, TOPICS, choose, code, name, sample, whole

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


class Line(NamedTuple):
    """A line to be printed, its height in pixels of the plate."""

    text: str
    px: int
    role: str


def filled(pattern: str, rng: Generator) -> str:
    """A pattern with words and numbers in its places."""
    words: dict[str, Any] = {
        "n": whole(rng, 2, 60), "m": whole(rng, 1, 12), "d": whole(rng, 1, 28), "h": whole(rng, 7, 22),
        "nn": whole(rng, 100, 999),
        "year": whole(rng, 1950, 2025), "Name": name(rng), "Place": choose(rng, PLACES), "Topic": choose(rng, TOPICS),
        "code": code(rng),
    }  # fmt: skip
    return pattern.format(**words)


def sign(rng: Generator) -> list[Line]:
    """One to three lines of large letters."""
    rows = [filled(pattern, rng) for pattern in sample(rng, SIGNS, int(rng.choice([1, 1, 1, 2, 2, 3])))]
    loud = rng.random() < 0.35
    px = int(rng.integers(30, 64))
    return [Line(row.upper() if loud else row, px if k == 0 else round(px * 0.7), "line") for k, row in enumerate(rows)]


def notice(rng: Generator) -> list[Line]:
    """A title and a few lines with labels."""
    px = int(rng.integers(18, 27))
    keys = sample(rng, tuple(LABELS), int(rng.integers(2, 6)))
    rows = [f"{key}: {filled(choose(rng, LABELS[key]), rng)}" for key in keys]
    return [Line(filled(choose(rng, TITLES), rng), round(px * 1.5), "title"), *(Line(r, px, "label") for r in rows)]


def page(rng: Generator) -> list[Line]:
    """A title and a paragraph."""
    px = int(rng.integers(16, 23))
    rows = []
    for _ in range(int(rng.integers(2, 9))):
        words = sample(rng, BODY, int(rng.integers(4, 8)))
        rows.append(" ".join(words))
    rows[0] = rows[0].capitalize()
    rows[-1] += "."
    return [Line(filled(choose(rng, TITLES), rng), round(px * 1.6), "title"), *(Line(r, px, "body") for r in rows)]


KINDS = {"sign": sign, "notice": notice, "page": page}


class Printed(NamedTuple):
    """A plate with its lines in pixels of the plate."""

    pixels: np.ndarray
    boxes: list[tuple[Line, tuple[int, int, int, int]]]


def printed(kind: str, rng: Generator) -> Printed:
    """The plate, as seen from straight ahead."""
    lines = KINDS[kind](rng)
    font = any_font(rng)
    inks = [(line, ink(line.text, font, line.px)) for line in lines]
    margin = int(rng.integers(14, 40))
    gap = int(rng.integers(10, 18))
    wide = max(drawn.width for _, drawn in inks) + 2 * margin
    heights = [max(drawn.height, round(line.px * 0.75)) for line, drawn in inks]
    high = sum(heights) + gap * (len(inks) - 1) + 2 * margin
    centred = kind == "sign" or rng.random() < 0.3
    colour: Rgb = paint(rng, choose(rng, tuple(PAINTS)) if kind == "sign" else choose(rng, ("white", "white", "beige")))
    canvas = Canvas(np.full((high, wide, 3), colour, np.uint8))
    if kind == "sign" and rng.random() < 0.5:
        cv2.rectangle(canvas.pixels, (5, 5), (wide - 6, high - 6), text_tone(colour, 256), 2)
    top, boxes = margin, []
    for (line, drawn), height in zip(inks, heights, strict=True):
        left = (wide - drawn.width) // 2 if centred else margin
        at = top + (height - drawn.height) // 2
        canvas.print(drawn, line.text, text_tone(colour, 256), left, at)
        boxes.append((line, (left, at, left + drawn.width, at + drawn.height)))
        top += height + gap
    return Printed(canvas.pixels, boxes)


def seen(plate: Printed, rng: Generator, grounds: Sequence[Path]) -> tuple[np.ndarray, list[Reference]]:
    """The plate in front of a ground, a little from the side, with each line's corners as they then lie."""
    size = choose(rng, FRAMES)
    if grounds and rng.random() < 0.6:
        behind = cv2.GaussianBlur(photograph(choose(rng, grounds), size), (0, 0), 9)
    else:
        behind = ground(rng, size).pixels
    high, wide = plate.pixels.shape[:2]
    scale = min(size.width * float(rng.uniform(0.62, 0.94)) / wide, size.height * 0.94 / high, 1.7)
    width, height = wide * scale, high * scale
    left, top = rng.uniform(0, size.width - width), rng.uniform(0, size.height - height)
    flat = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32)
    corners: np.ndarray = (flat * scale + np.array([left, top])).astype(np.float32)
    if rng.random() < 0.6:
        corners += (rng.uniform(-0.03, 0.03, (4, 2)) * np.array([width, height])).astype(np.float32)
    way = cv2.getPerspectiveTransform(flat, corners.astype(np.float32))
    front = cv2.warpPerspective(plate.pixels, way, tuple(size), flags=cv2.INTER_AREA)
    cover = cv2.warpPerspective(np.full((high, wide), 255, np.uint8), way, tuple(size))[:, :, None] / np.float32(255)
    pixels = front * cover + behind * (1 - cover) + rng.normal(0, 2.0, (size.height, size.width, 1))
    references = []
    for k, (line, (x0, y0, x1, y1)) in enumerate(plate.boxes):
        quad = cv2.perspectiveTransform(np.array([[[x0, y0], [x1, y0], [x1, y1], [x0, y1]]], np.float32), way)[0]
        unit = np.clip(quad / np.array([size.width, size.height]), 0, 1)
        span = TextSpan.model_validate({"text": line.text, "quad": [(rounded(x), rounded(y)) for x, y in unit]})
        references.append(Reference(name=f"text_{k}", footprint=span, properties={"role": line.role}))
    return np.clip(pixels + 0.5, 0, 255).astype(np.uint8), references


def questions(lines: Sequence[Line], rng: Generator) -> list[tuple[str, dict[str, Any]]]:
    """Templates with parameters that fit what is written, each once: of several labels one is asked about."""
    fits: list[tuple[str, dict[str, Any]]] = [("text.all", {})]
    if lines[0].role == "title":
        fits.append(("text.title", {}))
    if len(lines) > 1 and lines[0].px >= 1.4 * lines[1].px:
        fits.append(("ocr.largest", {}))
    labels = [line.text.partition(":")[0] for line in lines if line.role == "label"]
    if labels:
        label = choose(rng, labels)
        fits.append(("text.after", {"label": label, "name": label.lower()}))
    return fits


def sign_item(number: int, folder: Path, beside: Path, grounds: Sequence[Path] = ()) -> Item:
    """Sign, notice or page `number`: its picture is written into `folder`."""
    rng = np.random.default_rng(seed_of("sign", number))
    kind = ("sign", "sign", "notice", "page", "sign", "notice")[number % 6]
    plate = printed(kind, rng)
    pixels, references = seen(plate, rng, grounds)
    out = io.BytesIO()
    Pil.fromarray(pixels).save(out, format="JPEG", quality=int(rng.integers(80, 95)))
    path = folder / f"{kind}-{number:05d}.jpg"
    with replacing(path) as file:
        file.write(out.getvalue())
    medium = Image.from_bytes(out.getvalue(), path=path)
    template, parameters = choose(rng, questions([line for line, _ in plate.boxes], rng))
    surface = choose(rng, SURFACES[kind])
    facts = origin("signs", str(number), medium, Wishes(licence="made here", watermark="none", beside=beside))
    evidence = [r.name for r in references]
    if template != "text.all":
        line = parameters.get("label", "")
        evidence = [r.name for r in references if line and text_of(r).startswith(f"{line}:")] or ["text_0"]
    draft = Draft(
        (medium,), references, evidence,
        {**facts, **parameters, "surface": surface, "aspect": medium.size.height / medium.size.width},
        traits={"photograph"},
    )  # fmt: skip
    every = {**OF_ANNOTATIONS, **TEMPLATES}
    return asked(template, draft, id=f"{template}/sign-{number}", seed=seed_of("asked", number), templates=every)


def text_of(reference: Reference) -> str:
    return reference.footprint.text if isinstance(reference.footprint, TextSpan) else ""
