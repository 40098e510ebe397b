"""The command line as a person uses it: real processes, their output, their exit status."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pixelis.cli import display_path

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
    assert said["text"] == said["output"]["text"] == "FOR\nSALE"
    assert '"FOR" at [' in said["seen"]
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


def test_control_characters_of_a_stranger_do_not_reach_the_terminal(tmp_path):
    (tmp_path / "a\x1b[31m.png").write_bytes(b"no picture")
    done = pixelis("tools", "run", "OCR", "--media", tmp_path / "a\x1b[31m.png")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    done = pixelis("tools", "run", "SEG", "--media", SIGN, "--args", json.dumps({"target": "\x1b]0;gone\x07 [bold]"}))
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_a_page_takes_the_place_of_nothing_but_a_page(tmp_path):
    photograph = tmp_path / "mine.jpg"
    photograph.write_bytes(SIGN.read_bytes())
    words = ["tools", "run", "ZOOM", "--media", SIGN, "--args", '{"scale": 2}', "--html"]
    done = pixelis(*words, photograph)
    assert done.returncode == 2
    assert "no evidence page" in done.stderr
    assert photograph.read_bytes() == SIGN.read_bytes()
    assert pixelis(*words, tmp_path / "page.html").returncode == pixelis(*words, tmp_path / "page.html").returncode == 0


def test_a_plugin_and_a_disabled_tool_run_into_a_trace_that_replays(tmp_path):
    (tmp_path / "grey.py").write_text(
        "from pixelis.core.geometry import Value\n"
        "from pixelis.tools.base import FrameArgs, Observation, Tool\n"
        "class Mean(Value):\n    mean: float\n"
        "class Grey(Tool[FrameArgs]):\n"
        "    name, summary, Args, Output = 'GREY', 'Mean grey.', FrameArgs, Mean\n"
        "    def look(self, args, scene):\n"
        "        mean = round(float(scene.frame(0).mean()), 3)\n"
        "        return Observation(str(mean), Mean(mean=mean))\n"
    )
    (tmp_path / "plan.json").write_text(json.dumps({"steps": [{"tool": "GREY"}, {"tool": "OCR"}]}))
    with_both = ["--plugin", "grey:Grey", "--disable", "OCR"]
    done = pixelis("run", "plan.json", "--media", SIGN, "-o", "t.jsonl", "--json", *with_both, cwd=tmp_path)
    assert [step["status"] for step in json.loads(done.stdout)["steps"]] == ["ok", "disabled"]
    assert pixelis("replay", "t.jsonl", *with_both, cwd=tmp_path).returncode == 0
    assert pixelis("replay", "t.jsonl", cwd=tmp_path).returncode == 1


def test_the_page_of_one_call_comes_with_the_trace_that_it_says_to_replay(tmp_path):
    done = pixelis("tools", "run", "ZOOM", "--media", SIGN, "--args", '{"scale": 3}', "--html", tmp_path / "z.html")
    assert done.returncode == 0, done.stderr
    assert "pixelis replay z.jsonl" in (tmp_path / "z.html").read_text()
    assert pixelis("replay", tmp_path / "z.jsonl").returncode == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ('{"target": [100, 100, 400, 400]}', "coordinates go from 0 to 1"),
        ('{"target": "sign", "bx": 1}', "bx: there is no such argument"),
    ],
)
def test_wrong_arguments_are_answered_in_the_words_of_a_person(args, said):
    done = pixelis("tools", "run", "SEG", "--media", SIGN, "--args", args)
    assert done.returncode == 1
    assert said in done.stdout
    assert "constrained" not in done.stdout


def test_a_plan_with_a_failed_call_is_written_and_exits_with_one(tmp_path):
    (tmp_path / "plan.json").write_text('{"steps": [{"tool": "FLY"}]}')
    done = pixelis("run", tmp_path / "plan.json", "--media", SIGN, "-o", tmp_path / "t.jsonl")
    assert done.returncode == 1
    assert (tmp_path / "t.jsonl").exists()


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


def test_the_demo_asks_the_shipped_policy_and_leaves_the_evidence(tmp_path):
    done = pixelis("demo", "-o", tmp_path, "--no-adapt")
    assert done.returncode == 0, done.stderr
    asked = json.loads((DEMO / "questions.json").read_bytes())
    assert len(asked) >= 6
    for number, entry in enumerate(asked, start=1):
        record = tmp_path / f"{number}-{Path(entry['media']).stem}.jsonl"
        trace = json.loads(record.read_text().splitlines()[-1])
        assert trace["query"] == entry["question"]
        assert trace["origin"] == "policy:nano-rft"
        assert record.with_suffix(".html").read_text().startswith("<!doctype html>")
    assert f"of {len(asked)} correct" in done.stdout


def test_cache_info_and_clear(tmp_path, monkeypatch):
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path))
    assert pixelis("tools", "run", "ZOOM", "--media", SIGN, "--args", '{"scale": 2}').returncode == 0
    assert json.loads(pixelis("cache", "info", "--json").stdout)["entries"] >= 1
    assert json.loads(pixelis("cache", "clear", "--json").stdout)["entries"] >= 1
    assert json.loads(pixelis("cache", "info", "--json").stdout)["entries"] == 0


def test_a_corpus_of_questions_names_every_line_that_it_leaves_out_and_what_comes_next(tmp_path):
    shutil.copy(SIGN, tmp_path / "sign.jpg")
    (tmp_path / "text.jpg").write_text("no picture")
    good = {"id": "a", "media": "sign.jpg", "question": "What does it say?", "answer": "FOR SALE"}
    bad = [
        {"media": "gone.jpg", "question": "What?", "answer": "x"},
        {"media": "text.jpg", "question": "What?", "answer": "x"},
        {"media": "sign.jpg", "question": "What?", "answer": " "},
        good,
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join([json.dumps(good), "{", *map(json.dumps, bad)]) + "\n")
    done = pixelis("data", "build", "mine.jsonl", "--workers", 1, "-o", "corpus", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    for number, reason in (
        (2, "not JSON"),
        (3, "gone.jpg is not in"),
        (4, "text.jpg is not a picture"),
        (5, "answer: want a text"),
        (6, "id a was already on line 1"),
    ):
        assert f"mine.jsonl:{number}: skipped: {reason}" in done.stdout
    assert "1 records" in done.stdout
    assert "1 of 1 have an answer but no tool calls" in done.stdout
    assert "next: pixelis train sft configs/nano/own.yaml corpus=corpus -o runs/corpus" in done.stdout


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("runs/ro/.x.html.12230-140333459823488.part", "runs/ro/x.html"),
        (".x.html.1-2.part", "x.html"),
        ("memory/ro/.lock", "memory/ro"),
        ("a/b.part", "a/b.part"),
    ],
)
def test_an_error_names_the_file_that_was_asked_for(path, known):
    assert display_path(path) == known
