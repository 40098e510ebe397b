"""The VLM teacher against a real server process that behaves well, badly, and not at all."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pixelis.core.errors import ConfigError, RetryLaterError
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig, TeacherConfig
from pixelis.data.teachers.reply_cache import SpendingLedger, estimate_tokens
from pixelis.data.teachers.vlm import VlmTeacher
from pixelis.media import Clip, MediaSet
from pixelis.rollout.remote.chat_client import ChatClient, ServerConfig
from pixelis.rollout.remote.chat_messages import initial_messages, media_parts, turn_schema
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.trace.schema import verify
from pixelis.world import generate

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        yield box


@pytest.fixture(scope="module")
def rendered():
    return generate("search", seed=5, difficulty=1)


@pytest.fixture
def teach(server, toolbox, rendered, tmp_path):
    """Teach one item with a model of the server; the replies are kept in the test's own folder."""

    def run(model, *, max_turns=6, **settings):
        options = {"pause_s": 0.01, "timeout_s": 5.0, "tries": 3, **settings}
        config = TeacherConfig(
            kind="vlm",
            server=ServerConfig(url=server.url, model=model, **options),
            max_turns=max_turns,
            max_parse_errors=2,
            image_side=128,
        )
        teacher = VlmTeacher(config, replies=tmp_path / "replies")
        try:
            return teacher.demonstrate(rendered, toolbox, rng=np.random.default_rng(0))
        finally:
            teacher.close()

    return run


def statuses(demonstration):
    return [(step.call.tool, step.result.status) for step in demonstration.trace.steps]


def test_a_model_that_calls_tools_leaves_a_sealed_trace_with_an_answer(teach):
    demonstration = teach("good")
    verify(demonstration.trace)
    assert statuses(demonstration) == [("ZOOM", "ok"), ("PROP", "ok")]
    assert (demonstration.trace.answer, demonstration.trace.answer_confidence) == ("B", 0.8)
    assert (demonstration.trace.origin, demonstration.details["outcome"]) == ("teacher:good", "answered")
    assert demonstration.details["tokens"] == 3 * 700
    assert [step.thought for step in demonstration.trace.steps] == ["turn 0", "turn 1"]


def test_a_second_run_asks_nothing_and_gives_the_same_bytes(teach, server):
    first = teach("good")
    asked = len(server.log("received", "good"))
    second = teach("good")
    assert second.trace == first.trace
    assert len(server.log("received", "good")) == asked


def test_a_server_without_function_calling_is_asked_for_guided_json(teach):
    demonstration = teach("simple")
    assert demonstration.details["constrain"] == "guided_json"
    assert statuses(demonstration) == [("ZOOM", "ok"), ("PROP", "ok")]
    assert demonstration.trace.answer == "B"


def test_the_way_to_constrain_a_server_is_found_once(teach, server):
    teach("simple", max_turns=1)
    asked = len(server.log("received", "simple"))
    teach("simple", max_turns=2)
    assert len(server.log("received", "simple")) == asked + 1


def test_prose_in_place_of_calls_is_kept_as_slips_and_ends_the_trace(teach):
    demonstration = teach("prose")
    assert demonstration.trace.answer is None
    assert demonstration.details["outcome"] == "prose"
    assert [slip["text"] for slip in demonstration.details["slips"]] == ["It is surely the red one."] * 3


def test_a_model_that_is_reminded_goes_on(teach):
    demonstration = teach("reminded")
    assert len(demonstration.details["slips"]) == 1
    assert demonstration.details["outcome"] == "answered"


def test_an_answer_in_tags_counts(teach):
    assert teach("tagged").trace.answer == "blue"


def test_a_tool_that_does_not_exist_is_an_invalid_step_that_the_model_reads(teach):
    demonstration = teach("ghost")
    assert statuses(demonstration)[0] == ("TELEPORT", "invalid")
    assert "there is no tool" in demonstration.trace.steps[0].result.error
    assert demonstration.details["outcome"] == "answered"


@pytest.mark.parametrize("model", ["malformed", "nested"])
def test_a_call_that_cannot_be_read_is_a_slip(teach, model):
    demonstration = teach(model)
    assert [slip["kind"] for slip in demonstration.details["slips"]] == ["malformed"]
    assert demonstration.details["outcome"] == "answered"


def test_half_characters_are_replaced_before_anything_is_written(teach):
    demonstration = teach("surrogate")
    assert demonstration.trace.steps[0].call.args == {"target": "? star"}
    assert demonstration.trace.answer == "?7"


def test_a_model_that_never_answers_runs_out_of_turns(teach):
    demonstration = teach("endless", max_turns=4)
    assert len(demonstration.trace.steps) == 4
    assert demonstration.details["outcome"] == "turns"


def test_an_item_that_the_server_refuses_on_the_way_is_recorded_as_refused(teach):
    demonstration = teach("full")
    assert len(demonstration.trace.steps) == 1
    assert demonstration.details["outcome"] == "refused"
    assert "context length exceeded" in demonstration.details["detail"]


