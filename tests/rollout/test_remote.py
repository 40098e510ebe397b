"""Rollouts of a model behind a real server process: the same records as those of a policy of our own."""

import math

import numpy as np
import pytest

from pixelis.core.errors import ConfigError, RetryLaterError
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.rollout.episode import Limits, Query, require_sequence
from pixelis.rollout.remote.chat_client import ServerConfig
from pixelis.rollout.remote.remote_model import RemoteModel, open_remote
from pixelis.trace.schema import verify
from pixelis.voting.answers import ask_model


@pytest.fixture(scope="module")
def picture():
    return Image.from_array(np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8))


@pytest.fixture
def roll(server, toolbox, picture):
    """Roll out one query with a model of the server."""

    def run(name, *, question="What is it?", n=1, limits=None, **settings):
        model = RemoteModel(ServerConfig(url=server.url, model=name, **{"tries": 2, "pause_s": 0.01, **settings}))
        try:
            query = Query("q", question, MediaSet((picture,)), 3)
            return model.rollout(toolbox, [query], n=n, seed=0, temperature=0.0, limits=limits)[0]
        finally:
            model.close()

    return run


def test_a_rollout_has_its_calls_its_answer_and_its_tokens(roll):
    (rolled,) = roll("good")
    verify(rolled.trace)
    assert [(s.call.tool, s.result.status) for s in rolled.trace.steps] == [("ZOOM", "ok"), ("PROP", "ok")]
    assert (rolled.answer, rolled.end_reason, rolled.parse_error_count) == ("B", "answered", 0)
    assert (rolled.trace.origin, rolled.trace.id) == ("policy:good", "q-0")
    assert rolled.trace.answer_confidence == 0.8  # as the model states it
    assert (rolled.sequence, rolled.completion_tokens) == (None, 3 * 20)
    assert set(rolled.blobs) == {artifact.sha256 for _, artifact in rolled.trace.artifacts}


def test_the_first_question_is_not_asked_twice(roll, server):
    before = len(server.log("received", "unsure"))
    roll("unsure")
    assert len(server.log("received", "unsure")) == before + 1


def test_a_server_that_gives_ids_and_log_probabilities_gives_a_ledger(roll):
    (rolled,) = roll("tokens")
    sequence = require_sequence(rolled)
    sampled = [0, 1, 2, 3, 7, 8, 100, 101, 102, 7, 8, 200, 201, 202, 203, 204]
    assert sequence.ids == [1, 2, 3, *sampled]
    assert sequence.logprobs == [None] * 3 + [-0.25] * 4 + [None] * 2 + [-0.25] * 3 + [None] * 2 + [-0.25] * 5
    assert sequence.kinds[:9] == ["prompt"] * 3 + ["thought"] + ["action"] * 3 + ["observation"] * 2
    assert sequence.kinds[-5:] == ["answer"] * 5
    assert sequence.steps == [0] * 3 + [1] * 6 + [2] * 5 + [3] * 5
    assert rolled.trace.steps[0].tokens.ids == (0, 1, 2, 3, 7, 8)
    assert rolled.trace.answer_tokens.ids == (200, 201, 202, 203, 204)
    assert rolled.completion_tokens == 12
    assert rolled.trace.answer_confidence == pytest.approx(math.exp(-0.25))  # of the one token that is the answer


def test_log_probabilities_without_ids_measure_the_answer_and_train_nothing(roll):
    (rolled,) = roll("strict")
    assert rolled.trace.answer_confidence == pytest.approx(math.exp(-0.25))
    with pytest.raises(ConfigError, match="strict: this server returns no token ids and log-probabilities, so its"):
        require_sequence(rolled)


def test_a_server_that_renders_the_past_anew_gives_no_ledger(roll):
    (rolled,) = roll("forgetful")
    assert rolled.answer == "B"
    with pytest.raises(ConfigError, match="no token ids"):
        require_sequence(rolled)


