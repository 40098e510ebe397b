"""What a rollout answers, how sure that is, and what backs it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import numpy as np
import pytest

from pixelis.media import Clip, Image, MediaSet
from pixelis.rollout import answer_reading
from pixelis.rollout.answer_reading import caveat, found_nothing
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox, builtin_thresholds
from pixelis.trace.schema import MediaRecord, StepDraft, seal_trace

answer_confidence = partial(answer_reading.answer_confidence, thresholds=builtin_thresholds())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


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
    step = StepDraft(call=ToolCall(tool=result.tool, args={}), result=result)
    trace = seal_trace(
        query="What?", media=(), origin="policy:test", created_at=NOW, steps=[step], answer="9", answer_confidence=1.0,
        pixelis="0",
    )  # fmt: skip
    assert caveat(trace).startswith(words)
    assert bool(caveat(trace)) == bool(words)
    assert answer_confidence(trace) == pytest.approx(0.5 if words else 1.0)


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
    assert found_nothing(result), result


def test_an_answer_about_a_picture_that_nobody_looked_at_is_half_as_sure():
    asked = {"query": "Wie viele?", "origin": "policy:test", "created_at": NOW, "pixelis": "0"}
    size = {"width": 9, "height": 9, "frame_count": 1, "duration_s": 0.0}
    picture = MediaRecord(name="Image_0", kind="image", sha256="0" * 64, **size)
    blind = seal_trace(media=(picture,), steps=[], answer="4", answer_confidence=0.8, **asked)
    assert answer_confidence(blind) == pytest.approx(0.4)
    assert answer_confidence(
        seal_trace(media=(), steps=[], answer="4", answer_confidence=0.8, **asked)
    ) == pytest.approx(0.8)


def test_an_answer_that_rests_on_an_unsure_look_alone_is_no_surer_than_that():
    """A region of 0.39 is under SEG's threshold and not decisive, but it is all that there is."""
    look = ToolResult(tool="SEG", status="ok", text="person", confidence=0.39)
    step = StepDraft(call=ToolCall(tool="SEG", args={"target": "person"}), result=look)
    trace = seal_trace(
        query="How many?", media=(), origin="policy:test", created_at=NOW, steps=[step], answer="1",
        answer_confidence=1.0, pixelis="0",
    )  # fmt: skip
    assert answer_confidence(trace) == pytest.approx(0.39)
