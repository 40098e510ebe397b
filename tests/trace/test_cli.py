"""`pixelis run`, `replay` and `report` with the real tools, as a person types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

MAIN = "from pixelis.cli import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A picture of a red square, a plan, and the trace that `pixelis run` made of them."""
    folder = tmp_path_factory.mktemp("cli")
    pixels = np.full((240, 320, 3), 235, dtype=np.uint8)
    pixels[60:180, 100:220] = (200, 30, 30)
    Pil.fromarray(pixels).save(folder / "square.png")
    steps = [
        {"thought": "Find it.", "tool": "SEG", "args": {"target": "red square"}},
        {"thought": "Look closer.", "tool": "CROP", "args": {"box": "$1.box"}},
        {"tool": "PROP", "args": {"media": "$2.view", "attributes": ["colour"]}},
        {"tool": "ZOOM", "args": {"box": [0.5, 0.5, 0.5, 0.9]}},
    ]
    plan = {"question": "What colour is the square?", "answer": "red", "steps": steps}
    (folder / "plan.json").write_text(json.dumps(plan))
    done = pixelis("run", "plan.json", "--media", "square.png", "-o", "out/t.jsonl", "--seg", "classical", cwd=folder)
    assert done.returncode == 1, done.stderr  # its last call is invalid, and the trace is written
    assert "given as a plan" in done.stdout
    return folder


def pixelis(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PIXELIS_CACHE": str(cwd / "cache"), "COLUMNS": "120"}
    command = [sys.executable, "-c", MAIN, *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def replayed(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return pixelis("replay", "out/t.jsonl", "--seg", "classical", *args, cwd=folder)


def test_run_then_replay_is_identical(folder):
    done = replayed(folder, "--json")
    assert done.returncode == 0, done.stderr
    (trace,) = json.loads(done.stdout)["traces"]
    assert trace["sentence"] == "identical: 4 of 4 steps"
    record = json.loads((folder / "out" / "t.jsonl").read_text())
    assert [s["result"]["status"] for s in record["steps"]] == ["ok", "ok", "ok", "invalid"]
    assert record["media"][0]["path"] == "../square.png"


def test_after_one_byte_of_an_artifact_is_changed_the_step_is_named(folder):
    (artifact,) = (folder / "out" / "t.artifacts").rglob("*.png")
    before = artifact.read_bytes()
    try:
        artifact.write_bytes(before[:-20] + bytes([before[-20] ^ 1]) + before[-19:])
        done = replayed(folder)
        assert done.returncode == 2
        assert "t.jsonl:1: step 2 (ZOOM): artifact view.png was changed" in done.stderr
        assert "Traceback" not in done.stderr
        page = pixelis("report", "out/t.jsonl", "-o", "changed.html", cwd=folder)
        assert page.returncode == 0
        assert "artifact view.png was changed" in (folder / "changed.html").read_text()
    finally:
        artifact.write_bytes(before)


def test_a_record_that_says_another_result_is_found_to_differ(folder):
    """A forger who knows the format seals the chain anew: the chain then holds, and only the replay finds it."""
    from pixelis.trace import codec
    from pixelis.trace.schema import StepDraft, seal_trace

    (trace,) = codec.read(folder / "out" / "t.jsonl")
    steps = [StepDraft.model_validate(s.model_dump(exclude={"chain"})) for s in trace.steps]
    told = steps[2].result.model_copy(update={"text": "colour: blue"})
    steps[2] = steps[2].model_copy(update={"result": told})
    kept = {"query": trace.query, "media": trace.media, "origin": trace.origin, "created_at": trace.created_at}
    forged = seal_trace(steps=steps, answer="blue", pixelis=trace.pixelis, **kept)
    blobs = {p.stem: p.read_bytes() for p in (folder / "out" / "t.artifacts").rglob("*.png")}
    codec.write([forged], folder / "out" / "forged.jsonl", blobs)
    done = pixelis("replay", "out/forged.jsonl", "--seg", "classical", cwd=folder)
    assert done.returncode == 1
    assert "different: step 3 (PROP): text 'colour: blue' became 'colour: red" in done.stdout.replace("\n", " ")


def test_report_writes_one_file_that_shows_the_chain(folder):
    done = pixelis("report", "out/t.jsonl", "-o", "pages/page.html", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["missing"] == []
    page = (folder / "pages" / "page.html").read_text()
    assert said["bytes"] == len(page.encode())
    assert "What colour is the square?" in page


def test_media_that_moved_are_named_and_found_again_by_hand(folder):
    moved = folder / "square.png"
    elsewhere = folder / "renamed.png"
    moved.rename(elsewhere)
    try:
        lost = replayed(folder)
        assert lost.returncode == 2
        assert "name its file with --media" in lost.stderr
        assert replayed(folder, "--media", "renamed.png").returncode == 0
    finally:
        elsewhere.rename(moved)


@pytest.mark.parametrize(
    "args",
    [
        ("replay", "none.jsonl"),
        ("replay", "plan.json"),
        ("report", "square.png"),
        ("run", "square.png", "--media", "square.png"),
        ("run", "plan.json", "--media", "none.png"),
        ("run", "plan.json", "--media", "square.png", "-o", "square.png"),
    ],
)
def test_a_mistyped_path_gets_one_line_and_changes_nothing(folder, args):
    before = (folder / "square.png").read_bytes()
    done = pixelis(*args, cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert (folder / "square.png").read_bytes() == before


def test_the_page_of_a_single_call_can_be_written(tmp_path, folder):
    from pixelis.cli.trace import write_call_page
    from pixelis.media import MediaSet, open_media
    from pixelis.tools.results import Execution, ToolCall, ToolResult

    media = MediaSet((open_media(folder / "square.png"),))
    execution = Execution(ToolResult(tool="OCR", status="ok", text="no text"), {})
    write_call_page(ToolCall(tool="OCR"), media, execution, tmp_path / "page.html")
    assert "no text" in (tmp_path / "page.html").read_text()
