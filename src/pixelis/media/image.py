"""Still pictures: every supported format becomes upright 8-bit RGB."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import Image as Pil
from PIL import ImageOps

from pixelis.core.errors import MediaError
from pixelis.media.limits import MediaLimits
from pixelis.media.medium import Frame, Medium, as_read_only, frame_size

FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")


class Image(Medium):
    """One still picture, decoded when it is opened."""

    kind: ClassVar[Literal["image", "clip"]] = "image"
    frame_count = 1

    def __init__(self, pixels: Frame, *, sha256: str, path: Path | None = None) -> None:
        self.pixels = as_read_only(pixels)
        self.sha256 = sha256
        self.size = frame_size(pixels)
        self.path = path

    @classmethod
    def from_array(cls, pixels: Frame) -> Image:
        """A picture without a file; its identity is the hash of its shape and pixels."""
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise MediaError(f"an image is (height, width, 3) of uint8; this is {pixels.shape} of {pixels.dtype}")
        digest = hashlib.sha256(f"rgb8 {pixels.shape[1]}x{pixels.shape[0]}\n".encode())
        digest.update(np.ascontiguousarray(pixels).tobytes())
        return cls(pixels, sha256=digest.hexdigest())

    @classmethod
    def from_bytes(cls, content: bytes, *, limits: MediaLimits | None = None, path: Path | None = None) -> Image:
        """A picture from the bytes of its file."""
        limits = limits or MediaLimits()
        with open_pillow(content, limits, path) as picture:
            pixels = to_upright_rgb(picture, display_name(path))
        return cls(pixels, sha256=hashlib.sha256(content).hexdigest(), path=path)

    def frame(self, index: int) -> Frame:
        self.check_index(index)
        return self.pixels

    def time_of(self, index: int) -> float:
        self.check_index(index)
        return 0.0

    @property
    def duration_s(self) -> float:
        return 0.0

    def index_at(self, seconds: float) -> int:
        if seconds != 0.0:
            raise MediaError(f"{self.describe()} is a still picture: there is nothing at {seconds:g} s, only at 0 s")
        return 0


def display_name(path: Path | None) -> str:
    return path.name if path else "the picture"


def open_pillow(content: bytes, limits: MediaLimits, path: Path | None) -> Pil.Image:
    """The picture's header, checked against the limits before any pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked below, and a damaged file raises
            picture = Pil.open(io.BytesIO(content), formats=FORMATS)
    except Pil.DecompressionBombError as error:
        raise MediaError(f"{display_name(path)} is too large to decode: {error}") from error
    except Exception as error:
        raise MediaError(f"{display_name(path)} is not a picture that can be opened ({error_text(error)})") from error
    width, height = picture.size
    if width < 1 or height < 1:
        raise MediaError(f"{display_name(path)} has no pixels ({width}x{height})")
    if width * height > limits.image_pixels:
        raise MediaError(f"{display_name(path)} has {width}x{height} pixels; at most {limits.image_pixels} are decoded")
    return picture


def to_upright_rgb(picture: Pil.Image, name: str) -> Frame:
    """Decoded pixels as 8-bit RGB: EXIF rotation applied, alpha composited, deep and palette modes converted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture.load()
            picture = ImageOps.exif_transpose(picture)
            if picture.mode.startswith("I") or picture.mode == "F":
                return to_eight_bits(np.asarray(picture, dtype=np.float64))
            if picture.has_transparency_data:
                return composite_alpha(np.asarray(picture.convert("RGBA")))
            return as_read_only(np.asarray(picture.convert("RGB")))
    except Exception as error:
        raise MediaError(f"{name} cannot be decoded: it is truncated or corrupt ({error_text(error)})") from error


def to_eight_bits(values: np.ndarray) -> Frame:
    """Grey values of 16 or 32 bits, or floats, as 8-bit RGB: 16-bit by the full range, the others by their own."""
    values = np.nan_to_num(values, nan=0.0, posinf=65535.0, neginf=0.0)
    low, high = 0.0, 65535.0
    if values.min() < low or values.max() > high or values.max() <= 1.0:
        low, high = float(values.min()), float(values.max())
    grey = np.round(255.0 * (values - low) / max(high - low, 1e-12)).astype(np.uint8)
    return as_read_only(np.repeat(grey[:, :, None], 3, axis=2))


def composite_alpha(rgba: np.ndarray) -> Frame:
    """Composite alpha on white; on black if the opaque pixels are nearly white themselves."""
    alpha = rgba[:, :, 3:].astype(np.float32) / 255.0
    opaque = float(alpha.sum())
    brightness = float((rgba[:, :, :3].mean(axis=2, keepdims=True) * alpha).sum()) / opaque if opaque else 0.0
    background = 0.0 if brightness > 200.0 else 255.0
    return as_read_only(np.round(rgba[:, :, :3] * alpha + background * (1.0 - alpha)).astype(np.uint8))


def error_text(error: Exception) -> str:
    """The first line of a decoder's error, without addresses and buffers."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "it begins like none" if "<_io." in text or "0x" in text else text
