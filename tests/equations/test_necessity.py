import numpy as np
import pytest

from pixelis.equations.necessity import (
    importance_matrix,
    necessity_effect,
    read_required,
    score_change,
    seg_required,
    temp_required,
    trk_required,
)

FULL = [1, 1, 0, 1]
NO_OCR = [0, 1, 0, 1]


def test_effect_on_the_subset_that_needs_the_tool():
    # items 0 and 1: 2/2 with OCR, 1/2 without
    effect = necessity_effect(FULL, NO_OCR, [True, True, False, False])
    assert (effect.full, effect.without, effect.items) == (1.0, 0.5, 2)
    assert effect.delta == pytest.approx(0.5)


def test_seeds_are_averaged():
    # seed 1: 1 - 0.5; seed 2: 0.5 - 0.5
    assert necessity_effect([[1, 1], [1, 0]], [[1, 0], [0, 1]]).delta == pytest.approx(0.25)


def test_an_empty_subset_was_not_run():
    effect = necessity_effect(FULL, NO_OCR, [False] * 4)
    assert np.isnan(effect.delta)
    assert effect.items == 0
    assert np.isnan(necessity_effect([1, np.nan], [1, 0]).delta)


def test_the_ablation_tables_sign_is_the_other_one():
    assert score_change(FULL, NO_OCR) == pytest.approx(-0.25)


def test_importance_by_task_and_tool():
    matrix = importance_matrix(
        FULL,
        {"OCR": NO_OCR, "SEG": [1, 1, 0, 0]},
        {"OCR": [True, True, False, True]},
        ["read", "read", "count", "count"],
    )
    assert (matrix.tasks, matrix.tools) == (("read", "count"), ("OCR", "SEG"))
    # OCR: read 1 - 1/2, count (item 3 alone) 0; SEG: read 0, count 1/2 - 0
    np.testing.assert_allclose(matrix.delta, [[0.5, 0.0], [0.0, 0.5]])
    np.testing.assert_array_equal(matrix.items, [[2, 2], [1, 2]])


def test_a_cell_without_items_is_not_a_number():
    matrix = importance_matrix([1.0], {"TRK": [0.0]}, {"TRK": [False]}, ["read"])
    assert np.isnan(matrix.delta[0, 0])


def test_subsets_follow_the_papers_thresholds():
    assert seg_required(0.5, answer_changes=True)
    assert not seg_required(0.49, answer_changes=True)
    assert not seg_required(0.9, answer_changes=False)
    assert trk_required(0.15, shuffling_degrades=True)
    assert read_required(0.7, masking_changes=True)
    assert not read_required(0.69, masking_changes=True)
    assert not trk_required(0.149, shuffling_degrades=True)
    assert temp_required(0.5, random_window_flips=True)
    assert not temp_required(0.5, random_window_flips=False)
    assert not seg_required(float("nan"), answer_changes=True)


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="same items and seeds"):
        necessity_effect([1, 0], [1])
    with pytest.raises(ValueError, match="4 items, but 1 marks"):
        necessity_effect(FULL, NO_OCR, [True])
