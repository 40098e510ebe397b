"""NanoDet: its arithmetic by hand, and the real network on photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixelis.core.geometry import PixelBox
from pixelis.tools.backends.nanodet import (
    BINS,
    COCO_NAMES,
    SIDE,
    Detection,
    NanoDet,
    decode,
    non_maximum_suppression,
    preprocess,
    tile_grid,
)
from pixelis.weights import is_available


def overlap(a: PixelBox, b: PixelBox) -> float:
    wide = max(min(a.right, b.right) - max(a.left, b.left), 0)
    high = max(min(a.bottom, b.bottom) - max(a.top, b.top), 0)
    areas = sum((box.right - box.left) * (box.bottom - box.top) for box in (a, b))
    return wide * high / (areas - wide * high)


def test_there_are_eighty_names_in_cocos_order() -> None:
    assert len(set(COCO_NAMES)) == 80
    assert (COCO_NAMES[0], COCO_NAMES[5], COCO_NAMES[79]) == ("person", "bus", "toothbrush")


def test_a_wide_picture_fills_the_width_in_bgr_and_the_rest_is_the_mean_colour() -> None:
    image = np.zeros((208, 832, 3), np.uint8)
    image[..., 0] = 255  # red
    pixels, scale = preprocess(image)
    assert scale == 0.5
    assert pixels.shape == (1, 3, SIDE, SIDE)
    red, blue = pixels[0, 2], pixels[0, 0]
    assert red[103, 415] == pytest.approx((255 - 123.675) / 58.395)
    assert blue[103, 415] == pytest.approx(-103.53 / 57.375)
    assert not pixels[0, :, 104:].any()


def test_a_side_of_a_box_is_the_mean_of_its_distribution_in_strides() -> None:
    sides = np.full((13 * 13, 4, BINS), -100, np.float32)
    sides[..., 0] = 0  # every side sure of zero
    sides[14, 0, :] = -100
    sides[14, 0, 2] = sides[14, 0, 3] = 0  # the left side of cell (1, 1): half two, half three
    boxes = decode(sides.reshape(-1, 4 * BINS), 32)
    assert boxes[0].tolist() == [16, 16, 16, 16]
    assert boxes[14].tolist() == pytest.approx([48 - 2.5 * 32, 48, 48, 48])


def test_of_overlapping_boxes_of_one_class_the_best_stays() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 9], [20, 0, 30, 10], [5, 5, 5, 9]], np.float32)
    assert non_maximum_suppression(boxes, np.array([1, 1, 2, 1, 1]), 0.6) == [0, 2, 3]


def test_four_tiles_cover_the_picture_and_overlap_by_a_fifth() -> None:
    # 1.8 w = 900: tiles of 500, of 250 down
    assert tile_grid(900, 450, 2) == [(0, 0, 500, 250), (400, 0, 900, 250), (0, 200, 500, 450), (400, 200, 900, 450)]
    assert tile_grid(900, 450, 1) == []


@pytest.fixture(scope="module")
def nanodet() -> NanoDet:
    if not is_available("nanodet"):
        pytest.skip("run `pixelis models pull nanodet`")
    return NanoDet()


def found(detections: list[Detection], labels: set[str], box: PixelBox) -> bool:
    return any(d.label in labels and overlap(d.box_px, box) > 0.7 for d in detections)


@pytest.mark.weights
def test_the_truck_and_the_cars_are_where_they_stand(nanodet: NanoDet, realdata: Path) -> None:
    vehicles = {"car", "truck"}
    truck = nanodet.detect(np.asarray(Image.open(realdata / "seg" / "sam2_truck.jpg").convert("RGB")))
    assert truck[0].label == "truck"
    assert found(truck, {"truck"}, PixelBox(75, 275, 1720, 855))
    cars = nanodet.detect(np.asarray(Image.open(realdata / "seg" / "sam2_cars.jpg").convert("RGB")))
    assert found(cars, vehicles, PixelBox(275, 560, 1355, 1060))
    assert found(cars, vehicles, PixelBox(1310, 265, 2245, 1450))


@pytest.mark.weights
def test_tiles_add_small_things_and_keep_the_large_ones(nanodet: NanoDet, realdata: Path) -> None:
    cars = np.asarray(Image.open(realdata / "seg" / "sam2_cars.jpg").convert("RGB"))
    whole, tiled = nanodet.detect(cars), nanodet.detect(cars, tiles=2)
    assert len(tiled) > len(whole)
    assert all(found(tiled, {d.label}, d.box_px) for d in whole)


@pytest.mark.weights
def test_nothing_is_seen_in_noise_and_the_same_picture_gives_the_same(nanodet: NanoDet) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (300, 50, 3), dtype=np.uint8)
    assert nanodet.detect(noise) == []
    assert nanodet.detect(noise, threshold=0.01) == nanodet.detect(noise, threshold=0.01) != []
