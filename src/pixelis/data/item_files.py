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

from pixelis.data.corpus_config import CorpusConfig
from pixelis.data.importers.files import media_of, read_item
from pixelis.data.record import SPLITS, Split
from pixelis.data.splits import Unit, dealt, plan
from pixelis.errors import ConfigError, MediaError
from pixelis.trace.foreign_files import LINE_BYTES, Line, Problem, decoded, lines
from pixelis.trace.reopening import path_hint
from pixelis.world import Family, Item, Rendered

MOST_ITEMS = 2_000_000
"""In all files of one corpus."""
NEEDED: tuple[Split, ...] = ("train", "test", "dev")
"""Splits that a corpus of few media should not lack, the most needed first."""
SHOWN = 5
"""Lines that are no items, named before the build gives up."""


class Entry(NamedTuple):
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
    entries: tuple[Entry, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> ItemFiles:
        """Every item of every file; ConfigError with the lines that are none."""
        entries: list[Entry] = []
        problems: list[Problem] = []
        for path in paths:
            seen: dict[str, int] = {}
            for line in lines(path):
                found = line if isinstance(line, Problem) else read_item(f"{path}:{line.number}", line)
                if isinstance(found, Problem) or isinstance(line, Problem):
                    problems.append(found)  # type: ignore[arg-type]
                    continue
                if not found.answer:
                    problems.append(Problem(f"{path}:{line.number}", "it has no answer, and nothing to teach"))
                if found.id in seen:
                    same = f"item {found.id} is also on line {seen[found.id]}"
                    problems.append(Problem(f"{path}:{line.number}", same))
                seen[found.id] = line.number
                entries.append(
                    Entry(
                        path.name, line.number, found.id, found.family, found.difficulty, found.template, origins(found)
                    )
                )
                if len(entries) > MOST_ITEMS:
                    raise ConfigError(f"{path}: over {MOST_ITEMS} items in one corpus")
        if problems:
            told = "; ".join(f"{problem.where}: {problem.reason}" for problem in problems[:SHOWN])
            more = f"; and {len(problems) - SHOWN} other lines" if len(problems) > SHOWN else ""
            raise ConfigError(f"{told}{more}")
        if paths and not entries:
            raise ConfigError(f"{paths[0]} holds no items")
        return cls(tuple(paths), tuple(entries), {path.name: file_hash(path) for path in paths})

    def facts(self, folder: Path) -> list[dict[str, str]]:
        """The files for the manifest of a corpus in `folder`: by content, and the way to them from there."""
        return [
            {"name": path.name, "path": path_hint(path, folder / "manifest.json"), "sha256": self.hashes[path.name]}
            for path in self.paths
        ]

    def chosen(self, config: CorpusConfig) -> list[Entry]:
        """As many items as the configuration wants, or all there are."""
        wanted = round(config.n * config.items_share)
        return sorted(self.entries, key=lambda entry: entry.rank)[:wanted]

    def total(self, config: CorpusConfig) -> int:
        """Records that the corpus will have: the world fills up what is missing, where it has a part in it at all."""
        return config.n if sum(config.families.values()) > 0.0 else len(self.chosen(config))


def origins(item: Item) -> tuple[str, ...]:
    """What must not lie in two splits."""
    said = item.parameters.get("photograph", ())
    made_from = said if isinstance(said, tuple) else (said,)
    return (*(medium.sha256 for medium in item.media), *(f"photograph {name}" for name in made_from))


def file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        made = "; `pixelis data photographs -o photographs` makes it" if path.parent.name == "photographs" else ""
        raise ConfigError(f"{path} cannot be read ({error.strerror}){made}") from error


# --- splits


def splits_of(entries: Sequence[Entry], shares: Mapping[Split, float]) -> list[Split]:
    """The split of each item: of the smallest hash among all media that hang together with its own."""
    leader: dict[str, str] = {}

    def find(key: str) -> str:
        while (above := leader.setdefault(key, key)) != key:
            leader[key] = leader[above]
            key = above
        return key

    for entry in entries:
        first = find(entry.origins[0])
        for other in entry.origins[1:]:
            a, b = sorted((first, find(other)))
            leader[b] = first = a
    groups = [find(entry.origins[0]) for entry in entries]
    owner = filled_up({group: by_hash(group, shares) for group in groups}, shares)
    return [owner[group] for group in groups]


def filled_up(owner: Mapping[str, Split], shares: Mapping[Split, float]) -> dict[str, Split]:
    """A few media may all fall into one split: train, test and dev, in this order, get one where they have a share.

    What is moved comes from the split that has most, in the order of a hash. A corpus with something in each of the
    three stays as it is.
    """
    moved = dict(sorted(owner.items(), key=lambda pair: hashlib.sha256(f"fill\0{pair[0]}".encode()).hexdigest()))
    for k, wanted in enumerate(NEEDED):
        held = Counter(moved.values())
        spare = {split: held[split] - (split in NEEDED[:k]) for split in SPLITS}  # the last one of these stays
        most = max(SPLITS, key=lambda split: spare[split])
        if shares.get(wanted, 0.0) > 0.0 and not held[wanted] and spare[most] > 0:
            moved[next(group for group, split in moved.items() if split == most)] = wanted
    return moved


def by_hash(key: str, shares: Mapping[Split, float]) -> Split:
    """The split that a key falls into, each as likely as its share."""
    drawn = int(hashlib.sha256(f"split\0{key}".encode()).hexdigest()[:13], 16) / 16**13
    total, upto = sum(shares.values()), 0.0
    owners = [split for split in SPLITS if shares.get(split, 0.0) > 0.0]
    for split in owners:
        upto += shares[split] / total
        if drawn < upto:
            return split
    return owners[-1]


def mixed(config: CorpusConfig, items: ItemFiles) -> Iterator[Unit]:
    """The units of a corpus, split after split, items spread evenly among those of the world."""
    chosen = items.chosen(config)
    world = plan(
        items.total(config) - len(chosen),
        seed=config.seed,
        splits=config.splits,
        families=config.families,
        difficulties=config.difficulties,
        shifted=config.shifted,
    )
    if not chosen:
        yield from world
        return
    belongs = dict(zip(items.entries, splits_of(items.entries, config.splits), strict=True))
    own: dict[Split, list[Entry]] = {split: [] for split in SPLITS}
    for entry in chosen:
        own[belongs[entry]].append(entry)
    of_world = {split: list(units) for split, units in groupby(world, key=lambda unit: unit.split)}
    for split in SPLITS:
        yield from interleaved(split, of_world.get(split, []), own[split])


def interleaved(split: Split, world: Sequence[Unit], entries: Sequence[Entry]) -> Iterator[Unit]:
    """Both in their own order, each as often as the shares of the whole say in every stretch."""
    units, waiting = iter(world), iter(entries)
    turns = dealt({"world": float(len(world)), "items": float(len(entries))})
    for ordinal, turn in enumerate(islice(turns, len(world) + len(entries))):
        if turn == "world":
            yield next(units)._replace(ordinal=ordinal)
            continue
        given = next(waiting)
        seed = item_seed(given.file, given.id)
        yield Unit(split, ordinal, given.family, given.difficulty, seed, items=given.file, line=given.line)


def item_seed(file: str, item: str) -> int:
    """What is drawn for an imported item is drawn from here."""
    return int.from_bytes(hashlib.sha256(f"{file}\0{item}".encode()).digest()[:4], "big")


# --- one item with its pixels


class ItemReader:
    """Single items by file and line, for the process that solves them."""

    def __init__(self, paths: Sequence[Path], hashes: Mapping[str, str]) -> None:
        self._paths = {path.name: path for path in paths}
        self._hashes = hashes
        self._starts: dict[str, list[int]] = {}

    def _open(self, name: str) -> list[int]:
        """Where each line of a file begins; ConfigError where it is not the file that was planned with."""
        if name not in self._starts:
            path = self._paths[name]
            if self._hashes and file_hash(path) != self._hashes.get(name):
                raise ConfigError(f"{path} has changed since the build began; what is done is kept")
            starts = [0]
            with path.open("rb") as file:
                while raw := file.readline(LINE_BYTES + 1):
                    starts.append(starts[-1] + len(raw))
            self._starts[name] = starts
        return self._starts[name]

    def item(self, name: str, line: int) -> Item:
        starts, path = self._open(name), self._paths[name]
        with path.open("rb") as file:
            file.seek(starts[line - 1])
            text, encoding = decoded(file.readline(LINE_BYTES + 1))
        found = read_item(f"{path}:{line}", Line(line, text, encoding))
        if isinstance(found, Problem):
            raise ConfigError(f"{found.where}: {found.reason}")
        return found

    def rendered(self, name: str, line: int) -> Rendered:
        """The item with its media, which must be those that it was made from."""
        item = self.item(name, line)
        try:
            return Rendered(item, media_of(item, self._paths[name]).given)
        except MediaError as error:
            raise ConfigError(f"{self._paths[name]}:{line}: {error}") from error
