"""Still pictures: a ground, things in free places, panels with text, clutter, and exact references."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from numpy.random import Generator

from pixelis.core.geometry import Box, Size
from pixelis.items import Reference, Scalar
from pixelis.media import Image, open_media
from pixelis.world.figure_outlines import ICON_NAMES, NAMED_FIGURES, distinct_figures
from pixelis.world.lettering import choose_font, render_text
from pixelis.world.painting import Pixels, RasterCanvas, Sprite, figure_sprite, panel_sprite, sample_slant
from pixelis.world.palette import Rgb, choose_paint, colour_shares, dominant_name, free_colours
from pixelis.world.template import Brief
from pixelis.world.textures import make_ground
from pixelis.world.vocabulary import choose, sample

PixelRect = tuple[int, int, int, int]
"""Left, top, right, bottom in whole pixels."""


@dataclass
class Layout:
    """The free places of a picture."""

    rng: Generator
    size: Size
    occupied_boxes: list[PixelRect] = field(default_factory=list)

    def find_room(self, width: int, height: int, *, gap: int = 10, within: PixelRect | None = None) -> PixelRect:
        """A free box of this size, or the place with the least overlap if none is found."""
        left, top, right, bottom = within or (gap, gap, self.size.width - gap, self.size.height - gap)
        best: tuple[int, PixelRect] | None = None
        for _ in range(160):
            x = int(self.rng.integers(left, max(right - width, left) + 1))
            y = int(self.rng.integers(top, max(bottom - height, top) + 1))
            box = (x, y, x + width, y + height)
            overlap = sum(_overlap_area(box, other, gap) for other in self.occupied_boxes)
            if best is None or overlap < best[0]:
                best = (overlap, box)
            if overlap == 0:
                break
        assert best is not None  # noqa: S101 - the loop ran
        return best[1]

    def reserve(self, box: PixelRect) -> PixelRect:
        self.occupied_boxes.append(box)
        return box

    def is_free(self, box: PixelRect, gap: int = 10) -> bool:
        return not any(_overlap_area(box, other, gap) for other in self.occupied_boxes)


def _overlap_area(a: PixelRect, b: PixelRect, gap: int) -> int:
    wide = min(a[2], b[2]) - max(a[0], b[0]) + gap
    high = min(a[3], b[3]) - max(a[1], b[1]) + gap
    return wide * high if wide > 0 and high > 0 else 0


@dataclass(frozen=True)
class Thing:
    """Something on the stage."""

    name: str
    phrase: str
    colour: str
    figure: str
    box: PixelRect
    owner: int
    properties: dict[str, Scalar]

    @property
    def centre(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


class Stage:
    """A picture under construction."""

    def __init__(self, brief: Brief, size: Size, media: str = "Image_0", *, ground_name: str | None = None) -> None:
        self.brief, self.rng, self.size, self.media = brief, brief.rng, size, media
        self.traits: set[str] = {"texture"}
        pixels, self.ground = make_backdrop(brief, size, ground_name)
        self.canvas = RasterCanvas(pixels)
        self._add_clutter()
        self.ground_colour = dominant_name(self.canvas.pixels)
        free = free_colours(colour_shares(self.canvas.pixels))
        self.colours = sample(self.rng, free, len(free))
        """Colours that the ground does not contain, in random order."""
        self.standalone_colours = [c for c in self.colours if c != "orange"]
        """Colours that identify a thing without its figure: SEG takes an orange panel for a fruit."""
        self.layout = Layout(self.rng, size)
        self.things: list[Thing] = []
        self.texts: list[Reference] = []
        self.unit = min(size) / 512
        """Pixels per pixel of a frame with a shorter side of 512."""

    def _add_clutter(self) -> None:
        """Pebbles, scratches and stains in darker shades of the ground's colours."""
        pixels, rng = self.canvas.pixels, self.rng
        for _ in range(self.brief.difficulty.clutter):
            x, y = int(rng.integers(self.size.width)), int(rng.integers(self.size.height))
            shade = int(rng.integers(168, 226))
            rgb = tuple(int(v) * shade // 256 for v in pixels[y, x])
            long, thin = int(rng.integers(4, 26)), int(rng.integers(1, 6))
            cv2.ellipse(pixels, (x, y), (long, thin), int(rng.integers(180)), 0, 360, rgb, -1, cv2.LINE_AA)
        if self.brief.difficulty.clutter > 6:
            self.traits.add("clutter")

    def sample_radius(self, *, big: bool) -> int:
        """Half size of a target: by difficulty, or so large that it is plain to see."""
        low, high = (64, 84) if big else self.brief.difficulty.radius_range
        return round(int(self.rng.integers(low, high + 1)) * self.unit)

    def add(
        self,
        colour: str,
        figure: str,
        radius: int,
        *,
        at: tuple[int, int] | None = None,
        within: PixelRect | None = None,
        gap: int | None = None,
        turn: float | None = None,
        pattern: str | None = None,
        paint_rgb: Rgb | None = None,
    ) -> Thing:
        """Add a figure, centred `at` a place or in a free one."""
        slant = sample_slant(self.rng, figure, 16.0) if turn is None else turn
        style = "flat" if pattern is not None else choose(self.rng, ("lit", "lit", "rim", "flat"))
        rgb = paint_rgb or choose_paint(self.rng, colour)
        sprite = figure_sprite(figure, rgb, radius, turn=slant, style=style, pattern=pattern or "plain")
        box = self._place(sprite, at, within, gap)
        properties: dict[str, Scalar] = {"colour": colour, "shape": figure, "texture": pattern or "plain"}
        return self._add_thing(sprite, box, f"{colour} {figure}", colour, figure, properties)

    def _place(
        self, sprite: Sprite, at: tuple[int, int] | None, within: PixelRect | None, gap: int | None
    ) -> PixelRect:
        width, height = sprite.size
        if at is None:
            room = self.layout.find_room(width, height, gap=gap or round(12 * self.unit), within=within)
            return self.layout.reserve(room)
        left, top = at[0] - width // 2, at[1] - height // 2
        return self.layout.reserve((left, top, left + width, top + height))

    def _add_thing(
        self, sprite: Sprite, box: PixelRect, phrase: str, colour: str, figure: str, properties: dict[str, Scalar]
    ) -> Thing:
        owner = self.canvas.paste(sprite, box[0], box[1], shadow=max(round(3 * self.unit), 1))
        name = f"thing_{len(self.things)}{self._name_suffix}"
        new_thing = Thing(name, phrase, colour, figure, box, owner, properties)
        self.things.append(new_thing)
        return new_thing

    def add_panel(
        self, colour: str, text: str, px: int, *, within: PixelRect | None = None, phrase: str | None = None
    ) -> tuple[Thing, Reference]:
        """Add a panel with a line of text."""
        ink = render_text(text, choose_font(self.rng), px)
        pad = max(round(px * 0.7), 6)
        height = ink.height + 2 * pad
        width = max(ink.width + 2 * pad, round(1.6 * height))
        rgb = choose_paint(self.rng, colour)
        sprite = panel_sprite(width, height, rgb, corner=max(px // 6, 2))
        box = self._place(sprite, None, within, None)
        panel_thing = self._add_thing(sprite, box, phrase or f"{colour} panel", colour, "rectangle", {"colour": colour})
        left, top = box[0] + (width - ink.width) // 2, box[1] + pad
        tone = text_tone(rgb, self.brief.difficulty.contrast)
        return panel_thing, self._add_text(self.canvas.draw_ink(ink, text, tone, left, top, media=self.media))

    def add_coloured_text(self, paper: str, colour: str, text: str, px: int) -> Reference:
        """Add a coloured line of text on a white or black panel."""
        ink = render_text(text, choose(self.rng, ("slab", "mono", "sans", "hand")), px)
        pad = max(round(px * 0.8), 6)
        width, height = ink.width + 2 * pad, ink.height + 2 * pad
        sprite = panel_sprite(width, height, choose_paint(self.rng, paper), corner=max(px // 6, 2), style="flat")
        left, top, _, _ = self._place(sprite, None, None, None)
        self.canvas.paste(sprite, left, top, shadow=2)
        span = self.canvas.draw_ink(ink, text, choose_paint(self.rng, colour), left + pad, top + pad, media=self.media)
        return self._add_text(span, colour=colour)

    def add_tag(self, text: str, px: int, tagged_thing: Thing) -> Reference:
        """Add a line of text on a small white tag just below a thing."""
        ink = render_text(text, choose_font(self.rng), px)
        pad = max(px // 3, 3)
        width, height = ink.width + 2 * pad, ink.height + 2 * pad
        centre = (tagged_thing.box[0] + tagged_thing.box[2]) // 2
        left = min(max(centre - width // 2, 2), self.size.width - width - 2)
        top = min(tagged_thing.box[3] + max(px // 3, 3), self.size.height - height - 2)
        rgb = choose_paint(self.rng, "white")
        self.canvas.paste(panel_sprite(width, height, rgb, corner=2, style="flat"), left, top, shadow=1)
        self.layout.reserve((left, top, left + width, top + height))
        tone = text_tone(rgb, self.brief.difficulty.contrast)
        return self._add_text(self.canvas.draw_ink(ink, text, tone, left + pad, top + pad, media=self.media))

    def _add_text(self, span: object, **properties: Scalar) -> Reference:
        reference = Reference(name=f"text_{len(self.texts)}{self._name_suffix}", footprint=span, properties=properties)  # type: ignore[arg-type]
        self.texts.append(reference)
        return reference

    @property
    def _name_suffix(self) -> str:
        """Distinguishes the names of a second picture from those of the first."""
        return "" if self.media.endswith("_0") else f"_in_{self.media}"

    def sample_text_px(self, *, big: bool = False) -> int:
        low, high = (34, 44) if big else self.brief.difficulty.text_px_range
        return round(int(self.rng.integers(low, high + 1)) * (self.unit if big else 1.0))

    def add_distractors(
        self, count: int, *, avoid: tuple[str, ...] = (), unlike: str | None = None, colours: tuple[str, ...] = ()
    ) -> list[Thing]:
        """Add other things: none in a colour of `avoid`, none similar to the figure `unlike`."""
        hues = [c for c in self.colours if c not in avoid] or [c for c in ("white", "grey") if c != self.ground_colour]
        figures = distinct_figures((*NAMED_FIGURES, *ICON_NAMES), unlike) if unlike else [*NAMED_FIGURES, *ICON_NAMES]
        low, high = self.brief.difficulty.radius_range
        distractors = []
        for _ in range(count):
            radius = round(int(self.rng.integers(low, round(high * 1.3) + 1)) * self.unit)
            box = self.layout.find_room(2 * radius + 4, 2 * radius + 4)
            if not self.layout.is_free(box, 4):
                continue
            at = (box[0] + radius + 2, box[1] + radius + 2)
            distractors.append(self.add(choose(self.rng, colours or hues), choose(self.rng, figures), radius, at=at))
            if self.rng.random() < 0.08 * self.brief.difficulty.level:
                self.occlude(distractors[-1])
        return distractors

    def occlude(self, target: Thing) -> None:
        """Cover a side of a thing with something in the ground's colours: a tenth to a third of it."""
        across, down = ((target.box[k + 2] - target.box[k]) / 2 for k in (0, 1))
        radius = max(round(min(across, down) * (0.45 + 0.04 * self.brief.difficulty.level)), 4)
        shade = tuple(int(v) * 200 // 256 for v in np.median(self.canvas.pixels[::8, ::8].reshape(-1, 3), axis=0))
        cover = figure_sprite(choose(self.rng, ("leaf", "cloud", "ellipse")), shade, radius, style="lit")  # type: ignore[arg-type]
        sides = choose(self.rng, ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1), (-1, 1), (1, -1)))
        offset = 0.8 if 0 in sides else 0.62
        left = round(target.centre[0] + sides[0] * offset * across) - cover.size.width // 2
        top = round(target.centre[1] + sides[1] * offset * down) - cover.size.height // 2
        self.canvas.paste(cover, left, top, shadow=2)
        self.traits.add("occlusion")

    def maybe_occlude(self, target: Thing) -> None:
        """Occlude a thing with the probability of the difficulty."""
        if self.brief.bernoulli(self.brief.difficulty.occlusion_probability):
            self.occlude(target)

    def finish(self) -> tuple[Image, list[Reference]]:
        """The picture and all of its references."""
        x1 = y1 = 1.0
        references = [
            Reference(
                name=f"ground{self._name_suffix}",
                footprint=Box(media=self.media, label="ground", x0=0.0, y0=0.0, x1=x1, y1=y1),
                properties={"colour": self.ground_colour, "shape": "irregular", "texture": "textured"},
            )
        ]
        for thing in self.things:
            mask = self.canvas.visible_mask(thing.owner, thing.box, media=self.media, label=thing.phrase)
            if mask is not None:
                # not validated again, because that reads all runs of the mask
                references.append(
                    Reference.model_construct(name=thing.name, footprint=mask, properties=thing.properties)
                )
        return Image.from_array(self.canvas.pixels), references + self.texts


def text_tone(panel: Rgb, contrast: int) -> Rgb:
    """The ink for a panel: towards black on light paint, towards white on dark paint."""
    light = (panel[0] * 3 + panel[1] * 6 + panel[2]) // 10
    end = 16 if light > 128 else 248
    return tuple((end * contrast + c * (256 - contrast)) // 256 for c in panel)  # type: ignore[return-value]


def make_backdrop(brief: Brief, size: Size, name: str | None = None) -> tuple[Pixels, str]:
    """A ground: one of the user's photographs if there are any, else a texture."""
    if brief.photographs and name is None:
        return load_photograph(choose(brief.rng, brief.photographs), size), "photograph"
    texture = make_ground(brief.rng, size, name)
    return texture.pixels, texture.name


def load_photograph(path: Path, size: Size) -> Pixels:
    """A photograph scaled and cropped to fill the frame."""
    pixels = open_media(path).frame(0)
    height, width = pixels.shape[:2]
    scale = max(size.width / width, size.height / height)
    wide, high = max(round(width * scale), size.width), max(round(height * scale), size.height)
    scaled = cv2.resize(np.asarray(pixels), (wide, high), interpolation=cv2.INTER_LINEAR_EXACT)
    left, top = (wide - size.width) // 2, (high - size.height) // 2
    return np.ascontiguousarray(scaled[top : top + size.height, left : left + size.width])
