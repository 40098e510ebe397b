"""What an importer is told, and what it gives: items and problems in one stream."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pixelis.core.errors import MediaError
from pixelis.data.importers.traces.foreign_files import Problem, find_under
from pixelis.items import Item, Scalar
from pixelis.media import Medium, open_media
from pixelis.trace.media_records import path_hint

ImportOutcome = Item | Problem
MEDIA_FOLDERS = ("images", "img", "videos", "clips", "frames", "JPEGImages", "ch4_training_images", "")
"""Where a dataset's media lie beside or above its annotations, if nobody says."""
MEDIA_SUFFIXES = ("", ".jpg", ".jpeg", ".png", ".mp4", ".mkv", ".webm", ".avi", ".gif", ".bmp", ".tif", ".webp")

MAX_SHOWN_PROBLEMS = 12
"""Problems of an import that are kept to be shown; all of them are in its file of problems."""
NUMBER_PATTERN = re.compile(r"(?<![A-Za-z]{2})(?<![A-Za-z]-)(?<!\d)\d+(?:\.\d+)?")
"""A number in a reason; UTF-8 and img1 are names."""


@dataclass(frozen=True)
class ImportOptions:
    """How a dataset is to be taken over."""

    media: Path | None = None
    """The folder with its pictures or clips; looked for near the annotations if left out."""
    licence: str = ""
    """Of everything in it, where the files do not say."""
    watermark: str = "unknown"
    """`none`, `visible` or `unknown`, where the files do not say."""
    allow_unanswered: bool = False
    """Questions whose answer nobody knows are taken too: they can be adapted to, and neither taught nor scored."""
    items_path: Path | None = None
    """Where the items will be written: paths of media are kept relative to it."""


@dataclass
class ImportResult:
    """How an import went."""

    count: int = 0
    problem_counts: Counter[str] = field(default_factory=Counter)
    """By kind: skipped, changed, unasked."""
    reason_counts: Counter[str] = field(default_factory=Counter)
    """By reason, without the figures in it."""
    first_problems: list[Problem] = field(default_factory=list)
    """The first few of them, each with its place."""
    call_counts: Counter[str] = field(default_factory=Counter)
    """Of imported traces: `waiting` to be executed, `unusable` as written, and `unknown NAME` without a counterpart."""

    def add_problem(self, problem: Problem) -> None:
        self.problem_counts[problem.kind] += 1
        if len(self.first_problems) < MAX_SHOWN_PROBLEMS:
            self.first_problems.append(problem)
        self.reason_counts[f"{problem.kind}: {NUMBER_PATTERN.sub('#', problem.reason)}"] += 1

    @property
    def exit_status(self) -> int:
        """The exit status: 0 all was taken over, 1 some was skipped, 2 nothing could be read."""
        return 2 if not self.count else 1 if self.problem_counts["skipped"] else 0


class MediaLocator:
    """The media of one dataset by name, the last one kept open."""

    def __init__(self, annotations: Path, import_options: ImportOptions, *, folders: tuple[str, ...] = ()) -> None:
        base = annotations if annotations.is_dir() else annotations.parent
        nearby = [nearby / name for nearby in (base, base.parent) for name in (*folders, *MEDIA_FOLDERS)]
        self.roots = (
            [import_options.media] if import_options.media else [folder for folder in nearby if folder.is_dir()]
        )
        self._last_opened: tuple[str, Medium] | None = None

    def open(self, name: str, *, fps: float = 25.0) -> Medium:
        """A medium by the name that the annotations have for it, with or without its suffix; MediaError if missing."""
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
    dataset: str,
    source_id: str,
    medium: Medium,
    import_options: ImportOptions,
    *,
    licence: str = "",
    watermark: str = "",
) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """What an item says about where it comes from: part of its parameters, since an item has no field for it."""
    facts: dict[str, Scalar | tuple[Scalar, ...]] = {
        "dataset": dataset,
        "source_id": source_id,
        "licence": licence or import_options.licence or "unknown",
        "watermark": watermark or import_options.watermark,
    }
    if medium.path:
        facts["media_paths"] = (path_hint(medium.path, import_options.items_path),)
    if fps := getattr(medium, "fps", None):
        facts["media_fps"] = round(float(fps), 9)
    return facts


def stable_seed(*names: object) -> int:
    """A seed from names: the same entry gives the same item, whatever stands around it."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, names)).encode()).digest()[:4], "big")
