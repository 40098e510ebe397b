"""The command line as a person uses it: real processes, their output, their exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "src" / "pixelis" / "demo"
SIGN = DEMO / "astronaut_sign.jpg"
PIXELIS = str(Path(sys.executable).with_name("pixelis"))


def pixelis(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PIXELIS, *map(str, words)], capture_output=True, text=True, cwd=cwd, check=False)


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['pixelis', '--help']\n"
        "from pixelis.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('HEAVY', [m for m in ('torch', 'onnxruntime', 'cv2', 'numpy', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
    assert "HEAVY []" in done.stdout


def test_one_json_object_with_what_the_documentation_promises():
    done = pixelis("tools", "run", "OCR", "--media", SIGN, "--json", "--no-cache")
    said = json.loads(done.stdout)
    assert done.returncode == 0
    assert said["ok"] is True
    assert said["output"]["text"].split() == ["FOR", "SALE"]
    assert {f["text"] for f in said["footprints"]} == {"FOR", "SALE"}
    assert 0.9 < said["confidence"] <= 1.0
    assert said["seconds"] > 0


def test_a_failed_call_is_exit_status_one_and_says_why():
    done = pixelis("tools", "run", "SEG", "--media", SIGN, "--args", '{"target": "wherewithal"}', "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "failed"
    assert "point" in json.loads(done.stdout)["error"]


def test_for_people_the_text_and_not_json():
    done = pixelis("tools", "run", "OCR", "--media", SIGN)
    assert "FOR" in done.stdout
    assert "confidence" in done.stdout
    assert "{" not in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tools", "run", "OCR", "--media", "/no/such.png"], "cannot be opened"),
        (["tools", "run", "OCR", "--media", SIGN, "--args", "{"], "not JSON"),
        (["tools", "run", "OCR", "--media", SIGN, "--args", "[1]"], "JSON object"),
        (["tools", "run", "OCR", "--media", SIGN, "--seg", "magic"], "seg:"),
        (["tools", "schema", "FETCH"], "there is no tool"),
        (["run", "/no/plan.json", "--media", SIGN], "cannot be read"),
        (["replay", "/no/trace.jsonl"], "/no/trace.jsonl"),
        (["report", "/no/trace.jsonl"], "/no/trace.jsonl"),
        (["models", "pull", "everything"], "everything"),
    ],
)
def test_a_mistake_gets_one_line_and_never_a_traceback(words, line):
    done = pixelis(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_schemas_are_json_for_every_tool():
    tools = json.loads(pixelis("tools", "schema").stdout)
    assert [t["function"]["name"] for t in tools] == ["SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP"]
    assert json.loads(pixelis("tools", "schema", "read").stdout)["function"]["name"] == "OCR"


def test_run_replay_report_and_a_changed_byte(tmp_path):
    plan = tmp_path / "plan.json"
    steps = [
        {"tool": "ZOOM", "args": {"box": [0.4, 0.34, 0.68, 0.69]}},
        {"tool": "READ", "args": {"media": "$1.view"}},
    ]
    plan.write_text(json.dumps({"question": "What does the sign say?", "steps": steps}))
    trace = tmp_path / "trace.jsonl"
    assert pixelis("run", plan, "--media", SIGN, "-o", trace).returncode == 0
    replayed = pixelis("replay", trace)
    assert replayed.returncode == 0, replayed.stderr
    assert "identical" in replayed.stdout
    assert pixelis("report", trace, "-o", tmp_path / "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "What does the sign say?" in page
    assert "SALE" in page

    (artifact,) = (p for p in tmp_path.rglob("*.png") if p.is_file())
    content = bytearray(artifact.read_bytes())
    content[len(content) // 2] ^= 1
    artifact.write_bytes(bytes(content))
    broken = pixelis("replay", trace)
    assert broken.returncode != 0
    assert "step 1 (ZOOM)" in broken.stdout + broken.stderr


def test_doctor_finds_every_tool_live_and_says_with_which_backend():
    done = pixelis("doctor", "--json", "--cache")
    said = json.loads(done.stdout)
    assert said["ok"], said["tools"]
    assert set(said["tools"]) == {"SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP"}
    assert all(tool["live"] and tool["backend"] for tool in said["tools"].values())


def test_the_demo_writes_two_traces_and_two_pages(tmp_path):
    done = pixelis("demo", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "clip.html", "clip.jsonl", "photograph.html", "photograph.jsonl",
    ]  # fmt: skip
    assert "No model chose them" in (tmp_path / "photograph.html").read_text()


def test_cache_info_and_clear(tmp_path, monkeypatch):
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path))
    assert pixelis("tools", "run", "ZOOM", "--media", SIGN, "--args", '{"scale": 2}').returncode == 0
    assert json.loads(pixelis("cache", "info", "--json").stdout)["entries"] >= 1
    assert "forgot" in pixelis("cache", "clear").stdout
    assert json.loads(pixelis("cache", "info", "--json").stdout)["entries"] == 0
