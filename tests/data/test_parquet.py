"""Parquet out: what is written can be read again, row by row and whole."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pixelis.core.errors import ConfigError, MissingExtraError
from pixelis.data.corpus.corpus import write_manifest
from pixelis.data.corpus.parquet import ROWS_PER_GROUP, export_parquet
from pixelis.data.corpus.record import Record, encode
from pixelis.data.corpus.shard import Shard, write_shard
from pixelis.items import Item, MediumFacts
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace import codec
from pixelis.trace.schema import StepDraft, Trace, seal_trace


def item(number: int) -> Item:
    return Item(
        id=f"ocr.at/{number}", family="document", template="ocr.at", difficulty=2, seed=number, stem="What?",
        answer="EXIT", answers=("EXIT",), scoring="anls",
        media=(MediumFacts(name="Image_0", sha256="0" * 64, width=4, height=3),),
        parameters={"licence": "CC0", "watermark": "none", "media_paths": ("a/1.png",)},
    )  # fmt: skip


def trace(number: int) -> Trace:
    step = StepDraft(
        thought="read",
        call=ToolCall(tool="OCR", args={"box": [0, 0, 1, 1]}),
        result=ToolResult(tool="OCR", status="ok", text="EXIT", confidence=0.9),
    )
    return seal_trace(
        query="What?", media=(), origin="teacher:oracle", created_at=datetime(2026, 1, 1, tzinfo=UTC), steps=[step],
        answer="EXIT", pixelis="0", id=f"t{number}",
    )  # fmt: skip


def corpus(folder: Path) -> Path:
    facts = []
    for split in ("train", "dev-cal"):
        records = [
            Record(split=split, ordinal=k, item=item(k), trace=trace(k), accepted=k > 0)  # type: ignore[arg-type]
            for k in range(3)
        ]
        write_shard(folder / "shards" / f"{split}-00000.zip", ((encode(r), {}) for r in records))
        facts.append(Shard(folder / "shards" / f"{split}-00000.zip").facts())
    write_manifest(folder, {}, facts)
    return folder


def table(path: Path) -> Any:
    return pytest.importorskip("pyarrow.parquet").read_table(path)


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"Parquet needs pyarrow: pip install 'pixelis\[data\]'"):
        export_parquet(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_corpus_becomes_a_file_for_each_split_with_items_and_traces_whole(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tally = export_parquet(corpus(tmp_path / "corpus"), tmp_path / "out")
    assert (tally.count, tally.exit_status) == (6, 0)
    assert sorted(p.name for p in (tmp_path / "out" / "corpus").iterdir()) == [
        "dev_cal-00000.parquet",
        "train-00000.parquet",
    ]
    first = table(tmp_path / "out" / "corpus" / "train-00000.parquet").to_pylist()[0]
    assert (first["question"], first["licence"], first["accepted"]) == ("What?", "CC0", False)
    assert first["media"][0]["path"] == "a/1.png"
    assert first["steps"][0]["tool"] == "OCR"
    assert Item.model_validate_json(first["item_json"]) == item(0)
    assert codec.decode(first["trace_json"].encode()) == trace(0)
    assert first["trace_json"].encode() + b"\n" == codec.encode(trace(0))  # spelled as in a trace file


def test_only_accepted_records_where_that_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert export_parquet(corpus(tmp_path / "corpus"), tmp_path / "out", accepted=True).count == 4


def test_items_and_traces_in_files_become_tables_of_their_own_and_bad_lines_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "files"
    count = ROWS_PER_GROUP + 7
    folder.mkdir()
    (folder / "items.jsonl").write_text("".join(item(k).model_dump_json() + "\n" for k in range(count)) + "{}\n")
    (folder / "items.problems.jsonl").write_text("{}\n")
    codec.write([trace(1)], folder / "trace.jsonl", {})
    tally = export_parquet(folder, tmp_path / "out")
    assert (tally.count, tally.problem_counts["skipped"], tally.exit_status) == (count + 1, 1, 1)
    assert table(tmp_path / "out" / "items" / "train-00000.parquet").num_rows == count
    assert table(tmp_path / "out" / "traces" / "train-00000.parquet").num_rows == 1
    readme = (tmp_path / "out" / "README.md").read_text()
    assert '  - split: train\n    path: "items/train-*.parquet"' in readme


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        export_parquet(corpus(tmp_path / "corpus"), tmp_path / "out")


def test_hugging_face_opens_the_folder_by_its_path(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    export_parquet(corpus(tmp_path / "corpus"), tmp_path / "out")
    opened = datasets.load_dataset(str(tmp_path / "out"), "corpus", cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in opened.items()} == {"train": 3, "dev_cal": 3}
    assert json.loads(opened["train"][0]["steps"][0]["args"]) == {"box": [0, 0, 1, 1]}
