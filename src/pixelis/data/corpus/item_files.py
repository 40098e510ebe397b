"""Imported items in a corpus: their files, lines and splits.

A split owns media, not items: everything that shares a medium, or was made from one photograph, stays together. A hash
of the media determines the split, unless there are so few that a split would be empty. Items are taken in the order of
a hash, so that a part of a file is a random sample.
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
from pixelis.data.corpus.stored_items import open_item_media, parse_item
from pixelis.data.corpus.text_lines import MAX_LINE_BYTES, Problem, TextLine, decode_text, parse_lines
from pixelis.trace.media_records import path_hint
from pixelis.world import Family, Item, RenderedItem

MAX_ITEMS = 2_000_000
"""In all files of one corpus."""
ESSENTIAL_SPLITS: tuple[Split, ...] = ("train", "test", "dev")
"""Splits that should not be empty, the most important first."""
MAX_SHOWN_PROBLEMS = 5
"""Invalid lines that an error names."""


class ItemEntry(NamedTuple):
    """The facts of an item that a plan needs."""

    file: str
    line: int
    id: str
    family: Family
    difficulty: int
    template: str
    origins: tuple[str, ...]
    """Hashes of its media, and the photographs that they were made from, if known."""

    @property
    def rank(self) -> str:
        """Sorts items into the order in which they are taken."""
        return hashlib.sha256(f"rank\0{self.file}\0{self.line}\0{self.id}".encode()).hexdigest()


@dataclass(frozen=True)
class ItemFiles:
    """The files of items that a corpus is built from, read and checked once."""

    paths: tuple[Path, ...] = ()
    entries: tuple[ItemEntry, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> ItemFiles:
        """Every item of every file; ConfigError with the invalid lines."""
        entries: list[ItemEntry] = []
        problems: list[Problem] = []
        for path in paths:
            seen: dict[str, int] = {}
            for line in parse_lines(path, parse_item):
                if isinstance(line, Problem):
                    if line.kind == "skipped":
                        problems.append(line)
                    continue
                number, item = line.number, line.value
                if not item.answer:
                    problems.append(Problem(line.where, "it has no answer, and nothing to teach"))
                if item.id in seen:
                    problems.append(Problem(line.where, f"item {item.id} is also on line {seen[item.id]}"))
                seen[item.id] = number
                origins = item_origins(item)
                entries.append(
                    ItemEntry(path.name, number, item.id, item.family, item.difficulty, item.template, origins)
                )
                if len(entries) > MAX_ITEMS:
                    raise ConfigError(f"{path}: over {MAX_ITEMS} items in one corpus")
        if problems:
            reasons = [f"{problem.where}: {problem.reason}" for problem in problems[:MAX_SHOWN_PROBLEMS]]
            if len(problems) > MAX_SHOWN_PROBLEMS:
                reasons.append(f"and {len(problems) - MAX_SHOWN_PROBLEMS} other lines")
            raise ConfigError("; ".join(reasons))
        if paths and not entries:
            raise ConfigError(f"{paths[0]} holds no items")
        return cls(tuple(paths), tuple(entries), {path.name: file_hash(path) for path in paths})

    def facts(self, folder: Path) -> list[dict[str, str]]:
        """The files for the manifest of a corpus in `folder`, with their hashes and relative paths."""
        return [
            {"name": path.name, "path": path_hint(path, folder / "manifest.json"), "sha256": self.hashes[path.name]}
            for path in self.paths
        ]

    def select_entries(self, config: CorpusConfig) -> list[ItemEntry]:
        """As many items as the configuration asks for, or all of them."""
        limit = round(config.n * config.items_share)
        return sorted(self.entries, key=lambda entry: entry.rank)[:limit]

    def total(self, config: CorpusConfig) -> int:
        """The number of records; generated items, if configured, make up for missing imported ones."""
        return config.n if sum(config.families.values()) > 0.0 else len(self.select_entries(config))


def item_origins(item: Item) -> tuple[str, ...]:
    """The media and photographs that must not be in two splits."""
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
    """The split of each item, from the smallest hash among all media that are connected with its own."""
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
    """Give train, test and dev, in this order, a medium if they have a share but nothing was assigned to them.

    It comes from the largest split, in the order of a hash.
    """
    assignment = dict(sorted(owner.items(), key=lambda pair: hashlib.sha256(f"fill\0{pair[0]}".encode()).hexdigest()))
    for k, needed in enumerate(ESSENTIAL_SPLITS):
        counts = Counter(assignment.values())
        # The last medium of an essential split stays.
        spare = {split: counts[split] - (split in ESSENTIAL_SPLITS[:k]) for split in SPLITS}
        largest = max(SPLITS, key=lambda split: spare[split])
        if shares.get(needed, 0.0) > 0.0 and not counts[needed] and spare[largest] > 0:
            assignment[next(group for group, split in assignment.items() if split == largest)] = needed
    return assignment


def split_by_hash(key: str, shares: Mapping[Split, float]) -> Split:
    """The split of a key; each split is as likely as its share."""
    position = int(hashlib.sha256(f"split\0{key}".encode()).hexdigest()[:13], 16) / 16**13
    total, cumulative = sum(shares.values()), 0.0
    owners = [split for split in SPLITS if shares.get(split, 0.0) > 0.0]
    for split in owners:
        cumulative += shares[split] / total
        if position < cumulative:
            return split
    return owners[-1]


def corpus_units(config: CorpusConfig, items: ItemFiles) -> Iterator[Unit]:
    """The units of a corpus, split after split, with imported items spread evenly among generated ones."""
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
    world_by_split = {split: list(units) for split, units in groupby(world, key=lambda unit: unit.split)}
    for split in SPLITS:
        entries = [entry for entry in selected if split_by_entry[entry] == split]
        yield from interleave(split, world_by_split.get(split, []), entries)


def interleave(split: Split, world: Sequence[Unit], entries: Sequence[ItemEntry]) -> Iterator[Unit]:
    """Both sequences in their own order, evenly interleaved."""
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
    """The random seed of an imported item."""
    return int.from_bytes(hashlib.sha256(f"{file}\0{item}".encode()).digest()[:4], "big")


# --- one item with its pixels


class ItemReader:
    """Reads single items by file and line in a solver process."""

    def __init__(self, paths: Sequence[Path], hashes: Mapping[str, str]) -> None:
        self._paths = {path.name: path for path in paths}
        self._hashes = hashes
        self._offsets: dict[str, list[int]] = {}

    def _line_offsets(self, name: str) -> list[int]:
        """The start of each line of a file; ConfigError if the file is not the planned one."""
        if name not in self._offsets:
            path = self._paths[name]
            if self._hashes and file_hash(path) != self._hashes.get(name):
                raise ConfigError(f"{path} has changed since the build began; finished items are kept")
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
        try:
            return parse_item(TextLine(line, text, encoding))
        except ValueError as error:
            raise ConfigError(f"{path}:{line}: {error}") from error

    def render(self, name: str, line: int) -> RenderedItem:
        """The item with its media, whose hashes are checked."""
        item = self.read_item(name, line)
        try:
            return RenderedItem(item, open_item_media(item, self._paths[name]).sources)
        except MediaError as error:
            raise ConfigError(f"{self._paths[name]}:{line}: {error}") from error
