import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.autograd import gradcheck

from pixelis.core.geometry import Box, Mask, Size, Span, TextSpan, Track
from pixelis.equations.coherence import adjacent_cosines
from pixelis.equations.embedding import (
    CollapseError,
    CosineStatistics,
    cosine_statistics,
    dilate,
    footprint_cells,
    head_inputs,
    mask_cells,
    masked_mean,
    onehot,
    readout_loss,
    require_spread,
    step_embeddings,
    temporal_mean,
    unit_norm,
)

GRID = Size(4, 4)
SQUARES = (np.arange(16.0) ** 2).reshape(4, 4, 1)
"""Tokens 0, 1, 4, …, 225, row by row."""


def cell(row, column):
    mask = np.zeros((4, 4), dtype=bool)
    mask[row, column] = True
    return mask


def test_a_box_turns_on_the_cells_that_it_touches():
    inner = footprint_cells(Box(x0=0.25, y0=0.25, x1=0.5, y1=0.5), GRID)
    assert (inner == cell(1, 1)).all()
    # 0.3 to 0.8 of four columns touches columns 1, 2, 3; 0.0 to 0.1 of four rows touches row 0
    wide = footprint_cells(Box(x0=0.3, y0=0.0, x1=0.8, y1=0.1), GRID)
    assert np.argwhere(wide).tolist() == [[0, 1], [0, 2], [0, 3]]


def test_a_mask_turns_on_the_cells_that_hold_a_pixel_of_it():
    pixels = np.zeros((8, 8), dtype=bool)
    pixels[7, 0] = True
    assert (mask_cells(pixels, GRID) == cell(3, 0)).all()


def test_a_mask_coarser_than_the_grid_leaves_no_holes():
    assert mask_cells(np.array([[True, False]]), GRID).tolist() == [[True, True, False, False]] * 4


def test_an_empty_mask_touches_nothing():
    empty = Mask.from_array(np.zeros((8, 8), dtype=bool))
    assert not footprint_cells(empty, GRID).any()


def test_a_track_stands_on_the_frames_that_have_its_box():
    track = Track(track_id=1, frames=(2,), boxes=((0.0, 0.0, 0.25, 0.25),))
    assert (footprint_cells(track, GRID, frame=2) == cell(0, 0)).all()
    assert not footprint_cells(track, GRID, frame=1).any()


def test_a_text_stands_on_its_own_frame_and_a_span_covers_every_frame():
    text = TextSpan(frame=1, text="no", quad=((0.5, 0.5), (0.7, 0.5), (0.7, 0.6), (0.5, 0.6)))
    assert (footprint_cells(text, GRID, frame=1) == cell(2, 2)).all()
    assert not footprint_cells(text, GRID, frame=0).any()
    assert footprint_cells(Span(start_s=0, end_s=1), GRID, frame=7).all()


@given(st.floats(0, 0.9), st.floats(0, 0.9), st.floats(0.001, 0.1), st.integers(1, 20), st.integers(1, 20))
def test_a_box_is_never_lost_on_the_grid(x, y, side, width, height):
    assert footprint_cells(Box(x0=x, y0=y, x1=x + side, y1=y + side), Size(width, height)).any()


def test_a_thin_mask_is_dilated_to_three_by_three():
    assert dilate(cell(1, 1)).sum() == 9
    # cells 0 1 2 / 4 5 6 / 8 9 10: squares sum to 327
    assert masked_mean(SQUARES, cell(1, 1)) == pytest.approx([327 / 9])


def test_a_thin_mask_in_the_corner_grows_to_four_cells():
    # cells 0 1 4 5: squares sum to 42
    assert masked_mean(SQUARES, cell(0, 0)) == pytest.approx([42 / 4])


def test_nine_cells_are_enough_and_stay_as_they_are():
    mask = np.zeros((4, 4), dtype=bool)
    mask[1:, 1:] = True
    # cells 5 6 7 / 9 10 11 / 13 14 15: squares 25+36+49+81+100+121+169+196+225
    assert masked_mean(SQUARES, mask) == pytest.approx([1002 / 9])


def test_an_all_zero_mask_pools_to_the_zero_vector():
    assert masked_mean(np.full((4, 4, 3), 7.0), np.zeros((4, 4))).tolist() == [0, 0, 0]


def test_tokens_outside_the_mask_may_be_nan():
    tokens = np.full((4, 4, 1), np.nan)
    tokens[:3, :3] = 2.0
    assert masked_mean(tokens, cell(1, 1)) == pytest.approx([2.0])


