"""Executing a trace again: equality, or the first step that differs and how."""

import dataclasses

import pytest
from PIL import Image as Pil

from pixelis.core.errors import TraceError
from pixelis.media import MediaSet, open_media
from pixelis.tools.results import Execution, ToolResult
from pixelis.trace.plan import CallPlan, run_plan
from pixelis.trace.replay import replay


def test_the_same_runner_on_the_same_media_is_identical(recording, runner, media):
    report = replay(recording.trace, runner, media)
    assert report.identical
    assert report.sentence() == "identical: 3 of 3 steps"
    assert [s.outcome for s in report.steps] == ["identical"] * 3


def test_a_word_read_otherwise_names_the_step_and_both_words(recording, runner, media):
    report = replay(recording.trace, dataclasses.replace(runner, word="EX1T"), media)
    assert not report.identical
    assert report.sentence() == """different: step 3 (OCR): text '"EXIT"' became '"EX1T"'"""


def test_other_weights_are_said_as_such(recording, runner, media):
    report = replay(recording.trace, dataclasses.replace(runner, weights="ab12"), media)
    assert report.sentence() == (
        "different: step 3 (OCR): another tool answered (identity.weights '' became 'ab12'); the result is the same"
    )


def test_seconds_may_differ(recording, runner, media):
    class Slower:
        def run(self, call, media):
            execution = runner.run(call, media)
            return execution._replace(result=execution.result.model_copy(update={"seconds": 99.0}))

    assert replay(recording.trace, Slower(), media).identical


def test_a_recorded_time_out_is_a_time_out_and_no_difference(media, runner):
    late = ToolResult.failed("OCR", "stopped after 60 s", "timeout")
    runner.answer = lambda call: Execution(late, {})
    trace, _ = run_plan(CallPlan.model_validate({"steps": [{"tool": "OCR"}]}), media, runner)
    runner.answer = None
    report = replay(trace, runner, media)
    assert report.identical
    assert report.first_difference is None
    assert "timed out when it was recorded (now: ok)" in report.sentence()


def test_a_time_out_now_proves_nothing_and_is_no_difference(recording, runner, media):
    runner.answer = lambda call: Execution(ToolResult.failed(call.tool, "late", "timeout"), {})
    report = replay(recording.trace, runner, media)
    assert not report.identical
    assert report.first_difference is None
    assert report.sentence().startswith("not proven: 0 of 3 steps; step 1 (SEG) timed out now")


def test_one_difference_does_not_spread_to_the_steps_after_it(recording, runner, media):
    class OtherZoom:
        def run(self, call, media):
            execution = runner.run(call, media)
            view = execution.result.view
            if view is None:
                return execution
            return execution._replace(
                result=execution.result.model_copy(update={"view": view.model_copy(update={"width": 7})})
            )

    report = replay(recording.trace, OtherZoom(), media)
    assert [s.outcome for s in report.steps] == ["identical", "different", "identical"]
    assert report.first_difference.detail == "view.width 100 became 7"


def test_artifacts_without_their_bytes_are_a_difference(recording, runner, media):
    class Forgetful:
        def run(self, call, media):
            return runner.run(call, media)._replace(blobs={})

    assert "view.png came without the bytes" in replay(recording.trace, Forgetful(), media).sentence()


def test_a_dead_reference_of_a_plan_is_refused_again(media, runner):
    steps = [{"tool": "SEG", "args": {"target": "nothing"}}, {"tool": "ZOOM", "args": {"box": "$1.box"}}]
    trace, _ = run_plan(CallPlan.model_validate({"steps": steps}), media, runner)
    assert replay(trace, runner, media).identical


def test_a_real_poster_is_read_again_to_the_same_bytes(realdata, tmp_path):
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig, decisive_thresholds
    from pixelis.trace import codec
    from pixelis.trace.decisive import decisive_steps
    from pixelis.trace.media_records import reopen_media

    steps = [
        {"tool": "OCR"},
        {"tool": "ZOOM", "args": {"box": "$1.box[2]"}},
        {"tool": "OCR", "args": {"media": "$2.view"}},
    ]
    plan = CallPlan.model_validate({"answer": "alcohol-based hand rub", "steps": steps})
    path = tmp_path / "poster.jsonl"
    with Toolbox(ToolboxConfig(cache=False)) as toolbox:
        poster = MediaSet((open_media(realdata / "ocr" / "easyocr_english.png"),))
        recording = run_plan(plan, poster, toolbox, beside=path)
        codec.append(recording.trace, path, recording.blobs)
        (trace,) = codec.read(path)
        assert trace.steps[2].result.output["text"] == "or alcohol-based hand rub"
        assert [d.decisive for d in decisive_steps(trace, decisive_thresholds(toolbox.tools))] == [True, True, True]
        report = replay(trace, toolbox, reopen_media(trace, path))
    assert report.sentence() == "identical: 3 of 3 steps"
    assert not any(s.cached for s in report.steps)


def test_other_media_are_refused(recording, runner, tmp_path):
    path = tmp_path / "other.png"
    Pil.new("RGB", (8, 8)).save(path)
    with pytest.raises(TraceError, match="not the ones"):
        replay(recording.trace, runner, MediaSet((open_media(path),)))
