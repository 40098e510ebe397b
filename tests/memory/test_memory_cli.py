"""`pixelis index` from a corpus to an audit, with the real encoders; and the audit itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from memories import SMALL, draft, drafts, key, keys, new_memory, sha
from PIL import Image
from typer.testing import CliRunner

from pixelis import __version__
from pixelis.cli import app
from pixelis.core.errors import LeakageError
from pixelis.data.corpus.corpus import write_manifest
from pixelis.data.corpus.record import Record, Split, encode
from pixelis.data.corpus.shard import Shard, write_shard
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_collection import MediaCollection, MediaItem
from pixelis.dedup.media_features import Features
from pixelis.media import MediaSet, open_media
from pixelis.memory.keys import Key
from pixelis.memory.memory_audit import audit_memory
from pixelis.memory.memory_item import MemoryDraft, MemoryItem
from pixelis.memory.memory_store import MemoryStore
from pixelis.trace import codec
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import Trace, seal_trace
from pixelis.weights import is_available
from pixelis.world import generate

ENCODERS = ("efficientnet-lite0", "minilm", "minilm-tokenizer")


def run(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["index", *map(str, words)], catch_exceptions=code != 0)
    assert done.exit_code == code or (code and done.exception is not None), done.output
    return done.output if done.exit_code == code else str(done.exception)


def traced(question: str, answer: str, media: MediaSet, beside: Path | None = None, name: str | None = None) -> Trace:
    return seal_trace(
        id=name, query=question, media=record_media(media, beside), origin="teacher:test", steps=[], answer=answer,
        created_at=datetime(2026, 1, 1, tzinfo=UTC), pixelis=__version__,
    )  # fmt: skip


def record(split: Split, ordinal: int, seed: int, *, accepted: bool = True) -> bytes:
    made = generate("choice", seed=seed, difficulty=1, template_id="choice.count")
    trace = traced(made.item.question, "two", MediaSet(made.media), name=made.item.id)
    return encode(Record(split=split, ordinal=ordinal, item=made.item, trace=trace, accepted=accepted))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Four pictures in train, of which one was not accepted and one is also in test."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = {
        "train": [record("train", k, seed, accepted=seed != 6) for k, seed in enumerate((3, 4, 5, 6))],
        "test": [record("test", k, seed) for k, seed in enumerate((7, 5))],
    }
    facts = []
    for split, records in lines.items():
        path = folder / "shards" / f"{split}-00000.zip"
        write_shard(path, ((line, {}) for line in records))
        facts.append(Shard(path).facts())
    write_manifest(folder, {"config": {}}, facts)
    return folder


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory) -> tuple[Path, dict]:
    if not all(is_available(name) for name in ENCODERS):
        pytest.skip("run `pixelis models pull`")
    out = tmp_path_factory.mktemp("memory") / "m"
    words = ("build", corpus, "-o", out, "--cache", out.parent / "c.sqlite", "--keep-traces", "--json")
    return out, json.loads(run(*words, "near_duplicate=null"))


@pytest.mark.weights
def test_a_corpus_becomes_a_memory_without_what_is_evaluated(built, corpus):
    out, report = built
    assert (report["added"], report["items"], report["index"]) == (2, 2, "exact")
    (refused,) = report["refused"]
    assert refused["id"] == "choice.count/1/5"
    assert "choice.count/1/5/Image_0 shows" in refused["reason"]
    assert "which is evaluation media" in refused["reason"]
    memory = MemoryStore.open_read_only(out)
    assert [item.id for _, item in memory.items()] == ["choice.count/1/3", "choice.count/1/4"]
    assert memory.head.dimensions == 384 + 1280
    item = memory.files.item(0)
    (kept,) = item.files
    assert codec.decode(memory.files.stored_path(kept).read_bytes()).id == item.id
    assert memory.config.near_duplicate is None
    again = json.loads(run("build", corpus, "-o", out, "--cache", out.parent / "c.sqlite", "--json"))
    assert (again["added"], again["known"], again["items"]) == (0, 2, 2)


@pytest.mark.weights
def test_the_verbs_find_add_audit_and_delete(built, tmp_path, pictures):
    out, _ = built
    asked = generate("choice", seed=3, difficulty=1, template_id="choice.count")
    path = tmp_path / "asked.png"
    Image.fromarray(asked.media[0].frame(0)).save(path)
    found = json.loads(run("search", out, "--text", asked.item.question, "--media", path, "--json"))
    assert found["neighbours"][0]["id"] == "choice.count/1/3"
    assert found["neighbours"][0]["similarity"] == pytest.approx(1.0, abs=0.05)
    assert "choice.count/1/3" in run("search", out, "--text", "How many?", "-k", "2")
    Image.fromarray(pictures["chelsea"]).save(tmp_path / "cat.png")
    media = MediaSet((open_media(tmp_path / "cat.png"),))
    codec.append(traced("Which animal is it?", "a cat", media, tmp_path / "t.jsonl", "cat"), tmp_path / "t.jsonl", {})
    added = json.loads(run("add", out, tmp_path / "t.jsonl", "--cache", tmp_path / "c.sqlite", "--json"))
    assert (added["added"][0]["id"], added["added"][0]["row"], added["items"]) == ("cat", 2, 3)
    own = json.loads(run("search", out, "--media", tmp_path / "cat.png", "--json"))
    assert own["same_source"] == 1  # a query does not meet its own source
    assert "cat" not in [n["id"] for n in own["neighbours"]]
    shown = json.loads(run("search", out, "--media", tmp_path / "cat.png", "--same-source", "--json"))
    assert shown["neighbours"][0]["id"] == "cat"
    report = json.loads(run("audit", out, "--queries", "100", "--json"))
    assert (report["ok"], report["items"], report["screened"], report["masked_hits"]) == (True, 3, 3, 0)
    assert report["hits"] == 300
    assert json.loads(run("delete", out, "cat", "--json")) == {"deleted": 2, "items": 2}
    assert "no item 'cat'" in run("delete", out, "cat", code=2)


@pytest.mark.weights
def test_what_was_deleted_stays_out_of_the_next_build_and_of_two_of_one_id_a_row_is_wanted(
    built, corpus, tmp_path, pictures
):
    out = tmp_path / "m"
    shutil.copytree(built[0], out)
    assert json.loads(run("delete", out, "choice.count/1/3", "--json")) == {"deleted": 0, "items": 1}
    again = json.loads(run("build", corpus, "-o", out, "--cache", out.parent / "c.sqlite", "--json"))
    assert (again["added"], again["known"], again["deleted"], again["items"]) == (0, 1, 1, 1)
    Image.fromarray(pictures["chelsea"]).save(tmp_path / "cat.png")
    media = MediaSet((open_media(tmp_path / "cat.png"),))
    for answer in ("a cat", "a tabby"):  # two files, each with the first trace of its own
        path = tmp_path / f"{answer}.jsonl"
        codec.append(traced(f"Is it {answer}?", answer, media, path, "question-0"), path, {})
        run("add", out, path, "--cache", tmp_path / "c.sqlite", "--json")
    names = [item.id for _, item in MemoryStore.open_read_only(out).items()][1:]
    assert names[0] == "question-0"
    assert re.fullmatch("question-0-[0-9a-f]{8}", names[1])
    with MemoryStore(out) as memory:
        same = [draft._replace(item=draft.item.model_copy(update={"id": "twin"})) for draft in twins(memory)]
        memory.files.append(same)
    assert "all have the id 'twin': say which with --row" in run("delete", out, "twin", code=2)


def twins(memory: MemoryStore) -> list[MemoryDraft]:
    keys_ = np.random.default_rng(0).normal(size=(2, memory.head.dimensions)).astype("f4")
    text = memory.head.text_dimensions
    return [MemoryDraft(MemoryItem(id="x"), Key(key[:text], key[text:])) for key in keys_]


@pytest.mark.weights
def test_a_changed_copy_of_evaluation_media_is_refused_at_add(built, tmp_path):
    out, _ = built
    secret = generate("choice", seed=7, difficulty=1, template_id="choice.count").media[0].frame(0)
    Image.fromarray(secret).save(tmp_path / "copy.jpg", quality=60)
    media = MediaSet((open_media(tmp_path / "copy.jpg"),))
    codec.append(traced("How many?", "two", media, tmp_path / "t.jsonl", "leak"), tmp_path / "t.jsonl", {})
    said = run("add", out, tmp_path / "t.jsonl", "--cache", tmp_path / "c.sqlite", code=2)
    assert "leak/Image_0 is a changed copy of choice.count/1/7/Image_0, which is evaluation media" in said
    assert ", near)" in said  # the pixels were looked at again: the corpus renders them
    assert len(MemoryStore.open_read_only(out)) == 2


def test_what_a_person_can_mistype_ends_in_one_line(tmp_path):
    assert "holds no memory" in run("delete", tmp_path, "x", code=2)
    assert "needs a corpus" in run("build", "-o", tmp_path / "m", code=2)
    assert "--reindex takes no corpus" in run("build", tmp_path, "-o", tmp_path / "m", "--reindex", code=2)
    assert "needs --text, --media" in run("search", tmp_path, code=2)
    with new_memory(tmp_path / "m") as memory:
        memory.add([draft(0, keys(1)[0])])
    assert "without an evaluation mask" in run("audit", tmp_path / "m", code=2)
    assert "holds no memory" in run("audit", tmp_path, code=2)
    assert "--row needs a number" in run("delete", tmp_path / "m", "x", "--row", code=2)
    assert json.loads(run("build", "--reindex", "-o", tmp_path / "m", "--json"))["items"] == 1
    assert json.loads(run("build", "index.exact_below=7", "--reindex", "-o", tmp_path / "m", "--json"))["items"] == 1
    assert "deleted row 0" in run("delete", tmp_path / "m", "0", "--row")


def mask_of(**hashes: int) -> EvaluationMask:
    features = [
        Features(
            sha256=sha(word), kind="image", phash=number, mirror_phash=0, key_times_s=np.zeros(1),
            key_hashes=np.array([number], np.uint64), dense_times_s=np.zeros(0), dense_hashes=np.zeros(0, np.uint64),
            embeddings=np.ones((1, 40), np.float16), thumbnail=np.zeros((32, 32), np.uint8), duration_s=0.0,
        )
        for word, number in hashes.items()
    ]  # fmt: skip
    items = [MediaItem(f"exam/{word}") for word in hashes]
    return EvaluationMask(MediaCollection(items, features), encoder="none", threshold=0.7)


def test_the_audit_aborts_on_a_masked_hit_and_names_it(tmp_path):
    rows = keys(50)
    with new_memory(tmp_path / "m") as memory:
        memory.add([draft(n, rows[n], medium="secret" if n == 31 else None) for n in range(50)])
        far = 0xFFFF_FFFF_0000_0000
        clean = audit_memory(memory, mask_of(elsewhere=far), rng=np.random.default_rng(0), queries=70)
        assert (clean.items, clean.queries, clean.hits, clean.screened) == (50, 70, 560, 0)
        assert clean.high == pytest.approx(1 - 0.025 ** (1 / 70), rel=1e-6)  # 0 of n queries: 1 − (α/2)^(1/n)
        with pytest.raises(LeakageError, match=r"row 31, item-31, shows exam/secret"):
            audit_memory(memory, mask_of(secret=far), rng=np.random.default_rng(0), queries=1)
        near = int(draft(7, rows[7]).item.media[0].perceptual[0], 16) ^ 0b111
        with pytest.raises(LeakageError, match=r"row 7, item-7, looks like evaluation media"):
            audit_memory(memory, mask_of(other=near), rng=np.random.default_rng(0), queries=1)
        memory.delete(31)
        assert audit_memory(memory, mask_of(secret=far), rng=np.random.default_rng(0), queries=5).items == 49


def test_a_damaged_key_is_told_also_where_there_is_no_mask_to_audit_by(tmp_path):
    with new_memory(tmp_path / "m") as memory:
        memory.add(drafts(keys(13)))
    command = [sys.executable, "-m", "pixelis", "index", "audit", str(tmp_path / "m")]
    whole = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (whole.returncode, "is undamaged, but was built without an evaluation mask" in whole.stderr) == (2, True)
    path = tmp_path / "m" / "keys.f16"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF  # the middle of 13 rows is row 6
    path.write_bytes(content)
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, "the key of row 6 is damaged" in told.stderr) == (2, True)


def test_the_probes_themselves_find_what_a_scan_would_have_missed(tmp_path, monkeypatch):
    """The index is asked too: with the scan taken away, the queries alone meet the masked item."""
    rows = keys(20)
    with new_memory(tmp_path / "m") as memory:
        memory.add([draft(n, rows[n], medium="secret" if n == 4 else None) for n in range(20)])
        monkeypatch.setattr(MemoryStore, "items", lambda self: iter(()))
        with pytest.raises(LeakageError, match="row 4, item-4, shows exam/secret"):
            audit_memory(memory, mask_of(secret=0xFFFF_FFFF_0000_0000), rng=np.random.default_rng(0), queries=200)


def test_a_search_that_is_answered_by_a_reader_while_another_writes(tmp_path):
    rows = keys(3)
    with new_memory(tmp_path / "m", SMALL) as memory:
        memory.add([draft(0, rows[0])])
        reader = MemoryStore.open_read_only(tmp_path / "m")
        memory.add([draft(1, rows[1])])
        assert [n.row for n in reader.search(key(rows[1]))] == [0]
        assert [n.row for n in MemoryStore.open_read_only(tmp_path / "m").search(key(rows[1]), 1)] == [1]
