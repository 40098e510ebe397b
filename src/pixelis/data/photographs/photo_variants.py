"""Variants of photographs with exact references: crops, mirror images, other sizes, light and paint, seeded by names.

A thing that a crop truncates becomes a crowd, which is never counted; one of which almost nothing is left is removed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pycocotools import mask as rle

from pixelis.core.geometry import Mask, Size
from pixelis.data.importers.coco import parse_outline
from pixelis.data.importers.import_options import stable_seed
from pixelis.data.photographs.photo_sources import Photograph, decode_pixels, encode_jpeg
from pixelis.world.palette import PAINTS
from pixelis.world.vocabulary import choose

MIN_COUNTABLE_SHARE, MIN_VISIBLE_SHARE = 0.7, 0.002
"""Visible shares under which a thing becomes a crowd, and under which it is removed."""
SIDES = (448, 512, 576, 640, 720)
PAINT_NAMES = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "white", "red", "blue", "green", "yellow")
MIN_PAINTED_SHARE = 0.004
"""Minimum share of the picture in the box of a thing that is painted."""
SHADING = 0.55
"""How much of a thing's own light and shade is kept."""


class VariantParameters(NamedTuple):
    """The changes to a photograph."""

    crop_box: tuple[float, float, float, float]
    """The part that is kept, in shares of the frame."""
    mirrored: bool
    long_side: int
    """The longer side afterwards."""
    brightness: float
    gamma: float


def draw_parameters(name: str, number: int) -> VariantParameters:
    """The parameters of a variant; number 0 keeps the frame."""
    rng = np.random.default_rng(stable_seed("variant", name, number))
    height_share = float(rng.uniform(0.55, 1.0)) if number else 1.0
    width_share = min(height_share * float(rng.uniform(0.9, 1.1)), 1.0) if number else 1.0
    left, top = rng.uniform(0.0, 1.0 - width_share), rng.uniform(0.0, 1.0 - height_share)
    brightness = float(rng.uniform(0.8, 1.2)) if number else 1.0
    return VariantParameters(
        (float(left), float(top), float(left + width_share), float(top + height_share)),
        bool(number % 2),
        int(SIDES[int(rng.integers(len(SIDES)))]) if number else 640,
        brightness,
        float(rng.uniform(0.85, 1.15)) if number else 1.0,
    )


def make_variant(photograph: Photograph, number: int) -> Photograph:
    """A changed copy with its things transformed."""
    parameters = draw_parameters(photograph.name, number)
    pixels = decode_pixels(photograph)
    height, width = pixels.shape[:2]
    x0, y0, x1, y1 = (round(v * s) for v, s in zip(parameters.crop_box, (width, height) * 2, strict=True))
    scale = parameters.long_side / max(x1 - x0, y1 - y0)
    size = Size(max(round((x1 - x0) * scale), 8), max(round((y1 - y0) * scale), 8))

    def transform(array: NDArray[Any], interpolation: int) -> NDArray[Any]:
        crop = array[y0:y1, x0:x1]
        crop = crop[:, ::-1] if parameters.mirrored else crop
        return np.asarray(cv2.resize(np.ascontiguousarray(crop), tuple(size), interpolation=interpolation))

    picture = transform(pixels, cv2.INTER_AREA if scale < 1.0 else cv2.INTER_CUBIC)
    adjusted = np.clip((picture.astype(np.float32) / 255) ** parameters.gamma * parameters.brightness, 0, 1)
    transformed = (_transform_thing(thing, Size(width, height), transform, scale) for thing in photograph.things)
    things = [thing for thing in transformed if thing is not None]
    output = (adjusted * 255 + 0.5).astype(np.uint8)
    if number and number % 2 == 0:
        output = paint_things(output, things, np.random.default_rng(stable_seed("paint", photograph.name, number)))
    return photograph._replace(
        name=f"{photograph.name}~{number:02d}",
        content=encode_jpeg(output),
        suffix=".jpg",
        width=size.width,
        height=size.height,
        things=tuple(things),
    )


def paint_things(pixels: NDArray[np.uint8], things: list[dict[str, Any]], rng: Generator) -> NDArray[np.uint8]:
    """Repaint one or two things, keeping their light and shade: most things in photographs are grey or brown.

    People keep their colours. The resulting colour of a thing is measured from the picture like any other.
    """
    min_area = MIN_PAINTED_SHARE * pixels.shape[0] * pixels.shape[1]
    candidates = [
        thing for thing in things
        if thing["segmentation"] and thing["name"] != "person" and not thing["iscrowd"]
        and thing["bbox"][2] * thing["bbox"][3] >= min_area
    ]  # fmt: skip
    lab = cv2.cvtColor(pixels.astype(np.float32) / np.float32(255), cv2.COLOR_RGB2LAB)
    for k in rng.permutation(len(candidates))[:2]:
        mask = rle.decode(candidates[int(k)]["segmentation"]).astype(np.float32)
        paint_rgb = np.array(choose(rng, [rgb for name in PAINT_NAMES for rgb in PAINTS[name]]), np.float32)
        target = cv2.cvtColor(paint_rgb.reshape(1, 1, 3) / np.float32(255), cv2.COLOR_RGB2LAB)[0, 0]
        median_lightness = float(np.median(lab[..., 0][mask > 0]))
        coat = np.empty_like(lab)
        coat[..., 0] = np.clip(target[0] + SHADING * (lab[..., 0] - median_lightness), 0, 100)
        coat[..., 1:] = target[1:]
        alpha = cv2.GaussianBlur(mask, (0, 0), 1.0)[..., None]
        lab = lab * (1 - alpha) + coat * alpha
    rgb = cv2.cvtColor(lab.astype(np.float32), cv2.COLOR_LAB2RGB)
    return (np.clip(rgb, 0, 1) * 255 + 0.5).astype(np.uint8)


def _transform_thing(thing: dict[str, Any], size: Size, transform: Any, scale: float) -> dict[str, Any] | None:
    """A thing after the transform; None if almost nothing of it is left."""
    footprint = parse_outline(thing, size, thing["name"]).footprint
    is_box = not isinstance(footprint, Mask)
    if isinstance(footprint, Mask):
        array = footprint.array.astype(np.uint8)
    else:
        array = np.zeros((size.height, size.width), np.uint8)
        left, top, right, bottom = footprint.box_unit  # type: ignore[union-attr, misc]
        rows = slice(round(top * size.height), round(bottom * size.height))
        array[rows, round(left * size.width) : round(right * size.width)] = 1
    transformed = transform(array, cv2.INTER_NEAREST)
    share = float(transformed.sum()) / max(float(array.sum()) * scale**2, 1.0)
    if share < MIN_VISIBLE_SHARE or not transformed.any():
        return None
    ys, xs = np.nonzero(transformed)
    box = [int(xs.min()), int(ys.min()), int(xs.max() - xs.min() + 1), int(ys.max() - ys.min() + 1)]
    is_truncated = share < MIN_COUNTABLE_SHARE
    encoded = rle.encode(np.asfortranarray(transformed))
    runs = {"size": [int(v) for v in encoded["size"]], "counts": encoded["counts"].decode("ascii")}
    crowd = int(bool(thing["iscrowd"]) or is_truncated)
    return {"name": thing["name"], "segmentation": [] if is_box else runs, "bbox": box, "iscrowd": crowd}
