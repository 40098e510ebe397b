"""Items on disk, one JSON line each, and the files of their media."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pixelis.core.errors import MediaError, validation_problem
from pixelis.data.corpus.text_lines import Problem, TextLine, parse_lines
from pixelis.items import Item
from pixelis.media import MediaSet, open_media


def read_items(path: Path) -> Iterator[Item | Problem]:
    """The items of a file in order, and a problem for each invalid line."""
    for line in parse_lines(path, parse_item):
        if not isinstance(line, Problem):
            yield line.value
        elif line.kind == "skipped":
            yield line


def parse_item(line: TextLine) -> Item:
    """The item of a line; ValueError with one reason if it is invalid."""
    try:
        return Item.model_validate_json(line.text)
    except ValidationError as error:
        raise ValueError(f"not an item: {validation_problem(error)}") from error


def open_item_media(item: Item, items_path: Path) -> MediaSet:
    """The media of an imported item by their paths; MediaError if one is missing or has another hash."""
    paths = item.parameters.get("media_paths", ())
    if not isinstance(paths, tuple) or len(paths) != len(item.media):
        raise MediaError(f"item {item.id} does not name the paths of its media")
    fps = float(str(item.parameters.get("media_fps", 25.0)))
    media = []
    for facts, path in zip(item.media, paths, strict=True):
        medium = open_media(items_path.parent / str(path), fps=fps)
        if medium.sha256 != facts.sha256:
            raise MediaError(f"{path} is not the medium that item {item.id} was made from (its content has changed)")
        media.append(medium)
    return MediaSet(tuple(media))
