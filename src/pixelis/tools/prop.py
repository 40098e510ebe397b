"""PROP: properties of a region, a track or a frame: colour, size, position, shape, orientation, texture, count, motion.

In a box, the object is separated from its background first, so that "what colour is the bus" gives the bus and not
the sky; a mask (from SEG) is used as it is; a phrase is located first, in the box or in the whole frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

import cv2
import numpy as np
from pydantic import Field

from pixelis.core.errors import ToolError
from pixelis.core.geometry import Box, Footprint, Score, Value, round_unit
from pixelis.tools.backends.temporal_signals import MIN_SPEED, box_motion, certainty, detections, track_motion
from pixelis.tools.base import Observation, Scene, Tool, crop
from pixelis.tools.results import ToolIdentity
from pixelis.tools.vision import regions
from pixelis.tools.vision.colours import colour_mask, dominant_colours
from pixelis.tools.vision.grounding import Phrase, match_detections, parse_phrase
from pixelis.tools.vision.region_properties import Attribute, PropArgs, PropRegion, locate_target, resolve_region
from pixelis.tools.vision.shapes import classify_shape, classify_texture, orientation_deg
from pixelis.weights import fingerprint, is_available

FRAME_ATTRIBUTES: tuple[Attribute, ...] = ("colour", "texture", "brightness")
REGION_ATTRIBUTES: tuple[Attribute, ...] = (
    "colour", "size", "position", "shape", "orientation", "texture", "brightness",
)  # fmt: skip
COMPASS = ("right", "up right", "up", "up left", "left", "down left", "down", "down right")


class Property(Value):
    """One attribute: a word, the measures behind it, and its confidence."""

    value: str
    confidence: Score
    measures: dict[str, float] = Field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.value} ({self.confidence:.2f})"


class PropOutput(Value):
    """The properties, by attribute."""

    region: Literal["frame", "box", "mask", "track"]
    frame: int
    properties: dict[str, Property]


class Prop(Tool[PropArgs]):
    """Attributes by measurement; counting uses the detector."""

    name = "PROP"
    summary = (
        "Describe a region, a track or the frame: colour, size, position, shape, texture, count, speed, direction."
    )
    Args = PropArgs
    Output = PropOutput
    version = "3"

    def identity(self) -> ToolIdentity:
        weights = fingerprint("nanodet") if is_available("nanodet") else ""
        backend = "opencv+nanodet" if weights else "opencv"
        return ToolIdentity(tool=self.name, version=self.version, backend=backend, weights=weights)

    def look(self, args: PropArgs, scene: Scene) -> Observation:
        region = resolve_region(args, scene)
        attributes = args.attributes or default_attributes(args)
        properties = measure([name for name in attributes if name == "count"], region, args, scene)
        if len(properties) < len(set(attributes)):
            region = locate_target(args, region, scene) if args.of and region.kind in ("frame", "box") else region
            properties |= measure([name for name in attributes if name != "count"], region, args, scene)
            properties = {name: properties[name] for name in attributes}  # in the order of the question
        return Observation(
            text="; ".join(format_property(name, value) for name, value in properties.items()),
            output=PropOutput(region=region.kind, frame=region.index, properties=properties),
            footprints=(region_footprint(args, region),),
            confidence=float(np.mean([value.confidence for value in properties.values()])),
        )


def default_attributes(args: PropArgs) -> tuple[Attribute, ...]:
    is_whole_frame = args.box is None and args.mask is None and args.track is None
    attributes: tuple[Attribute, ...] = FRAME_ATTRIBUTES if is_whole_frame else REGION_ATTRIBUTES
    if args.track is not None and len(args.track.frames) > 1:
        attributes = (*attributes, "speed", "direction")
    return ("count",) if args.of and is_whole_frame else (*attributes, "count") if args.of else attributes


def format_property(name: str, prop: Property) -> str:
    """One attribute as a policy reads it."""
    measures = prop.measures
    if name == "size":
        return f"size: {prop.value} ({measures['area_share']:.3g} of the frame)"
    if name == "position":
        return f"position: {prop.value} ({measures['x']:.2f}, {measures['y']:.2f})"
    if name == "orientation" and "degrees" in measures:
        return f"orientation: {prop.value}, {measures['degrees']:.0f}° ({prop.confidence:.2f})"
    if name == "speed":
        widths, pixels = measures["widths_per_s"], measures["px_per_s"]
        return f"speed: {widths:.2f} widths/s, {pixels:.0f} px/s ({prop.confidence:.2f})"
    return f"{name}: {prop}"


def region_footprint(args: PropArgs, region: PropRegion) -> Footprint:
    """The measured region, in the form of the arguments."""
    if args.mask is not None:
        return args.mask.mask.model_copy(update={"frame": region.index})
    if args.track is not None:
        return args.track.track
    x0, y0, x1, y1 = region.box_unit
    return Box(frame=region.index, x0=x0, y0=y0, x1=x1, y1=y1)


def measure(attributes: Sequence[Attribute], region: PropRegion, args: PropArgs, scene: Scene) -> dict[str, Property]:
    properties: dict[str, Property] = {}
    for name in attributes:
        if name in properties:
            continue
        if name in ("speed", "direction"):
            properties |= {k: v for k, v in motion(region, args, scene).items() if k in attributes}
        else:
            properties[name] = count(region, args.of, scene) if name == "count" else MEASURES[name](region)
    return properties


def colour(region: PropRegion) -> Property:
    shares = dominant_colours(np.asarray(region.crop)[region.figure])
    (name, share), *others = shares
    secondary = [other for other, other_share in others[:2] if other_share > 0.25]
    total = share + sum(other_share for other, other_share in others if other in secondary)
    measures = {other: other_share for other, other_share in shares[:4] if other_share >= 0.02}
    return Property(value=" and ".join([name, *secondary]), confidence=round_unit(min(total, 1.0)), measures=measures)


def size(region: PropRegion) -> Property:
    x0, y0, x1, y1 = region.box_unit
    share = region.area_unit
    word = next(w for w, upper in (("tiny", 0.004), ("small", 0.05), ("medium", 0.25), ("large", 2.0)) if share < upper)
    sides = {"width_px": round((x1 - x0) * region.size.width), "height_px": round((y1 - y0) * region.size.height)}
    measures = {"area_share": round_unit(share), "area_px": round(share * region.size.pixels), **sides}
    return Property(value=word, confidence=1.0, measures=measures)


def position(region: PropRegion) -> Property:
    """One of nine fields; less confident near a border between two of them."""
    x, y = region.centre
    across = ("left", "", "right")[min(int(x * 3), 2)]
    down = ("top", "", "bottom")[min(int(y * 3), 2)]
    margin = min(abs(v - line) for v in (x, y) for line in (1 / 3, 2 / 3))
    return Property(
        value=f"{down} {across}".strip() or "centre",
        confidence=round_unit(min(0.5 + 10.0 * margin, 1.0)),
        measures={"x": round_unit(x), "y": round_unit(y)},
    )


def shape(region: PropRegion) -> Property:
    match = classify_shape(region.figure)
    confidence = match.score if match.name == "irregular" else (match.score - 0.7) / 0.28
    confidence = min(max(confidence, 0.0), 1.0) * (1.0 if region.is_segmented else 0.3)
    return Property(value=match.name, confidence=round_unit(confidence), measures={"overlap": match.score})


def orientation(region: PropRegion) -> Property:
    degrees = orientation_deg(region.figure)
    confidence, tilt = 0.8 if region.is_segmented else 0.3, abs(degrees or 0.0)
    if degrees is None:
        return Property(value="none", confidence=confidence)
    word = "horizontal" if tilt < 22.5 else "vertical" if tilt > 67.5 else "rising" if degrees > 0 else "falling"
    return Property(value=word, confidence=confidence, measures={"degrees": degrees})


def brightness(region: PropRegion) -> Property:
    lightness = cv2.cvtColor(region.crop, cv2.COLOR_RGB2LAB)[:, :, 0][region.figure]
    mean = float(lightness.mean()) / 255.0
    word = "dark" if mean < 0.33 else "bright" if mean > 0.67 else "medium"
    confidence = min(0.5 + 5.0 * min(abs(mean - line) for line in (0.33, 0.67)), 1.0)
    return Property(value=word, confidence=round_unit(confidence), measures={"lightness": round_unit(mean)})


def texture(region: PropRegion) -> Property:
    grey = np.asarray(cv2.cvtColor(region.crop, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    texture_match = classify_texture(grey, region.figure)
    measures = {"contrast": texture_match.contrast, "regularity": texture_match.regularity}
    return Property(value=texture_match.name, confidence=round_unit(texture_match.confidence), measures=measures)


MEASURES = {m.__name__: m for m in (colour, size, position, shape, orientation, texture, brightness)}


def motion(region: PropRegion, args: PropArgs, scene: Scene) -> dict[str, Property]:
    """Speed and direction, in frame widths per second: along the track, or of the pixels in the box."""
    scene.require_clip("PROP, for speed and direction,")
    if args.track is not None and len(args.track.frames) > 1:
        frame_specified = args.frame is not None or args.time_s is not None
        estimate = track_motion(scene, args.track.track, region.index if frame_specified else None)
    else:
        estimate = box_motion(scene, region.index, region.box_unit)
    (across, down), speed = estimate.velocity, estimate.speed
    paces = (("still", MIN_SPEED), ("slow", 0.15), ("medium", 0.4), ("fast", inf))
    pace = next(word for word, upper in paces if speed < upper)
    degrees = float(np.rad2deg(np.arctan2(-down, across))) % 360.0
    heading = COMPASS[round(degrees / 45.0) % 8]
    if np.hypot(across, down) < max(MIN_SPEED, 0.2 * speed):
        heading = "still" if speed < MIN_SPEED else "to and fro"
    confidence = round_unit(estimate.confidence)
    rates = {"widths_per_s": round_unit(speed), "px_per_s": round(speed * region.size.width, 2)}
    vector = {"x_per_s": round_unit(across), "y_per_s": round_unit(down), "degrees": round(degrees, 1)}
    return {
        "speed": Property(value=pace, confidence=confidence, measures=rates),
        "direction": Property(value=heading, confidence=confidence, measures=vector),
    }


def count(region: PropRegion, of: str | None, scene: Scene) -> Property:
    """Number of distinct objects of a colour, shape or COCO class, or of those that stand out from the background."""
    phrase = parse_phrase(of or "")
    if of and phrase.is_empty:
        raise ToolError(f"PROP cannot count {of!r}: name a colour, a shape or a COCO class")
    if phrase.classes and is_available("nanodet"):
        return count_detections(phrase, region, scene)
    if phrase.classes and not (phrase.colours or phrase.shape):
        raise ToolError(f"PROP counts {of!r} with the detector; run `pixelis models pull nanodet`")
    matches = regions.find_regions(region.crop, phrase.colours, phrase.shape, scene.limits.regions)
    return counted([match.score for match in matches], default=0.5)


def counted(scores: list[float], *, default: float) -> Property:
    """The number of things with these scores; `default` is the confidence in a count of none."""
    confidence = min(float(np.mean(scores)), 1.0) if scores else default
    return Property(value=str(len(scores)), confidence=round_unit(confidence), measures={"count": len(scores)})


def count_detections(phrase: Phrase, region: PropRegion, scene: Scene) -> Property:
    """Detections of a class (and colour) whose centre lies in the region; two boxes on one object count once."""
    frame, scores = scene.frame(region.index), list[float]()
    x0, y0, x1, y1 = region.box_unit
    for detection in match_detections(detections(scene, region.index), phrase):
        box = detection.box_px.to_unit(region.size)
        pixels = crop(frame, box)[0]
        is_inside = x0 <= (box[0] + box[2]) / 2 <= x1 and y0 <= (box[1] + box[3]) / 2 <= y1
        has_colour = not phrase.colours or max(float(colour_mask(pixels, c).mean()) for c in phrase.colours) >= 0.15
        if is_inside and has_colour:
            scores.append(certainty(detection.score))
    return counted(scores, default=0.6)
