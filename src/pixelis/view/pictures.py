"""The pictures of a page: each is scaled down, encoded and embedded once, however often it is shown."""

from __future__ import annotations

import base64
import io
from collections.abc import Hashable
from typing import NamedTuple

from PIL import Image as Pil

from pixelis.errors import MediaError
from pixelis.geometry import Size
from pixelis.media.medium import Frame


class Detail(NamedTuple):
    """How much of the pictures a page keeps."""

    side: int
    """Longer side of a single picture, in pixels."""
    strip_side: int
    """Longer side of a frame in a film strip."""
    quality: int


DETAILS = (Detail(1280, 560, 84), Detail(960, 440, 78), Detail(640, 320, 70))
"""From the finest down: a page that grows too large is made again with the next."""


class Picture(NamedTuple):
    """A picture of the page, which every drawing refers to by its id."""

    id: str
    size: Size
    data_uri: str


class Pictures:
    """Collects the pictures of one page."""

    def __init__(self, detail: Detail) -> None:
        self.detail = detail
        self._kept: dict[Hashable, Picture] = {}

    @property
    def all(self) -> list[Picture]:
        return list(self._kept.values())

    def add(self, key: Hashable, frame: Frame, *, strip: bool = False) -> Picture:
        """Embed a frame, unless it is there already under this key."""
        key = (key, strip)
        if key not in self._kept:
            side = self.detail.strip_side if strip else self.detail.side
            size, content = jpeg(frame, side, self.detail.quality)
            uri = f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"
            self._kept[key] = Picture(f"p{len(self._kept)}", size, uri)
        return self._kept[key]


def jpeg(frame: Frame, side: int, quality: int) -> tuple[Size, bytes]:
    """A frame as JPEG, no side longer than `side`; never enlarged."""
    picture = Pil.fromarray(frame)
    scale = min(1.0, side / max(picture.size))
    size = Size(max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    if size != picture.size:
        picture = picture.resize(size, Pil.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=quality, optimize=True, subsampling="4:2:0")
    return size, buffer.getvalue()


def decode_artifact(content: bytes) -> Frame | None:
    """The pixels of a picture among the artifacts; None where it is none."""
    from pixelis.media import Image

    try:
        return Image.from_bytes(content).pixels
    except MediaError:
        return None
