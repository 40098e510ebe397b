"""What de-duplication knows of a medium: hashes of its frames and their embeddings, kept by content in one file.

An image has one frame. A clip has keyframes, one a second, which are embedded, and tracks of hashes eight times as
dense, so that a trimmed copy finds its offset (supp:index_whitelist_dedup: 1 fps, centre-cropped).
"""

from __future__ import annotations

import io
import sqlite3
import threading
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pixelis.errors import ConfigError
from pixelis.media import Frame, Medium
from pixelis.retrieval.hashing import Hashes, centre_square, perceptual_hash
from pixelis.retrieval.placing import Thumbnail, thumbnail_of
from pixelis.weights import cache_dir

KEY_FPS = 1.0
DENSE_FPS = 8.0
MOST_KEYFRAMES = 1200
"""Twenty minutes at one a second; a longer clip is sampled more thinly, evenly."""
VERSION = "1"
"""Of the features: another number, and what was kept is computed again."""


class ImageEncoder(Protocol):
    """Pictures into unit vectors; the fingerprint names the weights."""

    fingerprint: str

    def embed(self, images: Sequence[Frame]) -> NDArray[np.float32]:
        """(N, dimensions), L2-normalised."""


@dataclass(frozen=True)
class Features:
    """Frozen, small, and enough to find what a medium resembles."""

    sha256: str
    kind: Literal["image", "clip"]
    whole: int
    """pHash of an image; of a clip's first frame."""
    mirror: int
    """pHash of the same seen in a mirror."""
    key_times_s: NDArray[np.float64]
    """(K,) when each keyframe is shown; [0] for an image."""
    key_hashes: Hashes
    """(K,) of their centre squares."""
    dense_times_s: NDArray[np.float64]
    """(D,) for clips; empty for an image."""
    dense_hashes: Hashes
    embeddings: NDArray[np.float16]
    """(K, dimensions), of whole frames: an image can be one of a clip's."""
    thumbnail: Thumbnail
    """Of an image; of a clip's first frame."""
    duration_s: float

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.savez(
            file,
            head=np.array([self.sha256, self.kind, f"{self.whole:016x}", f"{self.mirror:016x}"]),
            duration=np.array([self.duration_s]),
            key_times=self.key_times_s,
            key_hashes=self.key_hashes,
            dense_times=self.dense_times_s,
            dense_hashes=self.dense_hashes,
            embeddings=self.embeddings,
            thumbnail=self.thumbnail,
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Features:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            sha256, kind, whole, mirror = (str(word) for word in stored["head"])
            return cls(
                sha256=sha256,
                kind="clip" if kind == "clip" else "image",
                whole=int(whole, 16),
                mirror=int(mirror, 16),
                key_times_s=stored["key_times"],
                key_hashes=stored["key_hashes"],
                dense_times_s=stored["dense_times"],
                dense_hashes=stored["dense_hashes"],
                embeddings=stored["embeddings"],
                thumbnail=stored["thumbnail"],
                duration_s=float(stored["duration"][0]),
            )


def features_of(medium: Medium, encoder: ImageEncoder) -> Features:
    """Hashes and embeddings of a medium; MediaError where a frame cannot be decoded."""
    if medium.kind == "image":
        return image_features(medium, encoder)
    times = sample_times(medium, DENSE_FPS)
    step = max(1, round(DENSE_FPS / KEY_FPS), -(-len(times) // MOST_KEYFRAMES))
    hashes, keys = [], []
    first = medium.frame(0)
    whole, mirror = hash_both_ways(first)
    for number, seconds in enumerate(times):
        frame = medium.frame(medium.index_at(seconds))
        hashes.append(perceptual_hash(centre_square(frame)))
        if number % step == 0:
            keys.append(encoder.embed([frame])[0].astype(np.float16))
    dense = np.array(hashes, np.uint64)
    return Features(
        sha256=medium.sha256,
        kind="clip",
        whole=whole,
        mirror=mirror,
        key_times_s=np.array(times[::step]),
        key_hashes=dense[::step],
        dense_times_s=np.array(times),
        dense_hashes=dense,
        embeddings=np.stack(keys),
        thumbnail=thumbnail_of(first),
        duration_s=medium.duration_s,
    )


def image_features(medium: Medium, encoder: ImageEncoder) -> Features:
    frame = medium.frame(0)
    whole, mirror = hash_both_ways(frame)
    return Features(
        sha256=medium.sha256,
        kind="image",
        whole=whole,
        mirror=mirror,
        key_times_s=np.zeros(1),
        key_hashes=np.array([perceptual_hash(centre_square(frame))], np.uint64),
        dense_times_s=np.zeros(0),
        dense_hashes=np.zeros(0, np.uint64),
        embeddings=encoder.embed([frame]).astype(np.float16),
        thumbnail=thumbnail_of(frame),
        duration_s=0.0,
    )


def hash_both_ways(frame: Frame) -> tuple[int, int]:
    return perceptual_hash(frame), perceptual_hash(np.ascontiguousarray(frame[:, ::-1]))


def sample_times(medium: Medium, fps: float) -> list[float]:
    """Moments `1/fps` apart from the start, never beyond the last frame."""
    last = medium.time_of(medium.frame_count - 1)
    return [k / fps for k in range(int(last * fps + 1e-6) + 1)]


class FeatureCache:
    """Features by content hash in one SQLite file: a run that was stopped goes on where it was.

    A file that is no cache is refused; one that cannot be read or written any more (a full disk) is only slower.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_dir() / "dedup.sqlite"
        self._lock = threading.Lock()
        self._broken = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=20.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS features (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{self.path} cannot keep features ({error}); name another file with --cache") from error

    def get(self, sha256: str, encoder: ImageEncoder) -> Features | None:
        row = self._attempt("SELECT value FROM features WHERE key = ?", (self._key(sha256, encoder),))
        try:
            return Features.from_bytes(row[0]) if row else None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # a torn entry is computed again
            return None

    def put(self, features: Features, encoder: ImageEncoder) -> None:
        entry = self._key(features.sha256, encoder), features.to_bytes()
        self._attempt("INSERT OR REPLACE INTO features VALUES (?, ?)", entry)

    def _attempt(self, statement: str, values: tuple[str | bytes, ...]) -> tuple[bytes] | None:
        if self._broken:
            return None
        with self._lock:
            try:
                row: tuple[bytes] | None = self._db.execute(statement, values).fetchone()
            except sqlite3.Error as error:
                self._broken = True  # one warning, then work goes on without
                warnings.warn(f"feature cache {self.path} is out of use: {error}", stacklevel=3)
                return None
        return row

    @staticmethod
    def _key(sha256: str, encoder: ImageEncoder) -> str:
        return f"{VERSION} {encoder.fingerprint} {sha256}"

    def close(self) -> None:
        self._db.close()
