"""Files that survive a crash or a power cut: each appears with all of its content, or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_atomic(file: Path, content: bytes) -> None:
    """Write a file that appears with all of its content, or not at all; missing folders are made."""
    make_directory(file.parent)
    with atomic_write(file) as stream:
        stream.write(content)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content replaces the file when the body ends, and is discarded when the body raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    fsync_path(path.parent)


def make_directory(folder: Path) -> None:
    """Make a folder and its missing parents, and sync their names to disk."""
    if folder.is_dir():
        return
    make_directory(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    """Sync to disk the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