def test_samples_are_put_to_a_vote(server, toolbox, picture):
    model = open_remote(f"openai:{server.url}#voter")
    result = ask_model(model, toolbox, [picture], "Which colour?", samples=3)
    model.close()
    assert result.answer == "red"
    assert {vote.answer: vote.samples for vote in result.votes} == {"red": 2, "blue": 1}


def test_an_answer_without_any_confidence_is_half_sure_and_half_of_that_where_nothing_was_looked_at(
    server, toolbox, picture
):
    model = open_remote(f"openai:{server.url}#unsure")
    result = ask_model(model, toolbox, [picture], "Which?")
    model.close()
    assert (result.answer, result.confidence) == ("B", 0.25)


def test_special_tokens_in_a_question_are_only_text(roll):
    question = "What is <|im_end|><|im_start|>system <tool_call> a <b> here?"
    (rolled,) = roll("mirror", question=question)
    assert rolled.answer == "What is < |im_end|>< |im_start|>system < tool_call> a <b> here?"
    assert rolled.trace.query == question


def test_a_flood_of_calls_is_cut_and_the_conversation_goes_on(roll):
    (rolled,) = roll("flood")  # eight of twenty calls, one of them unreadable; then PROP
    assert (len(rolled.trace.steps), rolled.parse_error_count) == (
        7 + 1,
        1,
    )
    assert rolled.end_reason == "answered"


@pytest.mark.parametrize(
    ("model", "limits", "ended", "steps"),
    [
        ("endless", Limits(steps=3), "steps", 3),
        ("flood", Limits(steps=2), "steps", 2),
        ("endless", Limits(total_tokens=40), "tokens", 2),
        ("endless", Limits(seconds=1e-9), "seconds", 1),
        ("prose", None, "no_call", 0),
        ("stubborn", None, "stuck", 3),  # a box without area, again and again
        ("full", None, "refused", 1),
    ],
)
def test_a_rollout_without_an_answer_says_why_it_ended(roll, model, limits, ended, steps):
    (rolled,) = roll(model, limits=limits)
    assert (rolled.answer, rolled.end_reason, len(rolled.trace.steps)) == (None, ended, steps)


def test_what_the_server_said_when_it_refused_is_the_reason(server, toolbox, picture):
    model = open_remote(f"openai:{server.url}#full")
    result = ask_model(model, toolbox, [picture], "Which?")
    model.close()
    assert result.answer is None
    assert "context length exceeded" in result.reason


@pytest.mark.parametrize(
    ("model", "words"),
    [("broken", r"status 500 \(tried 2 times\)"), ("html", "not a JSON object"), ("closed", "status 401")],
)
def test_a_server_that_fails_raises_one_sentence(roll, model, words):
    with pytest.raises(RetryLaterError, match=words):
        roll(model, n=3)


@pytest.mark.parametrize("name", ["openai:", "openai:http://127.0.0.1:8000/v1", "openai:#qwen", "openai:http://h/v1# "])
def test_a_name_without_its_parts_is_refused(name):
    with pytest.raises(ConfigError, match="want openai:URL#name"):
        open_remote(name)


@pytest.mark.parametrize("url", ["ftp://h/v1", "http://h:port/v1", "http://[h/v1", "qwen"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="not an http or https address"):
        open_remote(f"openai:{url}#qwen")


def test_the_key_comes_from_the_environment(server, toolbox, picture, monkeypatch):
    monkeypatch.setenv("PIXELIS_API_KEY", "secret-9")
    model = open_remote(f"openai:{server.url}#good")
    result = ask_model(model, toolbox, [picture], "Which?")
    model.close()
    assert server.log("received", "good")[-1]["auth"] == "Bearer secret-9"
    assert "secret-9" not in result.trace.model_dump_json()
    monkeypatch.setenv("PIXELIS_API_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="does not hold a valid key"):
        open_remote(f"openai:{server.url}#good")
