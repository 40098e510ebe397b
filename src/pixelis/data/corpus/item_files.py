"""Imported items as a part of a corpus: which file and line each comes from, and to which split it belongs.

A split owns media, not items: everything that shares a medium, or was made from one photograph, stays together, and a
hash of the media alone says where, unless there are so few that a split would stay empty. Items are taken in the order
of a hash, so that a part of a file is a fair part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from pixelis.core.errors import ConfigError, MediaError
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.record import SPLITS, Split
from pixelis.data.corpus.splits import Unit, plan_units, weighted_round_robin
from pixelis.data.importers.imported_items import open_item_media, parse_item
from pixelis.data.importers.traces.foreign_files import MAX_LINE_BYTES, Problem, TextLine, decode_text, read_lines
from pixelis.trace.media_records import path_hint
from pixelis.world import Family, Item, RenderedItem

MAX_ITEMS = 2_000_000
"""In all files of one corpus."""
ESSENTIAL_SPLITS: tuple[Split, ...] = ("train", "test", "dev")
"""Splits that a corpus of few media should not lack, the most needed first."""
MAX_SHOWN_PROBLEMS = 5
"""Lines that are no items, named before the build gives up."""


class ItemEntry(NamedTuple):
    """What a plan needs to know of an item."""

    file: str
    line: int
    id: str
    family: Family
    difficulty: int
    template: str
    origins: tuple[str, ...]
    """Hashes of its media, and the photographs that they were made from where the item says so."""

    @property
    def rank(self) -> str:
        """Its place in the order in which items are taken."""
        return hashlib.sha256(f"rank\0{self.file}\0{self.line}\0{self.id}".encode()).hexdigest()


@dataclass(frozen=True)
class ItemFiles:
    """The files of items that a corpus is built from, read once and held against everything that may be wrong."""

    paths: tuple[Path, ...] = ()
    entries: tuple[ItemEntry, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> ItemFiles:
        """Every item of every file; ConfigError with the lines that are none."""
        entries: list[ItemEntry] = []
        problems: list[Problem] = []
        for path in paths:
            seen: dict[str, int] = {}
            for line in read_lines(path):
                item = line if isinstance(line, Problem) else parse_item(f"{path}:{line.number}", line)
                if isinstance(item, Problem) or isinstance(line, Problem):
                    problems.append(item)  # type: ignore[arg-type]
                    continue
                if not item.answer:
                    problems.append(Problem(f"{path}:{line.number}", "it has no answer, and nothing to teach"))
                if item.id in seen:
                    reason = f"item {item.id} is also on line {seen[item.id]}"
                    problems.append(Problem(f"{path}:{line.number}", reason))
                seen[item.id] = line.number
                entries.append(
                    ItemEntry(
                        path.name, line.number, item.id, item.family, item.difficulty, item.template, item_origins(item)
                    )
                )
                if len(entries) > MAX_ITEMS:
                    raise ConfigError(f"{path}: over {MAX_ITEMS} items in one corpus")
        if problems:
            listing = "; ".join(f"{problem.where}: {problem.reason}" for problem in problems[:MAX_SHOWN_PROBLEMS])
            remainder = (
                f"; and {len(problems) - MAX_SHOWN_PROBLEMS} other lines" if len(problems) > MAX_SHOWN_PROBLEMS else ""
            )
            raise ConfigError(f"{listing}{remainder}")
        if paths and not entries:
            raise ConfigError(f"{paths[0]} holds no items")
        return cls(tuple(paths), tuple(entries), {path.name: file_hash(path) for path in paths})

    def facts(self, folder: Path) -> list[dict[str, str]]:
        """The files for the manifest of a corpus in `folder`: by content, and the way to them from there."""
        return [
            {"name": path.name, "path": path_hint(path, folder / "manifest.json"), "sha256": self.hashes[path.name]}
            for path in self.paths
        ]

    def select_entries(self, config: CorpusConfig) -> list[ItemEntry]:
        """As many items as the configuration wants, or all there are."""
        limit = round(config.n * config.items_share)
        return sorted(self.entries, key=lambda entry: entry.rank)[:limit]

    def total(self, config: CorpusConfig) -> int:
        """Records that the corpus will have: the world fills up what is missing, where it has a part in it at all."""
        return config.n if sum(config.families.values()) > 0.0 else len(self.select_entries(config))


def item_origins(item: Item) -> tuple[str, ...]:
    """What must not lie in two splits."""
    photographs = item.parameters.get("photograph", ())
    names = photographs if isinstance(photographs, tuple) else (photographs,)
    return (*(medium.sha256 for medium in item.media), *(f"photograph {name}" for name in names))


def file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        hint = "; `pixelis data photographs -o photographs` makes it" if path.parent.name == "photographs" else ""
        raise ConfigError(f"{path} cannot be read ({error.strerror}){hint}") from error


# --- splits


def assign_splits(entries: Sequence[ItemEntry], shares: Mapping[Split, float]) -> list[Split]:
    """The split of each item: of the smallest hash among all media that hang together with its own."""
    leader: dict[str, str] = {}

    def find(key: str) -> str:
        while (parent := leader.setdefault(key, key)) != key:
            leader[key] = leader[parent]
            key = parent
        return key

    for entry in entries:
        first = find(entry.origins[0])
        for other in entry.origins[1:]:
            a, b = sorted((first, find(other)))
            leader[b] = first = a
    groups = [find(entry.origins[0]) for entry in entries]
    owner = fill_empty_splits({group: split_by_hash(group, shares) for group in groups}, shares)
    return [owner[group] for group in groups]


def fill_empty_splits(owner: Mapping[str, Split], shares: Mapping[Split, float]) -> dict[str, Split]:
    """A few media may all fall into one split: train, test and dev, in this order, get one where they have a share.

    What is moved comes from the split that has most, in the order of a hash. A corpus with something in each of the
    three stays as it is.
    """
    assignment = dict(sorted(owner.items(), key=lambda pair: hashlib.sha256(f"fill\0{pair[0]}".encode()).hexdigest()))
    for k, needed in enumerate(ESSENTIAL_SPLITS):
        counts = Counter(assignment.values())
        spare = {
            split: counts[split] - (split in ESSENTIAL_SPLITS[:k]) for split in SPLITS
        }  # the last one of these stays
        largest = max(SPLITS, key=lambda split: spare[split])
        if shares.get(needed, 0.0) > 0.0 and not counts[needed] and spare[largest] > 0:
            assignment[next(group for group, split in assignment.items() if split == largest)] = needed
    return assignment


def split_by_hash(key: str, shares: Mapping[Split, float]) -> Split:
    """The split that a key falls into, each as likely as its share."""
    position = int(hashlib.sha256(f"split\0{key}".encode()).hexdigest()[:13], 16) / 16**13
    total, cumulative = sum(shares.values()), 0.0
    owners = [split for split in SPLITS if shares.get(split, 0.0) > 0.0]
    for split in owners:
        cumulative += shares[split] / total
        if position < cumulative:
            return split
    return owners[-1]


def corpus_units(config: CorpusConfig, items: ItemFiles) -> Iterator[Unit]:
    """The units of a corpus, split after split, items spread evenly among those of the world."""
    selected = items.select_entries(config)
    world = plan_units(
        items.total(config) - len(selected),
        seed=config.seed,
        splits=config.splits,
        families=config.families,
        difficulties=config.difficulties,
        shift_share=config.shift_share,
    )
    if not selected:
        yield from world
        return
    split_by_entry = dict(zip(items.entries, assign_splits(items.entries, config.splits), strict=True))
    entries_by_split: dict[Split, list[ItemEntry]] = {split: [] for split in SPLITS}
    for entry in selected:
        entries_by_split[split_by_entry[entry]].append(entry)
    world_by_split = {split: list(units) for split, units in groupby(world, key=lambda unit: unit.split)}
    for split in SPLITS:
        yield from interleave(split, world_by_split.get(split, []), entries_by_split[split])


def interleave(split: Split, world: Sequence[Unit], entries: Sequence[ItemEntry]) -> Iterator[Unit]:
    """Both in their own order, each as often as the shares of the whole say in every stretch."""
    units, remaining = iter(world), iter(entries)
    turns = weighted_round_robin({"world": float(len(world)), "items": float(len(entries))})
    for ordinal, turn in enumerate(islice(turns, len(world) + len(entries))):
        if turn == "world":
            yield next(units)._replace(ordinal=ordinal)
            continue
        entry = next(remaining)
        seed = item_seed(entry.file, entry.id)
        yield Unit(split, ordinal, entry.family, entry.difficulty, seed, items=entry.file, line=entry.line)


def item_seed(file: str, item: str) -> int:
    """What is drawn for an imported item is drawn from here."""
    return int.from_bytes(hashlib.sha256(f"{file}\0{item}".encode()).digest()[:4], "big")


# --- one item with its pixels


class ItemReader:
    """Single items by file and line, for the process that solves them."""

    def __init__(self, paths: Sequence[Path], hashes: Mapping[str, str]) -> None:
        self._paths = {path.name: path for path in paths}
        self._hashes = hashes
        self._offsets: dict[str, list[int]] = {}

    def _line_offsets(self, name: str) -> list[int]:
        """Where each line of a file begins; ConfigError where it is not the file that was planned with."""
        if name not in self._offsets:
            path = self._paths[name]
            if self._hashes and file_hash(path) != self._hashes.get(name):
                raise ConfigError(f"{path} has changed since the build began; what is done is kept")
            offsets = [0]
            with path.open("rb") as file:
                while raw := file.readline(MAX_LINE_BYTES + 1):
                    offsets.append(offsets[-1] + len(raw))
            self._offsets[name] = offsets
        return self._offsets[name]

    def read_item(self, name: str, line: int) -> Item:
        offsets, path = self._line_offsets(name), self._paths[name]
        with path.open("rb") as file:
            file.seek(offsets[line - 1])
            text, encoding = decode_text(file.readline(MAX_LINE_BYTES + 1))
        result = parse_item(f"{path}:{line}", TextLine(line, text, encoding))
        if isinstance(result, Problem):
            raise ConfigError(f"{result.where}: {result.reason}")
        return result

    def render(self, name: str, line: int) -> RenderedItem:
        """The item with its media, which must be those that it was made from."""
        item = self.read_item(name, line)
        try:
            return RenderedItem(item, open_item_media(item, self._paths[name]).sources)
        except MediaError as error:
            raise ConfigError(f"{self._paths[name]}:{line}: {error}") from error
