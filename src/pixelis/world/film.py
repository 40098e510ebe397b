"""Clips: things that move, appear and disappear before a camera that may pan and shake; tracks and times are exact."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Size, Span, Track, UnitBox, round_unit
from pixelis.items import Reference, Scalar
from pixelis.media import Clip
from pixelis.media.medium import Frame
from pixelis.world.figure_outlines import ICON_NAMES
from pixelis.world.lettering import choose_font, render_text
from pixelis.world.painting import (
    Alpha,
    Pixels,
    Sprite,
    blend,
    figure_sprite,
    make_text_span,
    panel_sprite,
    sample_slant,
    to_unit_box,
)
from pixelis.world.palette import apply_light, choose_paint, colour_shares, dominant_name, free_colours
from pixelis.world.stage import make_backdrop, text_tone
from pixelis.world.template import Brief
from pixelis.world.vocabulary import choose, sample

FRAME_SIZE = Size(416, 312)
FPS = 4.0
"""Low enough for long clips of few frames, high enough that a thing moves less than its size between two frames."""
EVENT_S = 0.75
"""Length of the reference span of an appearance or a disappearance."""
MIN_VISIBLE_SHARE = 0.4
"""A thing is on a frame if at least this share of its box is inside."""

MotionPath = NDArray[np.float64]
"""(frames, 2) centres in pixels of the frame without camera motion; NaN while the thing is absent."""


@dataclass
class Actor:
    """A thing that moves through the clip."""

    name: str
    phrase: str
    colour: str
    sprite: Sprite
    path: MotionPath
    properties: dict[str, Scalar]
    text: str = ""

    def box(self, index: int, camera: tuple[int, int]) -> tuple[int, int, int, int] | None:
        """Its box on a frame in pixels, not clipped; None while it is absent."""
        x, y = self.path[index]
        if np.isnan(x):
            return None
        width, height = self.sprite.size
        left, top = round(x) - width // 2 - camera[0], round(y) - height // 2 - camera[1]
        return left, top, left + width, top + height


def visible_share(box: tuple[int, int, int, int], size: Size) -> float:
    """The share of a box inside the frame."""
    wide = min(box[2], size.width) - max(box[0], 0)
    high = min(box[3], size.height) - max(box[1], 0)
    return max(wide, 0) * max(high, 0) / ((box[2] - box[0]) * (box[3] - box[1]))


def shadow_alpha(alpha: Alpha) -> Alpha:
    """The coverage of a hard shadow, which takes a quarter of the light."""
    return np.right_shift(alpha, 2, dtype=np.uint8)


@dataclass
class Film:
    """A clip under construction."""

    brief: Brief
    size: Size = FRAME_SIZE
    frames: int = 44
    media: str = "Video_0"
    pan: bool = False
    actors: list[Actor] = field(default_factory=list)
    extra_references: list[Reference] = field(default_factory=list)
    scenes: list[tuple[int, Pixels]] = field(default_factory=list)
    """First frame and pixels of each backdrop, if there are several: slides."""
    traits: set[str] = field(default_factory=lambda: {"texture"})

    def __post_init__(self) -> None:
        rng, difficulty = self.brief.rng, self.brief.difficulty
        self.camera = self._sample_camera_path()
        low, high = self.camera.min(axis=0), self.camera.max(axis=0)
        self._origin = low
        extent = Size(int(self.size.width + high[0] - low[0]), int(self.size.height + high[1] - low[1]))
        self.backdrop: Pixels = make_backdrop(self.brief, extent)[0]
        for _ in range(difficulty.clutter // 2):
            shade = 150 + int(rng.integers(70))
            x, y = int(rng.integers(extent.width)), int(rng.integers(extent.height))
            rgb = tuple(int(v) * shade // 256 for v in self.backdrop[y, x])
            mark = figure_sprite(choose(rng, ("ellipse", "leaf", "cloud")), rgb, int(rng.integers(3, 10)), style="flat")  # type: ignore[arg-type]
            blend(self.backdrop, mark.rgb, mark.alpha, x, y)
        self._add_scenery(extent)
        if difficulty.clutter > 6:
            self.traits.add("clutter")
        self.post = self._maybe_make_post()
        self.ground_colour = dominant_name(self.backdrop)
        free = free_colours(colour_shares(self.backdrop))
        self.colours = sample(rng, free, len(free))
        self.standalone_colours = [c for c in self.colours if c != "orange"]

    def _add_scenery(self, extent: Size) -> None:
        """Paint things in muted colours onto the ground, one per difficulty level."""
        rng = self.brief.rng
        hues = [c for c in ("grey", "brown", "beige", "white", "black") if c != dominant_name(self.backdrop)]
        for _ in range(self.brief.difficulty.level):
            rgb = apply_light(choose_paint(rng, choose(rng, hues)), 208)
            icon, radius = choose(rng, ICON_NAMES), int(rng.integers(9, 20))
            mark = figure_sprite(icon, rgb, radius, style=choose(rng, ("lit", "flat")))
            x, y = int(rng.integers(extent.width - 30)), int(rng.integers(extent.height - 30))
            blend(self.backdrop, (0, 0, 0), shadow_alpha(mark.alpha), x + 2, y + 2)
            blend(self.backdrop, mark.rgb, mark.alpha, x, y)

    def _sample_camera_path(self) -> NDArray[np.int64]:
        """The camera's offset on each frame: (frames, 2) pixels."""
        rng, shake = self.brief.rng, self.brief.difficulty.shake_px
        positions = np.zeros((self.frames, 2), dtype=np.int64)
        if shake:
            positions[:] = rng.integers(-shake, shake + 1, (self.frames, 2))
            positions[0] = 0
            self.traits.add("shake")
        if self.pan:
            pan_px = rng.integers(20, 60, 2) * rng.choice([-1, 1], 2)
            positions = positions + (np.linspace(0, 1, self.frames)[:, None] * pan_px).astype(np.int64)
            self.traits.add("pan")
        return np.asarray(positions, dtype=np.int64)

    def _maybe_make_post(self) -> tuple[int, Sprite] | None:
        """From level 3 on, sometimes a thin post in front of everything that occludes what passes behind it."""
        if self.brief.difficulty.level < 3 or not self.brief.bernoulli(0.35):
            return None
        self.traits.add("occlusion")
        red, green, blue = (int(v) * 150 // 256 for v in np.median(self.backdrop[::8, ::8].reshape(-1, 3), axis=0))
        x = int(self.brief.rng.integers(40, self.size.width - 40))
        return x, panel_sprite(7, self.size.height + 40, (red, green, blue), corner=1)

    @property
    def duration_s(self) -> float:
        return self.frames / FPS

    def time_of(self, index: int) -> float:
        return index / FPS

    def sample_radius(self, *, big: bool = False) -> int:
        by_level = ((24, 30), (21, 27), (18, 24), (16, 21), (14, 18))
        low, high = (34, 40) if big else by_level[self.brief.difficulty.level - 1]
        return int(self.brief.rng.integers(low, high + 1))

    def add(self, colour: str, figure: str, path: MotionPath, *, radius: int | None = None) -> Actor:
        """Add a figure that follows a path."""
        rng = self.brief.rng
        style = choose(rng, ("lit", "rim", "flat"))
        rgb, radius = choose_paint(rng, colour), radius or self.sample_radius()
        sprite = figure_sprite(figure, rgb, radius, turn=sample_slant(rng, figure, 12.0), style=style)
        return self._add_actor(f"{colour} {figure}", colour, sprite, path, {"colour": colour, "shape": figure})

    def add_panel(self, colour: str, text: str, path: MotionPath, px: int) -> Actor:
        """Add a panel with a line of text that follows a path."""
        rgb = choose_paint(self.brief.rng, colour)
        ink = render_text(text, choose_font(self.brief.rng), px)
        pad = max(round(px * 0.7), 6)
        sprite = panel_sprite(ink.width + 2 * pad, ink.height + 2 * pad, rgb, corner=3)
        rgb_pixels = sprite.rgb.copy()
        blend(rgb_pixels, text_tone(rgb, self.brief.difficulty.contrast), ink.alpha, pad, pad)
        actor = self._add_actor(f"{colour} panel", colour, Sprite(rgb_pixels, sprite.alpha), path, {"colour": colour})
        actor.text = text
        return actor

    def _add_actor(
        self, phrase: str, colour: str, sprite: Sprite, path: MotionPath, properties: dict[str, Scalar]
    ) -> Actor:
        actor = Actor(f"track_{len(self.actors)}{self.name_suffix}", phrase, colour, sprite, path, properties)
        self.actors.append(actor)
        return actor

    @property
    def name_suffix(self) -> str:
        return "" if self.media.endswith("_0") else f"_in_{self.media}"

    def still_path(self, x: float, y: float, first: int = 0, last: int | None = None) -> MotionPath:
        """A path that stays at one place from frame `first` up to `last`."""
        path = np.full((self.frames, 2), np.nan)
        path[first : self.frames if last is None else last] = (x, y)
        return path

    def straight_path(
        self, start: tuple[float, float], end: tuple[float, float], first: int = 0, last: int | None = None
    ) -> MotionPath:
        """A straight path at constant speed."""
        last = self.frames if last is None else last
        path = np.full((self.frames, 2), np.nan)
        steps = np.linspace(0.0, 1.0, max(last - first, 2))[: last - first, None]
        path[first:last] = np.array(start) + steps * (np.array(end) - np.array(start))
        return path

    def bouncing_path(self, start: tuple[float, float], step: tuple[float, float], radius: int) -> MotionPath:
        """A path that is reflected at the edges of the frame."""
        path = np.empty((self.frames, 2))
        for axis, length in enumerate(self.size):
            room = length - 2.0 * radius
            along = (start[axis] - radius + step[axis] * np.arange(self.frames)) % (2.0 * room)
            path[:, axis] = radius + np.where(along > room, 2.0 * room - along, along)
        return path

    def add_event(self, phrase: str, first: int, last: int | None = None) -> str:
        """Add a span that starts with frame `first`; returns the name of its reference."""
        start = self.time_of(first)
        end = min(start + EVENT_S, self.duration_s) if last is None else self.time_of(last)
        name = f"span_{sum(r.footprint.kind == 'span' for r in self.extra_references)}{self.name_suffix}"
        span = Span(media=self.media, label=phrase, start_s=round_unit(start), end_s=round_unit(end))
        self.extra_references.append(Reference(name=name, footprint=span))
        return name

    def finish(self) -> tuple[Clip, list[Reference]]:
        """The clip and all of its references."""
        visible_boxes: dict[str, list[tuple[int, UnitBox]]] = {actor.name: [] for actor in self.actors}
        rendered_frames: list[Frame] = []
        for index in range(self.frames):
            camera = (int(self.camera[index, 0]), int(self.camera[index, 1]))
            left, top = camera[0] - int(self._origin[0]), camera[1] - int(self._origin[1])
            background = next((scene for first, scene in reversed(self.scenes) if first <= index), self.backdrop)
            pixels = background[top : top + self.size.height, left : left + self.size.width].copy()
            for actor in self.actors:
                box = actor.box(index, camera)
                if box is not None and not self.scenes:
                    blend(pixels, (0, 0, 0), shadow_alpha(actor.sprite.alpha), box[0] + 2, box[1] + 2)
                if box is None or blend(pixels, actor.sprite.rgb, actor.sprite.alpha, box[0], box[1]) is None:
                    continue
                if visible_share(box, self.size) >= MIN_VISIBLE_SHARE:
                    trimmed = (box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1)  # a sprite has a margin of one pixel
                    visible_boxes[actor.name].append((index, to_unit_box(trimmed, self.size)))
            if self.post is not None and not self.scenes:
                blend(pixels, self.post[1].rgb, self.post[1].alpha, self.post[0] - camera[0], -20)
            rendered_frames.append(pixels)
        references = []
        for number, actor in enumerate(self.actors):
            if frames := visible_boxes[actor.name]:
                indices, boxes = zip(*frames, strict=True)
                track = Track(media=self.media, label=actor.phrase, track_id=number, frames=indices, boxes=boxes)
                references.append(Reference(name=actor.name, footprint=track, properties=actor.properties))
                if actor.text:
                    references.append(self._panel_text_reference(actor, frames))
        return Clip.from_frames(rendered_frames, fps=FPS), references + self.extra_references

    def _panel_text_reference(self, actor: Actor, frames: list[tuple[int, UnitBox]]) -> Reference:
        """The line on a panel, located at the middle of the panel's time."""
        index, (x0, y0, x1, y1) = frames[len(frames) // 2]
        width, height = self.size
        pad = 0.22 * (y1 - y0) * height
        box = (round(x0 * width + pad), round(y0 * height + pad), round(x1 * width - pad), round(y1 * height - pad))
        span = make_text_span(actor.text, box, self.size, media=self.media, frame=index)
        times = {"start_s": self.time_of(frames[0][0]), "end_s": round_unit(self.time_of(frames[-1][0]) + 1 / FPS)}
        properties: dict[str, Scalar] = {"panel": actor.phrase, **times}
        return Reference(name=f"text_{actor.name}", footprint=span, properties=properties)
