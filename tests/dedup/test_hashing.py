"""Perceptual hashes against recorded ones, and the join against brute force."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pixelis.dedup.hashing import Hashes, HashTable, band_shifts, centre_square, hamming_pairs, perceptual_hash
from pixelis.media import open_media


def brute(a: Hashes, b: Hashes | None, radius: int) -> list[tuple[int, int, int]]:
    other = a if b is None else b
    return [
        (i, j, (int(x) ^ int(y)).bit_count())
        for i, x in enumerate(a)
        for j, y in enumerate(other)
        if (b is not None or i < j) and (int(x) ^ int(y)).bit_count() <= radius
    ]


def joined(a: Hashes, b: Hashes | None = None, *, radius: int = 8) -> list[tuple[int, int, int]]:
    chunks = [zip(*(p.tolist() for p in pairs), strict=True) for pairs in hamming_pairs(a, b, radius=radius)]
    return sorted((i, j, d) for chunk in chunks for i, j, d in chunk)


def test_hashes_are_those_that_imagehash_gave_elsewhere(realdata: Path) -> None:
    folder = realdata / "dedup"
    recorded = json.loads((folder / "phash_expected.json").read_text())
    checked = 0
    for name, expected in recorded.items():
        file = folder / name.replace("_images", "")
        if file.exists():
            stored = np.asarray(Image.open(file))  # as stored: ukbench09268 lies on its side until its EXIF turns it
            assert f"{perceptual_hash(stored):016x}" == expected["phash"]
            checked += 1
    assert checked == 15


def test_distances_to_the_variants_of_one_picture_are_the_recorded_ones(realdata: Path) -> None:
    folder = realdata / "dedup" / "mixed"
    hashes = {
        name: perceptual_hash(open_media(folder / f"ukbench00120{name}.jpg").frame(0))
        for name in ("", "_resize", "_gray", "_hflip", "_rotation")
    }
    distances = {name: (hashes[""] ^ value).bit_count() for name, value in hashes.items()}
    assert distances == {"": 0, "_resize": 0, "_gray": 0, "_hflip": 32, "_rotation": 34}


hashes_of_few_bits = st.lists(
    st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 4095).map(lambda x: x * 0x0010_0040_0100_0401 % 2**64)),
    max_size=40,
).map(lambda values: np.array(values, np.uint64))


@given(hashes_of_few_bits, st.integers(0, 12))
@settings(max_examples=60)
def test_the_self_join_equals_brute_force(hashes: Hashes, radius: int) -> None:
    assert joined(hashes, radius=radius) == brute(hashes, None, radius)


@given(hashes_of_few_bits, hashes_of_few_bits)
@settings(max_examples=60)
def test_the_join_of_two_sides_equals_brute_force(a: Hashes, b: Hashes) -> None:
    assert joined(a, b) == brute(a, b, 8)


def test_pairs_at_every_distance_up_to_ten_are_found_up_to_eight() -> None:
    rng = np.random.default_rng(0)
    for distance in range(11):
        for _ in range(50):
            x = int(rng.integers(0, 2**64, dtype=np.uint64))
            y = x
            for bit in rng.choice(64, distance, replace=False):
                y ^= 1 << int(bit)
            found = joined(np.array([x, y], np.uint64))
            assert found == ([(0, 1, distance)] if distance <= 8 else [])


def test_equal_hashes_are_all_paired_once() -> None:
    found = joined(np.full(300, 7, np.uint64))
    assert len(found) == 300 * 299 // 2 == len(set(found))


def test_nothing_joined_with_nothing_is_nothing() -> None:
    assert joined(np.zeros(0, np.uint64)) == []
    assert joined(np.zeros(0, np.uint64), np.ones(3, np.uint64)) == []


def test_five_bands_cover_sixty_four_bits_for_a_radius_of_eight() -> None:
    assert band_shifts(8) == [(0, 12), (12, 13), (25, 13), (38, 13), (51, 13)]


def test_a_radius_beyond_the_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="radius 65"):
        list(hamming_pairs(np.zeros(2, np.uint64), radius=65))


def test_a_hundred_thousand_hashes_are_joined_in_seconds_and_a_sample_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    hashes[90_000:] = hashes[:10_000] ^ (np.uint64(0b1111) << rng.integers(0, 60, 10_000).astype(np.uint64))
    start = time.process_time()
    found = [(i, j) for p in hamming_pairs(hashes) for i, j in zip(p.left.tolist(), p.right.tolist(), strict=True)]
    assert time.process_time() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**20 * 2.5  # kB, with all that pytest has loaded
    pairs = set(found)
    assert len(pairs) == len(found)
    assert {(k, 90_000 + k) for k in range(10_000)} <= pairs
    for i in rng.choice(100_000, 200, replace=False).tolist():
        near = np.flatnonzero(np.bitwise_count(hashes ^ hashes[i]) <= 8).tolist()
        assert all((min(i, j), max(i, j)) in pairs for j in near if j != i)


def test_the_centre_square_of_a_wide_frame() -> None:
    frame = np.arange(4 * 10 * 3, dtype=np.uint8).reshape(4, 10, 3)
    assert (centre_square(frame) == frame[:, 3:7]).all()


def test_a_table_is_searched_again_and_again_with_the_same_answer() -> None:
    rng = np.random.default_rng(4)
    right = rng.integers(0, 2**63, 300).astype(np.uint64)
    table = HashTable(right)
    for start in (0, 100):
        left = right[start : start + 50] ^ np.uint64(0b1011)
        plain, kept = (
            {pair for p in hamming_pairs(left, b) for pair in zip(p.left.tolist(), p.right.tolist(), strict=True)}
            for b in (right, table)
        )
        assert plain == kept
        assert {(k, start + k) for k in range(50)} <= kept
