"""From samples to one answer, or to a reason why there is none."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from pixelis.media import Clip, Image, MediaSet
from pixelis.policy.ledger import Ledger
from pixelis.rollout.answering import caveat, in_vain, settled, sureness
from pixelis.rollout.episode import Ended, Rollout
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox
from pixelis.trace.schema import Draft, MediaRecord, seal_trace

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sample(
    answer: str | None, sure: float, *, call: str = "red star", ended: Ended = "answered", found: bool = True
) -> Rollout:
    step = Draft(
        call=ToolCall(tool="OCR", args={"box": [0.0, 0.0, 0.5, 0.5], "media": call}),
        result=ToolResult(tool="OCR", status="ok", text="a line")
        if found
        else ToolResult.failed("OCR", "OCR found no text"),
    )
    trace = seal_trace(
        query="What?", media=(), origin="policy:test", created_at=NOW, steps=[step], answer=answer,
        answer_confidence=sure, pixelis="0",
    )  # fmt: skip
    return Rollout("q", 0, Ledger(), trace, ended, 0, {})


def test_one_sample_is_the_answer_with_its_own_confidence():
    found = settled([sample("Zorvan", 0.8)], 1.0)
    assert (found.answer, found.confidence, found.reason) == ("Zorvan", pytest.approx(0.8), "")


def test_an_answer_for_which_nothing_was_found_is_half_as_sure():
    assert settled([sample("no", 0.8, found=False)], 1.0).confidence == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (ToolResult(tool="OCR", status="ok", text="a line", output={"lines": 1}), ""),
        (ToolResult(tool="OCR", status="ok", text="no text", output={"lines": 0}), "nothing was found"),
        (ToolResult.failed("SEG", "SEG found nothing that fits 'dog'"), "nothing was found"),
        (ToolResult.failed("TEMP", "TEMP saw nothing like 'a dog' in 0.00-2.00 s"), "nothing was found"),
        (ToolResult.failed("SEG", "'anour' names no colour, shape or COCO class"), "no call succeeded"),
    ],
)
def test_what_backs_an_answer_is_told(result: ToolResult, words: str):
    step = Draft(call=ToolCall(tool=result.tool, args={}), result=result)
    trace = seal_trace(
        query="What?", media=(), origin="policy:test", created_at=NOW, steps=[step], answer="9", answer_confidence=1.0,
        pixelis="0",
    )  # fmt: skip
    assert caveat(trace).startswith(words)
    assert bool(caveat(trace)) == bool(words)
    assert sureness(trace) == pytest.approx(0.5 if words else 1.0)


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("SEG", {"target": "red star"}),
        ("OCR", {}),
        ("PROP", {"of": "red star", "attributes": ["colour"]}),
        ("TEMP", {"query": "red star", "media": "Video_1"}),
    ],
)
def test_tools_that_see_nothing_on_an_empty_wall_say_so_in_words_that_are_understood(tool: str, args: dict):
    wall = np.full((120, 160, 3), 200, np.uint8)
    media = MediaSet((Image.from_array(wall), Clip.from_frames([wall] * 20, fps=10)))
    with Toolbox() as toolbox:
        result = toolbox.run(ToolCall(tool=tool, args=args), media).result
    assert in_vain(result), result


def test_an_answer_about_a_picture_that_nobody_looked_at_is_half_as_sure():
    asked = {"query": "Wie viele?", "origin": "policy:test", "created_at": NOW, "pixelis": "0"}
    size = {"width": 9, "height": 9, "frame_count": 1, "duration_s": 0.0}
    picture = MediaRecord(name="Image_0", kind="image", sha256="0" * 64, **size)
    blind = seal_trace(media=(picture,), steps=[], answer="4", answer_confidence=0.8, **asked)
    assert sureness(blind) == pytest.approx(0.4)
    assert sureness(seal_trace(media=(), steps=[], answer="4", answer_confidence=0.8, **asked)) == pytest.approx(0.8)


def test_an_answer_that_rests_on_an_unsure_look_alone_is_no_surer_than_that():
    """A region of 0.39 is under SEG's threshold and not decisive, but it is all that there is."""
    look = ToolResult(tool="SEG", status="ok", text="person", confidence=0.39)
    step = Draft(call=ToolCall(tool="SEG", args={"target": "person"}), result=look)
    trace = seal_trace(
        query="How many?", media=(), origin="policy:test", created_at=NOW, steps=[step], answer="1",
        answer_confidence=1.0, pixelis="0",
    )  # fmt: skip
    assert sureness(trace) == pytest.approx(0.39)


def test_a_long_guess_is_cut():
    found = settled([sample("of Add: " * 60, 0.01)], 1.0)
    assert len(found.reason) < 160
    assert "…" in found.reason


def test_equal_chains_are_one_vote_however_often_they_are_drawn():
    same = [sample("blue", 0.5) for _ in range(5)]
    others = [sample("red", 0.4, call="a"), sample("Red", 0.4, call="b")]
    found = settled([*same, *others], 1.0)
    # blue 0.5 once, red 0.4 twice: 0.8 of 1.3
    assert found.answer in ("red", "Red")
    assert found.votes[0].share == pytest.approx(0.8 / 1.3)
    assert [vote.samples for vote in found.votes] == [2, 5]


def test_samples_that_do_not_agree_tell_nothing():
    found = settled([sample("blue", 0.5, call="a"), sample("red", 0.5, call="b")], 1.0)
    assert found.answer is None
    assert "do not agree" in found.reason


def test_an_unsure_answer_is_not_given():
    found = settled([sample("blue", 0.01)], 1.0)
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
def test_without_an_answer_there_is_a_reason(answer: str | None, ended: Ended, words: str):
    found = settled([sample(answer, 0.9, ended=ended, found=False)], 1.0)
    assert found.answer is None
    assert words in found.reason
