"""One recorder for whoever chooses the calls."""

from __future__ import annotations

import ast
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pixelis.core.geometry import Box
from pixelis.media import Image, MediaSet, ViewRecipe
from pixelis.tools.results import Blob, Execution, ToolCall, ToolResult
from pixelis.trace.codec import decode
from pixelis.trace.recorder import TraceRecorder, reseal, without_time
from pixelis.trace.schema import TokenRecord, canonical_json, verify

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
CALL = ToolCall(tool="ZOOM", args={"box": [0.0, 0.0, 0.5, 0.5]})


def zoomed() -> Execution:
    view = ViewRecipe(media="Image_0", frame=0, box=(0.0, 0.0, 0.5, 0.5), width=50, height=40)
    blob = Blob("crop.png", "image/png", b"pixels")
    artifact = blob.artifact()
    found = Box(x0=0.0, y0=0.0, x1=0.5, y1=0.5)
    result = ToolResult(tool="ZOOM", status="ok", view=view, artifacts=(artifact,), footprints=(found,), seconds=0.25)
    return Execution(result, {artifact.sha256: b"pixels"})


@pytest.fixture
def recorder() -> TraceRecorder:
    recorder = TraceRecorder(MediaSet((Image.from_array(np.zeros((80, 100, 3), np.uint8)),)))
    assert recorder.add_step(CALL, zoomed(), "I look closer.") == "View_0"
    return recorder


def test_a_view_can_be_looked_at_by_the_next_call_and_is_no_medium_of_the_query(recorder):
    assert recorder.add_step(CALL, Execution(ToolResult.failed("OCR", "no text"), {})) is None
    assert recorder.media.names == ("Image_0", "View_0")
    assert list(recorder.blobs.values()) == [b"pixels"]
    trace = recorder.seal(query="What?", origin="plan", created_at=WHEN)
    verify(trace)
    assert [record.name for record in trace.media] == ["Image_0"]
    assert [step.thought for step in trace.steps] == ["I look closer.", ""]
    assert trace.views == ("View_0", None)


def test_tokens_are_those_of_each_step_and_after_the_last_one_those_of_the_answer(recorder):
    def tokens(step: int) -> TokenRecord:
        return TokenRecord(ids=(step,), logprobs=(-0.1,), kinds=("action",))

    trace = recorder.seal(query="", origin="policy:x", created_at=WHEN, answer="4", token_record=tokens)
    assert (trace.steps[0].tokens.ids, trace.answer_tokens.ids) == ((1,), (2,))
    assert recorder.seal(query="", origin="policy:x", created_at=WHEN, token_record=tokens).answer_tokens is None
    assert recorder.steps[0].tokens is None  # sealing changes nothing


def test_a_copy_grows_by_itself(recorder):
    other = recorder.copy()
    other.add_step(CALL, zoomed())
    assert (len(recorder.steps), recorder.media.names[-1]) == (1, "View_0")
    assert (len(other.steps), other.media.names[-1]) == (2, "View_1")


def test_a_trace_without_times_keeps_everything_else(recorder):
    trace = recorder.seal(query="What?", origin="plan", created_at=WHEN, answer="EXIT", answer_thought="It says so.")
    timeless = reseal(trace, steps=[without_time(step) for step in trace.steps], media=trace.media)
    assert (trace.seconds, timeless.seconds) == (0.25, 0.0)
    assert timeless.seal != trace.seal
    left = {"steps", "seal"}
    assert timeless.model_dump(exclude=left) == trace.model_dump(exclude=left)


def test_a_cached_result_keeps_the_time_of_its_first_run_and_no_other_record_has_the_key(recorder):
    cached = zoomed()._replace(cached=True, first_seconds=1.5)
    recorder.add_step(CALL, cached)
    trace = recorder.seal(query="", origin="plan", created_at=WHEN)
    verify(trace)
    assert [step.first_seconds for step in trace.steps] == [None, 1.5]
    record = trace.model_dump(mode="json")
    assert ["first_seconds" in step for step in record["steps"]] == [False, True]  # old records keep their chain
    assert decode(canonical_json(record) + b"\n") == trace
    assert without_time(trace.steps[1]).first_seconds is None


def test_nothing_else_in_the_package_seals_a_trace():
    package = Path(__file__).parents[2] / "src" / "pixelis"
    callers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "seal_trace"
    }
    assert callers == {"trace/recorder.py"}
