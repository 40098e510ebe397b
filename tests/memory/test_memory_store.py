"""The memory with real FAISS files: what it finds, against numpy; what it refuses; what it takes back."""

from __future__ import annotations

import hashlib
from pathlib import Path

import faiss
import numpy as np
import pytest
from memories import (
    SMALL,
    TEXT,
    VISUAL,
    draft,
    drafts,
    exact_mix,
    key,
    keys,
    new_memory,
    sha,
)

from pixelis.core.config import load_config
from pixelis.core.errors import LeakageError, MemoryFileError
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_collection import MediaCollection, MediaItem
from pixelis.dedup.media_features import Features
from pixelis.memory.keys import Key, mix_halves, weight_query
from pixelis.memory.memory_store import MemoryConfig, MemoryStore
from pixelis.memory.vector_index import BLOCK, IndexConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread():
    faiss.omp_set_num_threads(1)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a memory but the lock."""
    return {
        str(f.relative_to(folder)): f.read_bytes()
        for f in sorted(folder.rglob("*"))
        if f.is_file() and f.name != ".lock"
    }


def large(folder: Path, rows: int = 800) -> tuple[MemoryStore, np.ndarray]:
    """A memory with an IVF-PQ index."""
    stored = keys(rows)
    memory = new_memory(folder)
    memory.add(drafts(stored))
    memory.build_index()
    return memory, stored


def test_the_inner_product_of_keys_is_the_convex_mix():
    a, b = np.array([[1, 0, 0.6, 0.8]], np.float32), np.array([[0.6, 0.8, 1, 0]], np.float32)
    # cosines: text 0.6, visual 0.6; with another b: text 0, visual 0.8
    assert weight_query(a, 2, 0.25) @ b[0] == pytest.approx(0.75 * 0.6 + 0.25 * 0.6)
    other = np.array([[0, 1, 0, 1]], np.float32)
    assert weight_query(a, 2, 0.25) @ other[0] == pytest.approx(0.75 * 0 + 0.25 * 0.8)
    assert mix_halves(a, 2, 0.25) @ mix_halves(other, 2, 0.25)[0] == pytest.approx(0.2)
    assert np.linalg.norm(mix_halves(a, 2, 0.25)) == pytest.approx(1.0)


def test_an_empty_memory_searches_to_nothing(tmp_path):
    with new_memory(tmp_path / "m") as memory:
        assert memory.search(key(keys(1)[0])) == []
        assert memory.watermark == len(memory) == 0
    assert MemoryStore.open_read_only(tmp_path / "m").search(key(keys(1)[0])) == []


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_exact_index_finds_what_numpy_finds(tmp_path, weight):
    stored, queries = keys(300), keys(5, seed=1)
    config = SMALL.model_copy(update={"index": SMALL.index.model_copy(update={"lambda_pix": weight})})
    with new_memory(tmp_path / "m", config) as memory:
        memory.add(drafts(stored))
        for query in queries:
            expected = exact_mix(stored, query, weight)
            found = memory.search(key(query), k=8)
            assert [n.row for n in found] == list(np.argsort(-expected, kind="stable")[:8])
            assert [n.similarity for n in found] == pytest.approx(sorted(expected)[::-1][:8], abs=1e-5)
            assert found[0].item.id == f"item-{found[0].row}"


def test_an_index_with_codes_of_eight_bytes_finds_the_exact_neighbours_by_its_re_rank(tmp_path):
    memory, stored = large(tmp_path / "m")
    queries = keys(40, seed=1)
    truth = np.array([np.argsort(-exact_mix(stored, q))[:8] for q in queries])
    found = memory.search_rows(queries, 8)
    recall = np.mean([len(set(a) & set(b)) / 8 for a, b in zip(truth, found.rows, strict=True)])
    assert memory.kind == "ivfpq"
    assert recall > 0.95
    best = np.array([exact_mix(stored, q)[r] for q, r in zip(queries, found.rows, strict=True)])
    assert found.similarity == pytest.approx(best, abs=1e-5)
    # and the re-rank is what does it: the codes alone are far off
    memory.config.index.__dict__["rerank"] = 8
    bare = memory.search_rows(queries, 8).rows
    assert np.mean([len(set(a) & set(b)) / 8 for a, b in zip(truth, bare, strict=True)]) < recall - 0.1
    memory.config.index.__dict__["rerank"] = 64
    memory.close()


@pytest.mark.parametrize("changed", [{"opq": False}, {"m": 4}, {"bits": 8}, {"lambda_pix": 0.8}, {"opq_iterations": 2}])
def test_other_settings_make_another_index_and_an_index_of_other_settings_is_refused(tmp_path, changed):
    memory, stored = large(tmp_path / "m", 650)
    memory.close()
    config = SMALL.model_copy(update={"index": SMALL.index.model_copy(update=changed)})
    with pytest.raises(MemoryFileError, match=f"other settings .*{next(iter(changed))}.*--reindex"):
        MemoryStore(tmp_path / "m", config)
    with MemoryStore(tmp_path / "m", config, rebuild=True) as again:
        weight = config.index.lambda_pix
        query = keys(1, seed=5)[0]
        assert again.search(key(query), 1)[0].row == int(np.argmax(exact_mix(stored, query, weight)))


def test_the_text_only_ablation_ignores_what_was_seen(tmp_path):
    stored = keys(700)
    config = MemoryConfig(index=IndexConfig(kind="hnsw-text"), near_duplicate=None)
    with new_memory(tmp_path / "m", config) as memory:
        memory.add(drafts(stored))
        memory.build_index()
        assert memory.kind == "hnsw-text"
        hits = 0
        for query in keys(20, seed=2):
            blind = Key(key(query).text, -key(query).visual)
            found = [n.row for n in memory.search(blind, 8)]
            hits += len(set(found) & set(np.argsort(-exact_mix(stored, query, 0.0))[:8]))
        assert hits / 160 > 0.95


@pytest.mark.parametrize("index", [IndexConfig(kind="hnsw-text"), IndexConfig(lambda_pix=0.0), IndexConfig()])
def test_the_same_words_about_another_picture_are_no_repeat_however_a_memory_is_searched(tmp_path, index):
    base = keys(3)
    words = [np.concatenate([base[0][:TEXT], each[TEXT:]]) for each in base]
    with new_memory(tmp_path / "m", MemoryConfig(index=index)) as memory:
        together = memory.add([draft(0, words[0]), draft(1, words[1])])
        later = memory.add([draft(2, words[2]), draft(3, words[1])])
        assert [(o.row, o.repeats) for o in [*together, *later]] == [(0, None), (1, None), (2, None), (None, 1)]


def test_rows_behind_the_index_are_found_and_whole_blocks_are_coded(tmp_path):
    memory, _ = large(tmp_path / "m", 700)
    more = keys(BLOCK + 30, seed=3)
    memory.add(drafts(more[:20], 700))
    assert len(memory.approx_index) == 700
    assert memory.search(key(more[7]), 1)[0].row == 707
    memory.add(drafts(more[20:], 720))
    assert len(memory.approx_index) == 700 + BLOCK
    assert [memory.search(key(more[n]), 1)[0].row for n in (7, BLOCK + 29)] == [707, 700 + BLOCK + 29]
    before = memory.search_rows(keys(9, seed=4), 8)
    memory.close()
    with MemoryStore(tmp_path / "m", SMALL) as again:  # codes the same block again
        assert len(again.approx_index) == 700 + BLOCK
        after = again.search_rows(keys(9, seed=4), 8)
    assert (before.rows == after.rows).all()
    assert (before.similarity == after.similarity).all()


@pytest.mark.parametrize("rows", [200, 800])
def test_a_masked_search_never_returns_what_is_masked(tmp_path, rows):
    stored = keys(rows)
    with new_memory(tmp_path / "m") as memory:
        memory.add(drafts(stored))
        memory.build_index()
        query = keys(1, seed=6)[0]
        order = np.argsort(-exact_mix(stored, query))
        best = [int(row) for row in order[:5]]
        assert [n.row for n in memory.search(key(query), 5, exclude=best)] == [int(row) for row in order[5:10]]
        allowed = np.zeros(rows, bool)
        allowed[best[3]] = True
        assert [n.row for n in memory.search(key(query), 5, allowed=allowed)] == [best[3]]
        assert memory.search(key(query), 5, allowed=np.zeros(rows, bool)) == []


def test_the_rows_of_the_same_source_are_known_by_their_hash(tmp_path):
    with new_memory(tmp_path / "m") as memory:
        rows = keys(4)
        memory.add([draft(n, rows[n], medium="shared" if n in (1, 3) else None) for n in range(4)])
        assert memory.rows_with_media([sha("shared")]) == {1, 3}
        assert memory.rows_with_media([sha("shared"), draft(2, rows[2]).item.media[0].sha256]) == {1, 2, 3}
        assert memory.rows_with_media([sha("elsewhere")]) == set()


def test_what_repeats_a_key_is_left_out_and_names_what_it_repeats(tmp_path):
    base = keys(3)
    config = SMALL.model_copy(update={"near_duplicate": 0.97})
    with new_memory(tmp_path / "m", config) as memory:
        memory.add(drafts(base))
        near = base[1] + 1e-3
        turned = np.concatenate([base[2][:TEXT], -base[2][TEXT:]])  # the same words, another picture: similarity 0
        outcomes = memory.add([draft(10, near), draft(11, turned), draft(12, turned), draft(13, base[0])])
        assert [(o.row, o.repeats) for o in outcomes] == [(None, 1), (3, None), (None, 3), (None, 0)]
        assert outcomes[0].similarity == pytest.approx(1.0, abs=1e-3)
        assert [item.id for _, item in memory.items()] == ["item-0", "item-1", "item-2", "item-11"]


def mask_of(*words: str) -> EvaluationMask:
    """A mask of media that have no pixels: their hashes are all that is asked."""
    features = [
        Features(
            sha256=sha(word), kind="image", phash=k, mirror_phash=k, key_times_s=np.zeros(1),
            key_hashes=np.array([k], np.uint64), dense_times_s=np.zeros(0), dense_hashes=np.zeros(0, np.uint64),
            embeddings=np.ones((1, 4), np.float16), thumbnail=np.zeros((32, 32), np.uint8), duration_s=0.0,
        )
        for k, word in enumerate(words)
    ]  # fmt: skip
    return EvaluationMask(
        MediaCollection([MediaItem(f"exam/{word}") for word in words], features), encoder="none", threshold=0.7
    )


def test_evaluation_media_never_enter_and_are_named(tmp_path):
    mask = mask_of("secret")
    rows = keys(3)
    with new_memory(tmp_path / "m", mask=mask) as memory:
        clean = draft(0, rows[0])
        clean = clean._replace(item=clean.item.model_copy(update={"screened": mask.digest}))
        leaking = draft(1, rows[1], medium="secret")
        leaking = leaking._replace(item=leaking.item.model_copy(update={"screened": mask.digest}))
        with pytest.raises(LeakageError, match="item-1 shows exam/secret, which is evaluation media"):
            memory.add([clean, leaking])
        with pytest.raises(LeakageError, match="was not compared with this evaluation mask"):
            memory.add([draft(2, rows[2])])
        assert memory.watermark == 0
        assert (tmp_path / "m" / "keys.f16").stat().st_size == 0  # no vector was written
        memory.add([clean])
    with (
        MemoryStore(tmp_path / "m", SMALL) as forgetful,
        pytest.raises(LeakageError, match="to add to it"),
    ):
        forgetful.add([draft(3, rows[2])])
    assert mask.digest != mask_of("secret", "other").digest


def test_a_rollback_is_bitwise(tmp_path):
    memory, _ = large(tmp_path / "m", 640)
    more = keys(30, seed=3)
    memory.add([draft(640 + n, more[n], kept=b"a picture") for n in range(10)])
    mark, before = memory.watermark, contents(tmp_path / "m")
    queries = keys(6, seed=4)
    found = memory.search_rows(queries, 8)
    memory.add([draft(650 + n, more[10 + n], kept=b"a picture" if n else b"another") for n in range(20)])
    assert len(contents(tmp_path / "m")) == len(before) + 1
    memory.rollback(mark)
    assert contents(tmp_path / "m") == before
    again = memory.search_rows(queries, 8)
    assert (found.rows == again.rows).all()
    assert (found.similarity == again.similarity).all()
    memory.close()
    with MemoryStore(tmp_path / "m", SMALL) as opened:
        assert opened.recovered == (0, 0)
        assert opened.watermark == mark


def test_a_rollback_over_coded_blocks_and_behind_the_training_still_finds_the_exact_neighbours(tmp_path):
    memory, stored = large(tmp_path / "m", 700)
    every = np.concatenate([stored, keys(BLOCK + 100, seed=3)])
    memory.add(drafts(every[700:], 700))
    memory.save_index()
    for mark in (700 + BLOCK // 2, 650):  # in the middle of a coded block; behind what was trained on
        memory.rollback(mark)
        for query in keys(5, seed=8):
            expected = np.argsort(-exact_mix(every[:mark], query))[:3]
            assert [n.row for n in memory.search(key(query), 3)] == [int(r) for r in expected]
        memory.close()
        memory = MemoryStore(tmp_path / "m", SMALL)
        assert memory.watermark == mark
    memory.close()


def test_during_evaluation_the_memory_only_grows(tmp_path):
    with new_memory(tmp_path / "m") as memory:
        memory.add(drafts(keys(5)))
    with MemoryStore(tmp_path / "m", SMALL, append_only=True) as memory:
        memory.add(drafts(keys(2, seed=1), 5))
        for forbidden in (lambda: memory.delete(0), lambda: memory.rollback(4), memory.build_index):
            with pytest.raises(MemoryFileError, match="append-only"):
                forbidden()
        memory.rollback(5)  # its own appends may go
        assert len(memory) == 5


def test_a_deleted_item_is_gone_from_the_disk_with_its_files(tmp_path):
    folder = tmp_path / "m"
    rows = keys(4)
    with new_memory(folder) as memory:
        shared, own = b"shown by two", b"shown by one"
        kept = [shared, own, shared, None]
        memory.add([draft(n, rows[n], kept=kept[n]) for n in range(4)])
        paths = {
            name: folder / "files" / digest[:2] / f"{digest}.png"
            for name, digest in (
                ("shared", hashlib.sha256(shared).hexdigest()),
                ("own", hashlib.sha256(own).hexdigest()),
            )
        }
        memory.delete(1)
        memory.delete(2)
        assert not paths["own"].exists()
        assert paths["shared"].exists()
        assert b"question 1" not in (folder / "items.jsonl").read_bytes()
        assert not np.fromfile(folder / "keys.f16", "<f2").reshape(4, -1)[1:3].any()
        assert [n.row for n in memory.search(key(rows[1]), 4)] == sorted(
            (0, 3), key=lambda r: -exact_mix(rows, rows[1])[r]
        )
        with pytest.raises(MemoryFileError, match="no item in row 1"):
            memory.delete(1)
        memory.delete(0)
        assert not paths["shared"].exists()
    with MemoryStore(folder, SMALL) as memory:
        assert [item.id for _, item in memory.items()] == ["item-3"]
        assert (len(memory), memory.watermark, memory.recovered) == (1, 4, (0, 0))
        memory.rollback(2)
        memory.add([draft(9, rows[3])])
        assert [item.id for _, item in memory.items()] == ["item-9"]


def woven(inner, row):
    """The code of a row, unpacked from its block by FAISS itself."""
    lists = faiss.downcast_InvertedLists(inner.invlists)
    for cell in range(inner.nlist):
        count = lists.list_size(cell)
        ids = faiss.rev_swig_ptr(lists.get_ids(cell), count).tolist()
        if row in ids:
            blocks = -(-count // lists.n_per_block)
            codes = faiss.rev_swig_ptr(lists.get_codes(cell), blocks * lists.block_size).reshape(blocks, -1)
            return lists.packer.unpack_1(codes, ids.index(row))
    raise AssertionError(row)


@pytest.mark.parametrize(("kind", "bits"), [("ivfpq", 4), ("ivfpq", 8), ("hnsw-text", 4)])
def test_a_deleted_item_leaves_no_code_in_the_index_file(tmp_path, kind, bits):
    config = SMALL.model_copy(update={"index": SMALL.index.model_copy(update={"kind": kind, "bits": bits})})
    stored = keys(640)
    memory = new_memory(tmp_path / "m", config)
    memory.add(drafts(stored))
    memory.build_index()
    memory.delete(77)
    memory.close()
    (file,) = (tmp_path / "m").glob("index-*.faiss")
    index = faiss.read_index(str(file))
    if kind == "ivfpq" and bits == 4:
        inner = faiss.downcast_index(index.index)
        assert not woven(inner, 77).any()
        neighbours = [row for row in range(640) if row != 77]
        assert all(woven(inner, row).any() for row in neighbours)  # 16 parts that are all the first: never by chance
    elif kind == "ivfpq":
        inner = faiss.downcast_index(index.index)
        inner.make_direct_map(True)
        blank, other = inner.reconstruct(77), inner.reconstruct(78)
        cells = faiss.vector_to_array(faiss.downcast_index(inner.quantizer).codes).view(np.float32).reshape(8, 32)
        first = faiss.vector_to_array(inner.pq.centroids).reshape(8, 256, 4)[:, 0].ravel()
        # what is left decodes to a cell's centre and the first entry of every code book, and to nothing of its own
        assert min(np.abs(blank - (cell + first)).max() for cell in cells) < 1e-5
        assert min(np.abs(other - (cell + first)).max() for cell in cells) > 1e-2
    else:
        assert not index.reconstruct(77).any()
        assert index.reconstruct(78) == pytest.approx(stored[78, :TEXT], abs=1e-2)
    with MemoryStore(tmp_path / "m", config) as again:
        assert again.kind == kind
        assert 77 not in [n.row for n in again.search(key(stored[77]), 20)]
        query = keys(1, seed=5)[0]
        expected = exact_mix(stored, query, 0.0 if kind == "hnsw-text" else 0.5)
        expected[77] = -1
        assert again.search(key(query), 1)[0].row == int(np.argmax(expected))


def test_a_damaged_index_is_refused_in_one_line_or_made_again(tmp_path):
    memory, stored = large(tmp_path / "m", 640)
    memory.close()
    (file,) = (tmp_path / "m").glob("index-*.faiss")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for damage in (bytes(content), content[:1000], b""):
        file.write_bytes(damage)
        with pytest.raises(MemoryFileError, match=r"damaged.*--reindex") as refused:
            MemoryStore.open_read_only(tmp_path / "m", SMALL)
        assert "\n" not in str(refused.value)
    with MemoryStore(tmp_path / "m", SMALL, rebuild=True) as again:
        assert again.search(key(stored[77]), 1)[0].row == 77
    assert MemoryStore.open_read_only(tmp_path / "m", SMALL).kind == "ivfpq"
    (tmp_path / "m" / "index.json").write_text("{}")
    with pytest.raises(MemoryFileError, match=r"index\.json is damaged"):
        MemoryStore.open_read_only(tmp_path / "m", SMALL)


def test_an_index_of_other_items_is_not_used(tmp_path):
    memory, _ = large(tmp_path / "m", 640)
    memory.close()
    kept = {f.name: f.read_bytes() for f in (tmp_path / "m").glob("index*")}
    with MemoryStore(tmp_path / "m", SMALL) as memory:
        memory.rollback(600)
        memory.add(drafts(keys(40, seed=9), 600))
    for name, content in kept.items():  # as if the old files had come back from a backup
        (tmp_path / "m" / name).write_bytes(content)
    with pytest.raises(MemoryFileError, match="made of other items"):
        MemoryStore.open_read_only(tmp_path / "m", SMALL)


def test_a_key_of_another_size_or_with_a_nan_is_refused(tmp_path):
    with new_memory(tmp_path / "m") as memory:
        row = keys(1)[0]
        with pytest.raises(MemoryFileError, match="other encoders"):
            memory.add([draft(0, row)._replace(key=Key(row[:3], row[3:]))])
        with pytest.raises(MemoryFileError, match="NaN"):
            memory.add([draft(0, np.full(TEXT + VISUAL, np.nan))])
        with pytest.raises(MemoryFileError, match="a key of 3 values"):
            memory.search(Key(row[:1], row[1:3]))
    with pytest.raises(MemoryFileError, match="holds no memory"):
        MemoryStore(tmp_path / "nothing")


def test_the_number_of_cells_is_the_papers_at_its_size():
    config = IndexConfig()
    # 4·√N: 4472, 1265, 566, 8; the nearest powers of two by their logarithm
    assert [config.num_cells(n) for n in (1_250_000, 100_000, 20_000, 4)] == [4096, 1024, 512, 8]
    assert config.num_cells(10_000_000) == 4096
    assert IndexConfig(n_list=2048).num_cells(1_250_000) == 2048
    assert [config.kind_for(n) for n in (19_999, 20_000)] == ["exact", "ivfpq"]


def test_cells_that_are_probed_and_rows_that_are_compared_grow_with_the_memory():
    config = IndexConfig()
    assert [config.num_probes(cells) for cells in (8, 512, 1024, 4096)] == [32, 96, 192, 768]
    assert [config.num_candidates(rows) for rows in (100, 204_800, 1_250_000)] == [256, 256, 1562]
    fixed = IndexConfig(n_probe=32, rerank=256)
    assert (fixed.num_probes(4096), fixed.num_candidates(1_250_000)) == (32, 256)
    assert (config.num_subquantizers, IndexConfig(bits=8).num_subquantizers) == (128, 64)  # 64 bytes both


def test_the_shipped_sweeps_are_configurations():
    found = {}
    for path in sorted((ROOT / "configs" / "memory").glob("*.yaml")):
        found[path.stem] = load_config(MemoryConfig, path)
    assert {c.index.lambda_pix for c in found.values()} >= {0.0, 0.25, 0.5, 0.75, 0.85, 1.0}
    assert {c.index.n_probe for c in found.values()} >= {8, 16, 32, 64}
    assert {c.index.m for c in found.values()} == {32, 64}
    assert {c.index.bits for c in found.values()} == {4, 8}
    assert {c.index.opq for c in found.values()} == {True, False}
    assert found["hnsw-text"].index.kind == "hnsw-text"
