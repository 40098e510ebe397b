"""The result cache: bounded, shared between processes, and never wrong."""

import sqlite3
import subprocess
import sys
import threading

import pytest

from pixelis.core.errors import ConfigError
from pixelis.tools.cache import PerceptionCache, ResultCache


def test_what_was_put_comes_back(tmp_path):
    cache = ResultCache(tmp_path / "c.sqlite")
    cache.put("k", b"value")
    assert cache.get("k") == b"value"
    assert cache.get("other") is None
    assert (cache.hits, cache.misses) == (1, 1)


def test_the_least_recently_used_leave_when_the_limit_is_passed(tmp_path):
    cache = ResultCache(tmp_path / "c.sqlite", limit_bytes=64_000)
    for number in range(100):
        cache.put(f"{number:03}", bytes(1000))
    info = cache.info()
    assert info.bytes <= 64_000
    assert cache.get("099") is not None
    assert cache.get("000") is None


def test_a_value_as_large_as_the_cache_is_not_kept(tmp_path):
    cache = ResultCache(tmp_path / "c.sqlite", limit_bytes=1000)
    cache.put("k", bytes(900))
    assert cache.get("k") is None


def test_clear_forgets_everything(tmp_path):
    cache = ResultCache(tmp_path / "c.sqlite")
    cache.put("k", b"value")
    cache.clear()
    assert cache.info().entries == 0


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    script = (
        "import sys; from pathlib import Path; from pixelis.tools.cache import ResultCache\n"
        "cache = ResultCache(Path(sys.argv[1]))\n"
        "for i in range(100): cache.put(f'{sys.argv[2]}-{i}', sys.argv[2].encode() * 100)\n"
    )
    path = str(tmp_path / "c.sqlite")
    writers = [subprocess.Popen([sys.executable, "-c", script, path, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    cache = ResultCache(tmp_path / "c.sqlite")
    assert cache.info().entries == 300
    assert all(cache.get(f"{name}-{i}") == name.encode() * 100 for name in "abc" for i in range(100))


def test_a_new_file_that_another_process_is_writing_is_waited_for(tmp_path):
    other = sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # as a process does that has made the file and not yet its write-ahead log
    done = threading.Timer(0.3, other.execute, ("COMMIT",))
    done.start()
    cache = ResultCache(tmp_path / "c.sqlite")
    cache.put("k", b"value")
    done.join()
    assert cache.get("k") == b"value"


def test_a_full_disk_is_a_warning_and_not_a_failure(tmp_path):
    (tmp_path / "folder").mkdir()
    cache = ResultCache(tmp_path / "folder")  # a path that cannot be a file
    with pytest.warns(UserWarning, match="out of use"):
        cache.put("k", b"value")
    assert cache.get("k") is None


def test_a_damaged_file_is_said_in_a_line_and_clear_makes_a_new_one(tmp_path):
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"this is not a database" * 400)
    with pytest.raises(ConfigError, match="pixelis cache clear"):
        ResultCache(path).info()
    ResultCache(path).clear()
    cache = ResultCache(path)
    cache.put("k", b"value")
    assert cache.get("k") == b"value"


def test_perception_is_computed_once_and_kept_below(tmp_path):
    below = ResultCache(tmp_path / "c.sqlite")
    calls = []

    def compute() -> bytes:
        calls.append(1)
        return b"seen"

    perceive = PerceptionCache(below)
    assert perceive("frame 1", compute) == perceive("frame 1", compute) == b"seen"
    assert PerceptionCache(below)("frame 1", compute) == b"seen"
    assert len(calls) == 1


def test_perception_in_memory_is_bounded():
    perceive = PerceptionCache(None, memory_bytes=2500)
    for number in range(10):
        perceive(str(number), lambda: bytes(1000))
    assert len(perceive._memory) <= 2
