"""The sources of a clip's frames."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pixelis.core.errors import MediaError, PixelisError
from pixelis.core.geometry import Size
from pixelis.media.image import Image, error_text, open_pillow, to_upright_rgb
from pixelis.media.limits import MediaLimits
from pixelis.media.medium import Frame, as_read_only, frame_size


@dataclass
class AnimationSource:
    """An animated GIF, WebP or PNG. Each frame is painted over the one before, so the open picture is kept."""

    content: bytes
    limits: MediaLimits
    path: Path | None
    _picture: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        picture = self._open_picture()
        self.size = Size(*picture.size)
        count = getattr(picture, "n_frames", 1)
        if count > self.limits.clip_frames:
            raise MediaError(f"{self._name} has {count} frames; at most {self.limits.clip_frames} are read")
        if count * self.size.pixels > self.limits.animation_pixels:
            raise MediaError(
                f"{self._name} has {count} frames of {self.size.width}x{self.size.height} pixels; "
                f"at most {self.limits.animation_pixels} pixels in all are decoded"
            )
        starts = np.concatenate([[0.0], np.cumsum([self._duration(index) for index in range(count)])])
        self.times_s = tuple(round(float(t), 6) for t in starts[:-1])
        self.duration_s = float(starts[-1])

    @property
    def _name(self) -> str:
        return self.path.name if self.path else "the animation"

    def _open_picture(self) -> Any:
        if self._picture is None:
            self._picture = open_pillow(self.content, self.limits, self.path)
        return self._picture

    def _picture_at(self, index: int) -> Any:
        """The picture at this frame; Pillow seeks forward, or from the start."""
        try:
            picture = self._open_picture()
            picture.seek(index)
        except Exception as error:
            self._picture = None
            raise MediaError(f"{self._name}: frame {index} cannot be read ({error_text(error)})") from error
        return picture

    def _duration(self, index: int) -> float:
        # browsers, too, read 0 as a short delay
        return max(float(self._picture_at(index).info.get("duration", 100)), 10.0) / 1000.0

    def decode(self, index: int) -> Frame:
        try:
            return to_upright_rgb(self._picture_at(index).copy(), self._name)
        except OSError as error:
            self._picture = None
            raise MediaError(f"{self._name}: frame {index} cannot be decoded ({error_text(error)})") from error


@dataclass
class FolderSource:
    """A folder of numbered pictures, one per frame."""

    files: tuple[Path, ...]
    digests: tuple[str, ...]
    fps: float
    limits: MediaLimits

    def __post_init__(self) -> None:
        self.size = self._image(0).size
        self.times_s = tuple(round(i / self.fps, 6) for i in range(len(self.files)))
        self.duration_s = len(self.files) / self.fps

    def decode(self, index: int) -> Frame:
        image = self._image(index)
        if image.size != self.size:
            raise MediaError(
                f"{self.files[index].name} has {image.size.width}x{image.size.height} pixels, the first frame "
                f"{self.size.width}x{self.size.height}: a folder of frames has one size"
            )
        return image.pixels

    def _image(self, index: int) -> Image:
        path = self.files[index]
        try:
            image = Image.from_bytes(path.read_bytes(), limits=self.limits, path=path)
        except OSError as error:
            raise MediaError(f"{path.name} of the folder cannot be read any more ({error.strerror})") from error
        if image.sha256 != self.digests[index]:
            raise MediaError(f"{path.name} changed after its folder was opened; open it again")
        return image


class VideoSource:
    """A video stream, decoded by PyAV from an open file, so that a container can name no other file or address."""

    def __init__(self, file: BinaryIO, container_format: str, limits: MediaLimits, path: Path) -> None:
        self._file, self._format, self._path, self._limits = file, container_format, path, limits
        self._stamp = self._stat()
        self._container: Any = None
        self._frames: Iterator[Any] | None = None
        self._next_index = 0
        try:
            self._index_frames()
        except PixelisError:
            raise
        except Exception as error:
            raise MediaError(f"{path.name} cannot be read as video ({error_text(error)})") from error

    def _stat(self) -> tuple[int, int]:
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns

    def _open(self) -> Any:
        from pixelis.core.extras import require

        av = require("av", f"{self._path.name} is a video file, and reading one")
        self._file.seek(0)
        if self._container is not None:
            self._container.close()
        self._container = av.open(self._file, format=self._format, metadata_errors="replace")
        if not self._container.streams.video:
            raise MediaError(f"{self._path.name} holds no video stream")
        stream = self._container.streams.video[0]
        stream.thread_count = 1  # the same frames in the same order on every machine
        # a stream may hold larger frames than its container declares
        stream.codec_context.options = {"max_pixels": str(self._limits.frame_pixels)}
        return stream

    def _index_frames(self) -> None:
        """Time of every frame, from the packets alone if they have times."""
        limits, stream = self._limits, self._open()
        if stream.codec_context.width * stream.codec_context.height > limits.frame_pixels:
            raise MediaError(f"{self._path.name} has frames of over {limits.frame_pixels} pixels")
        stamps: list[int] = []
        has_times = True
        for packet in self._container.demux(stream):
            if packet.size == 0:
                continue
            has_times = has_times and packet.pts is not None
            stamps.append(packet.pts or 0)
            if len(stamps) > limits.clip_frames:
                raise MediaError(f"{self._path.name} has over {limits.clip_frames} frames")
        if not has_times:
            stream = self._open()
            stamps = [f.pts if f.pts is not None else i for i, f in enumerate(self._container.decode(stream))]
        if not stamps:
            raise MediaError(f"{self._path.name} holds no frames")
        self._stamps = sorted(set(stamps))
        first = self._decode_from_start()
        stream = self._container.streams.video[0]
        # AVI stores no times: after a seek among B-frames libav's guesses are off by some frames, so frames are counted
        self._seeks_by_count = self._format == "avi" and bool(stream.codec_context.has_b_frames)
        self._stamps = [s for s in self._stamps if first.pts is None or s >= first.pts]
        base = float(stream.time_base)
        rate = float(stream.average_rate or 0) or 25.0
        self.times_s = tuple(round((s - self._stamps[0]) * base, 6) for s in self._stamps)
        gap = self.times_s[-1] / (len(self.times_s) - 1) if len(self.times_s) > 1 else 1.0 / rate
        self.duration_s = self.times_s[-1] + gap
        if self.duration_s > limits.clip_seconds:
            raise MediaError(f"{self._path.name} lasts {self.duration_s:.0f} s; at most {limits.clip_seconds:.0f} s")
        self._coded_size = (first.width, first.height)
        self.size = frame_size(self._pixels(first))

    def _decode_from_start(self) -> Any:
        stream = self._open()
        self._frames, self._next_index = self._container.decode(stream), 0
        frame = next(self._frames, None)
        if frame is None:
            raise MediaError(f"{self._path.name} holds no frame that can be decoded")
        self._next_index = 1
        return frame

    def decode(self, index: int) -> Frame:
        if self._stat() != self._stamp:
            raise MediaError(f"{self._path.name} changed after it was opened; open it again")
        try:
            last_reachable = len(self._stamps) if self._seeks_by_count else self._next_index + 48
            if self._frames is None or not self._next_index <= index <= last_reachable:
                self._seek(index)
            return self._pixels(self._forward_to(index))
        except MediaError:
            raise
        except Exception as error:
            self._frames = None
            raise MediaError(f"{self._path.name}: frame {index} cannot be decoded ({error_text(error)})") from error

    def _seek(self, index: int) -> None:
        """Seek to the key frame at or before `index`, or to the start if the container cannot seek."""
        if self._seeks_by_count:
            stream = self._open()
        else:
            stream = self._container.streams.video[0]
            self._container.seek(self._stamps[index], stream=stream, backward=True, any_frame=False)
        self._frames, self._next_index = self._container.decode(stream), 0

    def _forward_to(self, index: int) -> Any:
        """The frame at `index`; in a damaged stream, the next one that decodes."""
        assert self._frames is not None  # noqa: S101 - set by _seek
        target_pts = self._stamps[index]
        for position, frame in enumerate(self._frames, start=self._next_index):
            if position == index if self._seeks_by_count else frame.pts is None or frame.pts >= target_pts:
                self._next_index = index + 1
                return frame
        self._frames = None
        raise MediaError(f"{self._path.name} breaks off before frame {index}: it is truncated or damaged")

    def _pixels(self, frame: Any) -> Frame:
        """Upright RGB in the size of the first frame, also if the stream changes its size."""
        rotation = int(getattr(frame, "rotation", 0) or 0)
        width, height = self._coded_size
        pixels = frame.to_ndarray(format="rgb24", width=width, height=height)
        return as_read_only(np.rot90(pixels, (rotation // 90) % 4))


@dataclass
class ArraySource:
    """Frames in memory."""

    frames: tuple[Frame, ...]
    fps: float

    def __post_init__(self) -> None:
        self.size = frame_size(self.frames[0])
        self.times_s = tuple(round(i / self.fps, 6) for i in range(len(self.frames)))
        self.duration_s = len(self.frames) / self.fps

    def decode(self, index: int) -> Frame:
        return self.frames[index]
