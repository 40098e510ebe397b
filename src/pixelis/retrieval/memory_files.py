"""The files of a memory, which a process may leave at any byte.

    memory/
      memory.json     what the keys are: sizes of the two halves, which encoders made them; written once
      rows.bin        32 bytes an item: where its line lies, checksums of line and key, and of these 32 bytes
      items.jsonl     the items, a line each; a deleted one is blanks
      keys.f16        the keys, text half and visual half, each of unit length, half precision; a deleted one is zeros
      deleted.bin     16 bytes for each item that was deleted: its row, and a checksum of its id
      files/          media and traces that items brought along, named by their content
      index.json      which index file is valid, for which rows (`memory_index`)

An append writes key, line, kept files and then the row, each made durable before the next is begun: an item is there
when its row is. What lies behind the last whole row is an append that was cut off; it is dropped at open, with the
files that its line names. A rollback cuts the rows first, and a deletion notes itself first and erases then, so that
both are finished at the next open.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.errors import MemoryFileError
from pixelis.retrieval.memory_item import Draft, KeptFile, MemoryItem
from pixelis.rundir import replacing, sync, write_whole

ROWS, ITEMS, KEYS, DELETED, FILES = "rows.bin", "items.jsonl", "keys.f16", "deleted.bin", "files"
ROW = np.dtype([("at", "<u8"), ("length", "<u4"), ("line", "<u4"), ("key", "<u4"), ("spare", "<u8"), ("own", "<u4")])
GONE = np.dtype([("row", "<u8"), ("id", "<u4"), ("own", "<u4")])


class Recovered(NamedTuple):
    """What an open found behind the last whole item and dropped."""

    rows: int
    """Rows that were begun, whole or not."""
    bytes: int
    """Of rows, lines and keys."""


class MemoryFiles:
    """Rows, lines and keys on disk. One writer; a reader sees what was there when it opened."""

    def __init__(self, folder: Path, dimensions: int, *, writing: bool) -> None:
        self.folder, self.dimensions, self.writing = folder, dimensions, writing
        self._row_bytes = 2 * dimensions
        self.recovered = Recovered(0, 0)
        self.keys: NDArray[np.float16]
        self._mapped: np.memmap[Any, np.dtype[np.float16]] | None = None
        self._scattered = False
        try:
            self._open()
        except OSError as error:
            raise MemoryFileError(f"{error.filename or folder} cannot be opened ({error.strerror})") from error

    def _open(self) -> None:
        if self.writing:
            for name in (ROWS, ITEMS, KEYS, DELETED):
                (self.folder / name).touch()
        gone = np.frombuffer(whole(self._path(DELETED).read_bytes(), GONE), GONE)
        deleted = {int(entry["row"]): int(entry["id"]) for entry in gone[checked(gone)]}
        self._rows = self._whole_rows(self._path(ROWS).read_bytes())
        self.deleted = {row: own for row, own in deleted.items() if row < len(self)}
        """Rows of deleted items, each with the checksum of its id; 0 where the line that named it was damaged."""
        sizes = {ROWS: len(self) * ROW.itemsize, ITEMS: self._end, KEYS: len(self) * self._row_bytes}
        left_over = {name: self._path(name).stat().st_size - size for name, size in sizes.items()}
        for name, extra in left_over.items():
            if extra < 0:
                raise MemoryFileError(
                    f"{self._path(name)} is {-extra} bytes too short for the {len(self)} items of {ROWS}: "
                    "it was cut or replaced; restore it, or build the memory again"
                )
        self.recovered = Recovered(-(-left_over[ROWS] // ROW.itemsize), sum(left_over.values()))
        if self.writing:
            self._rewrite_deleted()
            self._finish(left_over, sizes)
        self._map()

    def _finish(self, left_over: dict[str, int], sizes: dict[str, int]) -> None:
        """End what a process that is gone had begun: an append, a rollback, a deletion."""
        for begun in self.folder.glob(".*.part"):
            begun.unlink(missing_ok=True)
        lines = read_at(self._path(ITEMS), sizes[ITEMS], left_over[ITEMS]).split(b"\n")[:-1]
        self._remove_files([kept for line in lines for kept in files_named(line)])
        for name, extra in left_over.items():
            if extra:
                cut(self._path(name), sizes[name])
        for row in self.deleted:
            self._erase(row)

    def _whole_rows(self, content: bytes) -> NDArray[np.void]:
        """The rows up to the last whole one. An append that was cut off leaves a part of a row, or zeros after a power
        cut; anything else that is no row, or has whole ones behind it, is damage."""
        rows = np.frombuffer(whole(content, ROW), ROW)
        good = checked(rows)
        bad = int(np.argmin(good)) if len(good) and not good.all() else len(rows)
        if good[bad:].any() or any(rows[bad:].tobytes()):
            raise MemoryFileError(
                f"{self._path(ROWS)}: row {bad} is damaged; restore the file, or build the memory again"
            )
        return rows[:bad].copy()  # what a whole row speaks of was on the disk before it

    def _path(self, name: str) -> Path:
        return self.folder / name

    @property
    def _end(self) -> int:
        """Bytes of lines."""
        return int(self._rows[-1]["at"]) + int(self._rows[-1]["length"]) if len(self._rows) else 0

    def _map(self) -> None:
        """The keys as an array without reading them; mapped anew whenever their file changes length."""
        shape = (len(self), self.dimensions)
        if not len(self):
            self._mapped, self.keys = None, np.zeros(shape, np.float16)
            return
        self._mapped = np.memmap(self._path(KEYS), np.dtype("<f2"), "r", shape=shape)
        self.keys = self._mapped
        self._advise(mmap.MADV_RANDOM if self._scattered else mmap.MADV_NORMAL)

    def _advise(self, advice: int) -> None:
        if self._mapped is not None:
            pages: Any = self._mapped.base
            pages.madvise(advice)

    def read_scattered(self, scattered: bool) -> None:
        """Say how keys are about to be read: here and there by a re-rank, or from end to end.

        A re-rank of 256 rows that are not in memory would otherwise read 128 KB around each of them.
        """
        self._scattered = scattered
        self._advise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)

    def let_go(self) -> None:
        """Give the pages of the keys back; the next search reads them from the disk, or from the system's cache."""
        self._advise(mmap.MADV_DONTNEED)

    def __len__(self) -> int:
        """Rows, those of deleted items included: a row's number is its item's for ever."""
        return len(self._rows)

    def digest(self, rows: int) -> str:
        """A hash of the first rows, and through their checksums of items and keys.

        No CRC: over rows that end in their own CRC it would be the same for all of them.
        """
        return hashlib.sha256(self._rows[:rows].tobytes()).hexdigest()

    def item(self, row: int) -> MemoryItem | None:
        """The item of a row; None where it was deleted. MemoryFileError where its line is not what was written."""
        if row in self.deleted:
            return None
        entry = self._rows[row]
        line = read_at(self._path(ITEMS), int(entry["at"]), int(entry["length"]))
        if zlib.crc32(line) != entry["line"]:
            raise self._damaged(row)
        return MemoryItem.decode(line)

    def items(self) -> Iterator[tuple[int, MemoryItem]]:
        """Every item that is there, with its row."""
        with self._path(ITEMS).open("rb") as file:
            for row in range(len(self)):
                line = file.read(int(self._rows[row]["length"]))
                if row in self.deleted:
                    continue
                if zlib.crc32(line) != self._rows[row]["line"]:
                    raise self._damaged(row)
                yield row, MemoryItem.decode(line)

    def _damaged(self, row: int) -> MemoryFileError:
        told = f"`pixelis index delete {self.folder} --row {row}` takes it out"
        return MemoryFileError(f"{self._path(ITEMS)}: item {row} is damaged; {told}")

    def damaged(self) -> Iterator[int]:
        """Rows whose key or line is not what was written: reads every byte."""
        with self._path(ITEMS).open("rb") as file:
            for row in range(len(self)):
                line = file.read(int(self._rows[row]["length"]))
                key = zlib.crc32(self.keys[row].tobytes())
                if row not in self.deleted and (
                    zlib.crc32(line) != self._rows[row]["line"] or key != self._rows[row]["key"]
                ):
                    yield row

    def append(self, drafts: Sequence[Draft]) -> range:
        """The rows of new items. When this returns they are on the disk; before, some of them may be, each whole."""
        self._require_writing()
        lines = [draft.item.encode() for draft in drafts]
        keys = np.stack([draft.key.joined for draft in drafts]).astype("<f2")  # (n, dimensions)
        rows = np.zeros(len(drafts), ROW)
        rows["length"] = [len(line) for line in lines]
        rows["at"] = self._end + np.concatenate([[0], np.cumsum(rows["length"])[:-1]])
        rows["line"] = [zlib.crc32(line) for line in lines]
        rows["key"] = [zlib.crc32(key.tobytes()) for key in keys]
        rows["own"] = [zlib.crc32(row.tobytes()[:-4]) for row in rows]
        first = len(self)
        try:
            append(self._path(KEYS), keys.tobytes(), at=first * self._row_bytes)
            append(self._path(ITEMS), b"".join(lines), at=self._end)
            self._keep_files(drafts)
            append(self._path(ROWS), rows.tobytes(), at=first * ROW.itemsize)
        except OSError as error:
            raise MemoryFileError(f"{self.folder}: the append failed ({error.strerror}); it will be dropped") from error
        self._rows = np.concatenate([self._rows, rows])
        self._map()
        return range(first, len(self))

    def _keep_files(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            for kept in draft.item.files:
                path = self.path_of(kept)
                if not path.exists() or path.stat().st_size != kept.size_bytes:
                    write_whole(path, draft.blobs[kept.sha256])

    def path_of(self, kept: KeptFile) -> Path:
        return self.folder / FILES / kept.name

    def rollback(self, rows: int) -> None:
        """Back to the first `rows` rows, byte for byte; what was deleted since then stays deleted."""
        self._require_writing()
        if not 0 <= rows <= len(self):
            raise MemoryFileError(f"{self.folder} has {len(self)} rows: it cannot go back to {rows}")
        end = self._end
        cut(self._path(ROWS), rows * ROW.itemsize)  # from here on the rest is an append that was cut off
        self._rows = self._rows[:rows].copy()
        self.deleted = {row: own for row, own in self.deleted.items() if row < rows}
        self._rewrite_deleted()
        self._map()
        lines = read_at(self._path(ITEMS), self._end, end - self._end).split(b"\n")[:-1]
        self._remove_files([kept for line in lines for kept in files_named(line)])  # while their names are there
        cut(self._path(ITEMS), self._end)
        cut(self._path(KEYS), rows * self._row_bytes)

    def delete(self, row: int) -> None:
        """Erase an item's line, key and files. Its row number is never given to another."""
        self._require_writing()
        try:
            item = self.item(row)
        except MemoryFileError:  # its line is damaged: nobody knows its id
            item = None
        self.deleted[row] = zlib.crc32(item.id.encode()) if item else 0
        self._rewrite_deleted()
        self._erase(row)
        self._map()

    def was_deleted(self, item_id: str) -> bool:
        """Whether an item of this id was taken out, as far as a checksum tells."""
        return zlib.crc32(item_id.encode()) in self.deleted.values()

    def _erase(self, row: int) -> None:
        """Files first: the line is what names them. A damaged line can go too, but leaves its files behind."""
        entry = self._rows[row]
        at, length = int(entry["at"]), int(entry["length"])
        self._remove_files(files_named(read_at(self._path(ITEMS), at, length)))
        overwrite(self._path(ITEMS), b" " * (length - 1) + b"\n", at=at)
        overwrite(self._path(KEYS), bytes(self._row_bytes), at=row * self._row_bytes)

    def _rewrite_deleted(self) -> None:
        gone = np.zeros(len(self.deleted), GONE)
        gone["row"] = sorted(self.deleted)
        gone["id"] = [self.deleted[row] for row in sorted(self.deleted)]
        gone["own"] = [zlib.crc32(entry.tobytes()[:-4]) for entry in gone]
        content = gone.tobytes()
        if self._path(DELETED).read_bytes() != content:
            with replacing(self._path(DELETED)) as file:
                file.write(content)

    def _remove_files(self, files: Sequence[KeptFile]) -> None:
        """Files that no item names any more."""
        named = {kept.name for kept in files}
        still = {kept.name for _, item in self.items() for kept in item.files} if named else set()
        for name in named:
            path = self.folder / FILES / name
            for begun in path.parent.glob(f".{path.name}.*.part"):
                begun.unlink(missing_ok=True)
            if name not in still:
                path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    def orphans(self) -> list[Path]:
        """Kept files that no item names."""
        named = {kept.name for _, item in self.items() for kept in item.files}
        below = self.folder / FILES
        return [f for f in sorted(below.rglob("*")) if f.is_file() and f.relative_to(below).as_posix() not in named]

    def _require_writing(self) -> None:
        if not self.writing:
            raise MemoryFileError(f"{self.folder} was opened for reading only")


def files_named(line: bytes) -> tuple[KeptFile, ...]:
    """The kept files of a line; none where it is blank or damaged."""
    try:
        return MemoryItem.decode(line).files
    except MemoryFileError:
        return ()


def checked(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which rows carry the checksum of their own bytes."""
    content, size = rows.tobytes(), rows.dtype.itemsize
    own = (zlib.crc32(content[at : at + size - 4]) for at in range(0, len(content), size))
    return np.fromiter(own, np.uint32, len(rows)) == rows["own"]


def whole(content: bytes, row: np.dtype[np.void]) -> bytes:
    """The content without a row that is not complete."""
    return content[: len(content) // row.itemsize * row.itemsize]


def read_at(path: Path, at: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(length)


def append(path: Path, content: bytes, *, at: int) -> None:
    """Write at the end that is known, over whatever a failed append left there, and make it last."""
    with path.open("r+b") as file:
        file.seek(at)
        file.truncate()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def overwrite(path: Path, content: bytes, *, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        if file.read(len(content)) == content:
            return
        file.seek(at)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    sync(path.parent)
