"""Overlap of boxes and masks: values by hand, and DAVIS's official figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from skimage.morphology import dilation, disk

from pixelis.core.geometry import Mask
from pixelis.metrics.overlap import (
    boundary_f1,
    boundary_map,
    box_iou,
    box_iou_matrix,
    davis_scores,
    dice,
    mask_iou,
    region_iou,
)

MASKS = hnp.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12)))
BOXES = hnp.arrays(float, (3, 4), elements=st.floats(0, 1))


def square(top, left, side, size=40):
    mask = np.zeros((size, size), dtype=bool)
    mask[top : top + side, left : left + side] = True
    return mask


def test_two_unit_squares_that_share_a_half_have_iou_a_third():
    assert box_iou((0, 0, 1, 1), (0.5, 0, 1.5, 1)) == pytest.approx(1 / 3)


def test_a_box_without_area_overlaps_nothing_not_even_itself():
    assert box_iou((0.2, 0.2, 0.2, 0.8), (0.2, 0.2, 0.2, 0.8)) == 0.0


def test_boxes_with_swapped_corners_overlap_nothing():
    assert box_iou((1, 1, 0, 0), (0, 0, 1, 1)) == 0.0


def test_the_matrix_has_a_row_for_each_first_and_a_column_for_each_second_box():
    matrix = box_iou_matrix([(0, 0, 2, 2), (4, 4, 6, 6)], [(0, 0, 2, 2), (1, 1, 3, 3), (9, 9, 10, 10)])
    assert matrix == pytest.approx(np.array([[1, 1 / 7, 0], [0, 0, 0]]))


def test_no_boxes_give_an_empty_matrix():
    assert box_iou_matrix([], [(0, 0, 1, 1)]).shape == (0, 1)
    assert box_iou_matrix([(0, 0, 1, 1)], []).shape == (1, 0)


def test_rows_that_are_no_boxes_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"shape \(1, 3\)"):
        box_iou_matrix([(0, 0, 1)], [(0, 0, 1, 1)])


@given(BOXES, BOXES)
def test_box_iou_is_symmetric_and_lies_between_0_and_1(a, b):
    matrix = box_iou_matrix(a, b)
    assert ((matrix >= 0) & (matrix <= 1)).all()
    assert matrix == pytest.approx(box_iou_matrix(b, a).T)
    assert matrix[1, 2] == box_iou(a[1], b[2])


def test_mask_iou_and_dice_of_squares_that_share_a_quarter():
    a, b = square(0, 0, 10), square(5, 5, 10)
    assert mask_iou(a, b) == pytest.approx(25 / 175)
    assert dice(a, b) == pytest.approx(50 / 200)


def test_two_empty_masks_agree():
    empty = np.zeros((4, 5), dtype=bool)
    assert mask_iou(empty, empty) == dice(empty, empty) == boundary_f1(empty, empty) == 1.0


def test_an_empty_mask_against_a_full_one_shares_nothing_but_has_no_boundary_either():
    empty, full = np.zeros((4, 5), dtype=bool), np.ones((4, 5), dtype=bool)
    assert mask_iou(empty, full) == dice(empty, full) == 0.0
    assert boundary_f1(empty, full) == 1.0  # as in DAVIS: neither has a boundary


def test_a_boundary_against_none_scores_0():
    assert boundary_f1(square(5, 5, 10), np.zeros((40, 40), dtype=bool)) == 0.0
    assert boundary_f1(np.zeros((40, 40), dtype=bool), square(5, 5, 10)) == 0.0


def test_masks_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="expected one shape"):
        mask_iou(np.zeros((2, 3), dtype=bool), np.zeros((3, 2), dtype=bool))


@given(MASKS)
def test_a_mask_agrees_with_itself(mask):
    assert mask_iou(mask, mask) == dice(mask, mask) == boundary_f1(mask, mask) == 1.0


@given(hnp.arrays(bool, (2, 7, 9)))
def test_run_length_masks_overlap_as_their_arrays_do(pair):
    a, b = pair
    assert region_iou(Mask.from_array(a), Mask.from_array(b)) == pytest.approx(mask_iou(a, b))


def test_run_length_masks_on_different_grids_are_refused():
    a, b = Mask.from_array(np.ones((2, 3), dtype=bool)), Mask.from_array(np.ones((3, 2), dtype=bool))
    with pytest.raises(ValueError, match="expected one grid"):
        region_iou(a, b)


def test_the_boundary_of_a_corner_pixel_is_itself_only():
    mask = np.zeros((3, 3), dtype=bool)
    mask[0, 0] = True
    assert boundary_map(mask).sum() == 1


def test_the_image_border_is_no_boundary():
    assert not boundary_map(np.ones((5, 5), dtype=bool)).any()


def test_boundaries_one_pixel_apart_match_within_one_pixel_and_not_within_none():
    # diagonal of 40x40 is 56.6: 0.008 of it rounds up to one pixel
    a, b = square(10, 10, 20), square(10, 11, 20)
    assert boundary_f1(a, b) == 1.0
    # a's outline has 80 pixels, of which b's shares the two rows but for one pixel at each end: 2 * 20 of 80
    assert boundary_f1(a, b, tolerance=0) == pytest.approx(40 / 80)


@given(hnp.arrays(bool, (2, 15, 15)), st.integers(1, 4))
def test_boundary_f1_equals_one_computed_with_scikit_image(pair, radius):
    gold, predicted = pair
    edges = boundary_map(gold), boundary_map(predicted)
    if not (edges[0].any() and edges[1].any()):
        return
    near = [dilation(e.astype(np.uint8), disk(radius)).astype(bool) for e in edges]
    precision, recall = (edges[1] & near[0]).sum() / edges[1].sum(), (edges[0] & near[1]).sum() / edges[0].sum()
    expected = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert boundary_f1(gold, predicted, tolerance=radius) == pytest.approx(expected)


def test_davis_scores_average_over_frames_and_count_those_over_a_half():
    a, b = square(10, 10, 20), np.zeros((40, 40), dtype=bool)
    scores = davis_scores([a, a], [a, b])
    assert (scores.j_mean, scores.f_mean, scores.j_recall, scores.f_recall, scores.j_and_f) == (0.5, 0.5, 0.5, 0.5, 0.5)


def test_davis_scores_refuse_another_number_of_frames():
    with pytest.raises(ValueError, match="1 gold and 0 predicted frames"):
        davis_scores([square(0, 0, 5)], [])


@pytest.mark.parametrize(
    ("frame", "j", "f"),  # davis2017-evaluation, a as annotation and b as segmentation
    [("00000", 0.750921, 0.714420), ("00010", 0.707564, 0.619361), ("00020", 0.386303, 0.424969),
     ("00030", 0.549569, 0.595264)],
)  # fmt: skip
def test_j_and_f_equal_the_official_davis_figures(realdata, frame, j, f):
    folder = realdata / "seg" / "davis" / "bike-packing"
    a, b = (np.asarray(Image.open(folder / side / f"{frame}.png")) > 0 for side in "ab")
    assert round(mask_iou(a, b), 6) == j
    assert round(boundary_f1(a, b), 6) == f
