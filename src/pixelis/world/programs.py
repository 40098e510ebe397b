"""Reference programs: they compute the answer from the references alone.

A program is a pure function of `Facts`, because necessity tests run it again on perturbed references.
It raises `Unanswerable` if something that it needs is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import hypot
from typing import TypeVar

import cv2
import numpy as np

from pixelis.core.geometry import Mask, Span, TextSpan, Track, UnitBox
from pixelis.items import Reference, Scalar

T = TypeVar("T")
F = TypeVar("F", Track, Span)
Parameters = Mapping[str, "Scalar | tuple[Scalar, ...]"]

GRID_SIDE_PX = 336
"""Regions are merged and perturbed on a grid of this longer side: the policy's input scale (supp:tool_necessity)."""
FIELDS = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")


class Unanswerable(ValueError):  # noqa: N818 - a state of the references, not a fault
    """The references lack what the program needs."""


def format_number(value: float) -> str:
    """A number as answers write it: an integer if it is one, else with up to two decimals."""
    return str(round(value)) if abs(value - round(value)) < 1e-9 else f"{value:.2f}".rstrip("0").rstrip(".")


# --- regions


def require_first(matches: Sequence[T], message: str) -> T:
    if not matches:
        raise Unanswerable(message)
    return matches[0]


def require_single(matches: Sequence[str], condition: str) -> str:
    """The only match; `condition` says what the others fulfil or fail."""
    if len(matches) != 1:
        raise Unanswerable(f"{len(matches)} {condition}")
    return matches[0]


def get_box(reference: Reference) -> UnitBox:
    footprint = reference.footprint
    box = None if isinstance(footprint, Track | Span) else footprint.box_unit
    if box is None:
        raise Unanswerable(f"{reference.name} has no extent")
    return box


def centre(box: UnitBox) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def get_centre(reference: Reference) -> tuple[float, float]:
    return centre(get_box(reference))


def locate_field(box: Sequence[float]) -> str:
    """The one of nine fields of the frame that contains the centre of a box."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return FIELDS[min(int(y * 3), 2) * 3 + min(int(x * 3), 2)]


def area(reference: Reference) -> float:
    """The share of the frame that a region covers."""
    footprint = reference.footprint
    if isinstance(footprint, Mask):
        return footprint.area
    x0, y0, x1, y1 = get_box(reference)
    return (x1 - x0) * (y1 - y0)


def centre_distance(a: UnitBox, b: UnitBox, ratio: float) -> float:
    """Distance between two centres, in frame widths."""
    (ax, ay), (bx, by) = centre(a), centre(b)
    return hypot(ax - bx, (ay - by) * ratio)


@lru_cache(maxsize=64)
def mask_to_grid(mask: Mask) -> np.ndarray:
    """A mask at the policy's input scale, 0 and 1. It is cached: do not write into it."""
    scale = GRID_SIDE_PX / max(mask.width, mask.height)
    size = (max(round(mask.width * scale), 1), max(round(mask.height * scale), 1))
    if size == (mask.width, mask.height):
        return mask.array.astype(np.uint8)
    return np.asarray(cv2.resize(mask.array.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST))


def _boxes_touch(a: UnitBox, b: UnitBox) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


# --- text


def line_text(reference: Reference) -> str:
    footprint = reference.footprint
    return footprint.text if isinstance(footprint, TextSpan) else ""


def parse_number(text: str) -> float:
    """The number in a line: `23 %`, `1,240`, `x = 7`."""
    match = re.search(r"-?\d[\d,]*\.?\d*", text)
    if match is None:
        raise Unanswerable(f"{text!r} holds no number")
    return float(match.group().replace(",", ""))


def line_number(reference: Reference) -> float:
    """The number in a line of text."""
    return parse_number(line_text(reference))


def nearest(candidates: Sequence[Reference], key: Callable[[Reference], float]) -> Reference:
    if not candidates:
        raise Unanswerable("there is nothing to choose from")
    return min(candidates, key=key)


# --- clips


def displacement(track: Track, ratio: float) -> tuple[float, float]:
    """The displacement of a track's centre from first to last frame, in frame widths: right and down."""
    (ax, ay), (bx, by) = centre(track.boxes[0]), centre(track.boxes[-1])
    return bx - ax, (by - ay) * ratio


