"""Variants of photographs with true references: crops, mirror images, other sizes, light and paint, drawn from names.

A thing that a crop cuts through stays as a crowd, which nobody is asked to count; what the frame hardly holds any more
is taken away only where nothing of it can be made out.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image as Pil
from pycocotools import mask as rle

from pixelis.data.importers.coco import outline
from pixelis.data.importers.outcome import seed_of
from pixelis.data.photographs import Photograph, pixels_of
from pixelis.geometry import Mask, Size
from pixelis.world.palette import PAINTS
from pixelis.world.vocabulary import choose

WHOLE, GONE = 0.7, 0.002
"""Shares of a thing that must be left for it to count as one, and under which nothing of it is left."""
SIDES = (448, 512, 576, 640, 720)
QUALITY = 92
PAINTED = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "white", "red", "blue", "green", "yellow")
LEAST_PAINTED = 0.004
"""Share of the picture that the box of a thing takes up to be worth a coat."""
SHADING = 0.55
"""How much of a thing's own light and shade shows through."""


class Change(NamedTuple):
    """What is done to a photograph."""

    box: tuple[float, float, float, float]
    """The part that is kept."""
    mirrored: bool
    side: int
    """The longer side afterwards."""
    light: float
    gamma: float


def change(name: str, number: int) -> Change:
    """The change of a variant; number 0 keeps the frame as it is."""
    rng = np.random.default_rng(seed_of("variant", name, number))
    share = float(rng.uniform(0.55, 1.0)) if number else 1.0
    across = min(share * float(rng.uniform(0.9, 1.1)), 1.0) if number else 1.0
    left, top = rng.uniform(0.0, 1.0 - across), rng.uniform(0.0, 1.0 - share)
    light = float(rng.uniform(0.8, 1.2)) if number else 1.0
    return Change(
        (float(left), float(top), float(left + across), float(top + share)),
        bool(number % 2),
        int(SIDES[int(rng.integers(len(SIDES)))]) if number else 640,
        light,
        float(rng.uniform(0.85, 1.15)) if number else 1.0,
    )


def variant(photograph: Photograph, number: int) -> Photograph:
    """A changed copy with its things where they then lie."""
    made = change(photograph.name, number)
    pixels = pixels_of(photograph)
    height, width = pixels.shape[:2]
    x0, y0, x1, y1 = (round(v * s) for v, s in zip(made.box, (width, height) * 2, strict=True))
    shrink = made.side / max(x1 - x0, y1 - y0)
    size = Size(max(round((x1 - x0) * shrink), 8), max(round((y1 - y0) * shrink), 8))

    def moved(array: NDArray[Any], how: int) -> NDArray[Any]:
        cut = array[y0:y1, x0:x1]
        cut = cut[:, ::-1] if made.mirrored else cut
        return np.asarray(cv2.resize(np.ascontiguousarray(cut), tuple(size), interpolation=how))

    picture = moved(pixels, cv2.INTER_AREA if shrink < 1.0 else cv2.INTER_CUBIC)
    lit = np.clip((picture.astype(np.float32) / 255) ** made.gamma * made.light, 0, 1)
    things = []
    for thing in photograph.things:
        kept = _thing(thing, Size(width, height), moved, shrink)
        if kept is not None:
            things.append(kept)
    shown = (lit * 255 + 0.5).astype(np.uint8)
    if number and number % 2 == 0:
        shown = painted(shown, things, np.random.default_rng(seed_of("paint", photograph.name, number)))
    return photograph._replace(
        name=f"{photograph.name}~{number:02d}",
        content=_jpeg(shown),
        suffix=".jpg",
        width=size.width,
        height=size.height,
        things=tuple(things),
    )


def painted(pixels: NDArray[np.uint8], things: list[dict[str, Any]], rng: Generator) -> NDArray[np.uint8]:
    """One or two things in another paint, in their light and shade: most things in photographs are grey or brown.

    People keep their colours; what colour a thing then has is measured from the picture like any other.
    """
    fits = [t for t in things if t["segmentation"] and t["name"] != "person" and not t["iscrowd"]]
    fits = [t for t in fits if t["bbox"][2] * t["bbox"][3] >= LEAST_PAINTED * pixels.shape[0] * pixels.shape[1]]
    lab = cv2.cvtColor(pixels.astype(np.float32) / np.float32(255), cv2.COLOR_RGB2LAB)
    for k in rng.permutation(len(fits))[:2]:
        inside = rle.decode(fits[int(k)]["segmentation"]).astype(np.float32)
        tone = np.array(choose(rng, [rgb for name in PAINTED for rgb in PAINTS[name]]), np.float32)
        target = cv2.cvtColor(tone.reshape(1, 1, 3) / np.float32(255), cv2.COLOR_RGB2LAB)[0, 0]
        middle = float(np.median(lab[..., 0][inside > 0]))
        coat = np.empty_like(lab)
        coat[..., 0] = np.clip(target[0] + SHADING * (lab[..., 0] - middle), 0, 100)
        coat[..., 1:] = target[1:]
        cover = cv2.GaussianBlur(inside, (0, 0), 1.0)[..., None]
        lab = lab * (1 - cover) + coat * cover
    rgb = cv2.cvtColor(lab.astype(np.float32), cv2.COLOR_LAB2RGB)
    return (np.clip(rgb, 0, 1) * 255 + 0.5).astype(np.uint8)


def _thing(thing: dict[str, Any], size: Size, moved: Any, shrink: float) -> dict[str, Any] | None:
    """A thing after a change; None where nothing of it is left."""
    found = outline(thing, size, thing["name"]).footprint
    boxed = not isinstance(found, Mask)
    if isinstance(found, Mask):
        array = found.array.astype(np.uint8)
    else:
        array = np.zeros((size.height, size.width), np.uint8)
        left, top, right, bottom = found.box_unit  # type: ignore[union-attr, misc]
        array[
            round(top * size.height) : round(bottom * size.height), round(left * size.width) : round(right * size.width)
        ] = 1
    after = moved(array, cv2.INTER_NEAREST)
    share = float(after.sum()) / max(float(array.sum()) * shrink**2, 1.0)
    if share < GONE or not after.any():
        return None
    ys, xs = np.nonzero(after)
    box = [int(xs.min()), int(ys.min()), int(xs.max() - xs.min() + 1), int(ys.max() - ys.min() + 1)]
    cut_off = share < WHOLE
    packed = rle.encode(np.asfortranarray(after))
    runs = {"size": [int(v) for v in packed["size"]], "counts": packed["counts"].decode("ascii")}
    crowd = int(bool(thing["iscrowd"]) or cut_off)
    return {"name": thing["name"], "segmentation": [] if boxed else runs, "bbox": box, "iscrowd": crowd}


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Pil.fromarray(pixels).save(out, format="JPEG", quality=QUALITY)
    return out.getvalue()
