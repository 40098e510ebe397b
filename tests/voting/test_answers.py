"""From samples to one answer, or to a reason why there is none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial

import pytest

from pixelis.policy.sequence import TokenSequence
from pixelis.rollout.episode import EndReason, Rollout
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import builtin_thresholds
from pixelis.trace.schema import StepDraft, seal_trace
from pixelis.voting import answers

answer_from_rollouts = partial(answers.answer_from_rollouts, thresholds=builtin_thresholds())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sample(
    answer: str | None, sure: float, *, call: str = "red star", ended: EndReason = "answered", found: bool = True
) -> Rollout:
    step = StepDraft(
        call=ToolCall(tool="OCR", args={"box": [0.0, 0.0, 0.5, 0.5], "media": call}),
        result=ToolResult(tool="OCR", status="ok", text="a line")
        if found
        else ToolResult.failed("OCR", "OCR found no text"),
    )
    trace = seal_trace(
        query="What?", media=(), origin="policy:test", created_at=NOW, steps=[step], answer=answer,
        answer_confidence=sure, pixelis="0",
    )  # fmt: skip
    return Rollout("q", 0, None, trace, ended, 0, {})  # as a server gives it, without tokens


def test_one_sample_is_the_answer_with_its_own_confidence():
    found = answer_from_rollouts([sample("Zorvan", 0.8)], 1.0)
    assert (found.answer, found.confidence, found.reason) == ("Zorvan", pytest.approx(0.8), "")


def test_an_answer_for_which_nothing_was_found_is_half_as_sure():
    assert answer_from_rollouts([sample("no", 0.8, found=False)], 1.0).confidence == pytest.approx(0.4)


def test_a_long_guess_is_cut():
    found = answer_from_rollouts([sample("of Add: " * 60, 0.01)], 1.0)
    assert len(found.reason) < 160
    assert "…" in found.reason


def test_samples_are_weighed_by_how_sure_they_are_and_by_who_agrees_and_every_term_is_kept():
    same = [sample("blue", 0.5) for _ in range(5)]
    others = [sample("red", 0.4, call="a"), sample("Red", 0.4, call="b")]
    found = answer_from_rollouts([*same, *others], 1.0)
    # exp(−H) = 1, Cal = p_raw, VisFid = 0.5 where nothing was decisive, r = who agrees of the other six: blue
    # 5 × 0.5 × 0.5 × 4/6 = 0.833, red 2 × 0.4 × 0.5 × 1/6 = 0.067
    assert found.answer == "blue"
    assert found.votes[0].share == pytest.approx(0.8333 / 0.9, abs=1e-3)  # agreement is smoothed by a hundredth
    assert [vote.samples for vote in found.votes] == [5, 2]
    assert found.confidence == pytest.approx(0.5 * 0.8333 / 0.9, abs=1e-3)
    assert found.vote["ballots"][5]["weight"] == pytest.approx(0.4 * 0.5 / 6, abs=1e-3)
    assert found.vote["shown"] in range(5)
    assert answer_from_rollouts([sample("blue", 0.5)], 1.0).vote is None


def test_a_sample_that_was_refused_before_its_first_token_is_a_number_too():
    refused = sample(None, 0.0, ended="refused")._replace(sequence=TokenSequence())
    found = answer_from_rollouts([refused, sample("blue", 0.9)], 1.0)
    assert found.answer == "blue"
    assert json.loads(json.dumps(found.vote, allow_nan=False))["ballots"][0]["entropy"] == 0.0


def test_samples_that_do_not_agree_tell_nothing():
    found = answer_from_rollouts([sample("blue", 0.5, call="a"), sample("red", 0.5, call="b")], 1.0)
    assert found.answer is None
    assert "do not agree" in found.reason


def test_an_unsure_answer_is_not_given():
    found = answer_from_rollouts([sample("blue", 0.01)], 1.0)
    assert found.answer is None
    assert "0.01" in found.reason


@pytest.mark.parametrize(
    ("answer", "ended", "words"),
    [
        ("I cannot tell", "answered", "says that it cannot be told; OCR found no text"),
        (None, "steps", "no answer within 1 calls; OCR found no text"),
        (None, "no_call", "neither a call nor an answer"),
        (None, "stuck", "one invalid or repeated call after another; OCR found no text"),
    ],
)
def test_without_an_answer_there_is_a_reason(answer: str | None, ended: EndReason, words: str):
    found = answer_from_rollouts([sample(answer, 0.9, ended=ended, found=False)], 1.0)
    assert found.answer is None
    assert words in found.reason
