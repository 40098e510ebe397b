"""The files of a memory, which survive a process that is killed at any byte.

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

from pixelis.core.atomic import atomic_write, fsync_path, write_atomic
from pixelis.core.errors import MemoryFileError
from pixelis.memory.memory_item import MemoryDraft, MemoryItem, StoredFile

ROWS, ITEMS, KEYS, DELETED, FILES = "rows.bin", "items.jsonl", "keys.f16", "deleted.bin", "files"
ROW_DTYPE = np.dtype(
    [("at", "<u8"), ("length", "<u4"), ("line", "<u4"), ("key", "<u4"), ("spare", "<u8"), ("own", "<u4")]
)
DELETED_DTYPE = np.dtype([("row", "<u8"), ("id", "<u4"), ("own", "<u4")])


class RecoveryReport(NamedTuple):
    """What opening a memory found behind the last complete item and dropped."""

    rows: int
    """Rows that were started, complete or not."""
    bytes: int
    """Dropped bytes of rows, lines and keys."""


class MemoryFiles:
    """Rows, lines and keys on disk. One writer; a reader sees what was there when it opened."""

    def __init__(self, folder: Path, dimensions: int, *, writable: bool) -> None:
        self.folder, self.dimensions, self.writable = folder, dimensions, writable
        self._row_bytes = 2 * dimensions
        self.recovered = RecoveryReport(0, 0)
        self.keys: NDArray[np.float16]
        self._mapped_keys: np.memmap[Any, np.dtype[np.float16]] | None = None
        self._random_access = False
        try:
            self._open()
        except OSError as error:
            raise MemoryFileError(f"{error.filename or folder} cannot be opened ({error.strerror})") from error

    def _open(self) -> None:
        if self.writable:
            for name in (ROWS, ITEMS, KEYS, DELETED):
                (self.folder / name).touch()
        deleted_entries = np.frombuffer(trim_incomplete(self._path(DELETED).read_bytes(), DELETED_DTYPE), DELETED_DTYPE)
        deleted = {int(entry["row"]): int(entry["id"]) for entry in deleted_entries[valid_rows(deleted_entries)]}
        self._rows = self._complete_rows(self._path(ROWS).read_bytes())
        self.deleted = {row: id_checksum for row, id_checksum in deleted.items() if row < len(self)}
        """Rows of deleted items, each with the checksum of its id; 0 where the line that named it was damaged."""
        sizes = {ROWS: len(self) * ROW_DTYPE.itemsize, ITEMS: self._items_size, KEYS: len(self) * self._row_bytes}
        trailing_bytes = {name: self._path(name).stat().st_size - size for name, size in sizes.items()}
        for name, extra in trailing_bytes.items():
            if extra < 0:
                raise MemoryFileError(
                    f"{self._path(name)} is {-extra} bytes too short for the {len(self)} items of {ROWS}: "
                    "it was cut or replaced; restore it, or build the memory again"
                )
        self.recovered = RecoveryReport(-(-trailing_bytes[ROWS] // ROW_DTYPE.itemsize), sum(trailing_bytes.values()))
        if self.writable:
            self._rewrite_deleted()
            self._finish_interrupted(trailing_bytes, sizes)
        self._map_keys()

    def _finish_interrupted(self, trailing_bytes: dict[str, int], sizes: dict[str, int]) -> None:
        """Finish what a killed process started: an append, a rollback, a deletion."""
        for partial_file in self.folder.glob(".*.part"):
            partial_file.unlink(missing_ok=True)
        lines = read_at(self._path(ITEMS), sizes[ITEMS], trailing_bytes[ITEMS]).split(b"\n")[:-1]
        self._remove_files([stored_file for line in lines for stored_file in files_in_line(line)])
        for name, extra in trailing_bytes.items():
            if extra:
                truncate_file(self._path(name), sizes[name])
        for row in self.deleted:
            self._erase(row)

    def _complete_rows(self, content: bytes) -> NDArray[np.void]:
        """The rows up to the last whole one. An append that was cut off leaves a part of a row, or zeros after a power
        cut; anything else that is not a row, or has complete rows behind it, is damage."""
        rows = np.frombuffer(trim_incomplete(content, ROW_DTYPE), ROW_DTYPE)
        is_valid = valid_rows(rows)
        first_invalid = int(np.argmin(is_valid)) if len(is_valid) and not is_valid.all() else len(rows)
        if is_valid[first_invalid:].any() or any(rows[first_invalid:].tobytes()):
            raise MemoryFileError(
                f"{self._path(ROWS)}: row {first_invalid} is damaged; restore the file, or build the memory again"
            )
        return rows[:first_invalid].copy()  # what a complete row refers to was on the disk before it

    def _path(self, name: str) -> Path:
        return self.folder / name

    @property
    def _items_size(self) -> int:
        """Bytes of lines."""
        return int(self._rows[-1]["at"]) + int(self._rows[-1]["length"]) if len(self._rows) else 0

    def _map_keys(self) -> None:
        """The keys as an array without reading them; mapped anew whenever their file changes length."""
        shape = (len(self), self.dimensions)
        if not len(self):
            self._mapped_keys, self.keys = None, np.zeros(shape, np.float16)
            return
        self._mapped_keys = np.memmap(self._path(KEYS), np.dtype("<f2"), "r", shape=shape)
        self.keys = self._mapped_keys
        self._advise(mmap.MADV_RANDOM if self._random_access else mmap.MADV_NORMAL)

    def _advise(self, advice: int) -> None:
        if self._mapped_keys is not None:
            pages: Any = self._mapped_keys.base
            pages.madvise(advice)

    def set_random_access(self, random_access: bool) -> None:
        """Advise the system how keys will be read: at random by a re-rank, or from end to end.

        A re-rank of 256 rows that are not in memory would otherwise read 128 KB around each of them.
        """
        self._random_access = random_access
        self._advise(mmap.MADV_RANDOM if random_access else mmap.MADV_NORMAL)

    def release(self) -> None:
        """Release the pages of the keys; the next search reads them from the disk, or from the system's cache."""
        self._advise(mmap.MADV_DONTNEED)

    def __len__(self) -> int:
        """Rows, those of deleted items included: a row number is never reused."""
        return len(self._rows)

    def digest(self, rows: int) -> str:
        """A hash of the first rows, and through their checksums of items and keys.

        No CRC: over rows that end in their own CRC it would be the same for all of them.
        """
        return hashlib.sha256(self._rows[:rows].tobytes()).hexdigest()

    def item(self, row: int) -> MemoryItem | None:
        """The item of a row; None if it was deleted. MemoryFileError if its line is damaged."""
        if row in self.deleted:
            return None
        entry = self._rows[row]
        line = read_at(self._path(ITEMS), int(entry["at"]), int(entry["length"]))
        if zlib.crc32(line) != entry["line"]:
            raise self._damaged_error(row)
        return MemoryItem.decode(line)

    def items(self) -> Iterator[tuple[int, MemoryItem]]:
        """Every item that was not deleted, with its row."""
        with self._path(ITEMS).open("rb") as file:
            for row in range(len(self)):
                line = file.read(int(self._rows[row]["length"]))
                if row in self.deleted:
                    continue
                if zlib.crc32(line) != self._rows[row]["line"]:
                    raise self._damaged_error(row)
                yield row, MemoryItem.decode(line)

    def _damaged_error(self, row: int) -> MemoryFileError:
        hint = f"`pixelis index delete {self.folder} --row {row}` takes it out"
        return MemoryFileError(f"{self._path(ITEMS)}: item {row} is damaged; {hint}")

    def damaged_rows(self) -> Iterator[int]:
        """Rows whose key or line is damaged; reads every byte."""
        with self._path(ITEMS).open("rb") as file:
            for row in range(len(self)):
                line = file.read(int(self._rows[row]["length"]))
                key = zlib.crc32(self.keys[row].tobytes())
                if row not in self.deleted and (
                    zlib.crc32(line) != self._rows[row]["line"] or key != self._rows[row]["key"]
                ):
                    yield row

    def append(self, drafts: Sequence[MemoryDraft]) -> range:
        """Append items and return their rows. They are on the disk when this returns; after a crash some may be, each
        complete."""
        self._require_writable()
        lines = [draft.item.encode() for draft in drafts]
        keys = np.stack([draft.key.vector for draft in drafts]).astype("<f2")  # (n, dimensions)
        rows = np.zeros(len(drafts), ROW_DTYPE)
        rows["length"] = [len(line) for line in lines]
        rows["at"] = self._items_size + np.concatenate([[0], np.cumsum(rows["length"])[:-1]])
        rows["line"] = [zlib.crc32(line) for line in lines]
        rows["key"] = [zlib.crc32(key.tobytes()) for key in keys]
        rows["own"] = [zlib.crc32(row.tobytes()[:-4]) for row in rows]
        first_row = len(self)
        try:
            append_at(self._path(KEYS), keys.tobytes(), offset=first_row * self._row_bytes)
            append_at(self._path(ITEMS), b"".join(lines), offset=self._items_size)
            self._write_files(drafts)
            append_at(self._path(ROWS), rows.tobytes(), offset=first_row * ROW_DTYPE.itemsize)
        except OSError as error:
            raise MemoryFileError(f"{self.folder}: the append failed ({error.strerror}); it will be dropped") from error
        self._rows = np.concatenate([self._rows, rows])
        self._map_keys()
        return range(first_row, len(self))

    def _write_files(self, drafts: Sequence[MemoryDraft]) -> None:
        for draft in drafts:
            for stored_file in draft.item.files:
                path = self.stored_path(stored_file)
                if not path.exists() or path.stat().st_size != stored_file.size_bytes:
                    write_atomic(path, draft.blobs[stored_file.sha256])

    def stored_path(self, stored_file: StoredFile) -> Path:
        return self.folder / FILES / stored_file.name

    def rollback(self, rows: int) -> None:
        """Restore the first `rows` rows, byte for byte; items deleted since then stay deleted."""
        self._require_writable()
        if not 0 <= rows <= len(self):
            raise MemoryFileError(f"{self.folder} has {len(self)} rows: it cannot go back to {rows}")
        old_size = self._items_size
        truncate_file(
            self._path(ROWS), rows * ROW_DTYPE.itemsize
        )  # from here on the rest counts as an interrupted append
        self._rows = self._rows[:rows].copy()
        self.deleted = {row: id_checksum for row, id_checksum in self.deleted.items() if row < rows}
        self._rewrite_deleted()
        self._map_keys()
        lines = read_at(self._path(ITEMS), self._items_size, old_size - self._items_size).split(b"\n")[:-1]
        self._remove_files(
            [stored_file for line in lines for stored_file in files_in_line(line)]
        )  # while their names are there
        truncate_file(self._path(ITEMS), self._items_size)
        truncate_file(self._path(KEYS), rows * self._row_bytes)

    def delete(self, row: int) -> None:
        """Erase an item's line, key and files. Its row number is never reused."""
        self._require_writable()
        try:
            item = self.item(row)
        except MemoryFileError:  # its line is damaged: its id is unknown
            item = None
        self.deleted[row] = zlib.crc32(item.id.encode()) if item else 0
        self._rewrite_deleted()
        self._erase(row)
        self._map_keys()

    def was_deleted(self, item_id: str) -> bool:
        """Whether an item of this id was deleted, by its checksum."""
        return zlib.crc32(item_id.encode()) in self.deleted.values()

    def _erase(self, row: int) -> None:
        """Erase the files first, since the line refers to them. A damaged line leaves its files behind."""
        entry = self._rows[row]
        offset, length = int(entry["at"]), int(entry["length"])
        self._remove_files(files_in_line(read_at(self._path(ITEMS), offset, length)))
        overwrite(self._path(ITEMS), b" " * (length - 1) + b"\n", offset=offset)
        overwrite(self._path(KEYS), bytes(self._row_bytes), offset=row * self._row_bytes)

    def _rewrite_deleted(self) -> None:
        entries = np.zeros(len(self.deleted), DELETED_DTYPE)
        entries["row"] = sorted(self.deleted)
        entries["id"] = [self.deleted[row] for row in sorted(self.deleted)]
        entries["own"] = [zlib.crc32(entry.tobytes()[:-4]) for entry in entries]
        content = entries.tobytes()
        if self._path(DELETED).read_bytes() != content:
            with atomic_write(self._path(DELETED)) as file:
                file.write(content)

    def _remove_files(self, files: Sequence[StoredFile]) -> None:
        """Remove files that no item refers to any more."""
        names = {stored_file.name for stored_file in files}
        used_names = {stored_file.name for _, item in self.items() for stored_file in item.files} if names else set()
        for name in names:
            path = self.folder / FILES / name
            for partial_file in path.parent.glob(f".{path.name}.*.part"):
                partial_file.unlink(missing_ok=True)
            if name not in used_names:
                path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    def orphans(self) -> list[Path]:
        """Stored files that no item refers to."""
        used_names = {stored_file.name for _, item in self.items() for stored_file in item.files}
        root = self.folder / FILES
        return [f for f in sorted(root.rglob("*")) if f.is_file() and f.relative_to(root).as_posix() not in used_names]

    def _require_writable(self) -> None:
        if not self.writable:
            raise MemoryFileError(f"{self.folder} was opened for reading only")


def files_in_line(line: bytes) -> tuple[StoredFile, ...]:
    """The stored files of a line; none if it is blank or damaged."""
    try:
        return MemoryItem.decode(line).files
    except MemoryFileError:
        return ()


def valid_rows(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which rows carry the checksum of their own bytes."""
    content, size = rows.tobytes(), rows.dtype.itemsize
    checksums = (zlib.crc32(content[offset : offset + size - 4]) for offset in range(0, len(content), size))
    return np.fromiter(checksums, np.uint32, len(rows)) == rows["own"]


def trim_incomplete(content: bytes, row: np.dtype[np.void]) -> bytes:
    """The content without a trailing incomplete row."""
    return content[: len(content) // row.itemsize * row.itemsize]


def read_at(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def append_at(path: Path, content: bytes, *, offset: int) -> None:
    """Write at the known end, over whatever a failed append left there, and sync."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.truncate()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def overwrite(path: Path, content: bytes, *, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        if file.read(len(content)) == content:
            return
        file.seek(offset)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def truncate_file(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    fsync_path(path.parent)
