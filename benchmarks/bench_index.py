"""Bench rows of the retrieval index: 10,000, 100,000 and 1,250,000 keys of 1792 values, one thread
(supp:retrieval_index, tab:supp_index_conf: P50/P95 7.8/14.6 ms on 32 cores, 127 MB).

Keys come from a fixed generator that imitates real ones. Each half (text 768, visual 1024) is the normalised sum of a
common direction (weight 0.4), a topic (0.9·√0.6) and an item part (0.9·√0.4); the two halves of an item share the
topic, and a topic has 64 items. Topic and item part are Gaussian over 256 directions whose variances fall like 1/i,
with 3 % of noise in all directions: those of MiniLM on 660 sentences fall like i^-1.05 with 98.8 % of the variance in
256 directions, those of EfficientNet-Lite0 on 450 crops of photographs like i^-1.15 with 97 %. The nearest neighbour of
a key has a cosine of about 0.75, two random keys 0.17; for the encoders these are 0.54 and 0.82, 0.13 and 0.23.

Queries are new draws. Exact neighbours are computed by numpy from the same keys in half precision. Every size runs in a
new process, so that its memory can be measured. Cold: the page cache of the memory's files is dropped before each
search.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import faiss
import numpy as np

from benchmarks.bench_rows import BenchRow, clone_environment
from pixelis.core.errors import PixelisError
from pixelis.dedup.media_collection import ProgressCallback, no_progress
from pixelis.memory.keys import Floats, normalise_rows, weight_query
from pixelis.memory.memory_files import ITEMS, KEYS, ROW_DTYPE, ROWS
from pixelis.memory.memory_item import MemoryItem
from pixelis.memory.memory_store import MemoryConfig, MemoryStore
from pixelis.memory.vector_index import IndexConfig, iter_chunks
from pixelis.memory.vector_index_files import delete_index

SIZES = (10_000, 100_000)
FULL = 1_250_000
TEXT, VISUAL = 768, 1024
DIRECTIONS = 256
PER_TOPIC = 64
QUERIES = 200
COLD_QUERIES = 20
PAPER_P50_MS, PAPER_P95_MS = 7.8, 14.6
MB = 1e6


class IndexMeasurement(NamedTuple):
    """One memory size. Milliseconds per search for 8 neighbours, re-ranking included."""

    keys: int
    kind: str
    p50_ms: float
    p95_ms: float
    cpu_p50_ms: float
    """CPU time of the same searches: the wall time of an idle machine."""
    cpu_p95_ms: float
    recall_at_8: float
    recall_at_8_without_rerank: float
    """Of the candidates of the index before exact comparison; 1 if every key is compared."""
    index_mb: float
    """Size of the index file; 0 if the keys are searched directly."""
    keys_mb: float
    anonymous_mb: float
    """Anonymous memory of the process after the searches."""
    built_cpu_s: float
    opened_s: float
    """From a cold disk."""
    cold_p50_ms: float
    """A search with no key in the page cache."""
    cold_p95_ms: float


class KeyGenerator:
    """The source of keys; the same seed and count give the same keys."""

    def __init__(self, count: int, seed: int = 0, *, sizes: tuple[int, int] = (TEXT, VISUAL)) -> None:
        rng = np.random.default_rng(seed)
        self._topics = max(1, count // PER_TOPIC)
        decay = np.sqrt(1.0 / np.arange(1, DIRECTIONS + 1)).astype(np.float32)
        self._halves = []
        self.sizes = sizes
        for size in sizes:
            directions = np.linalg.qr(rng.standard_normal((size, DIRECTIONS)))[0].T.astype(np.float32)
            spread = directions * (decay * np.sqrt(0.97) / np.linalg.norm(decay))[:, None]  # (256, size)
            topics = self._sample_unit_vectors(rng, spread, self._topics)
            self._halves.append((spread, normalise_rows(self._sample_unit_vectors(rng, spread, 1)), topics))

    @staticmethod
    def _sample_unit_vectors(rng: np.random.Generator, spread: Floats, count: int) -> Floats:
        """(count, size), of unit length."""
        latent = rng.standard_normal((count, DIRECTIONS), dtype=np.float32)
        noise = rng.standard_normal((count, spread.shape[1]), dtype=np.float32)
        return normalise_rows(latent @ spread + np.float32(np.sqrt(0.03 / spread.shape[1])) * noise)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """(count, text + visual), each half of unit length."""
        topic = rng.integers(0, self._topics, count)
        halves = []
        for spread, common, topics in self._halves:
            item_part = np.sqrt(0.4) * self._sample_unit_vectors(rng, spread, count)
            halves.append(normalise_rows(0.4 * common + 0.9 * (np.sqrt(0.6) * topics[topic] + item_part)))
        return np.concatenate(halves, axis=1)


def fill(
    folder: Path, generator: KeyGenerator, count: int, config: MemoryConfig, progress: ProgressCallback = no_progress
) -> None:
    """Write a memory of `count` items with the files that appends would produce, without their fsyncs."""
    text, visual = generator.sizes
    MemoryStore.create(folder, text_dimensions=text, visual_dimensions=visual, encoders="bench", config=config).close()
    rng = np.random.default_rng(1)
    offset = 0
    with (folder / KEYS).open("wb") as keys, (folder / ITEMS).open("wb") as items, (folder / ROWS).open("wb") as rows:
        for start in range(0, count, 4096):
            vectors = generator.draw(rng, min(4096, count - start)).astype("<f2")
            lines = [MemoryItem(id=f"key-{start + k}").encode() for k in range(len(vectors))]
            entries = np.zeros(len(vectors), ROW_DTYPE)
            entries["length"] = [len(line) for line in lines]
            entries["at"] = offset + np.concatenate([[0], np.cumsum(entries["length"])[:-1]])
            entries["line"] = [zlib.crc32(line) for line in lines]
            entries["key"] = [zlib.crc32(key.tobytes()) for key in vectors]
            entries["own"] = [zlib.crc32(entry.tobytes()[:-4]) for entry in entries]
            offset += int(entries["length"].sum())
            keys.write(vectors.tobytes())
            items.write(b"".join(lines))
            rows.write(entries.tobytes())
            progress("drawing keys", start + len(vectors), count)


def nearest(memory: MemoryStore, queries: Floats, k: int, progress: ProgressCallback = no_progress) -> np.ndarray:
    """(Q, k) exact neighbours by numpy, in one pass over the keys."""
    query = weight_query(queries, TEXT, memory.config.index.lambda_pix)
    best = np.full((len(queries), 0), -1, np.int64)
    scores = np.zeros((len(queries), 0), np.float32)
    keys = memory.files.keys
    for start, chunk in iter_chunks(keys):
        similarities = query @ chunk.astype(np.float32).T  # (Q, chunk)
        rows = np.broadcast_to(np.arange(start, start + len(chunk)), similarities.shape)
        scores, best = np.concatenate([scores, similarities], axis=1), np.concatenate([best, rows], axis=1)
        top = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, best = np.take_along_axis(scores, top, 1), np.take_along_axis(best, top, 1)
        progress("finding exact neighbours", start + len(chunk), len(keys))
    return best


def time_searches(memory: MemoryStore, queries: Floats) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, wall milliseconds and CPU milliseconds of sequential searches."""
    rows, clock, cpu = [], [], []
    for query in queries:
        start, cpu_start = time.perf_counter(), time.process_time()
        rows.append(memory.search_rows(query[None], 8).rows[0])
        cpu.append(1e3 * (time.process_time() - cpu_start))
        clock.append(1e3 * (time.perf_counter() - start))
    return np.stack(rows), np.array(clock), np.array(cpu)


