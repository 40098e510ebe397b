"""Features of media for de-duplication: hashes and embeddings of frames, cached by content in one file.

An image has one frame. A clip has one embedded keyframe per second and eight hashed frames per second, so that the
offset of a trimmed copy can be found (supp:index_whitelist_dedup: 1 fps, centre-cropped).
"""

from __future__ import annotations

import io
import math
import sqlite3
import threading
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError
from pixelis.dedup.hashing import Hashes, centre_square, perceptual_hash
from pixelis.dedup.thumbnail_match import THUMBNAIL_SIDE, Thumbnail, make_thumbnail
from pixelis.media import Frame, Medium
from pixelis.tools.cache import open_database
from pixelis.trace.artifacts import DAMAGED_ZIP, read_member
from pixelis.weights import cache_dir

KEY_FPS = 1.0
DENSE_FPS = 8.0
MAX_KEYFRAMES = 1200
"""Twenty minutes at one per second; the keyframes of a longer clip are further apart."""
FEATURE_VERSION = "1"
"""Cached features of another version are computed again."""
MAX_FEATURE_BYTES = 64 * 2**20
"""Limit for one medium: 1200 keyframes of 1280 values take 3 MB, a day of hashes 11 MB."""


class ImageEncoder(Protocol):
    """Maps pictures to unit vectors; the fingerprint identifies the weights."""

    fingerprint: str

    def embed(self, images: Sequence[Frame]) -> NDArray[np.float32]:
        """(N, dimensions), L2-normalised."""


