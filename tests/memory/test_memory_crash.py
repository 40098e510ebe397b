"""A memory whose process is gone: cut at a byte, and killed at random moments. What was acknowledged is there."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from memories import SMALL, draft, drafts, exact_mix, key, keys, new_memory

from pixelis.core.errors import MemoryFileError
from pixelis.memory.memory_store import MemoryStore

NAMES = ("keys.f16", "items.jsonl", "rows.bin")
"""In the order in which an append writes them."""


def pixels(number: int) -> bytes:
    return f"pixels of {number} ".encode() * 40


def made(number: int):
    """Item `number`, whoever makes it."""
    return draft(number, keys(1, seed=number)[0], kept=pixels(number))


@pytest.fixture
def folder(tmp_path) -> Path:
    with new_memory(tmp_path / "m") as memory:
        memory.add([made(0), made(1)])
    return tmp_path / "m"


def test_an_append_cut_off_at_any_byte_is_found_and_dropped(folder, tmp_path):
    before = {name: (folder / name).read_bytes() for name in NAMES}
    with MemoryStore(folder, SMALL) as memory:
        memory.add([made(2)])
    after = {name: (folder / name).read_bytes() for name in NAMES}
    kept = {f: f.read_bytes() for f in (folder / "files").rglob("*.png")}
    new_file = next(f for f, content in kept.items() if content == pixels(2))
    new_file.unlink()
    cases = 0
    for place, name in enumerate(NAMES):
        longest = len(after[name]) - len(before[name])
        for extra in range(1, longest + (name != "rows.bin"), 1 if longest < 40 else longest // 25):
            for number, other in enumerate(NAMES):
                content = after[other] if number < place else before[other]
                (folder / other).write_bytes(after[name][: len(before[name]) + extra] if other == name else content)
            if name == "rows.bin":  # files are written before the row, after the line
                new_file.parent.mkdir(exist_ok=True)
                new_file.write_bytes(pixels(2))
            with MemoryStore(folder, SMALL) as memory:
                assert memory.recovered.bytes >= extra
                assert memory.watermark == 2
                assert [item.id for _, item in memory.items()] == ["item-0", "item-1"]
            assert {n: (folder / n).read_bytes() for n in NAMES} == before
            assert not new_file.exists()
            cases += 1
    assert cases > 75
    with MemoryStore(folder, SMALL) as memory:
        assert memory.recovered == (0, 0)
        assert memory.add([made(2)])[0].row == 2
    assert {n: (folder / n).read_bytes() for n in NAMES} == after


def test_a_reader_sees_the_whole_items_and_mends_nothing(folder):
    with (folder / "rows.bin").open("ab") as file:
        file.write(b"half a row")
    before = (folder / "rows.bin").read_bytes()
    reader = MemoryStore.open_read_only(folder, SMALL)
    assert reader.watermark == 2
    with pytest.raises(MemoryFileError, match="reading only"):
        reader.add([made(2)])
    assert (folder / "rows.bin").read_bytes() == before


def test_rows_that_are_noise_are_damage_and_zeros_of_a_power_cut_are_not(folder):
    """Noise in place of all rows once read as an empty memory, and the next append erased what lay there."""
    before = {name: (folder / name).read_bytes() for name in NAMES}
    for noise in (b"\x07" * len(before["rows.bin"]), before["rows.bin"][:-1] + b"\x07"):
        (folder / "rows.bin").write_bytes(noise)
        for opening in (MemoryStore, MemoryStore.open_read_only):
            with pytest.raises(MemoryFileError, match=r"row [01] is damaged; restore the file, or build"):
                opening(folder, SMALL)
    (folder / "rows.bin").write_bytes(before["rows.bin"] + bytes(64))
    with MemoryStore(folder, SMALL) as memory:
        assert memory.recovered == (2, 64)
    assert {name: (folder / name).read_bytes() for name in NAMES} == before


def test_damage_that_is_no_cut_is_refused_and_a_cut_key_file_too(folder, tmp_path):
    rows = bytearray((folder / "rows.bin").read_bytes())
    rows[3] ^= 255
    shutil.copytree(folder, tmp_path / "copy")
    (folder / "rows.bin").write_bytes(rows)
    with pytest.raises(MemoryFileError, match="row 0 is damaged; restore the file"):
        MemoryStore(folder, SMALL)
    copy = tmp_path / "copy"
    items = bytearray((copy / "items.jsonl").read_bytes())
    items[20] ^= 255
    (copy / "items.jsonl").write_bytes(items)
    with MemoryStore(copy, SMALL) as memory:
        assert list(memory.files.damaged_rows()) == [0]
        with pytest.raises(MemoryFileError, match="item 0 is damaged"):
            memory.files.item(0)
        memory.delete(0)  # and can be taken out
        assert [item.id for _, item in memory.items()] == ["item-1"]


def test_two_processes_cannot_write_and_a_killed_one_leaves_no_lock(folder):
    with MemoryStore(folder, SMALL), pytest.raises(MemoryFileError, match="written by another process"):
        MemoryStore(folder, SMALL)
    MemoryStore(folder, SMALL).close()


def test_a_deletion_and_a_rollback_that_were_cut_off_are_finished_at_open(folder):
    whole = {name: (folder / name).read_bytes() for name in NAMES}
    files = {f: f.read_bytes() for f in (folder / "files").rglob("*.png")}
    with MemoryStore(folder, SMALL) as memory:
        memory.delete(1)
    for name, content in whole.items():  # the deletion was noted, and nothing erased yet
        (folder / name).write_bytes(content)
    for file, content in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    with MemoryStore(folder, SMALL) as memory:
        assert (len(memory), memory.watermark) == (1, 2)
    assert b"question 1" not in (folder / "items.jsonl").read_bytes()
    assert len(list((folder / "files").rglob("*.png"))) == 1
    with (folder / "rows.bin").open("r+b") as file:  # a rollback to nothing that only cut the rows
        file.truncate(0)
    with MemoryStore(folder, SMALL) as memory:
        assert (len(memory), memory.watermark) == (0, 0)
    assert [(folder / name).stat().st_size for name in NAMES] == [0, 0, 0]
    assert not list((folder / "files").rglob("*.png"))


def append_for_ever(folder: Path, acknowledged: Path) -> None:
    """One batch after another; what was taken is written down afterwards."""
    with MemoryStore(folder, SMALL) as memory, acknowledged.open("a") as file:
        while True:
            first = memory.watermark
            memory.add([made(first + k) for k in range(2)])
            file.write(f"{memory.watermark}\n")
            file.flush()


def do_anything(folder: Path, acknowledged: Path) -> None:
    """Appends, rollbacks and deletions in turn."""
    rng = random.Random(os.getpid())
    with MemoryStore(folder, SMALL) as memory, acknowledged.open("a") as file:
        while True:
            memory.add([made(memory.watermark + k) for k in range(2)])
            file.write("appended\n")
            file.flush()
            if rng.random() < 0.4:
                memory.rollback(max(2, memory.watermark - rng.randrange(4)))
            there = [row for row, _ in memory.items() if row >= 2]
            if there and rng.random() < 0.5:
                memory.delete(rng.choice(there))


def write_for_ever(folder: Path, acknowledged: Path) -> None:
    """The index, again and again."""
    with MemoryStore(folder, SMALL) as memory, acknowledged.open("a") as file:
        while True:
            file.write("begun\n")
            file.flush()
            memory.save_index()


def killed(work, folder: Path, acknowledged: Path, rng: random.Random) -> None:
    """A process of its own works until SIGKILL comes: a moment after it has said a few lines more."""
    acknowledged.touch()
    wanted = acknowledged.read_bytes().count(b"\n") + rng.randrange(1, 4)
    process = multiprocessing.get_context("fork").Process(target=work, args=(folder, acknowledged), daemon=True)
    process.start()
    while acknowledged.read_bytes().count(b"\n") < wanted:
        assert process.is_alive()
        time.sleep(0.001)
    time.sleep(rng.uniform(0.0, 0.03))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def require_intact(memory: MemoryStore) -> None:
    assert list(memory.files.damaged_rows()) == []
    assert memory.files.orphans() == []
    for row, item in memory.items():
        assert item.id == f"item-{row}"
        expected = keys(1, seed=row)[0].astype(np.float16)
        assert np.abs(memory.files.keys[row].astype(float) - expected).max() < 1e-3  # one rounding apart
        assert [memory.files.stored_path(kept).read_bytes() for kept in item.files] == [pixels(row)]


def test_twenty_kills_lose_nothing_that_was_acknowledged_and_leave_nothing_half_done(folder, tmp_path):
    rng = random.Random(7)
    acknowledged = tmp_path / "acknowledged"
    for _ in range(20):
        killed(append_for_ever, folder, acknowledged, rng)
        told = [int(line) for line in acknowledged.read_text().splitlines(keepends=True) if line.endswith("\n")]
        with MemoryStore(folder, SMALL) as memory:
            assert memory.watermark >= max(told)
            require_intact(memory)
            last = memory.watermark - 1
            assert memory.search(key(keys(1, seed=last)[0]), 1)[0].row == last
    assert last > 40  # the processes did work


def test_kills_in_the_middle_of_rollbacks_and_deletions_leave_a_whole_memory(folder, tmp_path):
    rng = random.Random(8)
    for _ in range(12):
        killed(do_anything, folder, tmp_path / "acknowledged", rng)
        with MemoryStore(folder, SMALL) as memory:
            require_intact(memory)
            assert {row for row, _ in memory.items()} >= {0, 1}


def test_a_kill_while_the_index_is_written_leaves_an_index_that_serves(tmp_path):
    stored = keys(640)
    with new_memory(tmp_path / "m") as memory:
        memory.add(drafts(stored))
        memory.build_index()
    rng = random.Random(9)
    for _ in range(5):
        killed(write_for_ever, tmp_path / "m", tmp_path / "acknowledged", rng)
        reader = MemoryStore.open_read_only(tmp_path / "m", SMALL)
        assert reader.kind == "ivfpq"
        query = keys(1, seed=3)[0]
        assert reader.search(key(query), 1)[0].row == int(np.argmax(exact_mix(stored, query)))
