"""COCO instances in, from files of the real format that each test writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as rle

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Box, Mask
from pixelis.data.importers import ImportOptions, Problem, coco_items, get_case, open_item_media
from pixelis.items import Item
from pixelis.world.tool_necessity import compute_necessities

WIDTH, HEIGHT = 200, 100


def square(left: int, top: int, side: int) -> list[list[float]]:
    right, bottom = left + side, top + side
    return [[left, top, right, top, right, bottom, left, bottom]]


def thing(own: int, category: int, shape: Any, image: int = 1, box: Any = None, **more: Any) -> dict[str, Any]:
    record = {"id": own, "image_id": image, "category_id": category, "segmentation": shape, "iscrowd": 0, "area": 1.0}
    return {**record, "bbox": box or [0, 0, 10, 10], **more}


def dataset(folder: Path, things: list[dict[str, Any]], images: list[dict[str, Any]] | None = None, **raw: Any) -> Path:
    """`annotations/instances_val2017.json` beside `val2017/`, as COCO lays them out."""
    pictures = folder / "val2017"
    pictures.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(noise).save(pictures / "000000000001.png")
    content = {
        "info": {"year": 2017, "description": 'a "quoted" {brace] in a text'},
        "licenses": [{"id": 4, "name": "Attribution License", "url": "http://creativecommons.org/licenses/by/2.0/"}],
        "images": images or [picture(1)],
        "annotations": things,
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        **raw,
    }
    path = folder / "annotations" / "instances_val2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def picture(own: int, **more: Any) -> dict[str, Any]:
    entry = {"id": own, "file_name": "000000000001.png", "width": WIDTH, "height": HEIGHT, "license": 4}
    return {**entry, **more}


def taken(path: Path, **wishes: Any) -> tuple[dict[str, Item], list[Problem]]:
    outcomes = list(coco_items(path, ImportOptions(**wishes)))
    return (
        {o.template: o for o in outcomes if isinstance(o, Item) and o.template.startswith("coco.")},
        [o for o in outcomes if isinstance(o, Problem)],
    )


def test_a_polygon_a_list_of_runs_and_packed_runs_are_the_same_mask(tmp_path: Path) -> None:
    packed = rle.merge(rle.frPyObjects(square(20, 20, 40), HEIGHT, WIDTH))
    array = rle.decode(packed)
    runs, value = [], 0
    for cell in array.T.flatten().tolist():  # column by column, the first run counts zeros
        if cell != value:
            runs.append(0)
            value = cell
        if not runs:
            runs.append(0)
        runs[-1] += 1
    shapes = [
        square(20, 20, 40),
        {"size": [HEIGHT, WIDTH], "counts": runs},
        {"size": [HEIGHT, WIDTH], "counts": packed["counts"].decode()},
    ]
    things = [thing(k, c, s) for k, (c, s) in enumerate(zip((17, 18, 1), shapes, strict=True))]
    items, problems = taken(dataset(tmp_path, things))
    assert not problems
    masks = [r.footprint for r in items["coco.count"].references]
    assert len({m.counts for m in masks if isinstance(m, Mask)}) == 1
    assert all(isinstance(m, Mask) and m.area == 1600 / 20000 for m in masks)


def test_the_count_is_the_number_of_annotations_and_scored_by_mra(tmp_path: Path) -> None:
    items, problems = taken(dataset(tmp_path, [thing(k, 17, square(10 + 40 * k, 30, 20)) for k in range(4)]))
    item = items["coco.count"]
    assert (item.answer, item.scoring, item.family) == ("4", "mra", "space")
    assert "“cat”" in item.question
    assert len(item.evidence) == 4
    assert not problems


def test_small_things_need_seg_because_eroding_them_changes_the_count(tmp_path: Path) -> None:
    items, _ = taken(dataset(tmp_path, [thing(k, 17, square(10 + 40 * k, 30, 6)) for k in range(4)]))
    need = items["coco.count"].necessity["SEG"]
    assert need.required
    assert (need.answer, need.perturbed_answer) == ("4", "0")  # 8 pixels taken off each side leave nothing of 10
    assert "SEG" in items["coco.count"].required_tools
    assert not items["coco.count"].necessity["OCR"].required


def test_labels_can_be_computed_again_from_the_item_alone(tmp_path: Path) -> None:
    items, _ = taken(dataset(tmp_path, [thing(0, 17, square(10, 10, 30)), thing(1, 18, square(120, 20, 60))]))
    assert items.keys() == {"coco.count", "coco.side", "coco.largest"}
    for item in items.values():
        assert compute_necessities(get_case(item)) == item.necessity
        assert item.score(item.answer) == 1.0


def test_side_and_largest_follow_from_the_outlines(tmp_path: Path) -> None:
    items, _ = taken(dataset(tmp_path, [thing(0, 17, square(10, 10, 30)), thing(1, 18, square(120, 20, 60))]))
    side, largest = items["coco.side"], items["coco.largest"]
    assert side.answer == ("left" if side.parameters["a"] == "cat" else "right")
    assert largest.answer_text == "dog"
    assert set(largest.options) == {"cat", "dog"}


def test_a_crowd_is_kept_as_a_reference_and_never_counted(tmp_path: Path) -> None:
    crowd = {"size": [HEIGHT, WIDTH], "counts": [0, 5000, 15000]}
    items, problems = taken(dataset(tmp_path, [thing(0, 1, crowd, iscrowd=1), thing(1, 18, square(120, 20, 60))]))
    assert items["coco.count"].parameters["target"] == "dog"
    assert "crowd of person" in {r.footprint.label for r in items["coco.count"].references}
    assert [p.kind for p in problems] == ["unasked"]


def test_licence_and_place_travel_with_the_item(tmp_path: Path) -> None:
    items, _ = taken(dataset(tmp_path, [thing(0, 17, square(10, 10, 30))]), items_path=tmp_path / "items.jsonl")
    facts = items["coco.count"].parameters
    assert facts["licence"] == "Attribution License"
    assert (facts["watermark"], facts["dataset"], facts["source_id"]) == ("unknown", "coco", "1")
    assert facts["media_paths"] == ("val2017/000000000001.png",)
    media = open_item_media(items["coco.count"], tmp_path / "items.jsonl")
    assert media.sources[0].sha256 == items["coco.count"].media[0].sha256


def test_what_goes_beyond_the_picture_is_clipped_and_reported(tmp_path: Path) -> None:
    things = [thing(7, 17, square(180, 80, 60), box=[180, 80, 60, 60]), thing(8, 18, [], box=[-30, 10, 60, 20])]
    items, problems = taken(dataset(tmp_path, things))
    assert [(p.kind, p.where.rpartition(" ")[2]) for p in problems] == [("changed", "7"), ("changed", "8")]
    cat, dog = (r.footprint for r in items["coco.count"].references)
    assert isinstance(cat, Mask)
    assert cat.area == 400 / 20000  # 20 x 20 of it are inside
    assert isinstance(dog, Box)
    assert dog.box_unit == (0.0, 0.1, 0.15, 0.3)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (thing(9, 99, square(0, 0, 9)), "category 99 is not listed"),
        (thing(9, 17, [[1, 2, 3, 4]]), "fewer than three corners"),
        (thing(9, 17, []) | {"bbox": []}, "neither an outline nor a box"),
        (thing(9, 17, square(300, 300, 20), box=[300, 300, 20, 20]), "nothing of its outline"),
        (thing(9, 17, [], box=[300, 0, 20, 20]), "no area inside"),
        (thing(9, 17, {"size": [5, 5], "counts": [25]}), "the picture has [100, 200]"),
        (thing(9, 17, {"size": [HEIGHT, WIDTH], "counts": [1, 2]}), "do not fill the picture"),
        (thing(9, 17, {"size": [HEIGHT, WIDTH], "counts": "~~~"}), "COCO run lengths"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_reported_by_its_id(tmp_path: Path, bad: Any, reason: str) -> None:
    items, problems = taken(dataset(tmp_path, [thing(1, 18, square(120, 20, 60)), bad]))
    assert items["coco.count"].answer == "1"
    found = [p for p in problems if p.kind == "skipped"]
    assert len(found) == 1
    assert found[0].where.endswith("annotation 9")
    assert reason in found[0].reason


def test_duplicates_missing_pictures_and_strays_are_all_reported(tmp_path: Path) -> None:
    images = [picture(1), picture(1), picture(2, file_name="gone.jpg"), picture(3), picture(5, width=999)]
    things = [
        thing(1, 18, square(120, 20, 60)),
        thing(1, 18, square(10, 20, 60)),
        thing(2, 18, square(120, 20, 60), image=2),
        thing(3, 18, square(120, 20, 60), image=4),
        thing(4, 18, square(120, 20, 60), image=5),
    ]
    items, problems = taken(dataset(tmp_path, things, images))
    told = sorted((p.where.rpartition(", ")[2], p.reason) for p in problems)
    assert len(items) == 1
    assert len(told) == 6
    text = "\n".join(f"{where}: {reason}" for where, reason in told)
    assert text.count("the id is a duplicate") == 2
    assert "image 2: gone.jpg is not in" in text
    assert "image 3: it has no annotations" in text
    assert "image 4: 1 annotations of a picture that is not listed" in text
    assert "image 5: 000000000001.png has 200x100 pixels, not 999x100" in text


def test_a_name_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    path = dataset(tmp_path, [thing(1, 18, square(1, 1, 9))], [picture(1, file_name="../val2017/000000000001.png")])
    items, problems = taken(path)
    assert not items
    assert "is not in" in problems[-1].reason


def test_a_broken_member_spoils_no_other_and_a_cut_off_file_says_so(tmp_path: Path) -> None:
    path = dataset(tmp_path, [thing(1, 18, square(120, 20, 60)), thing(2, 17, square(10, 10, 30))])
    text = path.read_text()
    path.write_text(text.replace('"id": 2, "image_id": 1', '"id": 2 "image_id": 1'))
    items, problems = taken(path)
    assert items["coco.count"].answer == "1"
    assert [p.reason[:8] for p in problems] == ["not JSON"]
    path.write_text(text[: text.index('"categories"') + 30])
    items, problems = taken(path)
    assert not items
    assert any("not JSON" in p.reason for p in problems)


def test_latin_1_and_a_byte_order_mark_are_read_and_reported(tmp_path: Path) -> None:
    path = dataset(tmp_path, [thing(1, 18, square(120, 20, 60))])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b'"dog"', b'"b\xe4r"'))
    items, problems = taken(path)
    assert items["coco.count"].parameters["target"] == "bär"
    assert [p.kind for p in problems] == ["changed"]


def test_a_file_that_is_no_instances_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_bytes(b"")
    (tmp_path / "c.json").write_bytes("{}".encode("utf-16"))
    for name in "abc":
        with pytest.raises(ConfigError):
            taken(tmp_path / f"{name}.json")


def test_annotations_in_a_table_need_no_id_of_their_own(tmp_path: Path) -> None:
    one = thing(1, 17, square(20, 20, 40))
    del one["id"]
    items, problems = taken(dataset(tmp_path, [], annotations={"7": one}))
    assert items["coco.count"].answer == "1"
    assert problems == []


def test_the_same_file_gives_the_same_items(tmp_path: Path) -> None:
    path = dataset(tmp_path, [thing(k, 17 + k % 2, square(10 + 40 * k, 30, 20 + k)) for k in range(4)])
    first, second = ({k: i.model_dump_json() for k, i in taken(path)[0].items()} for _ in range(2))
    assert first == second
    assert len(first) == 1
