"""Bench rows of deduplication: the hash join at the paper's size, and compared with imagededup in the same run."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.bench_rows import BenchRow, cpu_seconds
from pixelis.dedup.hashing import Hashes, hamming_pairs
from pixelis.dedup.similarity import ComparisonImage, compare_images
from pixelis.dedup.synthetic_duplicates import LOOKALIKES, crop_border

HASHES = 100_000
SHARED = 4_000
"""Hashes that both programs join: imagededup takes 44 CPU seconds for 10,000, and its cost is quadratic."""

IMAGEDEDUP = """
import json, resource, sys, time
from unittest.mock import MagicMock
# its CNN half imports torchvision, which wants the torch build it was compiled with; the hash half never uses it
for name in ("", ".transforms", ".models", ".models.vision_transformer"):
    sys.modules["torchvision" + name] = MagicMock()
from imagededup.methods import PHash
hashes = {str(k): h for k, h in enumerate(json.load(sys.stdin))}
start = time.process_time()
found = PHash(verbose=False).find_duplicates(encoding_map=hashes, max_distance_threshold=8)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
pairs = sum(len(names) for names in found.values()) // 2
print(json.dumps([time.process_time() - start + used.ru_utime + used.ru_stime, pairs]))
"""


def rows(*, peers: Path = Path(".peers")) -> Iterator[BenchRow]:
    """The self-join of 100,000 hashes, a smaller one with imagededup, and one pixel comparison."""
    yield _join()
    yield _join_vs_imagededup(peers)
    yield _pixel_comparison()


def example_hashes(rng: np.random.Generator, count: int) -> Hashes:
    """Random hashes, of which a tenth are copies with up to eight changed bits."""
    hashes = rng.integers(0, 2**64, count, dtype=np.uint64)
    copies = count // 10
    hashes[-copies:] = hashes[:copies]
    for _ in range(8):
        flip = np.uint64(1) << rng.integers(0, 64, copies).astype(np.uint64)
        hashes[-copies:] ^= np.where(rng.random(copies) < 0.5, flip, np.uint64(0))
    return hashes


def count_pairs(hashes: Hashes) -> int:
    return sum(len(pairs.left) for pairs in hamming_pairs(hashes))


def _join() -> BenchRow:
    hashes = example_hashes(np.random.default_rng(0), HASHES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall_start, start = time.perf_counter(), time.process_time()
    pairs = count_pairs(hashes)
    cpu_s, wall_s = time.process_time() - start, time.perf_counter() - wall_start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    note = f"{pairs} pairs, {wall_s:.1f} s wall time, peak memory {after / 1024:.0f} MB ({before / 1024:.0f} before)"
    return BenchRow(f"self-join of {HASHES:,} hashes, Hamming <= 8", cpu_s, target="20 s, under 1 GB", note=note)


def _join_vs_imagededup(peers: Path) -> BenchRow:
    hashes = example_hashes(np.random.default_rng(1), SHARED)
    name, peer, note = f"self-join of {SHARED:,} hashes", None, f"{count_pairs(hashes)} pairs"
    ours = cpu_seconds(lambda: count_pairs(hashes), repeats=5)
    python = peers / "imagededup" / "bin" / "python"
    if not python.exists():
        note += "; `make peers` installs imagededup"
        return BenchRow(name, ours, "imagededup", None, "10 times imagededup", note)
    payload = json.dumps([f"{int(h):016x}" for h in hashes])
    process = subprocess.run(
        [str(python), "-c", IMAGEDEDUP], input=payload, capture_output=True, text=True, check=False
    )
    if process.returncode == 0:
        peer, pairs = json.loads(process.stdout.splitlines()[-1])
        note += f" ({pairs} of imagededup); {peer / ours:.0f} times faster"
    else:
        note += f"; imagededup failed: {process.stderr.strip().splitlines()[-1]}"
    return BenchRow(name, ours, "imagededup", peer, "10 times imagededup", note)


def _pixel_comparison() -> BenchRow:
    make = LOOKALIKES["slide"]
    first, other, crop = make(0), make(1), crop_border(make(0), 0.1)

    def compare() -> object:
        return compare_images(ComparisonImage.from_frame(first), ComparisonImage.from_frame(crop)), compare_images(
            ComparisonImage.from_frame(first), ComparisonImage.from_frame(other)
        )

    ours = cpu_seconds(compare, repeats=5) / 2
    return BenchRow("a pair of slides, pixel by pixel", ours, note="half crops, half look-alikes; nothing cached")