def drop_from_cache(folder: Path) -> None:
    """Drop the pages of these files from the page cache, unless they are mapped."""
    for file in folder.rglob("*"):
        if file.is_file() and hasattr(os, "posix_fadvise"):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def anonymous_mb() -> float:
    """RssAnon of this process; NaN if the kernel does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("RssAnon")), float("nan"))


def recall(truth: np.ndarray, retrieved: np.ndarray) -> float:
    hits = [len(set(a[a >= 0]) & set(b)) for a, b in zip(retrieved, truth, strict=True)]
    return float(np.mean(hits)) / truth.shape[1]


def build(folder: Path, count: int, config: IndexConfig, progress: ProgressCallback = no_progress) -> float:
    """Build the memory and its index if needed; CPU seconds of the index."""
    faiss.omp_set_num_threads(1)
    settings = MemoryConfig(index=config, near_duplicate=None)
    if not (folder / "filled").exists():
        shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
        fill(folder, KeyGenerator(count), count, settings, progress)
        (folder / "filled").touch()
    marker = folder / f"built-{zlib.crc32(json.dumps(config.build_settings).encode()):08x}"
    if not marker.exists():
        for other in folder.glob("built-*"):
            other.unlink()
        delete_index(folder)
        start = time.process_time()
        with MemoryStore(folder, settings) as memory:
            memory.build_index(progress=progress)
        marker.write_text(str(time.process_time() - start))
    return float(marker.read_text())


def measure(
    folder: Path, count: int, built_cpu_s: float, config: IndexConfig, progress: ProgressCallback = no_progress
) -> IndexMeasurement:
    """Measure searches in a memory from `build`, in a new process."""
    faiss.omp_set_num_threads(1)
    generator, rng = KeyGenerator(count), np.random.default_rng(2)
    queries = generator.draw(rng, QUERIES + COLD_QUERIES)
    del generator
    drop_from_cache(folder)
    start = time.perf_counter()
    memory = MemoryStore.open_read_only(folder, MemoryConfig(index=config, near_duplicate=None))
    opened_s = time.perf_counter() - start
    cold = []
    for query in queries[QUERIES:]:  # no key is in memory
        memory.files.release()
        drop_from_cache(folder)
        cold.append(time_searches(memory, query[None])[1][0])
    truth = nearest(memory, queries[:QUERIES], 8, progress)
    time_searches(memory, queries[:QUERIES])  # warm-up: the same rows are re-ranked again
    rows, clock, cpu = time_searches(memory, queries[:QUERIES])
    anonymous = anonymous_mb()
    proposed = 1.0
    if memory.approx_index is not None:
        proposed = recall(truth, memory.approx_index.propose(queries[:QUERIES], 8, memory.config.index, None))
    index_bytes = sum(f.stat().st_size for f in folder.glob("index-*.faiss"))
    return IndexMeasurement(
        keys=count,
        kind=memory.kind,
        p50_ms=float(np.percentile(clock, 50)),
        p95_ms=float(np.percentile(clock, 95)),
        cpu_p50_ms=float(np.percentile(cpu, 50)),
        cpu_p95_ms=float(np.percentile(cpu, 95)),
        recall_at_8=recall(truth, rows),
        recall_at_8_without_rerank=proposed,
        index_mb=index_bytes / MB,
        keys_mb=(folder / KEYS).stat().st_size / MB,
        anonymous_mb=anonymous,
        built_cpu_s=built_cpu_s,
        opened_s=opened_s,
        cold_p50_ms=float(np.percentile(cold, 50)),
        cold_p95_ms=float(np.percentile(cold, 95)),
    )


def measure_in_subprocess(
    count: int, config: IndexConfig, *, work: Path | None = None, progress: ProgressCallback = no_progress
) -> IndexMeasurement:
    """Build here, measure in a new process. `work` keeps the memory, so that it is built once."""
    with TemporaryDirectory(prefix="pixelis-bench-index-") as temporary:
        folder = (work or Path(temporary)) / f"{count}"
        built_cpu_s = build(folder, count, config, progress)
        arguments = [str(folder), str(count), str(built_cpu_s), config.model_dump_json()]
        command = [sys.executable, "-m", "benchmarks.bench_index", *arguments]
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**clone_environment(), "OMP_NUM_THREADS": "1"}
        )
        if process.returncode:
            raise PixelisError(f"{count} keys: {(process.stderr.strip().splitlines() or ['no message'])[-1]}")
        return IndexMeasurement(**json.loads(process.stdout.splitlines()[-1]))


def rows(
    sizes: tuple[int, ...] = SIZES,
    config: IndexConfig | None = None,
    *,
    work: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> Iterator[tuple[BenchRow, IndexMeasurement]]:
    """A row and its measurement for each size."""
    for count in sizes:
        measurement = measure_in_subprocess(count, config or IndexConfig(), work=work, progress=progress)
        note = (
            f"{measurement.kind}: P50 {measurement.p50_ms:.1f} and P95 {measurement.p95_ms:.1f} ms wall (CPU "
            f"{measurement.cpu_p50_ms:.1f}, {measurement.cpu_p95_ms:.1f}), recall@8 {measurement.recall_at_8:.3f} "
            f"({measurement.recall_at_8_without_rerank:.2f} without re-rank), index {measurement.index_mb:.0f} MB, "
            f"anonymous {measurement.anonymous_mb:.0f} MB, cold P50 {measurement.cold_p50_ms:.0f} ms, "
            f"built in {measurement.built_cpu_s:.0f} CPU s"
        )
        target = "P50 7.8, P95 14.6 ms; recall 0.98; 140 MB; 1.5 GB"
        yield (
            BenchRow(
                f"search for 8 among {count:,} keys of {TEXT + VISUAL}", measurement.cpu_p50_ms / 1e3,
                "the paper, 1.25 M keys, 32 cores", PAPER_P50_MS / 1e3, target, note,
            ),
            measurement,
        )  # fmt: skip


if __name__ == "__main__":
    settings = IndexConfig.model_validate_json(sys.argv[4])
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), settings)._asdict()))