def test_frames_are_pooled_first_and_averaged_then():
    tokens = np.stack([SQUARES, SQUARES, 0 * SQUARES])
    masks = np.stack([np.ones((4, 4)), cell(1, 1), np.zeros((4, 4))])
    # whole frame: Σ0²…15² / 16 = 1240/16 = 77.5; thin mask: 327/9; the frame without a mask is left out
    assert temporal_mean(tokens, masks) == pytest.approx([(77.5 + 327 / 9) / 2])


def test_no_frames_and_empty_masks_pool_to_zero():
    assert temporal_mean(np.ones((0, 4, 4, 2)), np.ones((0, 4, 4))).tolist() == [0, 0]
    assert temporal_mean(np.ones((2, 4, 4, 2)), np.zeros((2, 4, 4))).tolist() == [0, 0]


def test_masks_of_another_grid_are_refused():
    with pytest.raises(ValueError, match=r"expected \(H, W, d\) and \(H, W\)"):
        masked_mean(SQUARES, np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"expected \(F, H, W, d\) and \(F, H, W\)"):
        temporal_mean(np.ones((2, 4, 4, 1)), np.ones((1, 4, 4)))


def test_the_action_before_the_first_one_is_all_zero():
    assert onehot(None).tolist() == [0] * 6
    assert onehot("TRK").tolist() == [0, 0, 1, 0, 0, 0]
    with pytest.raises(ValueError, match="unknown action 'READ'"):
        onehot("READ")


def test_the_heads_see_vision_text_and_action_side_by_side():
    assert head_inputs([[1, 2]], [[3, 4]], ["SEG"]).tolist() == [[1, 2, 3, 4, 1, 0, 0, 0, 0, 0]]
    assert head_inputs(np.zeros((0, 2)), np.zeros((0, 2)), []).shape == (0, 10)
    with pytest.raises(ValueError, match="one of each per step"):
        head_inputs([[1, 2]], [[3, 4]], [])


def test_step_embeddings_have_unit_norm():
    E = step_embeddings([[3.0], [0.0]], [[4.0], [0.0]], [None, None], lambda inputs: inputs[:, :2])
    # (3, 4) has length 5; the zero vector stays zero
    assert E.tolist() == [pytest.approx([0.6, 0.8]), [0, 0]]


@given(arrays(float, (3, 4), elements=st.floats(-1e6, 1e6)))
def test_an_embedding_has_length_one_or_none(projected):
    lengths = np.linalg.norm(unit_norm(projected), axis=1)
    assert all(length == pytest.approx(1.0) or length == 0.0 for length in lengths)


def test_tiny_step_features_keep_their_direction():
    assert unit_norm([[3e-300, 4e-300]]).tolist() == [pytest.approx([0.6, 0.8])]


def test_broken_step_features_are_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        unit_norm([[float("nan"), 1.0]])


def test_the_readout_loss_is_half_smooth_l1_and_half_cosine_distance():
    # differences 1, 1: SmoothL1 0.5; orthogonal: 1 − cos = 1
    assert readout_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item() == pytest.approx(0.75)
    assert readout_loss(torch.zeros(0, 2), torch.zeros(0, 2)).item() == 0.0


def test_the_readout_loss_passes_gradcheck():
    generator = torch.Generator().manual_seed(0)
    readout, target = (torch.randn(5, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    assert gradcheck(lambda x: readout_loss(x, target), readout.requires_grad_())


def test_statistics_of_cosines_leave_nan_out():
    assert cosine_statistics([0.2, 0.6, float("nan")]) == pytest.approx((0.4, 0.2, 2))
    assert cosine_statistics([]) == (0.0, 0.0, 0)
    assert cosine_statistics([0.1] * 7).std == 0.0  # numpy's is 1e-17


def test_a_spread_under_two_hundredths_fails_loudly():
    healthy = CosineStatistics(0.5, 0.02, 10)
    require_spread({"read": healthy})
    with pytest.raises(CollapseError, match=r"count 0\.0199 over 10, expected at least 0\.02"):
        require_spread({"read": healthy, "count": CosineStatistics(0.99, 0.0199, 10)})


def test_a_family_with_a_single_cosine_cannot_show_that_it_has_not_collapsed():
    assert CosineStatistics(0.5, 0.0, 1).is_collapsed()
    assert CosineStatistics(float("nan"), float("nan"), 5).is_collapsed()


def test_embeddings_that_all_point_one_way_have_collapsed():
    rng = np.random.default_rng(0)
    scattered = cosine_statistics(adjacent_cosines(rng.normal(size=(50, 8))))
    alike = cosine_statistics(adjacent_cosines(1.0 + 0.01 * rng.normal(size=(50, 8))))
    assert not scattered.is_collapsed()
    assert alike.is_collapsed()
