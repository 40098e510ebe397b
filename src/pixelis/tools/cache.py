"""The cache of results and perceptions: keyed by content, bounded on disk, shared by processes.

A key names the medium's content, the tool with its weights, and the canonical arguments, so that an entry can never
be stale. It is one SQLite file in write-ahead mode. A cache that cannot be read or written costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pixelis.core.errors import ConfigError

DEFAULT_LIMIT_BYTES = 4 * 2**30
TOUCH_INTERVAL_S = 600.0  # the time of use of an entry is updated at most this often
BUSY_TIMEOUT_S = 20.0  # how long to wait for another process


class CacheInfo(NamedTuple):
    """The fields of `pixelis cache info`."""

    path: str
    entries: int
    bytes: int
    limit_bytes: int


def default_cache_path() -> Path:
    from pixelis.weights import cache_dir

    return cache_dir() / "results.sqlite"


def cache_key(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def open_database(path: Path) -> sqlite3.Connection:
    """A SQLite file that processes share, in write-ahead mode: readers do not wait for the writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None)
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            return db
        except sqlite3.Error as error:
            # SQLite does not wait here for a process that creates the same file
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                db.close()
                raise
            time.sleep(0.01)


class ResultCache:
    """Bytes by key; beyond the limit, the least recently used entries are evicted."""

    def __init__(self, path: Path | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.path = path or default_cache_path()
        self.limit_bytes = limit_bytes
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._broken = False
        self._db: sqlite3.Connection | None = None
        self._bytes_since_check = limit_bytes  # bytes written since the last check of the total; the first write checks

    def _connect(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = db = open_database(self.path)
            db.execute(
                "CREATE TABLE IF NOT EXISTS entries"
                " (key TEXT PRIMARY KEY, value BLOB NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL) WITHOUT ROWID"
            )
            db.execute("CREATE INDEX IF NOT EXISTS by_use ON entries (used, size)")
        return self._db

    def _attempt(self, work: Callable[[sqlite3.Connection], bytes | None]) -> bytes | None:
        if self._broken:
            return None
        with self._lock:
            try:
                return work(self._connect())
            except (sqlite3.Error, OSError) as error:
                self._broken = True  # one warning, then work continues without a cache
                self._disconnect()  # an open transaction would block other processes
                warnings.warn(f"result cache {self.path} is out of use: {error}", stacklevel=3)
                return None

    @property
    def hit_rate(self) -> float:
        """Hit rate; 0 before the first look-up."""
        return self.hits / max(self.hits + self.misses, 1)

    def get(self, key: str) -> bytes | None:
        def read(db: sqlite3.Connection) -> bytes | None:
            row = db.execute("SELECT value, used FROM entries WHERE key = ?", (key,)).fetchone()
            if row is None:
                self.misses += 1
                return None
            self.hits += 1
            if time.time() - row[1] > TOUCH_INTERVAL_S:
                db.execute("UPDATE entries SET used = ? WHERE key = ?", (time.time(), key))
            return bytes(row[0])

        return self._attempt(read)

    def put(self, key: str, value: bytes) -> None:
        if len(value) > self.limit_bytes // 4:
            return

        def write(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            try:
                db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, value, len(value), time.time()))
                self._bytes_since_check += len(value)
                if self._bytes_since_check > self.limit_bytes // 64:  # summing is a full scan, too slow for every write
                    self._bytes_since_check = 0
                    self._evict(db)
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

        self._attempt(write)

    def _evict(self, db: sqlite3.Connection) -> None:
        total = db.execute("SELECT COALESCE(SUM(size), 0) FROM entries").fetchone()[0]
        if total <= self.limit_bytes:
            return
        excess = total - int(self.limit_bytes * 0.9)  # to a tenth below, so that not every write evicts
        for key, size in db.execute("SELECT key, size FROM entries ORDER BY used").fetchall():
            db.execute("DELETE FROM entries WHERE key = ?", (key,))
            excess -= size
            if excess <= 0:
                return

    def info(self) -> CacheInfo:
        """Its size and hits; ConfigError if the file is not a cache."""
        try:
            with self._lock:
                db = self._connect()
                count, total = db.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM entries").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"the result cache {self.path} cannot be read ({error}); `pixelis cache clear` makes a new one"
            ) from error
        return CacheInfo(str(self.path), count, total, self.limit_bytes)

    def clear(self) -> None:
        """Delete every entry; a damaged file is removed."""
        with self._lock:
            try:
                db = self._connect()
                db.execute("DELETE FROM entries")
                db.execute("VACUUM")
            except sqlite3.OperationalError as error:  # locked, or a disk without room: the file itself is sound
                raise ConfigError(f"the result cache {self.path} cannot be cleared now ({error})") from error
            except sqlite3.DatabaseError:
                self._disconnect()
                for suffix in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class PerceptionCache:
    """Perceptions of frames (embeddings, detections, text): a memory cache above the result cache."""

    def __init__(self, result_cache: ResultCache | None, *, memory_bytes: int = 256 * 2**20) -> None:
        self._result_cache = result_cache
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._limit = memory_bytes

    def __call__(self, key: str, compute: Callable[[], bytes]) -> bytes:
        hashed_key = cache_key("perception", key)
        if hashed_key in self._memory:
            self._memory.move_to_end(hashed_key)
            return self._memory[hashed_key]
        value = self._result_cache.get(hashed_key) if self._result_cache else None
        if value is None:
            value = compute()
            if self._result_cache:
                self._result_cache.put(hashed_key, value)
        self._memory[hashed_key] = value
        self._bytes += len(value)
        while self._bytes > self._limit and len(self._memory) > 1:
            self._bytes -= len(self._memory.popitem(last=False)[1])
        return value
