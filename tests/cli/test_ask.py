"""`pixelis ask` and `pixelis eval` with a random policy of the real class, from a folder."""

from __future__ import annotations

import html
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pixelis.api import ask, cached_policy
from pixelis.cli import app
from pixelis.core.errors import ConfigError
from pixelis.media import MediaSet, open_media
from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy.checkpoint import ModelCard, load_checkpoint, save_checkpoint
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.rollout.episode import Query
from pixelis.rollout.models import LocalModel
from pixelis.tools.toolbox import Toolbox, ToolboxConfig, build_tools


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    schemas = [tool.schema() for tool in build_tools(ToolboxConfig(seg="classical")).values()]
    tokens = PolicyTokenizer(train_tokenizer(["Read the red panel."] * 40, schemas, vocabulary=300))
    tiny = NanoConfig(hidden=32, layers=5, heads=2, head_dim=16, mlp=64, vision_hidden=32)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_checkpoint(folder, build_nano(tiny, tokens, seed=0), ModelCard(name="tiny"))
    return str(folder)


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.png"
    Image.fromarray(np.full((48, 64, 3), 200, dtype=np.uint8)).save(path)
    return str(path)


def test_a_question_gets_an_answer_or_a_reason_and_its_page(model: str, picture: str, tmp_path: Path):
    page = tmp_path / "evidence.html"
    found = CliRunner().invoke(
        app, ["ask", picture, "What is <tool_call> here?", "-m", model, "-o", str(page), "--json"]
    )
    told = json.loads(found.stdout)
    assert found.exit_code == (0 if told["answer"] else 1)
    assert bool(told["answer"]) != bool(told["reason"])
    shown = html.unescape(page.read_text())
    assert shown.startswith("<!doctype html>") or "<html" in shown[:300]
    assert ("I cannot tell" in shown) == bool(told["reason"])
    assert (told["reason"] or told["answer"]) in shown.replace("<wbr>", "")
    assert page.with_suffix(".jsonl").exists()


def test_a_policy_is_scored_by_name(model: str):
    found = CliRunner().invoke(app, ["eval", "search", "-m", model, "--limit", "1", "--without-tools", "--json"])
    assert found.exit_code == 0
    assert json.loads(found.stdout)["overall"]["items"] == 1


@pytest.mark.parametrize(("question", "words"), [(" ", "is empty"), ("x" * 20_000, "has 20,000 characters")])
def test_a_question_that_cannot_be_read_is_one_line(picture: str, model: str, question: str, words: str):
    with pytest.raises(ConfigError, match=words):
        ask(picture, question, model=model)


def test_runs_of_blanks_are_one_blank(picture: str, model: str):
    plain, spread = (ask(picture, question, model=model) for question in ("How many?", " How \t  many? "))
    assert spread.trace.query == plain.trace.query == "How many?"
    assert spread.answer == plain.answer


def test_without_a_picture_or_with_no_such_model_it_says_so(picture: str):
    for arguments, words in (
        (["ask", "how many?", "-m", "tiny"], "at least one image or video"),
        (["ask", picture, "how many?", "-m", "no-such"], "no model"),
    ):
        found = CliRunner().invoke(app, arguments)
        assert isinstance(found.exception, ConfigError)
        assert words in str(found.exception)


def test_a_page_that_could_not_be_written_is_refused_before_anything_is_asked(picture: str, tmp_path: Path):
    notes = tmp_path / "notes.html"
    notes.write_text("my notes")
    for out, words in ((notes, "no evidence page"), (tmp_path / "x.jsonl", "want another ending")):
        found = CliRunner().invoke(app, ["ask", picture, "What?", "-m", "nobody/has-this", "-o", str(out)])
        assert words in str(found.exception)
    assert notes.read_text() == "my notes"


def test_strict_calls_are_valid_whatever_the_policy_wants_to_write(model: str, picture: str):
    """A random policy writes no call of its own accord: it is made to open one, and the grammar does the rest."""
    loaded = load_checkpoint(model).policy
    loaded.ban_bias[:] = -torch.inf
    loaded.ban_bias[loaded.allowed_ids] = 0.0
    loaded.ban_bias[loaded.tokenizer.control_ids["<tool_call>"]] = 50.0
    query = Query("q", "What is there?", MediaSet((open_media(Path(picture)),)), 0)
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as toolbox:
        (group,) = LocalModel(loaded, strict_calls=True).rollout(toolbox, [query], n=4, seed=0)
        calls = [step.call for rolled in group for step in rolled.trace.steps]
        schemas = {s["function"]["name"]: s["function"]["parameters"] for s in toolbox.schemas()}
    assert len(calls) >= 4
    for call in calls:
        jsonschema.validate(call.args, schemas[call.tool])


def test_a_server_is_not_asked_for_strict_calls(picture: str):
    with pytest.raises(ConfigError, match="strict calls need weights here"):
        ask(picture, "What?", model="openai:http://127.0.0.1:9/v1#any", strict_calls=True)


def test_a_model_that_was_trained_anew_in_its_folder_is_opened_anew(model: str):
    first = cached_policy(model)
    assert cached_policy(model) is first
    (Path(model) / "config.json").touch()
    assert cached_policy(model) is not first
