"""Clips: a time line of frames, decoded on demand.

The sources are a video stream (PyAV), an animated picture (Pillow), a folder of frames, and arrays. Frame times come
from the file, so that a variable frame rate is kept.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Size
from pixelis.media.image import Image
from pixelis.media.medium import Frame, Medium
from pixelis.media.sources import ArraySource

MAX_CACHED_FRAMES = 24
MAX_CACHED_BYTES = 256 * 2**20
"""Bounds of the cache of decoded frames: tools often read neighbours."""


class FrameSource(Protocol):
    """The source of a clip's pixels."""

    size: Size
    times_s: tuple[float, ...]
    """When each frame is shown, ascending from 0."""
    duration_s: float

    def decode(self, index: int) -> Frame:
        """The pixels of one existing frame; MediaError if they cannot be decoded."""


class Clip(Medium):
    """A sequence of frames with their times."""

    kind: ClassVar[Literal["image", "clip"]] = "clip"

    def __init__(self, source: FrameSource, *, sha256: str, path: Path | None = None) -> None:
        self._source = source
        self._frame_cache: OrderedDict[int, Frame] = OrderedDict()
        self.sha256 = sha256
        self.path = path
        self.size = source.size
        self.frame_count = len(source.times_s)

    @classmethod
    def from_frames(cls, frames: Sequence[Frame], *, fps: float, sha256: str | None = None) -> Clip:
        """A clip without a file; its identity is the hash of its frames' identities and its rate."""
        if not frames or not 0.0 < fps <= 1000.0:
            raise MediaError(f"a clip has at least one frame and a rate over 0; this has {len(frames)} at {fps:g}")
        images = [Image.from_array(frame) for frame in frames]
        if len({image.size for image in images}) > 1:
            raise MediaError("the frames of a clip have one size; these differ")
        listing = "".join(f"{image.sha256}\n" for image in images)
        identity = sha256 or hashlib.sha256(f"frames {fps:g}\n{listing}".encode()).hexdigest()
        return cls(ArraySource(tuple(image.pixels for image in images), fps), sha256=identity)

    def frame(self, index: int) -> Frame:
        self.check_index(index)
        if index not in self._frame_cache:
            self._frame_cache[index] = self._source.decode(index)
            if len(self._frame_cache) > max(min(MAX_CACHED_FRAMES, MAX_CACHED_BYTES // (3 * self.size.pixels)), 1):
                self._frame_cache.popitem(last=False)
        self._frame_cache.move_to_end(index)
        return self._frame_cache[index]

    def time_of(self, index: int) -> float:
        self.check_index(index)
        return self._source.times_s[index]

    @property
    def duration_s(self) -> float:
        return self._source.duration_s

    @property
    def fps(self) -> float:
        """Mean frames per second."""
        return self.frame_count / self.duration_s

    def index_at(self, seconds: float) -> int:
        if not 0.0 <= seconds <= self.duration_s:
            raise MediaError(f"{seconds:g} s lies outside {self.describe()}, which lasts {self.duration_s:.2f} s")
        return bisect_right(self._source.times_s, seconds + 1e-6) - 1

    def describe(self) -> str:
        return f"{super().describe()[:-1]}, {self.frame_count} frames, {self.duration_s:.1f} s)"
