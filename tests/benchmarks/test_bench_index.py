"""The bench of the index at a size that a test can wait for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import bench_index
from benchmarks.bench_index import TEXT, KeyGenerator
from pixelis.memory.memory_store import MemoryStore
from pixelis.memory.vector_index import IndexConfig


def test_the_generator_is_fixed_and_looks_like_embeddings():
    first = KeyGenerator(3000).draw(np.random.default_rng(1), 600)
    again = KeyGenerator(3000).draw(np.random.default_rng(1), 600)
    assert (first == again).all()
    assert first.shape == (600, 1792)
    assert np.linalg.norm(first[:, :TEXT], axis=1) == pytest.approx(np.ones(600), abs=1e-5)
    cosines = (first @ first.T) / 2
    np.fill_diagonal(cosines, -1)
    assert 0.1 < np.median(cosines) < 0.25  # two keys at random
    assert 0.6 < np.median(cosines.max(axis=1)) < 0.85  # the nearest


def test_a_small_bench_measures_recall_against_numpy(tmp_path):
    config = IndexConfig(kind="ivfpq", n_list=8, n_probe=8, opq_keys=1024, iterations=4)
    built = bench_index.build(tmp_path / "m", 1500, config)
    memory = MemoryStore.open_read_only(tmp_path / "m")
    queries = KeyGenerator(1500).draw(np.random.default_rng(2), 5)
    stored = np.fromfile(tmp_path / "m" / "keys.f16", "<f2").reshape(1500, 1792).astype(np.float64)
    mix = (queries[:, :TEXT] @ stored[:, :TEXT].T + queries[:, TEXT:] @ stored[:, TEXT:].T) / 2
    assert (bench_index.nearest(memory, queries, 8) == np.argsort(-mix, axis=1)[:, :8]).all()
    assert list(memory.files.damaged_rows()) == []  # what `fill` wrote is what appends would have written
    found = bench_index.measure(tmp_path / "m", 1500, built, config)
    assert found.kind == "ivfpq"
    assert found.recall_at_8 > 0.97
    assert found.recall_at_8_without_rerank < found.recall_at_8
    assert 0 < found.p50_ms <= found.p95_ms
    assert found.keys_mb == pytest.approx(1500 * 1792 * 2 / 1e6)
    assert found.index_mb > 1500 * 72 / 1e6
    files = list((tmp_path / "m").glob("index-*.faiss"))
    bench_index.build(tmp_path / "m", 1500, config.model_copy(update={"n_probe": 2}))  # the same file serves
    assert list((tmp_path / "m").glob("index-*.faiss")) == files
    fewer = bench_index.measure(tmp_path / "m", 1500, built, config.model_copy(update={"n_probe": 1, "rerank": 8}))
    assert fewer.recall_at_8 < found.recall_at_8


def test_recall_is_the_share_of_the_exact_neighbours():
    truth = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert bench_index.recall(truth, np.array([[4, 3, 9, -1], [5, 6, 7, 8]])) == 0.75