def heading(across: float, down: float) -> str:
    """The direction in words: `left`, `up right` …; `still` under a twentieth of the width."""
    words = []
    if abs(down) >= 0.05 and abs(down) > 0.414 * abs(across):
        words.append("down" if down > 0 else "up")
    if abs(across) >= 0.05 and abs(across) > 0.414 * abs(down):
        words.append("right" if across > 0 else "left")
    return " ".join(words) or "still"


def midpoint(span: Span) -> float:
    return (span.start_s + span.end_s) / 2


# --- what a program reads


@dataclass(frozen=True)
class Facts:
    """The references of an item and the parameters of its question."""

    references: Sequence[Reference]
    parameters: Parameters = field(default_factory=dict)

    def text(self, key: str) -> str:
        return str(self.parameters[key])

    def words(self, key: str) -> tuple[str, ...]:
        value = self.parameters[key]
        return tuple(str(v) for v in value) if isinstance(value, tuple) else (str(value),)

    @property
    def media(self) -> str | None:
        """The medium that the question is about; None for any."""
        return self.text("media") if self.parameters.get("media") else None

    @property
    def aspect(self) -> float:
        """Height over width of the frame: distances are measured in widths."""
        return float(str(self.parameters.get("aspect", 1.0)))

    def regions(self, phrase: str, media: str | None = None) -> list[Reference]:
        """Boxes and masks labelled with a phrase, on one medium or on any."""
        regions = [r for r in self.references if r.footprint.kind in ("mask", "box") and r.footprint.label == phrase]
        return [r for r in regions if media in (None, r.footprint.media)]

    def region(self, phrase: str, media: str | None = None) -> Reference:
        """The first box or mask labelled with a phrase."""
        return require_first(self.regions(phrase, media), f"nothing is called {phrase!r}")

    def box(self, key: str) -> UnitBox:
        """The box of the region that a parameter names."""
        return get_box(self.region(self.text(key)))

    def count(self, phrase: str, media: str | None = None) -> int:
        """Count the things of a phrase, on one medium or on all. Masks that touch count as one."""
        footprints = [r.footprint for r in self.regions(phrase, media)]
        if media is None and len(names := sorted({f.media for f in footprints})) > 1:
            return sum(self.count(phrase, name) for name in names)
        boxes = [b for f in footprints if isinstance(f, Mask) and (b := f.box_unit)]
        if not any(_boxes_touch(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]):
            return len(footprints)
        grids = [mask_to_grid(mask) for mask in footprints if isinstance(mask, Mask)]
        return int(cv2.connectedComponents(reduce(np.bitwise_or, grids))[0]) - 1

    def lines(self, media: str | None = None, **properties: Scalar) -> list[Reference]:
        """Lines of text with these properties."""
        return [
            r
            for r in self.references
            if isinstance(r.footprint, TextSpan)
            and media in (None, r.footprint.media)
            and all(r.properties.get(key) == value for key, value in properties.items())
        ]

    def line(self, text: str, **properties: Scalar) -> Reference:
        """The first line with this text."""
        matches = [r for r in self.lines(None, **properties) if line_text(r).casefold() == text.casefold()]
        return require_first(matches, f"nothing says {text!r}")

    def lines_at(self, seconds: float, **properties: Scalar) -> list[Reference]:
        """Lines of text on screen at a time."""
        return [
            r
            for r in self.lines(None, **properties)
            if float(str(r.properties.get("start_s", 0.0))) <= seconds < float(str(r.properties.get("end_s", 1e9)))
        ]

    def _labelled(self, kind: type[F], phrase: str, media: str | None = None) -> list[F]:
        footprints = (r.footprint for r in self.references)
        return [f for f in footprints if isinstance(f, kind) and f.label == phrase and media in (None, f.media)]

    def track(self, phrase: str, media: str | None = None) -> Track:
        """The first track labelled with a phrase."""
        return require_first(self._labelled(Track, phrase, media), f"no track is called {phrase!r}")

    def spans(self, phrase: str) -> list[Span]:
        """The spans labelled with a phrase, by start."""
        return sorted(self._labelled(Span, phrase), key=lambda span: span.start_s)

    def span(self, phrase: str) -> Span:
        return require_first(self.spans(phrase), f"no time is called {phrase!r}")


Program = Callable[[Facts], str]
