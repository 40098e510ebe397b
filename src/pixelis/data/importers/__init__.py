"""Real datasets in: COCO instances, MOTChallenge, text in pictures, stretches of time, as items like the world's own.

Each importer is a stream of items and problems; nothing is lost without a word. See docs/own_datasets.md.
"""

from pixelis.data.importers.coco import coco_items
from pixelis.data.importers.files import (
    IMPORTERS,
    as_items,
    case_of,
    media_of,
    read_items,
    template,
    write_items,
    write_traces,
)
from pixelis.data.importers.mot import mot_items
from pixelis.data.importers.ocr import ocr_items
from pixelis.data.importers.outcome import Outcome, Tally, Wishes
from pixelis.data.importers.own import own_items
from pixelis.data.importers.spans import span_items
from pixelis.trace.foreign_files import Problem

__all__ = [
    "IMPORTERS",
    "Outcome",
    "Problem",
    "Tally",
    "Wishes",
    "as_items",
    "case_of",
    "coco_items",
    "media_of",
    "mot_items",
    "ocr_items",
    "own_items",
    "read_items",
    "span_items",
    "template",
    "write_items",
    "write_traces",
]
