import numpy as np
import pytest

from pixelis.equations.acceptance import (
    StepRecord,
    decisive_agreement,
    decisive_step_rate,
    decisive_steps,
    is_accepted,
    operator_passes,
    trajectory_score,
    trajectory_scores,
    zscore_per_task,
)

USED = StepRecord(succeeded=True, confidence=0.9, threshold=0.5, used_later=True)
UNUSED = StepRecord(succeeded=True, confidence=0.9, threshold=0.5, used_later=False)
UNSURE = StepRecord(succeeded=True, confidence=0.4, threshold=0.5, used_later=True)
FAILED = StepRecord(succeeded=False, confidence=0.9, threshold=0.5, used_later=True)


def test_the_score_weighs_logic_four_tenths_and_the_others_three():
    # 0.4·0.9 + 0.3·0.8 + 0.3·0.5 = 0.36 + 0.24 + 0.15
    assert trajectory_score(0.9, 0.8, 0.5) == pytest.approx(0.75)


def test_a_trace_is_accepted_at_the_threshold_itself():
    assert is_accepted(0.65, [True, True])
    assert not is_accepted(0.6499, [True, True])


def test_one_failing_operator_refuses_a_trace_of_any_score():
    assert not is_accepted(1.0, [True, False])


def test_a_trace_without_calls_is_judged_by_its_score():
    assert is_accepted(0.7, [])


def test_a_nan_score_is_refused():
    assert not is_accepted(float("nan"), [True])
    assert np.isnan(trajectory_score(float("nan"), 1, 1))


def test_components_are_standardised_inside_their_task():
    # task a: mean 2, spread 1; task b is constant; task c has one trace
    assert zscore_per_task([1, 3, 10, 10, 7], ["a", "a", "b", "b", "c"]) == pytest.approx([-1, 1, 0, 0, 0])


def test_an_unknown_component_is_refused_raw_and_counts_as_its_tasks_mean_otherwise():
    # logic of the others is 1 and 0: z = 1, −1; 0.4·0 for the first, struct and visual are constant
    scores = trajectory_scores([float("nan"), 1, 0], [1] * 3, [1] * 3, ["a"] * 3)
    assert np.isnan(scores.raw[0])
    assert scores.zscored == pytest.approx([0.0, 0.4, -0.4])


def test_raw_and_standardised_scores_stand_side_by_side():
    scores = trajectory_scores([0.2, 0.8], [0.5, 0.5], [1.0, 0.0], ["a", "a"])
    assert scores.raw == pytest.approx([0.08 + 0.15 + 0.3, 0.32 + 0.15 + 0.0])
    assert scores.zscored == pytest.approx([-0.4 + 0.3, 0.4 - 0.3])


def test_the_threshold_on_standardised_scores_would_take_about_one_in_eight():
    # independent z-scores: spread sqrt(0.16 + 0.09 + 0.09) = 0.583; P(Z > 0.65/0.583) = 0.1325 (scipy.stats.norm)
    parts = np.random.default_rng(0).standard_normal((3, 20_000))
    assert (trajectory_scores(*parts, ["t"] * 20_000).zscored >= 0.65).mean() == pytest.approx(0.1325, abs=0.01)


def test_components_of_different_length_are_refused():
    with pytest.raises(ValueError, match="differ in shape"):
        trajectory_score([1, 2], [1, 2], [1])
    with pytest.raises(ValueError, match="one value a trace"):
        zscore_per_task([1.0, 2.0], ["a"])


@pytest.mark.parametrize(
    ("tool", "threshold"), [("SEG", 0.5), ("ZOOM", 0.5), ("TRK", 0.15), ("OCR", 0.85), ("TEMP", 0.5), ("PROP", 1.0)]
)
def test_a_call_passes_at_its_tools_threshold_and_not_under_it(tool, threshold):
    assert operator_passes(tool, threshold)
    assert not operator_passes(tool, threshold - 1e-6)
    assert not operator_passes(tool, float("nan"))


def test_temp_must_also_lie_within_half_a_second():
    assert operator_passes("TEMP", 0.9, offset_s=-0.5)
    assert not operator_passes("TEMP", 0.9, offset_s=0.51)
    assert not operator_passes("TEMP", 0.9, offset_s=float("nan"))


def test_an_unknown_tool_has_no_check():
    with pytest.raises(ValueError, match="no operator check for tool 'READ'"):
        operator_passes("READ", 1.0)


def test_a_decisive_step_succeeded_was_sure_enough_and_was_used():
    assert decisive_steps([UNUSED, USED, UNSURE, FAILED, USED]) == (1, 4)


def test_the_decisive_step_rate_counts_calls_that_succeeded():
    # two decisive among four that succeeded
    assert decisive_step_rate([UNUSED, USED, UNSURE, FAILED, USED]) == pytest.approx(0.5)


def test_the_decisive_step_rate_of_nothing_is_zero():
    assert decisive_step_rate([]) == decisive_step_rate([FAILED]) == 0.0


def test_a_step_without_a_known_confidence_is_not_decisive():
    assert decisive_steps([StepRecord(True, float("nan"), 0.0, True)]) == ()


def test_agreement_with_deleting_steps_leaves_failed_calls_out():
    # USED/True agrees, UNUSED/True does not, FAILED is not compared
    assert decisive_agreement([USED, UNUSED, FAILED], [True, True, True]) == pytest.approx(0.5)
    assert decisive_agreement([], []) == 1.0
    with pytest.raises(ValueError, match="one deletion a step"):
        decisive_agreement([USED], [])
