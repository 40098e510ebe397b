"""What an importer is told, and what it gives: items and problems in one stream."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pixelis.errors import MediaError
from pixelis.media import Medium, open_media
from pixelis.trace.foreign_files import Problem, under
from pixelis.trace.reopening import path_hint
from pixelis.world.item import Item, Scalar

Outcome = Item | Problem
FOLDERS = ("images", "img", "videos", "clips", "frames", "JPEGImages", "ch4_training_images", "")
"""Where a dataset's media lie beside or above its annotations, if nobody says."""
SUFFIXES = ("", ".jpg", ".jpeg", ".png", ".mp4", ".mkv", ".webm", ".avi", ".gif", ".bmp", ".tif", ".webp")

FIRST = 12
"""Problems of an import that are kept to be shown; all of them are in its file of problems."""
FIGURE = re.compile(r"(?<![A-Za-z]{2})(?<![A-Za-z]-)(?<!\d)\d+(?:\.\d+)?")
"""A number in a reason; UTF-8 and img1 are names."""


@dataclass(frozen=True)
class Wishes:
    """How a dataset is to be taken over."""

    media: Path | None = None
    """The folder with its pictures or clips; looked for near the annotations if left out."""
    licence: str = ""
    """Of everything in it, where the files do not say."""
    watermark: str = "unknown"
    """`none`, `visible` or `unknown`, where the files do not say."""
    without_answers: bool = False
    """Questions whose answer nobody knows are taken too: they can be adapted to, and neither taught nor scored."""
    beside: Path | None = None
    """Where the items will be written: paths of media are kept relative to it."""


@dataclass
class Tally:
    """How an import went."""

    taken: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    """By kind: skipped, changed, unasked."""
    reasons: Counter[str] = field(default_factory=Counter)
    """By reason, without the figures in it."""
    first: list[Problem] = field(default_factory=list)
    """The first few of them, each with its place."""
    calls: Counter[str] = field(default_factory=Counter)
    """Of imported traces: `waiting` to be executed, `unusable` as written, and `unknown NAME` without a counterpart."""

    def note(self, problem: Problem) -> None:
        self.problems[problem.kind] += 1
        if len(self.first) < FIRST:
            self.first.append(problem)
        self.reasons[f"{problem.kind}: {FIGURE.sub('#', problem.reason)}"] += 1

    @property
    def status(self) -> int:
        """The exit status: 0 all was taken over, 1 some was skipped, 2 nothing could be read."""
        return 2 if not self.taken else 1 if self.problems["skipped"] else 0


class Shelf:
    """The media of one dataset by name, the last one kept open."""

    def __init__(self, annotations: Path, wishes: Wishes, *, folders: tuple[str, ...] = ()) -> None:
        base = annotations if annotations.is_dir() else annotations.parent
        near = [near / name for near in (base, base.parent) for name in (*folders, *FOLDERS)]
        self.roots = [wishes.media] if wishes.media else [folder for folder in near if folder.is_dir()]
        self._kept: tuple[str, Medium] | None = None

    def open(self, name: str, *, fps: float = 25.0) -> Medium:
        """A medium by the name that the annotations have for it, with or without its suffix; MediaError if missing."""
        if self._kept and self._kept[0] == name:
            return self._kept[1]
        path = next(self._candidates(name), None)
        if path is None:
            where = ", ".join(dict.fromkeys(str(root) for root in self.roots)) or "any folder near the annotations"
            raise MediaError(f"{name} is not in {where}; name its folder with --media, and the file as seen from there")
        medium = open_media(path, fps=fps)
        self._kept = (name, medium)
        return medium

    def _candidates(self, name: str) -> Iterator[Path]:
        suffixes = ("",) if Path(name).suffix.lower() in SUFFIXES[1:] else SUFFIXES
        for root in self.roots:
            for suffix in suffixes:
                if path := under(root, name + suffix):
                    yield path


def origin(
    dataset: str, source_id: str, medium: Medium, wishes: Wishes, *, licence: str = "", watermark: str = ""
) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """What an item says about where it comes from: part of its parameters, since an item has no field for it."""
    facts: dict[str, Scalar | tuple[Scalar, ...]] = {
        "dataset": dataset,
        "source_id": source_id,
        "licence": licence or wishes.licence or "unknown",
        "watermark": watermark or wishes.watermark,
    }
    if medium.path:
        facts["media_paths"] = (path_hint(medium.path, wishes.beside),)
    if fps := getattr(medium, "fps", None):
        facts["media_fps"] = round(float(fps), 9)
    return facts


def seed_of(*words: object) -> int:
    """A seed from names: the same entry gives the same item, whatever stands around it."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, words)).encode()).digest()[:4], "big")
