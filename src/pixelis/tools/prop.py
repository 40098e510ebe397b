"""PROP: what a region, a track or a frame is like: colour, size, position, shape, orientation, texture, count, motion.

In a box the thing is told apart from its ground first, so that "what colour is the bus" gives the bus and not the sky;
a mask (from SEG) is taken as it is, and a phrase is looked for first, in the box or in the whole frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

import cv2
import numpy as np
from pydantic import Field

from pixelis.errors import ToolError
from pixelis.geometry import Box, Footprint, Score, Value, rounded
from pixelis.tools.backends import regions
from pixelis.tools.backends.signals import (
    DETECTION_FLOOR,
    LEAST_SPEED,
    box_motion,
    certainty,
    detections,
    track_motion,
)
from pixelis.tools.base import Observation, Scene, Tool, crop
from pixelis.tools.colours import dominant, membership
from pixelis.tools.grounding import Phrase, things, understand
from pixelis.tools.prop_region import Attribute, PropArgs, Region, region_of, thing_of
from pixelis.tools.results import ToolIdentity
from pixelis.tools.shapes import orientation_deg, shape_of, texture_of
from pixelis.weights import available, fingerprint

OF_A_FRAME: tuple[Attribute, ...] = ("colour", "texture", "brightness")
OF_A_REGION: tuple[Attribute, ...] = ("colour", "size", "position", "shape", "orientation", "texture", "brightness")
COMPASS = ("right", "up right", "up", "up left", "left", "down left", "down", "down right")


class Property(Value):
    """One attribute: a word, the measures behind it, and how sure the word is."""

    value: str
    confidence: Score
    measures: dict[str, float] = Field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.value} ({self.confidence:.2f})"


class PropOutput(Value):
    """What was found, by attribute."""

    region: Literal["frame", "box", "mask", "track"]
    frame: int
    properties: dict[str, Property]


class Prop(Tool[PropArgs]):
    """Attributes by measurement; the detector helps to count."""

    name = "PROP"
    summary = (
        "Describe a region, a track or the frame: colour, size, position, shape, texture, count, speed, direction."
    )
    Args = PropArgs
    Output = PropOutput
    version = "3"

    def identity(self) -> ToolIdentity:
        weights = fingerprint("nanodet") if available("nanodet") else ""
        backend = "opencv+nanodet" if weights else "opencv"
        return ToolIdentity(tool=self.name, version=self.version, backend=backend, weights=weights)

    def look(self, args: PropArgs, scene: Scene) -> Observation:
        region = region_of(args, scene)
        wanted = args.attributes or applying(args)
        found = measured([name for name in wanted if name == "count"], region, args, scene)
        if len(found) < len(set(wanted)):
            region = thing_of(args, region, scene) if args.of and region.kind in ("frame", "box") else region
            found |= measured([name for name in wanted if name != "count"], region, args, scene)
            found = {name: found[name] for name in wanted}  # in the order of the question
        return Observation(
            text="; ".join(said(name, value) for name, value in found.items()),
            output=PropOutput(region=region.kind, frame=region.index, properties=found),
            footprints=(footprint(args, region),),
            confidence=float(np.mean([value.confidence for value in found.values()])),
        )


def applying(args: PropArgs) -> tuple[Attribute, ...]:
    whole = args.box is None and args.mask is None and args.track is None
    chosen: tuple[Attribute, ...] = OF_A_FRAME if whole else OF_A_REGION
    if args.track is not None and len(args.track.frames) > 1:
        chosen = (*chosen, "speed", "direction")
    return ("count",) if args.of and whole else (*chosen, "count") if args.of else chosen


def said(name: str, found: Property) -> str:
    """One attribute as a policy reads it."""
    measures = found.measures
    if name == "size":
        return f"size: {found.value} ({measures['area_share']:.3g} of the frame)"
    if name == "position":
        return f"position: {found.value} ({measures['x']:.2f}, {measures['y']:.2f})"
    if name == "orientation" and "degrees" in measures:
        return f"orientation: {found.value}, {measures['degrees']:.0f}° ({found.confidence:.2f})"
    if name == "speed":
        return (
            f"speed: {measures['widths_per_s']:.2f} widths/s, {measures['px_per_s']:.0f} px/s ({found.confidence:.2f})"
        )
    return f"{name}: {found}"


def footprint(args: PropArgs, region: Region) -> Footprint:
    """The region that was looked at, as it was given."""
    if args.mask is not None:
        return args.mask.mask.model_copy(update={"frame": region.index})
    if args.track is not None:
        return args.track.track
    x0, y0, x1, y1 = region.box_unit
    return Box(frame=region.index, x0=x0, y0=y0, x1=x1, y1=y1)


def measured(wanted: Sequence[Attribute], region: Region, args: PropArgs, scene: Scene) -> dict[str, Property]:
    found: dict[str, Property] = {}
    for name in wanted:
        if name in found:
            continue
        if name in ("speed", "direction"):
            found |= {k: v for k, v in motion(region, args, scene).items() if k in wanted}
        else:
            found[name] = count(region, args.of, scene) if name == "count" else MEASURES[name](region)
    return found


def colour(region: Region) -> Property:
    shares = dominant(np.asarray(region.crop)[region.figure])
    (name, share), *others = shares
    also = [other for other, part in others[:2] if part > 0.25]
    return Property(
        value=" and ".join([name, *also]),
        confidence=rounded(min(share + sum(part for other, part in others if other in also), 1.0)),
        measures={other: part for other, part in shares[:4] if part >= 0.02},
    )


def size(region: Region) -> Property:
    x0, y0, x1, y1 = region.box_unit
    share = region.area_unit
    word = next(w for w, most in (("tiny", 0.004), ("small", 0.05), ("medium", 0.25), ("large", 2.0)) if share < most)
    sides = {"width_px": round((x1 - x0) * region.size.width), "height_px": round((y1 - y0) * region.size.height)}
    measures = {"area_share": rounded(share), "area_px": round(share * region.size.pixels), **sides}
    return Property(value=word, confidence=1.0, measures=measures)


def position(region: Region) -> Property:
    """One of nine fields; less sure near a border between two of them."""
    x, y = region.centre
    across = ("left", "", "right")[min(int(x * 3), 2)]
    down = ("top", "", "bottom")[min(int(y * 3), 2)]
    margin = min(abs(v - line) for v in (x, y) for line in (1 / 3, 2 / 3))
    return Property(
        value=f"{down} {across}".strip() or "centre",
        confidence=rounded(min(0.5 + 10.0 * margin, 1.0)),
        measures={"x": rounded(x), "y": rounded(y)},
    )


def shape(region: Region) -> Property:
    found = shape_of(region.figure)
    sure = found.score if found.name == "irregular" else (found.score - 0.7) / 0.28
    return Property(
        value=found.name,
        confidence=rounded(min(max(sure, 0.0), 1.0) * (1.0 if region.apart else 0.3)),
        measures={"overlap": found.score},
    )


def orientation(region: Region) -> Property:
    degrees = orientation_deg(region.figure)
    sure, turned = 0.8 if region.apart else 0.3, abs(degrees or 0.0)
    if degrees is None:
        return Property(value="none", confidence=sure)
    word = "horizontal" if turned < 22.5 else "vertical" if turned > 67.5 else "rising" if degrees > 0 else "falling"
    return Property(value=word, confidence=sure, measures={"degrees": degrees})


def brightness(region: Region) -> Property:
    lightness = cv2.cvtColor(region.crop, cv2.COLOR_RGB2LAB)[:, :, 0][region.figure]
    mean = float(lightness.mean()) / 255.0
    word = "dark" if mean < 0.33 else "bright" if mean > 0.67 else "medium"
    margin = min(abs(mean - line) for line in (0.33, 0.67))
    return Property(value=word, confidence=rounded(min(0.5 + 5.0 * margin, 1.0)), measures={"lightness": rounded(mean)})


def texture(region: Region) -> Property:
    grey = np.asarray(cv2.cvtColor(region.crop, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    found = texture_of(grey, region.figure)
    measures = {"contrast": found.contrast, "regularity": found.regularity}
    return Property(value=found.name, confidence=rounded(found.confidence), measures=measures)


MEASURES = {
    "colour": colour,
    "size": size,
    "position": position,
    "shape": shape,
    "orientation": orientation,
    "texture": texture,
    "brightness": brightness,
}


def motion(region: Region, args: PropArgs, scene: Scene) -> dict[str, Property]:
    """Speed and direction, in frame widths a second: along the track, or of the pixels in the box."""
    scene.require_clip("PROP, for speed and direction,")
    if args.track is not None and len(args.track.frames) > 1:
        asked = args.frame is not None or args.time_s is not None
        moved = track_motion(scene, args.track.track, region.index if asked else None)
    else:
        moved = box_motion(scene, region.index, region.box_unit)
    (across, down), speed = moved.velocity, moved.speed
    pace = next(
        w for w, most in (("still", LEAST_SPEED), ("slow", 0.15), ("medium", 0.4), ("fast", inf)) if speed < most
    )
    degrees = float(np.rad2deg(np.arctan2(-down, across))) % 360.0
    heading = COMPASS[round(degrees / 45.0) % 8]
    if np.hypot(across, down) < max(LEAST_SPEED, 0.2 * speed):
        heading = "still" if speed < LEAST_SPEED else "to and fro"
    sure = rounded(moved.confidence)
    return {
        "speed": Property(
            value=pace,
            confidence=sure,
            measures={"widths_per_s": rounded(speed), "px_per_s": round(speed * region.size.width, 2)},
        ),
        "direction": Property(
            value=heading,
            confidence=sure,
            measures={"x_per_s": rounded(across), "y_per_s": rounded(down), "degrees": round(degrees, 1)},
        ),
    }


def count(region: Region, of: str | None, scene: Scene) -> Property:
    """How many distinct things there are: of a colour, shape or COCO class, or whatever stands out from the ground."""
    phrase = understand(of or "")
    most = scene.limits.regions
    if of and phrase.is_empty:
        raise ToolError(f"PROP cannot count {of!r}: name a colour, a shape or a COCO class")
    if phrase.classes and available("nanodet"):
        return counted(phrase, region, scene)
    if phrase.classes and not (phrase.colours or phrase.shape):
        raise ToolError(f"PROP counts {of!r} with the detector; run `pixelis models pull nanodet`")
    if phrase.colours:
        found = regions.by_colour(region.crop, phrase.colours, phrase.shape, most)
    else:
        found = regions.by_contrast(region.crop, phrase.shape, most)
    sure = float(np.mean([r.score for r in found])) if found else 0.5
    return Property(value=str(len(found)), confidence=rounded(min(sure, 1.0)), measures={"count": len(found)})


def counted(phrase: Phrase, region: Region, scene: Scene) -> Property:
    """Detections of a class (and colour) whose centre lies in the region; two boxes on one thing count once."""
    frame, kept = scene.frame(region.index), list[float]()
    x0, y0, x1, y1 = region.box_unit
    for detection in things(detections(scene, region.index, threshold=DETECTION_FLOOR), phrase):
        box = detection.box_px.to_unit(region.size)
        pixels = crop(frame, box)[0]
        inside = x0 <= (box[0] + box[2]) / 2 <= x1 and y0 <= (box[1] + box[3]) / 2 <= y1
        coloured = not phrase.colours or max(float(membership(pixels, c).mean()) for c in phrase.colours) >= 0.15
        if inside and coloured:
            kept.append(detection.score)
    sure = float(np.mean([certainty(score) for score in kept])) if kept else 0.6
    return Property(value=str(len(kept)), confidence=rounded(sure), measures={"count": len(kept)})
