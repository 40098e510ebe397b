"""The retrieval memory: trajectories that were accepted, found again by what was asked and what was looked at
(subsec:ttrl "Hybrid retrieval", supp:retrieval_index, supp:index_whitelist_dedup).

    with MemoryStore(folder, mask=mask) as memory:
        memory.add([draft])                          # on the disk when it returns
        memory.search(key, k=8, exclude=shown)       # nearest first
        mark = memory.watermark                      # …
        memory.rollback(mark)                        # byte for byte what it was

`builder.build_draft` asks the evaluation mask before it makes a vector; `add` refuses what no mask has checked.
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

from pixelis.core.config import Config
from pixelis.core.errors import LeakageError, MemoryFileError
from pixelis.core.provenance import write_json
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_collection import ProgressCallback, no_progress
from pixelis.memory.keys import Key, normalise_halves, normalise_rows
from pixelis.memory.memory_files import MemoryFiles, RecoveryReport
from pixelis.memory.memory_head import MASK_FILE, MemoryHead, read_memory_head, write_memory_head
from pixelis.memory.memory_item import MemoryDraft, MemoryItem
from pixelis.memory.near_duplicates import NUM_CANDIDATES, AddOutcome, find_repeats
from pixelis.memory.vector_index import ApproximateIndex, IndexConfig, Searcher, SearchResult, train_index
from pixelis.memory.vector_index_files import (
    REINDEX_HINT,
    IndexHead,
    delete_index,
    load_index,
    read_index_head,
    save_index,
)


class MemoryConfig(Config):
    """What a memory accepts, and how it is searched."""

    index: IndexConfig = IndexConfig()
    near_duplicate: float | None = Field(default=0.97, gt=0.0, le=1.0)
    """Similarity, words and looks alike in weight, over which a new item is a repeat and is left out; None
    accepts everything."""


SETTINGS_FILE = "settings.json"


class Neighbour(NamedTuple):
    """An item of a neighbourhood."""

    row: int
    similarity: float
    item: MemoryItem


class MemoryStore:
    """A folder of items with their keys and an index over them. One process writes; others may read.

    With `append_only` (during evaluation) the rows present at open, or the first `floor` rows, can be neither removed
    nor reindexed. `rebuild` replaces an index that is damaged or was built with other settings.
    """

    def __init__(
        self,
        folder: Path,
        config: MemoryConfig | None = None,
        *,
        mask: EvaluationMask | None = None,
        writable: bool = True,
        append_only: bool = False,
        floor: int | None = None,
        rebuild: bool = False,
        progress: ProgressCallback = no_progress,
    ) -> None:
        self.folder, self.mask = Path(folder), mask
        self.head = read_memory_head(self.folder)
        self.config = config or read_settings(self.folder)
        self.append_only = append_only
        self._lock = FileLock(self.folder / ".lock")
        if writable:
            try:
                self._lock.acquire(timeout=0)
            except Timeout as error:
                raise MemoryFileError(f"{self.folder} is being written by another process; wait for it") from error
        try:
            self.files = MemoryFiles(self.folder, self.head.dimensions, writable=writable)
            self._floor = len(self.files) if floor is None else floor
            self._sources: dict[str, list[int]] | None = None
            self._searcher = self._open_index(rebuild, progress)
            self._searcher.add_new_rows(self.files.keys)
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
    ) -> MemoryStore:
        """Create an empty memory; later opens read its settings. MemoryFileError if the folder holds one already."""
        head = MemoryHead(
            text_dimensions=text_dimensions,
            visual_dimensions=visual_dimensions,
            encoders=encoders,
            mask=mask.digest if mask is not None else None,
        )
        write_memory_head(Path(folder), head)
        write_json(Path(folder) / SETTINGS_FILE, (config or MemoryConfig()).model_dump(mode="json"))
        return cls(folder, config, mask=mask)

    @classmethod
    def open_read_only(cls, folder: Path, config: MemoryConfig | None = None) -> MemoryStore:
        """Open without repairs; nothing can be added."""
        return cls(folder, config, writable=False)

    def _open_index(self, rebuild: bool, progress: ProgressCallback) -> Searcher:
        """The index on disk, if one is configured; MemoryFileError if it is damaged and may not be rebuilt."""
        kind = self.config.index.kind_for(len(self.files))
        if kind == "exact":
            return self._make_searcher(None)
        try:
            head = read_index_head(self.folder)
            if head is not None:
                self._require_matching_index(head, kind)
                return self._make_searcher(load_index(self.folder, head, self.head.text_dimensions, self.config.index))
        except MemoryFileError:
            if not (rebuild and self.files.writable):
                raise
            head = None
        if head is None and not (rebuild and self.files.writable):
            return self._make_searcher(None)  # never trained: search is exact, whatever the size
        return self._make_searcher(self._build_index(progress))

    def _require_matching_index(self, head: IndexHead, kind: str) -> None:
        index_path = self.folder / head.file
        settings = self.config.index.build_settings
        changed = [name for name in settings if head.settings.get(name) != settings[name]]
        if head.kind != kind:
            raise MemoryFileError(
                f"{index_path} is {head.kind}, the settings want {kind}; {REINDEX_HINT.format(self.folder)}"
            )
        if changed:
            raise MemoryFileError(
                f"{index_path} was made with other settings ({', '.join(changed)}); {REINDEX_HINT.format(self.folder)}"
            )
        if head.rows > len(self.files) or head.digest != self.files.digest(head.rows):
            raise MemoryFileError(f"{index_path} was made of other items; {REINDEX_HINT.format(self.folder)}")

    def _make_searcher(self, approx_index: ApproximateIndex | None) -> Searcher:
        self.files.set_random_access(approx_index is not None)
        return Searcher(self.config.index, self.head.text_dimensions, self.head.dimensions, approx_index)

    def _build_index(self, progress: ProgressCallback) -> ApproximateIndex | None:
        kind = self.config.index.kind_for(len(self.files))
        if kind == "exact" or not len(self.files):
            delete_index(self.folder)
            return None
        self.files.set_random_access(False)
        approx_index = train_index(
            self.files.keys, self.config.index, self.head.text_dimensions, kind=kind, progress=progress
        )
        save_index(self.folder, approx_index, self.config.index, self.files.digest(len(approx_index)))
        return approx_index

    def build_index(self, *, progress: ProgressCallback = no_progress) -> None:
        """Train an index on all keys, if the memory is large enough for one, and write it."""
        self._require_mutable("its index may not be trained again")
        write_json(self.folder / SETTINGS_FILE, self.config.model_dump(mode="json"))
        self._searcher = self._make_searcher(self._build_index(progress))
        self._searcher.add_new_rows(self.files.keys)

    def save_index(self) -> None:
        """Write the grown index, so that the next open need not encode those rows again."""
        approx_index = self._searcher.approx_index
        if approx_index is not None:
            save_index(self.folder, approx_index, self.config.index, self.files.digest(len(approx_index)))

    @property
    def kind(self) -> str:
        """The kind of index that answers searches: exact, ivfpq or hnsw-text."""
        return self._searcher.approx_index.kind if self._searcher.approx_index else "exact"

    @property
    def approx_index(self) -> ApproximateIndex | None:
        """The approximate part of the index, where there is one."""
        return self._searcher.approx_index

    @property
    def recovered(self) -> RecoveryReport:
        return self.files.recovered

    def __len__(self) -> int:
        """Number of items, without the deleted ones."""
        return len(self.files) - len(self.files.deleted)

    @property
    def watermark(self) -> int:
        """The number of rows now, for `rollback`."""
        return len(self.files)

    def items(self) -> Iterator[tuple[int, MemoryItem]]:
        return self.files.items()

    def find(self, item_id: str) -> int:
        """The row of an item; MemoryFileError if no item, or more than one, has this id."""
        rows = [row for row, item in self.items() if item.id == item_id]
        if len(rows) != 1:
            ambiguous = f"rows {', '.join(map(str, rows))} all have the id {item_id!r}: say which with --row"
            raise MemoryFileError(f"{self.folder}: {ambiguous if rows else f'there is no item {item_id!r}'}")
        return rows[0]

    def add(self, drafts: Sequence[MemoryDraft]) -> list[AddOutcome]:
        """Append new items. Raises LeakageError and adds nothing if one of them shows evaluation media."""
        for draft in drafts:
            self._require_clean(draft)
        drafts = [
            draft._replace(key=Key(normalise_rows(draft.key.text), normalise_rows(draft.key.visual)))
            for draft in drafts
        ]
        outcomes = self._find_repeats(drafts)
        new_numbers = [number for number, outcome in enumerate(outcomes) if outcome.repeats is None]
        if new_numbers:
            rows = self.files.append([drafts[number] for number in new_numbers])
            row_by_number = dict(zip(new_numbers, rows, strict=True))
            # a repeat of another draft refers to that draft's place in the call
            outcomes = [
                AddOutcome(row_by_number[n]) if n in row_by_number
                else o if o.repeats is None or o.repeats >= 0
                else o._replace(repeats=row_by_number[-o.repeats - 1])
                for n, o in enumerate(outcomes)
            ]  # fmt: skip
            self._sources = None
            self._searcher.add_new_rows(self.files.keys)
        return outcomes

    def _require_clean(self, draft: MemoryDraft) -> None:
        item, key = draft.item, draft.key
        if (key.text.shape, key.visual.shape) != ((self.head.text_dimensions,), (self.head.visual_dimensions,)):
            raise MemoryFileError(
                f"{item.id}: a key of {key.text.size} + {key.visual.size} values; this memory has "
                f"{self.head.text_dimensions} + {self.head.visual_dimensions}: it was made with other encoders"
            )
        if not (np.isfinite(key.text).all() and np.isfinite(key.visual).all()):
            raise MemoryFileError(f"{item.id}: its key holds NaN or infinity")
        for stored_file in item.files:
            if hashlib.sha256(draft.blobs.get(stored_file.sha256, b"")).hexdigest() != stored_file.sha256:
                raise MemoryFileError(f"{item.id}: the bytes of its {stored_file.role} file are missing")
        if self.mask is None:
            if self.head.mask is not None:
                raise LeakageError(
                    f"{self.folder} was made under an evaluation mask: put its {MASK_FILE} back to add to it"
                )
            return
        self.mask.check_hashes([medium.sha256 for medium in item.media], label=item.id)
        if item.media and item.screened != self.mask.digest:
            raise LeakageError(
                f"{item.id}: {item.media[0].name} was not compared with this evaluation mask; use `build_draft`"
            )

    def _find_repeats(self, drafts: Sequence[MemoryDraft]) -> list[AddOutcome]:
        """Which drafts repeat a row, or an earlier draft of the same call (given as −1 − its number)."""
        text, max_similarity = self.head.text_dimensions, self.config.near_duplicate
        if max_similarity is None or not drafts:
            return [AddOutcome(None) for _ in drafts]
        keys = normalise_halves(np.stack([draft.key.vector for draft in drafts]), text)
        candidate_rows = self.search_rows(keys, NUM_CANDIDATES).rows
        return find_repeats(keys, candidate_rows, self.files.keys, text_dimensions=text, max_similarity=max_similarity)

    def search(
        self, key: Key, k: int = 8, *, exclude: Collection[int] = (), allowed: NDArray[np.bool_] | None = None
    ) -> list[Neighbour]:
        """The nearest items, nearest first; none in an empty memory. `exclude` and `allowed` mask rows out."""
        result = self.search_rows(key.vector[None], k, exclude=exclude, allowed=allowed)
        neighbours = []
        for row, similarity in zip(result.rows[0], result.similarity[0], strict=True):
            item = self.files.item(int(row)) if row >= 0 else None
            if item is not None:
                neighbours.append(Neighbour(int(row), float(similarity), item))
        return neighbours

    def search_rows(
        self,
        keys: NDArray[np.float32],
        k: int,
        *,
        exclude: Collection[int] = (),
        allowed: NDArray[np.bool_] | None = None,
    ) -> SearchResult:
        """Search for many keys at once; returns row numbers."""
        if keys.shape[1] != self.head.dimensions:
            raise MemoryFileError(f"a key of {keys.shape[1]} values; {self.folder} has {self.head.dimensions}")
        if allowed is not None and len(allowed) != len(self.files):
            raise MemoryFileError(f"a mask of {len(allowed)} rows; {self.folder} has {len(self.files)}")
        excluded = {*self.files.deleted, *exclude}
        if excluded or allowed is not None:
            rows = np.ones(len(self.files), bool) if allowed is None else np.array(allowed, bool)
            rows[[row for row in excluded if row < len(rows)]] = False
            allowed = rows
        queries = np.ascontiguousarray(normalise_halves(keys, self.head.text_dimensions))
        return self._searcher.search(self.files.keys, queries, k, allowed)

    def rows_with_media(self, sha256s: Collection[str]) -> set[int]:
        """Rows that show one of these files."""
        if self._sources is None:
            self._sources = {}
            for row, item in self.items():
                for medium in item.media:
                    self._sources.setdefault(medium.sha256, []).append(row)
        return {row for sha256 in sha256s for row in self._sources.get(sha256, ())}

    def delete(self, row: int) -> None:
        """Delete an item with its key, its line and the files that no other item refers to."""
        self._require_mutable("nothing can be deleted")
        if not 0 <= row < len(self.files) or row in self.files.deleted:
            raise MemoryFileError(f"{self.folder} has no item in row {row}")
        self.files.delete(row)
        self._sources = None
        self._erase_codes()

    def _erase_codes(self) -> None:
        """Erase the codes of deleted items: a code is a blurred key."""
        if self.approx_index is not None and self.files.writable and self.approx_index.erase(self.files.deleted):
            self.save_index()

    def rollback(self, watermark: int) -> None:
        """Restore rows, lines, keys and kept files to a watermark. Items deleted since then stay deleted."""
        self.require_reachable(watermark)
        head = read_index_head(self.folder)
        if head is not None and head.rows > watermark:
            delete_index(self.folder)  # before the rows go: an index of other rows must never be found
        self.files.rollback(watermark)
        self._sources = None
        if not self._searcher.rollback(self.files.keys):
            self._searcher = self._open_index(rebuild=True, progress=no_progress)
            self._searcher.add_new_rows(self.files.keys)
        elif head is not None and head.rows > watermark:
            self.save_index()

    def require_reachable(self, watermark: int) -> None:
        """MemoryFileError if `rollback` cannot reach this watermark."""
        if self.append_only and watermark < self._floor:
            raise MemoryFileError(f"{self.folder} is append-only: it keeps its first {self._floor} rows")
        if not 0 <= watermark <= len(self.files):
            raise MemoryFileError(f"{self.folder} has {len(self.files)} rows: it cannot go back to {watermark}")

    def _require_mutable(self, reason: str) -> None:
        if self.append_only:
            raise MemoryFileError(f"{self.folder} is append-only while it is evaluated: {reason}")

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_settings(folder: Path) -> MemoryConfig:
    """The settings that the memory was created or indexed with, or the defaults."""
    path = folder / SETTINGS_FILE
    try:
        return MemoryConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return MemoryConfig()
    except (OSError, ValidationError) as error:
        raise MemoryFileError(
            f"{path} holds no settings ({str(error).splitlines()[0][:100]}); name a --config"
        ) from error
