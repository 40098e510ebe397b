"""From a path to a medium: the first bytes decide what it is, never its name."""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path

from pixelis.core.errors import MediaError
from pixelis.media.clip import Clip
from pixelis.media.image import FORMATS, Image, display_name, open_pillow
from pixelis.media.limits import MediaLimits
from pixelis.media.medium import Medium
from pixelis.media.sources import AnimationSource, FolderSource, VideoSource

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi")
WEB_ADDRESS = re.compile(r"(?:https?|ftp|s3|gs|data):/?", re.IGNORECASE)
FOLDER_FPS = 25.0
"""Default frame rate of a folder."""


def open_media(path: Path | str, *, limits: MediaLimits | None = None, fps: float = FOLDER_FPS) -> Medium:
    """An image or clip from a file, or a clip from a folder of frames (`fps` is then its rate).

    Raises MediaError, in one line, for anything that is not a medium or is too large to decode.
    """
    if WEB_ADDRESS.match(str(path)):
        address = str(path).replace(":/", "://", 1) if isinstance(path, Path) else path  # a Path joins the slashes
        raise MediaError(f"{address} is a web address: download the file and give its path")
    path, limits = Path(path), limits or MediaLimits()
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise MediaError(f"{path} cannot be opened ({getattr(error, 'strerror', None) or error})") from error
    if stat.S_ISDIR(status.st_mode):
        try:
            return open_folder(path, limits, fps)
        except OSError as error:
            raise MediaError(f"{path} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):
        raise MediaError(f"{path} is neither a file nor a folder of frames")
    if status.st_size == 0:
        raise MediaError(f"{path.name} is empty")
    try:
        with path.open("rb") as file:
            head = file.read(64)
        if head.startswith(b"%PDF"):
            raise MediaError(
                f"{path.name} is a PDF: make a picture of each page (`pdftoppm -r 150 -png {path.name} page`), "
                "and give those"
            )
        container = video_container(head)
        return open_video(path, container, limits) if container else open_picture(path, status.st_size, limits)
    except OSError as error:
        raise MediaError(f"{path} cannot be read ({error.strerror})") from error


def video_container(head: bytes) -> str | None:
    """libav's name for the container that begins with these bytes; None for a kind that is not read."""
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    return None


def open_picture(path: Path, size_bytes: int, limits: MediaLimits) -> Medium:
    require_picture_size(size_bytes, limits, path)
    return decode_picture(path.read_bytes(), limits, path)


def open_bytes(content: bytes, *, limits: MediaLimits | None = None) -> Medium:
    """An image, or a clip of an animated picture, from the bytes of its file. A video has to be a file."""
    limits = limits or MediaLimits()
    if video_container(content[:64]):
        raise MediaError("these bytes are a video, which is decoded from its file: pass its path")
    require_picture_size(len(content), limits, None)
    return decode_picture(content, limits, None)


def require_picture_size(size_bytes: int, limits: MediaLimits, path: Path | None) -> None:
    if size_bytes > limits.image_bytes:
        name = display_name(path)
        raise MediaError(f"{name} has {size_bytes} bytes; at most {limits.image_bytes} are read of a picture")


def decode_picture(content: bytes, limits: MediaLimits, path: Path | None) -> Medium:
    with open_pillow(content, limits, path) as picture:
        animated = picture.format in ("GIF", "WEBP", "PNG") and getattr(picture, "n_frames", 1) > 1
    if not animated:
        return Image.from_bytes(content, limits=limits, path=path)
    return Clip(AnimationSource(content, limits, path), sha256=hashlib.sha256(content).hexdigest(), path=path)


def open_video(path: Path, container: str, limits: MediaLimits) -> Clip:
    file = path.open("rb")  # stays open for the life of the clip: frames are decoded from it
    try:
        size_bytes = path.stat().st_size
        if size_bytes > limits.clip_bytes:
            raise MediaError(f"{path.name} has {size_bytes} bytes; at most {limits.clip_bytes} are read of a clip")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Clip(VideoSource(file, container, limits, path), sha256=digest, path=path)
    except BaseException:
        file.close()
        raise


def open_folder(path: Path, limits: MediaLimits, fps: float) -> Clip:
    """Frames in the order of the numbers in their names; files without a picture's suffix are skipped."""
    if not 0.0 < fps <= 1000.0:
        raise MediaError(f"{fps} frames a second: want a rate over 0 and at most 1000")
    fps = float(f"{fps:g}")  # as in the identity, so that one identity has one time line
    files = sorted((f for f in path.iterdir() if f.suffix.lower() in PICTURE_SUFFIXES), key=natural_sort_key)
    irregular = next((f for f in files if not f.is_file()), None)  # reading a pipe would block for ever
    if irregular is not None:
        raise MediaError(f"{irregular.name} in {path} is not a plain file: a folder of frames holds pictures")
    if not files:
        videos = sorted(f.name for f in path.iterdir() if f.suffix.lower() in VIDEO_SUFFIXES)
        if videos:
            raise MediaError(f"{path} holds videos, no pictures: give one of them, such as {path / videos[0]}")
        raise MediaError(f"{path} holds no pictures ({', '.join(FORMATS)}): a clip is a video or a folder of frames")
    if len(files) > limits.clip_frames:
        raise MediaError(f"{path} holds {len(files)} pictures; at most {limits.clip_frames} are read")
    sizes = [f.stat().st_size for f in files]
    if max(sizes) > limits.image_bytes or sum(sizes) > limits.clip_bytes:
        raise MediaError(
            f"{path} holds {sum(sizes)} bytes of pictures, {max(sizes)} in one; "
            f"at most {limits.clip_bytes} are read, {limits.image_bytes} of one"
        )
    digests = tuple(hash_file(f) for f in files)
    listing = "".join(f"{digest} {file.name}\n" for digest, file in zip(digests, files, strict=True))
    identity = hashlib.sha256(f"folder {fps:g}\n{listing}".encode()).hexdigest()
    return Clip(FolderSource(tuple(files), digests, fps, limits), sha256=identity, path=path)


def hash_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def natural_sort_key(file: Path) -> tuple[list[int], str]:
    """Sorts frame_2 before frame_10."""
    return [int(number) for number in re.findall(r"\d+", file.stem)], file.name
