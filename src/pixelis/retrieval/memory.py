"""The retrieval memory: trajectories that were accepted, found again by what was asked and what was looked at
(subsec:ttrl "Hybrid retrieval", supp:retrieval_index, supp:index_whitelist_dedup).

    with Memory.open(folder, mask=mask) as memory:
        memory.add([draft])                          # on the disk when it returns
        memory.search(key, k=8, without=shown)       # nearest first
        mark = memory.watermark                      # …
        memory.rollback(mark)                        # byte for byte what it was

`remembering.remember` asks the evaluation mask before it makes a vector; `add` takes nothing that no mask has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from pixelis.config import Config
from pixelis.errors import LeakageError, MemoryFileError
from pixelis.retrieval.collection import Progress, silent
from pixelis.retrieval.keys import Key, unit, unit_halves
from pixelis.retrieval.mask import EvaluationMask
from pixelis.retrieval.memory_files import MemoryFiles, Recovered
from pixelis.retrieval.memory_head import MASK, MemoryHead, read_memory_head, write_memory_head
from pixelis.retrieval.memory_index import Coded, Found, IndexConfig, Searcher, train
from pixelis.retrieval.memory_index_files import AGAIN, IndexHead, forget_index, load_index, read_head, save_index
from pixelis.retrieval.memory_item import Draft, MemoryItem
from pixelis.retrieval.memory_repeats import PROPOSED, Added, repeated
from pixelis.rundir import write_json


class MemoryConfig(Config):
    """What a memory takes in, and how it is searched."""

    index: IndexConfig = IndexConfig()
    near_duplicate: float | None = Field(default=0.97, gt=0.0, le=1.0)
    """Similarity, words and looks alike in weight, over which a new item only repeats one that is there and is left
    out; None takes everything."""


SETTINGS = "settings.json"


class Neighbour(NamedTuple):
    """An item of a neighbourhood."""

    row: int
    similarity: float
    item: MemoryItem


class Memory:
    """A folder of items with their keys and an index over them. One process writes; others may read."""

    def __init__(
        self,
        folder: Path,
        config: MemoryConfig | None = None,
        *,
        mask: EvaluationMask | None = None,
        writing: bool = True,
        append_only: bool = False,
        floor: int | None = None,
        rebuild: bool = False,
        progress: Progress = silent,
    ) -> None:
        self.folder, self.mask = Path(folder), mask
        self.head = read_memory_head(self.folder)
        self.config = config or kept_settings(self.folder)
        self.append_only = append_only
        self._lock = FileLock(self.folder / ".lock")
        if writing:
            try:
                self._lock.acquire(timeout=0)
            except Timeout as error:
                raise MemoryFileError(f"{self.folder} is being written by another process; wait for it") from error
        try:
            self.files = MemoryFiles(self.folder, self.head.dimensions, writing=writing)
            self._floor = len(self.files) if floor is None else floor
            self._sources: dict[str, list[int]] | None = None
            self._searcher = self._opened(rebuild, progress)
            self._searcher.follow(self.files.keys)
            self._erase_codes()
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        text_dimensions: int,
        visual_dimensions: int,
        encoders: str,
        config: MemoryConfig | None = None,
        mask: EvaluationMask | None = None,
    ) -> Memory:
        """A new memory, empty, whose settings later opens take; MemoryFileError where the folder holds one already."""
        head = MemoryHead(
            text_dimensions=text_dimensions,
            visual_dimensions=visual_dimensions,
            encoders=encoders,
            mask=mask.digest if mask is not None else None,
        )
        write_memory_head(Path(folder), head)
        write_json(Path(folder) / SETTINGS, (config or MemoryConfig()).model_dump(mode="json"))
        return cls(folder, config, mask=mask)

    @classmethod
    def open(
        cls,
        folder: Path,
        config: MemoryConfig | None = None,
        *,
        mask: EvaluationMask | None = None,
        append_only: bool = False,
        floor: int | None = None,
        rebuild: bool = False,
        progress: Progress = silent,
    ) -> Memory:
        """For writing. `append_only`, during evaluation: what is there at open, or the first `floor` rows, can be
        neither removed nor retrained."""
        return cls(folder, config, mask=mask, append_only=append_only, floor=floor, rebuild=rebuild, progress=progress)

    @classmethod
    def reading(cls, folder: Path, config: MemoryConfig | None = None) -> Memory:
        """As it is now; nothing is mended and nothing can be added."""
        return cls(folder, config, writing=False)

    def _opened(self, rebuild: bool, progress: Progress) -> Searcher:
        """The index of the disk where one is wanted; MemoryFileError where it is damaged and may not be made again."""
        kind = self.config.index.kind_for(len(self.files))
        if kind == "exact":
            return self._searching(None)
        try:
            head = read_head(self.folder)
            if head is not None:
                self._require_own(head, kind)
                return self._searching(load_index(self.folder, head, self.head.text_dimensions, self.config.index))
        except MemoryFileError:
            if not (rebuild and self.files.writing):
                raise
            head = None
        if head is None and not (rebuild and self.files.writing):
            return self._searching(None)  # never trained: exact, whatever the size
        return self._searching(self._made(progress))

    def _require_own(self, head: IndexHead, kind: str) -> None:
        where = self.folder / head.file
        settings = self.config.index.made_from
        other = [name for name in settings if head.settings.get(name) != settings[name]]
        if head.kind != kind:
            raise MemoryFileError(f"{where} is {head.kind}, the settings want {kind}; {AGAIN.format(self.folder)}")
        if other:
            raise MemoryFileError(
                f"{where} was made with other settings ({', '.join(other)}); {AGAIN.format(self.folder)}"
            )
        if head.rows > len(self.files) or head.digest != self.files.digest(head.rows):
            raise MemoryFileError(f"{where} was made of other items; {AGAIN.format(self.folder)}")

    def _searching(self, coded: Coded | None) -> Searcher:
        self.files.read_scattered(coded is not None)
        return Searcher(self.config.index, self.head.text_dimensions, self.head.dimensions, coded)

    def _made(self, progress: Progress) -> Coded | None:
        kind = self.config.index.kind_for(len(self.files))
        if kind == "exact" or not len(self.files):
            forget_index(self.folder)
            return None
        self.files.read_scattered(False)
        coded = train(self.files.keys, self.config.index, self.head.text_dimensions, kind=kind, progress=progress)
        save_index(self.folder, coded, self.config.index, self.files.digest(len(coded)))
        return coded

    def build_index(self, *, progress: Progress = silent) -> None:
        """Learn an index from all keys, where the memory is large enough for one, and write it."""
        self._require_free("its index may not be trained again")
        write_json(self.folder / SETTINGS, self.config.model_dump(mode="json"))
        self._searcher = self._searching(self._made(progress))
        self._searcher.follow(self.files.keys)

    def save_index(self) -> None:
        """Write the index as it has grown, so that the next open need not code those rows again."""
        coded = self._searcher.coded
        if coded is not None:
            save_index(self.folder, coded, self.config.index, self.files.digest(len(coded)))

    @property
    def kind(self) -> str:
        """What serves searches: exact, ivfpq or hnsw-text."""
        return self._searcher.coded.kind if self._searcher.coded else "exact"

    @property
    def coded(self) -> Coded | None:
        """The approximate part of the index, where there is one."""
        return self._searcher.coded

    @property
    def recovered(self) -> Recovered:
        return self.files.recovered

    def __len__(self) -> int:
        """Items that are there."""
        return len(self.files) - len(self.files.deleted)

    @property
    def watermark(self) -> int:
        """Where the memory stands: a number for `rollback`."""
        return len(self.files)

    def items(self) -> Iterator[tuple[int, MemoryItem]]:
        return self.files.items()

    def find(self, item_id: str) -> int:
        """The row of an item; MemoryFileError where there is none of that name, or several."""
        rows = [row for row, item in self.items() if item.id == item_id]
        if len(rows) != 1:
            several = f"rows {', '.join(map(str, rows))} all have the id {item_id!r}: say which with --row"
            raise MemoryFileError(f"{self.folder}: {several if rows else f'there is no item {item_id!r}'}")
        return rows[0]

    def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """Append what is new. LeakageError, and nothing is added, where one of them shows evaluation media."""
        for draft in drafts:
            self._require_clean(draft)
        drafts = [draft._replace(key=Key(unit(draft.key.text), unit(draft.key.visual))) for draft in drafts]
        outcomes = self._repeats(drafts)
        fresh = [number for number, outcome in enumerate(outcomes) if outcome.repeats is None]
        if fresh:
            rows = self.files.append([drafts[number] for number in fresh])
            placed = dict(zip(fresh, rows, strict=True))
            # a repeat of another draft was told by that draft's place in the call
            outcomes = [
                Added(placed[n]) if n in placed
                else o if o.repeats is None or o.repeats >= 0
                else o._replace(repeats=placed[-o.repeats - 1])
                for n, o in enumerate(outcomes)
            ]  # fmt: skip
            self._sources = None
            self._searcher.follow(self.files.keys)
        return outcomes

    def _require_clean(self, draft: Draft) -> None:
        item, key = draft.item, draft.key
        if (key.text.shape, key.visual.shape) != ((self.head.text_dimensions,), (self.head.visual_dimensions,)):
            raise MemoryFileError(
                f"{item.id}: a key of {key.text.size} + {key.visual.size} values; this memory has "
                f"{self.head.text_dimensions} + {self.head.visual_dimensions}: it was made with other encoders"
            )
        if not (np.isfinite(key.text).all() and np.isfinite(key.visual).all()):
            raise MemoryFileError(f"{item.id}: its key holds NaN or infinity")
        for kept in item.files:
            if hashlib.sha256(draft.blobs.get(kept.sha256, b"")).hexdigest() != kept.sha256:
                raise MemoryFileError(f"{item.id}: the bytes of its {kept.role} file were not handed over")
        if self.mask is None:
            if self.head.mask is not None:
                raise LeakageError(f"{self.folder} was made under an evaluation mask: put its {MASK} back to add to it")
            return
        self.mask.refuse([medium.sha256 for medium in item.media], what=item.id)
        if item.media and item.screened != self.mask.digest:
            raise LeakageError(
                f"{item.id}: {item.media[0].name} was not compared with this evaluation mask; `remember` does that"
            )

    def _repeats(self, drafts: Sequence[Draft]) -> list[Added]:
        """Which drafts repeat a row, or an earlier draft that stays (as −1 − its number)."""
        text, most = self.head.text_dimensions, self.config.near_duplicate
        if most is None or not drafts:
            return [Added(None) for _ in drafts]
        keys = unit_halves(np.stack([draft.key.joined for draft in drafts]), text)
        proposed = self.search_rows(keys, PROPOSED).rows
        return repeated(keys, proposed, self.files.keys, text_dimensions=text, most=most)

    def search(
        self, key: Key, k: int = 8, *, without: Collection[int] = (), allowed: NDArray[np.bool_] | None = None
    ) -> list[Neighbour]:
        """The nearest items, nearest first; none in an empty memory. `without` and `allowed` mask rows out."""
        found = self.search_rows(key.joined[None], k, without=without, allowed=allowed)
        neighbours = []
        for row, similarity in zip(found.rows[0], found.similarity[0], strict=True):
            item = self.files.item(int(row)) if row >= 0 else None
            if item is not None:
                neighbours.append(Neighbour(int(row), float(similarity), item))
        return neighbours

    def search_rows(
        self,
        keys: NDArray[np.float32],
        k: int,
        *,
        without: Collection[int] = (),
        allowed: NDArray[np.bool_] | None = None,
    ) -> Found:
        """The same for many keys at once, as row numbers."""
        if keys.shape[1] != self.head.dimensions:
            raise MemoryFileError(f"a key of {keys.shape[1]} values; {self.folder} has {self.head.dimensions}")
        if allowed is not None and len(allowed) != len(self.files):
            raise MemoryFileError(f"a mask of {len(allowed)} rows; {self.folder} has {len(self.files)}")
        hidden = {*self.files.deleted, *without}
        if hidden or allowed is not None:
            rows = np.ones(len(self.files), bool) if allowed is None else np.array(allowed, bool)
            rows[[row for row in hidden if row < len(rows)]] = False
            allowed = rows
        queries = np.ascontiguousarray(unit_halves(keys, self.head.text_dimensions))
        return self._searcher.search(self.files.keys, queries, k, allowed)

    def rows_showing(self, sha256s: Collection[str]) -> set[int]:
        """Rows of the same source: they show one of these very files."""
        if self._sources is None:
            self._sources = {}
            for row, item in self.items():
                for medium in item.media:
                    self._sources.setdefault(medium.sha256, []).append(row)
        return {row for sha256 in sha256s for row in self._sources.get(sha256, ())}

    def delete(self, row: int) -> None:
        """Take an item out for good, with its key, its line and the files that no other item names."""
        self._require_free("nothing can be deleted")
        if not 0 <= row < len(self.files) or row in self.files.deleted:
            raise MemoryFileError(f"{self.folder} has no item in row {row}")
        self.files.delete(row)
        self._sources = None
        self._erase_codes()

    def _erase_codes(self) -> None:
        """Deleted items leave no code in the index either; a code is a blurred key."""
        if self.coded is not None and self.files.writing and self.coded.erase(self.files.deleted):
            self.save_index()

    def rollback(self, watermark: int) -> None:
        """Back to a watermark: rows, lines, keys and kept files as they were. What was deleted since stays deleted."""
        self.require_reachable(watermark)
        head = read_head(self.folder)
        if head is not None and head.rows > watermark:
            forget_index(self.folder)  # before the rows go: an index of other rows must never be found
        self.files.rollback(watermark)
        self._sources = None
        if not self._searcher.rollback(self.files.keys):
            self._searcher = self._opened(rebuild=True, progress=silent)
            self._searcher.follow(self.files.keys)
        elif head is not None and head.rows > watermark:
            self.save_index()

    def require_reachable(self, watermark: int) -> None:
        """MemoryFileError where there is no way back to it."""
        if self.append_only and watermark < self._floor:
            raise MemoryFileError(f"{self.folder} is append-only: it keeps its first {self._floor} rows")
        if not 0 <= watermark <= len(self.files):
            raise MemoryFileError(f"{self.folder} has {len(self.files)} rows: it cannot go back to {watermark}")

    def _require_free(self, what: str) -> None:
        if self.append_only:
            raise MemoryFileError(f"{self.folder} is append-only while it is evaluated: {what}")

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def kept_settings(folder: Path) -> MemoryConfig:
    """The settings that the memory was made or indexed with; the defaults where they are not there."""
    path = folder / SETTINGS
    try:
        return MemoryConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return MemoryConfig()
    except (OSError, ValidationError) as error:
        raise MemoryFileError(
            f"{path} holds no settings ({str(error).splitlines()[0][:100]}); name a --config"
        ) from error
