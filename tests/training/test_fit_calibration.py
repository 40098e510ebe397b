"""What is fitted on dev-cal: by hand, through the file, and once with real rollouts."""

import json
from collections import Counter
from functools import partial
from math import inf

import numpy as np
import pytest

from pixelis.core.errors import ConfigError
from pixelis.evaluation.streams import make_stream
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.tools.toolbox import Toolbox, ToolboxConfig, decisive_thresholds
from pixelis.training.common.item_rollouts import is_correct, stream_item_rollouts
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.voting.fit_calibration import (
    FITS,
    CalibrationSettings,
    VoteCalibration,
    calibrator_to_dict,
    compare_calibrators,
    correct_share,
    fit_delta,
    in_first_half,
    load_or_fit_calibration,
    read_calibration,
)
from pixelis.voting.vote import VoteSettings


def test_confidences_of_nine_tenths_that_hold_half_of_the_time_become_a_half():
    raw, correct, item = np.full(40, 0.9), np.arange(40) % 4 < 2, np.arange(40)
    rows = {row["kind"]: row for row in compare_calibrators(item % 2 == 0, raw, correct)}
    assert rows["none"]["ece"] == pytest.approx(40.0)  # |0.9 − 0.5|
    # all 40 lie in one bin; each half of the questions has as many right as wrong, so that T goes to its end, 20:
    # sigmoid(ln 9 / 20) = 0.5274
    assert rows["temperature"]["ece"] == pytest.approx(2.74, abs=0.01)
    # Platt's targets are 11/12 and 1/12 for ten each: their mean is a half
    assert rows["platt"]["ece"] == pytest.approx(0.0, abs=1e-3)
    assert rows["isotonic"]["ece"] == pytest.approx(0.0, abs=1e-9)
    # −ln 0.9 for a right one, −ln 0.1 for a wrong one: 1.204 on the mean; a half gives ln 2 = 0.693
    assert rows["none"]["nll"] == pytest.approx(1.204, abs=1e-3)
    assert rows["isotonic"]["nll"] == pytest.approx(0.6931, abs=1e-4)


def test_with_one_question_nothing_can_be_compared():
    assert compare_calibrators(np.ones(4, dtype=bool), np.full(4, 0.5), np.array([True, False, True, True])) == []


def test_both_halves_of_dev_cal_hold_every_family():
    families = [made.item.family for made in make_stream([], split="dev-cal", limit=3).items()]
    first = in_first_half(families)
    assert len(families) == 18
    assert Counter(np.array(families)[first].tolist()) == dict.fromkeys(families, 2)
    assert Counter(np.array(families)[~first].tolist()) == dict.fromkeys(families, 1)


def test_a_set_is_of_single_answers_and_so_is_the_share_that_its_threshold_is_made_of():
    """20 is right, and 19 nearly (MRA): together they have 0.6 of the vote, but no answer of the set has."""
    made = next(m for m in make_stream(["space"], split="dev-cal", limit=50).items() if m.item.scoring == "mra")
    item = made.item.model_copy(update={"answer": "20", "answers": ("20",)})
    assert is_correct(item, "19")
    assert correct_share(item, {"7": 0.4, "19": 0.3, "20": 0.3}, is_correct) == 0.3
    assert correct_share(item, {"7": 1.0}, is_correct) == 0.0


def test_delta_lets_the_wanted_share_of_votes_through():
    margins = np.array([0.9, 0.1, 0.5, 0.3, 0.7])
    assert fit_delta(margins, CalibrationSettings(coverage=0.6)) == 0.5  # 0.9, 0.7, 0.5
    assert fit_delta(margins, CalibrationSettings(coverage=1.0)) == 0.1
    assert fit_delta(margins, CalibrationSettings()) is None
    # 0.56 of 50 is 28.000000000000004 in floating point
    assert fit_delta(np.arange(50.0), CalibrationSettings(coverage=0.56)) == 22.0


@pytest.mark.parametrize("kind", list(FITS))
def test_a_calibrator_is_the_same_after_it_was_written(kind, tmp_path):
    rng = np.random.default_rng(0)
    raw = rng.uniform(0.05, 0.95, 60)
    fitted = FITS[kind](raw, rng.random(60) < raw**2)
    facts = {"kind": kind, "calibrator": calibrator_to_dict(fitted), "threshold": None, "delta": 0.1}
    (tmp_path / "c.json").write_text(json.dumps(facts))
    read = read_calibration(tmp_path / "c.json")
    np.testing.assert_array_equal(read.calibrator.confidence(raw), fitted.confidence(raw))
    assert read.threshold == inf  # too few questions for the level: nothing can be ruled out
    assert read.delta == 0.1


def test_a_file_that_is_no_calibration_is_told_in_one_line(tmp_path):
    (tmp_path / "c.json").write_text('{"kind": "guess"}')
    with pytest.raises(ConfigError, match="is not a calibration"):
        read_calibration(tmp_path / "c.json")


def test_without_questions_nothing_is_fitted(tmp_path):
    found = load_or_fit_calibration(
        tmp_path / "c.json", CalibrationSettings(), VoteSettings(), tuple, thresholds={}, is_correct=is_correct
    )
    assert found == VoteCalibration()
    assert not (tmp_path / "c.json").exists()


def test_real_rollouts_are_fitted_once_and_kept(tmp_path):
    settings = {
        "group_size": 2, "limits": {"steps": 4, "total_tokens": 600},
        "calibration": {"items_per_family": 3, "coverage": 1.0},
    }  # fmt: skip
    config = TtrlConfig.model_validate(settings)
    questions = make_stream(["search"], split="dev-cal", limit=3).items
    with Toolbox(ToolboxConfig(seg="classical", isolate=False)) as toolbox:
        policy = load_checkpoint("nano-sft").policy
        asked: list[int] = []
        sample = partial(
            stream_item_rollouts, config, policy, toolbox, questions, n=2, seed=0, temperature=1.0,
            on_question=asked.append,
        )  # fmt: skip
        fit = partial(
            load_or_fit_calibration, tmp_path / "c.json", config.calibration, config.vote,
            thresholds=decisive_thresholds(toolbox.tools), is_correct=is_correct,
        )  # fmt: skip
        found = fit(sample)
        assert asked == [0]  # three questions of two rollouts are asked at once
        again = fit(lambda: pytest.fail("asked again"))
    assert again == found
    facts = json.loads((tmp_path / "c.json").read_text())
    assert facts["questions"] == 3
    assert 1 <= facts["rollouts"] <= 6
    assert found.threshold == inf  # ten questions at least for a level of 0.1
    assert [row["kind"] for row in facts["compared"]] == ["none", *FITS]
    assert facts["risk_coverage"][0]["coverage"] == 1.0
