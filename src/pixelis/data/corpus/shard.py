"""A shard: a few hundred records in one ZIP file, with the same bytes for the same records.

It contains `records/00000.jsonl` … (a few lines each, deflated, so that one record costs one block), `blobs/<sha256>`
(artifacts and, optionally, media) and `index.jsonl`. Nothing in it depends on the time or the machine. A shard is
written under a temporary name and renamed.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import TraceError, validation_problem
from pixelis.core.geometry import Value
from pixelis.data.corpus.record import CorpusRow, Record, Split, decode
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member
from pixelis.trace.schema import Sha256, canonical_json

RECORDS_PER_BLOCK = 16
"""Records that are compressed together."""
MAX_MEMBER_BYTES = 2**30
"""Longer members are refused unread."""
INDEX_NAME = "index.jsonl"


class ShardFacts(Value):
    """The entry of one shard in the manifest."""

    name: str
    split: Split
    records: int = Field(ge=0)
    accepted: int = Field(ge=0)
    blobs: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    sha256: Sha256
    """Of the file."""
    content: Sha256
    """Of the lines before compression, hence independent of the zlib version."""


def write_shard(path: Path, units: Iterable[tuple[bytes, Mapping[str, bytes]]]) -> None:
    """Write a shard from encoded lines and their blobs, which are consumed one at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        rows: list[bytes] = []
        block: list[bytes] = []
        written_blobs: set[str] = set()

        def flush() -> None:
            if block:
                name = f"records/{(len(rows) - 1) // RECORDS_PER_BLOCK:05d}.jsonl"
                add_member(archive, name, b"".join(block), zipfile.ZIP_DEFLATED)
                block.clear()

        for line, blobs in units:
            rows.append(canonical_json(decode(line).row.model_dump(mode="json")) + b"\n")
            block.append(line)
            for sha256 in sorted(set(blobs) - written_blobs):
                if hashlib.sha256(blobs[sha256]).hexdigest() != sha256:
                    raise TraceError(f"{path.name}: the bytes of {sha256[:12]}… do not have this hash")
                written_blobs.add(sha256)
                add_member(archive, f"blobs/{sha256}", blobs[sha256], zipfile.ZIP_STORED)
            if len(block) == RECORDS_PER_BLOCK:
                flush()
        flush()
        add_member(archive, INDEX_NAME, b"".join(rows), zipfile.ZIP_DEFLATED)


class Shard:
    """A shard, open for reading. Members are read on demand; one block stays in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: tuple[CorpusRow, ...] | None = None
        self._block: tuple[int, list[bytes]] | None = None

    @contextmanager
    def _open_archive(self, line: int = 1) -> Iterator[zipfile.ZipFile]:
        """The archive; whatever is wrong with it becomes a TraceError with `shard:line` and a reason."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read ({error.strerror or error})") from error
        except DAMAGED_ZIP as error:
            reason = str(error).strip("'\"").splitlines()[0] if str(error) else type(error).__name__
            raise TraceError(f"{self.path}:{line}: the shard is damaged or cut off ({reason})") from error

    @property
    def rows(self) -> tuple[CorpusRow, ...]:
        """The index, one row per record."""
        if self._rows is None:
            with self._open_archive() as archive:
                lines = read_shard_member(archive, INDEX_NAME).splitlines()
                try:
                    self._rows = tuple(CorpusRow.model_validate_json(line) for line in lines)
                except ValidationError as error:
                    raise ValueError(f"its index cannot be read: {validation_problem(error)}") from error
        return self._rows

    def record(self, number: int) -> Record:
        """Record `number`, from 0; TraceError with `shard:line` if it is damaged."""
        block_index = number // RECORDS_PER_BLOCK
        block = self._block  # read once: another thread may replace it
        if block is None or block[0] != block_index:
            with self._open_archive(block_index * RECORDS_PER_BLOCK + 1) as archive:
                content = read_shard_member(archive, f"records/{block_index:05d}.jsonl")
            self._block = block = (block_index, content.splitlines(keepends=True))
        offset, lines = number - block_index * RECORDS_PER_BLOCK, block[1]
        if not 0 <= offset < len(lines):
            raise TraceError(f"{self.path}:{number + 1}: the shard has no such record")
        try:
            record = decode(lines[offset])
        except TraceError as error:
            raise TraceError(f"{self.path}:{number + 1}: {error}") from error
        if record.item.id != self.rows[number].id:
            raise TraceError(f"{self.path}:{number + 1}: the index calls this record {self.rows[number].id!r}")
        return record

    def blob(self, sha256: str) -> bytes | None:
        """An artifact or a medium by its hash; None if the shard does not contain it."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            return None
        with self._open_archive() as archive:
            if f"blobs/{sha256}" not in archive.NameToInfo:
                return None
            content = read_shard_member(archive, f"blobs/{sha256}")
        if hashlib.sha256(content).hexdigest() != sha256:
            raise TraceError(f"{self.path}: blob {sha256[:12]}… does not have its hash")
        return content

    def verify(self) -> None:
        """Decode every record, compare it with its row, and hash every blob; TraceError at the first error."""
        for number, row in enumerate(self.rows):
            if self.record(number).row != row:
                raise TraceError(f"{self.path}:{number + 1}: the index differs from the record")
        with self._open_archive() as archive:
            names = [name.removeprefix("blobs/") for name in archive.namelist() if name.startswith("blobs/")]
        for name in names:
            if self.blob(name) is None:
                raise TraceError(f"{self.path}: blob {name[:80]!r} is not named by a hash")

    def facts(self) -> ShardFacts:
        """The hashes and counts of the whole shard; TraceError if anything is damaged."""
        content_digest = hashlib.sha256()
        rows = self.rows
        with self._open_archive() as archive:
            names = archive.namelist()
            if (corrupt_member := archive.testzip()) is not None:
                raise ValueError(f"{corrupt_member} does not match its checksum")
            record_count = 0
            for name in sorted(name for name in names if name.startswith("records/")):
                content = read_shard_member(archive, name)
                record_count += content.count(b"\n")
                content_digest.update(content)
            if record_count != len(rows) or not rows:
                raise ValueError(f"{record_count} records under an index of {len(rows)}")
        with self.path.open("rb") as file:
            file_digest = hashlib.file_digest(file, "sha256").hexdigest()
            size_bytes = file.tell()
        return ShardFacts(
            name=self.path.name,
            split=rows[0].split,
            records=len(rows),
            accepted=sum(row.accepted for row in rows),
            blobs=sum(name.startswith("blobs/") for name in names),
            size_bytes=size_bytes,
            sha256=file_digest,
            content=content_digest.hexdigest(),
        )


def read_shard_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """A member's bytes, at most MAX_MEMBER_BYTES."""
    return read_member(archive, name, max_bytes=MAX_MEMBER_BYTES)


def read_json(path: Path, description: str, max_bytes: int = 256 * 2**20) -> Any:
    """A JSON file of the corpus; TraceError if it is not one."""
    try:
        if path.stat().st_size > max_bytes:
            raise TraceError(f"{path} is not a {description}: it has over {max_bytes} bytes")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is not a {description} ({str(error).splitlines()[0]})") from error