def test_a_server_that_recovers_is_asked_again_after_a_pause(teach, server):
    assert teach("flaky").details["outcome"] == "answered"
    assert [entry["times"] for entry in server.log("received", "flaky")] == [1, 2, 3] * 3


@pytest.mark.parametrize(
    ("model", "words", "requests"),
    [
        ("broken", r"status 500 \(tried 3 times\)", 3),
        ("hanging", r"no complete reply within 0.5 s \(tried 3 times\)", 3),
        ("dripping", r"no complete reply within 0.5 s \(tried 3 times\)", 3),
        ("huge", r"a reply of over 1000000 bytes \(tried 3 times\)", 3),
        ("html", r"not a JSON object \(tried 3 times\)", 3),
        ("nan", r"not a JSON object \(tried 3 times\)", 3),
    ],
)
def test_a_server_that_fails_every_time_leaves_the_item_undone(teach, server, model, words, requests):
    with pytest.raises(RetryLaterError, match=words) as caught:
        teach(model, timeout_s=0.5, reply_bytes=1_000_000)
    assert (caught.value.outcome, caught.value.stop_run) == ("server", False)
    assert len(server.log("received", model)) == requests


@pytest.mark.parametrize(
    ("model", "words"),
    [("closed", "status 401: no such key"), ("moved", "status 307")],
)
def test_a_server_that_lets_nobody_in_stops_everything(teach, model, words):
    with pytest.raises(RetryLaterError, match=words) as caught:
        teach(model)
    assert caught.value.stop_run


def test_an_item_that_is_refused_in_every_way_lets_the_next_one_try(teach):
    with pytest.raises(RetryLaterError, match=r"refuses every kind.*no pictures") as caught:
        teach("picky")
    assert not caught.value.stop_run


def test_nobody_at_the_address_is_said(toolbox, rendered, tmp_path):
    config = TeacherConfig(kind="vlm", server=ServerConfig(url="http://127.0.0.1:9/v1", model="m", tries=1))
    teacher = VlmTeacher(config, replies=tmp_path)
    with pytest.raises(RetryLaterError, match="no server answers"):
        teacher.demonstrate(rendered, toolbox, rng=np.random.default_rng(0))
    teacher.close()


def test_the_cap_on_requests_stops_before_the_request_that_would_pass_it(teach, server):
    with pytest.raises(RetryLaterError, match="cap of 2 requests") as caught:
        teach("good", max_requests=2, temperature=0.1)
    assert (caught.value.outcome, caught.value.stop_run) == ("cap", True)
    asked = len(server.log("received", "good"))
    assert teach("good", max_requests=3, temperature=0.1).details["outcome"] == "answered"  # the cap was raised
    assert len(server.log("received", "good")) == asked + 1


