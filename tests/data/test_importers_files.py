"""`pixelis data import`: what it writes, what it says, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from pixelis.cli.data_files import app
from pixelis.core.errors import ConfigError
from pixelis.data.importers import ImportResult, Problem, get_template, read_items
from pixelis.items import Item
from pixelis.trace import codec


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def gt(tmp_path: Path) -> Path:
    folder = tmp_path / "gt"
    folder.mkdir()
    Image.fromarray(np.zeros((100, 200, 3), dtype=np.uint8)).save(tmp_path / "img_1.png")
    (folder / "gt_img_1.txt").write_text("20,20,120,20,120,60,20,60,EXIT\n")
    return folder


def test_all_of_it_is_status_0_and_the_items_can_be_read_again(tmp_path: Path, gt: Path) -> None:
    out = tmp_path / "items.jsonl"
    result = run("import", "ocr", gt, "-o", out, "--licence", "CC0", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "path": str(out), "items": 1, "skipped": 0, "changed": 0, "unasked": 0, "reasons": {},
        "problems": str(tmp_path / "items.problems.jsonl"),
    }  # fmt: skip
    (item,) = read_items(out)
    assert isinstance(item, Item)
    assert (item.answer, item.parameters["licence"]) == ("EXIT", "CC0")
    assert get_template(item.template).scoring == "anls"


def test_a_skipped_entry_is_status_1_and_its_place_is_in_the_file_of_problems(tmp_path: Path, gt: Path) -> None:
    (gt / "gt_img_1.txt").write_text("20,20,120,20,120,60,20,60,EXIT\nprose\n")
    result = run("import", "ocr", gt, "-o", tmp_path / "items.jsonl")
    assert result.exit_code == 1
    assert "skipped 1" in result.stdout
    (problem,) = (json.loads(line) for line in (tmp_path / "items.problems.jsonl").read_text().splitlines())
    assert problem["where"].endswith("gt_img_1.txt:2")
    assert problem["kind"] == "skipped"


def test_reasons_are_counted_without_their_figures_and_names_keep_theirs() -> None:
    tally = ImportResult()
    for reason in ("frame 7 is no 80x53.5", "frame 12 is no 800x600", "it is not UTF-8", "taken as img1"):
        tally.add_problem(Problem("x", reason))
    assert tally.reason_counts == {
        "skipped: frame # is no #x#": 2, "skipped: it is not UTF-8": 1, "skipped: taken as img1": 1,
    }  # fmt: skip


def test_nothing_readable_is_status_2_and_writes_no_items(tmp_path: Path, gt: Path) -> None:
    (gt / "gt_img_1.txt").write_text("prose\n")
    result = run("import", "ocr", gt, "-o", tmp_path / "items.jsonl")
    assert result.exit_code == 2
    assert not (tmp_path / "items.jsonl").exists()
    assert (tmp_path / "items.problems.jsonl").read_text().count("\n") == 2
    assert not list(tmp_path.glob(".*part"))


def test_somebody_elses_file_is_not_overwritten(tmp_path: Path, gt: Path) -> None:
    out = tmp_path / "photo.jpg"
    out.write_bytes(b"\xff\xd8")
    result = run("import", "ocr", gt, "-o", out)
    assert isinstance(result.exception, ConfigError)
    assert out.read_bytes() == b"\xff\xd8"


def test_a_path_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    result = run("import", "coco", tmp_path / "gone.json")
    assert isinstance(result.exception, ConfigError)
    assert "no such file" in str(result.exception)


def test_traces_come_in_as_a_trace_file_with_their_calls_counted(tmp_path: Path) -> None:
    action = {"thought": "", "actions": [{"name": "GetObjects", "arguments": {"image": "image-0"}}]}
    done = {"thought": "", "actions": [{"name": "Terminate", "arguments": {"answer": "2"}}]}
    turns = [{"from": "human", "value": "<image>?"}, *({"from": "gpt", "value": json.dumps(a)} for a in (action, done))]
    (tmp_path / "cota.json").write_text(json.dumps([{"conversations": turns}]))
    result = run("import", "traces", tmp_path / "cota.json", "-o", tmp_path / "trace.jsonl", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["calls"] == {"waiting": 0, "unusable": 0, "unknown GETOBJECTS": 1}
    (trace,) = codec.read(tmp_path / "trace.jsonl")
    assert (trace.origin, trace.answer) == ("imported:taco", "2")


def test_a_line_that_is_no_item_is_a_problem_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "a"}\n')
    (problem,) = read_items(tmp_path / "x.jsonl")
    assert isinstance(problem, Problem)
    assert problem.where.endswith("x.jsonl:1")


def test_media_that_may_not_be_used_are_skipped_with_the_reason(tmp_path: Path) -> None:
    names = ("Attribution License", "Attribution-NoDerivs License")
    for own in (1, 2, 3):
        Image.fromarray(np.full((100, 200, 3), own, dtype=np.uint8)).save(tmp_path / f"{own}.png")
    content = {
        "licenses": [{"id": k, "name": name} for k, name in enumerate(names)],
        "images": [
            {"id": 1, "file_name": "1.png", "license": 0},
            {"id": 2, "file_name": "2.png", "license": 1},
            {"id": 3, "file_name": "3.png", "license": 0, "watermark": True},
        ],
        "annotations": [{"id": k, "image_id": k, "category_id": 1, "bbox": [5, 5, 30, 30]} for k in (1, 2, 3)],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content))
    result = run("import", "coco", tmp_path / "coco.json", "-o", tmp_path / "items.jsonl", "--media", tmp_path)
    assert result.exit_code == 1
    assert {i.parameters["source_id"] for i in read_items(tmp_path / "items.jsonl") if isinstance(i, Item)} == {"1"}
    problems = [json.loads(line) for line in (tmp_path / "items.problems.jsonl").read_text().splitlines()]
    counted = [p for p in problems if p["where"].startswith("coco.count/")]
    assert [(p["where"], p["kind"], p["reason"]) for p in counted] == [
        ("coco.count/2", "skipped", "licence 'attribution-noderivs license' does not allow it"),
        ("coco.count/3", "skipped", "its media carry a visible watermark"),
    ]
