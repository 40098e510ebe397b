"""`pixelis ask` and `pixelis eval` with a model behind a real server process, and what a person sees when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pixelis import ask
from pixelis.cli import app
from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.trace import codec
from pixelis.training.sft.sft_config import SftConfig

PHOTOGRAPH = str(Path(__file__).parents[2] / "src" / "pixelis" / "demo" / "astronaut_sign.jpg")


def pixelis(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a person runs it."""
    program = "from pixelis.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


def test_a_photograph_is_looked_at_with_real_tools_and_the_evidence_is_written(server: Any, tmp_path: Path):
    page = tmp_path / "evidence.html"
    model = f"openai:{server.url}#good"
    words = ["ask", PHOTOGRAPH, "Which letter?", "--model", model, "-o", str(page), "--json"]
    found = CliRunner().invoke(app, words)
    told = json.loads(found.stdout)
    assert (found.exit_code, told["answer"], told["model"]) == (0, "B", model)
    assert [(step["tool"], step["status"]) for step in told["steps"]] == [("ZOOM", "ok"), ("PROP", "ok")]
    assert 0.0 < told["confidence"] <= 0.8
    (trace,) = codec.read(page.with_suffix(".jsonl"))
    assert trace.origin == "policy:good"
    assert "<html" in page.read_text()[:300]


def test_samples_are_put_to_a_vote_from_the_command_line_and_from_python(server: Any):
    model = f"openai:{server.url}#voter"
    found = CliRunner().invoke(app, ["ask", PHOTOGRAPH, "Colour?", "--model", model, "--samples", "3", "--json"])
    told = json.loads(found.stdout)
    assert told["answer"] == "red"
    assert {vote["answer"]: vote["samples"] for vote in told["votes"]} == {"red": 2, "blue": 1}
    again = ask(PHOTOGRAPH, "Colour?", model=model, samples=3)
    assert (again.answer, len(again.votes)) == ("red", 2)


def test_a_served_model_is_evaluated_by_name(server: Any, tmp_path: Path):
    model = f"openai:{server.url}#good"
    words = ["eval", "search", "--model", model, "--limit", "1", "-o", str(tmp_path / "out"), "--json"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    overall = json.loads(found.stdout)["overall"]
    assert (overall["items"], overall["answered"], overall["steps"]) == (1, 100.0, 2.0)
    assert overall["tokens"] == 3 * 20  # as the server counts them
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["report"]["model"] == model


def test_a_server_that_stops_in_the_middle_is_one_line(own_server: Any):
    found = pixelis("ask", PHOTOGRAPH, "Which?", "--model", f"openai:{own_server.url}#stops")
    assert found.returncode == 2
    ways = ("the connection broke", "no server answers there")  # a try that was under way, and those after it
    assert found.stderr.startswith(tuple(f"error: {own_server.url}: {way}" for way in ways))
    assert found.stderr.count("\n") == 1
    assert [entry["times"] for entry in own_server.log("received", "stops")] == [1, 1]  # it had answered once


def test_a_server_that_is_not_there_is_one_line_also_for_an_evaluation(tmp_path: Path):
    found = pixelis("eval", "search", "--model", "openai:http://127.0.0.1:9/v1#qwen", "--limit", "1")
    assert found.returncode == 2
    assert found.stderr == "error: http://127.0.0.1:9/v1: no server answers there (tried 3 times)\n"


def test_a_name_without_a_model_is_one_line():
    with pytest.raises(ConfigError, match="want openai:URL#name"):
        ask(PHOTOGRAPH, "Which?", model="openai:http://127.0.0.1:9/v1")


def test_a_served_model_is_not_trained(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"init.*behind a server has no weights to train"):
        load_config(SftConfig, None, ["corpus=x", "init=openai:http://127.0.0.1:9/v1#qwen"])
    with pytest.raises(ConfigError, match="behind a server has no weights here"):
        load_checkpoint("openai:http://127.0.0.1:9/v1#qwen")
