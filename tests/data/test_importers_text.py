"""Text in pictures in: TextOCR's JSON and ICDAR's word files, as each test writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import TextSpan
from pixelis.data.corpus.text_lines import TextLine
from pixelis.data.importers import ImportOptions, Problem, get_case, ocr_items
from pixelis.data.importers.text_datasets import word_from_line
from pixelis.items import Item
from pixelis.world.tool_necessity import compute_necessities

WIDTH, HEIGHT = 400, 200


def word(own: str, text: str, left: int, top: int, width: int, height: int, image: str = "a1") -> dict[str, Any]:
    right, bottom = left + width, top + height
    points = [left, top, right, top, right, bottom, left, bottom]
    return {
        "id": own, "image_id": image, "bbox": [left, top, width, height], "utf8_string": text, "points": points,
        "area": float(width * height),
    }  # fmt: skip


def textocr(folder: Path, words: list[dict[str, Any]], **more: Any) -> Path:
    (folder / "images").mkdir(parents=True)
    Image.fromarray(np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)).save(folder / "images" / "a1.png")
    image = {"id": "a1", "width": WIDTH, "height": HEIGHT, "set": "train", "file_name": "train/a1.png"}
    content = {
        "info": {},
        "imgs": {"a1": image, **more},
        "anns": {w["id"]: w for w in words},
        "imgToAnns": {"a1": [w["id"] for w in words]},
    }
    path = folder / "TextOCR_0.1_train.json"
    path.write_text(json.dumps(content))
    return path


def taken(path: Path, **wishes: Any) -> tuple[dict[str, Item], list[Problem]]:
    outcomes = list(ocr_items(path, ImportOptions(**wishes)))
    return (
        {o.template: o for o in outcomes if isinstance(o, Item)},
        [o for o in outcomes if isinstance(o, Problem)],
    )


def test_the_largest_word_and_a_word_by_its_place_are_asked_for(tmp_path: Path) -> None:
    words = [word("a1_1", "EXIT", 20, 20, 100, 40), word("a1_2", "Platform", 200, 100, 60, 8)]
    items, problems = taken(textocr(tmp_path, words))
    assert not problems
    assert items["ocr.largest"].answer == "EXIT"
    assert items["ocr.at"].answer in ("EXIT", "Platform")
    assert {i.scoring for i in items.values()} == {"anls"}
    assert items["ocr.at"].score(items["ocr.at"].answer.lower()) == 1.0


def test_reading_is_necessary_and_small_letters_need_zoom(tmp_path: Path) -> None:
    items, _ = taken(textocr(tmp_path, [word("a1_1", "Platform 9", 200, 100, 60, 8)]))
    item = items["ocr.at"]
    assert set(item.required_tools) == {"OCR", "ZOOM"}  # 8 of 200 rows are under 7 pixels at 336
    assert item.necessity["OCR"].perturbed_answer == "######## #"
    assert compute_necessities(get_case(item)) == item.necessity


def test_an_illegible_word_stays_as_a_box_and_is_never_asked_for(tmp_path: Path) -> None:
    items, problems = taken(textocr(tmp_path, [word("1", ".", 20, 20, 100, 40), word("2", "Bar", 200, 100, 60, 20)]))
    assert items["ocr.at"].answer == "Bar"
    assert "illegible text" in {r.footprint.label for r in items["ocr.at"].references}
    assert [(p.kind, p.reason) for p in problems] == [("unasked", "1 words are marked as illegible")]


def test_a_word_without_text_is_illegible_and_not_called_none(tmp_path: Path) -> None:
    silent = word("1", "", 20, 20, 100, 40) | {"utf8_string": None}
    items, problems = taken(textocr(tmp_path, [silent, word("2", "Bar", 200, 100, 60, 20)]))
    assert items["ocr.at"].answer == "Bar"
    assert [p.reason for p in problems] == ["1 words are marked as illegible"]


def test_a_curved_word_gets_the_smallest_rectangle_around_it(tmp_path: Path) -> None:
    bent = word("1", "CURVED", 0, 0, 1, 1) | {"points": [100, 50, 150, 45, 200, 50, 200, 70, 150, 75, 100, 70]}
    items, _ = taken(textocr(tmp_path, [bent]))
    span = items["ocr.at"].references[0].footprint
    assert isinstance(span, TextSpan)
    x0, y0, x1, y1 = span.box_unit
    assert (x0, x1) == pytest.approx((0.25, 0.5), abs=0.01)
    assert (y0, y1) == pytest.approx((0.225, 0.375), abs=0.01)


def test_bad_words_and_pictures_are_reported_by_id(tmp_path: Path) -> None:
    words = [
        word("1", "Bar", 200, 100, 60, 20),
        word("2", "out", 900, 900, 60, 20),
        word("3", "edge", 380, 100, 60, 20),
        {"id": "4", "image_id": "a1", "utf8_string": "nowhere"},
        word("5", "stray", 1, 1, 9, 9, image="zz"),
    ]
    items, problems = taken(textocr(tmp_path, words, b2={"id": "b2", "file_name": "b2.png"}))
    told = {p.where.rpartition(", ")[2]: (p.kind, p.reason) for p in problems}
    assert items["ocr.at"].answer in ("Bar", "edge")
    assert told["annotation 2"][0] == told["annotation 4"][0] == "skipped"
    assert told["annotation 3"] == ("changed", "the word goes beyond the picture and was clipped")
    assert told["image b2"] == ("skipped", "it has no annotations")
    assert "not listed" in told["image zz"][1]


@pytest.mark.parametrize(
    ("line", "text", "legible"),
    [
        ("377,117,463,117,465,130,378,130,Genaxis Theatre", "Genaxis Theatre", True),
        ("377,117,463,117,465,130,378,130,###", "###", False),
        ("1,2,3,4,5,6,7,8,a,b", "a,b", True),
        ("1,2,3,4,5,6,7,8,Latin,Wien", "Wien", True),
        ('38, 43, 920, 215, "Tiredness"', "Tiredness", True),
        ('38 43 920 215 "kills"', "kills", True),
        ("1,2,3,4,5,6,7,8,2019", "2019", True),
    ],
)
def test_every_icdar_way_of_writing_a_word_is_read(line: str, text: str, legible: bool) -> None:
    found = word_from_line(TextLine(1, line, "utf-8"))
    assert (found.text, found.legible, len(found.corners)) == (text, legible, 8)


def test_icdar_files_with_a_mark_and_mixed_encodings_are_read(tmp_path: Path) -> None:
    gt = tmp_path / "gt"
    gt.mkdir()
    Image.fromarray(np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)).save(tmp_path / "img_1.jpg")
    lines = [b"\xef\xbb\xbf20,20,120,20,120,60,20,60,caf\xc3\xa9", b"200,100,260,100,260,120,200,120,M\xfcnchen", b"oh"]
    (gt / "gt_img_1.txt").write_bytes(b"\r\n".join(lines))
    (gt / "gt_img_2.txt").write_bytes(b"1,2,3,4,5,6,7,8,word\n")
    (gt / "gt_img_3.txt").write_bytes(b"")
    items, problems = taken(gt)
    assert items["ocr.largest"].answer == "café"
    assert {r.footprint.text for r in items["ocr.largest"].references} == {"café", "München"}  # type: ignore[union-attr]
    told = {p.where.rpartition("/")[2]: p.kind for p in problems}
    assert told == {
        "gt_img_1.txt:2": "changed",
        "gt_img_1.txt:3": "skipped",
        "gt_img_2.txt": "skipped",
        "gt_img_3.txt": "skipped",
    }


def test_a_folder_without_word_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no word files"):
        taken(tmp_path)
