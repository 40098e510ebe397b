import numpy as np
import pytest

from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track
from pixelis.equations.visfid import (
    DecisiveStep,
    group_fidelity,
    mask_overlap,
    match_score,
    neighbour_match,
    overlap_matrix,
    property_f1,
    step_scores,
    time_f1,
)
from pixelis.metrics.overlap import box_iou


def box(x0, y0=0.0, width=0.2, **where):
    return Box(x0=x0, y0=y0, x1=x0 + width, y1=y0 + 0.2, **where)


def mask(left, right, grid=(8, 10)):
    picture = np.zeros(grid, dtype=bool)
    picture[:, left:right] = True
    return Mask.from_array(picture)


def text(words, frame=0):
    return TextSpan(text=words, quad=((0, 0), (1, 0), (1, 0.1), (0, 0.1)), frame=frame)


def track(frames, x0=0.0):
    return Track(track_id=0, frames=frames, boxes=tuple((x0, 0.0, x0 + 0.2, 0.2) for _ in frames))


SEG_LEFT, SEG_RIGHT = DecisiveStep("SEG", (box(0.0),)), DecisiveStep("SEG", (box(0.7),))


def test_zoom_and_segmentation_are_scored_by_iou():
    # shifted by half their width: 0.1 / 0.3
    assert match_score(DecisiveStep("ZOOM", (box(0.0),)), DecisiveStep("SEG", (box(0.1),))) == pytest.approx(1 / 3)


def test_masks_are_scored_by_iou():
    # columns 0-3 and 2-5 of ten: 2 common of 6
    assert match_score(DecisiveStep("SEG", (mask(0, 4),)), DecisiveStep("SEG", (mask(2, 6),))) == pytest.approx(1 / 3)


def test_an_empty_mask_agrees_with_an_empty_mask_only():
    empty, full = DecisiveStep("SEG", (mask(0, 0),)), DecisiveStep("SEG", (mask(0, 10),))
    assert match_score(empty, DecisiveStep("SEG", (mask(3, 3, grid=(4, 5)),))) == 1.0
    assert match_score(empty, DecisiveStep("SEG", (mask(0, 0),))) == 1.0
    assert match_score(empty, full) == 0.0
    assert match_score(empty, SEG_LEFT) == 0.0


def test_masks_on_different_grids_are_read_on_the_finer_one():
    # columns 0-1 of 5 are columns 0-3 of 10
    assert mask_overlap(mask(0, 2, grid=(4, 5)), mask(0, 4)) == 1.0
    assert mask_overlap(mask(0, 2, grid=(4, 5)), mask(2, 6)) == pytest.approx(1 / 3)


def test_a_mask_meets_a_box_by_its_bounding_box():
    # columns 0-3 of ten, full height, against x 0-0.2, y 0-0.2: 0.04 / 0.4
    assert match_score(DecisiveStep("SEG", (mask(0, 4),)), DecisiveStep("ZOOM", (box(0.0),))) == pytest.approx(0.1)


def test_several_regions_are_paired_one_to_one_and_surplus_counts_nothing():
    two, one = DecisiveStep("SEG", (box(0.0), box(0.7))), DecisiveStep("SEG", (box(0.7),))
    assert match_score(two, DecisiveStep("SEG", (box(0.7), box(0.0)))) == 1.0
    assert match_score(two, one) == pytest.approx(0.5)
    # 1/3 (0.1 against 0.0) + 1 over two
    assert match_score(two, DecisiveStep("SEG", (box(0.1), box(0.7)))) == pytest.approx((1 / 3 + 1) / 2)


def test_tracks_average_over_the_frames_of_either():
    # three common frames, at IoU 1, of five in all
    assert match_score(
        DecisiveStep("TRK", (track((0, 1, 2, 3)),)), DecisiveStep("TRK", (track((1, 2, 3, 4)),))
    ) == pytest.approx(0.6)
    # IoU 1/3 on two common frames of two
    assert match_score(
        DecisiveStep("TRK", (track((0, 1)),)), DecisiveStep("TRK", (track((0, 1), x0=0.1),))
    ) == pytest.approx(1 / 3)


