"""The base class of images and clips."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Size

Frame = NDArray[np.uint8]
"""(height, width, 3) RGB, read-only."""


class Medium(ABC):
    """Frames on a time line. An image is one frame at 0 s."""

    kind: ClassVar[Literal["image", "clip"]]
    sha256: str
    """Of the content as stored: the identity that traces and caches use."""
    size: Size
    frame_count: int
    path: Path | None

    @abstractmethod
    def frame(self, index: int) -> Frame:
        """Frame `index`, from 0; MediaError beyond the end."""

    @abstractmethod
    def time_of(self, index: int) -> float:
        """When frame `index` is shown, in seconds from the first."""

    @property
    @abstractmethod
    def duration_s(self) -> float:
        """Length in seconds, last frame included; 0 for an image."""

    @abstractmethod
    def index_at(self, seconds: float) -> int:
        """The frame on screen at this moment; MediaError before the start or beyond the end."""

    def check_index(self, index: int) -> None:
        if not 0 <= index < self.frame_count:
            raise MediaError(f"frame {index} does not exist: {self.describe()} has frames 0 to {self.frame_count - 1}")

    def describe(self) -> str:
        return f"{self.path.name if self.path else self.kind} ({self.size.width}x{self.size.height})"


def frame_size(frame: Frame) -> Size:
    return Size(frame.shape[1], frame.shape[0])


def as_read_only(array: NDArray[np.uint8]) -> Frame:
    """The same pixels as a contiguous, read-only array."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
