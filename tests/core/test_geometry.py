"""Geometry: the numbers are worked out by hand; COCO's own code is the oracle for run lengths."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco
from pydantic import TypeAdapter, ValidationError

from pixelis.core import rle
from pixelis.core.geometry import Box, Footprint, Mask, PixelBox, Size, Span, TextSpan, Track, to_pixels

BOX = {"x0": 0.25, "y0": 0.5, "x1": 0.75, "y1": 1.0}


def test_a_unit_box_in_a_frame_of_400_by_200_pixels():
    assert to_pixels(Box(**BOX).box_unit, Size(400, 200)) == PixelBox(100, 100, 300, 200)


def test_pixels_and_back_give_the_same_box():
    size = Size(640, 480)
    assert to_pixels(PixelBox(64, 48, 320, 240).to_unit(size), size) == pytest.approx((64, 48, 320, 240))


def test_the_area_of_a_box_is_a_share_of_the_frame():
    assert Box(**BOX).area == 0.25


@pytest.mark.parametrize(
    "change",
    [{"x0": 0.75}, {"x0": 0.9}, {"x0": -0.1}, {"x1": 1.1}, {"y0": float("nan")}, {"y1": float("inf")}, {"z": 0.5}],
)
def test_a_box_without_area_outside_the_frame_or_with_a_strange_key_is_refused(change):
    with pytest.raises(ValidationError):
        Box(**{**BOX, **change})


def test_a_value_cannot_be_changed():
    with pytest.raises(ValidationError):
        Box(**BOX).x0 = 0.1


def test_a_pixel_box_outside_the_frame_has_no_unit_box():
    with pytest.raises(ValueError, match="no area inside"):
        PixelBox(700, 0, 800, 10).to_unit(Size(640, 480))


def test_whole_pixels_are_never_empty_and_never_outside():
    assert PixelBox(9.2, 9.2, 9.4, 9.4).pixel_bounds(Size(10, 10)) == (9, 9, 10, 10)
    assert PixelBox(-5, -5, 50, 50).pixel_bounds(Size(10, 20)) == (0, 0, 10, 20)


@given(arrays(bool, st.tuples(st.integers(1, 24), st.integers(1, 24))))
def test_a_mask_comes_back_as_it_was_and_its_runs_are_those_of_coco(array):
    mask = Mask.from_array(array)
    assert (mask.array == array).all()
    assert mask.area == pytest.approx(array.mean())
    assert coco.encode(np.asfortranarray(array, dtype=np.uint8))["counts"].decode() == mask.counts
    expected = coco.frPyObjects(
        {"size": list(array.shape), "counts": rle.from_text(mask.counts).tolist()}, *array.shape
    )
    assert expected["counts"].decode() == mask.counts


def test_the_box_of_a_mask_and_of_an_empty_mask():
    array = np.zeros((4, 8), dtype=bool)
    assert Mask.from_array(array).box_unit is None
    array[1:3, 2:6] = True
    assert Mask.from_array(array).box_unit == (0.25, 0.25, 0.75, 0.75)


@given(st.text(max_size=12))
def test_hostile_run_lengths_are_refused_before_the_decoder_sees_them(counts):
    try:
        mask = Mask(width=3, height=3, counts=counts)
    except ValidationError:
        return
    assert mask.array.shape == (3, 3)


def test_a_few_letters_that_promise_gigabytes_are_no_mask():
    counts = coco.frPyObjects({"size": [2**16, 2**15], "counts": [2**31]}, 2**16, 2**15)["counts"].decode()
    assert len(counts) < 12
    with pytest.raises(ValidationError, match="too large"):
        Mask(width=2**15, height=2**16, counts=counts)


def test_an_edge_that_rounding_closes_leaves_no_box():
    with pytest.raises(ValueError, match="no area"):
        PixelBox(639.9999, 0, 641, 10).to_unit(Size(640, 480))


def test_a_mask_decoded_cannot_be_written_into():
    with pytest.raises(ValueError, match="read-only"):
        Mask.from_array(np.ones((2, 2), dtype=bool)).array[0, 0] = False


@pytest.mark.parametrize(
    "change",
    [
        {"frames": (0, 2, 2)},
        {"frames": (0, 1)},
        {"frames": ()},
        {"boxes": ((0, 0, 1, 1), (0, 0, 1, 1), (0.5, 0, 0.5, 1))},
    ],
)
def test_a_track_needs_one_box_with_area_for_each_rising_frame(change):
    good = {"track_id": 1, "frames": (0, 1, 2), "boxes": ((0, 0, 1, 1),) * 3}
    assert Track(**good).box_at(1) == (0, 0, 1, 1)
    assert Track(**good).box_at(7) is None
    with pytest.raises(ValidationError):
        Track(**{**good, **change})


def test_a_span_may_be_a_moment_but_never_run_backwards():
    assert Span(start_s=2.0, end_s=2.0).seconds == 0.0
    with pytest.raises(ValidationError, match="before it starts"):
        Span(start_s=2.0, end_s=1.0)


def test_a_footprint_finds_its_type_again_from_json():
    adapter = TypeAdapter(Footprint)
    for value in (
        Box(**BOX),
        Mask.from_array(np.eye(3, dtype=bool)),
        Span(start_s=0, end_s=1),
        TextSpan(text="a", quad=((0, 0), (1, 0), (1, 1), (0, 1))),
        Track(track_id=0, frames=(3,), boxes=((0, 0, 1, 1),)),
    ):
        assert adapter.validate_python(json.loads(value.model_dump_json())) == value


def test_equal_masks_are_equal_also_after_their_arrays_were_looked_at():
    grid = np.zeros((4, 5), dtype=bool)
    grid[1:3, 2:4] = True
    a, b = Mask.from_array(grid, label="ring"), Mask.from_array(grid, label="ring")
    assert a.array.sum() == b.array.sum() == 4
    assert a == b
    assert hash(a) == hash(b)
    assert a != Mask.from_array(~grid, label="ring")
