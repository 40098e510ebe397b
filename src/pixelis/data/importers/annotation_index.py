"""An index of a large JSON file of pictures and annotations, which is then read picture by picture.

Only the offsets of annotations are kept: a million of them take some tens of megabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pixelis.data.corpus.text_lines import Problem
from pixelis.data.importers.traces.foreign_files import Buffer, JsonElement, iter_elements, parse_element

IMAGE_SECTIONS = ("images", "imgs")
ANNOTATION_SECTIONS = ("annotations", "anns")
TABLE_SECTIONS = ("categories", "licenses")
IMAGE_KEYS = ("file_name", "width", "height", "license", "watermark", "photograph", "complete")
"""The last two are ours: the original of a picture, and whether everything of COCO's classes is outlined."""


@dataclass
class AnnotationIndex:
    """The pictures and tables of a file, and the offsets of its annotations."""

    source: Path
    content: Buffer
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {name: {} for name in TABLE_SECTIONS})
    """Categories and licences by id."""
    annotation_offsets: dict[str, array[int]] = field(default_factory=dict)
    """For each picture, start and end of each of its annotations."""

    def scan(self) -> Iterator[Problem]:
        """Fill the index; yields a problem for whatever is not a record, or a duplicate."""
        seen: dict[str, set[str]] = {}
        for element in iter_elements(self.content):
            if element.section not in (*IMAGE_SECTIONS, *ANNOTATION_SECTIONS, *TABLE_SECTIONS):
                continue
            where = f"{self.source}, {element.section} at byte {element.start}"
            try:
                record, encoding = parse_element(self.content, element)
            except ValueError as error:
                yield Problem(where, str(error))
                continue
            record_id = str(record.get("id", element.key)) if isinstance(record, dict) else ""
            if not record_id:
                yield Problem(where, "not an object with an id")
                continue
            if record_id in seen.setdefault(element.section, set()):
                yield Problem(f"{where}: {record_id}", "the id is a duplicate; the first one counts")
                continue
            seen[element.section].add(record_id)
            if encoding != "utf-8":
                yield Problem(f"{where}: {record_id}", "read as Latin-1: it is not UTF-8", "changed")
            self._add_record(element, record_id, record)
        for image_id in [i for i in self.annotation_offsets if i not in self.images]:
            count = len(self.annotation_offsets.pop(image_id)) // 2
            yield Problem(f"{self.source}, image {image_id}", f"{count} annotations of a picture that is not listed")

    def _add_record(self, element: JsonElement, record_id: str, record: Mapping[str, Any]) -> None:
        if element.section in ANNOTATION_SECTIONS:
            offsets = self.annotation_offsets.setdefault(str(record.get("image_id")), array("q"))
            offsets.extend((element.start, element.end))
        elif element.section in IMAGE_SECTIONS:
            self.images[record_id] = {key: record[key] for key in IMAGE_KEYS if key in record}
        else:
            self.tables[element.section][record_id] = dict(record)

    def annotations(self, image_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The annotations of a picture, each with its location."""
        offsets = self.annotation_offsets.get(image_id, array("q"))
        for start, end in zip(offsets[::2], offsets[1::2], strict=True):
            record, _ = parse_element(self.content, JsonElement("", "", start, end))
            yield f"{self.source}, annotation {record.get('id', f'at byte {start}')}", record