def test_the_cap_on_tokens_counts_what_the_server_says_and_what_was_lost(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = SpendingLedger(path, max_requests=10, max_tokens=5000)
    ledger.spend(2000)
    ledger.correct(700 - 2000)
    ledger.spend(2000)  # killed before the reply came
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"sent": 9')  # and in the middle of a line
    again = SpendingLedger(path, max_requests=10, max_tokens=5000)
    assert (again.requests, again.tokens) == (2, 2700)
    with pytest.raises(RetryLaterError, match="2700 of 5000 tokens are spent, the next request may take 2301"):
        again.spend(2301)
    again.spend(2300)
    with pytest.raises(ConfigError, match="another process spends"):
        SpendingLedger(path, max_requests=10, max_tokens=5000)
    again.close()


def test_a_usage_that_cannot_be_true_is_not_believed(teach, tmp_path):
    assert teach("liar").details["tokens"] == 0
    ledger = (tmp_path / "replies" / "ledger.jsonl").read_text()
    assert "corrected" not in ledger


def test_the_key_is_sent_and_never_written(teach, server, monkeypatch, tmp_path):
    monkeypatch.setenv("PIXELIS_TEST_KEY", "secret-7")
    teach("good", api_key_variable="PIXELIS_TEST_KEY", temperature=0.3)
    assert server.log("received", "good")[-1]["auth"] == "Bearer secret-7"
    assert not any(b"secret-7" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_server_that_repeats_the_key_brings_it_nowhere(teach, monkeypatch, tmp_path):
    monkeypatch.setenv("PIXELIS_TEST_KEY", "secret-8")
    with pytest.raises(RetryLaterError) as caught:
        teach("parrot", api_key_variable="PIXELIS_TEST_KEY")
    assert "secret-8" not in str(caught.value)
    assert not any(b"secret-8" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_password_in_the_address_is_refused():
    with pytest.raises(ConfigError, match="contains a user name or password"):
        ChatClient(ServerConfig(url="http://me:secret@127.0.0.1/v1"))


def test_an_empty_key_and_a_strange_address_are_refused_at_once():
    with pytest.raises(ConfigError, match="PIXELIS_NO_SUCH"):
        ChatClient(ServerConfig(api_key_variable="PIXELIS_NO_SUCH"))
    with pytest.raises(ConfigError, match="not an http or https address"):
        ChatClient(ServerConfig(url="file:///etc/passwd"))


def test_a_damaged_reply_on_disk_is_asked_for_again(teach, tmp_path):
    first = teach("good", temperature=0.6)
    for path in (tmp_path / "replies").glob("??/*.json"):
        path.write_bytes(path.read_bytes()[:40])
    assert teach("good", temperature=0.6).trace == first.trace


def test_a_clip_is_sent_as_frames_with_their_times():
    frames = [np.full((20, 30, 3), 10 * k, np.uint8) for k in range(8)]
    parts = media_parts("Video_0", Clip.from_frames(frames, fps=4.0), side=64, frames=3)
    words = [part["text"] for part in parts if part["type"] == "text"]
    assert words == [
        "Video_0, 2.00 s, 8 frames, of which some:",
        "frame 0, 0.00 s:",
        "frame 4, 1.00 s:",
        "frame 7, 1.75 s:",
    ]
    assert all(part["image_url"]["url"].startswith("data:image/png;base64,") for part in parts[2::2])


def test_a_request_is_priced_before_it_is_sent(rendered, toolbox):
    messages = initial_messages("What?", MediaSet(rendered.media), "none", toolbox.schemas(), side=64, frames=2)
    cost = estimate_tokens({"messages": messages, "max_tokens": 512})
    pictures = 1000 * len(rendered.media)
    assert pictures + 512 < cost < pictures + 512 + 400


def test_the_turn_schema_accepts_a_call_and_refuses_another_tool(toolbox):
    import jsonschema

    check = jsonschema.Draft202012Validator(turn_schema(toolbox.schemas()))
    call = {"thought": "", "name": "TRK", "arguments": {"start_frame": 0}}
    assert not check.is_valid({**call, "name": "TELEPORT"})
    assert check.is_valid({"thought": "", "name": "OCR", "arguments": {"box": [0.1, 0.1, 0.5, 0.5]}})


def test_a_build_with_a_vlm_stops_at_the_cap_and_goes_on_when_it_is_raised(server, tmp_path):
    def config(model, **settings):
        given = {
            "n": 4,
            "families": {"space": 1.0},
            "difficulties": {1: 1.0},
            "teacher": {
                "kind": "vlm",
                "image_side": 64,
                "server": {"url": server.url, "model": model, "pause_s": 0.01, "tries": 2, **settings},
            },
            "toolbox": {"isolate": False, "cache": False},
        }
        return CorpusConfig.model_validate(given)

    capped = build(config("steady", max_requests=5, concurrency=2), tmp_path / "corpus")
    assert not capped.is_complete
    assert capped.undone["cap"] >= 1
    assert "cap of 5 requests is reached" in capped.detail
    assert len(server.log("received", "steady")) == 5
    done = build(config("steady", max_requests=50, concurrency=2), tmp_path / "corpus")
    assert (done.is_complete, done.records) == (True, 4)
    assert len(server.log("received", "steady")) == 4 * 3  # nothing was asked twice
    records = list(Corpus(tmp_path / "corpus").records())
    assert {r.teaching["outcome"] for r in records} == {"answered"}
    broken = build(config("broken"), tmp_path / "other")
    assert (broken.is_complete, broken.undone) == (False, {"server": 4})
    assert "status 500 (tried 2 times)" in broken.detail
    assert json.loads((tmp_path / "other" / "build.json").read_text())["report"]["undone"] == {"server": 4}


def test_a_client_killed_in_the_middle_goes_on_without_asking_twice(server, tmp_path):
    def client(out):
        command = [sys.executable, str(HERE / "vlm_client.py"), server.url, str(tmp_path / "replies"), str(out)]
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    running = client(tmp_path / "never.json")
    while len(server.log("answered", "slow")) < 9:
        assert running.poll() is None
        time.sleep(0.01)
    running.kill()
    running.wait()
    kept = {path.stem for path in (tmp_path / "replies").glob("??/*.json")}
    before = Counter(entry["key"] for entry in server.log("received", "slow"))
    assert client(tmp_path / "first.json").wait(timeout=60) == 0
    after = Counter(entry["key"] for entry in server.log("received", "slow"))
    repeated = [key for key in before if after[key] > before[key]]
    assert len(kept) >= 6
    assert len(repeated) <= len(before) - len(kept) <= 3  # only what was under way when it was killed
    assert sum(after.values()) == 8 * 3 + len(repeated)
    total = sum(after.values())
    assert client(tmp_path / "second.json").wait(timeout=60) == 0
    assert len(server.log("received", "slow")) == total
    assert (tmp_path / "first.json").read_text() == (tmp_path / "second.json").read_text()
