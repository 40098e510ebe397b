"""Somebody's own questions as a corpus: who teaches which, and how a file of them is told from one of items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from pixelis.core.errors import ConfigError
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.importers import ImportOptions, find_or_import_items

FONT = Path(__file__).parents[2] / "src" / "pixelis" / "world" / "assets" / "DejaVuSansMono-Bold.ttf"
TEXT = {"text": "BAKERY", "box": [0.05, 0.05, 0.8, 0.4]}
SQUARE = {"label": "red square", "box": [0.6, 0.5, 0.9, 0.9]}


def items(folder: Path, *rows: dict[str, Any]) -> Path:
    image = Image.new("RGB", (240, 160), "white")
    draw = ImageDraw.Draw(image)
    draw.text((26, 22), "BAKERY", fill="black", font=ImageFont.truetype(str(FONT), 40))
    draw.rectangle((144, 80, 215, 143), fill="red")
    image.save(folder / "a.png")
    source = folder / "mine.jsonl"
    source.write_text("".join(json.dumps({"media": "a.png", "question": "What?", **row}) + "\n" for row in rows))
    out = folder / "corpus.items.jsonl"
    path, tally = find_or_import_items(source, out, ImportOptions(media=folder, items_path=out))
    assert (path, tally.count) == (out, len(rows))
    return out


def records(folder: Path, out: Path, kind: str) -> dict[str, Any]:
    config = {"items": [str(out)], "teacher": {"kind": kind, "detour_rate": False}, "toolbox": {"isolate": False}}
    assert build(CorpusConfig.model_validate(config), folder / kind, workers=1).is_complete
    return {record.item.id: record for record in Corpus(folder / kind).records()}


def test_the_oracle_looks_where_references_say_and_answers_alone_elsewhere(tmp_path):
    out = items(
        tmp_path,
        {"id": "text", "answer": "BAKERY", "references": [TEXT]},
        {"id": "thing", "answer": 1, "references": [SQUARE]},
        {"id": "place", "answer": "red", "references": [{"box": [0.6, 0.5, 0.9, 0.9]}]},
        {"id": "none", "answer": "x"},
        {"id": "unseen", "answer": "x", "references": [{**SQUARE, "label": "kangaroo"}]},
        {"id": "elsewhere", "answer": "x", "references": [{**SQUARE, "box": [0.0, 0.8, 0.1, 0.9]}]},
    )
    found = records(tmp_path, out, "auto")
    assert all(record.accepted and record.trace.answer == record.item.answer for record in found.values())
    tools = {name.removeprefix("own/"): {s.call.tool for s in found[name].trace.steps} for name in found}
    assert "OCR" in tools["text"]
    assert tools["thing"] == {"SEG"}
    assert tools["place"] == {"ZOOM"}
    assert not tools["none"] | tools["unseen"] | tools["elsewhere"]
    assert found["own/text"].trace.origin == "teacher:oracle"
    assert found["own/none"].trace.origin == "teacher:answers"


def test_a_thing_that_no_tool_finds_is_no_answer_of_the_oracles(tmp_path):
    out = items(tmp_path, {"answer": "x", "references": [{**SQUARE, "label": "kangaroo"}]})
    (record,) = records(tmp_path, out, "oracle").values()
    assert not record.accepted
    assert record.trace.answer == "unknown"


def test_a_file_of_items_is_taken_as_it_is_and_one_of_neither_is_refused(tmp_path):
    out = items(tmp_path, {"answer": "x"})
    path, tally = find_or_import_items(out, tmp_path / "other.jsonl", ImportOptions())
    assert (path, tally.count) == (out, 1)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{\n[]\n")
    with pytest.raises(ConfigError, match=r"none of its lines is a question or an item; .*other\.problems\.jsonl"):
        find_or_import_items(broken, tmp_path / "other.jsonl", ImportOptions())
    assert not (tmp_path / "other.jsonl").exists()
