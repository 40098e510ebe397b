"""An index on disk: the FAISS file, named by its content, and a head that says for which rows and settings it holds.

The head is replaced whole after the file is there, so that a process that is killed leaves the old index or the new
one. The file's hash is checked before FAISS reads it, and a file that is not what was written is never used.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import faiss
from pydantic import Field, ValidationError

from pixelis.errors import MemoryFileError
from pixelis.geometry import Value
from pixelis.retrieval.memory_index import Coded, IndexConfig
from pixelis.rundir import replacing, sync
from pixelis.trace.schema import Sha256, canonical_json

HEAD = "index.json"


class IndexHead(Value):
    """What an index file holds."""

    version: Literal[1] = 1
    kind: Literal["ivfpq", "hnsw-text"]
    rows: int = Field(ge=0)
    trained: int = Field(ge=0)
    """Rows that there were when it was made."""
    digest: Sha256
    """Of those rows: an index of other rows proposes nonsense."""
    settings: dict[str, Any]
    sha256: Sha256
    size_bytes: int

    @property
    def file(self) -> str:
        return f"index-{self.sha256[:16]}.faiss"


def save_index(folder: Path, coded: Coded, config: IndexConfig, digest: str) -> IndexHead:
    """Write the index and then its head; the files of older ones go."""
    partial = folder / f".index.{os.getpid()}.part"
    try:
        faiss.write_index(coded.index, str(partial))
        with partial.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        head = IndexHead(
            kind=coded.kind,
            rows=len(coded),
            trained=len(coded) if coded.trained is None else coded.trained,
            digest=digest,
            settings=config.made_from,
            sha256=sha256,
            size_bytes=partial.stat().st_size,
        )
        partial.replace(folder / head.file)
        sync(folder)
        with replacing(folder / HEAD) as stream:
            stream.write(canonical_json(head.model_dump(mode="json")) + b"\n")
    except (OSError, RuntimeError) as error:
        raise MemoryFileError(f"{folder}: its index cannot be written ({str(error).splitlines()[0][:200]})") from error
    finally:
        partial.unlink(missing_ok=True)
    for old in folder.glob("index-*.faiss"):
        if old.name != head.file:
            old.unlink(missing_ok=True)
    return head


def forget_index(folder: Path) -> None:
    """Remove the index; the head first, so that nothing points at a file that is gone."""
    (folder / HEAD).unlink(missing_ok=True)
    sync(folder)
    for old in folder.glob("index-*.faiss"):
        old.unlink(missing_ok=True)


def read_head(folder: Path) -> IndexHead | None:
    """None where there is no index; MemoryFileError where its head is damaged."""
    path = folder / HEAD
    try:
        return IndexHead.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise MemoryFileError(
            f"{path} is damaged ({str(error).splitlines()[0][:100]}); {AGAIN.format(folder)}"
        ) from error


AGAIN = "`pixelis index build --reindex -o {}` makes the index again from the keys"


def load_index(folder: Path, head: IndexHead, text_dimensions: int, config: IndexConfig) -> Coded:
    """MemoryFileError in one line where the file is not the one that the head names."""
    path = folder / head.file
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != head.sha256:
            raise MemoryFileError(f"{path} is damaged: it is not what was written; {AGAIN.format(folder)}")
        index = faiss.read_index(str(path))
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0][:200]
        raise MemoryFileError(f"{path} cannot be read ({why}); {AGAIN.format(folder)}") from error
    if index.ntotal != head.rows:
        raise MemoryFileError(f"{path} has {index.ntotal} rows, its head says {head.rows}; {AGAIN.format(folder)}")
    return Coded(index, head.kind, text_dimensions, config.lambda_pix, trained=head.trained)
