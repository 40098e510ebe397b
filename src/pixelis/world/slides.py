"""Lectures: a sequence of slides with a presenter in the corner and marks that appear and disappear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pixelis.core.geometry import Size, round_unit
from pixelis.items import Reference, Scalar
from pixelis.media import Clip
from pixelis.world.figure_outlines import ICON_NAMES
from pixelis.world.film import FPS, Actor, Film
from pixelis.world.lettering import choose_font, render_text
from pixelis.world.painting import RasterCanvas, blend, make_text_span, panel_sprite, sheet_sprite
from pixelis.world.palette import Rgb, choose_paint, colour_shares, free_colours
from pixelis.world.stage import text_tone
from pixelis.world.template import Brief
from pixelis.world.textures import DARK_SHEETS, LIGHT_SHEETS, make_ground
from pixelis.world.vocabulary import choose, sample, sample_int

SCREEN = Size(448, 336)
MARGIN = 8
"""Margin around a slide, for a shaking camera."""


@dataclass(frozen=True)
class Slide:
    """The text of one slide."""

    title: str
    lines: tuple[str, ...]


@dataclass
class Lecture:
    """A clip of slides under construction."""

    brief: Brief
    slides: Sequence[Slide]
    media: str = "Video_0"
    alternate_sheets: bool = False
    """Whether light and dark slides alternate."""
    texts: list[Reference] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.brief.rng
        lengths = [sample_int(rng, 10, 14) for _ in self.slides]
        self.starts = [sum(lengths[:k]) for k in range(len(lengths))]
        self.ends = [*self.starts[1:], sum(lengths)]
        self.film = Film(self.brief, size=SCREEN, frames=sum(lengths), media=self.media)
        light, dark = choose(rng, LIGHT_SHEETS), choose(rng, DARK_SHEETS)
        first = choose(rng, (light, light, dark))
        self.sheets = [first, dark if first == light else light] if self.alternate_sheets else [first]
        self.font = choose_font(rng)
        self.band: Rgb = choose_paint(rng, choose(rng, ("grey", "black", "brown")))
        self.film.scenes = [
            (first, self._render_slide(k, slide))
            for k, (first, slide) in enumerate(zip(self.starts, self.slides, strict=True))
        ]
        slide_colours: dict[str, float] = {}
        for _, scene in self.film.scenes[:2]:
            slide_colours |= colour_shares(scene)
        free = free_colours(slide_colours)
        self.colours = sample(rng, free, len(free))
        self._add_presenter()

    def _render_slide(self, number: int, slide: Slide) -> np.ndarray:
        """A slide with a margin wide enough for the camera's shake."""
        sheet = self.sheets[number % len(self.sheets)]
        canvas = RasterCanvas(self.film.backdrop)
        inner = Size(SCREEN.width - 2 * MARGIN, SCREEN.height - 2 * MARGIN)
        left, top = -int(self.film._origin[0]) + MARGIN, -int(self.film._origin[1]) + MARGIN
        canvas.paste(sheet_sprite(make_ground(self.brief.rng, inner, sheet).pixels), left, top)
        px = (24, 22, 20, 17, 14)[self.brief.difficulty.level - 1]
        canvas.paste(panel_sprite(inner.width, round(2.1 * px), self.band, corner=2, style="flat"), left, top)
        tone = text_tone(self.band, self.brief.difficulty.contrast)
        self._write(canvas, slide.title, left + 14, top + round(1.05 * px), px + 1, tone, number, "title")
        dark = sheet in DARK_SHEETS
        body = text_tone((34, 40, 46) if dark else (240, 240, 238), self.brief.difficulty.contrast)
        step = min((inner.height - 2.1 * px - 76) / max(len(slide.lines), 1), 2.6 * px)
        for k, text in enumerate(slide.lines):
            y = top + 2.1 * px + 14 + (k + 0.5) * step
            self._write(canvas, text, left + 64, round(y), px - 2, body, number, "line")
        return canvas.pixels

    def _write(
        self, canvas: RasterCanvas, text: str, left: int, y: int, px: int, rgb: Rgb, number: int, role: str
    ) -> None:
        ink = render_text(text, self.font, px)
        top = y - ink.height // 2
        blend(canvas.pixels, rgb, ink.alpha, left, top)
        frame = (self.starts[number] + self.ends[number]) // 2
        dx, dy = (int(v) for v in self.film.camera[frame] - self.film._origin)
        box = (left - dx, top - dy, left - dx + ink.width, top - dy + ink.height)
        span = make_text_span(text, box, SCREEN, media=self.media, frame=frame)
        key, _, value = text.partition(" = ")
        properties: dict[str, Scalar] = {
            "role": role,
            "slide": number,
            "start_s": round_unit(self.starts[number] / FPS),
            "end_s": round_unit(self.ends[number] / FPS),
        }
        if value:
            properties["key"] = key
        self.texts.append(Reference(name=f"text_{len(self.texts)}", footprint=span, properties=properties))

    def _add_presenter(self) -> None:
        """A presenter in the lower right corner who sways a little."""
        rng, film = self.brief.rng, self.film
        beats = np.arange(film.frames)
        sway = np.stack(
            [np.full(film.frames, SCREEN.width - 46.0), SCREEN.height - 44.0 + 5 * (beats % 4 // 2)], axis=1
        )
        icon = choose(rng, [i for i in ICON_NAMES if i not in ("leaf", "cloud", "drop", "fish")])
        film.add(self.colours[-1], icon, sway, radius=24)

    def add_mark(self, colour: str, figure: str, first: int, last: int, at: tuple[float, float]) -> tuple[Actor, str]:
        """Add a mark on the slides; returns it and the name of its appearance."""
        actor = self.film.add(colour, figure, self.film.still_path(*at, first, last), radius=18)
        return actor, self.film.add_event(f"{actor.phrase} appears", first)

    def add_slide_event(self, number: int) -> str:
        """Add the span of a slide; returns the name of its reference."""
        return self.film.add_event(f"slide {self.slides[number].title}", self.starts[number], self.ends[number])

    @property
    def size(self) -> Size:
        return self.film.size

    @property
    def traits(self) -> set[str]:
        return self.film.traits

    def finish(self) -> tuple[Clip, list[Reference]]:
        clip, references = self.film.finish()
        return clip, references + self.texts


def line_centre_y(lecture: Lecture, reference: Reference) -> float:
    """The middle of a line, in pixels of the screen."""
    box = reference.footprint.box_unit  # type: ignore[union-attr]
    return (box[1] + box[3]) / 2 * SCREEN.height  # type: ignore[index]
