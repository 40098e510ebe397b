"""Canary questions: what counts as a fall, by hand; and a policy that its own updates destroy is taken back."""

import json

import pytest
from safetensors.torch import load_file

from pixelis.core.errors import ConfigError, TraceError
from pixelis.evaluation.streams import make_stream
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.training.ttrl.canary import Canary
from pixelis.training.ttrl.journal import LEDGER, UNDONE, read_rows
from pixelis.training.ttrl.train import adapt
from pixelis.training.ttrl.ttrl_config import CanarySettings, TtrlConfig
from pixelis.training.ttrl.ttrl_export import revert_adaptation


def canary(folder, **changes):
    return Canary(folder, CanarySettings.model_validate({"items_per_family": 6, "interval": 10, **changes}))


def test_six_of_six_that_fall_are_significant_and_five_of_five_are_not(tmp_path):
    # a paired permutation test of n equal falls: 2 of 2^n swaps are as extreme, 2/64 = 0.031 and 2/32 = 0.0625
    for count, fell in ((6, True), (5, False)):
        check = canary(tmp_path / str(count))
        check.path.parent.mkdir()
        check.record_check(0, [1.0] * count)
        row = check.record_check(10, [0.0] * count)
        assert row["p"] == pytest.approx(2 / 2**count)
        assert row["fell"] is fell
        assert row["good"] == 0


def test_a_rise_is_no_fall(tmp_path):
    check = canary(tmp_path)
    check.record_check(0, [0.0] * 6)
    assert not check.record_check(10, [1.0] * 6)["fell"]


def test_questions_are_asked_before_the_first_query_and_then_every_so_many(tmp_path):
    check = canary(tmp_path)
    assert check.is_due(0)
    check.record_check(0, [1.0] * 6)
    assert [query for query in range(1, 25) if check.is_due(query)] == list(range(10, 25))
    check.record_check(12, [1.0] * 6)  # a batch may step over the tenth
    assert [query for query in range(12, 25) if check.is_due(query)] == list(range(20, 25))
    assert not canary(tmp_path, items_per_family=0).is_due(0)


def test_the_good_state_is_the_last_time_without_a_fall_and_going_back_forgets_the_rest(tmp_path):
    check = canary(tmp_path)
    for query, score in ((0, 1.0), (10, 1.0), (20, 0.0)):
        check.record_check(query, [score] * 6)
    again = canary(tmp_path)
    assert again.regression["good"] == 10
    again.drop_checks_after(10)
    assert again.regression is None
    assert [time["query"] for time in canary(tmp_path).checks] == [0, 10]


def test_questions_that_are_wanted_and_not_there_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"canary\.items_per_family=0"):
        canary(tmp_path).record_check(0, [])


def test_other_questions_than_the_first_time_are_refused(tmp_path):
    check = canary(tmp_path)
    check.record_check(0, [1.0] * 6)
    with pytest.raises(ConfigError, match="has 6 canary questions, 5 were asked"):
        check.record_check(10, [1.0] * 5)


def test_a_damaged_time_is_told_and_no_other_takes_its_place(tmp_path):
    check = canary(tmp_path)
    check.record_check(0, [1.0] * 6)
    whole = check.path.read_bytes()
    check.path.write_bytes(whole.replace(b"1.0", b"0.0", 1))  # still JSON: a lower bar for all that come after
    with pytest.raises(TraceError, match=r"canary\.jsonl:1 is not a row"):
        canary(tmp_path)
    assert check.path.read_bytes() != whole


def test_a_policy_that_its_updates_destroy_is_stopped_and_taken_back(tmp_path):
    """A learning rate of 1 and no guard: one update, and no greedy answer is right any more."""
    settings = TtrlConfig.model_validate(
        {
            "policy": "nano-sft", "group_size": 2, "lr": 1.0, "max_drift": None, "neighbours": 0, "workers": 1,
            "batch": 1,
            "vote": {"delta": 0.0, "max_entropy": 1.1}, "limits": {"steps": 4, "total_tokens": 600},
            "canary": {"items_per_family": 8, "interval": 2, "p_value": 0.2},
        }
    )  # fmt: skip
    items = list(make_stream(["search"], split="test", limit=4).items())
    questions = make_stream(["search"], split="dev-cal", limit=8)
    report = adapt(settings, items, tmp_path / "run", canaries=questions.items)
    assert "paired permutation test" in report.stopped
    assert report.queries == 0
    assert read_rows(tmp_path / "run" / LEDGER) == []
    assert len((tmp_path / "run" / UNDONE).read_text().splitlines()) == 2
    first, second = read_rows(tmp_path / "run" / "canary.jsonl")
    assert first["mean"] > 0.4
    assert second["fell"]
    assert second["mean"] < first["mean"]
    written, start = load_file(tmp_path / "run" / "policy" / "model.safetensors"), load_checkpoint("nano-sft").policy
    for name, value in start.model.state_dict().items():
        assert name not in written or value.equal(written[name]), name
    # the same command does not walk into it again; whoever reverts says that it may
    assert adapt(settings, items, tmp_path / "run", canaries=questions.items).stopped == report.stopped
    revert_adaptation(tmp_path / "run", 0)
    assert [json.loads(line)["query"] for line in (tmp_path / "run" / "canary.jsonl").read_text().splitlines()] == [0]