def test_reading_is_scored_by_anls():
    # "gate 12" and "gate 17": one edit of seven
    assert match_score(
        DecisiveStep("OCR", (text("Gate 12"),)), DecisiveStep("READ", (text("gate 17"),))
    ) == pytest.approx(6 / 7)
    assert match_score(DecisiveStep("OCR", (text("Gate"), text("12"))), DecisiveStep("OCR", (text("Gate 12"),))) == 1.0
    assert match_score(DecisiveStep("OCR", (text("abc"),)), DecisiveStep("OCR", (text("xyz"),))) == 0.0
    assert match_score(DecisiveStep("OCR"), DecisiveStep("OCR")) == 1.0


def test_time_is_scored_by_f1():
    # 2 x 2 s common / (4 + 4)
    assert time_f1([Span(start_s=0, end_s=4)], [Span(start_s=2, end_s=6)]) == pytest.approx(0.5)
    # overlapping spans of one side are merged: 0-4 against 0-4
    assert time_f1([Span(start_s=0, end_s=3), Span(start_s=2, end_s=4)], [Span(start_s=0, end_s=4)]) == 1.0
    assert time_f1([Span(start_s=1, end_s=1)], [Span(start_s=1, end_s=1)]) == 1.0
    assert time_f1([Span(start_s=1, end_s=1)], [Span(start_s=2, end_s=2)]) == 0.0
    assert time_f1([], []) == 1.0
    assert time_f1([], [Span(start_s=0, end_s=1)]) == 0.0


def test_properties_are_scored_by_f1():
    # one of two pairs against one: 2 x 1 / 3
    assert property_f1([("colour", "red"), ("shape", "disc")], [("Colour", "Red")]) == pytest.approx(2 / 3)
    assert property_f1([], []) == 1.0
    red, blue = (
        DecisiveStep("PROP", properties=(("colour", "red"),)),
        DecisiveStep("PROP", properties=(("colour", "blue"),)),
    )
    assert match_score(red, blue) == 0.0


def test_other_media_frames_and_families_do_not_match():
    assert match_score(SEG_LEFT, DecisiveStep("SEG", (box(0.0, media="Image_1"),))) == 0.0
    assert match_score(SEG_LEFT, DecisiveStep("SEG", (box(0.0, frame=3),))) == 0.0
    assert match_score(SEG_LEFT, DecisiveStep("TRK", (track((0,)),))) == 0.0


def test_an_unknown_tool_is_refused():
    with pytest.raises(ValueError, match="no matching rule for tool 'DRAW'"):
        match_score(DecisiveStep("DRAW"), SEG_LEFT)


def test_the_matrix_equals_the_pairs_and_is_symmetric():
    steps = [
        SEG_LEFT,
        DecisiveStep("SEG", (mask(0, 4), box(0.5))),
        DecisiveStep("ZOOM", (box(0.1),)),
        DecisiveStep("TRK", (track((0, 1)), track((2, 3), x0=0.3))),
        DecisiveStep("TRK", (track((1, 2)),)),
        DecisiveStep("OCR", (text("Exit"),)),
        DecisiveStep("OCR", (text("Exil"),)),
        DecisiveStep("TEMP", (Span(start_s=0, end_s=2),)),
        DecisiveStep("PROP", properties=(("n", "3"),)),
        SEG_LEFT,
        DecisiveStep("SEG"),
    ]
    scores = step_scores(steps)
    assert (scores == scores.T).all()
    assert (scores.diagonal() == 1.0).all()
    for i, a in enumerate(steps):
        for j, b in enumerate(steps):
            if i != j:
                assert scores[i, j] == pytest.approx(match_score(a, b), abs=1e-12)


def test_overlaps_of_boxes_equal_the_metrics():
    rng = np.random.default_rng(0)
    boxes = [Box(x0=x, y0=y, x1=x + w, y1=y + h) for x, y, w, h in rng.uniform(0.01, 0.5, (12, 4))]
    ours = overlap_matrix(boxes)
    expected = [[box_iou(a.box_unit, b.box_unit) for b in boxes] for a in boxes]
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    assert overlap_matrix([]).shape == (0, 0)
    spans = [Span(start_s=0, end_s=4), Span(start_s=2, end_s=6)]
    assert overlap_matrix(spans)[0, 1] == pytest.approx(0.5)


