"""Importers of datasets: COCO instances, MOTChallenge, text in pictures and time spans, as items like the world's.

Each importer is a stream of items and problems; nothing is dropped silently. See docs/how-to/own_datasets.md.
"""

from pixelis.data.corpus.stored_items import open_item_media, read_items
from pixelis.data.corpus.text_lines import ImportResult, Problem
from pixelis.data.importers.coco import coco_items
from pixelis.data.importers.import_options import ImportOptions, ImportOutcome
from pixelis.data.importers.imported_items import (
    IMPORTERS,
    find_or_import_items,
    get_case,
    get_template,
    write_items,
    write_traces,
)
from pixelis.data.importers.mot import mot_items
from pixelis.data.importers.spans import span_items
from pixelis.data.importers.text_datasets import ocr_items
from pixelis.data.importers.user_questions import user_items

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "ImportOutcome",
    "ImportResult",
    "Problem",
    "coco_items",
    "find_or_import_items",
    "get_case",
    "get_template",
    "mot_items",
    "ocr_items",
    "open_item_media",
    "read_items",
    "span_items",
    "user_items",
    "write_items",
    "write_traces",
]
