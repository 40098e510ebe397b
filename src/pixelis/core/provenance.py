"""Where a number comes from: what is written beside every result."""

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
from pixelis.core.atomic import write_atomic
from pixelis.core.errors import ConfigError

TRACKED_PACKAGES = ("numpy", "onnxruntime", "opencv-python-headless", "rapidocr", "torch", "transformers")
"""Packages whose version can change a number."""


def provenance(**settings: Any) -> dict[str, Any]:
    """What a reader needs to reproduce a number."""
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
    """Write a result file atomically; ConfigError where it cannot be written."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file: nothing was written")  # a device would be replaced
    try:
        write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from error
