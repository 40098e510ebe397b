"""The options of an import, the media of a dataset, and checks of its values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pixelis.core.errors import MediaError
from pixelis.data.corpus.text_lines import Problem
from pixelis.data.importers.traces.foreign_files import find_under
from pixelis.items import Item, Scalar
from pixelis.media import Medium, open_media
from pixelis.trace.media_records import path_hint

ImportOutcome = Item | Problem
MEDIA_FOLDERS = ("images", "img", "videos", "clips", "frames", "JPEGImages", "ch4_training_images", "")
"""Where a dataset's media are looked for, beside or above its annotations."""
MEDIA_SUFFIXES = ("", ".jpg", ".jpeg", ".png", ".mp4", ".mkv", ".webm", ".avi", ".gif", ".bmp", ".tif", ".webp")


@dataclass(frozen=True)
class ImportOptions:
    """How to import a dataset."""

    media: Path | None = None
    """The folder with its pictures or clips; by default searched for near the annotations."""
    licence: str = ""
    """Default licence, where the files do not say."""
    watermark: str = "unknown"
    """`none`, `visible` or `unknown`, where the files do not say."""
    allow_unanswered: bool = False
    """Import questions without an answer too: they can be adapted to, but neither taught nor scored."""
    items_path: Path | None = None
    """Where the items are written; paths of media are relative to it."""


class MediaLocator:
    """Opens the media of one dataset by name and keeps the last one open."""

    def __init__(self, annotations: Path, options: ImportOptions, *, folders: tuple[str, ...] = ()) -> None:
        base = annotations if annotations.is_dir() else annotations.parent
        nearby = [nearby / name for nearby in (base, base.parent) for name in (*folders, *MEDIA_FOLDERS)]
        self.options = options
        self.roots = [options.media] if options.media else [folder for folder in nearby if folder.is_dir()]
        self._last_opened: tuple[str, Medium] | None = None

    def open(self, name: str, *, fps: float = 25.0) -> Medium:
        """A medium by its name in the annotations, with or without a suffix; MediaError if it is missing."""
        if self._last_opened and self._last_opened[0] == name:
            return self._last_opened[1]
        path = next(self._candidates(name), None)
        if path is None:
            where = ", ".join(dict.fromkeys(str(root) for root in self.roots)) or "any folder near the annotations"
            raise MediaError(f"{name} is not in {where}; name its folder with --media, and the file as seen from there")
        medium = open_media(path, fps=fps)
        self._last_opened = (name, medium)
        return medium

    def _candidates(self, name: str) -> Iterator[Path]:
        suffixes = ("",) if Path(name).suffix.lower() in MEDIA_SUFFIXES[1:] else MEDIA_SUFFIXES
        for root in self.roots:
            for suffix in suffixes:
                if path := find_under(root, name + suffix):
                    yield path


def origin_parameters(
    dataset: str, source_id: str, medium: Medium, options: ImportOptions, *, licence: str = "", watermark: str = ""
) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """The origin of an item, as part of its parameters."""
    facts: dict[str, Scalar | tuple[Scalar, ...]] = {
        "dataset": dataset,
        "source_id": source_id,
        "licence": licence or options.licence or "unknown",
        "watermark": watermark or options.watermark,
    }
    if medium.path:
        facts["media_paths"] = (path_hint(medium.path, options.items_path),)
    if fps := getattr(medium, "fps", None):
        facts["media_fps"] = round(float(fps), 9)
    return facts


def stable_seed(*names: object) -> int:
    """A seed from names, so that an entry gives the same item whatever surrounds it."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, names)).encode()).digest()[:4], "big")


def require_numbers(values: Any, count: int | None = None) -> list[float]:
    """A list of finite numbers; ValueError for anything else."""
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ValueError(f"{json.dumps(values)[:40]} is not a list of {count or 'several'} numbers")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise ValueError("it contains a value that is not a finite number")
    return [float(v) for v in values]


def first_line(error: Exception) -> str:
    """The first line of an error, or the first message of a validation."""
    if isinstance(error, ValidationError):
        return str(error.errors(include_url=False)[0]["msg"])
    return str(error).splitlines()[0]
