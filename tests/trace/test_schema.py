"""The record, its chain and its seal."""

import copy
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from pixelis.core.errors import TraceError
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace import TokenRecord, Trace
from pixelis.trace.schema import StepDraft, seal_trace, verify, verify_record


def empty(**fields):
    return seal_trace(
        **{"query": "q", "media": [], "origin": "plan", "created_at": datetime(2026, 1, 1, tzinfo=UTC), "steps": []}
        | {"pixelis": "0.1.0"}
        | fields
    )


def test_a_recorded_chain_verifies(recording):
    verify(recording.trace)
    assert len({step.chain for step in recording.trace.steps}) == 3


def test_the_chain_of_an_empty_trace_is_the_hash_worked_out_by_hand():
    import hashlib
    import json

    trace = empty(id="x")
    compact = {"sort_keys": True, "separators": (",", ":")}
    head = {"version": 1, "id": "x", "query": "q", "media": [], "origin": "plan", "pixelis": "0.1.0"}
    head["created_at"] = "2026-01-01T00:00:00Z"
    genesis = hashlib.sha256(json.dumps(head, **compact).encode()).hexdigest()
    end = {"answer": None, "answer_confidence": None, "answer_tokens": None}
    assert trace.seal == hashlib.sha256((genesis + json.dumps(end, **compact)).encode()).hexdigest()


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("query",), "What does the sign not say?", "step 1"),
        (("origin",), "policy:nano", "step 1"),
        (("media", 0, "sha256"), "0" * 64, "step 1"),
        (("steps", 0, "thought"), "Find the sigm.", "step 1"),
        (("steps", 1, "call", "args", "box", 0), 0.1, "step 2"),
        (("steps", 1, "result", "artifacts", 0, "sha256"), "0" * 64, "step 2"),
        (("steps", 2, "result", "seconds"), 0.031, "step 3"),
        (("steps", 2, "result", "footprints", 0, "text"), "EXIIT", "step 3"),
        (("steps", 2, "chain"), "0" * 64, "step 3"),
        (("answer",), "It says ENTER.", "seal"),
        (("answer_confidence",), 0.99, "seal"),
        (("seal",), "0" * 64, "seal"),
    ],
)
def test_whatever_is_changed_the_place_is_named(recording, path, value, place):
    record = copy.deepcopy(recording.trace.model_dump(mode="json"))
    inside = record
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(TraceError, match=place):
        verify_record(record)


def test_a_step_cannot_be_dropped_or_moved(recording):
    record = recording.trace.model_dump(mode="json")
    with pytest.raises(TraceError, match="seal broken"):
        verify_record(record | {"steps": record["steps"][:2]})
    with pytest.raises(TraceError, match="step 1"):
        verify_record(record | {"steps": record["steps"][::-1]})


def test_views_are_named_by_position_and_nothing_derived_is_stored(recording):
    assert recording.trace.views == (None, "View_0", None)
    stored = recording.trace.model_dump(mode="json")
    assert "views" not in stored
    assert "seconds" not in stored


def test_seconds_of_a_trace_are_the_sum_of_its_steps(recording):
    assert recording.trace.seconds == pytest.approx(0.06)


@pytest.mark.parametrize("origin", ["", "me", "policy:", "teacher: ", "plan:x", "gpt"])
def test_an_origin_that_does_not_say_who_chose_is_refused(origin):
    with pytest.raises(ValidationError):
        empty(origin=origin)


def test_a_ledger_has_one_logprob_and_kind_for_each_token():
    TokenRecord(ids=(1, 2), logprobs=(-0.5, None), kinds=("action", "observation"))
    with pytest.raises(ValidationError, match="2 token ids, 1 log-prob"):
        TokenRecord(ids=(1, 2), logprobs=(-0.5,), kinds=("action", "action"))
    with pytest.raises(ValidationError, match="token 0"):
        TokenRecord(ids=(1,), logprobs=(-0.5,), kinds=("observation",))
    with pytest.raises(ValidationError):
        TokenRecord(ids=(1,), logprobs=(float("nan"),), kinds=("action",))
    with pytest.raises(ValidationError):
        TokenRecord(ids=(1,), logprobs=(0.1,), kinds=("thought",))


def test_arguments_that_json_cannot_say_are_refused():
    step = StepDraft(
        call=ToolCall(tool="OCR", args={"box": [float("nan")]}), result=ToolResult(tool="OCR", status="ok")
    )
    with pytest.raises((TraceError, ValidationError)):
        verify(empty(steps=[step]))


def test_a_record_of_another_version_is_no_trace_of_this_one():
    with pytest.raises(ValidationError):
        Trace.model_validate(empty().model_dump() | {"version": 2})


def test_what_is_said_before_the_answer_is_sealed_and_its_absence_changes_no_seal(recording):
    record = recording.trace.model_dump(mode="json")
    del record["answer_thought"]  # a record from before the field
    verify_record(record)
    with pytest.raises(TraceError, match="seal broken"):
        verify_record(record | {"answer_thought": "412 - 257 = 155."})
