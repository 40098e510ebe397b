"""What the memory stores of a trajectory: an item, the hashes of its media, and files that only it refers to.

An item is one canonical line of JSON. Its key, two vectors, lies beside it in another file: see `memory_files`.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints, ValidationError

from pixelis.core.errors import MemoryFileError, validation_problem
from pixelis.core.geometry import Value
from pixelis.dedup.media_features import Features
from pixelis.memory.keys import Key
from pixelis.trace.schema import Sha256, canonical_json

ITEM_VERSION: Literal[1] = 1
MAX_LINE_BYTES = 2**20
"""Longest line of an item."""
PHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class MediaHashes(Value):
    """The identity of a medium: the hash of its bytes, and perceptual hashes that reveal a changed copy."""

    name: str
    sha256: Sha256
    perceptual: tuple[PHash, ...] = ()
    """pHash of an image, and of the centre square of each keyframe: what the evaluation mask compares."""

    @classmethod
    def from_features(cls, features: Features, *, name: str) -> MediaHashes:
        hashes = {features.phash, *(int(h) for h in features.key_hashes)}
        return cls(name=name, sha256=features.sha256, perceptual=tuple(f"{h:016x}" for h in sorted(hashes)))


class StoredFile(Value):
    """A file stored for an item, named by its content and removed with its last item."""

    role: Literal["media", "trace"]
    sha256: Sha256
    size_bytes: int = Field(ge=0)
    suffix: str = Field(default="", pattern=r"^(\.[a-z0-9]{1,8})?$")

    @property
    def name(self) -> str:
        """Below the memory's `files` folder."""
        return f"{self.sha256[:2]}/{self.sha256}{self.suffix}"


class MemoryItem(Value):
    """One stored trajectory, as the neighbourhood of a query sees it."""

    version: Literal[1] = ITEM_VERSION
    id: str = Field(min_length=1, max_length=4096)
    text: str = ""
    """The prompt and the last 32 tokens of thought: what the text half of the key was made from."""
    media: tuple[MediaHashes, ...] = ()
    answer: str = ""
    signature: tuple[str, ...] = ()
    """The sequence of tools: the annotator of Dawid–Skene."""
    value: float | None = None
    """v(h), in (0, 1); None if no policy has scored the trajectory yet."""
    curiosity: float | None = None
    coherence: float | None = None
    files: tuple[StoredFile, ...] = ()
    screened: Sha256 | None = None
    """Digest of the evaluation mask that every medium was compared with, pixels included, before the key was made."""

    def encode(self) -> bytes:
        line = canonical_json(self.model_dump(mode="json")) + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise MemoryFileError(
                f"item {self.id[:80]!r} takes {len(line)} bytes; a line holds at most {MAX_LINE_BYTES}"
            )
        return line

    @classmethod
    def decode(cls, line: bytes) -> MemoryItem:
        """Raise MemoryFileError if this is not an item, or one of a newer version."""
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MemoryFileError(f"not an item of a memory ({str(error).splitlines()[0]})") from error
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > ITEM_VERSION:
            raise MemoryFileError(f"item version {version}, this build reads up to {ITEM_VERSION}; update pixelis")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise MemoryFileError(f"not an item of a memory: {validation_problem(error)}") from error


class MemoryDraft(NamedTuple):
    """An item to be added, with its key and the bytes of its files by hash."""

    item: MemoryItem
    key: Key
    blobs: dict[str, bytes] = {}  # noqa: RUF012 - never changed
