"""COCO instances in: polygons, run lengths and crowds as masks, and questions over them.

The file is read picture by picture (see `index`): the annotations of 118,000 pictures do not fit everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as rle
from pydantic import ValidationError

from pixelis.data.importers.index import Index
from pixelis.data.importers.outcome import Outcome, Shelf, Wishes, origin, seed_of
from pixelis.data.importers.photo_questions import Asking
from pixelis.data.importers.questions import asked, distinct
from pixelis.errors import ConfigError, MediaError
from pixelis.geometry import Box, Footprint, Mask, PixelBox, Size
from pixelis.media import Medium
from pixelis.trace.foreign_files import Problem, mapped
from pixelis.world.item import Reference, Scalar
from pixelis.world.programs import area, box_of, centre
from pixelis.world.template import Draft

SLACK_PX = 1.0
"""Outlines that leave the picture by less are as their annotators' tools drew them, and are cut without a word."""
APART = 0.1
"""Centres nearer than this share of the width are neither left nor right of each other."""
LARGER = 1.3
"""The largest thing must be this much larger than the next one."""


class Outlined(NamedTuple):
    """A footprint, and whether it had to be cut to the picture."""

    footprint: Footprint
    cut: bool


def coco_items(source: Path, wishes: Wishes) -> Iterator[Outcome]:
    """Items over the pictures of an instances file, one of each kind of question a picture at most."""
    with mapped(source) as content:
        index = Index(source, content)
        yield from index.look_through()
        if not index.images:
            raise ConfigError(f"{source} lists no images: want COCO's instances JSON")
        split = source.stem.rpartition("_")[2]  # instances_val2017
        shelf = Shelf(source, wishes, folders=(split, f"images/{split}"))
        classes = {own: str(record.get("name", "")) for own, record in index.tables["categories"].items()}
        for image_id in index.images:
            yield from _picture(index, image_id, classes, shelf, wishes)


def _picture(
    index: Index, image_id: str, classes: Mapping[str, str], shelf: Shelf, wishes: Wishes
) -> Iterator[Outcome]:
    where, image = f"{index.source}, image {image_id}", index.images[image_id]
    if image_id not in index.places:
        yield Problem(where, "it has no annotations")
        return
    try:
        medium = picture(image, shelf)
    except MediaError as error:
        yield Problem(where, str(error))
        return
    references: list[Reference] = []
    for at, record in index.annotations(image_id):
        found = reference(at, record, classes, medium.size, len(references))
        if isinstance(found, str):
            yield Problem(at, found)
            continue
        kept, cut = found
        if cut:
            yield Problem(at, "it goes beyond the picture and was clipped", "changed")
        references.append(kept)
    if not references:
        yield Problem(where, "none of its annotations can be used")
        return
    licence = index.tables["licenses"].get(str(image.get("license")), {})
    facts = origin(
        "coco", image_id, medium, wishes,
        licence=str(licence.get("name") or licence.get("url") or ""), watermark=str(image.get("watermark") or ""),
    )  # fmt: skip
    if isinstance(made_from := image.get("photograph"), str):
        facts["photograph"] = made_from  # crops of one photograph stay in one split
    yield from questions(where, image_id, medium, references, facts)
    complete = image.get("complete") is not False
    yield from Asking(image_id, medium, references, facts, complete=complete).questions()


def picture(image: Mapping[str, Any], shelf: Shelf) -> Medium:
    """The picture of an entry; MediaError where it is missing, or has another size than the annotations are for."""
    name = image.get("file_name")
    if not isinstance(name, str):
        raise MediaError("it has no file_name")
    medium = shelf.open(name)
    said = (image.get("width", medium.size.width), image.get("height", medium.size.height))
    if said != tuple(medium.size):
        raise MediaError(f"{name} has {medium.size.width}x{medium.size.height} pixels, not {said[0]}x{said[1]}")
    return medium


def reference(
    at: str, record: Mapping[str, Any], classes: Mapping[str, str], size: Size, place: int
) -> tuple[Reference, bool] | str:
    """The annotation that stands `at` a place as a reference, and whether it was cut; or why it cannot be one."""
    name = classes.get(str(record.get("category_id")))
    if not name:
        return f"category {record.get('category_id')!r} is not listed"
    crowd = record.get("iscrowd") in (1, True)
    label = f"crowd of {name}" if crowd else name
    try:
        outlined = outline(record, size, label)
    except ValidationError as error:
        return error.errors(include_url=False)[0]["msg"]
    except (ValueError, TypeError, OverflowError) as error:
        return str(error).splitlines()[0]
    own = str(record.get("id", at.rpartition("annotation ")[2]))  # a member of a table may have none of its own
    properties: dict[str, Scalar] = {"class": name, "crowd": int(crowd), "annotation": own}
    return Reference(name=f"thing_{place}", footprint=outlined.footprint, properties=properties), outlined.cut


