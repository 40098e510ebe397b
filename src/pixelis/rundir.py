"""Where a number comes from: the command, commit, versions and machine that are written beside every result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pixelis import __version__
from pixelis.errors import ConfigError

WATCHED = ("numpy", "onnxruntime", "opencv-python-headless", "rapidocr", "torch", "transformers", "trackers")
"""Packages whose version can change a number."""


def provenance(**settings: Any) -> dict[str, Any]:
    """What a reader needs to get the same number again."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "pixelis": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "packages": {name: installed for name in WATCHED if (installed := installed_version(name))},
        **settings,
    }


def commit() -> str:
    """The checkout's commit, with `+` where it has changes; `unknown` outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "rundir.py")  # an installed copy may lie in another project's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
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
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from error