def test_agreeing_trajectories_are_fully_faithful():
    fidelities = group_fidelity([[SEG_LEFT], [SEG_LEFT], [SEG_LEFT]])
    assert [f.visfid for f in fidelities] == [1.0, 1.0, 1.0]
    assert fidelities[0].steps[0].reference is not None


def test_the_odd_one_out_is_held_against_the_medoid_of_the_others():
    fidelities = group_fidelity([[SEG_LEFT], [SEG_LEFT], [SEG_LEFT], [SEG_RIGHT]])
    assert [f.visfid for f in fidelities] == [1.0, 1.0, 1.0, 0.0]


def test_two_that_agree_cannot_vouch_for_one_another_against_four():
    # for a right one: four left and one right remain, the medoid is left
    chains = [[SEG_RIGHT], [SEG_RIGHT], [SEG_LEFT], [SEG_LEFT], [SEG_LEFT], [SEG_LEFT]]
    assert [f.visfid for f in group_fidelity(chains)] == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_in_each_other_trajectory_the_best_matching_step_is_the_candidate():
    both = [SEG_LEFT, SEG_RIGHT]
    fidelities = group_fidelity([both, both[::-1]])
    assert [f.visfid for f in fidelities] == [1.0, 1.0]
    assert [s.reference for s in fidelities[0].steps] == [(1, 1), (1, 0)]


def test_visfid_is_the_mean_over_decisive_steps():
    # SEG agrees (1), OCR 6/7
    a = [SEG_LEFT, DecisiveStep("OCR", (text("Gate 12"),))]
    b = [SEG_LEFT, DecisiveStep("OCR", (text("Gate 17"),))]
    assert group_fidelity([a, b])[0].visfid == pytest.approx((1 + 6 / 7) / 2)


def test_a_step_that_nobody_else_made_is_neither_confirmed_nor_refuted():
    fidelities = group_fidelity([[SEG_LEFT, DecisiveStep("OCR", (text("A"),))], [SEG_LEFT]])
    assert fidelities[0].visfid == pytest.approx((1.0 + 0.5) / 2)
    assert fidelities[0].num_matched == 1
    assert group_fidelity([[SEG_LEFT]])[0].visfid == 0.5
    assert group_fidelity([[], [SEG_LEFT]])[0].visfid == 0.5


def test_only_successful_trajectories_and_neighbours_give_references():
    chains = [[SEG_LEFT], [SEG_RIGHT], [SEG_RIGHT]]
    marked = group_fidelity(chains, successful=[True, False, False])
    assert [f.visfid for f in marked] == [0.5, 0.0, 0.0]
    helped = group_fidelity(chains[:1], neighbours=[[SEG_LEFT]])
    assert helped[0].visfid == 1.0
    assert helped[0].steps[0].reference == (1, 0)


def test_no_trajectories_have_no_fidelity_and_lengths_must_fit():
    assert group_fidelity([]) == ()
    with pytest.raises(ValueError, match="1 trajectories, but 2 marks"):
        group_fidelity([[SEG_LEFT]], successful=[True, True])


def test_the_order_of_the_rollouts_does_not_change_a_fidelity():
    rng = np.random.default_rng(2)
    chains = [
        [DecisiveStep("SEG", (box(float(x)),)) for x in rng.uniform(0, 0.5, rng.integers(0, 4))] for _ in range(7)
    ]
    before = [f.visfid for f in group_fidelity(chains)]
    order = rng.permutation(7)
    after = [f.visfid for f in group_fidelity([chains[i] for i in order])]
    assert [before[i] for i in order] == after


def test_neighbour_match_is_the_share_of_neighbours_with_the_same_evidence():
    neighbours = [[SEG_LEFT], [SEG_RIGHT], [SEG_RIGHT, DecisiveStep("SEG", (box(0.02),))], []]
    # IoU of 0.02 shift: 0.18 / 0.22 = 0.82, over 0.5
    assert neighbour_match([SEG_LEFT], neighbours) == pytest.approx(2 / 4)
    assert neighbour_match([SEG_LEFT], []) == 0.0
    assert neighbour_match([], [[SEG_LEFT]]) == 0.0
