"""A corpus of imported items: splits by media, the same bytes anywhere, media opened again, hostile files refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from pixelis.core.errors import ConfigError, MediaError, TraceError
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.item_files import ItemFiles, assign_splits, corpus_units, fill_empty_splits, split_by_hash
from pixelis.data.corpus.record import encode
from pixelis.data.corpus.splits import plan_units
from pixelis.data.importers import ImportOptions, user_items, write_items
from pixelis.data.photographs.signs import sign_item


def photos(folder: Path, count: int = 12) -> Path:
    """A folder of pictures, two questions about each, and the items made of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(count):
        pixels = np.random.default_rng(k).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
        rows.append({"media": f"{k}.png", "question": "How many?", "answer": k})
        rows.append({"media": f"{k}.png", "question": "What is it?", "answer": "noise"})
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = folder / "items.jsonl"
    found = user_items(folder / "questions.jsonl", ImportOptions(media=folder, items_path=out))
    assert write_items(found, out).count == 2 * count
    return out


def config(*items: Path, **changes: Any) -> CorpusConfig:
    given = {"items": [str(path) for path in items], "teacher": {"kind": "answers"}, "toolbox": {"isolate": False}}
    return CorpusConfig.model_validate({**given, "shard_size": 7, **changes})


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "shards").iterdir())}


def test_a_corpus_of_items_alone_has_them_all_and_no_medium_in_two_splits(tmp_path):
    report = build(config(photos(tmp_path / "in")), tmp_path / "corpus", workers=2)
    assert (report.is_complete, report.records, report.accepted) == (True, 24, 24)
    corpus = Corpus(tmp_path / "corpus")
    split_of = [(medium, row.split) for row in corpus.rows() for medium in row.media]
    assert len({medium for medium, _ in split_of}) == len(set(split_of)) == 12
    assert {row.split for row in corpus.rows()} >= {"train"}
    record = corpus[0]
    assert record.source.startswith("items.jsonl:")
    assert not record.trace.steps
    assert record.trace.answer == record.item.answer
    assert record.trace.media[0].path == record.item.parameters["media_paths"][0]


def test_the_bytes_do_not_depend_on_the_folder_or_the_number_of_processes(tmp_path):
    build(config(photos(tmp_path / "here")), tmp_path / "one", workers=1)
    build(config(photos(tmp_path / "deep" / "there")), tmp_path / "two", workers=2)
    assert shards(tmp_path / "one") == shards(tmp_path / "two")


def test_a_build_goes_on_where_it_was_stopped(tmp_path):
    items = photos(tmp_path / "in")
    whole = build(config(items), tmp_path / "whole", workers=1)

    class Stop(Exception):  # noqa: N818 - as a kill between two items
        pass

    def after_five(progress: Any) -> None:
        if progress.completed == 5:
            raise Stop

    with pytest.raises(Stop):
        build(config(items), tmp_path / "stopped", workers=1, on_progress=after_five)
    again = build(config(items), tmp_path / "stopped", workers=1)
    assert again.made < 24
    assert again.corpus == whole.corpus


def test_media_are_opened_again_beside_their_items_and_a_changed_one_is_refused(tmp_path):
    items = photos(tmp_path / "in", 3)
    build(config(items), tmp_path / "corpus", workers=1)
    corpus = Corpus(tmp_path / "corpus")
    record = corpus[0]
    assert corpus.media(record).sources[0].sha256 == record.item.media[0].sha256
    place = tmp_path / "in" / str(record.item.parameters["media_paths"][0])
    Image.fromarray(np.zeros((24, 32, 3), np.uint8)).save(place)
    with pytest.raises(MediaError, match="its content has changed"):
        corpus.media(record)


def test_a_corpus_that_keeps_its_media_needs_no_other_folder(tmp_path):
    build(config(photos(tmp_path / "in", 3), store_media=True), tmp_path / "corpus", workers=1)
    shutil.rmtree(tmp_path / "in")
    corpus = Corpus(tmp_path / "corpus")
    for record in corpus.records():
        assert corpus.media(record).sources[0].sha256 == record.item.media[0].sha256


def test_crops_of_one_photograph_stay_together_and_so_does_what_a_pair_joins(tmp_path):
    items = ItemFiles.read([photos(tmp_path / "in")]).entries
    halves = {"train": 0.5, "test": 0.5}
    alone = assign_splits(items, halves)
    assert len(set(alone)) == 2
    joined = [entry._replace(origins=(*entry.origins, "photograph of a dog")) for entry in items]
    assert len(set(assign_splits(joined, halves))) == 1
    assert [split_by_hash(entry.origins[0], halves) for entry in items] == alone  # whatever stands around it


@pytest.mark.parametrize(("media", "held"), [(1, {"train"}), (2, {"train", "test"}), (3, {"train", "test", "dev"})])
def test_a_few_media_are_enough_for_train_then_test_then_dev(tmp_path, media, held):
    items = ItemFiles.read([photos(tmp_path / "in", media)]).entries
    belongs = assign_splits(items, CorpusConfig().splits)
    assert set(belongs) == held
    assert belongs[::2] == belongs[1::2]  # both questions about a picture


