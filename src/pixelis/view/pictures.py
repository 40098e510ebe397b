"""The pictures of a page: each is scaled down, encoded and embedded once."""

from __future__ import annotations

import base64
import io
from collections.abc import Hashable
from typing import NamedTuple

from PIL import Image as Pil

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Size
from pixelis.media.medium import Frame


class DetailLevel(NamedTuple):
    """Size and quality of the pictures of a page."""

    side: int
    """Longer side of a single picture, in pixels."""
    strip_side: int
    """Longer side of a frame in a film strip."""
    quality: int


DETAIL_LEVELS = (DetailLevel(1280, 560, 84), DetailLevel(960, 440, 78), DetailLevel(640, 320, 70))
"""From the finest down: a page that is too large is rendered again with the next."""


class EmbeddedPicture(NamedTuple):
    """A picture of the page, to which drawings refer by its id."""

    id: str
    size: Size
    data_uri: str


class PictureRegistry:
    """Collects the pictures of one page."""

    def __init__(self, detail: DetailLevel) -> None:
        self.detail = detail
        self._by_key: dict[Hashable, EmbeddedPicture] = {}

    @property
    def all(self) -> list[EmbeddedPicture]:
        return list(self._by_key.values())

    def add(self, key: Hashable, frame: Frame, *, strip: bool = False) -> EmbeddedPicture:
        """Embed a frame, once for each key."""
        key = (key, strip)
        if key not in self._by_key:
            size = self.fit(Size(frame.shape[1], frame.shape[0]), strip=strip)
            content = encode_jpeg(frame, size, self.detail.quality)
            uri = f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"
            self._by_key[key] = EmbeddedPicture(f"p{len(self._by_key)}", size, uri)
        return self._by_key[key]

    def fit(self, size: Size, *, strip: bool) -> Size:
        """The size at which a picture is embedded."""
        scale = min(1.0, (self.detail.strip_side if strip else self.detail.side) / max(size))
        return Size(max(round(size.width * scale), 1), max(round(size.height * scale), 1))


def encode_jpeg(frame: Frame, size: Size, quality: int) -> bytes:
    picture = Pil.fromarray(frame)
    if size != picture.size:
        picture = picture.resize(size, Pil.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=quality, optimize=True, subsampling="4:2:0")
    return buffer.getvalue()


def decode_artifact(content: bytes) -> Frame | None:
    """The pixels of an artifact; None if it is not a picture."""
    from pixelis.media import Image

    try:
        return Image.from_bytes(content).pixels
    except MediaError:
        return None
