"""Quality of SEG: mean IoU against hand-drawn polygons, with a box prompt and with one click.

Polygons are in labelme's format, one JSON file per image, in any folder. Shapes with the same label and group number
are one object; labels that begin with an underscore are skipped.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Mask, PixelBox, Size
from pixelis.media import MediaSet, Medium, open_media
from pixelis.metrics.overlap import mask_iou
from pixelis.tools.results import ToolCall
from pixelis.tools.toolbox import Toolbox

MIN_PIXELS = 400
"""Smaller objects are skipped, as in COCO's evaluation of small objects."""


class Polygon(NamedTuple):
    """One annotated object."""

    picture: str
    label: str
    truth: NDArray[np.bool_]


class SegScore(NamedTuple):
    """IoU of one object for each kind of prompt; 0 if SEG found nothing."""

    picture: str
    label: str
    pixels: int
    box: float
    click: float


def read_labelme(file: Path) -> tuple[Medium, list[Polygon]]:
    """An image and its objects; ConfigError if the file is not a labelme file."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        picture = open_media(file.parent / Path(record["imagePath"].replace("\\", "/")).name)
        objects: dict[tuple[str, Any], NDArray[np.uint8]] = defaultdict(
            lambda: np.zeros((picture.size.height, picture.size.width), np.uint8)
        )
        for number, shape in enumerate(record["shapes"]):
            if shape.get("shape_type", "polygon") != "polygon" or shape["label"].startswith("_"):
                continue
            group = shape.get("group_id")
            corners = np.round(np.array(shape["points"], dtype=float)).astype(np.int32)
            cv2.fillPoly(objects[shape["label"], number if group is None else f"group {group}"], [corners], 1)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, MediaError) as error:
        raise ConfigError(f"{file}: not a labelme file with its image beside it ({error})") from error
    return picture, [Polygon(picture.describe(), label, mask > 0) for (label, _), mask in objects.items()]


def score_polygons(folder: Path, toolbox: Toolbox, *, limit: int | None = None) -> list[SegScore]:
    """The scores of every object in a folder, in order of file names."""
    files = sorted(folder.rglob("*.json"))
    scores: list[SegScore] = []
    for file in files:
        try:
            picture, polygons = read_labelme(file)
        except ConfigError:
            if len(files) == 1:
                raise
            continue  # another JSON file among the annotations
        media = MediaSet((picture,))
        for polygon in polygons:
            if polygon.truth.sum() >= MIN_PIXELS:
                scores.append(_score(toolbox, media, polygon))
            if limit is not None and len(scores) >= limit:
                return scores
    if not scores:
        raise ConfigError(f"{folder} contains no labelme polygons of at least {MIN_PIXELS} pixels")
    return scores


def _score(toolbox: Toolbox, media: MediaSet, polygon: Polygon) -> SegScore:
    size = Size(polygon.truth.shape[1], polygon.truth.shape[0])
    ys, xs = np.nonzero(polygon.truth)
    bounding_box = PixelBox(float(xs.min()), float(ys.min()), float(xs.max() + 1), float(ys.max() + 1)).to_unit(size)
    depth = cv2.distanceTransform(np.pad(polygon.truth.astype(np.uint8), 1), cv2.DIST_L2, 5)[1:-1, 1:-1]
    y, x = np.unravel_index(int(np.argmax(depth)), depth.shape)
    click = [(float(x) + 0.5) / size.width, (float(y) + 0.5) / size.height]
    return SegScore(
        polygon.picture,
        polygon.label,
        int(polygon.truth.sum()),
        _iou(toolbox, media, list(bounding_box), polygon.truth),
        _iou(toolbox, media, click, polygon.truth),
    )


def _iou(toolbox: Toolbox, media: MediaSet, target: list[float], truth: NDArray[np.bool_]) -> float:
    result = toolbox.run(ToolCall(tool="SEG", args={"target": target}), media).result
    if not result.ok or not isinstance(result.footprints[0], Mask):
        return 0.0
    grid = result.footprints[0].array.astype(np.uint8)
    return mask_iou(cv2.resize(grid, truth.shape[::-1], interpolation=cv2.INTER_LINEAR) > 0, truth)