def test_a_split_without_a_share_stays_empty_and_what_is_there_stays_where_it_is():
    everywhere = {"a": "train", "b": "train", "c": "dev", "d": "test"}
    assert fill_empty_splits(everywhere, {"train": 0.5, "dev": 0.2, "test": 0.3}) == everywhere
    assert set(fill_empty_splits({"a": "train", "b": "train"}, {"train": 1.0}).values()) == {"train"}
    assert Counter(
        fill_empty_splits({"a": "dev-cal", "b": "dev"}, {"train": 0.5, "dev": 0.2, "dev-cal": 0.3}).values()
    ) == {
        "train": 1,
        "dev": 1,
    }


def test_items_are_spread_among_those_of_the_world_by_their_weight(tmp_path):
    items = ItemFiles.read([photos(tmp_path / "in")])
    both = config(photos(tmp_path / "in"), n=40, families={"search": 1.0, "space": 1.0}, items_weight=2.0)
    units = list(corpus_units(both, items))
    assert len(units) == 40
    assert sum(bool(unit.items) for unit in units) == 20
    train = [unit for unit in units if unit.split == "train"]
    assert [unit.ordinal for unit in train] == list(range(len(train)))
    assert 0 < sum(bool(unit.items) for unit in train[: len(train) // 2]) < len(train) // 2
    scarce = config(photos(tmp_path / "in"), n=100, families={"search": 1.0}, items_weight=9.0)
    assert sum(bool(unit.items) for unit in corpus_units(scarce, items)) == 24  # all there are; the world fills up


def test_a_corpus_of_the_world_is_planned_and_named_as_if_there_were_no_items():
    world = CorpusConfig(n=30)
    assert list(corpus_units(world, ItemFiles())) == list(
        plan_units(30, seed=0, splits=world.splits, families=world.families, difficulties=world.difficulties)
    )
    assert not {"items", "items_weight"} & world.identity().keys()


def test_a_record_of_the_world_does_not_say_that_it_has_no_source(tmp_path):
    build(config(photos(tmp_path / "in", 1)), tmp_path / "corpus", workers=1)
    record = Corpus(tmp_path / "corpus")[0]
    assert b'"source"' in encode(record)
    assert b'"source"' not in encode(record.model_copy(update={"source": ""}))


def test_lines_that_are_no_items_stop_the_build_by_their_number(tmp_path):
    items = photos(tmp_path / "in", 2)
    good = items.read_text().splitlines()
    items.write_text("\n".join([good[0], "{", "", json.dumps({"id": "x"}), good[1], good[1]]) + "\n")
    with pytest.raises(ConfigError) as error:
        build(config(items), tmp_path / "corpus")
    for place in (":2: not an item", ":4: not an item", ":6: item own/2 is also on line 5"):
        assert place in str(error.value)
    items.write_text("")
    with pytest.raises(ConfigError, match="holds no items"):
        build(config(items), tmp_path / "corpus")


def test_another_content_of_the_items_is_another_plan(tmp_path):
    items = photos(tmp_path / "in", 2)
    build(config(items), tmp_path / "corpus", workers=1)
    items.write_text("\n".join(items.read_text().splitlines()[:2]) + "\n")
    with pytest.raises(ConfigError, match="another plan"):
        build(config(items), tmp_path / "corpus", workers=1)


def test_a_medium_that_is_gone_stops_the_build_with_its_line(tmp_path):
    items = photos(tmp_path / "in", 2)
    (tmp_path / "in" / "1.png").unlink()
    with pytest.raises(TraceError, match=r"items\.jsonl:\d: .*1\.png cannot be opened"):
        build(config(items), tmp_path / "corpus", workers=1)


def test_a_question_without_a_template_tells_who_could_teach_it(tmp_path):
    with pytest.raises(ConfigError, match=r"own\.question \(2\).*teacher\.kind: vlm"):
        build(config(photos(tmp_path / "in", 1), teacher={}), tmp_path / "corpus", workers=1)
    assert not (tmp_path / "corpus" / ".building").exists()  # refused before it began


def test_two_files_of_items_need_two_names_and_something_must_be_planned(tmp_path):
    with pytest.raises(ValidationError, match="the same name"):
        config(tmp_path / "a" / "items.jsonl", tmp_path / "b" / "items.jsonl")
    with pytest.raises(ValidationError, match="families"):
        CorpusConfig.model_validate({"families": {"search": 0.0}})


def test_the_oracle_reads_painted_signs_with_real_tools(tmp_path):
    (tmp_path / "signs").mkdir()
    out = tmp_path / "signs.jsonl"
    assert write_items((sign_item(n, tmp_path / "signs", out) for n in range(4)), out).count == 4
    report = build(config(out, teacher={"visual_guess_rate": 0.0}), tmp_path / "corpus", workers=1)
    assert report.accepted == 4
    for record in Corpus(tmp_path / "corpus").records():
        assert {step.call.tool for step in record.trace.steps} <= {"OCR", "ZOOM"}
        assert record.trace.answer_thought
