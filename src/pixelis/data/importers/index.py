"""A large JSON file of pictures and annotations, looked through once and read picture by picture after that.

Only the places of annotations are kept, so that a file of a million of them takes some tens of megabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pixelis.trace.foreign_files import Buffer, Element, Problem, elements, member

IMAGE_SECTIONS = ("images", "imgs")
ANNOTATION_SECTIONS = ("annotations", "anns")
TABLES = ("categories", "licenses")
IMAGE_KEYS = ("file_name", "width", "height", "license", "watermark", "photograph", "complete")
"""The last two are ours: what a picture was made from, and whether all there is of COCO's classes is outlined."""


@dataclass
class Index:
    """What a file holds, annotations by their places."""

    source: Path
    content: Buffer
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {name: {} for name in TABLES})
    """Categories and licences by id."""
    places: dict[str, array[int]] = field(default_factory=dict)
    """For each picture the start and end of each of its annotations."""

    def look_through(self) -> Iterator[Problem]:
        """Fill the index; whatever is no record, or comes up twice, is a problem."""
        seen: dict[str, set[str]] = {}
        for element in elements(self.content):
            if element.section not in (*IMAGE_SECTIONS, *ANNOTATION_SECTIONS, *TABLES):
                continue
            where = f"{self.source}, {element.section} at byte {element.start}"
            try:
                record, encoding = member(self.content, element)
            except ValueError as error:
                yield Problem(where, str(error))
                continue
            own = str(record.get("id", element.key)) if isinstance(record, dict) else ""
            if not own:
                yield Problem(where, "no object with an id")
                continue
            if own in seen.setdefault(element.section, set()):
                yield Problem(f"{where}: {own}", "the id was there before; the first one counts")
                continue
            seen[element.section].add(own)
            if encoding != "utf-8":
                yield Problem(f"{where}: {own}", "read as Latin-1: it is not UTF-8", "changed")
            self._file(element, own, record)
        for image_id in [i for i in self.places if i not in self.images]:
            count = len(self.places.pop(image_id)) // 2
            yield Problem(f"{self.source}, image {image_id}", f"{count} annotations of a picture that is not listed")

    def _file(self, element: Element, own: str, record: Mapping[str, Any]) -> None:
        if element.section in ANNOTATION_SECTIONS:
            self.places.setdefault(str(record.get("image_id")), array("q")).extend((element.start, element.end))
        elif element.section in IMAGE_SECTIONS:
            self.images[own] = {key: record[key] for key in IMAGE_KEYS if key in record}
        else:
            self.tables[element.section][own] = dict(record)

    def annotations(self, image_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The annotations of a picture, each with where it stands."""
        places = self.places.get(image_id, array("q"))
        for start, end in zip(places[::2], places[1::2], strict=True):
            record, _ = member(self.content, Element("", "", start, end))
            yield f"{self.source}, annotation {record.get('id', f'at byte {start}')}", record
