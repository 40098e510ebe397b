"""Infographics: tables, column charts, line charts, pies and posters on paper that lies on a desk."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Literal

import cv2
import numpy as np

from pixelis.core.geometry import Box, Size
from pixelis.items import Reference, Scalar
from pixelis.media import Image
from pixelis.world.figure_outlines import ICON_NAMES
from pixelis.world.lettering import choose_font, render_text
from pixelis.world.painting import RasterCanvas, figure_sprite, make_mask, panel_sprite, sheet_sprite
from pixelis.world.palette import PAINTS, Rgb, choose_paint, colour_shares, free_colours
from pixelis.world.programs import Facts
from pixelis.world.stage import make_backdrop
from pixelis.world.template import Brief
from pixelis.world.textures import DARK_SHEETS, SHEETS, make_ground
from pixelis.world.vocabulary import choose, sample

Anchor = Literal["left", "centre", "right"]
SIZE = Size(640, 640)


class DocumentPage:
    """A page under construction."""

    def __init__(self, brief: Brief, media: str = "Image_0", size: Size = SIZE) -> None:
        self.brief, self.rng, self.media, self.size = brief, brief.rng, media, size
        self.traits = {"texture"}
        self.canvas = RasterCanvas(make_backdrop(brief, size)[0])
        self.sheet = choose(self.rng, tuple(SHEETS))
        rim = int(self.rng.integers(10, 28))
        inner = Size(size.width - 2 * rim, size.height - 2 * rim)
        shadow_end = (size.width - rim + 4, size.height - rim + 4)
        cv2.rectangle(self.canvas.pixels, (rim + 5, rim + 5), shadow_end, (34, 34, 36), -1)
        self.canvas.paste(sheet_sprite(make_ground(self.rng, inner, self.sheet).pixels), rim, rim)
        self.left, self.top, self.right, self.bottom = rim + 18, rim + 16, size.width - rim - 18, size.height - rim - 16
        dark = self.sheet in DARK_SHEETS
        depth = brief.difficulty.contrast
        self.ink_rgb: Rgb = _blend_towards((236, 238, 240) if dark else (28, 30, 34), self._paper_tone(), depth)
        self.line_rgb: Rgb = (110, 116, 122) if dark else (150, 152, 156)
        free = free_colours(colour_shares(self.canvas.pixels))
        self.colours = [c for c in sample(self.rng, free, len(free)) if c != "orange"]
        self.font = choose_font(self.rng)
        self.references: list[Reference] = []
        self._add_stains()

    def _paper_tone(self) -> Rgb:
        middle = np.median(self.canvas.pixels[self.top : self.bottom : 7, self.left : self.right : 7], axis=(0, 1))
        return int(middle[0]), int(middle[1]), int(middle[2])

    def _add_stains(self) -> None:
        """Faint folds and stains, one per level above the first."""
        for _ in range(self.brief.difficulty.level - 1):
            self.traits.add("clutter")
            shade = np.zeros(self.canvas.owner.shape, dtype=np.uint8)
            if self.rng.random() < 0.5:
                x = int(self.rng.integers(self.left, self.right))
                cv2.line(shade, (x, self.top), (x + int(self.rng.integers(-30, 31)), self.bottom), 36, 2, cv2.LINE_AA)
            else:
                at = (int(self.rng.integers(self.left, self.right)), int(self.rng.integers(self.top, self.bottom)))
                cv2.circle(shade, at, int(self.rng.integers(26, 54)), 22, 5, cv2.LINE_AA)
            transmittance = 255 - shade.astype(np.uint16)[:, :, None]
            self.canvas.pixels[:] = (self.canvas.pixels * transmittance // 255).astype(np.uint8)

    @property
    def name_suffix(self) -> str:
        return "" if self.media.endswith("_0") else f"_in_{self.media}"

    def sample_px(self) -> int:
        low, high = ((22, 25), (19, 22), (16, 19), (13, 15), (10, 12))[self.brief.difficulty.level - 1]
        return int(self.rng.integers(low, high + 1))

    def write(
        self,
        text: str,
        x: float,
        y: float,
        px: int,
        *,
        anchor: Anchor = "left",
        rgb: Rgb | None = None,
        font: str | None = None,
        **properties: Scalar,
    ) -> Reference:
        """Write a line of text. `x` is its left, centre or right (`anchor`), `y` the middle of its height."""
        ink = render_text(text, font or self.font, px)
        left = round(x - {"left": 0.0, "centre": 0.5, "right": 1.0}[anchor] * ink.width)
        left = min(max(left, 2), self.size.width - ink.width - 2)
        top = round(y - ink.height / 2)
        span = self.canvas.draw_ink(ink, text, rgb or self.ink_rgb, left, top, media=self.media)
        name = f"text_{len(self.references)}{self.name_suffix}"
        reference = Reference(name=name, footprint=span, properties=properties)
        self.references.append(reference)
        return reference

    def write_title(self, text: str) -> Reference:
        """Write the heading in a font of its own; the rest of the page is below it."""
        px = min(round(self.sample_px() * 1.5), 34)
        reference = self.write(text, self.left, self.top + px / 2, px, font=choose_font(self.rng), role="title")
        self.top += round(px * 1.7)
        y = self.top - px // 3
        cv2.line(self.canvas.pixels, (self.left, y), (self.right, y), self.line_rgb, 1)
        return reference

    def add_region(self, phrase: str, coverage: np.ndarray, left: int, top: int, colour: str) -> Reference:
        """Add a reference to something painted, by its coverage from its left top corner."""
        mask = make_mask(coverage, left, top, self.size, media=self.media, label=phrase)
        name = f"region_{len(self.references)}{self.name_suffix}"
        reference = Reference(name=name, footprint=mask, properties={"colour": colour})
        self.references.append(reference)
        return reference

    @property
    def facts(self) -> Facts:
        return Facts(self.references)

    def finish(self) -> tuple[Image, list[Reference]]:
        ground_box = Box(media=self.media, label="ground", x0=0.0, y0=0.0, x1=1.0, y1=1.0)
        ground = Reference(name=f"ground{self.name_suffix}", footprint=ground_box, properties={"colour": "white"})
        return Image.from_array(self.canvas.pixels), [ground, *self.references]


def _blend_towards(ink_rgb: Rgb, paper: Rgb, depth: int) -> Rgb:
    return tuple((a * depth + b * (256 - depth)) // 256 for a, b in zip(ink_rgb, paper, strict=True))  # type: ignore[return-value]


def fit_font_size(words: Sequence[str], px: int, slot: float, font: str) -> int:
    """The largest font size up to `px` at which every word fits its slot with a margin."""
    from pixelis.world.lettering import text_width

    while px > 9 and max(text_width(word, font, px) for word in words) > slot - 1.1 * px:
        px -= 1
    return px


def draw_table(page: DocumentPage, columns: Sequence[str], rows: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """A table with row names on the left and column headings on top."""
    px = min(page.sample_px(), 22)
    width = page.right - page.left
    first_width = 0.3 * width
    step = (width - first_width) / len(columns)
    px = fit_font_size([*columns, *(cell for row in cells for cell in row)], px, step, page.font)
    px = fit_font_size(rows, px, first_width, page.font)
    row_height = min((page.bottom - page.top) / (len(rows) + 1), 3.6 * px)
    band = choose_paint(page.rng, choose(page.rng, ("blue", "green", "purple", "grey")))
    head = panel_sprite(width, round(row_height), band, corner=2, style="flat")
    page.canvas.paste(head, page.left, page.top)
    for k, column in enumerate(columns):
        centre = page.left + first_width + (k + 0.5) * step
        page.write(column, centre, page.top + row_height / 2, px, anchor="centre", rgb=(250, 250, 250), role="column")
    for j, (row, values) in enumerate(zip(rows, cells, strict=True)):
        y = page.top + (j + 1.5) * row_height
        if j % 2:
            stripe = page.canvas.pixels[round(y - row_height / 2) : round(y + row_height / 2), page.left : page.right]
            stripe[:] = (stripe.astype(np.uint16) * 15 // 16).astype(np.uint8)
        page.write(row, page.left + 8, y, px, role="row")
        for k, value in enumerate(values):
            page.write(value, page.left + first_width + (k + 0.5) * step, y, px, anchor="centre", role="cell")


def draw_columns(page: DocumentPage, labels: Sequence[str], values: Sequence[int], hues: Sequence[str]) -> None:
    """A column chart with the value above each column and its name below."""
    slot = (page.right - page.left) / len(labels)
    px = fit_font_size(labels, page.sample_px(), slot, page.font)
    floor, ceiling = page.bottom - round(2.2 * px), page.top + round(2.4 * px)
    for k in range(1, 5):
        y = floor - k * (floor - ceiling) // 4
        cv2.line(page.canvas.pixels, (page.left, y), (page.right, y), page.line_rgb, 1)
    for k, (label, value, hue) in enumerate(zip(labels, values, hues, strict=True)):
        centre = page.left + (k + 0.5) * slot
        height = max(round((floor - ceiling) * value / max(values)), 6)
        bar_width = round(slot * 0.5)
        left, top = round(centre - bar_width / 2), floor - height
        bar = panel_sprite(bar_width, height, choose_paint(page.rng, hue), corner=1, style="flat")
        page.canvas.paste(bar, left, top)
        page.add_region(f"{hue} column", np.ones((height, bar_width), dtype=bool), left, top, hue)
        page.write(str(value), centre, top - 0.9 * px, px, anchor="centre", role="value")
        page.write(label, centre, floor + 1.2 * px, px, anchor="centre", role="label")
    cv2.line(page.canvas.pixels, (page.left, floor), (page.right, floor), page.ink_rgb, 2)


def draw_curve(page: DocumentPage, labels: Sequence[str], values: Sequence[int], hue: str) -> None:
    """A line chart with a dot for each label and its value above."""
    slot = (page.right - page.left) / len(labels)
    px = fit_font_size([str(v) for v in values], page.sample_px(), slot, page.font)
    floor, ceiling = page.bottom - round(2.4 * px), page.top + round(3.0 * px)
    points = []
    for k, (label, value) in enumerate(zip(labels, values, strict=True)):
        x = round(page.left + (k + 0.5) * slot)
        y = floor - round((floor - ceiling) * (0.1 + 0.9 * (value - min(values)) / (max(values) - min(values))))
        points.append((x, y))
        page.write(label, x, floor + 1.3 * px, px, anchor="centre", role="label")
    rgb = choose_paint(page.rng, hue)
    for y in range(ceiling, floor + 1, max((floor - ceiling) // 4, 1)):
        cv2.line(page.canvas.pixels, (page.left, y), (page.right, y), page.line_rgb, 1)
    cv2.polylines(page.canvas.pixels, [np.array(points, dtype=np.int32)], False, rgb, 3, cv2.LINE_AA)
    tag = PAINTS["white"][0] if page.sheet not in DARK_SHEETS else PAINTS["black"][0]
    for (x, y), value in zip(points, values, strict=True):
        cv2.circle(page.canvas.pixels, (x, y), 6, rgb, -1, cv2.LINE_AA)
        ink = render_text(str(value), page.font, px)
        back = panel_sprite(ink.width + 8, ink.height + 6, tag, corner=3, style="flat")
        page.canvas.paste(back, x - back.size.width // 2, round(y - 1.3 * px - back.size.height / 2))
        page.write(str(value), x, y - 1.3 * px, px, anchor="centre", role="value")


def draw_pie(page: DocumentPage, labels: Sequence[str], shares: Sequence[int], hues: Sequence[str]) -> None:
    """A pie with a legend: a coloured square, a name and a percentage in each row."""
    px = fit_font_size(labels, min(page.sample_px(), 20), 0.26 * (page.right - page.left), page.font)
    radius = min((page.right - page.left) * 0.25, (page.bottom - page.top) * 0.42)
    cx, cy = page.left + radius + 4, (page.top + page.bottom) / 2
    turn = float(page.rng.uniform(0, 1))
    step = min((page.bottom - page.top) / (len(labels) + 1), 3.4 * px)
    x, y = page.left + 2 * radius + 34, (page.top + page.bottom) / 2 - step * (len(labels) - 1) / 2
    for label, share, hue in zip(labels, shares, hues, strict=True):
        end = turn + share / 100
        arc = [(cx + radius * cos(2 * pi * t), cy + radius * sin(2 * pi * t)) for t in np.linspace(turn, end, 40)]
        points = np.round(np.array([(cx, cy), *arc]) * 256).astype(np.int32)
        rgb = choose_paint(page.rng, hue)
        cover = np.zeros(page.canvas.owner.shape, dtype=np.uint8)
        cv2.fillPoly(cover, [points], 255, lineType=cv2.LINE_8, shift=8)
        page.canvas.pixels[cover > 0] = rgb
        page.add_region(f"{hue} slice", cover > 0, 0, 0, hue)
        box = round(px * 0.9)
        page.canvas.paste(panel_sprite(box, box, rgb, corner=1, style="flat"), round(x), round(y - box / 2))
        page.add_region(f"{hue} key", np.ones((box, box), dtype=bool), round(x), round(y - box / 2), hue)
        page.write(label, x + box + 10, y, px, role="label")
        page.write(f"{share}%", page.right, y, px, anchor="right", role="value")
        turn, y = end, y + step


def _draw_emblem(page: DocumentPage, top: int, px: int) -> None:
    """A picture at the foot of a notice, between two lines."""
    room = page.bottom - top
    if room < 60:
        return
    radius = min(room // 2 - 12, 90)
    hues = sample(page.rng, page.colours, 3)
    middle, y = (page.left + page.right) // 2, top + room // 2
    for k, hue in enumerate(hues):
        size = radius if k == 1 else radius * 5 // 8
        sprite = figure_sprite(choose(page.rng, ICON_NAMES), choose_paint(page.rng, hue), size, style="lit")
        x = middle + (k - 1) * round(radius * 2.1)
        page.canvas.paste(sprite, x - sprite.size.width // 2, y - sprite.size.height // 2, shadow=2)
    for rule in (top + 4, page.bottom - 4):
        cv2.line(page.canvas.pixels, (page.left, rule), (page.right, rule), page.line_rgb, 1)


def draw_poster(page: DocumentPage, lines: Sequence[tuple[str, str]]) -> None:
    """A notice: a key and its value on each line."""
    px = page.sample_px()
    px = fit_font_size([f"{key}: {value}" for key, value in lines], px, page.right - page.left, page.font)
    step = min((page.bottom - page.top) / (len(lines) + 1), 4.4 * px)
    centred = page.rng.random() < 0.4
    _draw_emblem(page, page.top + round(step * len(lines)), px)
    for k, (key, value) in enumerate(lines):
        y = page.top + (k + 0.5) * step
        x = (page.left + page.right) / 2 if centred else page.left + 6
        page.write(f"{key}: {value}", x, y, px, anchor="centre" if centred else "left", role="line", key=key)
