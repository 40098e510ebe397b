"""An index on disk: the FAISS file, named by its content, and a head that states its rows and settings.

The head is replaced atomically after the file is written, so that a killed process leaves either the old or the new
index. The file's hash is checked before FAISS reads it, and a damaged file is never used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import faiss
from pydantic import Field, ValidationError

from pixelis.core.atomic import atomic_write, fsync_path
from pixelis.core.errors import MemoryFileError
from pixelis.core.geometry import Value
from pixelis.media.opening import hash_file
from pixelis.memory.vector_index import ApproximateIndex, IndexConfig
from pixelis.trace.schema import Sha256, canonical_json

INDEX_HEAD_FILE = "index.json"


class IndexHead(Value):
    """The description of an index file."""

    version: Literal[1] = 1
    kind: Literal["ivfpq", "hnsw-text"]
    rows: int = Field(ge=0)
    trained: int = Field(ge=0)
    """Number of rows that it was trained on."""
    digest: Sha256
    """Digest of its rows: an index of other rows would propose wrong ones."""
    settings: dict[str, Any]
    sha256: Sha256
    size_bytes: int

    @property
    def file(self) -> str:
        return f"index-{self.sha256[:16]}.faiss"


def save_index(folder: Path, approx_index: ApproximateIndex, config: IndexConfig, digest: str) -> IndexHead:
    """Write the index and then its head; remove the files of older ones."""
    temporary = folder / f".index.{os.getpid()}.part"
    try:
        faiss.write_index(approx_index.index, str(temporary))
        sha256 = hash_file(temporary)
        fsync_path(temporary)
        head = IndexHead(
            kind=approx_index.kind,
            rows=len(approx_index),
            trained=len(approx_index) if approx_index.trained_rows is None else approx_index.trained_rows,
            digest=digest,
            settings=config.build_settings,
            sha256=sha256,
            size_bytes=temporary.stat().st_size,
        )
        temporary.replace(folder / head.file)
        fsync_path(folder)
        with atomic_write(folder / INDEX_HEAD_FILE) as stream:
            stream.write(canonical_json(head.model_dump(mode="json")) + b"\n")
    except (OSError, RuntimeError) as error:
        raise MemoryFileError(f"{folder}: the index cannot be written ({str(error).splitlines()[0][:200]})") from error
    finally:
        temporary.unlink(missing_ok=True)
    for old_file in folder.glob("index-*.faiss"):
        if old_file.name != head.file:
            old_file.unlink(missing_ok=True)
    return head


def delete_index(folder: Path) -> None:
    """Remove the index; the head first, so that no head names a missing file."""
    (folder / INDEX_HEAD_FILE).unlink(missing_ok=True)
    fsync_path(folder)
    for old_file in folder.glob("index-*.faiss"):
        old_file.unlink(missing_ok=True)


def read_index_head(folder: Path) -> IndexHead | None:
    """None without an index; MemoryFileError if its head is damaged."""
    path = folder / INDEX_HEAD_FILE
    try:
        return IndexHead.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise MemoryFileError(
            f"{path} is damaged ({str(error).splitlines()[0][:100]}); {REINDEX_HINT.format(folder)}"
        ) from error


REINDEX_HINT = "`pixelis index build --reindex -o {}` rebuilds the index from the keys"


def load_index(folder: Path, head: IndexHead, text_dimensions: int, config: IndexConfig) -> ApproximateIndex:
    """MemoryFileError of one line if the file is not the one that the head describes."""
    path = folder / head.file
    try:
        if hash_file(path) != head.sha256:
            raise MemoryFileError(f"{path} is damaged: its hash differs; {REINDEX_HINT.format(folder)}")
        index = faiss.read_index(str(path))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0][:200]
        raise MemoryFileError(f"{path} cannot be read ({reason}); {REINDEX_HINT.format(folder)}") from error
    if index.ntotal != head.rows:
        raise MemoryFileError(
            f"{path} has {index.ntotal} rows, its head says {head.rows}; {REINDEX_HINT.format(folder)}"
        )
    return ApproximateIndex(index, head.kind, text_dimensions, config.lambda_pix, trained_rows=head.trained)
