"""Where a number comes from, which is written beside every result, and how a file is written that is to last."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

from pixelis import __version__
from pixelis.core.errors import ConfigError

TRACKED_PACKAGES = ("numpy", "onnxruntime", "opencv-python-headless", "rapidocr", "torch", "transformers")
"""Packages whose version can change a number."""


def provenance(**settings: Any) -> dict[str, Any]:
    """What a reader needs to get the same number again."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": git_commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "pixelis": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "packages": {name: installed for name in TRACKED_PACKAGES if (installed := installed_version(name))},
        **settings,
    }


def git_commit() -> str:
    """The checkout's commit, with `+` where anything but results has changed; `unknown` outside a checkout."""
    package_dir = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package_dir), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "provenance.py")  # an installed copy may lie in another project's checkout
        is_dirty = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)docs/results")
        return git("rev-parse", "HEAD") + ("+" if is_dirty else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_json(path: Path, content: Any) -> None:
    """A result file, whole or not at all; ConfigError where it cannot be."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file: nothing was written")  # a device would be replaced
    try:
        write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from error


# --- files that last through a power cut


def write_atomic(file: Path, content: bytes) -> None:
    """The file appears with all of its content, or not at all."""
    make_directory(file.parent)
    with atomic_write(file) as stream:
        stream.write(content)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the file's place when the body ends well, and vanishes when it does not."""
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
    """A folder and those above it, where they are missing; their names last too."""
    if folder.is_dir():
        return
    make_directory(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    """Make the content of a file last, or what was named, renamed or removed in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