def outline(record: Mapping[str, Any], size: Size, label: str) -> Outlined:
    """A mask from polygons or run lengths, or a box where there is no outline; ValueError where there is neither."""
    shape, box = record.get("segmentation"), record.get("bbox")
    cut = bool(box) and _leaves(_numbers(box, 4), size)
    if isinstance(shape, dict):
        return Outlined(_whole(from_runs(shape, size, label)), cut)
    if isinstance(shape, list) and shape:
        parts = [_numbers(part, None) for part in shape]
        if any(len(part) < 6 or len(part) % 2 for part in parts):
            raise ValueError("a polygon has fewer than three corners")
        beyond = any(
            min(p) < -SLACK_PX or max(p[::2]) > size.width + SLACK_PX or max(p[1::2]) > size.height + SLACK_PX
            for p in parts
        )
        inside = [[float(np.clip(v, 0, size[k % 2])) for k, v in enumerate(part)] for part in parts]
        merged = rle.merge(rle.frPyObjects(inside, size.height, size.width))
        counts = merged["counts"].decode("ascii")
        return Outlined(_whole(Mask(width=size.width, height=size.height, counts=counts, label=label)), cut or beyond)
    if not box:
        raise ValueError("it has neither an outline nor a box")
    x, y, w, h = _numbers(box, 4)
    x0, y0, x1, y1 = PixelBox(x, y, x + w, y + h).to_unit(size)
    return Outlined(Box(x0=x0, y0=y0, x1=x1, y1=y1, label=label), cut)


def from_runs(shape: Mapping[str, Any], size: Size, label: str) -> Mask:
    """A mask from COCO's run lengths, compressed (a string) or plain (a list)."""
    counts, said = shape.get("counts"), shape.get("size")
    if said != [size.height, size.width]:
        raise ValueError(f"its run lengths are for {said} (height, width), the picture has {[size.height, size.width]}")
    if isinstance(counts, list):
        runs = [int(v) for v in _numbers(counts, None)]
        if min(runs, default=0) < 0 or sum(runs) != size.pixels:
            raise ValueError("its run lengths do not fill the picture")
        packed = rle.frPyObjects({"counts": runs, "size": said}, size.height, size.width)
        counts = packed["counts"].decode("ascii")
    return Mask(width=size.width, height=size.height, counts=str(counts), label=label)


def _whole(mask: Mask) -> Mask:
    if mask.box_unit is None:
        raise ValueError("nothing of its outline lies in the picture")
    return mask


def _numbers(values: Any, count: int | None) -> list[float]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ValueError(f"{str(values)[:40]!r} is no list of {count or 'several'} numbers")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise ValueError("it holds something that is no finite number")
    return [float(v) for v in values]


def _leaves(box: Sequence[float], size: Size) -> bool:
    x, y, w, h = box
    over = (-x, -y, x + w - size.width, y + h - size.height)
    return max(over) > SLACK_PX


def questions(
    where: str, image_id: str, medium: Medium, references: list[Reference], facts: dict[str, Any]
) -> Iterator[Outcome]:
    """A count, a side and a largest, as far as the annotations allow them."""
    rng = np.random.default_rng(seed_of("coco", image_id))
    by_class: dict[str, list[Reference]] = {}
    for one in references:
        by_class.setdefault(str(one.properties["class"]), []).append(one)
    crowded = {name for name, found in by_class.items() if any(r.properties["crowd"] for r in found)}
    for name in sorted(crowded):
        yield Problem(where, f"{name} is not counted: a crowd of them is marked as one", "unasked")
    clear = {name: found for name, found in sorted(by_class.items()) if name not in crowded}
    layered = [name for name, found in clear.items() if distinct(found, name) != len(found)]
    for name in layered:
        yield Problem(where, f"{name} is not counted: its outlines lie over each other", "unasked")
    counted = [name for name in clear if name not in layered]

    def ask(kind: str, evidence: list[Reference], parameters: dict[str, Any], options: tuple[str, ...] = ()) -> Outcome:
        names = [r.name for r in evidence]
        draft = Draft((medium,), references, names, {**facts, **parameters}, options=options, traits={"photograph"})
        return asked(kind, draft, id=f"{kind}/{image_id}", seed=seed_of(kind, image_id))

    if counted:
        target = counted[int(rng.integers(len(counted)))]
        yield ask("coco.count", clear[target], {"target": target})
    single = {name: found[0] for name, found in clear.items() if len(found) == 1}
    pairs = [
        (a, b)
        for a in single
        for b in single
        if a != b and abs(centre(box_of(single[a]))[0] - centre(box_of(single[b]))[0]) >= APART
    ]
    if pairs:
        a, b = pairs[int(rng.integers(len(pairs)))]
        yield ask("coco.side", [single[a], single[b]], {"a": a, "b": b})
    ranked = sorted(single, key=lambda name: -area(single[name]))[:4]
    if len(ranked) > 1 and area(single[ranked[0]]) >= LARGER * area(single[ranked[1]]):
        offered = tuple(str(name) for name in rng.permutation(ranked))
        yield ask("coco.largest", [single[name] for name in offered], {"names": offered}, offered)
    if not counted and not pairs and len(ranked) < 2:
        yield Problem(where, "no question can be put about its annotations", "unasked")
