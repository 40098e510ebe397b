"""The media of a folder or a list in ingest order, their features, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from pixelis.core.errors import ConfigError, MediaError
from pixelis.dedup.media_features import FeatureCache, Features, ImageEncoder, compute_features
from pixelis.media import Medium, open_media
from pixelis.media.opening import PICTURE_SUFFIXES, hash_file

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")
MEDIA_SUFFIXES = (*PICTURE_SUFFIXES, *VIDEO_SUFFIXES)
T = TypeVar("T")
R = TypeVar("R")

ProgressCallback = Callable[[str, int, int], None]
"""Called with a description of the work, the number of completed steps, and the total."""


def no_progress(_description: str, _completed: int, _total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class MediaItem:
    """A medium and its name in reports: a file, a folder of frames, a medium in memory, or one rendered on demand."""

    name: str
    path: Path | None = None
    medium: Medium | None = None
    expected: bool = True
    """It is listed by name, or has the suffix of a medium: failing to read it is an error."""
    render: Callable[[], Medium] | None = None
    """Renders the medium each time that it is opened: a corpus is larger than memory."""
    known_sha256: str = ""
    """Hash of its content, if known without rendering it."""

    def open(self) -> Medium:
        if self.medium is not None:
            return self.medium
        if self.render is not None:
            return self.render()
        if self.path is None:
            raise MediaError(f"{self.name} has neither a file nor pixels")
        return open_media(self.path)

    def sha256(self) -> str:
        """Hash of the content; a file is not decoded."""
        if self.known_sha256:
            return self.known_sha256
        if self.medium is None and self.path is not None and self.path.is_file():
            try:
                return hash_file(self.path)
            except OSError as error:
                raise MediaError(f"{self.path} cannot be read ({error.strerror})") from error
        return self.open().sha256


class UnreadableFile(NamedTuple):
    """A file that cannot be read, and why."""

    name: str
    reason: str


@dataclass
class MediaCollection:
    """Items that could be read, in ingest order, and those that could not."""

    items: list[MediaItem] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)
    """Expected media that do not open: an error."""
    skipped: list[UnreadableFile] = field(default_factory=list)
    """Files of a folder that are media neither by name nor by content."""

    def __len__(self) -> int:
        return len(self.items)


def list_items(source: Path) -> list[MediaItem]:
    """Files below a folder by name, or the lines of a list (paths, or JSON objects with `path` and optionally `id`)."""
    if source.is_dir():
        files = {f.relative_to(source): f for f in sorted(source.rglob("*")) if f.is_file()}
        return [
            MediaItem(name.as_posix(), file, expected=file.suffix.lower() in MEDIA_SUFFIXES)
            for name, file in files.items()
            if not any(part.startswith(".") for part in name.parts)
        ]
    if not source.exists():
        raise ConfigError(f"{source} does not exist; expected a folder of media or a list of paths")
    if source.suffix.lower() in MEDIA_SUFFIXES:
        return [MediaItem(source.name, source)]
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is neither a folder nor a text list of paths ({error})") from error
    return [parse_list_entry(line.strip(), source, number) for number, line in enumerate(lines, 1) if line.strip()]


def parse_list_entry(line: str, source: Path, number: int) -> MediaItem:
    name = path = line
    if line.startswith("{"):
        try:
            entry = json.loads(line)
            path = str(entry["path"])
            name = str(entry.get("id", path))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{source}:{number}: expected a path or a JSON object with `path` ({error})") from error
    return MediaItem(name, source.parent / path)  # joining leaves an absolute path unchanged


def collect(
    items: Iterable[MediaItem],
    encoder: ImageEncoder,
    *,
    cache: FeatureCache | None = None,
    workers: int = 2,
    progress: ProgressCallback = no_progress,
    description: str = "reading media",
) -> MediaCollection:
    """Features of every item that opens, from the cache if its content is there."""
    items = list(items)
    collection = MediaCollection()
    results = map_in_order(lambda item: read_features(item, encoder, cache), items, workers)
    for number, (item, features) in enumerate(zip(items, results, strict=True), 1):
        if isinstance(features, Features):
            collection.items.append(item)
            collection.features.append(features)
        else:
            (collection.unreadable if item.expected else collection.skipped).append(UnreadableFile(item.name, features))
        progress(description, number, len(items))
    return collection


def read_features(item: MediaItem, encoder: ImageEncoder, cache: FeatureCache | None) -> Features | str:
    """The features of an item, or why it cannot be read."""
    try:
        features = cache.get(item.sha256(), encoder) if cache else None
        if features is None:
            features = compute_features(item.open(), encoder)
            if cache:
                cache.put(features, encoder)
    except MediaError as error:
        return str(error)
    return features


def map_in_order(work: Callable[[T], R], inputs: Sequence[T], workers: int) -> Iterator[R]:
    """Results in the order of the inputs; few are in flight, so that decoded media do not accumulate."""
    if workers <= 1:
        yield from map(work, inputs)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending = iter(inputs)
        running = [pool.submit(work, item) for item in islice(pending, 2 * workers)]
        while running:
            yield running.pop(0).result()
            running.extend(pool.submit(work, item) for item in islice(pending, 1))
