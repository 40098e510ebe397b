"""The corpus on disk: the same bytes for the same records, read lazily, damage named by shard and line."""

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pixelis import __version__
from pixelis.core.errors import MediaError, TraceError
from pixelis.data.corpus import shard as shard_module
from pixelis.data.corpus.corpus import Corpus, write_manifest
from pixelis.data.corpus.record import Record, decode, encode, pack, unpack
from pixelis.data.corpus.shard import RECORDS_PER_BLOCK, Shard, write_shard
from pixelis.data.corpus.splits import first_seed, plan_units, split_for_seed, split_sizes, weighted_round_robin
from pixelis.items import Item
from pixelis.media import Image, MediaSet
from pixelis.tools.results import Blob, ToolCall, ToolResult
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import StepDraft, seal_trace
from pixelis.world import generate
from pixelis.world.generate import medium_facts

FAMILY = ("search", "space")


def made(number: int, split="train", accepted=True) -> tuple[Record, dict[str, bytes]]:
    """A record of a small real-data item with one call and one artifact."""
    pixels = np.full((8, 10, 3), number % 250, np.uint8)
    image = Image.from_array(pixels)
    item = Item(
        id=f"real/{split}/{number}",
        family=FAMILY[number % 2],
        template="coco.count",
        difficulty=1 + number % 5,
        seed=number,
        stem=f"How many? \u2603 {number}",
        answer="3",
        answers=("3",),
        scoring="exact",
        media=(medium_facts("Image_0", image),),
    )
    blob = Blob("view.png", "image/png", b"view %d" % (number // 2))
    result = ToolResult(tool="ZOOM", status="ok", text="a view", artifacts=(blob.artifact(),))
    trace = seal_trace(
        id=item.id,
        query=item.question,
        media=record_media(MediaSet((image,))),
        origin="teacher:test",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=[StepDraft(call=ToolCall(tool="ZOOM", args={"scale": 2.0}), result=result)],
        answer="3",
        pixelis=__version__,
    )
    record = Record(split=split, ordinal=number, item=item, trace=trace, accepted=accepted)
    return record, {blob.artifact().sha256: blob.content}


def corpus_of(folder: Path, sizes_of: dict[str, list[int]]) -> Corpus:
    facts = []
    for split, counts in sizes_of.items():
        start = 0
        for number, count in enumerate(counts):
            path = folder / "shards" / f"{split}-{number:05d}.zip"
            units = (made(k, split, accepted=k % 3 != 0) for k in range(start, start + count))
            write_shard(path, ((encode(record), blobs) for record, blobs in units))
            facts.append(Shard(path).facts())
            start += count
    write_manifest(folder, {"config": {}}, facts)
    return Corpus(folder)


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(tmp_path / "corpus", {"train": [40, 5], "dev": [7]})


def test_records_come_back_as_they_were_written(corpus):
    expected = [made(k, "train", k % 3 != 0)[0] for k in range(45)] + [made(k, "dev", k % 3 != 0)[0] for k in range(7)]
    assert list(corpus.records()) == expected
    assert len(corpus) == 52
    assert [corpus[k] for k in (0, 39, 40, 51)] == [expected[k] for k in (0, 39, 40, 51)]


def test_the_same_records_give_the_same_bytes_and_hash(tmp_path, corpus):
    other = corpus_of(tmp_path / "other", {"train": [40, 5], "dev": [7]})
    assert other.manifest == corpus.manifest
    one, two = (c.folder / "shards" / "train-00000.zip" for c in (corpus, other))
    assert one.read_bytes() == two.read_bytes()


def test_another_record_gives_another_corpus_hash(tmp_path, corpus):
    other = corpus_of(tmp_path / "other", {"train": [40, 6], "dev": [7]})
    assert other.manifest.corpus != corpus.manifest.corpus


def test_records_are_chosen_by_split_family_and_acceptance(corpus):
    chosen = [r.ordinal for r in corpus.records(split="dev", family="search", accepted=True)]
    assert chosen == [2, 4]
    assert sum(row.accepted for row in corpus.rows()) == corpus.manifest.accepted == 34


def test_blocks_without_a_wanted_record_are_not_read(corpus, monkeypatch):
    read = []
    real = shard_module.read_shard_member
    monkeypatch.setattr(shard_module, "read_shard_member", lambda a, name: read.append(name) or real(a, name))
    assert corpus[17].ordinal == 17
    assert read == ["records/00001.jsonl", "index.jsonl"]
    assert RECORDS_PER_BLOCK == 16


def test_an_item_is_found_by_its_id(corpus):
    assert corpus.find("real/dev/6").ordinal == 6
    with pytest.raises(TraceError, match="has no item 'real/dev/7'"):
        corpus.find("real/dev/7")


def test_artifacts_are_kept_once_for_a_shard_and_come_back_by_hash(corpus):
    record = corpus[3]
    (_, artifact), *_ = record.trace.artifacts
    assert corpus.blob(artifact.sha256, record) == b"view 1"
    assert corpus.blob("0" * 64, record) is None
    assert corpus.blob("../../etc/passwd", record) is None
    assert corpus.manifest.shards[0].blobs == 20


def test_a_world_item_is_rendered_again_and_must_have_its_hash(corpus):
    rendered = generate("search", seed=3, difficulty=1)
    record = corpus[0].model_copy(update={"item": rendered.item})
    again = corpus.media(record)
    assert [m.sha256 for m in again.sources] == [m.sha256 for m in rendered.media]
    wrong = rendered.item.media[0].model_copy(update={"sha256": "0" * 64})
    item = rendered.item.model_copy(update={"media": (wrong, *rendered.item.media[1:])})
    with pytest.raises(MediaError, match="this version of the world renders Image_0 differently"):
        corpus.media(corpus[0].model_copy(update={"item": item}))


def test_a_real_medium_that_is_kept_opens_and_one_that_is_not_is_said(tmp_path):
    from io import BytesIO

    from PIL import Image as Pil

    out = BytesIO()
    Pil.new("RGB", (12, 9), (1, 2, 3)).save(out, "PNG")
    image = Image.from_bytes(out.getvalue())
    record, _ = made(0)
    item = record.item.model_copy(update={"media": (medium_facts("Image_0", image),)})
    record = record.model_copy(update={"item": item})
    path = tmp_path / "c" / "shards" / "train-00000.zip"
    write_shard(path, [(encode(record), {image.sha256: out.getvalue()})])
    write_manifest(tmp_path / "c", {}, [Shard(path).facts()])
    corpus = Corpus(tmp_path / "c")
    assert corpus.media(corpus[0]).sources[0].size == (12, 9)
    with pytest.raises(MediaError, match="is not stored in"):
        corpus.media(made(0)[0])


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_shard_that_was_cut_off_is_named_with_its_line(corpus, keep):
    path = corpus.folder / "shards" / "train-00000.zip"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(TraceError, match=r"train-00000.zip:1: the shard is damaged or cut off"):
        list(Corpus(corpus.folder).records())
    with pytest.raises(TraceError, match=r"train-00000.zip"):
        corpus.verify()


def test_a_flipped_byte_in_a_block_is_named_with_the_line_where_the_block_begins(corpus):
    path = corpus.folder / "shards" / "train-00000.zip"
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("records/00001.jsonl").header_offset + 200
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)
    reader = Corpus(corpus.folder).records()
    assert [next(reader).ordinal for _ in range(16)] == list(range(16))
    with pytest.raises(TraceError, match=r"train-00000.zip:17: the shard is damaged"):
        next(reader)


def test_a_record_that_was_changed_and_packed_again_is_named_with_its_line(tmp_path):
    lines = [encode(made(k)[0]) for k in range(3)]
    path = tmp_path / "train-00000.zip"
    write_shard(path, [(line, {}) for line in lines])
    with zipfile.ZipFile(path) as archive:
        index = archive.read("index.jsonl")
    forged = lines[1].replace(b'"answer":"3"', b'"answer":"4"')
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("records/00000.jsonl", lines[0] + forged + lines[2])
        archive.writestr("index.jsonl", index)
    assert Shard(path).record(0).ordinal == 0
    with pytest.raises(TraceError, match=r"train-00000.zip:2: seal broken"):
        Shard(path).record(1)


def test_a_member_that_says_it_is_endless_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "train-00000.zip"
    write_shard(path, [(encode(made(0)[0]), {})])
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        true = archive.getinfo("records/00000.jsonl").file_size
    entry = content.index(b"PK\x01\x02")  # the directory's first entry; its uncompressed size stands at byte 24
    size = slice(entry + 24, entry + 28)
    assert int.from_bytes(content[size], "little") == true
    lying = bytearray(content)
    lying[size] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(lying)

    def opened(*_: object) -> None:
        raise AssertionError("the member was opened")

    monkeypatch.setattr(zipfile.ZipFile, "open", opened)
    with pytest.raises(TraceError, match=f"states {2**32 - 2} bytes; at most {2**30}"):
        Shard(path).record(0)


def test_a_member_that_is_longer_than_it_says_is_damage(tmp_path):
    path = tmp_path / "train-00000.zip"
    write_shard(path, [(encode(made(0)[0]), {})])
    content = bytearray(path.read_bytes())
    size = slice((entry := content.index(b"PK\x01\x02")) + 24, entry + 28)
    content[size] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(TraceError, match="damaged or cut off"):
        Shard(path).record(0)


def test_a_block_that_another_thread_replaces_meanwhile_does_no_harm(tmp_path):
    path = tmp_path / "train-00000.zip"
    write_shard(path, [(encode(made(k)[0]), {}) for k in range(RECORDS_PER_BLOCK + 1)])

    class Contended(Shard):
        """After every look at the block somebody else has put the other one in its place."""

        _held = None

        @property
        def _block(self):
            held, self._held = self._held, (1, [encode(made(RECORDS_PER_BLOCK)[0])])
            return held

        @_block.setter
        def _block(self, value):
            self._held = value

    shard = Contended(path)
    assert [shard.record(k).ordinal for k in (0, 1, 0, RECORDS_PER_BLOCK, 2)] == [0, 1, 0, RECORDS_PER_BLOCK, 2]


def packed_again(path: Path, name: str, change) -> None:
    """The same archive with one member changed and every checksum right."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members[name] = change(members[name])
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def test_an_index_that_says_something_else_than_its_records_is_found(corpus):
    corpus.verify()
    path = corpus.folder / "shards" / "dev-00000.zip"
    packed_again(path, "index.jsonl", lambda rows: rows.replace(b'"steps":1', b'"steps":2', 1))
    with pytest.raises(TraceError, match=r"dev-00000.zip:1: the index differs from the record"):
        corpus.verify()


def test_a_blob_that_is_not_what_its_name_says_is_found(corpus):
    path = corpus.folder / "shards" / "dev-00000.zip"
    with zipfile.ZipFile(path) as archive:
        blob = next(name for name in archive.namelist() if name.startswith("blobs/"))
    packed_again(path, blob, lambda content: content + b"!")
    with pytest.raises(TraceError, match=r"dev-00000.zip: blob .* does not have its hash"):
        corpus.verify()


def test_what_is_no_corpus_is_said_in_one_line(tmp_path):
    with pytest.raises(TraceError, match=r"not a corpus; .*\(there is no manifest.json\)"):
        Corpus(tmp_path)
    (tmp_path / "manifest.json").write_text("{]")
    with pytest.raises(TraceError, match="is not a manifest"):
        Corpus(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 9}))
    with pytest.raises(TraceError, match="corpus version 9, this build reads up to 1; update pixelis"):
        Corpus(tmp_path)


def test_a_manifest_cannot_lead_out_of_its_folder(corpus):
    path = corpus.folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"train-00000.zip", b"../../../x.zip"))
    with pytest.raises(TraceError, match="points outside the corpus"):
        Corpus(corpus.folder)


def test_a_line_that_is_not_canonical_is_refused():
    line = encode(made(1)[0])
    assert decode(line) == made(1)[0]
    with pytest.raises(TraceError, match="not formatted as it was written"):
        decode(line.replace(b'"version":1}', b'"version": 1}'))


def test_a_unit_with_a_missing_byte_is_no_unit():
    packed = pack(b"line\n", {"b": b"two", "a": b"one"})
    assert unpack(packed) == (b"line\n", {"a": b"one", "b": b"two"})
    for broken in (packed[:-1], packed + b"x", packed[:40] + b"?" + packed[41:], b""):
        with pytest.raises(ValueError, match="the unit is damaged"):
            unpack(broken)


def test_memory_stays_bounded_over_a_long_corpus(tmp_path):
    import tracemalloc

    small = corpus_of(tmp_path / "small", {"train": [64] * 2})
    large = corpus_of(tmp_path / "large", {"train": [64] * 12})
    peaks = []
    for corpus in (small, large):
        tracemalloc.start()
        assert sum(1 for _ in corpus.records()) == len(corpus)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.8 * peaks[0]  # six times the records; a few shards' indexes are kept


def test_splits_own_seeds_that_never_meet():
    assert [split_for_seed(first_seed(s, 99) + 10**7 - 1) for s in ("train", "dev", "dev-cal", "test")] == [
        "train", "dev", "dev-cal", "test",
    ]  # fmt: skip


def test_split_sizes_add_up_by_largest_remainder():
    shares = {"train": 0.82, "dev": 0.06, "dev-cal": 0.04, "test": 0.08}
    assert split_sizes(24, shares) == {"train": 20, "dev": 1, "dev-cal": 1, "test": 2}
    assert sum(split_sizes(4999, shares).values()) == 4999


def test_every_beginning_of_a_split_has_the_shares_of_the_whole():
    from itertools import islice

    first = list(islice(weighted_round_robin({"a": 1.0, "b": 2.0, "c": 0.0}), 9))
    assert [first[:3].count("b"), first[:6].count("b"), first.count("b"), first.count("c")] == [2, 4, 6, 0]


def test_a_small_split_has_every_family_and_difficulty():
    settings = {"seed": 0, "splits": {"dev": 1.0}, "families": {"search": 1.0, "motion": 1.0, "space": 1.0}}
    units = list(plan_units(6, **settings, difficulties={1: 1.0, 3: 1.0, 5: 1.0}))
    assert [(u.family, u.difficulty) for u in units] == [
        ("search", 1), ("motion", 3), ("space", 5), ("search", 3), ("motion", 5), ("space", 1),
    ]  # fmt: skip


def test_a_longer_corpus_begins_with_the_items_of_a_shorter_one():
    settings = {
        "seed": 1,
        "splits": {"train": 0.5, "test": 0.5},
        "families": {"search": 1.0, "motion": 2.0},
        "difficulties": {1: 1.0, 5: 1.0},
    }
    short = [u for u in plan_units(20, **settings, shift_share=0.5) if u.split == "test"]
    long = [u for u in plan_units(60, **settings, shift_share=0.5) if u.split == "test"]
    assert long[:10] == short
    assert len({u.seed for u in plan_units(60, **settings)}) == 60
    assert 3 <= sum(u.shift is not None for u in long) <= 27


def test_the_order_of_keys_in_a_configuration_changes_no_unit():
    families = {"search": 1.0, "motion": 2.0, "document": 0.3}
    difficulties = {1: 1.0, 3: 0.2, 5: 0.7}
    splits = {"train": 0.7, "dev": 0.1, "test": 0.2}

    def units(turned: bool) -> list:
        given = [dict(reversed(m.items())) if turned else m for m in (splits, families, difficulties)]
        return list(plan_units(200, seed=0, splits=given[0], families=given[1], difficulties=given[2], shift_share=0.2))

    assert units(turned=True) == units(turned=False)


def test_the_units_of_nano_are_those_that_its_corpus_was_built_from():
    import hashlib

    from pixelis.core.config import load_config
    from pixelis.data.build.build_corpus import shard_jobs
    from pixelis.data.corpus.corpus_config import CorpusConfig
    from pixelis.data.corpus.item_files import ItemFiles

    config = load_config(CorpusConfig, Path(__file__).parents[2] / "configs" / "nano" / "corpus.yaml")
    units = [tuple(unit)[:7] for job in shard_jobs(config, ItemFiles.read(())) for unit in job.units]
    assert len(units) == 5000
    # taken before the order of keys ceased to matter
    assert hashlib.sha256(repr(units).encode()).hexdigest() == (
        "75ba0cb46598bdf04625084faa7a50bc72d116db56b30b55a04bb1db70dd7edb"
    )