@dataclass(frozen=True)
class Features:
    """Features of a medium, small, and sufficient to find similar media."""

    sha256: str
    kind: Literal["image", "clip"]
    phash: int
    """pHash of an image; of a clip's first frame."""
    mirror_phash: int
    """pHash of its mirror image."""
    key_times_s: NDArray[np.float64]
    """(K,) time of each keyframe; [0] for an image."""
    key_hashes: Hashes
    """(K,) pHash of each keyframe's centre square."""
    dense_times_s: NDArray[np.float64]
    """(D,) time of each hashed frame of a clip; empty for an image."""
    dense_hashes: Hashes
    """(D,) pHash of each one's centre square."""
    embeddings: NDArray[np.float16]
    """(K, dimensions) of whole keyframes, because an image may be a frame of a clip."""
    thumbnail: Thumbnail
    """Of an image; of a clip's first frame."""
    duration_s: float

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.savez(
            file,
            head=np.array([self.sha256, self.kind, f"{self.phash:016x}", f"{self.mirror_phash:016x}"]),
            duration=np.array([self.duration_s]),
            **{name: getattr(self, attribute) for name, attribute in ARRAY_ATTRIBUTES.items()},
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Features:
        """ValueError, or another error of DAMAGED_ZIP, if the content is not features."""
        arrays = read_arrays(content)
        sha256, kind, phash, mirror_phash = (str(word) for word in arrays["head"])
        if kind not in ("image", "clip") or max(int(phash, 16), int(mirror_phash, 16)) >= 2**64:
            raise ValueError(f"its kind is neither image nor clip ({kind[:20]!r})")
        frames = {len(arrays[name]) for name in ("key_times", "key_hashes", "embeddings")}
        if len(frames) != 1 or 0 in frames or len(arrays["dense_times"]) != len(arrays["dense_hashes"]):
            raise ValueError("its arrays do not have one entry per frame")
        if arrays["duration"].shape != (1,) or arrays["thumbnail"].shape != (THUMBNAIL_SIDE, THUMBNAIL_SIDE):
            raise ValueError("its duration or its thumbnail has the wrong shape")
        return cls(
            sha256=sha256,
            kind="clip" if kind == "clip" else "image",
            phash=int(phash, 16),
            mirror_phash=int(mirror_phash, 16),
            duration_s=float(arrays["duration"][0]),
            **{attribute: arrays[name] for name, attribute in ARRAY_ATTRIBUTES.items()},
        )


ARRAY_ATTRIBUTES = {"key_times": "key_times_s", "key_hashes": "key_hashes", "dense_times": "dense_times_s"}
ARRAY_ATTRIBUTES |= {name: name for name in ("dense_hashes", "embeddings", "thumbnail")}
"""Attributes that are stored as they are, by the name of their array."""
ARRAY_TYPES = {
    "head": ("U", 1), "duration": ("f8", 1), "key_times": ("f8", 1), "key_hashes": ("u8", 1), "dense_times": ("f8", 1),
    "dense_hashes": ("u8", 1), "embeddings": ("f2", 2), "thumbnail": ("u1", 2),
}  # fmt: skip
"""Type and number of dimensions of each stored array."""


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz. Each header must match its bytes: `np.load` would allocate whatever the header states."""
    result = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name, (kind, dimensions) in ARRAY_TYPES.items():
            data = read_member(archive, f"{name}.npy", max_bytes=MAX_FEATURE_BYTES)
            stream = io.BytesIO(data)
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError(f"{name} is not an array of version 1.0")
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
            if len(shape) != dimensions or not (dtype.kind == "U" if kind == "U" else dtype == np.dtype(kind)):
                raise ValueError(f"{name} is an array of {dtype} with {len(shape)} dimensions")
            if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
                raise ValueError(f"{name} states the shape {shape}, which does not match its size")
            flat = np.frombuffer(data, dtype, offset=stream.tell())
            result[name] = flat.reshape(shape, order="F" if fortran_order else "C")
    return result


def compute_features(medium: Medium, encoder: ImageEncoder) -> Features:
    """Hashes and embeddings of a medium; MediaError if a frame cannot be decoded."""
    times = sample_times(medium, DENSE_FPS)
    step = max(1, round(DENSE_FPS / KEY_FPS), -(-len(times) // MAX_KEYFRAMES))
    hashes, embeddings = [], []
    first_frame = medium.frame(0)
    for number, seconds in enumerate(times):
        frame = medium.frame(medium.index_at(seconds))
        hashes.append(perceptual_hash(centre_square(frame)))
        if number % step == 0:
            embeddings.append(encoder.embed([frame])[0].astype(np.float16))
    frame_hashes = np.array(hashes, np.uint64)
    num_dense = len(times) if medium.kind == "clip" else 0
    return Features(
        sha256=medium.sha256,
        kind=medium.kind,
        phash=perceptual_hash(first_frame),
        mirror_phash=perceptual_hash(np.ascontiguousarray(first_frame[:, ::-1])),
        key_times_s=np.array(times[::step]),
        key_hashes=frame_hashes[::step],
        dense_times_s=np.array(times[:num_dense]),
        dense_hashes=frame_hashes[:num_dense],
        embeddings=np.stack(embeddings),
        thumbnail=make_thumbnail(first_frame),
        duration_s=medium.duration_s,
    )


def sample_times(medium: Medium, fps: float) -> list[float]:
    """Times from the start up to the last frame, `1/fps` apart; [0] for an image."""
    last = medium.time_of(medium.frame_count - 1)
    return [k / fps for k in range(int(last * fps + 1e-6) + 1)]


class FeatureCache:
    """Features by content hash in one SQLite file: an interrupted run resumes where it stopped.

    A file that is not a cache is refused; if it later cannot be read or written (a full disk), work is only slower.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_dir() / "dedup.sqlite"
        self._lock = threading.Lock()
        self._broken = False
        try:
            self._db = open_database(self.path)
            self._db.execute("CREATE TABLE IF NOT EXISTS features (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{self.path} cannot store features ({error}); choose another file with --cache"
            ) from error

    def get(self, sha256: str, encoder: ImageEncoder) -> Features | None:
        row = self._execute("SELECT value FROM features WHERE key = ?", (self._key(sha256, encoder),))
        try:
            return Features.from_bytes(row[0]) if row else None
        except (OSError, *DAMAGED_ZIP):  # a damaged entry is computed again
            return None

    def put(self, features: Features, encoder: ImageEncoder) -> None:
        entry = self._key(features.sha256, encoder), features.to_bytes()
        self._execute("INSERT OR REPLACE INTO features VALUES (?, ?)", entry)

    def _execute(self, statement: str, values: tuple[str | bytes, ...]) -> tuple[bytes] | None:
        if self._broken:
            return None
        with self._lock:
            try:
                row: tuple[bytes] | None = self._db.execute(statement, values).fetchone()
            except sqlite3.Error as error:
                self._broken = True  # one warning, then work continues without the cache
                warnings.warn(f"feature cache {self.path} is disabled: {error}", stacklevel=3)
                return None
        return row

    @staticmethod
    def _key(sha256: str, encoder: ImageEncoder) -> str:
        return f"{FEATURE_VERSION} {encoder.fingerprint} {sha256}"

    def close(self) -> None:
        self._db.close()
