"""Items as pictures for people: the media with their references drawn, question and answer below."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Mask, Size, TextSpan, Track, UnitBox, to_pixels
from pixelis.items import FAMILIES, Reference
from pixelis.media import Medium
from pixelis.world.generate import RenderedItem, generate, templates
from pixelis.world.lettering import render_text
from pixelis.world.painting import blend

Pixels = NDArray[np.uint8]
EVIDENCE_RGB, OTHER_RGB = (255, 64, 64), (70, 130, 255)
"""References that the answer depends on, and all others."""
STRIP_FRAMES = 6
"""Frames shown of a clip."""
PAPER_RGB, INK_RGB = (250, 250, 248), (32, 34, 38)


def render_item(rendered: RenderedItem, *, width: int = 960, marks: bool = True) -> Pixels:
    """The whole item as one picture of this width."""
    item = rendered.item
    pictures = [
        _render_medium(
            facts.name,
            medium,
            [r for r in item.references if r.footprint.media == facts.name],
            set(item.evidence),
            marks,
        )
        for facts, medium in zip(item.media, rendered.media, strict=True)
    ]
    side_by_side = len(pictures) == 2 and rendered.media[0].kind == "image"
    rows = [_place_side_by_side(pictures, width)] if side_by_side else [_resize_to_width(p, width) for p in pictures]
    needs = ", ".join(item.required_tools) or "no tool"
    shift = f" · {item.shift.name} {item.shift.severity}" if item.shift else ""
    letters = max(width // 10, 20)
    lines = [
        *textwrap.wrap(item.question, letters),
        f"answer: {item.answer_text}" + (f"  ({item.answer})" if item.options else ""),
        *textwrap.wrap(f"{item.id} · {item.scoring} · needs {needs}{shift}", letters),
    ]
    return np.vstack([*rows, _render_caption(lines, width)])


def contact_sheet(*, seed: int = 7, difficulty: int = 3, width: int = 1200) -> Pixels:
    """A contact sheet: three items of each family, without marks."""
    rows = []
    for family in FAMILIES:
        family_templates = templates(family)
        cells = []
        for k in range(3):
            template_id = family_templates[k * len(family_templates) // 3].id
            rendered = generate(family, seed=seed + 5 * k, difficulty=difficulty, template_id=template_id)
            cells.append(render_item(rendered, width=width // 3 - 4, marks=False))
        max_height = max(cell.shape[0] for cell in cells)
        padded = [
            cv2.copyMakeBorder(c, 2, max_height - c.shape[0] + 2, 2, 2, cv2.BORDER_CONSTANT, value=PAPER_RGB)
            for c in cells
        ]
        rows.append(np.hstack(padded))
    return np.asarray(np.vstack(rows), dtype=np.uint8)


def _render_medium(
    name: str, medium: Medium, references: Sequence[Reference], evidence: set[str], marks: bool
) -> Pixels:
    if medium.kind == "image":
        return _draw_references(medium, 0, references, evidence) if marks else medium.frame(0).copy()
    frames = [round(k * (medium.frame_count - 1) / (STRIP_FRAMES - 1)) for k in range(STRIP_FRAMES)]
    pictures = [_draw_references(medium, i, references, evidence) if marks else medium.frame(i).copy() for i in frames]
    for index, picture in zip(frames, pictures, strict=True):
        label = render_text(f"{name} {medium.time_of(index):.1f} s", "sans", 18)
        top = len(picture) - label.height - 12  # at the bottom: titles are at the top
        cv2.rectangle(picture, (0, top), (label.width + 12, len(picture)), PAPER_RGB, -1)
        blend(picture, INK_RGB, label.alpha, 6, top + 6)
    half = STRIP_FRAMES // 2
    return np.vstack([np.hstack(pictures[:half]), np.hstack(pictures[half:])])


def _draw_references(medium: Medium, index: int, references: Sequence[Reference], evidence: set[str]) -> Pixels:
    """A frame with its references drawn."""
    picture = medium.frame(index).copy()
    thickness = max(round(max(medium.size) / 400), 1)
    for reference in sorted(references, key=lambda r: r.name in evidence):
        colour = EVIDENCE_RGB if reference.name in evidence else OTHER_RGB
        footprint: Any = reference.footprint
        if footprint.label == "ground":
            continue
        if isinstance(footprint, Mask) and footprint.frame == index:
            contours, _ = cv2.findContours(footprint.array.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
            cv2.drawContours(picture, contours, -1, colour, thickness)
        elif isinstance(footprint, TextSpan) and _is_on_frame(reference, medium, index):
            _draw_box(picture, footprint.box_unit, medium.size, colour, thickness)
        elif isinstance(footprint, Track) and (box := footprint.box_at(index)) is not None:
            _draw_box(picture, box, medium.size, colour, thickness)
    return picture


def _is_on_frame(reference: Reference, medium: Medium, index: int) -> bool:
    """Whether a line of text is on this frame."""
    if "start_s" not in reference.properties:
        return True
    start, end = (float(str(reference.properties[key])) for key in ("start_s", "end_s"))
    return start <= medium.time_of(index) < end and "panel" not in reference.properties


def _draw_box(picture: Pixels, box: UnitBox, size: Size, colour: tuple[int, int, int], thickness: int) -> None:
    left, top, right, bottom = to_pixels(box, size).pixel_bounds(size)
    cv2.rectangle(picture, (left - 2, top - 2), (right + 1, bottom + 1), colour, thickness)


def _resize_to_width(picture: Pixels, width: int) -> Pixels:
    height = max(round(picture.shape[0] * width / picture.shape[1]), 1)
    interpolation = cv2.INTER_AREA if picture.shape[1] > width else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=interpolation), dtype=np.uint8)


def _place_side_by_side(pictures: Sequence[Pixels], width: int) -> Pixels:
    first, second = (_resize_to_width(p, (width - 4) // 2) for p in pictures)
    gap = np.full((first.shape[0], width - first.shape[1] - second.shape[1], 3), PAPER_RGB, dtype=np.uint8)
    return np.hstack([first, gap, second])


def _render_caption(lines: Sequence[str], width: int) -> Pixels:
    px = 17
    strip = np.full((len(lines) * 26 + 12, width, 3), PAPER_RGB, dtype=np.uint8)
    for k, line in enumerate(lines):
        colour = EVIDENCE_RGB if line.startswith("answer:") else INK_RGB
        blend(strip, colour, render_text(line, "sans", px).alpha, 8, 8 + k * 26)
    return strip
