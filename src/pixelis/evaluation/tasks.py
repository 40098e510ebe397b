"""Evaluation tasks: items with their media, in a fixed order.

A task is a family of the world, a split of a corpus (`corpus/mine`, `corpus/mine:dev`) or a file of items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, get_args

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus import MANIFEST, Corpus
from pixelis.data.corpus.record import Split
from pixelis.data.corpus.splits import first_seed
from pixelis.data.importers import Problem, open_item_media, read_items
from pixelis.world import FAMILIES, Family, Item, RenderedItem, generate, shift_item
from pixelis.world.shifts import parse_shift

LEVELS = (1, 2, 3, 4, 5)
HELD_OUT_OFFSET = 500_000
"""Evaluation begins at this seed offset of a split, beyond the items of corpora."""


class Task(Protocol):
    """Items in a fixed order: the same limit gives the same items everywhere."""

    @property
    def name(self) -> str:
        """The name in the command line and reports."""

    def items(self, limit: int) -> Iterator[RenderedItem]:
        """The first `limit` items."""

    def size(self, limit: int) -> int:
        """The number of items of `items(limit)`."""


class WorldTask(NamedTuple):
    """One family of the world, with the five levels in turn, on seeds that no corpus of another split uses."""

    family: Family
    split: Split = "test"
    corpus_seed: int = 0
    shift: str = ""
    """`KIND:SEVERITY`, or empty."""
    skip: int = 0
    """Items before the first, whose scores were used already."""

    @property
    def name(self) -> str:
        return f"{self.family}+{self.shift}" if self.shift else self.family

    def items(self, limit: int) -> Iterator[RenderedItem]:
        start = first_seed(self.split, self.corpus_seed) + HELD_OUT_OFFSET
        for k in range(self.skip, self.skip + limit):
            rendered = generate(self.family, seed=start + k, difficulty=LEVELS[k % len(LEVELS)])
            yield apply_shift(rendered, self.shift, seed=start + k)

    def size(self, limit: int) -> int:
        return limit


class CorpusTask:
    """One split of a corpus with its refused records: items that the teacher could not solve are asked too."""

    def __init__(self, folder: Path, split: Split = "test", *, shift: str = "", skip: int = 0) -> None:
        self.corpus, self.split, self.shift, self.skip = Corpus(folder), split, shift, skip
        self.name = f"{folder}:{split}" + (f"+{shift}" if shift else "")
        counts = Counter(row.split for row in self.corpus.rows())
        self._records = counts[split]
        if not self._records:
            parts = ", ".join(f"{name} {counts[name]}" for name in get_args(Split) if counts[name])
            raise ConfigError(f"{folder} has no items in its split {split} (it has {parts}): name another with --split")

    def items(self, limit: int) -> Iterator[RenderedItem]:
        for record in islice(self.corpus.records(split=self.split), self.skip, self.skip + limit):
            rendered = RenderedItem(record.item, self.corpus.media(record).sources)
            yield apply_shift(rendered, self.shift, seed=record.item.seed)

    def size(self, limit: int) -> int:
        return max(0, min(limit, self._records - self.skip))


class ItemsTask:
    """A file of items that `pixelis data import` wrote, in its order."""

    def __init__(self, path: Path, *, shift: str = "", skip: int = 0) -> None:
        self.path, self.shift = path, shift
        self.name = f"{path}+{shift}" if shift else str(path)
        entries = list(read_items(path))
        problems = [entry for entry in entries if isinstance(entry, Problem)]
        if problems or not entries:
            complaint = f"{problems[0].where}: {problems[0].reason}" if problems else f"{path} holds no items"
            raise ConfigError(f"{complaint}; `pixelis data import questions` makes items of your own questions")
        self._items = [entry for entry in entries if isinstance(entry, Item)][skip:]

    def items(self, limit: int) -> Iterator[RenderedItem]:
        for item in self._items[:limit]:
            yield apply_shift(RenderedItem(item, open_item_media(item, self.path).sources), self.shift, seed=item.seed)

    def size(self, limit: int) -> int:
        return min(limit, len(self._items))


def apply_shift(rendered: RenderedItem, shift: str, *, seed: int) -> RenderedItem:
    """An item under a shift `KIND:SEVERITY`, or unchanged without one."""
    return shift_item(rendered, *parse_shift(shift), seed=seed) if shift else rendered


def make_tasks(names: Sequence[str], *, split: Split, shift: str = "", skip: int = 0) -> list[Task]:
    """Tasks by name, or all six families. A family takes precedence over a folder of that name: write ./search. The
    first `skip` items of each are skipped."""
    return [make_task(name, split=split, shift=shift, skip=skip) for name in dict.fromkeys(names or FAMILIES)]


def make_task(name: str, *, split: Split, shift: str = "", skip: int = 0) -> Task:
    if name in FAMILIES:
        if split == "train":
            raise ConfigError("families of the world are scored on held-out seeds; split train is for a corpus")
        return WorldTask(name, split, shift=shift, skip=skip)  # type: ignore[arg-type]
    folder, _, split_name = name.rpartition(":")
    if folder and split_name in get_args(Split) and (Path(folder) / MANIFEST).exists():
        return CorpusTask(Path(folder), split_name, shift=shift, skip=skip)  # type: ignore[arg-type]
    path = Path(name)
    if path.is_dir():
        return CorpusTask(path, split, shift=shift, skip=skip)
    if path.is_file():
        return ItemsTask(path, shift=shift, skip=skip)
    raise ConfigError(
        f"no task {name!r}: there is no such file or folder, and the families are {', '.join(FAMILIES)}; want some of "
        "these, a corpus folder, or a file of items"
    )
