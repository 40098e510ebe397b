"""Importer of COCO instances: polygons, run lengths and crowds as masks, and questions about them.

The file is read picture by picture (see `annotation_index`), since the annotations of 118,000 pictures may not fit into
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as rle

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Box, Footprint, Mask, PixelBox, Size
from pixelis.data.corpus.text_lines import Problem
from pixelis.data.importers.annotation_index import AnnotationIndex
from pixelis.data.importers.dataset_questions import QuestionMaker, count_distinct
from pixelis.data.importers.import_options import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    first_line,
    origin_parameters,
    require_numbers,
    stable_seed,
)
from pixelis.data.importers.photo_questions import PhotoQuestions
from pixelis.data.importers.traces.foreign_files import map_file
from pixelis.items import Reference, Scalar
from pixelis.media import Medium
from pixelis.world.programs import area, get_centre

SLACK_PX = 1.0
"""Outlines that leave the picture by less come from annotation tools and are clipped silently."""
MIN_CENTRE_DISTANCE = 0.1
"""Centres closer than this share of the width are neither left nor right of each other."""
MIN_AREA_RATIO = 1.3
"""The largest thing must be this much larger than the next one."""


class ClippedFootprint(NamedTuple):
    """A footprint, and whether it was clipped to the picture."""

    footprint: Footprint
    was_clipped: bool


def coco_items(source: Path, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items about the pictures of an instances file, at most one of each kind of question per picture."""
    with map_file(source) as content:
        index = AnnotationIndex(source, content)
        yield from index.scan()
        if not index.images:
            raise ConfigError(f"{source} lists no images: want COCO's instances JSON")
        split = source.stem.rpartition("_")[2]  # instances_val2017
        locator = MediaLocator(source, options, folders=(split, f"images/{split}"))
        classes = {key: str(record.get("name", "")) for key, record in index.tables["categories"].items()}
        for image_id in index.images:
            yield from _picture_outcomes(index, image_id, classes, locator)


def _picture_outcomes(
    index: AnnotationIndex, image_id: str, classes: Mapping[str, str], locator: MediaLocator
) -> Iterator[ImportOutcome]:
    where, image = f"{index.source}, image {image_id}", index.images[image_id]
    if image_id not in index.annotation_offsets:
        yield Problem(where, "it has no annotations")
        return
    try:
        medium = open_picture(image, locator)
    except MediaError as error:
        yield Problem(where, str(error))
        return
    references: list[Reference] = []
    for location, record in index.annotations(image_id):
        try:
            thing, was_clipped = annotation_reference(location, record, classes, medium.size, len(references))
        except (ValueError, TypeError, OverflowError) as error:
            yield Problem(location, first_line(error))
            continue
        if was_clipped:
            yield Problem(location, "it goes beyond the picture and was clipped", "changed")
        references.append(thing)
    if not references:
        yield Problem(where, "none of its annotations can be used")
        return
    licence = index.tables["licenses"].get(str(image.get("license")), {})
    facts = origin_parameters(
        "coco", image_id, medium, locator.options,
        licence=str(licence.get("name") or licence.get("url") or ""), watermark=str(image.get("watermark") or ""),
    )  # fmt: skip
    if isinstance(original_name := image.get("photograph"), str):
        facts["photograph"] = original_name  # crops of one photograph stay in one split
    yield from questions(where, image_id, medium, references, facts)
    complete = image.get("complete") is not False
    yield from PhotoQuestions(image_id, medium, references, facts, complete=complete).questions()


def open_picture(image: Mapping[str, Any], locator: MediaLocator) -> Medium:
    """The picture of an entry; MediaError if it is missing or not of the annotated size."""
    name = image.get("file_name")
    if not isinstance(name, str):
        raise MediaError("it has no file_name")
    medium = locator.open(name)
    declared_size = (image.get("width", medium.size.width), image.get("height", medium.size.height))
    if declared_size != tuple(medium.size):
        width, height = declared_size
        raise MediaError(f"{name} has {medium.size.width}x{medium.size.height} pixels, not {width}x{height}")
    return medium


def annotation_reference(
    location: str, record: Mapping[str, Any], classes: Mapping[str, str], size: Size, index: int
) -> tuple[Reference, bool]:
    """An annotation as a reference, and whether it was clipped; ValueError if it is invalid."""
    name = classes.get(str(record.get("category_id")))
    if not name:
        raise ValueError(f"category {record.get('category_id')!r} is not listed")
    crowd = record.get("iscrowd") in (1, True)
    clipped = parse_outline(record, size, f"crowd of {name}" if crowd else name)
    # A member of a table may have no id.
    annotation_id = str(record.get("id", location.rpartition("annotation ")[2]))
    properties: dict[str, Scalar] = {"class": name, "crowd": int(crowd), "annotation": annotation_id}
    return Reference(name=f"thing_{index}", footprint=clipped.footprint, properties=properties), clipped.was_clipped


def parse_outline(record: Mapping[str, Any], size: Size, label: str) -> ClippedFootprint:
    """A mask from polygons or run lengths, or else a box; ValueError if there is neither."""
    shape, box = record.get("segmentation"), record.get("bbox")
    was_clipped = bool(box) and _leaves_frame(require_numbers(box, 4), size)
    if isinstance(shape, dict):
        return ClippedFootprint(require_visible(mask_from_runs(shape, size, label)), was_clipped)
    if isinstance(shape, list) and shape:
        parts = [require_numbers(part) for part in shape]
        if any(len(part) < 6 or len(part) % 2 for part in parts):
            raise ValueError("a polygon has fewer than three corners")
        beyond = any(
            min(p) < -SLACK_PX or max(p[::2]) > size.width + SLACK_PX or max(p[1::2]) > size.height + SLACK_PX
            for p in parts
        )
        clipped_parts = [[float(np.clip(v, 0, size[k % 2])) for k, v in enumerate(part)] for part in parts]
        return ClippedFootprint(mask_from_polygons(clipped_parts, size, label=label), was_clipped or beyond)
    if not box:
        raise ValueError("it has neither an outline nor a box")
    x, y, w, h = require_numbers(box, 4)
    x0, y0, x1, y1 = PixelBox(x, y, x + w, y + h).to_unit(size)
    return ClippedFootprint(Box(x0=x0, y0=y0, x1=x1, y1=y1, label=label), was_clipped)


def mask_from_polygons(parts: list[list[float]], size: Size, **fields: Any) -> Mask:
    """The mask of polygons in pixels; ValueError if it is empty."""
    merged = rle.merge(rle.frPyObjects(parts, size.height, size.width))
    counts = merged["counts"].decode("ascii")
    return require_visible(Mask(width=size.width, height=size.height, counts=counts, **fields))


def mask_from_runs(shape: Mapping[str, Any], size: Size, label: str) -> Mask:
    """A mask from COCO's run lengths, compressed (a string) or plain (a list)."""
    counts, declared_size = shape.get("counts"), shape.get("size")
    if declared_size != [size.height, size.width]:
        picture_size = [size.height, size.width]
        raise ValueError(f"its run lengths are for {declared_size} (height, width), the picture has {picture_size}")
    if isinstance(counts, list):
        runs = [int(v) for v in require_numbers(counts)]
        if min(runs, default=0) < 0 or sum(runs) != size.pixels:
            raise ValueError("its run lengths do not fill the picture")
        encoded = rle.frPyObjects({"counts": runs, "size": declared_size}, size.height, size.width)
        counts = encoded["counts"].decode("ascii")
    return Mask(width=size.width, height=size.height, counts=str(counts), label=label)


def require_visible(mask: Mask) -> Mask:
    if mask.box_unit is None:
        raise ValueError("nothing of its outline lies in the picture")
    return mask


def _leaves_frame(box: list[float], size: Size) -> bool:
    x, y, w, h = box
    return max(-x, -y, x + w - size.width, y + h - size.height) > SLACK_PX


def questions(
    where: str, image_id: str, medium: Medium, references: list[Reference], facts: dict[str, Any]
) -> Iterator[ImportOutcome]:
    """Questions about a count, a side and the largest thing, as far as the annotations allow."""
    rng = np.random.default_rng(stable_seed("coco", image_id))
    by_class: dict[str, list[Reference]] = {}
    for reference in references:
        by_class.setdefault(str(reference.properties["class"]), []).append(reference)
    crowd_classes = {name for name, members in by_class.items() if any(r.properties["crowd"] for r in members)}
    for name in sorted(crowd_classes):
        yield Problem(where, f"{name} is not counted: a crowd of them is marked as one", "unasked")
    without_crowds = {name: members for name, members in sorted(by_class.items()) if name not in crowd_classes}
    overlapping = [name for name, members in without_crowds.items() if count_distinct(members, name) != len(members)]
    for name in overlapping:
        yield Problem(where, f"{name} is not counted: its outlines overlap", "unasked")
    countable = [name for name in without_crowds if name not in overlapping]

    maker = QuestionMaker(medium, references, facts, (image_id,))
    if countable:
        target = countable[int(rng.integers(len(countable)))]
        yield maker.ask("coco.count", without_crowds[target], {"target": target})
    single = {name: members[0] for name, members in without_crowds.items() if len(members) == 1}
    centre_x = {name: get_centre(reference)[0] for name, reference in single.items()}
    pairs = [(a, b) for a in single for b in single if a != b and abs(centre_x[a] - centre_x[b]) >= MIN_CENTRE_DISTANCE]
    if pairs:
        a, b = pairs[int(rng.integers(len(pairs)))]
        yield maker.ask("coco.side", [single[a], single[b]], {"a": a, "b": b})
    ranked = sorted(single, key=lambda name: -area(single[name]))[:4]
    if len(ranked) > 1 and area(single[ranked[0]]) >= MIN_AREA_RATIO * area(single[ranked[1]]):
        choices = tuple(str(name) for name in rng.permutation(ranked))
        yield maker.ask("coco.largest", [single[name] for name in choices], {"names": choices}, options=choices)
    if not countable and not pairs and len(ranked) < 2:
        yield Problem(where, "no question can be asked about its annotations", "unasked")
